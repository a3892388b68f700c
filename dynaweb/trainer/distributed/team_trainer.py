"""The trainer of rank 0 as the loop sees it: every call is made on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dynaweb.protocols import Credit, PolicyOptimizer, TokenRow
from dynaweb.trainer import checkpoint
from dynaweb.trainer.critic import Critic
from dynaweb.trainer.distributed.team import Team
from dynaweb.trainer.losses import Logps, OldLogps
from dynaweb.trainer.stepper import Schedule
from dynaweb.trainer.torch_trainer import TorchTrainer


class TeamTrainer:
    """What `TorchTrainer` offers, by a trainer that all ranks have. Files are written by rank 0 and read by all."""

    def __init__(self, team: Team, local: TorchTrainer) -> None:
        self._team = team
        self._local = local

    @property
    def model(self) -> nn.Module:
        """The model that is trained, whole."""
        return self._local.model

    @property
    def critic(self) -> Critic | None:
        """Rank 0's critic; its values need no other rank."""
        return self._local.critic

    @property
    def schedule(self) -> Schedule:
        """The learning rates."""
        return self._local.schedule

    @property
    def device(self) -> torch.device:
        """Where rank 0 computes."""
        return self._local.device

    @property
    def skipped(self) -> int:
        """Updates without a step."""
        return self._local.skipped

    @skipped.setter
    def skipped(self, value: int) -> None:
        self._team.call(self._local, "__setattr__", "skipped", value)

    @property
    def offender(self) -> int | None:
        """The trajectory that made the last skipped update unsound."""
        return self._local.offender

    @property
    def steps(self) -> int:
        """Updates done."""
        return self._local.steps

    @steps.setter
    def steps(self, value: int) -> None:
        self._team.call(self._local, "__setattr__", "steps", value)

    @property
    def moves(self) -> int:
        """Updates that changed weights."""
        return self._local.moves

    def draw(self, size: int, count: int) -> list[int]:
        """Indices of the next update's rows."""
        return self._local.draw(size, count)

    def supervised_step(self, rows: Sequence[TokenRow]) -> dict[str, float]:
        """One update on the mean cross-entropy."""
        metrics: dict[str, float] = self._team.call(self._local, "supervised_step", list(rows))
        return metrics

    def policy_step(
        self,
        rows: Sequence[TokenRow],
        optimizer: PolicyOptimizer,
        advantages: Sequence[float] | Credit,
        old_logps: OldLogps | None = None,
        *,
        supervised: Sequence[TokenRow] = (),
        supervised_weight: float = 0.0,
        ref_logps: Logps | None = None,
        token_weights: Logps | None = None,
    ) -> dict[str, float]:
        """One policy update."""
        metrics: dict[str, float] = self._team.call(
            self._local,
            "policy_step",
            list(rows),
            optimizer,
            advantages,
            old_logps,
            supervised=list(supervised),
            supervised_weight=supervised_weight,
            ref_logps=ref_logps,
            token_weights=token_weights,
        )
        return metrics

    def logprobs(self, rows: Sequence[TokenRow]) -> list[np.ndarray]:
        """Log-probabilities of response tokens."""
        logprobs: list[np.ndarray] = self._team.call(self._local, "logprobs", list(rows))
        return logprobs

    def state_dict(self) -> dict[str, Any]:
        """The whole state, put together from all ranks."""
        state: dict[str, Any] = self._team.call(self._local, "state_dict")
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put a state back on all ranks."""
        self._team.call(self._local, "load_state_dict", state)

    def load_weights(self, folder: Path) -> None:
        """Weights for the model, which every rank reads."""
        self._team.call(self._local, "load_weights", folder.resolve())

    def load_critic(self, folder: Path) -> None:
        """The critic of an earlier phase, which every rank reads."""
        self._team.call(self._local, "load_critic", folder.resolve())

    def save(self, folder: Path, *, keep: int = 1) -> None:
        """Write an atomic checkpoint, by rank 0; the last `keep` stay."""
        state = self.state_dict()
        checkpoint.save(folder, state["tensors"], state["meta"], self.steps, keep=keep)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint, which every rank reads."""
        self._team.call(self._local, "load", folder.resolve())
