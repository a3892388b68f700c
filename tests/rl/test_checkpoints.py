"""Partners of the RL stage: a load gives back what was saved, and what a checkpoint leads to is never removed."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engine_kit as kit
import pytest
from judge_kit import episode

from dynaweb.config import resolve
from dynaweb.config.sections import Replay
from dynaweb.judges.alarm import Mark
from dynaweb.pipeline.artifacts import LoadedModel
from dynaweb.pipeline.context import RunContext
from dynaweb.plugin.registry import current
from dynaweb.rl.ahead import RunAhead
from dynaweb.rl.audit import Auditor
from dynaweb.rl.checkpoints import BestWeights, Checkpointed, Checkpoints, History
from dynaweb.rl.refresh import Refresher
from dynaweb.rl.replay import ReplayBuffer
from dynaweb.rollout.agents import RandomPolicy
from dynaweb.runs import StageCache
from dynaweb.types import Prompt, Trajectory

Change = Callable[[int], Awaitable[None]]
Maker = Callable[[Path], tuple[Checkpointed, Change]]
"""Makes a partner on a scratch folder, and what happens to it in the update of that number (from 1)."""


def context(tmp_path: Path) -> RunContext:
    sets = ["env.task_settings.driver=static", "explore.steps=2", "rl.updates=9", "model.threads=1", "audit.every=1"]
    sets += [*(f"wm_fit.refresh_{name}=1" for name in ("every", "episodes", "steps")), "wm_fit.batch=2"]
    return RunContext(resolve("dynaweb", overrides=sets), current(), StageCache(tmp_path / "cache"))


def history(scratch: Path) -> tuple[Checkpointed, Change]:
    one = History()

    async def change(update: int) -> None:
        one.played({"reward": math.nan if update == 1 else update / 10, "dead_groups": update / 16}, 0.1)
        one.outcomes.append([("a", 0.5), (f"b{update}", 1.0)])
        one.marks.append((update, 0.25 * update))
        one.stepped({"rows": 2.0, "rows_skipped": float(update % 3), "updated": 1.0})

    return one, change


def replay(scratch: Path) -> tuple[Checkpointed, Change]:
    one = ReplayBuffer(Replay(capacity=4), seed=1)

    async def change(update: int) -> None:
        walk = episode(str(update), steps=2)
        steps = tuple(replace(step, prompt=Prompt((1, 2)), response_ids=(3, 4)) for step in walk.steps)
        one.add([replace(walk, steps=steps, reward=1.0)])

    return one, change


def audits(scratch: Path) -> tuple[Checkpointed, Change]:
    judge: Any = None
    one = Auditor(context(scratch), judge, "rl")

    async def change(update: int) -> None:
        one.marks.append(Mark(update, 0.5, update, 9))

    return one, change


def best(scratch: Path) -> tuple[Checkpointed, Change]:
    known = scratch.parent / "marks.json"
    marks: list[tuple[int, float]] = [(a, b) for a, b in json.loads(known.read_text())] if known.exists() else []
    one = BestWeights(scratch, marks)

    async def change(update: int) -> None:
        marks.append((update, 0.1 * update))
        known.write_text(json.dumps(marks))
        one.keep_if_best(LoadedModel(kit.llama(update), None, None))  # type: ignore[arg-type]

    return one, change


def refresher(scratch: Path) -> tuple[Checkpointed, Change]:
    ctx = context(scratch)
    one = Refresher(ctx, ctx.models.load(), [])

    async def change(update: int) -> None:
        await one.after(update, RandomPolicy())

    return one, change


def ahead(scratch: Path) -> tuple[Checkpointed, Change]:
    async def play(update: int, outcomes: Any) -> list[Trajectory]:
        return [replace(episode(str(update)), id=f"{update}/0/0", reward=update / 10)]

    outcomes: list[Any] = []
    one = RunAhead(play, most=2, last=9, outcomes=outcomes)

    async def change(update: int) -> None:
        await one.of_update(update - 1)
        outcomes.append([])

    return one, change


PARTNERS = (history, replay, audits, best, refresher, ahead)


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        yield str(path.relative_to(folder)), gzip.decompress(data) if data and path.suffix == ".gz" else data


def state(partner: Checkpointed, folder: Path, updates: int) -> dict[str, bytes]:
    """All that a partner writes of itself: its checkpoint, and what it leaves when the stage ends there."""
    for part in ("saved", "left"):
        (folder / part).mkdir(parents=True)
    partner.save(folder / "saved", updates)
    partner.finish(folder / "left", updates)
    return dict(files(folder))


@pytest.mark.parametrize("make", PARTNERS, ids=lambda make: make.__name__)
async def test_a_load_gives_the_state_that_was_saved_and_pruning_leaves_what_a_checkpoint_leads_to(
    make: Maker, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    partner, change = make(scratch)
    states: dict[int, dict[str, bytes]] = {}
    for update in (1, 2, 3):
        await change(update)
        partner.save(scratch, update)
        states[update] = state(partner, tmp_path / str(update), update)
    assert states[1] != states[2] != states[3]

    async def gone_on_from(update: int) -> None:
        again, _ = make(scratch)
        again.load(scratch, update)
        assert state(again, tmp_path / f"again-{update}-{len(list(tmp_path.iterdir()))}", update) == states[update]

    # A kill before the trainer's own file: what is beside it is newer, and is cut back when it is read.
    partner.prune(scratch, {2, 3})
    await gone_on_from(2)
    partner.prune(scratch, {3})
    await gone_on_from(3)


async def test_the_trainers_file_comes_last_and_a_kept_checkpoint_is_whole(tmp_path: Path) -> None:
    """A kill at any partner leads back to the checkpoint before."""
    order: list[str] = []

    class Noted(History):
        def save(self, folder: Path, updates: int) -> None:
            order.append("partner")
            super().save(folder, updates)

    trainer: Any = SimpleNamespace(steps=4, save=lambda folder, keep: order.append(f"trainer keeps {keep}"))
    policy: Any = None
    partners: list[Checkpointed] = [Noted(rewards=[0.5, 0.25])]
    saved = Checkpoints(tmp_path, trainer, policy, partners, per_update=2, keep=3, on_save=lambda: order.append("cost"))
    saved.save()
    assert (saved.updates, order) == (2, ["partner", "trainer keeps 3", "cost"])
    again = History()
    again.load(tmp_path, 1)
    assert again.rewards == [0.5]
    trainer.steps = 0
    fresh = Checkpoints(tmp_path / "none", trainer, policy, partners, per_update=2, keep=3)
    assert fresh.resume() == 0, "nothing was saved there"
