"""Which tasks an update plays: templates in rotation, or more often those whose groups are mixed.

A group whose rollouts all succeed or all fail carries no gradient. `adaptive` draws templates by how mixed their last
groups were; it needs no rollouts beyond those of the updates, unlike dynamic sampling (DAPO, arXiv 2503.14476).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynaweb.rollout.tasks import Rotation, by_template, rotation
from dynaweb.runs.seeding import derive
from dynaweb.types import Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.config.sections import Rl

Outcome = tuple[str, float]
"""Template of a group, and the mean reward of its graded rollouts."""
FLOOR = 0.03
"""Weight of a template whose groups were all alike: it still comes back now and then."""
MEMORY = 0.6
"""Share of the old estimate of a template's reward that stays when a new group is seen."""


@dataclass(frozen=True)
class Curriculum:
    """The tasks of every update. Depends on the seed and on the outcomes of earlier updates only.

    With expert mixing, every second place goes to a task that has an expert: at few demonstrations, mixing would
    otherwise almost never happen, since an expert may only stand in for its own task.
    """

    rl: Rl
    tasks: Sequence[Task]
    demonstrated: Sequence[Task]
    seed: int
    _all: Rotation = field(init=False)
    _known: Rotation = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_all", Rotation(self.tasks, seed=self.seed))
        known = self.demonstrated if self.rl.expert_share > 0 else ()
        object.__setattr__(self, "_known", Rotation(known, seed=derive(self.seed, "demonstrated")))

    def of_update(self, update: int, outcomes: Sequence[Sequence[Outcome]]) -> list[Task]:
        """The tasks of an update, given the outcomes of the updates before it."""
        tasks = self._in_rotation(update * self.rl.tasks, (update + 1) * self.rl.tasks)
        if self.rl.sampling == "rotation":
            return tasks
        mixed = {task.id for task in self.demonstrated} if self.rl.expert_share > 0 else set()
        free = [i for i, task in enumerate(tasks) if task.id not in mixed]
        for i, task in zip(free, self._drawn(update, len(free), weights(outcomes)), strict=True):
            tasks[i] = task
        return tasks

    def _in_rotation(self, first: int, last: int) -> list[Task]:
        """The tasks at these places of all updates in a row, templates in rotation."""
        if self.rl.expert_share == 0 or not self.demonstrated:
            return self._all.part(first, last)
        known = iter(self._known.part((first + 1) // 2, (last + 1) // 2))
        other = iter(self._all.part(first // 2, last // 2))
        return [next(known if i % 2 == 0 else other) for i in range(first, last)]

    def others(self, update: int, turn: int, taken: Sequence[Task], count: int) -> list[Task]:
        """At most `count` tasks, each once, templates in rotation, and none of those `taken`: for a further round of an
        update whose groups are not enough. Fewer when all tasks have been played."""
        played = {task.id for task in taken}
        rest = [task for task in self.tasks if task.id not in played]
        longest = max(map(len, by_template(rest).values()), default=0)
        order = rotation(rest, longest * len(by_template(rest)), seed=derive(self.seed, "others", update, turn))
        return list({task.id: task for task in order}.values())[:count]

    def _drawn(self, update: int, count: int, known: Mapping[str, float]) -> list[Task]:
        """Templates without replacement by weight (Efraimidis and Spirakis, 2006), of each a task by turns."""
        rng = random.Random(derive(self.seed, "adaptive", update))
        pool = by_template(self.tasks)
        order = sorted(pool, key=lambda name: -(rng.random() ** (1 / known.get(name, 0.25))))
        chosen = [order[i % len(order)] for i in range(count)]
        return [rng.choice(pool[name]) for name in chosen]


def weights(outcomes: Sequence[Sequence[Outcome]]) -> dict[str, float]:
    """For each template seen, the variance p (1 - p) of its estimated reward p, and at least `FLOOR`."""
    rates: dict[str, float] = {}
    for update in outcomes:
        for template, reward in update:
            rates[template] = MEMORY * rates.get(template, 0.5) + (1 - MEMORY) * reward
    return {template: max(FLOOR, rate * (1 - rate)) for template, rate in rates.items()}


def outcomes_of(rollouts: Sequence[Trajectory]) -> list[Outcome]:
    """The outcome of each group with a graded rollout of the policy's own, in order."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in rollouts:
        if trajectory.source != "expert" and trajectory.reward is not None:
            groups.setdefault(trajectory.group, []).append(trajectory)
    return [(group[0].task.template, sum(t.reward or 0.0 for t in group) / len(group)) for group in groups.values()]
