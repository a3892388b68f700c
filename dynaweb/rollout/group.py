"""The rollouts of one update: n of each task, some of them experts, all of them judged.

The seam between dream and real is the `RolloutSource`: dreams made of recorded start pages, or the task
environment itself. Everything else is the same.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from dynaweb.judges.reward import (
    SUCCESS,
    judge_all,
    judge_one,
    lacking,
    scored_by_model,
    success_of,
    untrusted,
    world_model_error,
)
from dynaweb.protocols import TokenRow
from dynaweb.rollout.agents import ModelPolicy
from dynaweb.rollout.episode import Episode, Finish, Rules, play_all
from dynaweb.runs.seeding import derive
from dynaweb.stats import nanmean
from dynaweb.types import ORIGINS, History, Step, Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.config.sections import Rl
    from dynaweb.engines.scheduler import Lockstep
    from dynaweb.protocols import Environment, Judge, PromptFormat


Experts = Mapping[str, Sequence[Trajectory]]
"""Expert trajectories by task id."""


@dataclass(frozen=True, slots=True)
class RolloutSource:
    """Where rollouts happen: what makes environments, how many at once, by which rules, and what grades an end."""

    environment: Callable[[], Environment]
    slots: int
    rules: Rules
    finish: Finish | None = None


class Sampler(Protocol):
    """What gives each update its rollouts: judged, in groups."""

    on_policy: ClassVar[bool]
    """Whether the policy that is trained draws them, as many as are wanted; else they were recorded once."""

    async def of_update(
        self, update: int, tasks: Sequence[Task], on_done: Callable[[Trajectory], None] | None = None, first: int = 0
    ) -> list[Trajectory]:
        """Trajectories of an update, with rewards (None = ungraded); groups count from `first`."""
        ...


@dataclass(frozen=True, slots=True)
class GroupSampler:
    """Plays and judges the groups of an update. Depends on (seed, update) and the weights only."""

    rl: Rl
    seed: int
    policy: ModelPolicy
    judge: Judge
    source: RolloutSource
    lockstep: Lockstep
    experts: Experts
    one_world: bool = True
    """Rollouts of a group meet the same world: the same action on the same page leads to the same next page."""
    spare: bool = False
    """No reward where a dream lacked what the goal names."""
    expert_prompts: PromptFormat | None = None
    """How the pages of experts are shown, where the policy is shown those of its dreams otherwise."""
    room: asyncio.Semaphore = field(init=False)
    """The places of the source, for all updates whose rollouts are played at the same time."""
    on_policy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "room", asyncio.Semaphore(self.source.slots))

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        seed: int,
        policy: ModelPolicy,
        judge: Judge,
        source: RolloutSource,
        lockstep: Lockstep,
        experts: Experts,
        expert_prompts: PromptFormat | None = None,
    ) -> GroupSampler:
        """The sampler that a recipe asks for."""
        rl, dream = recipe.rl, recipe.dream
        mixed = experts if rl.expert_share > 0 else {}
        spare = dream.lacking == "ungraded"
        return cls(rl, seed, policy, judge, source, lockstep, mixed, dream.one_world, spare, expert_prompts)

    async def of_update(
        self, update: int, tasks: Sequence[Task], on_done: Callable[[Trajectory], None] | None = None, first: int = 0
    ) -> list[Trajectory]:
        """Trajectories of the update, group by group, with rewards (None = ungraded); groups count from `first`."""
        numbered = list(enumerate(tasks, first))
        plan = [(index, k, task) for index, task in numbered for k in range(self.rl.n)]
        expert = {(index, k) for index, task in numbered for k in self._expert_share(update, index, task)}
        episodes = [self._episode(update, *item) for item in plan if item[:2] not in expert]
        judged = iter(await self._judged(episodes, on_done))
        return [self._expert(update, *item) if item[:2] in expert else next(judged) for item in plan]

    async def _judged(
        self, episodes: Sequence[Episode], on_done: Callable[[Trajectory], None] | None
    ) -> list[Trajectory]:
        """Episodes played and judged: all of them at the end in lockstep, else each as it ends.

        A judge that fails meanwhile ends the playing at once.
        """
        loop = asyncio.get_running_loop()
        judging: dict[str, asyncio.Task[Trajectory]] = {}
        failed: asyncio.Future[asyncio.Task[Trajectory]] = loop.create_future()

        def ended(trajectory: Trajectory) -> None:
            if on_done is not None:
                on_done(trajectory)
            if self.lockstep.free:
                verdict = loop.create_task(judge_one(self.judge, trajectory, spare=self.spare))
                verdict.add_done_callback(judged)
                judging[trajectory.id] = verdict

        def judged(verdict: asyncio.Task[Trajectory]) -> None:
            if not verdict.cancelled() and verdict.exception() is not None and not failed.done():
                failed.set_result(verdict)

        playing = loop.create_task(
            play_all(
                episodes,
                self.source.environment,
                lambda task: self.policy,
                rules=self.source.rules,
                slots=self.source.slots,
                lockstep=self.lockstep,
                finish=self.source.finish,
                on_done=ended,
                room=self.room,
            )
        )
        try:
            await asyncio.wait((playing, failed), return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result().result()  # raises what the judge raised
            played = await playing
            if not self.lockstep.free:
                return await judge_all(self.judge, played, spare=self.spare)
            return list(await asyncio.gather(*(judging[trajectory.id] for trajectory in played)))
        finally:
            for task in (playing, *judging.values()):
                task.cancel()
            await asyncio.gather(playing, *judging.values(), return_exceptions=True)

    def _expert_share(self, update: int, index: int, task: Task) -> frozenset[int]:
        if task.id not in self.experts:
            return frozenset()
        seed = derive(self.seed, "rl", update, "mix", task.id, index)
        return replaced(self.rl.n, self.rl.expert_share, seed=seed)

    def _episode(self, update: int, index: int, k: int, task: Task) -> Episode:
        seed = derive(self.seed, "rl", update, task.id, index, k)
        world = derive(self.seed, "world", update, task.id, index) if self.one_world else None
        return Episode(f"{update}/{index}/{k}", task, seed, group=f"{update}/{index}", world=world)

    def _expert(self, update: int, index: int, k: int, task: Task) -> Trajectory:
        group = f"{update}/{index}"
        rollout = expert_rollout(self.experts, task.id, group=group, k=k, seed=derive(self.seed, "rl", update))
        return with_tokens(rollout, self.expert_prompts or self.policy.format)


def live(advantages: Sequence[float], groups: Sequence[str]) -> list[bool]:
    """For each trajectory, whether its group carries a gradient; a group whose rewards are all equal is dead."""
    alive = {group for advantage, group in zip(advantages, groups, strict=True) if advantage != 0.0}
    return [group in alive for group in groups]


def measures(trajectories: Sequence[Trajectory], advantages: Sequence[float]) -> dict[str, float]:
    """What an update's rollouts were like. Rates are shares of the played (not expert) rollouts unless named else."""
    played = [t for t in trajectories if t.source != "expert"]
    graded = [t.reward for t in played if t.reward is not None]
    stopped = [t for t in played if t.answer is not None]
    judged = [t for t in played if scored_by_model(t)]
    groups = [t.group for t in trajectories]
    dead = {g for g, alive in zip(groups, live(advantages, groups), strict=True) if not alive}
    count = max(1, len(played))
    return {
        "reward": nanmean(graded),
        "graded": float(len(graded)),
        "dead_groups": len(dead) / max(1, len(set(groups))),
        "stop_rate": len(stopped) / count,
        "yes_rate": nanmean([float((t.reward or 0.0) >= SUCCESS) for t in judged]),
        "invalid_rate": sum(t.end == "invalid" for t in played) / count,
        "world_model_errors": sum(bool(world_model_error(t)) for t in played) / count,
        "lacking": sum(bool(lacking(t)) for t in played) / count,
        "untrusted": sum(bool(untrusted(t)) for t in played) / count,
        "infrastructure": float(sum(t.end == "infrastructure" for t in played)),
        "expert_share": (len(trajectories) - len(played)) / max(1, len(trajectories)),
        "steps": float(sum(len(t.steps) for t in played)),
        "dreamed_steps": float(sum(step.facts.dreamed for t in played for step in t.steps)),
        "recalled_steps": float(sum(step.facts.recalled for t in played for step in t.steps)),
        **origin_shares(played),
        "policy_tokens": float(sum(len(step.response_ids) for t in played for step in t.steps)),
        "world_model_tokens": float(sum(step.facts.tokens for t in played for step in t.steps)),
    }


def origin_shares(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Where the elements of the pages that dreams showed come from: the share of each origin; {} without such pages."""
    counts: Counter[str] = Counter()
    for trajectory in trajectories:
        for step, page in zip(trajectory.steps, trajectory.following, strict=True):
            if step.facts.imagined:
                counts.update(step.facts.origins)
            elif step.facts.recalled and page is not None:
                counts["r"] += len(page.nodes)
    return {f"{name}_elements": counts[letter] / counts.total() for letter, name in ORIGINS.items() if counts}


# Group-safe expert mixing, and expert trajectories as tokens. A dream may be replaced only by an expert trajectory of
# the SAME task: a group's baseline compares rollouts of one task, and a trajectory of another task in it would be
# compared with nothing. At least one dream of each group stays.


def by_task(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Successful expert trajectories, sorted into their tasks."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.source == "expert" and success_of(trajectory) == 1.0:
            groups.setdefault(trajectory.task.id, []).append(trajectory)
    return groups


def replaced(n: int, share: float, *, seed: int) -> frozenset[int]:
    """Which of the n rollouts of a group give way to an expert: each with probability `share`, never all.

    Chosen before anything is played, so that no dream is made only to be thrown away.
    """
    rng = random.Random(seed)
    chosen = [k for k in range(n) if rng.random() < share]
    if len(chosen) == n:
        chosen.remove(rng.randrange(n))
    return frozenset(chosen)


def expert_rollout(experts: Experts, task_id: str, *, group: str, k: int, seed: int) -> Trajectory:
    """The expert trajectory that stands for rollout k of a group of the same task; its reward is its own verdict."""
    of_task = experts[task_id]
    chosen = of_task[derive(seed, "expert", k) % len(of_task)]
    return replace(chosen, id=f"{group}/{k}", group=group, reward=success_of(chosen))


def with_tokens(trajectory: Trajectory, prompt_format: PromptFormat) -> Trajectory:
    """A copy whose steps carry prompt and response tokens, as the policy would have seen and said them.

    Steps that have tokens already keep them, and an action that the environment refused gets none: it is nothing to
    imitate. Log-probabilities are the trainer's business.
    """
    history = History()
    steps: list[Step] = []
    for step in trajectory.steps:
        if step.action is None or step.error or step.response_ids:
            steps.append(step)
        else:
            prompt = prompt_format.policy_prompt(trajectory.task, step.observation, history)
            reply = prompt_format.policy_reply(step.observation, step.action, step.reasoning)
            steps.append(replace(step, prompt=prompt, response_ids=reply))
        if step.action is not None:
            history.add(step.observation, step.action)
    return replace(trajectory, steps=tuple(steps))


def rows_of(trajectories: Iterable[Trajectory], prompt_format: PromptFormat) -> list[TokenRow]:
    """Supervised rows of expert trajectories: one per step, the prompt masked, the reply with its stop token."""
    tokens = (with_tokens(trajectory, prompt_format) for trajectory in trajectories)
    return [
        TokenRow(prompt=step.prompt, response_ids=step.response_ids)
        for trajectory in tokens
        for step in trajectory.steps
        if step.response_ids
    ]
