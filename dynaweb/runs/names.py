"""What a run folder and its report call things: files of rollouts, arms and their roles."""

from __future__ import annotations

from collections.abc import Mapping
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

BEST_UPDATE = "best.json"
"""After how many updates the best weights of an RL stage were, and the success on validation tasks there."""

PROMPTS, PROMPTS_CUT, PROMPT_TOKENS_LEFT_OUT = "prompts", "prompts_cut", "prompt_tokens_left_out"
"""Among a stage's costs: prompts that were written for models, those of them that were cut because the model has no
room for them, and the tokens that these lack."""


IMAGE_TOKENS = "image_tokens"
"""Among a stage's costs: tokens of prompts that stand for images, which engines of this process read."""


def cut_share(cost: Mapping[str, float]) -> str:
    """`42 of 120 (35 %)`: how many of a stage's prompts were cut; '' where none was."""
    cut, written = cost.get(PROMPTS_CUT, 0.0), cost.get(PROMPTS, 0.0)
    return f"{cut:,.0f} of {written:,.0f} ({100 * cut / written:.0f} %)" if cut and written else ""
