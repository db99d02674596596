"""The controller's threads: an action on every tick, whatever happens to planning."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
import torch

from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.loop import Delivery, Tick, step_together
from bilinear_wm.control.realtime import RealTimeController, as_seen
from bilinear_wm.errors import InputError
from bilinear_wm.observation import (
    History,
)
from bilinear_wm.planning import GaussNewtonConfig, GaussNewtonPlanner
from tests.control.conftest import Camera, drive, make_controller, make_pilot, wait_until
from tests.models.conftest import small_model


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (32, 32, 3), np.uint8)


def test_the_clock_ticks_on_while_plans_are_made() -> None:
    ticks: list[Tick] = []
    sent: list[np.ndarray] = []
    plans: list[Delivery] = []
    made, planner = make_controller(
        200, act=sent.append, on_tick=ticks.append, on_plan=plans.append, max_age_s=1e3
    )
    with made:
        drive(made, lambda: made.loop.sources["plan"] > 5)
        planner.gate.clear()
        drive(made, planner.held.is_set)  # a plan that takes its time
        calls, before = planner.calls, len(ticks)
        drive(made, lambda: len(ticks) >= before + 100)
        assert planner.calls == calls
        assert ticks[-1].source == "hold"
        planned = made.loop.sources["plan"]
        planner.gate.set()
        drive(made, lambda: made.loop.sources["plan"] > planned)
    assert len(sent) > 100
    assert all(np.isfinite(a).all() and (np.abs(a) <= 1).all() for a in sent)
    wait_until(lambda: planning_threads() == [])
    assert made.loop.last is plans[-1]
    # How steady the clock is depends on who else uses the machine: see benchmarks/realtime.py.


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), SystemExit(1), KeyboardInterrupt()])
def test_threads_survive_hanging_and_raising(error: BaseException) -> None:
    made, planner = make_controller(200, every=4, max_age_s=1e3)
    planner.error = error
    with made:
        drive(made, lambda: made.loop.failures >= 3 and made.loop.sources["plan"] > 0)
        assert made.loop.last_error is error
        planner.gate.clear()
        before = made.loop.reasons["no plan"]
        drive(made, lambda: made.loop.reasons["no plan"] > before + 5)
        planner.gate.set()
        planned = made.loop.sources["plan"]
        drive(made, lambda: made.loop.sources["plan"] > planned)
    assert not made.running


def test_who_hears_of_plans_may_raise_too() -> None:
    def hear(_: Delivery) -> None:
        raise OSError("full")

    made, _ = make_controller(on_plan=hear, max_age_s=1e3)
    with made:
        drive(made, lambda: made.loop.failures >= 3 and made.loop.sources["plan"] > 1)


def planning_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "bwm-plan"]


def test_a_planner_left_behind_delivers_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, planner = make_controller(200, max_age_s=1e3)
    planner.gate.clear()
    made.start()
    drive(made, lambda: planner.calls > 0)
    made.stop(timeout_s=0.05)
    assert "left behind" in caplog.text
    (left,) = planning_threads()
    stale, delivered = planner.calls, [0]
    deliver = made.loop.deliver

    def noting(*arguments: Any) -> None:
        delivered[0] += 1
        deliver(*arguments)

    monkeypatch.setattr(made.loop, "deliver", noting)
    with made:  # it ticks, and nobody calls a planner that has not returned yet
        before = made.loop.reasons["no plan"]
        drive(made, lambda: made.loop.reasons["no plan"] > before + 5)
        assert planning_threads() == [left]
        assert planner.calls == stale
        planner.gate.set()
        drive(made, lambda: delivered[0] > 2)
        assert planning_threads() == [left]
    wait_until(lambda: planning_threads() == [])
    assert delivered[0] <= planner.calls - stale  # nobody heard of the plan that was left behind


def test_it_starts_and_stops_again_and_again() -> None:
    made, _ = make_controller(500)
    for _ in range(5):
        with made, pytest.raises(InputError, match="found it running"):
            made.start()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("bwm-")])
    made.stop()  # once more does no harm


def test_an_actuator_that_raises_ends_the_loop_and_is_heard() -> None:
    def act(_: np.ndarray) -> None:
        raise OSError("cable")

    made, _ = make_controller(200, act=act)
    made.start()
    wait_until(lambda: not made.running)
    with pytest.raises(OSError, match="cable"):
        made.stop()
    wait_until(lambda: planning_threads() == [])


def test_threads_do_what_simulated_time_does() -> None:
    """Equal settings and observations give equal actions: the clock adds nothing of its own."""
    config = LoopConfig(horizon=2, replan="exhausted")
    pilot, _ = make_pilot()
    loop, body = pilot.loop(config), Camera(lambda index: picture(index))
    loop.set_goal(picture(99))
    for _ in range(21):
        step_together([(body, loop)], pilot.plan)
    expected = [tick.action for tick in body.ticks]

    sent: list[np.ndarray] = []

    def on_tick(tick: Tick) -> None:
        """Time stands still until a plan is there that is due."""
        if tick.source == "hold":  # the first picture is still being planned from
            return
        sent.append(tick.action)
        if not made.loop._queue:
            made.observe(picture(len(sent)))
            wait_until(lambda: not made.loop.wants_plan)

    made, _ = make_controller(500, config, on_tick=on_tick, max_age_s=1e3)
    made.set_goal(picture(99))
    made.observe(picture(0))
    with made:
        wait_until(lambda: len(sent) >= len(expected))
    np.testing.assert_allclose(sent[: len(expected)], expected, atol=1e-5)


def test_pictures_may_be_tensors_and_floats() -> None:
    black, bright = (
        as_seen(torch.zeros(8, 8, 3, dtype=torch.uint8)),
        as_seen(np.full((8, 8, 3), 300.0)),
    )
    assert isinstance(black, np.ndarray)
    assert black.dtype == np.uint8
    assert isinstance(bright, np.ndarray)
    assert bright.dtype == np.uint8
    assert bright.max() == 255
    own = np.zeros((8, 8, 3), np.uint8)
    assert as_seen(own) is not own  # cameras write over their pictures


@pytest.mark.parametrize(
    ("control_hz", "options", "message"),
    [
        (0, {}, "control_hz: expected a number above 0, found 0"),
        (math.nan, {}, "control_hz: expected a number above 0, found nan"),
        (1e-310, {}, "control_hz: expected a number above 0"),
        (math.inf, {}, "control_hz: expected a number above 0, found inf"),
        (20, {"deadline_s": math.nan}, "deadline_s: expected more than 0, found nan"),
        (20, {"deadline_s": 0.0}, "deadline_s: expected more than 0, found 0"),
        (20, {"max_age_s": math.nan}, "max_age_s: expected more than 0, found nan"),
        (20, {"hold": [math.nan, 0]}, "hold: expected 2 finite numbers"),
    ],
)
def test_bad_settings_are_refused(control_hz: float, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_controller(control_hz, **options)


def test_bad_pictures_are_refused() -> None:
    made, _ = make_controller()
    with pytest.raises(InputError, match=r"picture: expected \(height, width, 3\), found shape"):
        made.observe(np.zeros((3, 3)))
    with pytest.raises(InputError, match="goal: expected finite numbers"):
        made.set_goal(np.full((8, 8, 3), np.inf))
    made.observe(np.full((8, 8, 3), np.nan))
    assert made.loop.tick().reason == "observation is not finite"


def test_a_controller_takes_histories_and_refuses_single_pictures() -> None:
    model = small_model("bilinear", observed=2).eval()
    config = GaussNewtonConfig(compiled=False)
    controller = RealTimeController(
        model, GaussNewtonPlanner(model.dynamics, config), control_hz=20
    )
    size, history = model.config.image_size, History(model.config.observes)
    picture = np.zeros((size, size, 3), np.uint8)
    with pytest.raises(InputError, match="expected a history of 2"):
        controller.observe(picture)
    controller.set_goal(history.add(picture).now)
    controller.observe(history.add(picture + 50).now)
    job = controller.loop.next_job()
    assert job is not None
    (made,) = controller.pilot.plan([job])
    assert np.isfinite(made.actions).all()
