"""A fitted judge that learns while the policy does: episodes of the current policy show it what it accepts wrongly.

A judge is fitted on episodes of the SFT policy, and a policy that learns from it finds what pleases it. So every
`judge_fit.refresh_every` policy updates the current policy plays real episodes, which the environment grades. Those on
sites that the judge is fitted on join its episodes, and it is fitted further on all of them, in place; those on other
sites join the episodes that calibrate it. The optimizer's state lasts over the stage. What the judge said of the new
episodes before it learned from them is told: its errors on the policy of the moment.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.judges.calibration import Platt
from dynaweb.judges.reward import judge_all
from dynaweb.pipeline.artifacts import MODEL
from dynaweb.pipeline.fit import new_trainer
from dynaweb.pipeline.judge import FITTED, calibration_in, fitted_model, make_judge, refreshes_judge, to_fit
from dynaweb.rl.refresh import refresh_updates
from dynaweb.rollout.episode import Episode, refuse_total_failure
from dynaweb.rollout.tasks import rotation
from dynaweb.runs import write_json
from dynaweb.runs.seeding import derive
from dynaweb.stages.demos import practice_tasks
from dynaweb.stages.evaluate import judge_errors
from dynaweb.stages.graded import play_graded
from dynaweb.stages.judge_fit import calibrated, fitted_rows, judge_on, parts_of, usable

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import Artifacts
    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import Engine, Judge, PromptFormat
    from dynaweb.types import Judgement, Trajectory

NAME, COLLECTED = "refreshed-judge", "graded.jsonl.gz"
"""The folder of the refreshed judge in a stage's, and the real episodes that it has learned from."""


class RenewedJudge:
    """The judge of one RL stage. It is made again when its weights and its calibration are others."""

    def __init__(self, make: Callable[[], Judge]) -> None:
        self._make = make
        self.renew()

    async def score(self, trajectory: Trajectory) -> Judgement:
        """What the judge of the moment says."""
        return await self._judge.score(trajectory)

    def renew(self) -> None:
        """Make the judge again."""
        self._judge = self._make()


def judge_of(ctx: RunContext, have: Artifacts, engine: Engine, prompts: PromptFormat) -> Judge:
    """The recipe's judge in an RL stage: one that is made anew with each refresh, where the recipe refreshes it.

    A phase goes on with the judge that the phase before has left.
    """
    make = partial(make_judge, ctx, engine, prompts)
    spec = to_fit(ctx)
    if spec is None or not refreshes_judge(ctx):
        return make()
    before = _left_by(have)
    left = None if before is None else (ctx.models.load(before / MODEL), calibration_in(before))
    ctx.models.learning_judge = left or fitted_model(ctx, *spec)
    return RenewedJudge(make)


class JudgeRefresher:
    """The fitted judge of one RL stage, and the real episodes that it learns from."""

    def __init__(self, ctx: RunContext, have: Artifacts, judge: RenewedJudge) -> None:
        self.ctx, self.judge, self.settings = ctx, judge, ctx.recipe.judge_fit
        spec = to_fit(ctx)
        assert spec is not None and ctx.models.learning_judge is not None  # `judge_of` has seen to it
        self._name, config = spec
        self.model, self._platt = ctx.models.learning_judge
        self._log_odds = judge_on(ctx, self.model, self._name, config)
        parts = parts_of(ctx, [*have.need("graded").episodes(), *have.need("demos").episodes()])
        self._fitted, self._calibration = list(parts.fitted), list(parts.calibration)
        self._sites = {one.task.site_key for one in parts.fitted}
        self._away = {one.task.site_key for one in [*parts.calibration, *parts.measured]}
        self._collected: list[Trajectory] = []
        self._phase = have.phase.number
        self._learn_from(_collected_in(_left_by(have)))
        self._refresh_updates = refresh_updates(ctx.recipe.rl.updates, self.settings.refresh_every)
        total = max(1, len(self._refresh_updates) * self.settings.refresh_steps)
        self.trainer = new_trainer(ctx, self.model, name=NAME, lr=self.settings.lr, total_steps=total, warmup=0)

    @classmethod
    def of(cls, ctx: RunContext, have: Artifacts, judge: Judge) -> JudgeRefresher | None:
        """The refresher of an RL stage; None where the recipe refreshes no judge."""
        return cls(ctx, have, judge) if isinstance(judge, RenewedJudge) else None

    def due(self, done: int) -> bool:
        """Whether it is time after `done` policy updates."""
        return done in self._refresh_updates

    async def after(self, done: int, engine: Engine, prompts: PromptFormat) -> None:
        """Play, tell the judge's errors, fit it further and calibrate it again."""
        ctx = self.ctx
        played = await self._played(done, engine, prompts)
        judged = await judge_all(self.judge, played)
        for trajectory in judged:
            ctx.tell(events.Rollout(NAME, trajectory, done - 1))
        self._learn_from(played)
        rows = fitted_rows(ctx, self._log_odds, self._fitted)
        metrics: dict[str, float] = {}
        await ctx.models.rest()
        for _ in range(self.settings.refresh_steps):
            chosen = self.trainer.draw(len(rows), self.settings.batch)
            metrics = self.trainer.supervised_step([rows[i] for i in chosen])
            ctx.meter.tokens_trained += int(metrics["tokens"])
            await ctx.breathe()
        ctx.models.engine(self.model, "reward").weights_changed()
        self._calibrate(done, await calibrated(self._log_odds, self._calibration))
        metrics |= {"episodes": float(len(self._fitted)), "calibration_episodes": float(len(self._calibration))}
        ctx.tell(events.Update(NAME, done - 1, metrics | judge_errors(judged)))

    def save(self, folder: Path, done: int) -> None:
        """Write a checkpoint for `done` policy updates; older ones stay until `prune`."""
        target = self._checkpoint(folder, done)
        self.trainer.save(target)
        self._write(target)

    def prune(self, folder: Path, checkpoints: Set[int]) -> None:
        """Remove the checkpoints but those for as many updates as one of the policy's own has."""
        for old in folder.glob(f"{NAME}-*"):
            if old not in {self._checkpoint(folder, done) for done in checkpoints}:
                shutil.rmtree(old, ignore_errors=True)

    def load(self, folder: Path, done: int) -> None:
        """Go on from the checkpoint that belongs to `done` policy updates. Raises `CheckpointError`."""
        target = self._checkpoint(folder, done)
        self.trainer.load(target)
        self._learn_from(_collected_in(target)[len(self._collected) :])  # those of the phase before are there already
        self.ctx.models.engine(self.model, "reward").weights_changed()
        self._renew(calibration_in(target))

    def finish(self, folder: Path, updates: int) -> None:
        """Leave the judge as `reward.weights` takes it, and the episodes, in a stage's folder."""
        target = folder / NAME
        shutil.rmtree(target, ignore_errors=True)
        self.model.save(target)
        self._write(target)

    def _write(self, target: Path) -> None:
        from dynaweb.data.store import TrajectoryStore

        TrajectoryStore.write(target / COLLECTED, self._collected)
        write_json(target / FITTED, {"judge": self._name, "calibration": self._platt.data()})

    def _checkpoint(self, folder: Path, done: int) -> Path:
        return folder / f"{NAME}-{done:06d}"

    def _calibrate(self, done: int, found: Platt) -> None:
        """Take a new calibration, unless it says that the judge knows nothing, which few episodes may say of any."""
        if found.slope == 0 and self._platt.slope > 0:
            where = f"refresh of the judge after {done} updates"
            error = (
                f"the judge orders the {found.n} episodes that calibrate it no better than chance; the one before "
                "stays. Raise judge_fit.refresh_episodes, or judge_fit.holdout"
            )
            self.ctx.tell(events.Failure(where=where, error=error))
        self._renew(found if found.slope > 0 else self._platt)

    def _renew(self, calibration: Platt) -> None:
        self._platt = calibration
        self.ctx.models.learning_judge = (self.model, calibration)
        self.judge.renew()

    def _learn_from(self, fresh: Sequence[Trajectory]) -> None:
        self._collected += fresh
        for one in usable(fresh):
            (self._fitted if self._is_fitted_on(one.task.site_key) else self._calibration).append(one)

    def _is_fitted_on(self, site: object) -> bool:
        """Sites keep their place; one that no graded episode was on is dealt out by its name."""
        if site in self._sites or site in self._away:
            return site in self._sites
        share = derive(self.ctx.seed("judge", "holdout"), str(site)) % 1000 / 1000
        return share >= self.settings.holdout

    async def _played(self, done: int, engine: Engine, prompts: PromptFormat) -> list[Trajectory]:
        ctx, count = self.ctx, self.settings.refresh_episodes
        when = (NAME, done) if self._phase == 1 else (NAME, f"phase {self._phase}", done)
        tasks = rotation(practice_tasks(ctx, max(count, self.settings.episodes)), count, seed=ctx.seed(*when))
        name = "/".join(map(str, when))
        episodes = [Episode(f"{name}/{i}", task, ctx.seed(*when, i)) for i, task in enumerate(tasks)]
        heat = self.settings.temperature
        played = await play_graded(ctx, None, episodes, engine, prompts, temperature=heat, phase=NAME)
        refuse_total_failure(played, f"refresh of the judge after {done} updates")
        return played


def _left_by(have: Artifacts) -> Path | None:
    """The folder of the judge that the phase before has left; None in the first one."""
    folder = None if have.phase.before is None else have.phase.before.folder / NAME
    return folder if folder is not None and folder.is_dir() else None


def _collected_in(folder: Path | None) -> list[Trajectory]:
    from dynaweb.data.store import TrajectoryStore

    return [] if folder is None else list(TrajectoryStore(folder / COLLECTED))
