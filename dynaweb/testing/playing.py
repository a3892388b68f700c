"""What the suite for environments does in them: look, do something that is allowed, play an episode, compare tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from dynaweb.errors import ConfigError, MissingError
from dynaweb.protocols import Environment
from dynaweb.types import Action, ActionKind, Judgement, Node, Observation, Step, Task, Trajectory

JUNK_ACTIONS = (
    Action("click", 10_000, target_role="button", target_name="no such element"),
    Action("type", 10_000, "text", True, target_role="textbox", target_name="no such element"),
    Action("select", 10_000, "no such option", target_role="combobox", target_name="no such element"),
    Action("tab_focus", index=99),
    Action("goto", text="file:///etc/passwd"),
    Action("goto", text="not an address \x00"),
)
"""Actions that no page allows."""
LONGEST = 50
"""Steps after which an expert's plan counts as endless."""
DRAWN = 60
"""Tasks that those for the expert are chosen from,"""
TELLING = 3
"""and how many of them."""
READ_OFF = frozenset({"string_match", "url_match"})
"""Checks of WebArena's format that nothing has to be changed for."""
TRIES = 30
"""Actions that are tried on a page before it counts as one on which nothing can be done."""
PRESSED = ("button", "checkbox", "radio", "switch", "option", "tab", "menuitem", "link")
"""Roles of elements that do something when they are clicked, those that change most first."""
WRITTEN = ("textbox", "searchbox", "spinbutton")


async def do_something(environment: Environment, page: Observation) -> Action | None:
    """Try what may be allowed on a page until something changes it; the last action that was not refused, if any."""
    done = None
    for action in islice(_possible(page), TRIES):
        result = await environment.step(action)
        if result.error:
            continue
        done = action
        if result.done or result.observation != page:
            break
    return done


async def look(environment: Environment) -> Observation:
    """The page as it is: what a refused action shows, without what it says about the refusal."""
    return replace((await environment.step(JUNK_ACTIONS[0])).observation, notice="")


async def first_page(source: Any, task: Task) -> Observation:
    """What a new environment shows of a task."""
    environment = source.environment()
    try:
        page: Observation = await environment.reset(task, 5)
        return page
    finally:
        await environment.close()


def has_expert(source: Any, task: Task) -> bool:
    """Whether an expert can play it."""
    try:
        source.expert(task)
    except MissingError:
        return False
    return True


def telling_tasks(source: Any, split: str) -> list[Task]:
    """A few tasks of different templates that an expert can play, those first that seem to change most."""
    try:
        drawn = source.tasks(split, count=DRAWN, seed=3)
    except ConfigError:  # so many there are not
        drawn = source.tasks(split, count=6, seed=3)
    playable = sorted((task for task in drawn if has_expert(source, task)), key=_telling, reverse=True)
    best: dict[str, Task] = {}
    for task in playable:
        best.setdefault(task.template or task.id, task)
    return list(best.values())[:TELLING]


def _telling(task: Task) -> tuple[bool, int]:
    kinds = set(task.evaluation.get("eval_types", ())) or {"its own"}
    return not kinds <= READ_OFF, task.best_steps or 0


async def play(
    source: Any, environment: Environment, task: Task, page: Observation, act: Callable[[Observation], Action]
) -> Judgement:
    """Play on from a page to the end."""
    steps: list[Step] = []
    for _ in range(LONGEST):
        action = act(page)
        steps.append(Step(page, action))
        result = await environment.step(action)
        page = result.observation
        if result.done or action.kind == "stop":
            break
    played = Trajectory("t", task, tuple(steps), page, "real", "stop")
    judgement: Judgement = await source.evaluate(environment, played)
    return judgement


def success(judgement: Judgement) -> bool:
    """Whether an episode counts as solved."""
    return (judgement.score or 0) >= 0.5


def idle(page: Observation) -> Action:
    """The policy that does nothing."""
    return Action("stop")


async def copies(source: Any, train: Sequence[Task], test: Sequence[Task]) -> list[Task]:
    """The test tasks that are one of `train` in all but the id: goal, address, check and first page."""
    pages: dict[str, Observation] = {}

    async def page(task: Task) -> Observation:
        # Most tasks differ in words already, so that few have to be opened.
        if task.id not in pages:
            pages[task.id] = await first_page(source, task)
        return pages[task.id]

    copied: list[Task] = []
    for task in test:
        for other in train:
            if _in_words(task) == _in_words(other) and await page(task) == await page(other):
                copied.append(task)
                break
    return copied


def described(action: Action | None) -> str:
    """An action in a message."""
    if action is None:
        return "trying everything on the page"
    return f"{action.kind} of {action.target_role} {action.target_name!r}"


def difference(expected: Observation, actual: Observation) -> str:
    """Where two pages differ first."""
    for name in ("url", "title", "tabs", "notice"):
        if getattr(expected, name) != getattr(actual, name):
            return f"{name} {getattr(actual, name)!r}, not {getattr(expected, name)!r}"
    for one, other in zip(expected.nodes, actual.nodes, strict=False):
        if one != other:
            return f"element {one.id} is {_element(other)}, not {_element(one)}"
    return f"{len(actual.nodes)} elements, not {len(expected.nodes)}"


def _in_words(task: Task) -> tuple[Any, ...]:
    return task.intent, task.start_url, dict(task.evaluation)


def _element(node: Node) -> str:
    value = "" if node.value is None else f" with value {node.value!r}"
    return f"{node.role} {node.name!r}{value}"


def _possible(page: Observation) -> Iterator[Action]:
    """The likeliest first: what is pressed, what is written into, then everything else."""
    for node in sorted(page.nodes, key=_rank):
        kind: ActionKind
        kind, text = ("type", "7") if node.role in WRITTEN else ("click", "")
        yield Action(kind, node.id, text, target_role=node.role, target_name=node.name)


def _rank(node: Node) -> int:
    order = (*PRESSED[:-1], *WRITTEN, PRESSED[-1])
    return order.index(node.role) if node.role in order else len(order)
