"""What goes along with RL's updates, and what a restart may not lose; recorded rollouts and who can learn from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from judge_kit import episode

from dynaweb.config.resolving import resolve
from dynaweb.errors import ConfigError, TrainingError
from dynaweb.judges.alarm import Mark
from dynaweb.loop.auditing import RewardHacking
from dynaweb.loop.beside import FIRST_PHASE, Beside
from dynaweb.loop.checks import check_together, learns_alone, make_optimizer
from dynaweb.loop.engines import Engines
from dynaweb.loop.made import Made
from dynaweb.loop.offline import OfflineRollouts
from dynaweb.loop.rl import _Learner
from dynaweb.loop.workspace import Workspace
from dynaweb.plugins import current
from dynaweb.runs import StageCache
from dynaweb.types import Judgement, Trajectory

SITES: dict[str, Any] = {"env": "sites", "reward": "checker"}


def workspace(tmp_path: Path, *sets: str, **flags: Any) -> Workspace:
    return Workspace(resolve("dynaweb", overrides=sets, **flags), current(), StageCache(tmp_path))


def beside(ws: Workspace, *, replays: bool = True) -> Beside:
    judge: Any = None
    return Beside(ws, FIRST_PHASE, judge, "rl", replays=replays)


def test_only_what_replays_has_a_buffer(tmp_path: Path) -> None:
    ws = workspace(tmp_path, "replay.capacity=9", opt="awr")
    assert beside(ws).replay is not None
    assert beside(ws, replays=False).replay is None
    assert beside(workspace(tmp_path)).replay is None


@pytest.mark.parametrize(("done", "stop", "ends"), [(2, "true", True), (3, "true", False), (2, "false", False)])
def test_an_alarm_outlives_a_restart(tmp_path: Path, done: int, stop: str, ends: bool) -> None:
    """The judge accepts all that fails. An alarm of an earlier update was let pass by whoever went on from there."""
    ws = workspace(tmp_path, "audit.every=1", f"audit.stop={stop}")
    first = beside(ws)
    assert first.auditor is not None
    first.auditor.marks = [Mark(2, 0.9, 0, 30, accepted=30, failed=30)]
    first.save(tmp_path, 2)
    again = beside(ws)
    again.load(tmp_path, done)
    if not ends:
        return again.refuse_alarm(lambda: None)
    with pytest.raises(RewardHacking, match=r"accepts 1\.000"):
        again.refuse_alarm(lambda: None)


async def test_all_engines_rest_while_the_trainer_works(tmp_path: Path) -> None:
    rested: list[str] = []

    class Sleeper:
        def __init__(self, name: str) -> None:
            self.name = name

        async def rest(self) -> None:
            rested.append(self.name)

    engines = Engines(workspace(tmp_path))
    model: Any = None
    engines._made = [(model, kind, one) for kind, one in (("a", Sleeper("policy")), ("b", object()))]
    engines._made.append((model, "c", Sleeper("reward")))
    await engines.rest()
    assert rested == ["policy", "reward"]


# Recorded rollouts


class Moody:
    """Says something else each time it is asked."""

    def __init__(self, said: float | None) -> None:
        self.said, self.asked = said, 0

    async def score(self, trajectory: Trajectory) -> Judgement:
        self.asked += 1
        return Judgement(self.said, why="because")


async def test_recorded_rollouts_keep_their_verdicts_over_a_restart(tmp_path: Path) -> None:
    pool = [episode(name) for name in "abcd"]
    before, after = Moody(1.0), Moody(0.0)
    first = await OfflineRollouts(pool, before, 3, 7, tmp_path / "judged").of_update(1, [])
    again = OfflineRollouts(pool, after, 3, 7, tmp_path / "judged")
    assert await again.of_update(1, []) == first and {t.reward for t in first} == {1.0}
    await again.of_update(2, [])
    assert (before.asked, after.asked) == (4, 0)


async def test_a_silent_judge_is_asked_again_by_the_next_run(tmp_path: Path) -> None:
    pool = [episode(name) for name in "ab"]
    with pytest.raises(TrainingError, match="the recorded rollouts: the judge scored none"):
        await OfflineRollouts(pool, Moody(None), 2, 7, tmp_path / "judged").of_update(0, [])
    played = await OfflineRollouts(pool, Moody(1.0), 2, 7, tmp_path / "judged").of_update(0, [])
    assert [t.reward for t in played] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("opt", "sets", "learns"),
    [
        ("gspo", (), False),
        ("gspo", ("opt.singleton=raw",), True),
        ("grpo", ("opt.scale=batch",), False),
        ("rloo", (), False),
        ("reinforce-pp", (), True),
        ("digirl", (), False),
        ("digirl", ("opt.instructions=false",), True),
        ("awr", (), True),
        ("ppo", (), True),
        ("webrl", (), True),
    ],
)
def test_who_learns_from_one_rollout_a_task(tmp_path: Path, opt: str, sets: tuple[str, ...], learns: bool) -> None:
    ws = workspace(tmp_path, *sets, "offline.episodes=4", opt=opt, **SITES)
    assert learns_alone(make_optimizer(ws)) == learns
    if learns:
        return check_together(ws)
    with pytest.raises(ConfigError, match=f"opt '{opt}' compares the rollouts of a task.* it would learn nothing"):
        check_together(ws)


def test_imitation_of_recorded_rollouts_needs_no_group(tmp_path: Path) -> None:
    check_together(workspace(tmp_path, "offline.episodes=4", "rl.mode=filtered-bc", **SITES))


@pytest.mark.parametrize(("recorded", "rounds"), [(True, 1), (False, 3)])
async def test_nothing_recorded_is_drawn_in_the_place_of_dropped_groups(
    tmp_path: Path, recorded: bool, rounds: int
) -> None:
    """All rewards are equal, so that the optimizer drops every group, and asks for two further rounds."""
    calls: list[int] = []

    async def of_update(update: int, tasks: Any, on_done: Any, first: int = 0) -> list[Trajectory]:
        calls.append(first)
        return [replace(episode("a"), reward=0.0, group="a")]

    learner: Any = object.__new__(_Learner)
    learner.ws = workspace(tmp_path, "opt.dynamic_sampling=true", opt="grpo")
    learner.mode, learner.rl, learner.optimizer = "policy", learner.ws.recipe.rl, make_optimizer(learner.ws)
    learner.wants = SimpleNamespace(refills=2)
    learner.given = SimpleNamespace(recorded=Made("recorded", tmp_path) if recorded else None)
    learner.rollouts, learner.history = SimpleNamespace(of_update=of_update), SimpleNamespace(outcomes=[])
    learner.schedule = SimpleNamespace(of_update=lambda *given: [], others=lambda *given: [episode("b").task])
    await learner._play(0)
    assert len(calls) == rounds


@pytest.mark.parametrize(("recorded", "cap"), [(True, 0.0), (False, 2.0)])
def test_recorded_tokens_are_not_corrected_as_if_the_engine_had_just_drawn_them(
    tmp_path: Path, recorded: bool, cap: float
) -> None:
    learner: Any = object.__new__(_Learner)
    learner.engine, learner.rl = SimpleNamespace(correction=2.0), SimpleNamespace(temperature=1.0)
    learner.given = SimpleNamespace(recorded=Made("recorded", tmp_path) if recorded else None)
    assert learner._cap() == cap
