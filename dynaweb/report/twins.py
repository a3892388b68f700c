"""Real pages beside dreamed ones: what really followed the same action on the same page, where a run has seen it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dynaweb.data.store import TrajectoryStore
from dynaweb.report.data import Sample
from dynaweb.types import Observation, Step, Trajectory
from dynaweb.worldmodels.recall import Question, question


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
        found = tuple(known.get(asked) if (asked := _asked(step)) else None for step in steps)
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
                pages.setdefault(question(step.observation, step.action), page)


def _asked(step: Step) -> Question | None:
    """What the world model was asked; a recalled page is the real one, so that there is nothing to compare."""
    if step.action is None or not step.info.get("dreamed"):
        return None
    return question(step.observation, step.action)
