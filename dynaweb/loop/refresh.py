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
from dynaweb.loop.demos import training_tasks
from dynaweb.loop.fidelity import transitions_of
from dynaweb.loop.made import MODEL
from dynaweb.loop.replay import write_whole
from dynaweb.loop.rollout import Episode, Rules, refuse_total_failure
from dynaweb.loop.tasks import rotation, site_of
from dynaweb.loop.training import new_trainer
from dynaweb.loop.waves import play_in_waves
from dynaweb.loop.worldmodel import asked, held_out_sites, real_transitions, rows_for

if TYPE_CHECKING:
    from dynaweb.loop.players import Player
    from dynaweb.loop.workspace import LoadedModel, Workspace
    from dynaweb.types import Trajectory, Transition

COLLECTED = "transitions.jsonl.gz"
FOLDER = "refreshed"
KEYS = (*(f"wm_fit.refresh_{name}" for name in ("every", "episodes", "steps")), "wm_fit.lr", "wm_fit.batch", "explore")
"""Settings that a refreshed run depends on."""


def moments(updates: int, every: int) -> range:
    """After how many policy updates the world model is refreshed; no dream follows the last one."""
    return range(every, updates, every)


def refreshed_by(stage: Path) -> Path | None:
    """The weights of the world model that an RL stage refreshed; None where it refreshed none."""
    weights = stage / FOLDER / MODEL
    return weights if weights.is_dir() else None


class Refresher:
    """The world model of one RL stage, and the real transitions that it learns from.

    `explored` are the episodes of exploration; the sites of them that are held out stay held out. `before` is the RL
    stage whose refreshed model this is: what it collected is learned from too.
    """

    def __init__(
        self, ws: Workspace, model: LoadedModel, explored: Sequence[Trajectory], before: Path | None = None
    ) -> None:
        self.ws, self.model = ws, model
        self.settings = ws.recipe.wm_fit
        self._held_out = held_out_sites(ws, explored)
        self._collected: list[Transition] = []
        self._maker = ws.world_model(model, temperature=0.0)
        self._rows = rows_for(self._maker, asked(real_transitions(ws, explored)))
        self._learn_from(_collected_by(before))
        self._moments = moments(ws.recipe.rl.updates, self.settings.refresh_every)
        total = max(1, len(self._moments) * self.settings.refresh_steps)
        self.trainer = new_trainer(ws, model, name="refresh", lr=self.settings.lr, total_steps=total, warmup=0)

    async def after(self, done: int, player: Player) -> None:
        """Refresh, if it is time after `done` policy updates."""
        if done not in self._moments:
            return
        fresh = await self._collect(done, player)
        self._learn_from(fresh)
        rows = self._rows
        metrics: dict[str, float] = {}
        await self.ws.engines.rest()
        for _ in range(self.settings.refresh_steps if rows else 0):
            chosen = self.trainer.draw(len(rows), self.settings.batch)
            metrics = self.trainer.supervised_step([rows[i] for i in chosen])
            self.ws.meter.tokens_trained += int(metrics["tokens"])
            await self.ws.breathe()
        self.ws.engine(self.model, "wm").weights_changed()
        found = {**metrics, "new_transitions": float(len(fresh)), "transitions": float(len(rows))}
        self.ws.tell(events.Update("refresh", done - 1, found))

    def save(self, folder: Path, done: int) -> None:
        """Write a checkpoint for `done` policy updates; older ones stay until `tidy`."""
        from dynaweb.data.store import TransitionStore

        place = self._place(folder, done)
        self.trainer.save(place)
        write_whole(TransitionStore, place / COLLECTED, self._collected)

    def tidy(self, folder: Path, kept: Set[int]) -> None:
        """Remove the checkpoints but those for as many updates as one of the policy's own has."""
        for old in folder.glob(f"{FOLDER}-*"):
            if old not in {self._place(folder, done) for done in kept}:
                shutil.rmtree(old, ignore_errors=True)

    def load(self, folder: Path, done: int) -> None:
        """Go on from the checkpoint that belongs to `done` policy updates. Raises `CheckpointError`."""
        from dynaweb.data.store import TransitionStore

        self.trainer.load(self._place(folder, done))
        saved = list(TransitionStore(self._place(folder, done) / COLLECTED))
        self._learn_from(saved[len(self._collected) :])  # those of the phase before are there already

    def finish(self, folder: Path) -> None:
        """Leave the last weights and all collected transitions in a stage's folder."""
        from dynaweb.data.store import TransitionStore

        place = folder / FOLDER
        shutil.rmtree(place, ignore_errors=True)
        self.model.save(place)
        write_whole(TransitionStore, place / COLLECTED, self._collected)

    def _place(self, folder: Path, done: int) -> Path:
        return folder / f"{FOLDER}-{done:06d}"

    def _learn_from(self, fresh: Sequence[Transition]) -> None:
        self._collected += fresh
        self._rows += rows_for(self._maker, asked(fresh))

    async def _collect(self, done: int, player: Player) -> list[Transition]:
        ws, count = self.ws, self.settings.refresh_episodes
        allowed = [t for t in training_tasks(ws, ws.recipe.explore.episodes) if site_of(t) not in self._held_out]
        tasks = rotation(allowed, count, seed=ws.seed("refresh", done))
        episodes = [Episode(f"refresh/{done}/{i}", task, ws.seed("refresh", done, i)) for i, task in enumerate(tasks)]
        played = await play_in_waves(
            ws,
            None,
            episodes,
            ws.source.environment,
            lambda task: player,
            rules=Rules(ws.recipe.explore.steps),
            phase="refresh",
            lockstep=ws.lockstep,
        )
        refuse_total_failure(played, f"refresh after {done} updates")
        for trajectory in played:
            ws.tell(events.Rollout("refresh", trajectory, done - 1))
        return transitions_of(played)


def _collected_by(stage: Path | None) -> list[Transition]:
    """What an RL stage collected for its world model."""
    from dynaweb.data.store import TransitionStore

    return [] if stage is None else list(TransitionStore(stage / FOLDER / COLLECTED))
