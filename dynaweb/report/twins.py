"""Real pages beside dreamed ones: what really followed the same action on the same page, where a run has seen it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dynaweb.data.store import TrajectoryStore
from dynaweb.report.data import Sample
from dynaweb.types import Action, Observation, Trajectory

Question = tuple[Observation, Action]


class Twins:
    """Real steps of exploration and demonstrations; `paths` are stores of trajectories, read when a dream is shown."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = list(paths)
        self._pages: dict[Question, Observation] | None = None

    def beside(self, sample: Sample) -> Sample:
        """The sample with the real page of each dreamed step, as far as one is known."""
        if sample.trajectory.source != "dream":
            return sample
        known = self._known()
        steps = sample.trajectory.steps
        found = tuple(known.get(_question(s.observation, s.action)) if s.action is not None else None for s in steps)
        return replace(sample, real=found) if any(page is not None for page in found) else sample

    def _known(self) -> dict[Question, Observation]:
        if self._pages is None:
            self._pages = {}
            for path in self._paths:
                for episode in TrajectoryStore(path):
                    self._learn(self._pages, episode)
        return self._pages

    def _learn(self, pages: dict[Question, Observation], episode: Trajectory) -> None:
        if episode.source == "dream":
            return
        following = [*(step.observation for step in episode.steps[1:]), episode.final]
        for step, page in zip(episode.steps, following, strict=True):
            if step.action is not None and page is not None and not step.error and step.action.kind != "stop":
                pages.setdefault(_question(step.observation, step.action), page)


def _question(page: Observation, action: Action) -> Question:
    """What an earlier action said on the page is not part of the question."""
    return replace(page, notice=""), action
