"""Trajectories as token rows of an update, and what goes with the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dynaweb.protocols import TokenRow
from dynaweb.types import NO_PROMPT, Trajectory

if TYPE_CHECKING:
    from dynaweb.trainer.losses import Logps
    from dynaweb.trainer.torch_trainer import TorchTrainer


def logprobs(trainer: TorchTrainer, rows: Sequence[TokenRow], wanted: Sequence[bool]) -> Logps:
    """Log-probabilities of each row's response tokens; zeros for rows that are not wanted, which are not computed."""
    values = iter(trainer.logprobs([row for row, use in zip(rows, wanted, strict=True) if use]))
    return [
        next(values).tolist() if use else [0.0] * len(row.response_ids) for row, use in zip(rows, wanted, strict=True)
    ]


def part_of(logps: Logps | None, rows: Sequence[int]) -> Logps | None:
    """The log-probabilities of some of the rows."""
    return None if logps is None else [logps[i] for i in rows]


def weighted(rows: Sequence[TokenRow], anchor: Sequence[TokenRow], weight: float) -> list[TokenRow]:
    """Anchor rows whose mean cross-entropy counts `weight` times that of `rows` in one common mean over tokens."""
    main = sum(len(row.response_ids) for row in rows)
    side = max(1, sum(len(row.response_ids) for row in anchor))
    return [replace(row, weight=weight * main / side) for row in anchor]


def step_rows(trajectories: Sequence[Trajectory]) -> list[TokenRow]:
    """One row per step with tokens; `trajectory` is the place in the sequence."""
    return [
        TokenRow(step.prompt, step.response_ids, index)
        for index, trajectory in enumerate(trajectories)
        for step in trajectory.steps
        if step.response_ids
    ]


def minibatches(count: int, parts: int) -> list[list[int]]:
    """0..count-1 in `parts` parts of nearly equal size, dealt out in turn so that groups are spread."""
    return [list(range(part, count, parts)) for part in range(parts)]


def without_prompts(trajectory: Trajectory, update: int, advantage: float | None = None) -> Trajectory:
    """A rollout as it is kept: with the number of its update and its advantage there, without its prompts, which
    follow from the pages."""
    steps = tuple(replace(step, prompt=NO_PROMPT) for step in trajectory.steps)
    return replace(trajectory, steps=steps, facts=replace(trajectory.facts, update=update, advantage=advantage))
