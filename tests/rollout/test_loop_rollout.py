"""Episodes: how they end, what they record, and that batches do not depend on timing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import pytest

from dynaweb.config import resolve
from dynaweb.engines.scheduler import Lockstep
from dynaweb.errors import BrowserError, InfrastructureError
from dynaweb.judges.reward import grading, judge_all, lacking, scored_by_model, success_of
from dynaweb.rollout.agents import Decision, ExpertPlayer, MixedPolicy, ModelPolicy, RandomPolicy
from dynaweb.rollout.episode import Episode, Rules, play, play_all, refuse_total_failure
from dynaweb.rollout.group import GroupSampler, RolloutSource
from dynaweb.types import Action, Judgement, Node, Observation, Step, StepFacts, StepResult, Task, Trajectory

TASK = Task(id="count:train:0:0", intent="Count to 3.", start_url="http://count.localhost/")


def page(count: int) -> Observation:
    nodes = (Node(1, "link", "More"), Node(2, "textbox", "Word"), Node(3, "text", f"Count: {count}"))
    return Observation(url=f"http://count.localhost/{count}", nodes=nodes)


class Counter:
    """A place whose pages count the clicks; it can be slow and it can break."""

    def __init__(self, *, slow: random.Random | None = None, breaks: bool = False) -> None:
        self.slow, self.breaks = slow, breaks
        self.count = 0
        self.closed = False

    async def reset(self, task: Task, seed: int) -> Observation:
        if self.closed:
            raise BrowserError("this context is closed")
        self.count = 0
        await self._pause()
        return page(0)

    async def step(self, action: Action) -> StepResult:
        await self._pause()
        if self.breaks:
            raise BrowserError("the tab crashed")
        if action.target != 1:
            return StepResult(page(self.count), error="nothing happens there")
        self.count += 1
        return StepResult(page(self.count))

    async def close(self) -> None:
        self.closed = True

    async def _pause(self) -> None:
        if self.slow is not None:
            await asyncio.sleep(self.slow.random() / 500)


class Script:
    """Says fixed things in order; None is a reply that cannot be parsed."""

    def __init__(self, *actions: Action | None, deterministic: bool = False) -> None:
        self.actions = actions
        self.deterministic = deterministic
        self.seen: list[tuple[Action, ...]] = []

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        self.seen.append(tuple(history))
        action = self.actions[min(len(self.seen), len(self.actions)) - 1]
        return Decision(
            action, reply="?", error="" if action else "not an action", response_ids=(1, 2), logprobs=(-1.0, -2.0)
        )


MORE, WORD, STOP = Action("click", 1), Action("click", 2), Action("stop", text="3")


def once(
    player: Script, environment: Counter | None = None, *, max_steps: int = 4, invalid_ends: bool = True
) -> Trajectory:
    place = environment or Counter()
    return asyncio.run(play(TASK, place, player, seed=5, max_steps=max_steps, invalid_ends=invalid_ends))


def test_a_dream_that_lacks_what_the_goal_names_may_be_spared() -> None:
    def listing(name: str) -> Observation:
        return Observation(url=f"http://shop.localhost/{name}", nodes=(Node(1, "link", name),))

    task = replace(TASK, intent="Open 'Wool Scarf' in 'Winter'.")
    start, dreamed = listing("Winter"), listing("Lamp")

    def ended(last: Observation, reply: str, source: str = "dream", end: str = "invalid") -> Trajectory:
        steps = (
            Step(start, Action("click", 1), facts=StepFacts(imagined=last is not start)),
            Step(last, None, error="no such element", reply=reply),
        )
        return Trajectory("x", task, steps, last, source, end)  # type: ignore[arg-type]

    lost = ended(dreamed, "click 'Wool Scarf' [9]")
    cases = [
        lost,
        ended(start, "click 'Wool Scarf' [9]"),
        ended(dreamed, "click 'Cotton Scarf' [9]"),
        ended(listing("Wool Scarf"), "click 'Wool Scarf' [9]"),
        ended(dreamed, "click 'Wool Scarf' [9]", source="real"),
    ]
    assert [t.reward for t in asyncio.run(judge_all(Yes(), cases, spare=True))] == [None, 0.0, 0.0, 0.0, 0.0]
    assert [t.reward for t in asyncio.run(judge_all(Yes(), cases))] == [0.0] * 5
    assert "Wool Scarf" in lacking(lost) and not lacking(replace(lost, end="stop"))


def test_a_stopped_episode_records_every_step_and_its_tokens() -> None:
    player = Script(MORE, MORE, STOP)
    trajectory = once(player)
    assert (trajectory.end, trajectory.answer, trajectory.final) == ("stop", "3", page(2))
    assert [step.observation for step in trajectory.steps] == [page(0), page(1), page(2)]
    assert all(step.response_ids == (1, 2) and step.logprobs == (-1.0, -2.0) for step in trajectory.steps)
    assert player.seen == [(), (MORE,), (MORE, MORE)]


@pytest.mark.parametrize(
    ("player", "end", "steps", "invalid_ends"),
    [
        (Script(MORE), "max-steps", 4, True),
        (Script(MORE, None), "invalid", 2, True),
        (Script(MORE, WORD), "invalid", 2, True),
        (Script(None, MORE, STOP), "stop", 3, False),
        (Script(WORD, STOP), "stop", 2, False),
        (Script(None, deterministic=True), "invalid", 1, False),
    ],
)
def test_how_episodes_end(player: Script, end: str, steps: int, invalid_ends: bool) -> None:
    trajectory = once(player, invalid_ends=invalid_ends)
    assert (trajectory.end, len(trajectory.steps)) == (end, steps)


def test_unparseable_replies_are_recorded_but_not_shown() -> None:
    player = Script(None, MORE, STOP)
    trajectory = once(player, invalid_ends=False)
    assert trajectory.steps[0].error == "not an action"
    assert player.seen == [(), (), (MORE,)]


def test_a_broken_place_is_data_without_reward_and_is_replaced() -> None:
    made: list[Counter] = []

    def make() -> Counter:
        made.append(Counter(breaks=not made))
        return made[-1]

    episodes = [Episode(id=str(i), task=TASK, seed=i) for i in range(3)]
    rules = Rules(max_steps=4)
    played = asyncio.run(play_all(episodes, make, lambda task: Script(MORE, STOP), rules=rules, slots=1))
    assert [trajectory.end for trajectory in played] == ["infrastructure", "stop", "stop"]
    assert "tab crashed" in played[0].facts.failure
    assert len(made) == 2 and all(place.closed for place in made)
    judged = asyncio.run(judge_all(Yes(), played))
    assert [trajectory.reward for trajectory in judged] == [None, 1.0, 1.0]
    assert "tab crashed" in judged[0].judgement.why  # type: ignore[union-attr]
    refuse_total_failure(played, "exploration")
    with pytest.raises(InfrastructureError, match=r"all 1 episodes failed.*tab crashed"):
        refuse_total_failure(played[:1], "exploration")


class Yes:
    """A judge that likes everything."""

    async def score(self, trajectory: Trajectory) -> Judgement:
        return Judgement(1.0)


def test_only_what_the_policy_stopped_reaches_the_judge() -> None:
    ends = [once(Script(MORE)), once(Script(None)), once(Script(STOP))]
    assert [t.reward for t in asyncio.run(judge_all(Yes(), ends))] == [0.0, 0.0, 1.0]


def test_an_end_that_the_environment_made_reaches_the_judge() -> None:
    class Ends(Counter):
        async def step(self, action: Action) -> StepResult:
            return replace(await super().step(action), done=True)

    played = once(Script(MORE), Ends())
    assert (played.end, played.answer) == ("terminal", None)
    (judged,) = asyncio.run(judge_all(Yes(), [played]))
    assert judged.reward == 1.0 and scored_by_model(judged)
    (late,) = asyncio.run(judge_all(Yes(), [once(Script(MORE))]))
    assert late.reward == 0.0 and not scored_by_model(late)


class CountTo:
    """A source that calls it a success to end on page 2, and breaks on page 1."""

    async def evaluate(self, environment: Counter, trajectory: Trajectory) -> Judgement:
        if environment.count == 1:
            raise BrowserError("the page is gone")
        return Judgement(float(environment.count == 2))


def test_verdicts_are_taken_where_the_episode_ended_and_none_is_not_zero() -> None:
    scripts = {"a": (MORE, MORE, STOP), "b": (MORE, STOP), "c": (STOP,)}
    episodes = [Episode(id=name, task=Task(id=name, intent="", start_url=""), seed=0) for name in scripts]
    played = asyncio.run(
        play_all(
            episodes,
            Counter,
            lambda task: Script(*scripts[task.id]),
            rules=Rules(max_steps=4),
            slots=2,
            finish=grading(CountTo()),  # type: ignore[arg-type]
        )
    )
    assert [success_of(trajectory) for trajectory in played] == [1.0, None, 0.0]
    assert played[1].end == "infrastructure"


@dataclass
class Batches:
    """An engine that only notes which requests came together."""

    lockstep: Lockstep

    def __post_init__(self) -> None:
        self.seen: list[list[str]] = []
        self.queue = self.lockstep.queue(self._run)

    def _run(self, names: list[str]) -> list[int]:
        self.seen.append(sorted(names))
        return [len(name) for name in names]


class Asking:
    """Asks the engine before each of a random number of clicks."""

    deterministic = False

    def __init__(self, engine: Batches) -> None:
        self.engine = engine

    async def act(self, task: Task, observation: Observation, history: Sequence[Action], *, seed: int) -> Decision:
        await self.engine.queue.ask(f"{task.id}/{len(history)}")
        return Decision(STOP if random.Random(seed).random() < 0.3 else MORE)


def batches(make: Callable[[], Counter]) -> list[list[str]]:
    lockstep = Lockstep()
    engine = Batches(lockstep)
    episodes = [Episode(id=str(i), task=Task(id=f"t{i}", intent="", start_url=""), seed=i) for i in range(20)]
    rules = Rules(max_steps=5)
    asyncio.run(play_all(episodes, make, lambda task: Asking(engine), rules=rules, slots=6, lockstep=lockstep))
    return engine.seen


def test_batches_do_not_depend_on_how_fast_places_answer() -> None:
    fast = batches(Counter)
    assert len(fast[0]) == 6
    for seed in range(3):
        rng = random.Random(seed)
        assert batches(lambda rng=rng: Counter(slow=rng)) == fast  # type: ignore[misc]


class Waiting(Script):
    """Clicks until somebody lets it stop, on the task that it plays."""

    def __init__(self, task: Task, let: asyncio.Event) -> None:
        super().__init__(STOP)
        self.task, self.let = task, let

    async def act(self, *args: object, **kwargs: object) -> Decision:  # type: ignore[override]
        if self.task.id == "long":
            await self.let.wait()
        return Decision(STOP)


@pytest.mark.parametrize("free", [True, False])
def test_where_nothing_is_in_step_a_long_episode_keeps_nobody_waiting(free: bool) -> None:
    """Two places, the first of which is taken for long: the other one plays all that is left."""
    tasks = [Task(id=name, intent="", start_url="") for name in ("long", "b", "c", "d", "e")]
    done: list[str] = []

    async def played() -> list[Trajectory]:
        let = asyncio.Event()

        def on_done(trajectory: Trajectory) -> None:
            done.append(trajectory.task.id)
            if len(done) == (4 if free else 2):
                let.set()

        return await play_all(
            [Episode(id=task.id, task=task, seed=0) for task in tasks],
            Counter,
            lambda task: Waiting(task, let),
            rules=Rules(4),
            slots=2,
            lockstep=Lockstep(free=free),
            on_done=on_done,
        )

    result = asyncio.run(asyncio.wait_for(played(), 30))
    assert done == (["b", "c", "d", "e", "long"] if free else ["b", "d", "long", "c", "e"])
    assert [trajectory.id for trajectory in result] == [task.id for task in tasks]


def test_updates_that_are_played_at_the_same_time_share_their_places() -> None:
    """The later one gets those that the earlier one leaves, and no place has an environment before it is free."""
    live, most, done = 0, 0, list[str]()

    class Counted(Counter):
        def __init__(self) -> None:
            nonlocal live, most
            super().__init__()
            live, most = live + 1, max(most, live + 1)

        async def close(self) -> None:
            nonlocal live
            live -= 1
            await super().close()

    async def played() -> None:
        let = asyncio.Event()

        def on_done(trajectory: Trajectory) -> None:
            done.append(trajectory.id)
            if len(done) == 7:
                let.set()

        class FirstIsLong(Script):
            calls = 0

            async def act(self, *args: object, **kwargs: object) -> Decision:  # type: ignore[override]
                self.calls += 1
                await (let.wait() if self.calls == 1 else asyncio.sleep(0.01))
                return Decision(STOP)

        recipe = resolve("smoke", overrides=["rl.n=2", "rl.expert_share=0"])
        source = RolloutSource(Counted, 3, Rules(3))
        policy = cast("ModelPolicy", FirstIsLong(STOP))
        sampler = GroupSampler.of(recipe, 0, policy, Yes(), source, Lockstep(free=True), {})
        tasks = [[Task(id=f"t{u}{i}", intent="", start_url="") for i in range(2)] for u in range(2)]
        first, second = await asyncio.gather(*(sampler.of_update(u, tasks[u], on_done) for u in range(2)))
        assert [t.id for t in (*first, *second)] == [f"{u}/{i}/{k}" for u in (0, 1) for i in (0, 1) for k in (0, 1)]

    asyncio.run(asyncio.wait_for(played(), 30))
    assert most == 3 and live == 0
    assert done[:3] == ["0/0/1", "0/1/0", "0/1/1"] and done[-1] == "0/0/0"


@pytest.mark.parametrize("free", [True, False])
def test_an_episode_is_judged_as_it_ends_where_nothing_is_in_step(free: bool) -> None:
    recipe = resolve("smoke", overrides=["rl.n=3", "rl.expert_share=0"])
    order: list[str] = []

    class Noting(Yes):
        async def score(self, trajectory: Trajectory) -> Judgement:
            order.append(f"judged {trajectory.id}")
            if trajectory.id.endswith("/1"):
                await asyncio.sleep(0.05)
            return Judgement(float(trajectory.id.endswith("/1")))

    class Slow(Script):
        async def act(self, *args: object, **kwargs: object) -> Decision:  # type: ignore[override]
            await asyncio.sleep(0.01 * random.Random(int(str(kwargs["seed"]))).randint(0, 9))
            return Decision(STOP)

    sampler = GroupSampler.of(
        recipe,
        0,
        cast("ModelPolicy", Slow(STOP)),
        Noting(),
        RolloutSource(Counter, 3, Rules(3)),
        Lockstep(free=free),
        {},
    )
    ended = sampler.of_update(0, [TASK], lambda trajectory: order.append(f"ended {trajectory.id}"))
    rollouts = asyncio.run(ended)
    assert [t.id for t in rollouts] == ["0/0/0", "0/0/1", "0/0/2"] and [t.reward for t in rollouts] == [0.0, 1.0, 0.0]
    words = [line.split()[0] for line in order]
    assert sorted(words) == ["ended"] * 3 + ["judged"] * 3
    assert (words == ["ended"] * 3 + ["judged"] * 3) is not free


def test_a_judge_that_fails_ends_the_update_whenever_it_fails() -> None:
    class Broken(Yes):
        async def score(self, trajectory: Trajectory) -> Judgement:
            raise KeyError("bug of the judge")

    recipe = resolve("smoke", overrides=["rl.n=3", "rl.expert_share=0"])
    policy, source = cast("ModelPolicy", Script(STOP)), RolloutSource(Counter, 3, Rules(3))
    for free in (True, False):
        sampler = GroupSampler.of(recipe, 0, policy, Broken(), source, Lockstep(free=free), {})
        with pytest.raises(KeyError, match="bug of the judge"):
            asyncio.run(sampler.of_update(0, [TASK]))


@pytest.mark.parametrize("moment", ["at once", "later"])
def test_a_judge_that_fails_early_ends_the_playing(moment: str) -> None:
    """The other episodes of the update would never end by themselves."""
    environments: list[Counter] = []

    class Broken(Yes):
        async def score(self, trajectory: Trajectory) -> Judgement:
            if moment == "later":
                await asyncio.sleep(0.01)
            raise KeyError("bug of the judge")

    class Endless(Script):
        async def act(self, *args: object, **kwargs: object) -> Decision:  # type: ignore[override]
            self.seen.append(())
            if len(self.seen) > 1:
                await asyncio.Event().wait()
            return Decision(STOP)

    def environment() -> Counter:
        environments.append(Counter())
        return environments[-1]

    recipe = resolve("smoke", overrides=["rl.n=4", "rl.expert_share=0"])
    policy, source = cast("ModelPolicy", Endless(STOP)), RolloutSource(environment, 2, Rules(3))
    sampler = GroupSampler.of(recipe, 0, policy, Broken(), source, Lockstep(free=True), {})
    with pytest.raises(KeyError, match="bug of the judge"):
        asyncio.run(asyncio.wait_for(sampler.of_update(0, [TASK]), 20))
    assert len(environments) == 2 and all(one.closed for one in environments)


def test_a_bug_stops_everything_and_is_raised_as_it_is() -> None:
    class Buggy(Script):
        async def act(self, *args: object, **kwargs: object) -> Decision:  # type: ignore[override]
            raise KeyError("bug")

    places: list[Counter] = []

    def make() -> Counter:
        places.append(Counter())
        return places[-1]

    episodes = [Episode(id=str(i), task=TASK, seed=i) for i in range(8)]
    with pytest.raises(KeyError, match="bug"):
        asyncio.run(play_all(episodes, make, lambda task: Buggy(), rules=Rules(3), slots=4))
    assert all(place.closed for place in places)


def test_random_actions_are_valid_and_depend_on_the_seed() -> None:
    policy = RandomPolicy()
    drawn = [policy.draw(TASK, page(0), [MORE], seed=seed) for seed in range(200)]
    assert {action.kind for action in drawn} == {"click", "type", "go_back"}
    assert drawn == [policy.draw(TASK, page(0), [MORE], seed=seed) for seed in range(200)]
    assert policy.draw(TASK, Observation("about:blank", ()), [], seed=1) == Action("wait")


def test_a_mixed_policy_replaces_about_its_share() -> None:
    mixed = MixedPolicy(Script(STOP), 0.3)

    async def kinds() -> list[bool]:
        return [(await mixed.act(TASK, page(0), (), seed=seed)).info.get("player") == "random" for seed in range(400)]

    assert 0.24 < sum(asyncio.run(kinds())) / 400 < 0.36


def test_an_expert_keeps_its_place_in_the_plan() -> None:
    class Plan:
        def __init__(self) -> None:
            self.left = [MORE, STOP]

        def act(self, observation: Observation) -> Action:
            return self.left.pop(0)

    trajectory = asyncio.run(play(TASK, Counter(), ExpertPlayer(Plan()), seed=0, max_steps=9, source="expert"))
    assert [step.action for step in trajectory.steps] == [MORE, STOP]
    assert trajectory.source == "expert"
