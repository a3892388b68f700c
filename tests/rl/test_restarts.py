"""What goes along with RL's updates, and what a restart may not lose; recorded rollouts and who can learn from them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from judge_kit import episode

from dynaweb.config.resolving import resolve
from dynaweb.errors import ConfigError, TrainingError
from dynaweb.judges.alarm import Mark
from dynaweb.pipeline.artifacts import FIRST_PHASE, Artifact, Phase
from dynaweb.pipeline.context import RunContext, make_optimizer
from dynaweb.pipeline.models import completed
from dynaweb.plugin.registry import current
from dynaweb.rl.audit import Auditor, RewardHacking
from dynaweb.rl.importance import checked_correction
from dynaweb.rl.replay import ReplayBuffer
from dynaweb.rl.sources import OfflineRollouts
from dynaweb.rollout.curriculum import Curriculum
from dynaweb.rollout.group import GroupSampler
from dynaweb.runs import StageCache, write_json
from dynaweb.runs.names import UPDATES
from dynaweb.stages.preflight import check_together, learns_alone
from dynaweb.train import refills
from dynaweb.types import Judgement, Trajectory

SITES: dict[str, Any] = {"env": "sites", "reward": "checker"}


def context(tmp_path: Path, *sets: str, **flags: Any) -> RunContext:
    return RunContext(resolve("dynaweb", overrides=sets, **flags), current(), StageCache(tmp_path))


def auditor(ctx: RunContext) -> Auditor:
    judge: Any = None
    return Auditor(ctx, judge, "rl")


def test_only_what_replays_has_a_buffer(tmp_path: Path) -> None:
    assert ReplayBuffer.of(context(tmp_path, "replay.capacity=9", opt="awr"), FIRST_PHASE) is not None
    assert ReplayBuffer.of(context(tmp_path), FIRST_PHASE) is None


@pytest.mark.parametrize(("done", "stop", "ends"), [(2, "true", True), (3, "true", False), (2, "false", False)])
def test_an_alarm_outlives_a_restart(tmp_path: Path, done: int, stop: str, ends: bool) -> None:
    """The judge accepts all that fails. An alarm of an earlier update was let pass by whoever went on from there."""
    ctx = context(tmp_path, "audit.every=1", f"audit.stop={stop}")
    first = auditor(ctx)
    first.marks = [Mark(2, 0.9, 0, 30, accepted=30, failed=30)]
    first.save(tmp_path, 2)
    again = auditor(ctx)
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

    models, model = context(tmp_path).models, cast("Any", None)
    models._engines = [(model, kind, completed(one)) for kind, one in (("a", Sleeper("policy")), ("b", object()))]
    models._engines.append((model, "c", completed(Sleeper("reward"))))
    await models.rest()
    assert rested == ["policy", "reward"]


async def test_the_engines_of_a_stage_start_side_by_side(tmp_path: Path) -> None:
    both = asyncio.Barrier(2)
    started: list[int] = []

    class Slow:
        async def start(self) -> None:
            started.append(await both.wait())

    models, model = context(tmp_path).models, cast("Any", None)
    models._engines = [(model, str(number), completed(one)) for number, one in enumerate((Slow(), object(), Slow()))]
    async with asyncio.timeout(5):
        await models.start()
    assert sorted(started) == [0, 1]


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
    ctx = context(tmp_path, *sets, "offline.episodes=4", opt=opt, **SITES)
    assert learns_alone(make_optimizer(ctx)) == learns
    if learns:
        return check_together(ctx)
    with pytest.raises(ConfigError, match=f"opt '{opt}' compares the rollouts of a task.* it would learn nothing"):
        check_together(ctx)


def test_imitation_of_recorded_rollouts_needs_no_group(tmp_path: Path) -> None:
    check_together(context(tmp_path, "offline.episodes=4", "rl.mode=filtered-bc", **SITES))


@pytest.mark.parametrize(("recorded", "rounds"), [(True, 1), (False, 3)])
async def test_nothing_recorded_is_drawn_in_the_place_of_dropped_groups(
    tmp_path: Path, recorded: bool, rounds: int
) -> None:
    """All rewards are equal, so that the optimizer drops every group, and asks for two further rounds."""

    class Draws:
        on_policy = not recorded
        calls: ClassVar[list[int]] = [0]

        async def of_update(self, update: int, tasks: Any, on_done: Any = None, first: int = 0) -> list[Trajectory]:
            self.calls.append(first)
            return group

    group = [replace(episode("a"), reward=0.0, group="a")]
    ctx = context(tmp_path, "opt.dynamic_sampling=true", "opt.refills=2", opt="grpo")
    tasks = [replace(episode(name).task, id=name) for name in "abcdefgh"]
    curriculum = Curriculum(ctx.recipe.rl, tasks, [], seed=0)
    more = await refills(0, group, curriculum, Draws(), make_optimizer(ctx), ctx.count_steps)
    assert len(Draws.calls) == rounds == 1 + len(more)


@pytest.mark.parametrize(("recorded", "cap"), [(True, 0.0), (False, 2.0)])
def test_recorded_tokens_are_not_corrected_as_if_the_engine_had_just_drawn_them(recorded: bool, cap: float) -> None:
    engine: Any = SimpleNamespace(correction=2.0)
    assert checked_correction(engine, 1.0, on_policy=not recorded) == cap
    assert (OfflineRollouts.on_policy, GroupSampler.on_policy) == (False, True)


@pytest.mark.parametrize(("done", "total"), [((3,), 3), ((3, 1), 4), ((2, 3, 1), 6)])
def test_a_phase_counts_the_updates_that_were_done_before_it(tmp_path: Path, done: tuple[int, ...], total: int) -> None:
    """Versions of the policy go on from there, also where a time budget has cut a phase."""
    before: Artifact | None = None
    for number, count in enumerate(done, 1):
        phase = Phase(number, before)
        folder = tmp_path / str(number)
        progress = {"done": count, "planned": 3, "phase": number, "before": phase.updates_before}
        write_json(folder / UPDATES, progress)
        before = Artifact(str(number), folder)
    assert Phase(len(done) + 1, before).updates_before == total
    assert FIRST_PHASE.updates_before == 0


async def test_no_two_audited_episodes_share_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in one audit nor over updates: the same seeds would repeat the same draws of the environment."""
    seeds: list[int] = []

    async def play(ctx: Any, stage: Any, episodes: Any, *rest: Any, **more: Any) -> list[Trajectory]:
        seeds.extend(episode.seed for episode in episodes)
        return []

    monkeypatch.setattr("dynaweb.rl.audit.play_in_batches", play)
    one = auditor(context(tmp_path, "audit.every=1", "audit.episodes=3"))
    for update in range(4):
        await one.after(update, [replace(episode(name), source="dream", reward=1.0) for name in "abc"], [1.0])
    assert len(seeds) == len(set(seeds)) == 12


async def test_stages_of_another_recipe_in_a_run_share_ranks_and_services_and_leave_them_to_it(tmp_path: Path) -> None:
    closed: list[str] = []
    team: Any = SimpleNamespace(close=lambda: closed.append("team"))

    class Server:
        async def close(self) -> None:
            closed.append("server")

    ctx = context(tmp_path)
    ctx.models.team, ctx.deadline = team, 12.0
    other = ctx.with_recipe(resolve("dynaweb", reward="orm"))
    assert (other.models.team, other.deadline, other.cache) == (team, 12.0, ctx.cache)
    other.models.services["server"] = Server()
    await other.models.release()
    await other.close()
    assert closed == []
    await ctx.models.release()
    assert ctx.models.services and closed == [], "a stage that begins leaves them alone"
    await ctx.close()
    assert closed == ["server", "team"]
