"""Trainers of small random models, and what their updates see, for the tests of the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import engine_kit as kit
import torch

from dynaweb.protocols import TokenRow
from dynaweb.trainer.torch_trainer import TorchTrainer
from dynaweb_opt_gspo import GspoConfig

WIDE = GspoConfig(clip_low=0.2, clip_high=0.3)
ADVANTAGES = (1.0, -0.5, 0.75, -1.25)


def trainer_of(model: Any = None, **changes: Any) -> TorchTrainer:
    """A trainer that clips nothing."""
    return TorchTrainer(kit.llama() if model is None else model, **_settings(changes))


class Spy(TorchTrainer):
    """Keeps the gradients of the last update."""

    seen: dict[str, torch.Tensor]

    def _report(self, *args: Any) -> dict[str, float]:
        leaves = self._stepper.masters.leaves.items()
        self.seen = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in leaves}
        return super()._report(*args)


def spy_of(model: Any = None, **changes: Any) -> Spy:
    """The same as `trainer_of`, with the gradients kept."""
    return Spy(kit.llama() if model is None else model, **_settings(changes))


def _settings(changes: dict[str, Any]) -> dict[str, Any]:
    return {"lr": 1e-3, "total_steps": 10, "max_grad_norm": 1e9, "micro_tokens": 4096} | changes


def weights(model: Any) -> dict[str, torch.Tensor]:
    """Copies of all parameters by name."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def old_logps(rows: Sequence[TokenRow], shift: float = 0.05) -> list[tuple[float, ...]]:
    """Log-probabilities of a slightly different policy."""
    torch.manual_seed(9)
    found = trainer_of().logprobs(rows)
    return [tuple((torch.from_numpy(values) + shift * torch.randn(len(values))).tolist()) for values in found]
