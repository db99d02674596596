"""Is it the picture, the dynamics or the data? The same planner, on the true state.

    python examples/true_state.py pusht.h5 --steps 1500
    python examples/true_state.py pusht-disturbed.h5 --steps 12000 --dynamics network --points \\
        --candidates 64 --replan-every 2 --horizons 5 --simulate
    python examples/true_state.py cube-disturbed.h5 --steps 8000 --dynamics network --prior 8000 \\
        --replan-every 1 --horizons 5 --simulate

The encoder reads the physical variables that probes look for (sines and cosines of angles) instead
of a picture, or with `--points` points of the scene (PushT: the disc and three of the T), as the
points encoder ideally would: the ceiling of what eyes can give. Whatever then still fails is not
the eyes: it is the dynamics, the objective, the planner or the data. Two dynamics of the variables
themselves, without a latent, part these: a `network` of state and actions can be anything, an
`affine` one is linear in the actions of a block, as the bilinear model is. `--goals` takes the
tasks from another file, `--simulate` from fresh episodes. `--prior` learns an action prior of the
variables too; plans then stay near it, and its own plans are tried as well.

Prints how well the change of every variable over 1 and 3 blocks is predicted (R^2; 0 is "nothing
moves"; held-out windows, read off predicted latents by a linear map), and success on held-out
tasks.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import trange

from bilinear_wm import recipes
from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.pilot import Pilot
from bilinear_wm.data.file import EpisodeFile
from bilinear_wm.data.windows import split_episodes
from bilinear_wm.evaluation.attempt import Attempt, run
from bilinear_wm.evaluation.goals import StartGoal, choose_goals
from bilinear_wm.models.bilinear import BilinearConfig, BilinearWorldModel
from bilinear_wm.models.prior import BLOCKS, ActionPrior
from bilinear_wm.planning import GaussNewtonConfig, GaussNewtonPlanner, Planner
from bilinear_wm.planning.prior import PriorPlanner
from bilinear_wm.reporting.results import rate
from bilinear_wm.tasks import make_task, task_class

FRAMES, HIDDEN, PRIOR_HIDDEN = 4, 256, 384
RIDGE = 1e-4


class StateEncoder(nn.Module):
    """Physical variables to a latent; batch norm at the end, as after pictures."""

    def __init__(self, variables: int, latent: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(variables, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU(),
            nn.Linear(HIDDEN, latent), nn.BatchNorm1d(latent, momentum=None),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        latent: Tensor = self.layers(x.flatten(0, -2))
        return latent.view(*x.shape[:-1], -1)


class StateDynamics(nn.Module):
    """Changes of the variables themselves: f(x, a), or W(x) (a, 1)."""

    scale: Tensor

    def __init__(self, kind: str, scale: Tensor, action_size: int, env_action_size: int) -> None:
        super().__init__()
        self.kind, self.latent_size = kind, len(scale)
        self.action_size, self.env_action_size = action_size, env_action_size
        self.register_buffer("scale", scale)
        inputs, outputs = len(scale) + action_size, len(scale)
        if kind == "affine":
            inputs, outputs = len(scale), len(scale) * (action_size + 1)
        self.layers = nn.Sequential(
            nn.Linear(inputs, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(),
            nn.Linear(384, outputs),
        )  # fmt: skip

    def change(self, x: Tensor, a: Tensor) -> Tensor:
        """In units of a typical change."""
        if self.kind == "network":
            moved: Tensor = self.layers(torch.cat([x, a], dim=-1))
            return moved
        matrix = self.layers(x).unflatten(-1, (self.latent_size, -1))
        return (matrix @ torch.cat([a, torch.ones_like(a[..., :1])], -1).unsqueeze(-1)).squeeze(-1)

    def rollout(self, z0: Tensor, actions: Tensor) -> Tensor:
        path = [z0]
        for t in range(actions.shape[-2]):
            path.append(path[-1] + self.scale * self.change(path[-1], actions[..., t, :]))
        return torch.stack(path, dim=-2)


def block_points(states: NDArray[np.float64]) -> NDArray[np.float64]:
    """PushT's disc, both ends of the T's bar and the end of its stem."""
    cosine, sine = np.cos(states[..., 4]), np.sin(states[..., 4])
    found = [states[..., 0], states[..., 1]]
    for x, y in ((-60, 15), (60, 15), (0, 120)):
        found += [states[..., 2] + cosine * x - sine * y, states[..., 3] + sine * x + cosine * y]
    return np.stack(found, axis=-1)


class Windows:
    """Physical variables, scaled to unit variance, and blocks of z-scored actions."""

    def __init__(self, path: Path, held_out: bool, skip: int, points: bool) -> None:
        self.skip, self.points = skip, points
        file = EpisodeFile(path)
        self.kind = task_class(str(file.task))
        episodes = split_episodes(file.num_episodes)[int(held_out)]
        states = [file.episode_states(int(e)) for e in episodes]
        rows = [(file.offsets[e], file.offsets[e] + file.lengths[e]) for e in episodes]
        self.actions = [torch.from_numpy(file.actions[low:high]) for low, high in rows]
        self.variables = [self._physical(s) for s in states]
        everything = torch.cat(self.variables)
        self.mean, self.std = everything.mean(0), everything.std(0)
        if points:  # distances between points of the scene mean the same everywhere
            self.std = torch.full_like(self.std, float(self.std.mean()))
        moves = torch.cat([a[:-1] for a in self.actions])
        self.action_mean, self.action_std = moves.mean(0), moves.std(0)

    def _physical(self, states: NDArray[np.float64]) -> Tensor:
        if self.points:
            return torch.from_numpy(block_points(states)).float()
        found = self.kind.probe_targets(states)
        return torch.from_numpy(np.stack(list(found.values()), axis=-1)).float()

    def features(self, states: NDArray[np.float64]) -> Tensor:
        return (self._physical(states) - self.mean) / self.std

    def sample(
        self, count: int, rng: np.random.Generator, frames: int = FRAMES
    ) -> tuple[Tensor, Tensor]:
        span = self.skip * (frames - 1)
        x: list[Tensor] = []
        a: list[Tensor] = []
        while len(x) < count:
            e = rng.integers(len(self.variables))
            if len(self.variables[e]) <= span:
                continue
            t = rng.integers(len(self.variables[e]) - span)
            x.append(self.variables[e][t : t + span + 1 : self.skip])
            a.append(self.actions[e][t : t + span].reshape(frames - 1, -1))
        actions = torch.stack(a)
        repeats = actions.shape[-1] // len(self.action_mean)
        scaled = (actions - self.action_mean.repeat(repeats)) / self.action_std.repeat(repeats)
        return (torch.stack(x) - self.mean) / self.std, scaled.float()


def train(data: Windows, steps: int, kind: str, prior_steps: int) -> BilinearWorldModel:
    torch.manual_seed(0)
    config = BilinearConfig(
        data.kind.name, 64, data.skip, tuple(data.action_mean.tolist()),
        tuple(data.action_std.tolist()), prior_hidden=PRIOR_HIDDEN * (prior_steps > 0),
        **recipes.COMPACT_OBJECTIVE,
    )  # fmt: skip
    model = BilinearWorldModel(config)
    rng = np.random.default_rng(0)
    moves: StateDynamics | None = None
    if kind == "latent":
        model.encoder = StateEncoder(len(data.mean), config.latent_size)
    else:
        x, _ = data.sample(4096, rng)
        scale = x.diff(dim=1).flatten(0, 1).std(0)
        moves = StateDynamics(kind, scale, config.block_size, config.action_size)
        model.encoder, model.dynamics = nn.Identity(), moves  # type: ignore[assignment]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, steps, pct_start=0.05)
    for _ in (bar := trange(steps, desc="train", unit="step")):
        x, a = data.sample(256, rng)
        if moves is not None:
            moved = x.diff(dim=1) / moves.scale
            loss = (moves.change(x[:, :-1], a) - moved).square().mean()
        else:
            loss = model.latent_loss(model.encoder(x), a).total
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=float(loss.detach()), refresh=False)
    for layer in model.encoder.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.reset_running_stats()
    with torch.no_grad():
        model.encoder(data.sample(4096, rng)[0])
    model.eval()
    if prior_steps:
        model.prior = train_prior(model, data, prior_steps)
    return model


def train_prior(model: BilinearWorldModel, data: Windows, steps: int) -> ActionPrior:
    """How windows of up to five blocks go from their first state to their last."""
    rng = np.random.default_rng(2)
    with torch.no_grad():
        z = model.encoder(data.sample(4096, rng)[0]).flatten(0, 1)
    prior = ActionPrior(z.shape[-1], model.config.block_size, PRIOR_HIDDEN)
    prior.prepare(z)
    optimizer = torch.optim.AdamW(prior.layers.parameters(), 1e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.5e-3, steps, pct_start=0.05)
    for _ in (bar := trange(steps, desc="train the prior", unit="step")):
        x, a = data.sample(256, rng, BLOCKS + 1)
        with torch.no_grad():
            z = model.encoder(x)
        blocks = torch.from_numpy(rng.integers(1, BLOCKS + 1, len(x)))
        told = prior(z[:, 0], z[torch.arange(len(z)), blocks], blocks)
        missed = (told - a).square().mean(-1)
        loss = missed[torch.arange(BLOCKS) < blocks[:, None]].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=float(loss.detach()), refresh=False)
    return prior.eval()


@torch.no_grad()
def changes(model: BilinearWorldModel, data: Windows, held_out: Windows) -> None:
    """R^2 of the predicted change of every variable."""
    rng = np.random.default_rng(1)
    x, _ = data.sample(4096, rng)
    z = torch.cat([model.encoder(x).flatten(0, 1), torch.ones(x.shape[0] * FRAMES, 1)], dim=1)
    gram = z.T @ z
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram))
    read = torch.linalg.solve(gram, z.T @ x.flatten(0, 1))
    score = 1 - (x.flatten(0, 1) - z @ read).square().mean(0)
    print(f"variables read off latents, R^2: {', '.join(f'{s:.3f}' for s in score)}")
    x, a = held_out.sample(4096, rng)
    z = model.encoder(x)
    predicted = model.dynamics.rollout(z[:, 0], a)
    for blocks in (1, 3):
        true = x[:, blocks] - x[:, 0]
        miss = true - (predicted[:, blocks] - z[:, 0]) @ read[:-1]
        scores = 1 - miss.square().mean(0) / true.square().mean(0)
        names = list(data.kind.probe_targets(np.zeros((1, len(data.kind.state_names)))))
        if data.points:
            names = [
                f"{what}_{axis}" for what in ("disc", "left", "right", "stem") for axis in "xy"
            ]
        shown = ", ".join(f"{n} {s:.2f}" for n, s in zip(names, scores, strict=True))
        print(f"change over {blocks} blocks, R^2: {shown}")


class TrueState(Attempt):
    """An attempt that shows the state itself in the place of a picture."""

    def picture(self) -> NDArray[Any]:
        return self.env.state

    def goal_picture(self) -> NDArray[Any]:
        return self.env.goal


def success(
    model: BilinearWorldModel, data: Windows, tasks: list[StartGoal], horizon: int, candidates: int,
    replan_every: int | None,
) -> None:  # fmt: skip
    """50 steps, as in `bwm evaluate`: whole plans, or some blocks of each, up to the deadline."""
    env = make_task(data.kind.name, image_size=8)
    starts = min(4, 1 + candidates)
    settings = GaussNewtonConfig(effort=1e-5, damping=1e-6, candidates=candidates, starts=starts)
    planners: dict[str, Planner] = {"": GaussNewtonPlanner(model.dynamics, settings)}
    if model.config.prior_hidden:
        near = GaussNewtonConfig(**recipes.OWN_PLANS["cube"])
        planners = {
            ", near the prior": GaussNewtonPlanner(model.dynamics, near),
            ", the prior alone": PriorPlanner(model.dynamics),
        }
    low, high = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]
    config = LoopConfig(horizon, replan_every or "exhausted", "deadline", warm_start=False)
    for name, planner in planners.items():
        pilot = Pilot(
            model, planner, low, high, encode=lambda states: model.encoder(data.features(states))
        )
        groups = ([TrueState(task, env, env, 50)] for task in tasks)
        outcomes = [attempt.solved for attempt in run(groups, pilot, config)]
        print(f"H = {horizon}{name}: success {rate(outcomes)} of {len(tasks)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--dynamics", choices=["latent", "network", "affine"], default="latent")
    parser.add_argument("--prior", type=int, default=0, help="steps that an action prior learns")
    parser.add_argument("--skip", type=int, default=5, help="environment steps in a block")
    parser.add_argument("--candidates", type=int, default=0)
    parser.add_argument("--points", action="store_true", help="points of the scene (PushT)")
    parser.add_argument("--replan-every", type=int, help="blocks (default: whole plans)")
    parser.add_argument("--simulate", action="store_true", help="tasks of fresh episodes")
    parser.add_argument("--goals", type=Path, help="tasks from this file (default: the data)")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--horizons", type=int, nargs="*", default=[1, 2, 5])
    options = parser.parse_args()
    torch.set_flush_denormal(True)
    data, held_out = (
        Windows(options.data, held_out, options.skip, options.points) for held_out in (False, True)
    )
    held_out.mean, held_out.std = data.mean, data.std
    held_out.action_mean, held_out.action_std = data.action_mean, data.action_std
    model = train(data, options.steps, options.dynamics, options.prior)
    changes(model, data, held_out)
    goals = options.goals or options.data
    tasks = choose_goals(None if options.simulate else goals, data.kind.name, 25, options.tasks, 1)
    for horizon in options.horizons:
        success(model, data, tasks, horizon, options.candidates, options.replan_every)


if __name__ == "__main__":
    main()
