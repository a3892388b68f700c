"""Evaluations of finite benchmarks and of broken sites: all tasks there are, and a second try for what broke."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import dynaweb
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import ConfigError, InfrastructureError
from dynaweb.rollout.tasks import draw
from dynaweb.runs.checksums import check_records
from dynaweb.runs.folder import RunFolder
from dynaweb.types import Task
from dynaweb_env_sites.env import SitesEnvironment

SMALL = (
    "env.driver=static",
    "eval.episodes=3",
    "eval.steps=2",
    "policy.max_new_tokens=8",
    "web.contexts=2",
    "model.threads=1",
)


class Benchmark:
    """A source with an end."""

    def __init__(self, count: int) -> None:
        self.all = [Task(str(number), "", "") for number in range(count)]

    def tasks(self, split: str, *, count: int, seed: int) -> list[Task]:
        return self.all[:count]

    def catalogue(self, split: str) -> list[Task]:
        return self.all

    def skipped(self, split: str) -> dict[str, int]:
        return {}


def test_a_benchmark_gives_all_it_has(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "dynaweb"):
        assert len(draw(Benchmark(5), "test", count=5, seed=0, max_best_steps=5)) == 5  # type: ignore[arg-type]
        assert caplog.messages == []
        assert len(draw(Benchmark(5), "test", count=9, seed=0, max_best_steps=5)) == 5  # type: ignore[arg-type]
        fewer = draw(Benchmark(5), "test", count=256, seed=0, max_best_steps=5, enough=5)  # type: ignore[arg-type]
        assert len(fewer) == 5
    assert caplog.messages == ["the split 'test' has only 5 tasks; each is played once, not 9"]


def test_what_the_infrastructure_broke_is_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of an evaluation that came to its end; the episodes that stand are not played twice."""
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    reset, played, down = SitesEnvironment.reset, list[str](), {"forum"}

    async def watched(self: Any, task: Task, seed: int) -> Any:
        played.append(task.id)
        if task.sites[0] in down:
            raise InfrastructureError("the forum is down")
        return await reset(self, task, seed)

    def evaluated(out: str) -> dict[str, Any]:
        played.clear()
        done = dynaweb.evaluate("dynaweb", env="sites", policy="base", overrides=SMALL, out=tmp_path / out)
        kept = TrajectoryStore(done.folder / "trajectories" / "eval-base.jsonl.gz")
        return {trajectory.task.id: trajectory for trajectory in kept}

    monkeypatch.setattr(SitesEnvironment, "reset", watched)
    first = evaluated("first")
    broken = {name for name, one in first.items() if one.end == "infrastructure"}
    assert broken and broken == {name for name in played if name.startswith("forum")} and len(first) == 3
    down.clear()
    mended = evaluated("mended")
    assert set(played) == broken and [one.end for one in mended.values()].count("infrastructure") == 0
    assert {name: one for name, one in mended.items() if name not in broken} == {
        name: one for name, one in first.items() if name not in broken
    }
    assert evaluated("again") == mended and played == []


def test_an_evaluation_is_given_again_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    reset, played, down = SitesEnvironment.reset, list[str](), {"forum", "shop"}

    async def watched(self: Any, task: Task, seed: int) -> Any:
        played.append(task.sites[0])
        if task.sites[0] in down:
            raise InfrastructureError(f"the {task.sites[0]} is down")
        return await reset(self, task, seed)

    def evaluated(policy: str = "random", **settings: Any) -> Any:
        played.clear()
        settings = {"eval.episodes": 6, "eval.steps": 2, "env.driver": "static", **settings}
        return dynaweb.evaluate("dynaweb", env="sites", policy=policy, overrides=settings, out=tmp_path / "e")

    monkeypatch.setattr(SitesEnvironment, "reset", watched)
    first = evaluated()
    broken = [site for site in played if site in down]
    assert 0 < len(broken) < 6
    assert "broken by the infrastructure; the same command with the same --out plays these again:" in str(first)
    for site in set(broken):
        assert f"  {broken.count(site)} x InfrastructureError: the {site} is down" in str(first)
    down.remove("forum")
    second = evaluated()
    assert sorted(played) == sorted(broken)
    assert {failure["site"] for failure in second.failures if failure["label"] == "infrastructure"} <= {"shop"}
    down.clear()
    third = evaluated()
    assert set(played) <= {"shop"} and "infrastructure;" not in str(third)
    assert RunFolder(tmp_path / "e").status == "done"
    check_records(tmp_path / "e")
    kept = list(TrajectoryStore(tmp_path / "e" / "trajectories" / "eval-random.jsonl.gz"))
    assert len(kept) == 6 and all(trajectory.end != "infrastructure" for trajectory in kept)
    assert evaluated().failures == third.failures and played == []
    # Nothing of it is overwritten by another evaluation.
    with pytest.raises(ConfigError, match="not empty; nothing is overwritten"):
        evaluated("expert")
    with pytest.raises(ConfigError, match=r"(?s)eval\.episodes.*Give the settings that it was made with"):
        evaluated(**{"eval.episodes": 5})
    RunFolder(tmp_path / "e").set_status("interrupted")
    with pytest.raises(ConfigError, match="was made for the policy random, not for the policy expert; choose another"):
        evaluated("expert")
    assert played == [] and len(list(TrajectoryStore(tmp_path / "e" / "trajectories" / "eval-random.jsonl.gz"))) == 6
