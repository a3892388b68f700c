"""Fidelity of a world model: its pages against real transitions that it was not fitted on, and the measures of that.

Facts of pages never seen (names, prices) cannot be predicted, so structure is measured apart from them: the kind of
page, its heading, its elements by role, and whether the expert's next action would still be possible.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dynaweb.errors import EngineError
from dynaweb.plugin import contracts
from dynaweb.runs.seeding import derive
from dynaweb.stats import COUNT, MEAN, PROPORTION, SCORE, TRIES, Estimate, Kind, estimate
from dynaweb.types import Action, Observation, Prediction, Step, StepFacts, Task, Trajectory, Transition
from dynaweb.worldmodels.change import DONE, GOAL, HISTORY, goal_of, history_of
from dynaweb.worldmodels.dynamics import ALL_RULES, PageRules, refusal
from dynaweb.worldmodels.memory import without_episode

if TYPE_CHECKING:
    from dynaweb.protocols import WorldModel


Graded = dict[str, float | None]
"""One probe's measures (`dynaweb.worldmodels.fidelity.DECLARED`); None where one does not apply."""
ALIVE = "alive"
RULES = "rules"
SEEN = "seen_"
"""Begins the names of measures on sites that the model was fitted on."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One question to the world model: a real transition, and what the expert did next, if an expert made it."""

    transition: Transition
    next_action: Action | None = None


async def predictions(world_model: WorldModel, probes: Sequence[Probe], *, seed: int) -> list[Prediction]:
    """What the world model makes of each probe, all at once. A page that does not fit the model is an error of it."""

    async def one(index: int, transition: Transition) -> Prediction:
        try:
            answer = await without_episode(world_model, transition).predict(
                transition.observation,
                transition.action,
                seed=derive(seed, "probe", index),
                history=history_of(transition),
                goal=goal_of(transition),
            )
        except EngineError as error:
            return Prediction(None, error=str(error))
        return contracts.prediction(world_model, answer)

    return await asyncio.gather(*(one(index, probe.transition) for index, probe in enumerate(probes)))


async def measure(world_model: WorldModel, probes: Sequence[Probe], *, seed: int) -> list[Graded]:
    """Predict each probe once and grade it: one dict of `DECLARED` keys each, None where a measure does not apply."""
    answers = await predictions(world_model, probes, seed=seed)
    return [grade(probe, prediction) for probe, prediction in zip(probes, answers, strict=True)]


def grade(probe: Probe, prediction: Prediction) -> Graded:
    """The measures of one prediction. An unreadable answer counts as wrong in all of them."""
    before, real = probe.transition.observation, probe.transition.next_observation
    page = prediction.next_observation
    dreamed = page if page is not None else Observation(url="", nodes=())
    heading = _heading(real, before)
    return {
        "exact": float(dreamed.nodes == real.nodes and dreamed.url == real.url),
        **overlap("element", _elements(dreamed), _elements(real)),
        **_changes(before, page, real),
        "role_f1": f1([node.role for node in dreamed.nodes], [node.role for node in real.nodes]),
        "url": float(dreamed.url == real.url),
        "page_kind": float(page_kind(dreamed.url) == page_kind(real.url)),
        "heading": None if heading is None else float(_heading(dreamed, before) == heading),
        "next_action": possible(dreamed, probe.next_action),
        "invalid": float(page is None),
        "attempts": float(prediction.attempts),
        "tokens": float(prediction.tokens),
    }


def overlap(name: str, predicted: Iterable[Hashable], real: Iterable[Hashable]) -> dict[str, float]:
    """`{name}_precision`, `_recall` and `_f1` of two multisets; all 1.0 when both are empty."""
    guessed, wanted = Counter(predicted), Counter(real)
    hits = (guessed & wanted).total()
    precision = hits / guessed.total() if guessed else float(not wanted)
    recall = hits / wanted.total() if wanted else float(not guessed)
    both = precision + recall
    return {
        f"{name}_precision": precision,
        f"{name}_recall": recall,
        f"{name}_f1": 2 * precision * recall / both if both else 0.0,
    }


def f1(predicted: Iterable[Hashable], real: Iterable[Hashable]) -> float:
    """Harmonic mean of precision and recall of two multisets; 1.0 when both are empty."""
    return overlap("", predicted, real)["_f1"]


def _changes(before: Observation, page: Observation | None, real: Observation) -> dict[str, float]:
    """Overlap of what differs from the page before. Nothing predicted is no change predicted, not the right one."""
    if page is None:
        return dict.fromkeys(("changed_precision", "changed_recall", "changed_f1"), 0.0)
    return overlap("changed", _signed(before, page), _signed(before, real))


def _signed(before: Observation, after: Observation) -> list[Hashable]:
    """Elements that came and elements that went, told apart."""
    old, new = Counter(_elements(before)), Counter(_elements(after))
    came = [("+", key) for key in (new - old).elements()]
    return [*came, *(("-", key) for key in (old - new).elements())]


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
    """All real steps that were done: page, action and next page. Refused and unparseable actions are left out.

    `info` holds the episode, its step and site, the actions before, the goal, and whether the environment ended the
    episode there.
    """
    return [transition for episode in episodes for transition in _transitions(episode)]


def _transitions(episode: Trajectory) -> Iterator[Transition]:
    past: list[Action] = []
    for at, (step, after) in enumerate(_steps(episode)):
        if step.action is None or step.action.kind == "stop" or step.error:
            continue
        info: dict[str, Any] = {"episode": episode.id, "step": at, "site": episode.task.site_key}
        info |= {HISTORY: tuple(past), GOAL: episode.task.intent}
        if episode.end == "terminal" and at == len(episode.steps) - 1:
            info[DONE] = True
        yield Transition(step.observation, step.action, after, episode.task.id, episode.source, info)
        past.append(step.action)


def probes_of(experts: Iterable[Trajectory], rules: PageRules = ALL_RULES) -> list[Probe]:
    """What the world model would be asked in expert episodes, with the expert's next action."""
    probes = []
    for episode in experts:
        following = [step.action for step in episode.steps][1:]
        for transition in _transitions(episode):
            at: int = transition.info["step"]
            if at < len(following) and rules.needs_prediction(transition.observation, transition.action):
                probes.append(Probe(transition, following[at]))
    return probes


def rules_hold(transitions: Iterable[Transition], rules: PageRules = ALL_RULES) -> list[float]:
    """For each transition that code decides inside a page: 1.0 when the real page came out as the rules say."""
    outcomes = []
    for transition in transitions:
        before, action = transition.observation, transition.action
        decided = None if refusal(before, action) else rules.in_page(before, action)
        if decided is not None:
            outcomes.append(float(decided.nodes == transition.next_observation.nodes))
    return outcomes


def _steps(episode: Trajectory) -> list[tuple[Step, Observation]]:
    pairs = zip(episode.steps, episode.following, strict=True)
    return [(step, page) for step, page in pairs if page is not None]


def _elements(page: Observation) -> list[Hashable]:
    return [(node.role, node.name, node.value, node.props) for node in page.nodes]


def _heading(page: Observation, before: Observation) -> str | None:
    """What names the page: the first heading that the page before did not have, else its first one."""
    known = {node.name for node in before.nodes if node.role == "heading"}
    names = [node.name for node in page.nodes if node.role == "heading"]
    return next((name for name in names if name not in known), names[0] if names else None)


# The measures of a world model: what each means, and what values it can take, which decides on its interval.


class Declared(NamedTuple):
    """A measure: what values one observation can have, and what it means in words."""

    kind: Kind
    meaning: str


DECLARED = {
    "exact": Declared(PROPORTION, "the predicted page equals the real one in every element"),
    "element_precision": Declared(SCORE, "share of the predicted elements that are real"),
    "element_recall": Declared(SCORE, "share of the real elements that were predicted"),
    "element_f1": Declared(SCORE, "harmonic mean of element precision and element recall"),
    "changed_precision": Declared(SCORE, "share of the predicted changes (elements that came or went) that are real"),
    "changed_recall": Declared(SCORE, "share of the real changes that were predicted"),
    "changed_f1": Declared(SCORE, "harmonic mean of changed precision and changed recall"),
    "role_f1": Declared(SCORE, "as element F1, comparing only what kinds of elements there are"),
    "url": Declared(PROPORTION, "the address is right"),
    "page_kind": Declared(PROPORTION, "the address is of the right kind (its first part)"),
    "heading": Declared(PROPORTION, "the heading that names the page is right"),
    "next_action": Declared(PROPORTION, "the element that the expert used next is on the predicted page"),
    "invalid": Declared(PROPORTION, "the model's answer could not be read as a page"),
    "attempts": Declared(TRIES, "answers that it took to get one that could be read"),
    "tokens": Declared(COUNT, "tokens that the model wrote for one step"),
}
"""The measures of `dynaweb.worldmodels.fidelity.grade`."""
MEANINGS = {name: declared.meaning for name, declared in DECLARED.items()}
"""What each of them means, in words."""
DRIFT = {
    ALIVE: Declared(PROPORTION, "the dream still follows the episode: every action so far was possible and gave a page")
}
"""Measures that only open-loop runs have."""
MEASURES = {name: declared.meaning for name, declared in {**DRIFT, **DECLARED}.items()}
"""What the measures of open-loop runs mean, in words."""
_KINDS = {name: declared.kind for name, declared in {**DRIFT, **DECLARED}.items()} | {RULES: PROPORTION}


def kind_of(name: str) -> Kind:
    """The kind of a measure; of one that is not declared, as another version may have written, any number."""
    return _KINDS.get(name.removeprefix(SEEN), MEAN)


def columns(probes: Sequence[Mapping[str, float | None]]) -> dict[str, list[float]]:
    """The values of each measure over the probes that it applies to."""
    names = list(dict.fromkeys(name for probe in probes for name in probe))
    return {name: [value for probe in probes if (value := probe.get(name)) is not None] for name in names}


def estimates(probes: Sequence[Mapping[str, float | None]], rules: Sequence[float] = ()) -> dict[str, Estimate]:
    """Each measure with its 95 % interval and n, where it applies to anything.

    `rules` holds the shares that `fidelity.rules_hold` gives.
    """
    measured = columns(probes) | ({RULES: list(rules)} if rules else {})
    return {name: estimate(kind_of(name), values) for name, values in measured.items() if values}


# Predictions of a world model beside real pages, kept as one-step episodes so that the report can show them.


def probe_episodes(probes: Sequence[Probe], answers: Sequence[Prediction]) -> list[Trajectory]:
    """One dreamed step for each question; its final page is the prediction, None where there was none."""
    return [_episode(index, probe, answer) for index, (probe, answer) in enumerate(zip(probes, answers, strict=True))]


def _episode(index: int, probe: Probe, answer: Prediction) -> Trajectory:
    transition = probe.transition
    goal = goal_of(transition) or f"what follows on {transition.observation.url}"
    task = Task(transition.task_id or f"probe {index}", goal, transition.observation.url)
    facts = StepFacts(dreamed=True)
    step = Step(transition.observation, transition.action, answer.reasoning, answer.text, answer.error, facts=facts)
    return Trajectory(f"probe/{index}", task, (step,), answer.next_observation, "dream", "max-steps")
