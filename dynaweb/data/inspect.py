"""What is in a store, and what two stores of transitions share.

Both read stores as streams. The contamination report holds the second store's keys in memory (8 bytes each and the
set's own cost), so the smaller one, usually that of the evaluation, goes second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

from dynaweb.data.demonstrations import SUCCESS, score_of, unusable
from dynaweb.data.images import ImageStore, pages_of
from dynaweb.types import Image, Observation, Trajectory, Transition
from dynaweb.web.actions.grammar import format_action
from dynaweb.web.delta import diff, to_text
from dynaweb.web.page.text import render
from dynaweb.worldmodels.change import REASONING
from dynaweb.worldmodels.dynamics import needs_prediction

LEVELS = {
    "site": "an evaluation site that training saw: the generated site where the data names one, else the host",
    "task": "an evaluation task that training saw, by id",
    "page": "an evaluation page that training saw, element for element",
    "question": "an evaluation question (page and action) that training saw",
    "transition": "an evaluation transition that training saw: the answer is known",
}
"""What is compared, from loose to strict."""


@dataclass(slots=True)
class Pictured:
    """Pictures that the pages of a store refer to; `store` says which of them are there."""

    pages: int = 0
    images: set[Image] = field(default_factory=set)
    marked: int = 0
    store: ImageStore | None = None

    def add(self, record: Transition | Trajectory) -> None:
        """Count the pages of one record."""
        shots = [page.screenshot for page in pages_of(record) if page.screenshot is not None]
        self.pages += len(shots)
        self.marked += sum(shot.marks for shot in shots)
        self.images.update(shot.image for shot in shots)

    def data(self) -> dict[str, Any]:
        """Plain data; nothing of a store without pictures."""
        if not self.pages:
            return {}
        sizes = Counter(f"{image.width} x {image.height}" for image in self.images)
        missing = {"pictures that are missing": sum(one not in self.store for one in self.images)} if self.store else {}
        return {
            "pages with a picture": self.pages,
            "with marks": self.marked,
            "distinct pictures": len(self.images),
            **missing,
            "sizes of pictures": dict(sizes.most_common(20)),
        }


@dataclass(slots=True)
class Summary:
    """Counts and means over a store. `asked` are those that only a world model can predict."""

    transitions: int = 0
    asked: int = 0
    labelled: int = 0
    unchanged: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    sites: Counter[str] = field(default_factory=Counter)
    tasks: set[str] = field(default_factory=set)
    pages: set[bytes] = field(default_factory=set)
    elements: int = 0
    most_elements: int = 0
    script_characters: int = 0
    page_characters: int = 0
    pictures: Pictured = field(default_factory=Pictured)

    def add(self, transition: Transition) -> None:
        """Count one transition."""
        before, after = transition.observation, transition.next_observation
        delta = diff(before, after)
        self.transitions += 1
        self.asked += needs_prediction(before, transition.action)
        self.labelled += REASONING in transition.info
        self.unchanged += delta.same
        self.actions[transition.action.kind] += 1
        self.sources[transition.source or "unknown"] += 1
        self.sites[site_of(transition)] += 1
        self.tasks.add(transition.task_id)
        self.pages.update((page_key(before), page_key(after)))
        self.elements += len(after.nodes)
        self.most_elements = max(self.most_elements, len(after.nodes))
        self.script_characters += len(to_text(delta))
        self.page_characters += len(render(after))
        self.pictures.add(transition)

    def data(self) -> dict[str, Any]:
        """Plain data; means are per transition."""
        count = max(1, self.transitions)
        return {
            "transitions": self.transitions,
            "for a world model": self.asked,
            "labelled in words": self.labelled,
            "without any change": self.unchanged,
            "tasks": len(self.tasks),
            "distinct pages": len(self.pages),
            "elements of a page": round(self.elements / count, 2),
            "most elements of a page": self.most_elements,
            "characters of a delta": round(self.script_characters / count, 1),
            "characters of a page": round(self.page_characters / count, 1),
            "actions": dict(self.actions.most_common()),
            "sources": dict(self.sources.most_common()),
            "sites": dict(self.sites.most_common(20)),
            **self.pictures.data(),
        }


def summarise(transitions: Iterable[Transition]) -> Summary:
    """Read a store once."""
    summary = Summary()
    for transition in transitions:
        summary.add(transition)
    return summary


@dataclass(slots=True)
class EpisodeSummary:
    """Counts and means over a store of whole episodes."""

    trajectories: int = 0
    steps: int = 0
    success: int = 0
    failed: int = 0
    usable: int = 0
    reasoned: int = 0
    refused: int = 0
    tokens: int = 0
    unusable: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)
    sites: Counter[str] = field(default_factory=Counter)
    tasks: set[str] = field(default_factory=set)
    pages: set[bytes] = field(default_factory=set)
    pictures: Pictured = field(default_factory=Pictured)

    def add(self, trajectory: Trajectory) -> None:
        """Count one episode."""
        score, reason = score_of(trajectory), unusable(trajectory)
        self.trajectories += 1
        self.steps += len(trajectory.steps)
        self.success += score is not None and score >= SUCCESS
        self.failed += score is not None and score < SUCCESS
        self.usable += not reason
        if reason:
            self.unusable[reason] += 1
        self.ends[trajectory.end] += 1
        self.sources[trajectory.source] += 1
        self.sites[trajectory.task.site] += 1
        self.tasks.add(trajectory.task.id)
        for step in trajectory.steps:
            self.reasoned += bool(step.reasoning)
            self.refused += bool(step.error)
            self.tokens += len(step.response_ids)
            self.actions[step.action.kind if step.action is not None else "none"] += 1
            self.pages.add(page_key(step.observation))
        self.pictures.add(trajectory)

    def data(self) -> dict[str, Any]:
        """Plain data; means are per episode."""
        return {
            "trajectories": self.trajectories,
            "steps": self.steps,
            "steps of an episode": round(self.steps / max(1, self.trajectories), 2),
            "successes": self.success,
            "failures": self.failed,
            "judged by nobody": self.trajectories - self.success - self.failed,
            "usable as demonstrations": self.usable,
            "not usable": dict(self.unusable.most_common()),
            "tasks": len(self.tasks),
            "distinct pages": len(self.pages),
            "steps with reasoning": self.reasoned,
            "steps with an error": self.refused,
            "tokens of the policy": self.tokens,
            "actions": dict(self.actions.most_common()),
            "ends": dict(self.ends.most_common()),
            "sources": dict(self.sources.most_common()),
            "sites": dict(self.sites.most_common(20)),
            **self.pictures.data(),
        }


def summarise_episodes(trajectories: Iterable[Trajectory]) -> EpisodeSummary:
    """Read a store of whole episodes once."""
    summary = EpisodeSummary()
    for trajectory in trajectories:
        summary.add(trajectory)
    return summary


def described(record: Transition | Trajectory, *, pages: bool = False) -> str:
    """A record in lines for a person, with `pages` as their text too."""
    if isinstance(record, Transition):
        before, after = record.observation, record.next_observation
        lines = [f"task       {record.task_id or '-'} ({record.source or 'unknown'})", *_seen(before, pages)]
        lines += [f"action     {format_action(record.action)}", *_seen(after, pages), to_text(diff(before, after))]
        return "\n".join(lines)
    score = score_of(record)
    lines = [
        f"task       {record.task.id}: {record.task.intent}",
        f"source     {record.source}, ended by {record.end}, score {'unknown' if score is None else f'{score:g}'}",
        f"use        {unusable(record) or 'usable as a demonstration'}",
    ]
    for number, step in enumerate(record.steps, 1):
        lines += ["", f"step {number}", *_seen(step.observation, pages)]
        lines += [f"reasoning  {line}" for line in step.reasoning.split("\n") if line]
        lines.append(f"action     {format_action(step.action) if step.action is not None else '-'}")
        lines += [f"error      {step.error}"] if step.error else []
    if record.final is not None:
        lines += ["", "final page", *_seen(record.final, pages)]
    return "\n".join(lines)


def _seen(page: Observation, whole: bool) -> list[str]:
    head = f"page       {page.url} ({len(page.nodes)} elements)"
    return [head, render(page, "compact")] if whole else [head]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Of `total` distinct keys of the evaluation, `shared` were seen in training; `examples` are a few of them.

    `affected` counts evaluation transitions with such a key.
    """

    level: str
    shared: int
    total: int
    affected: int
    examples: tuple[str, ...] = ()


def contamination(train: Iterable[Transition], evaluation: Iterable[Transition]) -> tuple[list[Overlap], int]:
    """What training data give away of an evaluation, per level of `LEVELS`, and the number of its transitions."""
    counts: dict[str, Counter[tuple[bytes, ...]]] = {level: Counter() for level in LEVELS}
    names: dict[bytes, str] = {}
    total = 0
    for transition in evaluation:
        total += 1
        for level, keys in _keys(transition).items():
            counts[level][tuple(keys)] += 1
            names.update((key, name) for key, name in keys.items() if name)
    known = {level: {key for keys in groups for key in keys} for level, groups in counts.items()}
    shared: dict[str, set[bytes]] = {level: set() for level in LEVELS}
    for transition in train:
        for level, keys in _keys(transition).items():
            shared[level] |= known[level] & keys.keys()
    return [_overlap(level, counts[level], known[level], shared[level], names) for level in LEVELS], total


def _overlap(
    level: str,
    counts: Counter[tuple[bytes, ...]],
    known: set[bytes],
    shared: set[bytes],
    names: dict[bytes, str],
) -> Overlap:
    affected = sum(count for keys, count in counts.items() if not shared.isdisjoint(keys))
    examples = sorted({names[key] for key in shared if key in names})[:3]
    return Overlap(level, len(shared), len(known), affected, tuple(examples))


def _keys(transition: Transition) -> dict[str, dict[bytes, str]]:
    """What is compared at each level: hashes, each with the name that examples show ('' = none)."""
    before, action, after = transition.observation, transition.action, transition.next_observation
    site, page, following = site_of(transition), page_key(before), page_key(after)
    question = _hash((page, action))
    task = transition.task_id
    return {
        "site": {_hash(site): site},
        "task": {_hash(task): task} if task else {},
        "page": {page: before.url, following: after.url},
        "question": {question: ""},
        "transition": {_hash((question, following)): ""},
    }


def site_of(transition: Transition) -> str:
    """The site: what `info["site"]` says, else the host of the address, else its scheme and path (`mind2web:...`)."""
    named = transition.info.get("site")
    return str(named) if named else urlsplit(transition.observation.url).hostname or transition.observation.url


def page_key(page: Observation) -> bytes:
    """A hash of address and elements; notices do not count, since an earlier action said them."""
    return _hash((page.url, page.nodes))


def _hash(value: Hashable) -> bytes:
    return blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=8).digest()
