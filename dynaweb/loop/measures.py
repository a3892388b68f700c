"""The measures of a world model: what each means, and what values it can take, which decides on its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dynaweb.report.kinds import COUNT, MEAN, PROPORTION, SCORE, TRIES, Kind, estimate
from dynaweb.report.stats import Estimate


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
"""The measures of `dynaweb.loop.fidelity.grade`."""
MEANINGS = {name: declared.meaning for name, declared in DECLARED.items()}
"""What each of them means, in words."""
ALIVE = "alive"
DRIFT = {
    ALIVE: Declared(PROPORTION, "the dream still follows the episode: every action so far was possible and gave a page")
}
"""Measures that only open-loop runs have."""
RULES = "rules"
SEEN = "seen_"
"""Begins the names of measures on sites that the model was fitted on."""
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
    found = columns(probes) | ({RULES: list(rules)} if rules else {})
    return {name: estimate(kind_of(name), values) for name, values in found.items() if values}
