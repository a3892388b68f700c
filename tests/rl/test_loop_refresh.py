"""A refreshed world model in whole runs on the embedded sites: who goes on with it, and who is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from judge_server import judge_server

import dynaweb
from dynaweb.data.store import TransitionStore
from dynaweb.engines.local.engine import TransformersRole
from dynaweb.pipeline.artifacts import REFRESHED
from dynaweb.pipeline.models import Models
from dynaweb.rl.refresh import COLLECTED, Refresher
from dynaweb.runs import read_jsonl

SMALL = (
    "env.task_settings.driver=static",
    "data.demos=4",
    "data.max_best_steps=3",
    "sft.steps=2",
    "sft.batch=8",
    "explore.episodes=8",
    "explore.steps=3",
    "wm_fit.steps=2",
    "wm_fit.batch=4",
    "wm_fit.refresh_every=1",
    "wm_fit.refresh_episodes=2",
    "wm_fit.refresh_steps=1",
    "dream.horizon=2",
    "rl.updates=2",
    "rl.tasks=2",
    "rl.n=2",
    "rl.bc_batch=4",
    "phases.count=2",
    "phases.generator=server",
    "phases.server.model=m",
    "agent.candidates=2",
    "agent.depth=1",
    "eval.episodes=2",
    "eval.steps=2",
    "controls.sft_steps=[]",
    "model.threads=1",
    "wm.max_new_tokens=24",
    "wm.retries=0",
)


def test_the_next_phase_and_the_look_ahead_agent_go_on_with_the_refreshed_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path | None] = []
    told: list[Any] = []
    refreshers: list[Refresher] = []

    def load(self: Models, path: Path | None = None, real: Any = Models.load) -> Any:
        loaded.append(path)
        return real(self, path)

    def weights_changed(self: Any, real: Any = TransformersRole.weights_changed) -> None:
        told.append(self.model)
        real(self)

    async def after(self: Refresher, done: int, player: Any, real: Any = Refresher.after) -> None:
        refreshers.append(self)
        await real(self, done, player)

    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Models, "load", load)
    monkeypatch.setattr(TransformersRole, "weights_changed", weights_changed)
    monkeypatch.setattr(Refresher, "after", after)
    # A model's new tasks are on sites whose start pages are recorded; this one says of each that it can be done.
    with judge_server("`Find 'Home' twice.` [YES]") as server:
        sets = [*SMALL, f"phases.server.base_url={server.url}"]
        dynaweb.run("dynaweb", overrides=sets, out=tmp_path / "run", seed=0, agent="lookahead")
    rl = [Path(row["key"]) for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if row.get("name") == "rl"]
    first, last = (tmp_path / "cache" / "rl" / key / REFRESHED for key in dict.fromkeys(rl))
    (fitted,) = (tmp_path / "cache" / "world-model").glob("*/model")
    # Phase 1 dreams with the fitted model, phase 2 with that of phase 1, the agent with that of phase 2.
    dreamers = [path for path in loaded if path in (fitted, first / "model", last / "model")]
    assert list(dict.fromkeys(dreamers)) == [fitted, first / "model", last / "model"]
    # What phase 1 collected is learned from in phase 2 too.
    known, all_of_them = (list(TransitionStore(folder / COLLECTED)) for folder in (first, last))
    assert known and all_of_them[: len(known)] == known and len(all_of_them) > len(known)
    # The engine of the world model is told of its new weights, once in each phase.
    models = [one.model.model for one in dict.fromkeys(refreshers)]
    assert [sum(model is of for model in told) for of in models] == [1, 1]
