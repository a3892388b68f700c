"""Group-safe expert mixing, and expert trajectories as tokens.

A dream may be replaced only by an expert trajectory of the SAME task: a group's baseline compares rollouts of one task,
and a trajectory of another task in it would be compared with nothing. At least one dream of each group stays.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dynaweb.loop.verdicts import success_of
from dynaweb.protocols import TokenRow
from dynaweb.seeding import derive
from dynaweb.types import Action, Step, Trajectory

if TYPE_CHECKING:
    from dynaweb.policy.formats import PromptFormat

Experts = Mapping[str, Sequence[Trajectory]]
"""Expert trajectories by task id."""


def by_task(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    """Successful expert trajectories, sorted into their tasks."""
    found: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.source == "expert" and success_of(trajectory) == 1.0:
            found.setdefault(trajectory.task.id, []).append(trajectory)
    return found


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

    Steps that have tokens already keep them; log-probabilities are the trainer's business.
    """
    history: list[Action] = []
    steps: list[Step] = []
    for step in trajectory.steps:
        if step.action is None or step.response_ids:
            steps.append(step)
        else:
            prompt = prompt_format.policy_prompt(trajectory.task, step.observation, history)
            reply = prompt_format.policy_reply(step.observation, step.action, step.reasoning)
            steps.append(replace(step, prompt_ids=prompt, response_ids=reply))
        if step.action is not None:
            history.append(step.action)
    return replace(trajectory, steps=tuple(steps))


def rows_of(trajectories: Iterable[Trajectory], prompt_format: PromptFormat) -> list[TokenRow]:
    """Supervised rows of expert trajectories: one per step, the prompt masked, the reply with its stop token."""
    tokens = (with_tokens(trajectory, prompt_format) for trajectory in trajectories)
    return [
        TokenRow(prompt_ids=step.prompt_ids, response_ids=step.response_ids)
        for trajectory in tokens
        for step in trajectory.steps
        if step.response_ids
    ]
