"""What every task promises, through one suite."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import bilinear_wm as bwm
from bilinear_wm.errors import InputError
from bilinear_wm.observation import (
    ObservationSpec,
)
from bilinear_wm.tasks import make_task, make_task_for, task_class
from bilinear_wm.tasks.base import Task
from tests.models.conftest import small_model

IDS = {"tworoom": "TwoRoom", "pusht": "PushT", "reacher": "Reacher", "cube": "Cube"}


@pytest.fixture
def env(task_name: str) -> Task:
    env = make_task(task_name, image_size=32, render_quality="fast")
    env.reset(seed=1)
    return env


def roll(env: Task, seed: int, steps: int = 12) -> tuple[np.ndarray, np.ndarray]:
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    states, pictures = [env.state], [env.render()]
    for _ in range(steps):
        pixels, *_ = env.step(rng.uniform(-1, 1, env.action_space.shape))
        states.append(env.state)
        pictures.append(pixels)
    return np.stack(states), np.stack(pictures)


@pytest.mark.slow
def test_gymnasium_accepts_it(task_name: str) -> None:
    made = gymnasium.make(f"bilinear_wm/{IDS[task_name]}-v0", image_size=32, render_quality="fast")
    check_env(made.unwrapped)


def test_a_seed_and_actions_fix_everything(env: Task) -> None:
    first_states, first_pictures = roll(env, 5)
    roll(env, 6)  # whatever happens between leaves no trace
    again_states, again_pictures = roll(env, 5)
    fresh = make_task(env.name, env.image_size, env.render_quality)
    fresh_states, fresh_pictures = roll(fresh, 5)
    for states in (again_states, fresh_states):
        np.testing.assert_array_equal(first_states, states)
    for pictures in (again_pictures, fresh_pictures):
        np.testing.assert_array_equal(first_pictures, pictures)


def test_step_draws_once_and_advance_never(env: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = 0
    draw = env.picture

    def counted(state: np.ndarray) -> np.ndarray:
        nonlocal drawn
        drawn += 1
        return draw(state)

    monkeypatch.setattr(env, "picture", counted)
    action = np.zeros(len(env.action_names), np.float32)
    env.advance(action)
    env.set_goal(env.state)
    assert drawn == 0
    env.step(action)
    env.render()
    assert drawn == 1


def test_goal_picture_is_the_picture_of_that_state(env: Task) -> None:
    target, pictures = roll(env, 9)
    env.reset(seed=2)
    before = env.state
    env.set_goal(target[-1])
    np.testing.assert_array_equal(env.goal_pixels(), pictures[-1])
    np.testing.assert_array_equal(env.state, before)
    assert not env.solved


def test_drawing_the_goal_does_not_disturb_the_simulation(env: Task) -> None:
    env.reset(seed=3)
    action = np.full(len(env.action_names), 0.5, np.float32)
    plain = [env.advance(action) or env.state for _ in range(5)]
    env.reset(seed=3)
    watched = []
    for _ in range(5):
        env.goal_pixels()
        env.render()
        watched.append(env.advance(action) or env.state)
    np.testing.assert_array_equal(plain, watched)


def test_standing_on_the_goal_is_success(env: Task) -> None:
    env.set_goal(env.state)
    assert env.solved
    *_, terminated, truncated, info = env.step(np.zeros(len(env.action_names), np.float32))
    assert terminated
    assert not truncated
    assert info["success"]


def test_goal_vectors_of_the_benchmark_are_taken(env: Task) -> None:
    env.set_goal(np.full(env.goal_size, 0.3))
    assert env.goal.shape == env.state.shape
    assert env.goal_pixels().shape == (32, 32, 3)


def test_set_state_is_what_follows(env: Task) -> None:
    states, _ = roll(env, 4)
    env.set_state(states[6])
    tolerance = 0.2 if env.name == "pusht" else 1e-9  # setting PushT runs a physics step
    moving = [i for i, name in enumerate(env.state_names) if name != "block_angle"]
    shift = np.abs(env.state - states[6])[moving]
    velocity = np.abs(states[6][-2:]).max() * 0.01 if env.name == "pusht" else 0
    assert shift.max() <= tolerance + velocity


@pytest.mark.slow
@pytest.mark.parametrize("size", [24, 65, 96])
def test_pictures_have_the_asked_size(task_name: str, size: int) -> None:
    env = make_task(task_name, image_size=size, render_quality="fast")
    pixels, _ = env.reset(seed=0)
    assert pixels.shape == (size, size, 3)
    assert pixels.dtype == np.uint8
    assert pixels.std() > 5  # something is drawn


def test_bad_input_is_refused_by_name(env: Task) -> None:
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: env.set_state(np.zeros(3)), "state: expected a vector"),
        (lambda: env.set_state(np.full(env.state.shape, np.nan)), "expected finite"),
        (lambda: env.set_goal(np.zeros((2, 2))), "goal: expected a vector"),
        (lambda: env.step(np.zeros(9)), "action: expected a vector"),
        (lambda: env.step(np.full(len(env.action_names), np.inf)), "expected finite"),
        (lambda: env.reset(options={"stat": 1}), "expected options 'state' and 'goal'"),
    ]
    for call, message in wrong:
        with pytest.raises(InputError, match=message):
            call()


def test_bad_construction_is_refused() -> None:
    with pytest.raises(InputError, match="expected one of tworoom, pusht, reacher, cube"):
        bwm.make_task("tworooms")
    with pytest.raises(InputError, match="image_size"):
        make_task("tworoom", image_size=0)
    with pytest.raises(InputError, match="render_quality"):
        make_task("tworoom", render_quality="best")  # type: ignore[arg-type]


def test_tasks_do_not_load_torch() -> None:
    code = (
        "import sys, bilinear_wm as bwm; bwm.make_task('tworoom'); bwm.EpisodeDataset;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_any_thread_may_draw(env: Task) -> None:
    here, found = env.picture(env.state), []
    threads = [
        threading.Thread(target=lambda: found.append(env.picture(env.state))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
        thread.join()
    assert len(found) == 3
    assert all(np.array_equal(picture, here) for picture in found)


def test_distance_agrees_with_success(task_name: str) -> None:
    """Distances are in units of success, up to the tasks' treatment of the very edge."""
    cls = task_class(task_name)
    rng = np.random.default_rng(0)
    size = len(cls.state_names)
    goals = rng.normal(size=(500, size))
    scale = {"tworoom": 12, "pusht": 10, "reacher": 0.05, "cube": 0.03}[task_name]
    states = goals + scale * rng.normal(size=goals.shape)
    solved = cls.success(states, goals)
    assert solved.any()
    assert not solved.all()
    assert np.array_equal(solved, cls.distance(states, goals) < 1)


def test_tasks_name_what_they_cannot_show(task_name: str) -> None:
    task = make_task(task_name, image_size=8)
    task.reset(seed=0)
    seen = task.observe(ObservationSpec(proprioception=task.state_names[:2]))
    np.testing.assert_array_equal(seen.pictures["pixels"], task.picture(task.state))
    np.testing.assert_array_equal(seen.proprioception, task.state[:2].astype(np.float32))
    with pytest.raises(InputError, match=f"{task_name}: cameras: expected some of pixels"):
        task.observe(ObservationSpec(cameras=("behind",)))
    with pytest.raises(InputError, match=f"{task_name}: proprioception: expected some of .*'?hope"):
        task.observe(ObservationSpec(proprioception=("hope",)))
    task.close()


def test_a_model_gets_the_world_that_it_knows() -> None:
    model = small_model("bilinear", image_size=48, patch_size=16, render_quality="fast").eval()
    env = make_task_for(model)
    assert (env.name, env.image_size, env.render_quality) == ("tworoom", 48, "fast")
    pixels, _ = env.reset(seed=0)
    assert model.encode(pixels).shape == (24,)
    with pytest.raises(InputError, match="expected one of square pictures"):
        make_task_for(small_model("bilinear", image_width=64))
    with pytest.raises(InputError, match="task: expected one of tworoom"):
        make_task_for(small_model("bilinear", task="unknown"))
