"""Fast pictures: close to MuJoCo's, the same everywhere, and MuJoCo's where need be."""

from __future__ import annotations

import builtins
import logging
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from bilinear_wm.tasks import make_task
from bilinear_wm.tasks.base import Task
from bilinear_wm.tasks.graphics import Canvas, mujoco
from bilinear_wm.tasks.raster import Raster, beyond_raster
from bilinear_wm.tasks.scene import Scene
from bilinear_wm.tasks.solid import merge

FLOOR = '<geom type="plane" size="1 1 .1"/>'
LIGHT = '<light pos="0 0 2" dir="0 0 -1" directional="true"/>'
CAMERA = '<camera pos="0 -1 1" xyaxes="1 0 0 0 1 1"/>'
SOLIDS = """
<body pos="0 0 .2"><freejoint/>
  <geom type="box" size=".1 .05 .03" rgba=".8 .3 .2 1"/>
  <geom type="sphere" size=".08" pos=".25 0 0" rgba=".2 .6 .9 1"/>
  <geom type="capsule" size=".05 .1" pos="-.3 0 0" euler="70 0 0" rgba=".9 .9 .2 1"/>
  <geom type="cylinder" size=".06 .08" pos="0 .3 0" euler="40 0 0" rgba=".3 .9 .4 1"/>
</body>"""


def model(*parts: str) -> Any:
    return mujoco.MjModel.from_xml_string(
        f"<mujoco><worldbody>{''.join(parts)}</worldbody></mujoco>"
    )


def behaviour_states(env: Task, seeds: int, each: int) -> list[np.ndarray]:
    states = []
    for seed in range(seeds):
        env.begin(seed=seed)
        act = env.behaviour()
        for step in range(20 * each):
            env.advance(act())
            if step % 20 == 10:
                states.append(env.state)
    return states


def in_process(name: str, states: list[np.ndarray]) -> list[np.ndarray]:
    env = make_task(name, 32, "fast")
    return [env.picture(state) for state in states]


@pytest.mark.parametrize(("name", "limit"), [("reacher", 0.1), ("cube", 1.0)])
def test_pictures_of_behaviour_differ_little(name: str, limit: float) -> None:
    faithful, fast = make_task(name, 64, "faithful"), make_task(name, 64, "fast")
    for state in behaviour_states(fast, seeds=4, each=3):
        difference = np.abs(fast.picture(state).astype(int) - faithful.picture(state))
        assert difference.mean() <= limit
    assert isinstance(fast._scene._drawer, Raster)  # type: ignore[attr-defined]
    faithful.close()
    fast.close()


@pytest.mark.parametrize("light", [LIGHT, '<light pos=".3 0 1.5" dir="-.2 0 -1" cutoff="60"/>'])
@pytest.mark.parametrize("size", [48, 96])
def test_shapes_and_their_shadows_are_mujocos(light: str, size: int) -> None:
    scene = model(FLOOR, light, CAMERA, SOLIDS)
    rng = np.random.default_rng(0)
    faithful, fast = (Scene(scene, 0, size, quality) for quality in ("faithful", "fast"))
    for _ in range(6):
        turn = rng.normal(size=4)
        qpos = np.concatenate([[*rng.uniform(-0.1, 0.1, 2), 0.45], turn / np.linalg.norm(turn)])
        difference = np.abs(fast.picture(qpos).astype(int) - faithful.picture(qpos))
        assert difference.mean() <= 0.5
        assert (difference > 20).mean() <= 0.01
    faithful.close()


@pytest.mark.slow
def test_threads_and_processes_draw_the_same() -> None:
    env = make_task("reacher", 32, "fast")
    states = behaviour_states(env, seeds=2, each=4)
    expected = [env.picture(state) for state in states]
    np.testing.assert_array_equal(in_process("reacher", states), expected)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            np.testing.assert_array_equal(list(threads.map(env.picture, states)), expected)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        drawn = processes.submit(in_process, "reacher", states).result()
    np.testing.assert_array_equal(drawn, expected)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_draws_the_same() -> None:
    env = make_task("reacher", 32, "fast")
    state = env.state
    expected = env.picture(state)  # its scenery is drawn before the fork

    def draw(end: Any) -> None:
        end.send(env.picture(state))

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=draw, args=(there,))
    child.start()
    np.testing.assert_array_equal(here.recv(), expected)
    child.join()


def test_without_numba_mujoco_draws_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = builtins.__import__

    def fake(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "numba":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "bilinear_wm.tasks._raster", raising=False)
    monkeypatch.setattr(builtins, "__import__", fake)
    faithful, fast = make_task("cube", 64, "faithful"), make_task("cube", 64, "fast")
    with caplog.at_level(logging.WARNING):
        pictures = [fast.picture(fast.state) for _ in range(2)]
    assert len(caplog.records) == 1
    assert "bilinear-world-models[fast]" in caplog.text
    assert isinstance(fast._scene._drawer, Canvas)  # type: ignore[attr-defined]
    difference = np.abs(faithful.picture(fast.state).astype(int) - pictures[0])
    assert 0 < difference.mean() <= 1
    faithful.close()
    fast.close()


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ('<geom type="ellipsoid" size=".1 .2 .3"/>', "other solids"),
        ('<geom type="box" size=".1 .1 .1" rgba="1 1 1 .5"/>', "transparent solids"),
        ('<light pos="1 0 1" dir="-1 0 -1"/>', "other than one light with shadows"),
        ('<site size=".1"/>', "sites"),
    ],
)
def test_scenes_beyond_it_are_mujocos(part: str, reason: str) -> None:
    scene = model(FLOOR, LIGHT, CAMERA, SOLIDS, part)
    assert beyond_raster(scene, 0) == reason
    fast = Scene(scene, 0, 32, "fast")
    fast.picture(scene.qpos0)
    assert isinstance(fast._drawer, Canvas)
    fast.close()


def test_merged_vertices_stay_on_the_surface() -> None:
    """A finely divided corner of a cube: three planes, which any merging must keep."""
    u, v = (side.ravel() for side in np.meshgrid(*2 * [np.linspace(0, 1, 21)], indexing="ij"))
    first = (np.arange(20)[:, None] * 21 + np.arange(20)).ravel()
    one = np.concatenate(
        [np.stack([first, first + 21, first + 22], 1), np.stack([first, first + 22, first + 1], 1)]
    )
    sides = [np.roll(np.stack([u, v, 0 * u], 1), axis, axis=1) for axis in range(3)]
    vertices, faces = np.concatenate(sides), np.concatenate([one + i * 441 for i in range(3)])
    fewer, left, kept = merge(vertices, faces.astype(np.int32), 0.13)
    assert len(left) == len(kept) < len(faces) / 4
    assert np.abs(fewer).min(axis=1).max() < 0.01
    a, b, c = (fewer[left[:, i]] for i in range(3))
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2
    assert 2.4 < area < 3.1
