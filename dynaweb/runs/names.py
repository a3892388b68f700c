"""What a run folder and its report call things: files of rollouts, arms and their roles."""

from __future__ import annotations

from typing import Literal

DREAMS, ROLLOUTS = "dreams", "rollouts"
"""The file of reinforcement learning's rollouts: those in dreams, those on real pages."""
AUDIT = "audit"
"""What audits are called among the updates of a run."""

Role = Literal["sft", "control", "main"]
"""`sft`: supervised on the demonstrations only. `control`: any other comparison. `main`: what the run is about."""


def sft_label(steps: int | str) -> str:
    """The label of the arm of so many SFT updates, for people."""
    return f"SFT, {steps} {'update' if str(steps) == '1' else 'updates'}"


UPDATES = "updates.json"
"""How many updates a finished RL stage did, how many were planned, and how many optimizer steps were skipped; the
number of its phase, and the updates of the phases before it."""
