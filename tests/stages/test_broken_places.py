"""Whole runs beside a site that is down: its episodes never begin, and everything else is learned, told and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stage_kit import SMALL, rows

import dynaweb
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import InfrastructureError
from dynaweb.types import Task
from dynaweb_env_sites.env import SitesEnvironment

DREAMS = ("reward.name=orm", "judge_fit.episodes=40", "judge_fit.steps=2", "judge_fit.batch=8", "explore.episodes=16")
REAL = ("env.name=sites", "env.driver=static", "reward.name=checker", "rl.tasks=4", "rl.updates=3")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("sets", [DREAMS, REAL], ids=["dreams", "real pages"])
def test_a_site_that_is_down_ends_no_run(
    sets: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    reset = SitesEnvironment.reset

    async def watched(self: Any, task: Task, seed: int) -> Any:
        if task.sites[0] == "forum":
            raise InfrastructureError("the forum is down")
        return await reset(self, task, seed)

    monkeypatch.setattr(SitesEnvironment, "reset", watched)
    small = [one for one in SMALL if sets is DREAMS or not one.startswith("env.task_settings")]
    result = dynaweb.run("dynaweb", overrides=[*small, *sets], out=tmp_path / "out", seed=0)
    stores = sorted((result.folder / "trajectories").glob("*.jsonl.gz"))
    played = [one for path in stores if path.name != "world-model.jsonl.gz" for one in TrajectoryStore(path)]
    broken = [one for one in played if one.end == "infrastructure"]
    assert broken and not any(one.steps or one.following for one in broken)
    assert {one.task.sites[0] for one in broken} == {"forum"}
    updates = [row["metrics"] for row in rows(result.folder, "update") if row["stage"] == "rl"]
    assert len(updates) == (4 if sets is DREAMS else 3)
    assert (sum(one["infrastructure"] for one in updates) > 0) == (sets is REAL)
    assert (result.folder / "report.html").stat().st_size > 10_000
