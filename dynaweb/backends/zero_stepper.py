"""Steps of AdamW by DeepSpeed, on weights and state that are spread over ranks (ZeRO, arXiv 1910.02054).

All ranks have to call every method: most of them exchange something.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dynaweb.backends.masters import Masters
from dynaweb.backends.schedule import Schedule
from dynaweb.backends.stepper import AnyStepper
from dynaweb.errors import CheckpointError, TrainingError

MOMENTS = ("exp_avg", "exp_avg_sq")


class OwnMasters(Masters):
    """DeepSpeed has float32 masters and gradients of its own: here its parameters stand for them."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = self.leaves = dict(parameters)
        self._apart = {}


class ZeroStepper(AnyStepper):
    """AdamW of DeepSpeed's `engine`. `parameters` are those of its copy of the model; `publish` is called when they
    have moved."""

    def __init__(
        self, engine: Any, parameters: Mapping[str, nn.Parameter], schedule: Schedule, publish: Callable[[], None]
    ) -> None:
        super().__init__(parameters, OwnMasters(parameters), schedule, "model")
        self.engine = engine
        self._publish_all = publish
        self._waiting = False

    def norm(self) -> float:
        """The global norm of the exchanged gradients, before clipping; they now wait for `move` or `drop`."""
        self._waiting = True
        name = _norm_of(self.engine.optimizer)
        found = getattr(self.engine.optimizer, name)()
        parts = [float(part) for part in (found if isinstance(found, list) else [found])]
        # DeepSpeed says -1 for a norm that is not finite.
        sound = all(math.isfinite(part) and part >= 0 for part in parts)
        return math.hypot(*parts) if sound else math.nan

    def move(self, step: int) -> None:
        """See `AnyStepper`."""
        self._skipped_in_row, self._waiting = 0, False
        for group in self.engine.optimizer.param_groups:
            group["lr"] = self.schedule.at(step)
        self.engine.step()
        if bool(self.engine.optimizer.overflow):
            raise TrainingError(f"DeepSpeed refused update {step}, whose gradient is finite")
        self._publish_all()

    def drop(self) -> None:
        """See `AnyStepper`. DeepSpeed itself forgets gradients only in a step that it takes, or refuses."""
        if not self._waiting:
            return
        self._waiting = False
        with _unsound(self.engine.optimizer):
            self.engine.step()
        if not bool(self.engine.optimizer.overflow):
            raise TrainingError("this version of DeepSpeed took an unsound step; install deepspeed 0.19.8 or later")

    def tensors(self) -> dict[str, torch.Tensor]:
        """Float32 parameters and moments by name, whole. All ranks have to ask; only rank 0 keeps the numbers."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        out: dict[str, torch.Tensor] = {}
        keep = self.engine.global_rank == 0
        self._relink()
        for name, parameter in self.parameters.items():
            whole = {f"model.{name}": safe_get_full_fp32_param(parameter)}
            if self._has_moments():
                for key in MOMENTS:
                    whole[f"adam.{key}.{name}"] = safe_get_full_optimizer_state(parameter, key)
            if keep:
                out |= {key: value.detach().cpu().clone() for key, value in whole.items()}
        if keep and self._has_moments():
            count = torch.tensor(float(self._adam_step()))
            out |= {f"adam.step.{name}": count.clone() for name in self.parameters}
        return out

    def check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raise `CheckpointError` when `load` could not put these back."""
        for name, parameter in self.parameters.items():
            saved, shape = tensors.get(f"model.{name}"), tuple(getattr(parameter, "ds_shape", parameter.shape))
            if saved is None or tuple(saved.shape) != shape:
                found = "missing" if saved is None else f"of shape {tuple(saved.shape)}"
                raise CheckpointError(f"parameter {name} {shape} is {found} in the checkpoint")

    def load(self, tensors: Mapping[str, torch.Tensor], skipped: int) -> None:
        """Put back what `tensors` of either backend gave."""
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        self.check(tensors)
        self._restored(skipped)
        moments = any(name.startswith("adam.exp_avg.") for name in tensors)
        if moments and not self._has_moments():
            self._make_moments()
        self._forget_moments()
        self._relink()
        for name, parameter in self.parameters.items():
            device = self.engine.device
            safe_set_full_fp32_param(parameter, tensors[f"model.{name}"].to(device, torch.float32))
            for key in MOMENTS if moments else ():
                saved = tensors.get(f"adam.{key}.{name}")
                if saved is not None:
                    safe_set_full_optimizer_state(parameter, saved.to(device, torch.float32), key)
        if moments:
            self._set_adam_step(max(float(v) for n, v in tensors.items() if n.startswith("adam.step.")))
        self._publish(tensors)

    def _publish(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """The working weights of the forward pass from the float32 ones."""
        import deepspeed

        for name, parameter in self.parameters.items():
            value = tensors[f"model.{name}"]
            if hasattr(parameter, "ds_id"):
                with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                    parameter.data.copy_(value.to(parameter.device, parameter.dtype))
            else:
                parameter.data.copy_(value.to(parameter.device, parameter.dtype))

    @property
    def _flats(self) -> list[torch.Tensor]:
        """This rank's shares of the float32 weights: what AdamW knows as its parameters."""
        zero = self.engine.optimizer
        name = "fp32_partitioned_groups_flat" if hasattr(zero, "fp32_partitioned_groups_flat") else ""
        return list(getattr(zero, name or "single_partition_of_fp32_groups"))

    def _states(self) -> list[dict[str, Any]]:
        adam = self.engine.optimizer.optimizer
        return [adam.state[flat] for flat in self._flats if adam.state.get(flat)]

    def _has_moments(self) -> bool:
        states = self._states()
        return len(states) == len(self._flats) and all("exp_avg" in state for state in states)

    def _adam_step(self) -> float:
        return max(float(state["step"]) for state in self._states())

    def _set_adam_step(self, count: float) -> None:
        for state in self._states():
            step = state["step"]
            state["step"] = torch.full_like(step, count) if isinstance(step, torch.Tensor) else count

    def _relink(self) -> None:
        """Tell the parameters of stages 1 and 2 where their moments are.

        DeepSpeed does so after the step of the first group of parameters, when other groups have none yet.
        """
        zero = self.engine.optimizer
        flat = getattr(zero, "single_partition_of_fp32_groups", [])
        for partition, parameters in zip(flat, getattr(zero, "bit16_groups", []), strict=False):
            for parameter in parameters:
                if parameter._hp_mapping is not None:
                    parameter._hp_mapping.set_optim_state_fragment(partition, zero.optimizer.state[partition])

    def _make_moments(self) -> None:
        """What AdamW makes in its first step, without one."""
        for flat in self._flats:
            moments = {key: torch.zeros_like(flat) for key in MOMENTS}
            self.engine.optimizer.optimizer.state[flat] = {"step": torch.tensor(0.0), **moments}

    def _forget_moments(self) -> None:
        """Back to AdamW's start, from which goes on what a checkpoint has no moments of."""
        for state in self._states():
            for key in MOMENTS:
                state[key].zero_()
        self._set_adam_step(0.0)


def _norm_of(zero: Any) -> str:
    """The method that gives the norm of stages 1 and 2, or the norms of stage 3's groups."""
    return "scaled_global_norm" if hasattr(zero, "scaled_global_norm") else "_get_norm_groups"


@contextmanager
def _unsound(zero: Any) -> Iterator[None]:
    """While it lasts, DeepSpeed finds that gradients are not finite."""
    name, checks = _norm_of(zero), getattr(zero, "check_grad_overflow", None)
    value = torch.tensor(math.inf)
    setattr(zero, name, lambda: value if name == "scaled_global_norm" else [value])
    if checks is not None:
        zero.check_grad_overflow = True
    try:
        yield
    finally:
        delattr(zero, name)
        if checks is not None:
            zero.check_grad_overflow = checks
