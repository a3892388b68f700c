"""How true a world model's pages are, on real transitions that it was not fitted on.

Facts of pages never seen (names, prices) cannot be predicted, so structure is measured apart from them: the kind of
page, its heading, its elements by role, and whether the expert's next action would still be possible.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynaweb.loop.rules import in_page, needs_prediction, refusal
from dynaweb.seeding import derive
from dynaweb.types import Action, Observation, Prediction, Step, Trajectory, Transition

if TYPE_CHECKING:
    from dynaweb.protocols import WorldModel


@dataclass(frozen=True, slots=True)
class Probe:
    """One question to the world model: a real transition, and what the expert did next, if an expert made it."""

    transition: Transition
    next_action: Action | None = None


MEANINGS = {
    "exact": "the predicted page equals the real one in every element",
    "element_f1": "harmonic mean of the shares of real elements predicted and of predicted elements that are real",
    "role_f1": "the same, comparing only what kinds of elements there are",
    "url": "the address is right",
    "page_kind": "the address is of the right kind (its first part)",
    "heading": "the first heading is right",
    "next_action": "the element that the expert used next is on the predicted page",
    "invalid": "the model's answer could not be read as a page",
    "tokens": "tokens that the model wrote for one step",
}
"""What each measure of `grade` means, in words."""


async def measure(world_model: WorldModel, probes: Sequence[Probe], *, seed: int) -> list[dict[str, float | None]]:
    """Predict each probe once and grade it: one dict of `MEANINGS` keys each, None where a measure does not apply."""
    predictions = await asyncio.gather(
        *(
            world_model.predict(probe.transition.observation, probe.transition.action, seed=derive(seed, "probe", i))
            for i, probe in enumerate(probes)
        )
    )
    return [grade(probe, prediction) for probe, prediction in zip(probes, predictions, strict=True)]


def grade(probe: Probe, prediction: Prediction) -> dict[str, float | None]:
    """The measures of one prediction. An unreadable answer counts as wrong in all of them."""
    real, page = probe.transition.next_observation, prediction.next_observation
    nothing = Observation(url="", nodes=())
    dreamed = page if page is not None else nothing
    heading = _heading(real)
    return {
        "exact": float(dreamed.nodes == real.nodes and dreamed.url == real.url),
        "element_f1": f1(_elements(dreamed), _elements(real)),
        "role_f1": f1([node.role for node in dreamed.nodes], [node.role for node in real.nodes]),
        "url": float(dreamed.url == real.url),
        "page_kind": float(page_kind(dreamed.url) == page_kind(real.url)),
        "heading": None if heading is None else float(_heading(dreamed) == heading),
        "next_action": possible(dreamed, probe.next_action),
        "invalid": float(page is None),
        "tokens": float(prediction.tokens),
    }


def f1(predicted: Iterable[Hashable], real: Iterable[Hashable]) -> float:
    """Harmonic mean of precision and recall of two multisets; 1.0 when both are empty."""
    found, wanted = Counter(predicted), Counter(real)
    total = found.total() + wanted.total()
    return 2 * (found & wanted).total() / total if total else 1.0


def page_kind(url: str) -> str:
    """Host and first part of the path: `http://shop.localhost/product/3?x=1` -> `shop.localhost/product`."""
    address = url.partition("://")[2].partition("?")[0].partition("#")[0]
    return "/".join(address.split("/")[:2])


def possible(page: Observation, action: Action | None) -> float | None:
    """1.0 when the element that an action means, by role and name, is on the page; None for actions without one."""
    if action is None or action.target is None:
        return None
    return float(any((node.role, node.name) == (action.target_role, action.target_name) for node in page.nodes))


def transitions_of(episodes: Iterable[Trajectory]) -> list[Transition]:
    """All real steps that were done: page, action and next page. Refused and unparseable actions are left out."""
    return [
        Transition(step.observation, step.action, after, episode.task.id, episode.source, {"episode": episode.id})
        for episode in episodes
        for step, after in _steps(episode)
        if step.action is not None and step.action.kind != "stop" and not step.error
    ]


def probes_of(experts: Iterable[Trajectory]) -> list[Probe]:
    """What the world model would be asked in expert episodes, with the expert's next action."""
    probes = []
    for episode in experts:
        actions = [step.action for step in episode.steps][1:]
        for (step, after), following in zip(_steps(episode), actions, strict=False):
            action = step.action
            if action is not None and not step.error and needs_prediction(step.observation, action):
                probes.append(Probe(Transition(step.observation, action, after, episode.task.id, "expert"), following))
    return probes


def rules_hold(transitions: Iterable[Transition]) -> list[float]:
    """For each transition that code decides inside a page: 1.0 when the real page came out as the rules say."""
    held = []
    for transition in transitions:
        before, action = transition.observation, transition.action
        decided = None if refusal(before, action) else in_page(before, action)
        if decided is not None:
            held.append(float(decided.nodes == transition.next_observation.nodes))
    return held


def _steps(episode: Trajectory) -> list[tuple[Step, Observation]]:
    pages = [step.observation for step in episode.steps[1:]]
    last = [episode.final] if episode.final is not None else []
    return list(zip(episode.steps, [*pages, *last], strict=False))


def _elements(page: Observation) -> list[Hashable]:
    return [(node.role, node.name, node.value, node.props) for node in page.nodes]


def _heading(page: Observation) -> str | None:
    return next((node.name for node in page.nodes if node.role == "heading"), None)
