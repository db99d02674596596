"""Goals as states: two numbers in the place of a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from bilinear_wm.data.collect import CollectConfig, collect
from bilinear_wm.errors import InputError
from bilinear_wm.evaluation.evaluate import EvaluateConfig, evaluate
from bilinear_wm.evaluation.load import load_planner, make_pilot
from bilinear_wm.recipes import evaluation

PRETRAINED = Path(__file__).parents[2] / "pretrained" / "tworoom"


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state") / "tworoom.h5"
    collect(CollectConfig("tworoom", path, 200, workers=1), progress=False)
    return path


@pytest.mark.slow
def test_a_goal_given_by_two_numbers_is_reached(episodes: Path) -> None:
    recipe = evaluation("tworoom", "gauss-newton")
    options = recipe.planner_options
    config = EvaluateConfig(
        "tworoom", PRETRAINED, planner_options=options, horizon=5, replan_every=2,
        arrive="deadline", goal="state", episodes=10, data=episodes, floors=False,
    )  # fmt: skip
    assert evaluate(config, progress=False).success.value >= 0.8
    pilot = make_pilot(load_planner("tworoom", PRETRAINED, "gauss-newton", options), episodes,
                       state_goals=True)  # fmt: skip
    assert pilot.probe is not None
    assert pilot.probe.names == ("agent_x", "agent_y")


def test_it_needs_episodes_to_fit_the_probe() -> None:
    config = EvaluateConfig("tworoom", PRETRAINED, goal="state", episodes=2)
    with pytest.raises(InputError, match="goal: expected `data`"):
        evaluate(config, progress=False)
