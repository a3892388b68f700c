"""What a stage leaves, and models with what belongs to them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from dynaweb.policy.formats import PromptFormat
    from dynaweb.types import Trajectory

EPISODES = "trajectories.jsonl.gz"
MODEL = "model"
DREAMS, ROLLOUTS = "dreams", "rollouts"
"""What a run folder calls the file of reinforcement learning's rollouts: those in dreams, those on real pages."""


@dataclass(frozen=True, slots=True)
class Made:
    """A finished stage: its cache key, and the folder with its results."""

    key: str
    folder: Path

    @property
    def model(self) -> Path:
        """The folder of the weights that the stage trained."""
        return self.folder / MODEL

    def episodes(self) -> list[Trajectory]:
        """The episodes that the stage played, in order."""
        from dynaweb.data.store import TrajectoryStore

        return list(TrajectoryStore(self.folder / EPISODES))

    def data(self, name: str) -> Any:
        """A JSON file of the stage."""
        return json.loads((self.folder / name).read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights with the tokenizer and the prompt layer that belong to them."""

    model: nn.Module
    tokenizer: Any
    format: PromptFormat

    def save(self, folder: Path) -> None:
        """Write the weights into a stage's folder, as a Hugging Face model with its tokenizer."""
        from dynaweb.backends.models import save_model

        save_model(self.model, folder / MODEL, self.tokenizer)

    def write(self, folder: Path) -> None:
        """The same in the middle of training, which goes on with the model as it is."""
        self.save(folder)
