"""Episodes: one (`play`), or many at once over a few environments (`play_all`).

Environments are shared by fixed slots: slot s plays episodes s, s + slots, s + 2*slots... in order, and counts as one
live episode of the `Lockstep` from its first to its last. So the batches that engines see depend on the episodes alone,
never on how fast a browser answered, and the same seed gives the same tokens bit for bit. Where the `Lockstep` is free,
since vLLM or a server answers, a slot takes the next episode that nobody has begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from dynaweb.errors import InfrastructureError
from dynaweb.plugin import contracts
from dynaweb.runs.seeding import derive
from dynaweb.types import (
    EndReason,
    EpisodeFacts,
    History,
    Observation,
    Source,
    Step,
    StepFacts,
    StepResult,
    Task,
    Trajectory,
)

if TYPE_CHECKING:
    from dynaweb.protocols import Environment
    from dynaweb.rollout.agents import Decision, Player, PlayerFor


class LiveEpisodes(Protocol):
    """What rollouts need of `dynaweb.engines.scheduler.Lockstep`."""

    @property
    def free(self) -> bool:
        """Whether episodes go on without waiting for each other."""
        ...

    def episode(self) -> AbstractAsyncContextManager[Any]:
        """Counts as live while inside."""
        ...


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode to play: its task, its seed, its id, and the group that shares a baseline with it.

    `world` seeds what the environment draws; episodes with the same one meet the same world. None: its own.
    """

    id: str
    task: Task
    seed: int
    group: str = ""
    world: int | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """How episodes are played: longest length in steps, their source, and whether an invalid action ends them."""

    max_steps: int
    source: Source = "real"
    invalid_ends: bool = False


Finish = Callable[["Environment", Trajectory], Awaitable[Trajectory]]
"""Called with the environment that an episode has just ended in; returns the trajectory, graded or not."""


async def play(
    task: Task,
    environment: Environment,
    player: Player,
    *,
    seed: int,
    max_steps: int,
    source: Source = "real",
    invalid_ends: bool = False,
    lockstep: LiveEpisodes | None = None,
    episode_id: str = "",
    group: str = "",
    world: int | None = None,
) -> Trajectory:
    """Play one task to its end. Infrastructure failures are data: `end` says so, and there is no reward.

    `invalid_ends`: a reply that cannot be parsed, or an action that the environment refuses, ends the episode.
    `world` is the seed of the environment; None derives one from `seed`.
    """
    run = _Run(task, environment, player, seed=seed, world=world, rules=Rules(max_steps, source, invalid_ends))
    async with lockstep.episode() if lockstep is not None else nullcontext():
        end = await run.to_the_end()
    return Trajectory(
        id=episode_id or f"{task.id}#{seed}",
        task=run.task,
        steps=tuple(run.steps),
        final=run.page,
        source=source,
        end=end,
        group=group or task.id,
        seed=seed,
        facts=EpisodeFacts(failure=run.failure),
    )


class _Run:
    """One episode in progress."""

    def __init__(
        self, task: Task, environment: Environment, player: Player, *, seed: int, world: int | None, rules: Rules
    ) -> None:
        self.task, self.environment, self.player = task, environment, player
        self.seed, self.rules = seed, rules
        self.world = derive(seed, "environment") if world is None else world
        self.steps: list[Step] = []
        self.history = History()
        self.page: Observation | None = None
        self.failure = ""

    async def to_the_end(self) -> EndReason:
        """Play until something ends the episode; says what (`dynaweb.types.EndReason` lists all that can)."""
        try:
            self.page = contracts.first_page(self.environment, await self.environment.reset(self.task, self.world))
            # Some environments learn a task's goal when they open it.
            self.task = getattr(self.environment, "task", None) or self.task
            while len(self.steps) < self.rules.max_steps:
                end = await self._step(self.page)
                if end is not None:
                    return end
        except (InfrastructureError, OSError, TimeoutError) as failure:
            self.failure = f"{type(failure).__name__}: {failure}"
            return "infrastructure"
        return "max-steps"

    async def _step(self, page: Observation) -> EndReason | None:
        seed = derive(self.seed, "step", len(self.steps))
        decision = await self.player.act(self.task, page, self.history, seed=seed)
        action = decision.action
        if action is None:
            self.steps.append(_record(page, decision, decision.error))
            # A player that always says the same on the same page would repeat itself until the last step.
            return "invalid" if self.rules.invalid_ends or self.player.deterministic else None
        if action.kind == "stop":
            self.steps.append(_record(page, decision))
            return "stop"
        result = contracts.step_result(self.environment, await self.environment.step(action))
        self.history.add(page, action)
        self.steps.append(_record(page, decision, result.error, result))
        self.page = result.observation
        if self.rules.invalid_ends and result.error and not result.done:
            return "invalid"
        return "terminal" if result.done else None


def _record(page: Observation, decision: Decision, error: str = "", result: StepResult | None = None) -> Step:
    info = {**decision.info, **result.info} if result is not None else decision.info
    facts = result.facts if result is not None else StepFacts()
    return Step(
        observation=page,
        action=decision.action,
        reasoning=decision.reasoning,
        reply=decision.reply,
        error=error,
        prompt=decision.prompt,
        response_ids=decision.response_ids,
        logprobs=decision.logprobs,
        info=info,
        policy_version=decision.policy_version,
        facts=facts,
    )


async def play_all(
    episodes: Sequence[Episode],
    environment: Callable[[], Environment],
    player_for: PlayerFor,
    *,
    rules: Rules,
    slots: int,
    lockstep: LiveEpisodes | None = None,
    finish: Finish | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
    room: asyncio.Semaphore | None = None,
) -> list[Trajectory]:
    """Play many episodes over at most `slots` environments; trajectories in the order of `episodes`.

    Calls that go on at the same time share their places by one `room`, first come, first served. `finish` may grade an
    episode while its environment still stands as it ended. `on_done` is told of each finished trajectory, in the order
    in which they finish. The first exception that is no failure of the infrastructure stops everything and is raised.
    """
    done: dict[int, Trajectory] = {}
    order = iter(range(len(episodes)))

    async def slot(first: int, gate: asyncio.Barrier) -> None:
        live = lockstep.episode() if lockstep is not None else nullcontext()
        async with room or nullcontext(), live, _renewable(environment) as own:
            # All slots are live before any of them asks an engine, so that the first batch holds everybody.
            if not free:
                await gate.wait()
            for index in order if free else range(first, len(episodes), width):
                done[index] = await _play_in(own, episodes[index], player_for, rules, finish)
                if on_done is not None:
                    on_done(done[index])

    width = max(1, min(slots, len(episodes)))
    gate = asyncio.Barrier(width)
    free = lockstep is not None and lockstep.free
    await together([slot(first, gate) for first in range(min(width, len(episodes)))])
    return [done[index] for index in range(len(episodes))]


async def _play_in(
    own: _Renewable, episode: Episode, player_for: PlayerFor, rules: Rules, finish: Finish | None
) -> Trajectory:
    environment = own.environment
    trajectory = await play(
        episode.task,
        environment,
        player_for(episode.task),
        seed=episode.seed,
        max_steps=rules.max_steps,
        source=rules.source,
        invalid_ends=rules.invalid_ends,
        episode_id=episode.id,
        group=episode.group,
        world=episode.world,
    )
    if finish is not None and trajectory.end != "infrastructure":
        try:
            trajectory = await finish(environment, trajectory)
        except (InfrastructureError, OSError, TimeoutError) as failure:
            facts = replace(trajectory.facts, failure=f"{type(failure).__name__}: {failure}")
            trajectory = replace(trajectory, end="infrastructure", reward=None, facts=facts)
    if trajectory.end == "infrastructure":
        await own.renew()
    return trajectory


class _Renewable:
    """An environment that can be replaced after it failed."""

    def __init__(self, make: Callable[[], Environment]) -> None:
        self.make = make
        self.environment = self._new()

    async def renew(self) -> None:
        """Close the broken environment and make a new one."""
        with suppress(InfrastructureError, OSError, TimeoutError):
            await self.environment.close()
        self.environment = self._new()

    def _new(self) -> Environment:
        return contracts.environment(getattr(self.make, "__self__", self.make), self.make())


@asynccontextmanager
async def _renewable(make: Callable[[], Environment]) -> AsyncIterator[_Renewable]:
    own = _Renewable(make)
    try:
        yield own
    finally:
        await own.environment.close()


async def together(jobs: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at once; the first exception cancels the others and is raised as it is."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def failures(trajectories: Sequence[Trajectory]) -> list[str]:
    """What went wrong in the episodes that a failure of the infrastructure ended."""
    return [t.facts.failure or "unknown" for t in trajectories if t.end == "infrastructure"]


def why_failed(trajectory: Trajectory) -> str:
    """Why an episode did not succeed, in words: the infrastructure's failure, the last action's error, the verdict."""
    verdict, last = trajectory.facts.verdict, trajectory.steps[-1].error if trajectory.steps else ""
    why = verdict.why if verdict is not None else ""
    return trajectory.facts.failure or last or why or f"it ended by {trajectory.end}"


def refuse_total_failure(trajectories: Sequence[Trajectory], what: str) -> None:
    """Raise `InfrastructureError` when not one episode could be played: nothing can be learned or said from that."""
    broken = failures(trajectories)
    if broken and len(broken) == len(trajectories):
        raise InfrastructureError(f"{what}: all {len(broken)} episodes failed; the first: {broken[0]}")
