"""What RL remembers besides weights: do dreams get better while reality gets worse?"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dynaweb.runs import write_json

HISTORY = "history.json"


@dataclass(slots=True)
class History:
    """`rewards`: mean of each update (nan = none graded). `marks`: (updates done, real success) of each validation.
    `outcomes`: template and mean reward of each group, by update."""

    rewards: list[float] = field(default_factory=list)
    marks: list[tuple[int, float]] = field(default_factory=list)
    outcomes: list[list[tuple[str, float]]] = field(default_factory=list)

    @classmethod
    def load(cls, folder: Path, *, updates: int) -> History:
        """What `save` wrote, cut back to the first `updates` updates: a kill may have come before the checkpoint."""
        data = json.loads((folder / HISTORY).read_text(encoding="utf-8"))
        rewards = [math.nan if reward is None else reward for reward in data["rewards"]]
        marks = [(done, success) for done, success in data["marks"]]
        outcomes = [[(name, reward) for name, reward in groups] for groups in data["outcomes"]]
        history = cls(rewards, marks, outcomes)
        history.cut(updates)
        return history

    def save(self, folder: Path) -> None:
        """Write into a folder, atomically."""
        rewards = [None if math.isnan(reward) else reward for reward in self.rewards]
        write_json(folder / HISTORY, {"rewards": rewards, "marks": self.marks, "outcomes": self.outcomes})

    def cut(self, updates: int) -> None:
        """Forget everything after the first `updates` updates."""
        del self.rewards[updates:], self.outcomes[updates:]
        self.marks = [(done, success) for done, success in self.marks if done <= updates]

    def validated(self, success: float) -> str:
        """Note a validation; a warning when rewards rose since the last one and real success fell, else ''."""
        now = len(self.rewards)
        earlier = self.marks[-1] if self.marks else None
        start = self.marks[-2][0] if len(self.marks) > 1 else 0
        self.marks.append((now, success))
        if earlier is None:
            return ""
        done, real = earlier
        before, after = _mean(self.rewards[start:done]), _mean(self.rewards[done:])
        if not (after > before and success < real):
            return ""
        return (
            f"the reward rose from {before:.3f} to {after:.3f} while success on real validation tasks fell from "
            f"{real:.3f} to {success:.3f}: the policy may be learning to please the judge or the world model"
        )


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
