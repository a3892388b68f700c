"""Steps of AdamW on one set of parameters: the schedule, what is skipped, what must move, and its state."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from dynaweb.backends.schedule import Schedule
from dynaweb.errors import CheckpointError, TrainingError

MAX_SKIPPED = 3
"""Non-finite updates in a row that stop the training."""
ADAM_EPS = 1e-8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """`weight_decay` is for matrices only."""

    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)


class Stepper:
    """Takes a step when loss and gradient are finite; else skips and counts, and stops after `MAX_SKIPPED` in a row.

    `what` names the model in messages. `skipped` counts all skipped updates.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], schedule: Schedule, settings: AdamSettings, *, what: str
    ) -> None:
        if not parameters:
            raise TrainingError(f"the {what} has no trainable parameter")
        self.schedule = schedule
        self.parameters = dict(parameters)
        self.skipped = 0
        self._what = what
        self._skipped_in_row = 0
        self._moved = False
        matrices = [p for p in self.parameters.values() if p.ndim > 1]
        others = [p for p in self.parameters.values() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        given = [group for group in groups if group["params"]]
        self._adam = torch.optim.AdamW(given, lr=schedule.peak, betas=settings.betas, eps=ADAM_EPS)

    def update(self, step: int, *, loss: float, norm: float, computed: bool = True) -> bool:
        """Finish update `step` (counted from 0): move the parameters if there is a sound gradient. Drops gradients.

        Raises `TrainingError` after `MAX_SKIPPED` unsound updates in a row, and when parameters cannot move at all.
        """
        try:
            sound = is_sound(loss, norm)
            if computed and sound:
                self._step(self.schedule.at(step))
            elif computed:
                self._skip(step, loss, norm)
            return computed and sound
        finally:
            self._adam.zero_grad(set_to_none=True)

    def _step(self, lr: float) -> None:
        self._skipped_in_row = 0
        for group in self._adam.param_groups:
            group["lr"] = lr
        # Gradients below Adam's epsilon may be lost to rounding without anything being wrong.
        before = {} if self._moved else {n: p.detach().clone() for n, p in self.parameters.items() if _felt(p)}
        self._adam.step()
        stuck = [name for name, value in before.items() if torch.equal(value, self.parameters[name])]
        if stuck and lr > 0:
            raise TrainingError(
                f"{len(stuck)} of {len(before)} parameters with a gradient did not move in the first update, such as"
                f" {stuck[0]} ({self.parameters[stuck[0]].dtype}); train in float32 or raise the learning rate"
            )
        self._moved = True

    def _skip(self, step: int, loss: float, norm: float) -> None:
        self.skipped += 1
        self._skipped_in_row += 1
        _log.warning("update %d skipped: loss %s, gradient norm %s (%s)", step, loss, norm, self._what)
        if self._skipped_in_row >= MAX_SKIPPED:
            raise TrainingError(
                f"{MAX_SKIPPED} updates in a row had a loss or gradient that is not finite (last: loss {loss}, gradient"
                f" norm {norm}, of the {self._what}); lower the learning rate, or go back to the last checkpoint"
            )

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and AdamW's state by parameter name."""
        out = {f"model.{name}": p.detach() for name, p in self.parameters.items()}
        for name, parameter in self.parameters.items():
            for key, value in self._adam.state.get(parameter, {}).items():
                out[f"adam.{key}.{name}"] = value
        return out

    def check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raise `CheckpointError` when `load` could not put these back."""
        for name, parameter in self.parameters.items():
            saved = tensors.get(f"model.{name}")
            if saved is None or saved.shape != parameter.shape:
                found = "missing" if saved is None else f"of shape {tuple(saved.shape)}"
                raise CheckpointError(f"parameter {name} {tuple(parameter.shape)} is {found} in the checkpoint")

    def load(self, tensors: Mapping[str, torch.Tensor], skipped: int) -> None:
        """Put back what `tensors` gave."""
        self.check(tensors)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[f"model.{name}"])
        self._adam.state.clear()
        for key, value in tensors.items():
            kind, _, rest = key.partition(".")
            if kind == "adam":
                field, _, name = rest.partition(".")
                place = torch.device("cpu") if field == "step" else self.parameters[name].device
                self._adam.state[self.parameters[name]][field] = value.detach().clone().to(place)
        self.skipped, self._skipped_in_row = skipped, 0


def is_sound(loss: float, norm: float) -> bool:
    """Whether an update with this loss and gradient norm may move anything."""
    return math.isfinite(loss) and math.isfinite(norm)


def _felt(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and float(parameter.grad.abs().max()) > 10 * ADAM_EPS
