"""Which tasks a stage uses: drawn by seed, short enough, templates in rotation, and with a recorded start page."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from dynaweb.errors import ConfigError, hint
from dynaweb.plugin import contracts
from dynaweb.protocols import Catalogue, TaskFinder
from dynaweb.runs.seeding import derive
from dynaweb.types import Observation, Task, Trajectory

if TYPE_CHECKING:
    from dynaweb.protocols import TaskSource

log = logging.getLogger("dynaweb")

_TRIES = 4
"""How often more tasks are asked for when too many are too long; each time twice as many."""


def draw(
    source: TaskSource, split: str, *, count: int, seed: int, max_best_steps: int, enough: int | None = None
) -> list[Task]:
    """`count` tasks of a split whose shortest solution has at most `max_best_steps` steps, in the source's order.

    Tasks without a known shortest solution are kept. A source with an end (a benchmark) gives what it has; a warning
    says so where that is less than `enough`, which is `count` unless the caller can do with fewer. Raises `ConfigError`
    when another has not enough, or when there is none.
    """
    enough = count if enough is None else enough
    short: list[Task] = []
    for attempt in range(_TRIES):
        drawn = contracts.tasks(source, source.tasks(split, count=count * 2**attempt, seed=seed))
        short = [task for task in drawn if task.best_steps is None or task.best_steps <= max_best_steps]
        if len(short) >= count:
            return short[:count]
        if short and isinstance(source, Catalogue) and len(drawn) < count:
            if len(short) < enough:
                log.warning("the split %r has only %d tasks; each is played once, not %d", split, len(short), enough)
            return short
    raise ConfigError(
        f"the split {split!r} gave only {len(short)} tasks of at most {max_best_steps} steps, {count} are needed; "
        "raise data.max_best_steps or lower the number of tasks"
    )


def default_split(source: object) -> str:
    """The split that is meant where none is named: `train`, or what a source says in `default_split`."""
    return str(getattr(source, "default_split", "train"))


def known(source: object, task_id: str) -> Task | None:
    """The task of an id, whatever draw it is from; None where the source cannot tell."""
    return source.task(task_id) if isinstance(source, TaskFinder) else None


def named(wanted: str, drawn: Sequence[Task]) -> Task:
    """The task of an id, or that at a number, among those drawn. Raises `ConfigError` with ids that look like it."""
    if wanted.isdecimal() and int(wanted) < len(drawn):
        return drawn[int(wanted)]
    ids = {task.id: task for task in drawn}
    if wanted not in ids:
        raise ConfigError(f"no task is called {wanted!r}, and {len(ids)} were drawn; {hint(wanted, ids)}")
    return ids[wanted]


def by_template(tasks: Iterable[Task]) -> dict[str, list[Task]]:
    """The tasks of each template, in order."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.template, []).append(task)
    return groups


def one_per_template(tasks: Iterable[Task], count: int) -> list[Task]:
    """The first task of each template, then the second of each and so on, until there are `count` (0 = one of each)."""
    queues = by_template(tasks)
    if count == 0:
        return [queue[0] for queue in queues.values()]
    rounds = max((len(queue) for queue in queues.values()), default=0)
    turns = (queue[turn] for turn in range(rounds) for queue in queues.values() if turn < len(queue))
    return list(islice(turns, count))


def rotation(tasks: Sequence[Task], count: int, *, seed: int) -> list[Task]:
    """`count` tasks: each round takes one of every template, templates and tasks in an order drawn from the seed.

    A template starts over when all its tasks are used, so a longer rotation begins like a shorter one.
    """
    return Rotation(tasks, seed=seed).part(0, count)


class Rotation:
    """See `rotation`. Without an end, and no longer in memory than its tasks are: any part can be asked for."""

    def __init__(self, tasks: Iterable[Task], *, seed: int) -> None:
        self._seed = seed
        self._queues = by_template(tasks)
        for template, queue in self._queues.items():
            random.Random(derive(seed, "order", template)).shuffle(queue)

    def part(self, first: int, last: int) -> list[Task]:
        """The tasks at the places from `first` up to `last`, which is left out; none where there is no task at all."""
        width = len(self._queues)
        if not width or last <= first:
            return []
        turns = range(first // width, -(-last // width))
        tasks = [task for turn in turns for task in self._round(turn)]
        return tasks[first - turns.start * width : last - turns.start * width]

    def _round(self, turn: int) -> list[Task]:
        order = sorted(self._queues)
        random.Random(derive(self._seed, "round", turn)).shuffle(order)
        return [self._queues[template][turn % len(self._queues[template])] for template in order]


class StartPages:
    """Recorded real start pages. Tasks that start at the same address of the same generated site share one.

    An episode without a step ends where it starts.
    """

    def __init__(self, episodes: Iterable[Trajectory] = ()) -> None:
        self._pages: dict[str, Observation] = {}
        self.add(episodes)

    def add(self, episodes: Iterable[Trajectory]) -> None:
        """Take the first pages of more episodes; a page that is known stays as it is."""
        for episode in episodes:
            page = episode.steps[0].observation if episode.steps else episode.final
            if page is not None:
                self._pages.setdefault(start_key(episode.task), page)

    def __call__(self, task: Task) -> Observation | None:
        """The start page of a task, or None when none was recorded."""
        return self._pages.get(start_key(task))

    def __len__(self) -> int:
        return len(self._pages)


def start_key(task: Task) -> str:
    """What decides a task's start page: address and site seed where the environment names one, else the task itself."""
    site = task.meta.get("site_seed")
    if site is None:
        return task.id
    return f"{task.start_url} {task.split} {site} {task.meta.get('locale', '')}"
