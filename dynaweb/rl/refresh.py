"""Dyna in full (Sutton, 1991): while the policy learns in dreams, real steps of that policy keep the world model true.

Every `wm_fit.refresh_every` policy updates, the current policy plays real, unrewarded episodes as exploration does, on
the sites that were not held out; their transitions join those that the world model was fitted on, and it is fitted
further on all of them, in place, so that the next dreams come from it. The optimizer's state lasts over the stage. The
next phase, and an agent that looks ahead, go on with the refreshed model. A calibration of confidence, where there is
one, stays as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb import events
from dynaweb.pipeline.artifacts import REFRESHED, Artifacts
from dynaweb.pipeline.episodes import play_in_batches
from dynaweb.pipeline.fit import new_trainer
from dynaweb.rollout.episode import Episode, Rules, refuse_total_failure
from dynaweb.rollout.tasks import rotation
from dynaweb.stages.demos import practice_tasks
from dynaweb.stages.world_model import (
    held_out_sites,
    page_rules,
    real_transitions,
    remembering,
    rows_for,
    to_predict,
)
from dynaweb.worldmodels.fidelity import transitions_of

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import LoadedModel
    from dynaweb.pipeline.context import RunContext
    from dynaweb.rollout.agents import Player
    from dynaweb.types import Trajectory, Transition
    from dynaweb.worldmodels.site_memory import SiteMemory

COLLECTED = "transitions.jsonl.gz"


def refresh_updates(updates: int, every: int) -> range:
    """After how many policy updates the world model is refreshed; no dream follows the last one."""
    return range(every, updates, every)


class Refresher:
    """The world model of one RL stage, and the real transitions that it learns from.

    `explored` are the episodes of exploration; the sites of them that are held out stay held out. `before` is the RL
    stage whose refreshed model this is: what it collected is learned from too. `memory` is that of dreams: it takes
    all that is collected.
    """

    def __init__(
        self,
        ctx: RunContext,
        model: LoadedModel,
        explored: Sequence[Trajectory],
        before: Path | None = None,
        memory: SiteMemory | None = None,
    ) -> None:
        self.ctx, self.model, self.memory = ctx, model, memory
        self.settings = ctx.recipe.wm_fit
        self._held_out = held_out_sites(ctx, explored)
        self._rules = page_rules(ctx, explored)
        self._collected: list[Transition] = []
        known = real_transitions(ctx, explored)
        plain = ctx.models.world_model(model, temperature=0.0, held_out=self._held_out)
        self._maker = remembering(ctx, plain, known)
        self._rows = rows_for(self._maker, to_predict(known, self._rules))
        self._learn_from(_collected_by(before))
        self._refresh_updates = refresh_updates(ctx.recipe.rl.updates, self.settings.refresh_every)
        total = max(1, len(self._refresh_updates) * self.settings.refresh_steps)
        self.trainer = new_trainer(ctx, model, name="refresh", lr=self.settings.lr, total_steps=total, warmup=0)

    @classmethod
    def of(
        cls, ctx: RunContext, have: Artifacts, model: LoadedModel | None, memory: SiteMemory | None = None
    ) -> Refresher | None:
        """The refresher of an RL stage; None where the recipe refreshes nothing."""
        if not ctx.recipe.wm_fit.refresh_every or model is None or have.explore is None:
            return None
        before = have.phase.before
        return cls(ctx, model, have.explore.episodes(), before.folder if before is not None else None, memory)

    def due(self, done: int) -> bool:
        """Whether it is time after `done` policy updates."""
        return done in self._refresh_updates

    async def after(self, done: int, player: Player) -> None:
        """Refresh, if it is time after `done` policy updates."""
        if not self.due(done):
            return
        fresh = await self._collect(done, player)
        self._learn_from(fresh)
        rows = self._rows
        metrics: dict[str, float] = {}
        await self.ctx.models.rest()
        for _ in range(self.settings.refresh_steps if rows else 0):
            chosen = self.trainer.draw(len(rows), self.settings.batch)
            metrics = self.trainer.supervised_step([rows[i] for i in chosen])
            self.ctx.meter.tokens_trained += int(metrics["tokens"])
            await self.ctx.breathe()
        self.ctx.models.engine(self.model, "wm").weights_changed()
        metrics |= {"new_transitions": float(len(fresh)), "transitions": float(len(rows))}
        self.ctx.tell(events.Update("refresh", done - 1, metrics))

    def save(self, folder: Path, done: int) -> None:
        """Write a checkpoint for `done` policy updates; older ones stay until `prune`."""
        from dynaweb.data.store import TransitionStore

        target = self._checkpoint(folder, done)
        self.trainer.save(target)
        TransitionStore.write(target / COLLECTED, self._collected)

    def prune(self, folder: Path, checkpoints: Set[int]) -> None:
        """Remove the checkpoints but those for as many updates as one of the policy's own has."""
        for old in folder.glob(f"{REFRESHED}-*"):
            if old not in {self._checkpoint(folder, done) for done in checkpoints}:
                shutil.rmtree(old, ignore_errors=True)

    def load(self, folder: Path, done: int) -> None:
        """Go on from the checkpoint that belongs to `done` policy updates. Raises `CheckpointError`."""
        from dynaweb.data.store import TransitionStore

        self.trainer.load(self._checkpoint(folder, done))
        saved = list(TransitionStore(self._checkpoint(folder, done) / COLLECTED))
        self._learn_from(saved[len(self._collected) :])  # those of the phase before are there already

    def finish(self, folder: Path, updates: int) -> None:
        """Leave the last weights and all collected transitions in a stage's folder."""
        from dynaweb.data.store import TransitionStore

        target = folder / REFRESHED
        shutil.rmtree(target, ignore_errors=True)
        self.model.save(target)
        TransitionStore.write(target / COLLECTED, self._collected)

    def _checkpoint(self, folder: Path, done: int) -> Path:
        return folder / f"{REFRESHED}-{done:06d}"

    def _learn_from(self, fresh: Sequence[Transition]) -> None:
        self._collected += fresh
        if self.memory is not None:
            self.memory.add(fresh)
        self._rows += rows_for(self._maker, to_predict(fresh, self._rules))

    async def _collect(self, done: int, player: Player) -> list[Transition]:
        ctx, count = self.ctx, self.settings.refresh_episodes
        allowed = [t for t in practice_tasks(ctx, ctx.recipe.explore.episodes) if t.site_key not in self._held_out]
        tasks = rotation(allowed, count, seed=ctx.seed("refresh", done))
        episodes = [Episode(f"refresh/{done}/{i}", task, ctx.seed("refresh", done, i)) for i, task in enumerate(tasks)]
        played = await play_in_batches(
            ctx,
            None,
            episodes,
            ctx.envs.source.environment,
            lambda task: player,
            rules=Rules(ctx.recipe.explore.steps),
            phase="refresh",
            lockstep=ctx.models.lockstep,
        )
        refuse_total_failure(played, f"refresh after {done} updates")
        for trajectory in played:
            ctx.tell(events.Rollout("refresh", trajectory, done - 1))
        return transitions_of(played)


def _collected_by(stage: Path | None) -> list[Transition]:
    """What an RL stage collected for its world model."""
    from dynaweb.data.store import TransitionStore

    return [] if stage is None else list(TransitionStore(stage / REFRESHED / COLLECTED))
