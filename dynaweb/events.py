"""What observer hooks are told: one frozen event each. Fields can be added without breaking an observer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dynaweb.masking import masked, printable

if TYPE_CHECKING:
    from dynaweb.types import Trajectory


STAGES = "stages"
"""The job of `Progress` that is the whole run: told once, before the first stage, with how many there will be."""
JUDGE_OF = "judge of "
"""Begins the arm of an `Evaluation` that holds the judge's scores of an arm, not its successes."""


@dataclass(frozen=True, slots=True)
class RunStart:
    """`recipe` is the resolved recipe as plain data; `plugins` name, package and version of each."""

    folder: Path
    recipe: Mapping[str, Any]
    plugins: tuple[Mapping[str, str], ...] = ()
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class RunEnd:
    """`status` tells how it ended; `summary` holds the closing table as plain data."""

    folder: Path
    status: Literal["done", "failed", "interrupted"]
    seconds: float
    summary: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    """`key` is the cache key; `cost` counts seconds, tokens generated and trained, browser steps, peak memory (MiB),
    and prompts: all, those that were cut to fit the model, and the tokens left out of these.

    `folder` is where the stage's results are, or are being made.
    """

    name: str
    status: Literal["start", "cached", "done", "failed", "interrupted"]
    key: str = ""
    detail: str = ""
    cost: Mapping[str, float] = field(default_factory=dict)
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` units of a job (total 0 = unknown); `metrics` are shown beside the bar."""

    job: str
    done: int
    total: int
    unit: str = "it"
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished trajectory and the phase (`explore`, `dream`, `eval`...) it belongs to."""

    phase: str
    trajectory: Trajectory
    update: int = -1


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step of a stage."""

    stage: str
    index: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`successes` holds one entry per graded episode, in task order (None = ungraded).

    Where `arm` begins with `JUDGE_OF` they are scores of the judge. `label` is how people call the arm, '' where it
    has no other name.
    """

    arm: str
    split: str
    successes: tuple[float | None, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """`where` names what failed, `error` why; `fatal` tells whether the run ends."""

    where: str
    error: str
    fatal: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", printable(masked(self.error)))
