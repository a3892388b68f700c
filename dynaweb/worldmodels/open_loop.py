"""Open-loop fidelity: a real episode's actions are repeated in a dream that starts on its first page.

Errors add up here as in the dreams that policies learn from: the page of step k is dreamed from the dreamed page of
step k - 1. An action means the same element on the dreamed page, by role and name and, among equals, by place. Where it
is not there, or the world model writes no page, the dream has lost the episode: all later steps count as wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynaweb.errors import EngineError
from dynaweb.runs.seeding import derive
from dynaweb.types import Action, Node, Observation, Prediction, StepResult, Task, Transition
from dynaweb.worldmodels.change import goal_of
from dynaweb.worldmodels.fidelity import ALIVE, Graded, Probe, grade

if TYPE_CHECKING:
    from dynaweb.protocols import Environment

Chain = Sequence[Transition]
"""The transitions of one episode, in order and without gaps."""
Dreams = Callable[[Chain], "Environment"]
"""Makes a dream that starts on the first page of a real episode."""


def chains(transitions: Iterable[Transition], *, longest: int) -> list[list[Transition]]:
    """Transitions cut into runs of at most `longest` steps in which each page is the next step's page."""
    result: list[list[Transition]] = []
    for transition in transitions:
        last = result[-1] if result else []
        if last and len(last) < longest and follows(last[-1], transition):
            last.append(transition)
        else:
            result.append([transition])
    return result


def follows(before: Transition, after: Transition) -> bool:
    """Whether `after` goes on in the same episode on the very page that `before` led to."""
    same = before.task_id == after.task_id and before.info.get("episode") == after.info.get("episode")
    page = replace(after.observation, notice="")
    return same and replace(before.next_observation, notice="") == page


async def drift(
    dreams: Dreams,
    episodes: Sequence[Chain],
    *,
    seed: int,
    live: Callable[[], AbstractAsyncContextManager[Any]],
) -> list[list[Graded]]:
    """The measures of every step of every chain. `live` is `Lockstep.episode`, so that dreams share batches."""

    async def one(index: int, chain: Chain) -> list[Graded]:
        async with live():
            task = Task(f"drift/{index}", goal_of(chain[0]), chain[0].observation.url)
            return await _follow(dreams(chain), task, chain, derive(seed, "drift", index))

    return await asyncio.gather(*(one(index, chain) for index, chain in enumerate(episodes) if chain))


async def _follow(environment: Environment, task: Task, chain: Chain, seed: int) -> list[Graded]:
    page: Observation | None = await environment.reset(task, seed)
    graded: list[Graded] = []
    for at, step in enumerate(chain):
        result = await _step(environment, page, step) if page is not None else None
        page = result.observation if result is not None else None
        following = chain[at + 1].action if at + 1 < len(chain) else None
        tokens = result.facts.tokens if result is not None else 0
        measures = grade(Probe(step, following), Prediction(page, tokens=tokens))
        graded.append({ALIVE: float(page is not None), **measures})
        if result is not None and result.done:
            page = None
    return graded


async def _step(environment: Environment, page: Observation, step: Transition) -> StepResult | None:
    """The dream's answer to the real action, or None where it cannot follow."""
    action = on_page(step.action, step.observation, page)
    if action is None:
        return None
    try:
        result = await environment.step(action)
    except EngineError:
        return None
    return None if result.error else result


def on_page(action: Action, real: Observation, dreamed: Observation) -> Action | None:
    """The same action on another page: its element by role and name, the same one among equals; None if it is gone."""
    if action.target is None:
        return action
    node = real.node(action.target)
    if node is None:
        return None
    index = [one.id for one in _like(node, real)].index(node.id)
    alike = _like(node, dreamed)
    return replace(action, target=alike[min(index, len(alike) - 1)].id) if alike else None


def _like(node: Node, page: Observation) -> list[Node]:
    return [one for one in page.nodes if (one.role, one.name) == (node.role, node.name)]
