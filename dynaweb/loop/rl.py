"""Reinforcement learning: the Dyna loop, or the same loop on real pages.

Each update plays groups of rollouts (`groups`), lets the judge score them, drops groups whose rewards are all equal,
and takes a gradient step on the policy's own tokens, beside a behaviour-cloning term on the demonstrations. Everything
random derives from (seed, update), so a run that goes on from the checkpoint of update u repeats what it would have
done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from dynaweb import events
from dynaweb.errors import ConfigError
from dynaweb.loop.demos import rl_tasks
from dynaweb.loop.evaluate import SUCCESS, judge_errors, play_greedily, successes, summary
from dynaweb.loop.experts import by_task, rows_of
from dynaweb.loop.groups import Place, Rollouts, live, measures, scaled, tasks_of_rl
from dynaweb.loop.history import History
from dynaweb.loop.players import ModelPolicy
from dynaweb.loop.rollout import Rules, refuse_total_failure
from dynaweb.loop.tasks import StartPages
from dynaweb.loop.training import new_trainer, resume
from dynaweb.loop.verdicts import grading, judge_all
from dynaweb.loop.workspace import EPISODES
from dynaweb.protocols import PluginContext, TokenRow
from dynaweb.types import Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.config.sections import Rl
    from dynaweb.loop.workspace import LoadedModel, Made, Workspace
    from dynaweb.protocols import PolicyOptimizer
    from dynaweb.runs import Stage

Mode = Literal["policy", "filtered-bc"]
DREAMS = "dreams"


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What RL starts from: finished stages. `explored` and `world_model` are None when it happens on real pages."""

    sft: Made
    demos: Made
    experts: Made
    explored: Made | None = None
    world_model: Made | None = None

    def keys(self) -> dict[str, str]:
        """The cache keys of all ingredients."""
        parts = {"sft": self.sft, "demos": self.demos, "experts": self.experts}
        parts |= {"explored": self.explored} if self.explored else {}
        parts |= {"world_model": self.world_model} if self.world_model else {}
        return {name: made.key for name, made in parts.items()}


async def reinforce(ws: Workspace, given: Ingredients, *, mode: Mode) -> Made:
    """Stage `rl`: the policy after all updates, and the rollouts that it learned from."""
    check_seam(ws)

    async def body(stage: Stage) -> None:
        learner = _Learner(ws, stage, given, mode)
        await learner.run()

    parts = ("model", "wm", "opt", "reward", "env", "dream", "rl", "run.time_budget", "data", "web.contexts")
    validation = [ws.recipe.controls.sft_validation, ws.recipe.eval.steps] if ws.recipe.rl.validate_every else []
    key = ws.key(*parts, base=ws.base_key, tasks=ws.task_key, mode=mode, validation=validation, **given.keys())
    made = await ws.stage("rl", key, body, settings=ws.recipe.settings("run.seed", *parts), resumable=True)
    main = mode == ws.recipe.rl.mode
    ws.keep(made, "dynaweb" if main else mode, episodes_as=DREAMS if main else f"{DREAMS}-{mode}")
    return made


def check_seam(ws: Workspace) -> None:
    """Raise `ConfigError` when the judge cannot score what the environment gives: a verdict needs real pages."""
    able = ws.plugins.find("reward", ws.recipe.reward.name).spec.capabilities & {"dream", "real"}
    needed = "dream" if ws.dreams else "real"
    if able and needed not in able:
        raise ConfigError(
            f"reward {ws.recipe.reward.name!r} cannot score {needed} episodes, and env {ws.recipe.env.name!r} gives "
            "only those; use --reward self-assess with dreams, or --env sites with --reward checker"
        )


class _Learner:
    """One RL stage in progress."""

    def __init__(self, ws: Workspace, stage: Stage, given: Ingredients, mode: Mode) -> None:
        self.ws, self.stage, self.mode = ws, stage, mode
        self.rl: Rl = ws.recipe.rl
        self.model = ws.load(given.sft.model)
        self.engine = ws.engine(self.model)
        self.judge = ws.judge(self.engine)
        experts = by_task(given.experts.episodes())
        self.bc_rows = rows_of([e for found in by_task(given.demos.episodes()).values() for e in found], ws.format)
        self.place = _place(ws, given)
        self.tasks = _tasks(ws, given, [found[0].task for found in experts.values()])
        self.rollouts = Rollouts(
            self.rl,
            ws.recipe.run.seed,
            ModelPolicy(self.engine, ws.format, temperature=self.rl.temperature, max_new_tokens=self.rl.max_new_tokens),
            self.judge,
            self.place,
            ws.lockstep,
            experts if self.rl.expert_share > 0 else {},
        )
        self.optimizer = _optimizer(ws)
        per_update = self.rl.epochs * self.rl.minibatches
        self.trainer = new_trainer(
            ws,
            self.model,
            name="rl",
            lr=self.rl.lr,
            total_steps=self.rl.updates * per_update,
            warmup=self.rl.warmup * per_update,
            max_grad_norm=self.rl.max_grad_norm,
        )
        self.history = History()

    async def run(self) -> None:
        """All updates that are left, with checkpoints; then the weights and the rollouts into the stage's folder."""
        resumed = resume(self.trainer, self.stage.scratch)
        first = done = self._steps_done()
        if resumed:
            self.history = History.load(self.stage.scratch, updates=first)
        advance = self.ws.progress(self.name, self.rl.updates, "updates", done=first)
        try:
            for update in range(first, self.rl.updates):
                await self._update(update)
                if self.rl.validate_every > 0 and (update + 1) % self.rl.validate_every == 0:
                    await self._validate(update)
                done = update + 1
                advance(reward=self.history.rewards[-1])
                if done % self.rl.checkpoint_every == 0 and done < self.rl.updates:
                    self._checkpoint()
                await self.ws.breathe()
                if self.ws.out_of_time:
                    break
        except asyncio.CancelledError:
            # A half-done update (a validation still missing) is not saved: it is repeated.
            if done > first and done == self._steps_done():
                self._checkpoint()
            raise
        self.model.save(self.stage.folder)
        self._collect(done)

    @property
    def name(self) -> str:
        """The stage as its updates are called."""
        return "rl" if self.mode == "policy" else self.mode

    def _steps_done(self) -> int:
        """Whole updates that the trainer's state holds."""
        return self.trainer.steps // (self.rl.epochs * self.rl.minibatches)

    def _checkpoint(self) -> None:
        # The trainer's file is the last to change: what stands beside it is at least as new, and cut back when read.
        self.history.save(self.stage.scratch)
        self.trainer.save(self.stage.scratch)
        self.ws.remember_cost(self.stage)

    async def _update(self, update: int) -> None:
        started = time.monotonic()
        tasks = self.tasks[update * self.rl.tasks : (update + 1) * self.rl.tasks]
        rollouts = await self.rollouts.of_update(update, tasks, self.ws.count_steps)
        refuse_total_failure([t for t in rollouts if t.source != "expert"], f"update {update}")
        played = time.monotonic()
        advantages = self.optimizer.advantages([t.reward for t in rollouts], [t.group for t in rollouts])
        metrics = self._learn(rollouts, advantages)
        self._save(update, rollouts)
        for trajectory in rollouts:
            self.ws.tell(events.Rollout(self.name, trajectory, update))
        times = {"time.rollout": played - started, "time.update": time.monotonic() - played}
        seen = measures(rollouts, advantages)
        self.history.rewards.append(seen["reward"])
        self.ws.tell(events.Update(self.name, update, {**seen, **metrics, **times}))

    def _learn(self, rollouts: Sequence[Trajectory], advantages: Sequence[float]) -> dict[str, float]:
        metrics = {}
        if self.mode == "filtered-bc":
            kept = [t for t in rollouts if t.reward is not None and t.reward >= SUCCESS and t.source != "expert"]
            metrics = self._steps(_rows(kept), [1.0] * len(kept))
        else:
            alive = live(advantages, [t.group for t in rollouts])
            chosen = [i for i, t in enumerate(rollouts) if alive[i] and t.reward is not None]
            given = scaled([advantages[i] for i in chosen], self.rl.negative_scale)
            metrics = self._steps(_rows([rollouts[i] for i in chosen]), given)
        self.engine.weights_changed()
        return metrics

    def _steps(self, rows: list[TokenRow], advantages: list[float]) -> dict[str, float]:
        """All gradient steps of one update; the metrics of the last. No rows: the behaviour-cloning term alone."""
        several = self.rl.epochs * self.rl.minibatches > 1
        old = [values.tolist() for values in self.trainer.logprobs(rows)] if several and self.mode == "policy" else None
        metrics: dict[str, float] = {}
        for _ in range(self.rl.epochs):
            for part in _parts(len(advantages), self.rl.minibatches):
                chosen = [i for i, row in enumerate(rows) if row.trajectory in part]
                mine = [replace(rows[i], trajectory=part.index(rows[i].trajectory)) for i in chosen]
                logps = None if old is None else [old[i] for i in chosen]
                metrics = self._step(mine, [advantages[i] for i in part], logps)
                self.ws.meter.tokens_trained += int(metrics["tokens"])
        return metrics

    def _step(self, rows: list[TokenRow], advantages: list[float], old: list[list[float]] | None) -> dict[str, float]:
        anchor: list[TokenRow] = []
        if self.rl.bc_weight > 0 and self.rl.bc_batch > 0 and self.bc_rows:
            anchor = [self.bc_rows[i] for i in self.trainer.draw(len(self.bc_rows), self.rl.bc_batch)]
        if self.mode == "filtered-bc" and rows:
            return self.trainer.supervised_step([*rows, *_weighted(rows, anchor, self.rl.bc_weight)])
        return self.trainer.policy_step(
            rows, self.optimizer, advantages, old, supervised=anchor, supervised_weight=self.rl.bc_weight
        )

    def _save(self, update: int, rollouts: Sequence[Trajectory]) -> None:
        """Keep the rollouts, without their prompts, which follow from the pages. A repeated update replaces them."""
        from dynaweb.data.store import TrajectoryStore

        path = self._file(update)
        path.unlink(missing_ok=True)
        TrajectoryStore(path).append(_light(t, update) for t in rollouts if t.source != "expert")

    def _collect(self, updates: int) -> None:
        """The rollouts of all updates as the stage's episodes."""
        from dynaweb.data.store import TrajectoryStore

        path = self.stage.folder / EPISODES
        path.unlink(missing_ok=True)
        whole = TrajectoryStore(path)
        for update in range(updates):
            whole.append(TrajectoryStore(self._file(update)))

    def _file(self, update: int) -> Path:
        folder = self.stage.scratch / DREAMS
        folder.mkdir(exist_ok=True)
        return folder / f"{update:06d}.jsonl.gz"

    async def _validate(self, update: int) -> None:
        """Real success and the judge's errors on validation tasks; warn when dreams get better and reality worse."""
        tasks = self.ws.tasks("validation", self.ws.recipe.controls.sft_validation, self.ws.eval_source)
        played = await play_greedily(self.ws, self.engine, tasks, "validation")
        judged = await judge_all(self.judge, played)
        found = {**summary(judged), **judge_errors(judged), "update": float(update)}
        self.ws.tell(events.Evaluation(self.name, "validation", successes(judged), found))
        warning = self.history.validated(found["success"])
        if warning:
            self.ws.tell(events.Failure(where=f"{self.name} update {update}", error=warning))


def _weighted(rows: Sequence[TokenRow], anchor: Sequence[TokenRow], weight: float) -> list[TokenRow]:
    """Anchor rows whose mean cross-entropy counts `weight` times that of `rows` in one common mean over tokens."""
    main = sum(len(row.response_ids) for row in rows)
    side = max(1, sum(len(row.response_ids) for row in anchor))
    return [replace(row, weight=weight * main / side) for row in anchor]


def _rows(trajectories: Sequence[Trajectory]) -> list[TokenRow]:
    """One row per step with tokens; `trajectory` is the place in the sequence."""
    return [
        TokenRow(step.prompt_ids, step.response_ids, index)
        for index, trajectory in enumerate(trajectories)
        for step in trajectory.steps
        if step.response_ids
    ]


def _parts(count: int, parts: int) -> list[list[int]]:
    """0..count-1 in `parts` parts of nearly equal size, dealt out in turn so that groups are spread."""
    return [list(range(part, count, parts)) for part in range(parts)]


def _light(trajectory: Trajectory, update: int) -> Trajectory:
    steps = tuple(replace(step, prompt_ids=()) for step in trajectory.steps)
    return replace(trajectory, steps=steps, info={**trajectory.info, "update": update})


def _optimizer(ws: Workspace) -> PolicyOptimizer:
    choice = ws.recipe.opt
    context = PluginContext(seed=ws.seed("optimizer"))
    return cast("PolicyOptimizer", ws.plugins.create("opt", choice.name, choice.config, context))


def _place(ws: Workspace, given: Ingredients) -> Place:
    """The seam: dreams from recorded start pages, or the task environment itself."""
    dream = ws.recipe.dream
    if not ws.dreams:
        rules = Rules(dream.horizon, source="real", invalid_ends=dream.invalid_ends)
        return Place(ws.source.environment, ws.recipe.web.contexts, rules, grading(ws.source))
    if given.explored is None or given.world_model is None:
        raise ConfigError("dreams need explored start pages and a world model; run those stages first")
    weights = given.world_model.model
    model: LoadedModel = ws.load(weights) if weights.is_dir() else ws.base
    starts = StartPages([*given.explored.episodes(), *given.demos.episodes()])
    make = ws.dream_environment(ws.world_model(model, temperature=dream.temperature), starts)
    rules = Rules(dream.horizon, source="dream", invalid_ends=dream.invalid_ends)
    return Place(make, ws.recipe.rl.tasks * ws.recipe.rl.n, rules)


def _tasks(ws: Workspace, given: Ingredients, demonstrated: Sequence[Task]) -> list[Task]:
    """A task for each place of each update; for dreams, only tasks whose start page was recorded."""
    tasks = rl_tasks(ws)
    if given.explored is not None:
        starts = StartPages([*given.explored.episodes(), *given.demos.episodes()])
        tasks = [task for task in tasks if starts(task) is not None]
        demonstrated = [task for task in demonstrated if starts(task) is not None]
    if not tasks:
        raise ConfigError("no training task has a recorded start page; raise explore.episodes")
    return tasks_of_rl(tasks, demonstrated, ws.recipe.rl, seed=ws.seed("tasks", "rl"))
