"""Trajectories as the data of the report's viewer: a light index, and blocks that the page parses only when opened.

Pages are kept once a block. The change from one page to the next is matched by the delta algebra, so that the viewer
colours what was kept, changed, added and removed without computing anything.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from dynaweb.data.images import ImageStore
from dynaweb.errors import ImageError
from dynaweb.judges.reward import score_of
from dynaweb.report.data import EpisodeFile, EpisodeRow, ReportData, Sample
from dynaweb.report.outcome import failure_kind, invalid_kind, outcome, refused
from dynaweb.report.tokens import TokenTexts
from dynaweb.runs.cache import IMAGES
from dynaweb.types import Image, Observation, Screenshot, Step, Trajectory
from dynaweb.web.actions.grammar import format_action
from dynaweb.web.delta.diff import match
from dynaweb.web.page.text import format_node, format_url

BLOCK = 100
"""Trajectories of one block."""

Plain = dict[str, Any]


def index(files: Sequence[EpisodeFile], labels: Mapping[str, str] | None = None) -> Plain:
    """What lists and filters need to know of every episode: `texts`, each once, and in `rows` their numbers.

    A row holds intent, arm, source, outcome, task id and failure kind as numbers of texts, then steps and update.
    `files` has stem and number of episodes of each file, in the order of the rows. `labels` says how arms are called.
    """
    texts: dict[str, int] = {}
    rows = []
    for file in files:
        for row in file.rows:
            arm = (labels or {}).get(row.arm, row.arm)
            words = (row.intent, arm, row.source, row.outcome, row.task, row.failure)
            rows.append([*(texts.setdefault(word, len(texts)) for word in words), row.steps, row.update])
    return {"texts": list(texts), "rows": rows, "files": [[file.stem, len(file.rows)] for file in files]}


def evaluations(data: ReportData) -> Plain:
    """The episodes that each arm was evaluated on, to pair them with those of another: task, intent, outcome, steps,
    failure kind, in the order of the arm's file `stem`."""
    labels = {arm.name: arm.label for arm in data.arms}
    arms = [
        {
            "name": file.name,
            "label": labels.get(file.name, file.name),
            "stem": file.stem,
            "rows": [[row.task, row.intent, row.outcome, row.steps, row.failure] for row in file.rows],
        }
        for file in data.files
        if file.is_evaluation
    ]
    return {"block": BLOCK, "arms": arms, "main": data.main.name if data.main is not None else ""}


def sampled(samples: Sequence[Sample]) -> list[EpisodeFile]:
    """The samples of a report as the one file that the report itself is."""
    rows = tuple(episode_row(sample.trajectory, sample.arm, sample.update) for sample in samples)
    return [EpisodeFile("", "", False, rows)]


def blocks(samples: Iterable[Sample], texts: TokenTexts | None = None, *, prompts: bool = False) -> Iterator[Plain]:
    """The trajectories themselves, `BLOCK` at a time, in the order of the index.

    With `texts` tokens have text, else their numbers; with `prompts` the prompt of each step is there too.
    """
    source = iter(samples)
    while batch := list(islice(source, BLOCK)):
        pages = _Pages()
        items = [_trajectory(sample, pages, texts, prompts) for sample in batch]
        yield {"pages": pages.written, "items": items}


def update_of(trajectory: Trajectory) -> int:
    """The update that played it, counted from 1 as progress counts; -1 when none did."""
    update = trajectory.facts.update
    return -1 if update is None else update + 1


def episode_row(episode: Trajectory, arm: str, update: int) -> EpisodeRow:
    """The row of an episode in lists. A run has few different texts: each is kept once."""
    texts = (episode.task.intent, arm, episode.source, outcome(episode), episode.task.id, failure_kind(episode) or "")
    intent, arm, source, result, task, failure = map(sys.intern, map(str, texts))
    return EpisodeRow(intent, arm, source, result, len(episode.steps), update, task, failure)


class _Pages:
    """Pages of a block by content."""

    def __init__(self) -> None:
        self.written: list[Plain] = []
        self._pages: list[Observation] = []
        self._numbers: dict[tuple[Observation, Screenshot | None], int] = {}
        self._by_identity: dict[int, int] = {}
        self._origins: dict[tuple[int, int], list[int]] = {}

    def number(self, page: Observation) -> int:
        """Number of the page within the block."""
        # Hashing a page takes as long as writing it; the caller keeps the objects alive, so their ids stay true.
        number = self._by_identity.get(id(page))
        if number is None:
            number = self._by_identity[id(page)] = self._numbers.setdefault((page, page.screenshot), len(self.written))
            if number == len(self.written):
                self.written.append(_page(page))
                self._pages.append(page)
        return number

    def origin(self, before: int, after: int) -> list[int]:
        """See `_origin`; dreams of one task walk the same pages again and again."""
        pair = before, after
        if pair not in self._origins:
            self._origins[pair] = _origin(self._pages[before], self._pages[after])
        return self._origins[pair]


def _page(page: Observation) -> Plain:
    data: Plain = {"url": format_url(page.url), "lines": [format_node(node) for node in page.nodes]}
    if page.title:
        data["title"] = page.title
    if page.tabs:
        data["tabs"] = [f"{'* ' if tab.current else ''}{tab.title or tab.url}" for tab in page.tabs]
    if page.notice:
        data["notice"] = page.notice
    if page.truncated:
        data["truncated"] = True
    if page.screenshot is not None:
        data["picture"] = _picture(page.screenshot)
    return data


def _picture(shot: Screenshot) -> Plain:
    """Where the picture of a page lies below the folder of its run, its size, and what it is, in words."""
    image, (width, height) = shot.image, shot.viewport
    about = f"window {width} x {height}{f', scale {shot.scale:g}' if shot.scale != 1 else ''}"
    return {**_file(image), "about": f"{about}, with marks" if shot.marks else about}


def _file(image: Image) -> Plain:
    return {"src": picture_address(image), "width": image.width, "height": image.height}


def picture_address(image: Image) -> str:
    """The address of a picture, relative to the folder of its run; '' for one whose name is no SHA-256."""
    try:
        return ImageStore(Path(IMAGES)).path(image).as_posix()
    except ImageError:
        return ""


def _trajectory(sample: Sample, pages: _Pages, texts: TokenTexts | None, prompts: bool) -> Plain:
    episode = sample.trajectory
    steps = [_step(step, page, pages) for step, page in zip(episode.steps, episode.following, strict=True)]
    for step, played in zip(steps, episode.steps, strict=True):
        step.update(_tokens(played, texts, prompts))
    for step, real in zip(steps, sample.real, strict=False):
        if real is not None and "next" in step:
            step["real"] = pages.number(real)
            step["matched"] = pages.origin(step["next"], step["real"])
    judged = episode.judgement
    data: Plain = {
        "id": episode.id,
        "end": invalid_kind(episode) if episode.end == "invalid" else episode.end,
        "reward": _finite(episode.reward),
        "verdict": _finite(score_of(episode)),
        "steps": steps,
    }
    if episode.task.images:
        data["goal"] = [_file(image) for image in episode.task.images]
    if judged is not None:
        data["judge"] = {"score": _finite(judged.score), "p": _finite(judged.probability), "why": judged.why}
    if episode.facts.verdict is not None and episode.facts.verdict.why:
        data["checked"] = episode.facts.verdict.why
    if episode.facts.failure:
        data["failure"] = episode.facts.failure
    if episode.facts.advantage is not None:
        data["advantage"] = _finite(episode.facts.advantage)
    return data


def _step(step: Step, after: Observation | None, pages: _Pages) -> Plain:
    action = step.action
    data: Plain = {"page": pages.number(step.observation)}
    if action is not None:
        data["action"] = format_action(action)
        target = step.observation.node(action.target) if action.target is not None else None
        data["target"] = step.observation.nodes.index(target) if target is not None else None
    elif refused(step):
        data["action"] = _tried(step)
    if refused(step):
        data["refused"] = True
    for name in ("reasoning", "reply", "error"):
        if getattr(step, name):
            data[name] = getattr(step, name)
    if after is not None and (action is None or action.kind != "stop"):
        data["next"] = pages.number(after)
        data["from"] = pages.origin(data["page"], data["next"])
    data["dreamed"], data["recalled"] = step.facts.dreamed, step.facts.recalled
    if step.facts.origins:
        data["origins"] = step.facts.origins
    return data


def _tokens(step: Step, texts: TokenTexts | None, prompts: bool) -> Plain:
    """What the model read and wrote: tokens with their log-probabilities, and the prompt as text."""
    data: Plain = {}
    read = texts or (lambda ids: [str(one) for one in ids])
    if step.response_ids:
        data["tokens"] = read(step.response_ids)
        data["logprobs"] = [_finite(value) for value in step.logprobs]
    if prompts and step.prompt.ids:
        data["prompt"] = ("" if texts is not None else " ").join(read(step.prompt.ids))
        data["prompt_tokens"] = len(step.prompt.ids)
    if step.prompt.cut:
        data["cut"] = step.prompt.cut
    facts = step.facts
    if facts.confidence is not None:
        data["confidence"] = _finite(facts.confidence)
    if facts.world_model_error or facts.untrusted:
        data["dream_end"] = facts.world_model_error or facts.untrusted
    if facts.reward is not None:
        data["reward"] = _finite(facts.reward)
    return data


_HEAD = re.compile(r"\A[\s*]*action[\s*]*:[\s*]*", re.IGNORECASE)
"""What chat formats write before an action."""


def _tried(step: Step) -> str:
    """The action of a refused reply as it was written: what follows the reasoning."""
    text = step.reply.partition(step.reasoning)[2] if step.reasoning and step.reasoning in step.reply else step.reply
    return _HEAD.sub("", text).strip().strip("`").strip()


def _origin(before: Observation, after: Observation) -> list[int]:
    """For each line of the new page: 2k if old line k was kept, 2k + 1 if it was changed, -1 if it is new."""
    return [
        -1 if old < 0 else 2 * old + int(_changed(before, old, after, new))
        for new, old in enumerate(match(before.nodes, after.nodes))
    ]


def _changed(before: Observation, old: int, after: Observation, new: int) -> bool:
    first, second = before.nodes[old], after.nodes[new]
    return (first.value, first.props) != (second.value, second.props)


def _finite(value: float | None) -> float | None:
    return round(value, 4) if value is not None and math.isfinite(value) else None
