"""The rollouts of one update: n of each task, some of them experts, all of them judged.

The seam between dream and real is the `Place` that rollouts happen in: dreams made of recorded start pages, or the task
environment itself. Everything else is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynaweb.loop.evaluate import SUCCESS
from dynaweb.loop.experts import Experts, expert_rollout, replaced, with_tokens
from dynaweb.loop.players import ModelPolicy
from dynaweb.loop.rollout import Episode, Finish, Rules, play_all
from dynaweb.loop.verdicts import asked, judge_all, lacking, untrusted, world_model_error
from dynaweb.seeding import derive
from dynaweb.types import Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.config.sections import Rl
    from dynaweb.engines.scheduler import Lockstep
    from dynaweb.protocols import Environment, Judge


@dataclass(frozen=True, slots=True)
class Place:
    """Where rollouts happen: what makes environments, how many at once, by which rules, and what grades an end."""

    environment: Callable[[], Environment]
    slots: int
    rules: Rules
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Plays and judges the groups of an update. Depends on (seed, update) and the weights only."""

    rl: Rl
    seed: int
    policy: ModelPolicy
    judge: Judge
    place: Place
    lockstep: Lockstep
    experts: Experts
    one_world: bool = True
    """Rollouts of a group meet the same world: the same action on the same page leads to the same next page."""
    spare: bool = False
    """No reward where a dream lacked what the goal names."""

    async def of_update(
        self, update: int, tasks: Sequence[Task], on_done: Callable[[Trajectory], None] | None = None, first: int = 0
    ) -> list[Trajectory]:
        """Trajectories of the update, group by group, with rewards (None = ungraded); groups count from `first`."""
        places = list(enumerate(tasks, first))
        plan = [(place, k, task) for place, task in places for k in range(self.rl.n)]
        given = {(place, k) for place, task in places for k in self._given(update, place, task)}
        episodes = [self._episode(update, *item) for item in plan if item[:2] not in given]
        played = await play_all(
            episodes,
            self.place.environment,
            lambda task: self.policy,
            rules=self.place.rules,
            slots=self.place.slots,
            lockstep=self.lockstep,
            finish=self.place.finish,
            on_done=on_done,
        )
        judged = iter(await judge_all(self.judge, played, spare=self.spare))
        return [self._expert(update, *item) if item[:2] in given else next(judged) for item in plan]

    def _given(self, update: int, place: int, task: Task) -> frozenset[int]:
        if task.id not in self.experts:
            return frozenset()
        seed = derive(self.seed, "rl", update, "mix", task.id, place)
        return replaced(self.rl.n, self.rl.expert_share, seed=seed)

    def _episode(self, update: int, place: int, k: int, task: Task) -> Episode:
        seed = derive(self.seed, "rl", update, task.id, place, k)
        world = derive(self.seed, "world", update, task.id, place) if self.one_world else None
        return Episode(f"{update}/{place}/{k}", task, seed, group=f"{update}/{place}", world=world)

    def _expert(self, update: int, place: int, k: int, task: Task) -> Trajectory:
        group = f"{update}/{place}"
        rollout = expert_rollout(self.experts, task.id, group=group, k=k, seed=derive(self.seed, "rl", update))
        return with_tokens(rollout, self.policy.format)


def live(advantages: Sequence[float], groups: Sequence[str]) -> list[bool]:
    """For each trajectory, whether its group carries a gradient; a group whose rewards are all equal is dead."""
    alive = {group for advantage, group in zip(advantages, groups, strict=True) if advantage != 0.0}
    return [group in alive for group in groups]


def measures(trajectories: Sequence[Trajectory], advantages: Sequence[float]) -> dict[str, float]:
    """What an update's rollouts were like. Rates are shares of the played (not expert) rollouts unless named else."""
    played = [t for t in trajectories if t.source != "expert"]
    graded = [t.reward for t in played if t.reward is not None]
    stopped = [t for t in played if t.answer is not None]
    judged = [t for t in played if asked(t)]
    groups = [t.group for t in trajectories]
    dead = {g for g, alive in zip(groups, live(advantages, groups), strict=True) if not alive}
    count = max(1, len(played))
    return {
        "reward": _mean(graded),
        "graded": float(len(graded)),
        "dead_groups": len(dead) / max(1, len(set(groups))),
        "stop_rate": len(stopped) / count,
        "yes_rate": _mean([float((t.reward or 0.0) >= SUCCESS) for t in judged]),
        "invalid_rate": sum(t.end == "invalid" for t in played) / count,
        "world_model_errors": sum(bool(world_model_error(t)) for t in played) / count,
        "lacking": sum(bool(lacking(t)) for t in played) / count,
        "untrusted": sum(bool(untrusted(t)) for t in played) / count,
        "infrastructure": float(sum(t.end == "infrastructure" for t in played)),
        "expert_share": (len(trajectories) - len(played)) / max(1, len(trajectories)),
        "steps": float(sum(len(t.steps) for t in played)),
        "dreamed_steps": float(sum("dreamed" in step.info for t in played for step in t.steps)),
        "recalled_steps": float(sum("recalled" in step.info for t in played for step in t.steps)),
        "policy_tokens": float(sum(len(step.response_ids) for t in played for step in t.steps)),
        "world_model_tokens": float(sum(step.info.get("tokens", 0) for t in played for step in t.steps)),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
