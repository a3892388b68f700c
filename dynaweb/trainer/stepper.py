"""Optimizer steps (AdamW) on one set of parameters: learning rate, what is skipped, what must move, and its state."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dynaweb.errors import CheckpointError, TrainingError
from dynaweb.trainer.masters import Masters

MAX_SKIPPED = 3
"""Non-finite updates in a row that stop the training."""
ADAM_EPS = 1e-8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """`weight_decay` is for matrices only."""

    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True, slots=True)
class Gradient:
    """What a backward pass left behind: the loss, the gradient's norm, and whether anything was computed at all."""

    loss: float
    norm: float
    computed: bool = True

    @property
    def sound(self) -> bool:
        """Whether it may move anything."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class AnyStepper(ABC):
    """Takes a step when loss and gradient are finite; else skips and counts, and stops after `MAX_SKIPPED` in a row.

    Steps are of the float32 `masters` of the parameters, and so is the saved state. `what` names the model in messages.
    `skipped` counts all skipped updates.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], masters: Masters, schedule: Schedule, what: str) -> None:
        self.parameters, self.masters = dict(parameters), masters
        self.schedule = schedule
        self.skipped = 0
        self._what = what
        self._skipped_in_row = 0

    def judge(self, step: int, gradient: Gradient) -> bool:
        """Whether update `step` (counted from 0) is to move anything; an unsound one is counted.

        Raises `TrainingError` after `MAX_SKIPPED` unsound updates in a row.
        """
        if gradient.computed and not gradient.sound:
            self._skip(step, gradient)
        return gradient.computed and gradient.sound

    def _skip(self, step: int, gradient: Gradient) -> None:
        self.skipped += 1
        self._skipped_in_row += 1
        _log.warning(
            "update %d skipped: loss %s, gradient norm %s (%s)", step, gradient.loss, gradient.norm, self._what
        )
        if self._skipped_in_row >= MAX_SKIPPED:
            raise TrainingError(
                f"{MAX_SKIPPED} updates in a row had a loss or gradient that is not finite (last: loss {gradient.loss},"
                f" gradient norm {gradient.norm}, of the {self._what}); lower the learning rate, or go back to the last"
                " checkpoint"
            )

    def _restored(self, skipped: int) -> None:
        """A state has been put back: so many updates were skipped before it, none of them just now."""
        self.skipped, self._skipped_in_row = skipped, 0

    @abstractmethod
    def move(self, step: int) -> None:
        """Take update `step` along the gradients that are there. Raises `TrainingError` when nothing can move."""

    @abstractmethod
    def drop(self) -> None:
        """Forget the gradients of an update that is over."""

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """Masters and AdamW's state by parameter name."""

    @abstractmethod
    def check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raise `CheckpointError` when `load` could not put these back."""

    @abstractmethod
    def load(self, tensors: Mapping[str, torch.Tensor], skipped: int) -> None:
        """Put back what `tensors` gave."""


class Stepper(AnyStepper):
    """torch's AdamW on masters that this process has whole."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], schedule: Schedule, settings: AdamSettings, *, what: str
    ) -> None:
        if not parameters:
            raise TrainingError(f"the {what} has no trainable parameter")
        super().__init__(parameters, Masters(parameters), schedule, what)
        self._unmoved: set[str] | None = set(self._leaves)
        matrices = [p for p in self._leaves.values() if p.ndim > 1]
        others = [p for p in self._leaves.values() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        trained = [group for group in groups if group["params"]]
        self._fused = all(leaf.is_cuda for leaf in self._leaves.values())
        self._adam = torch.optim.AdamW(
            trained, lr=schedule.peak, betas=settings.betas, eps=ADAM_EPS, fused=self._fused or None
        )

    @property
    def _leaves(self) -> dict[str, nn.Parameter]:
        return self.masters.leaves

    def move(self, step: int) -> None:
        """See `AnyStepper`."""
        self._skipped_in_row = 0
        lr = self.schedule.at(step)
        for group in self._adam.param_groups:
            group["lr"] = lr
        # Gradients below Adam's epsilon may be lost to rounding without anything being wrong.
        waiting = self._unmoved or ()
        before = {n: p.detach().clone() for n, p in self._leaves.items() if n in waiting and _felt(p)}
        self._adam.step()
        self.masters.publish()
        self._refuse_stuck(step, before)

    def _refuse_stuck(self, step: int, before: Mapping[str, torch.Tensor]) -> None:
        """Raise `TrainingError` where parameters with a gradient never moved up to the first update at the full rate.

        Smaller rates of the warm-up may be too small for a number of the parameters' precision, and nothing is wrong.
        """
        if self._unmoved is None:
            return
        stuck = [name for name, value in before.items() if torch.equal(value, self._leaves[name])]
        self._unmoved -= before.keys() - stuck
        lr = self.schedule.at(step)
        if step < self.schedule.warmup or lr <= 0:
            return
        self._unmoved = None
        if stuck:
            raise TrainingError(
                f"{len(stuck)} parameters with a gradient did not move in any update up to the learning rate {lr:g},"
                f" such as {stuck[0]}; it is too small for {self._leaves[stuck[0]].dtype}: raise it"
            )

    def drop(self) -> None:
        """See `AnyStepper`."""
        self.masters.drop_gradients()

    def tensors(self) -> dict[str, torch.Tensor]:
        """See `AnyStepper`."""
        out = {f"model.{name}": p.detach() for name, p in self._leaves.items()}
        for name, leaf in self._leaves.items():
            for key, value in self._adam.state.get(leaf, {}).items():
                out[f"adam.{key}.{name}"] = value
        return out

    def check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """See `AnyStepper`."""
        for name, parameter in self._leaves.items():
            saved = tensors.get(f"model.{name}")
            if saved is None or saved.shape != parameter.shape:
                what = "missing" if saved is None else f"of shape {tuple(saved.shape)}"
                raise CheckpointError(f"parameter {name} {tuple(parameter.shape)} is {what} in the checkpoint")

    def load(self, tensors: Mapping[str, torch.Tensor], skipped: int) -> None:
        """See `AnyStepper`."""
        self.check(tensors)
        with torch.no_grad():
            for name, leaf in self._leaves.items():
                leaf.copy_(tensors[f"model.{name}"])
        self.masters.publish()
        self._adam.state.clear()
        for key, value in tensors.items():
            kind, _, rest = key.partition(".")
            if kind == "adam":
                field, _, name = rest.partition(".")
                counts = field == "step" and not self._fused
                device = torch.device("cpu") if counts else self._leaves[name].device
                self._adam.state[self._leaves[name]][field] = value.detach().clone().to(device)
        taken = max((float(state["step"]) for state in self._adam.state.values()), default=0.0)
        if taken > self.schedule.warmup:
            self._unmoved = None  # judged before the checkpoint
        self._restored(skipped)


def move_together(step: int, gradients: Sequence[tuple[AnyStepper, Gradient]]) -> list[bool]:
    """Finish update `step` of several models; which of them moved. Gradients are dropped.

    All are judged before any moves: an error leaves every model as it was, so that what is saved then belongs together.
    """
    try:
        moving = [stepper.judge(step, gradient) for stepper, gradient in gradients]
        for (stepper, _), moves in zip(gradients, moving, strict=True):
            if moves:
                stepper.move(step)
    finally:
        for stepper, _ in gradients:
            stepper.drop()
    return moving


def _felt(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and float(parameter.grad.abs().max()) > 10 * ADAM_EPS


# Learning rate over the updates of a stage: linear warm-up, then linear decay to a fraction of the peak.


@dataclass(frozen=True, slots=True)
class Schedule:
    """`peak` is reached after `warmup` updates; the last of `total` updates uses `final_fraction` x `peak`."""

    peak: float
    total: int
    warmup: int = 0
    final_fraction: float = 0.1

    def at(self, step: int) -> float:
        """Learning rate of update `step`, counted from 0; updates beyond `total` keep the last value."""
        if step < self.warmup:
            return self.peak * (step + 1) / (self.warmup + 1)
        span = max(1, self.total - 1 - self.warmup)
        done = min(1.0, (step - self.warmup) / span)
        return self.peak * (1.0 - done * (1.0 - self.final_fraction))
