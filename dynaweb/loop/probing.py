"""Predictions of a world model beside real pages, kept as one-step episodes so that the report can show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaweb.types import Step, Task, Trajectory
from dynaweb.worldmodels.change import goal_of

if TYPE_CHECKING:
    from dynaweb.loop.fidelity import Probe
    from dynaweb.types import Prediction


def probe_episodes(probes: Sequence[Probe], answers: Sequence[Prediction]) -> list[Trajectory]:
    """One dreamed step for each question; its final page is the prediction, None where there was none."""
    return [_episode(index, probe, answer) for index, (probe, answer) in enumerate(zip(probes, answers, strict=True))]


def _episode(index: int, probe: Probe, answer: Prediction) -> Trajectory:
    asked = probe.transition
    goal = goal_of(asked) or f"what follows on {asked.observation.url}"
    task = Task(asked.task_id or f"probe {index}", goal, asked.observation.url)
    step = Step(asked.observation, asked.action, answer.reasoning, answer.text, answer.error, info={"dreamed": True})
    return Trajectory(f"probe/{index}", task, (step,), answer.next_observation, "dream", "max-steps")
