"""A bundle plans what torch plans, where torch cannot be imported, and refuses what is amiss."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bilinear_wm import deploy, recipes
from bilinear_wm.deploy import files, native
from bilinear_wm.deploy.bundle import Prior
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.goals import simulated_goals
from bilinear_wm.evaluation.load import LoadedPlanner, load_planner
from bilinear_wm.models import load_model
from bilinear_wm.planning import Plan, PlanProblem
from tests.deploy.conftest import PRETRAINED

CHILD = Path(__file__).parent / "without_torch.py"
CLOSE, AMPLIFIED = 1e-5, 1e-3
"""Of equal inputs; of inputs that differ by rounding, which a search that stops early amplifies."""
MakeBundle = Callable[[str], Path]


def planned_by_torch(loaded: LoadedPlanner, z: Any, z_goal: Any, horizon: int) -> Plan:
    model = loaded.model
    prior = model.propose(z[None], z_goal[None], horizon)
    first = None if prior is None else prior[0]
    problem = PlanProblem(z, z_goal, horizon, *loaded.bounds, prior=first)
    return loaded.planner.plan(problem)


def compare(task: str, folder: Path, tmp_path: Path) -> bool:
    """Hold a bundle in a process without torch to what torch plans; whether numba was there."""
    recipe = recipes.evaluation(task, "gauss-newton")
    loaded = load_planner(task, PRETRAINED / task, "gauss-newton", recipe.planner_options)
    model, camera = loaded.model, loaded.camera
    goals = simulated_goals(task, 25, 4, seed=5)
    pictures = np.stack([camera.picture(goal.start) for goal in goals])
    wanted = np.stack([camera.picture(goal.goal) for goal in goals])
    z, z_goal = model.encode(pictures), model.encode(wanted)
    plans = [
        planned_by_torch(loaded, *pair, recipe.horizon) for pair in zip(z, z_goal, strict=True)
    ]
    raw = np.stack([model.to_env_actions(plan.actions).numpy() for plan in plans])
    problems, out = tmp_path / "problems.npz", tmp_path / "plans.npz"
    np.savez(problems, pictures=pictures, goals=wanted, z=z.numpy(), z_goal=z_goal.numpy())
    command = [sys.executable, str(CHILD), str(folder), str(problems), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.load(out)
    np.testing.assert_allclose(found["z"], z.numpy(), rtol=0, atol=CLOSE)
    # A prior is computed anew, in another order of sums.
    same = AMPLIFIED if model.config.prior_hidden else CLOSE
    np.testing.assert_allclose(found["same"], raw, rtol=0, atol=same)
    np.testing.assert_allclose(found["seen"], raw, rtol=0, atol=AMPLIFIED)
    np.testing.assert_allclose(found["cost"], [float(plan.cost) for plan in plans], rtol=1e-4)
    assert found["status"].tolist() == [plan.status for plan in plans]
    return done.stdout.strip() == "True"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["tworoom", "pusht", "cube"])
def test_plans_are_torchs_where_torch_cannot_be_imported(
    task: str, bundle: MakeBundle, tmp_path: Path
) -> None:
    """Points and a vision transformer; plain, with a residual and with a prior."""
    assert compare(task, bundle(task), tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not native.can_build(), reason="no C compiler")
def test_the_kernel_compiled_ahead_needs_no_numba(native_bundle: Path, tmp_path: Path) -> None:
    assert not compare("pusht", native_bundle, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not native.can_build(), reason="no C compiler")
def test_threads_share_a_bundle(native_bundle: Path) -> None:
    made = deploy.load(native_bundle)
    pictures = two(8)
    pairs = list(zip(pictures, pictures[1:] + pictures[:1], strict=True))
    expected = [made.plan(*pair).actions for pair in pairs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda pair: made.plan(*pair).actions, pairs))
    assert np.array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.skipif(not native.can_build(), reason="no C compiler")
def test_another_processor_has_numba(
    native_bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    picture, goal = two()
    own = deploy.load(native_bundle).plan(picture, goal)
    monkeypatch.setattr(native, "FLAGS", {"a flag that no processor has"})
    with caplog.at_level("WARNING", "bilinear_wm"):
        other = deploy.load(native_bundle).plan(picture, goal)
    assert "which this machine is not" in caplog.text
    np.testing.assert_allclose(other.actions, own.actions, rtol=0, atol=CLOSE)


def two(count: int = 2, seed: int = 0) -> list[Any]:
    """Pictures of large squares, in any colours."""
    small = np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return list(small.repeat(8, 1).repeat(8, 2))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["tworoom", "cube"])
def test_the_encoder_has_no_batch_norms_left(task: str, bundle: MakeBundle) -> None:
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(bundle(task) / files.ENCODER).graph
    assert {node.op_type for node in graph.node} & {"Conv", "MatMul", "Gemm"}
    assert "BatchNormalization" not in {node.op_type for node in graph.node}
    (taken,) = graph.input
    assert taken.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [d.dim_value for d in taken.type.tensor_type.shape.dim] == [1, 64, 64, 3]


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [3, 7])
def test_the_prior_is_torchs(horizon: int, bundle: MakeBundle) -> None:
    model = load_model(PRETRAINED / "cube")
    z, goal = model.encode(np.stack(two()))
    expected = model.propose(z[None], goal[None], horizon)
    assert expected is not None
    found = Prior(files.read(bundle("cube"))[1]).propose(z.numpy(), goal.numpy(), horizon)
    np.testing.assert_allclose(found, expected[0].numpy(), rtol=0, atol=CLOSE)


@pytest.mark.slow
def test_the_planners_promise(bundle: MakeBundle) -> None:
    """Finite, in the box, never worse than the start, in time; garbage gives the start back."""
    low, high = np.array([-0.5, -0.2], np.float32), np.array([0.3, 1.0], np.float32)
    made = deploy.load(bundle("tworoom"), low, high)
    picture, wanted = two()
    z, goal = made.encode(picture), made.encode(wanted)
    plan = made.plan(picture, goal)
    assert plan.actions.shape == (25, 2)
    assert plan.actions.dtype == np.float32
    assert (plan.actions >= low).all()
    assert (plan.actions <= high).all()
    assert np.array_equal(plan.actions, made.plan(z, wanted).actions)
    late = made.plan(z, goal, deadline_s=0.0)
    assert late.status == "deadline"
    again = made.plan(z, goal, warm_start=plan.blocks)
    assert again.cost <= plan.cost * (1 + 1e-6) <= late.cost * (1 + 2e-6)
    shorter = made.plan(z, goal, 3, warm_start=plan.blocks[2:])
    assert shorter.actions.shape == (15, 2)
    for bad in (np.nan, np.inf, 1e20):
        broken = made.plan(np.full_like(z, bad), goal, warm_start=plan.blocks)
        assert broken.status == "bad_input"
        assert np.array_equal(broken.blocks, plan.blocks)
        assert math.isnan(broken.cost)
    nowhere = made.plan(z, goal, warm_start=np.full_like(plan.blocks, np.nan))
    assert nowhere.status == "bad_input"
    assert (nowhere.blocks == np.clip(0, made._low, made._high)).all()


@pytest.mark.slow
def test_what_cannot_be_planned_is_refused(bundle: MakeBundle) -> None:
    made = deploy.load(bundle("tworoom"))
    picture, goal = two()
    z = made.encode(picture)
    halved, long = picture / np.float32(2), np.zeros((6, 10), np.float32)
    wrong: list[tuple[str, Callable[[], Any]]] = [
        (r"picture: expected uint8 \(64, 64, 3\), found float32", lambda: made.encode(halved)),
        (r"found uint8 \(32, 32, 3\)", lambda: made.encode(picture[::2, ::2])),
        ("now: expected a picture.*or a latent of 32 numbers", lambda: made.plan(z[1:], goal)),
        ("goal: expected a picture", lambda: made.plan(z, goal[None])),
        ("horizon: expected 1 to 10 blocks, found 11", lambda: made.plan(z, goal, 11)),
        (r"warm_start: expected up to 5 blocks of 10", lambda: made.plan(z, goal, warm_start=long)),
        ("action_low", lambda: deploy.load(bundle("tworoom"), 1.0, -1.0)),
    ]  # fmt: skip
    for expected, call in wrong:
        with pytest.raises(InputError, match=expected):
            call()


@pytest.mark.slow
def test_a_damaged_bundle_is_refused_in_one_line(bundle: MakeBundle, tmp_path: Path) -> None:
    def damaged(name: str, change: Callable[[bytes], bytes | None]) -> str:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(bundle("tworoom"), copy)
        content = change((copy / name).read_bytes())
        (copy / name).unlink()
        if content is not None:
            (copy / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            deploy.load(copy)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def edited(**changes: Any) -> Callable[[bytes], bytes]:
        return lambda text: json.dumps(json.loads(text) | changes).encode()

    for name in (files.ENCODER, files.ARRAYS):
        assert "damaged" in damaged(name, lambda b: b[:500] + bytes([b[500] ^ 1]) + b[501:])
        assert "damaged" in damaged(name, lambda b: b[:-1])
        assert "found no such file" in damaged(name, lambda _: None)
    assert "a bundle of `bwm export`" in damaged(files.MANIFEST, lambda _: None)
    assert "expected JSON" in damaged(files.MANIFEST, lambda b: b[:-9])
    assert "format_version: expected 1, found 7" in damaged(
        files.MANIFEST, edited(format_version=7)
    )
    assert "horizon: expected int" in damaged(files.MANIFEST, edited(horizon="5"))
    assert "unknown colour" in damaged(files.MANIFEST, edited(colour="red"))
    with pytest.raises(InputError, match="found no such folder"):
        deploy.load(tmp_path / "nothing")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "missing"), [("onnxruntime", "onnxruntime"), ("numba", "numba")]
)
def test_a_missing_extra_is_named(
    module: str, missing: str, bundle: MakeBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_compiled", "_compiled_rollout", "_compiled_products"):
        monkeypatch.delitem(sys.modules, f"bilinear_wm.planning.{name}", raising=False)
    folder = bundle("tworoom")
    monkeypatch.setattr(sys, "meta_path", [Without(module), *sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError) as caught:
        deploy.load(folder)
    assert f"needs the package '{missing}'" in str(caught.value)
    assert "pip install 'bilinear-world-models[export]'" in str(caught.value)


class Without:
    """Finds everything but one package."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] == self._module:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
