"""Small whole runs, and runs in processes of their own that end at a chosen moment."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import dynaweb
from dynaweb.cli.process import prepare
from dynaweb.errors import Interrupted
from dynaweb.hookspecs import hookimpl
from dynaweb.observers import read_metrics
from dynaweb.plugin import registry as plugins
from dynaweb.runs import read_jsonl

SMALL = (
    "env.task_settings.driver=static",
    "data.demos=4",
    "sft.steps=4",
    "sft.batch=8",
    "explore.episodes=8",
    "explore.steps=3",
    "wm_fit.steps=3",
    "wm_fit.batch=4",
    "dream.horizon=3",
    "rl.updates=4",
    "rl.tasks=2",
    "rl.n=3",
    "rl.bc_batch=4",
    "rl.checkpoint_every=1",
    "eval.episodes=6",
    "eval.steps=4",
    "controls.sft_steps=[5]",
    "model.threads=1",
    "wm.max_new_tokens=24",
    "wm.retries=0",
)


WITHOUT_ARTIFACT = {"curriculum", "eval", "judge-audit", "browser-sample"}
"""Stages of a phase, of an arm and of the sample of one: they are not in the list of stages."""


def run(out: Path, *sets: str, seed: int = 0, **more: Any) -> Any:
    """The run `SMALL`, or one that differs."""
    return dynaweb.run("dynaweb", overrides=[*SMALL, *sets], out=out, seed=seed, **more)


def plan_holds(patch: pytest.MonkeyPatch) -> None:
    """From now on every whole run goes through as many stages as were foreseen, by the names of the list, or fails."""
    from dynaweb import train

    whole = train.run

    async def counted(ctx: Any) -> Any:
        finished, stage = [], ctx.stage

        async def counting(name: str, *rest: Any, **more: Any) -> Any:
            result = await stage(name, *rest, **more)
            finished.append(name)
            return result

        ctx.stage = counting
        outcome = await whole(ctx)
        assert len(finished) == train.n_stages(ctx), finished
        assert set(finished) <= {spec.name.replace("_", "-") for spec in train.STAGES} | WITHOUT_ARTIFACT
        return outcome

    patch.setattr(train, "run", counted)


class _Killer:
    """Ends its process at the `count`-th rollout or update of a stage."""

    def __init__(self, stage: str, count: int) -> None:
        self._stage, self._left = stage, count

    def _meet(self, name: str) -> None:
        self._left -= name.split()[0] == self._stage
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    @hookimpl
    def dynaweb_update(self, event: Any) -> None:
        """An update."""
        self._meet(event.stage)

    @hookimpl
    def dynaweb_rollout(self, event: Any) -> None:
        """An episode."""
        self._meet(event.phase)


class _Stopper:
    """Sends its process a signal at the second update of reinforcement learning."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    @hookimpl
    def dynaweb_update(self, event: Any) -> None:
        """An update."""
        if event.stage == "rl" and event.index == 1:
            os.kill(os.getpid(), self._number)


def killed(folder: Path, cache: str, stage: str, count: int, *sets: str) -> None:
    """Begin the run, or go on with it, until SIGKILL."""
    os.environ["DYNAWEB_CACHE"] = cache
    plugins.current().add_observer(_Killer(stage, count))
    run(folder, *sets, resume=folder.exists())


def interrupted(folder: Path, cache: str, number: signal.Signals) -> None:
    """Begin the run until a signal, with the command line's handlers."""
    os.environ["DYNAWEB_CACHE"] = cache
    prepare()
    plugins.current().add_observer(_Stopper(number))
    try:
        run(folder)
    except Interrupted as error:
        sys.exit(error.exit_code)


def rows(folder: Path, event: str = "") -> list[dict[str, Any]]:
    found = read_metrics(folder / "metrics.jsonl", times=False)
    return [row for row in found if not event or row["event"] == event]


def statuses(folder: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in read_jsonl(folder / "metrics.jsonl"):
        if row["event"] == "stage":
            found.setdefault(row["name"], set()).add(row["time.status"])
    return found
