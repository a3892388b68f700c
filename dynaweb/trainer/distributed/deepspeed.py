"""DeepSpeed as trainer: ZeRO stages 1, 2 and 3 (arXiv 1910.02054) around the same losses as the torch backend.

How ranks share an update, and what is trained and saved: `dynaweb.trainer.distributed.sharded`.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dynaweb.config.files import expanded, read_json
from dynaweb.errors import CheckpointError, ConfigError, MissingError, TrainingError
from dynaweb.trainer.distributed.sharded import Scored, ShardedPass, ShardedScorer, ShardedTrainer
from dynaweb.trainer.logprobs import Scorer
from dynaweb.trainer.masters import Masters
from dynaweb.trainer.models import trainable
from dynaweb.trainer.stepper import ADAM_EPS, AdamSettings, AnyStepper, Schedule
from dynaweb.trainer.torch_trainer import UpdatePass

MOMENTS = ("exp_avg", "exp_avg_sq")
_log = logging.getLogger("dynaweb")


class DeepSpeedTrainer(ShardedTrainer):
    """Weights, gradients and AdamW's state spread over ranks as the ZeRO stage says."""

    def __init__(self, model: nn.Module, *, zero: ZeroSettings, **named: Any) -> None:
        if not 1 <= zero.stage <= 3:
            raise ConfigError(f"backend.stage is {zero.stage}; ZeRO has stages 1, 2 and 3")
        self._zero = zero
        super().__init__(model, **named)

    def _parts(self, adam: AdamSettings, checkpointing: bool) -> tuple[Scorer, AnyStepper]:
        scored = Scored(copy.deepcopy(self.model), checkpointing, self.vision)
        config = deepspeed_config(
            self._zero, dtype=next(self.model.parameters()).dtype, max_grad_norm=self.max_grad_norm
        )
        self._trained = trainable(scored.model)
        self._engine = _initialize(scored, config, _adamw(self._trained, self.schedule.peak, adam))
        self._zero_stepper = ZeroStepper(self._engine, self._trained, self.schedule, self.publish)
        return ShardedScorer(self._engine, scored), self._zero_stepper

    def _update(self) -> UpdatePass:
        return ZeroPass(self)

    def publish(self) -> None:
        """The trained weights into the model that engines and files see."""
        import deepspeed

        with torch.no_grad():
            for name, parameter in trainable(self.model).items():
                trained = self._trained[name]
                with deepspeed.zero.GatheredParameters([trained], enabled=hasattr(trained, "ds_id")):
                    parameter.copy_(trained)


class ZeroPass(ShardedPass):
    """One update through DeepSpeed: micro-batches without, and a last empty one with the exchange of gradients."""

    def __init__(self, trainer: DeepSpeedTrainer) -> None:
        super().__init__(trainer)
        self._engine, self._stepper = trainer._engine, trainer._zero_stepper

    def __enter__(self) -> UpdatePass:
        self._engine.set_gradient_accumulation_boundary(False)
        return super().__enter__()

    def _differentiate(self, loss: torch.Tensor) -> None:
        self._engine.backward(loss * self._ranks.size, scale_wrt_gas=False)

    def _exchange(self) -> None:
        """Gradients of all ranks as one, in an empty last micro-batch; they wait for a step."""
        self._engine.set_gradient_accumulation_boundary(True)
        self._fill()

    def _clip(self) -> float:
        """The norm; DeepSpeed clips in its step."""
        return self._stepper.norm()


def _adamw(parameters: Mapping[str, nn.Parameter], lr: float, adam: AdamSettings) -> torch.optim.AdamW:
    matrices = [p for p in parameters.values() if p.ndim > 1]
    others = [p for p in parameters.values() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": adam.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=adam.betas, eps=ADAM_EPS)


def _initialize(scored: Scored, config: dict[str, Any], optimizer: torch.optim.Optimizer) -> Any:
    """DeepSpeed's engine around a model."""
    deepspeed = import_deepspeed()
    # What the scorer finds out about the model, it must find out while the weights are whole.
    _ = scored.scorer.packs
    apart = scored.scorer._tail is not None
    with redirect_stdout(sys.stderr):  # stdout is for data; DeepSpeed tells there what it has built
        deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo", verbose=False)
        engine, *_rest = deepspeed.initialize(
            model=scored, optimizer=optimizer, config=config, dist_init_required=False
        )
    if config["zero_optimization"]["stage"] == 3 and apart:
        # The head's weight is used outside of the head's own forward.
        model: Any = scored.model
        deepspeed.zero.register_external_parameter(scored, model.get_output_embeddings().weight)
    return engine


# Steps of AdamW by DeepSpeed, on weights and state that are spread over ranks (ZeRO, arXiv 1910.02054). All ranks have
# to call every method: most of them exchange something.


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
        norms = getattr(self.engine.optimizer, name)()
        parts = [float(part) for part in (norms if isinstance(norms, list) else [norms])]
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
                what = "missing" if saved is None else f"of shape {tuple(saved.shape)}"
                raise CheckpointError(f"parameter {name} {shape} is {what} in the checkpoint")

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


# What DeepSpeed is told: the section `backend`, a JSON file of the user's own, and what exactness needs.


@dataclass(frozen=True, slots=True)
class ZeroSettings:
    """What of DeepSpeed a run chooses: the ZeRO stage, CPU offload, and a JSON file of one's own."""

    stage: int = 2
    offload: bool = False
    config: str = ""


def zero_settings(section: Mapping[str, Any]) -> ZeroSettings:
    """What the section `backend` says of ZeRO."""
    return ZeroSettings(section["stage"], section["offload"], section["config"])


def deepspeed_config(settings: ZeroSettings, *, dtype: torch.dtype, max_grad_norm: float) -> dict[str, Any]:
    """DeepSpeed's configuration: ours, over which the user's file goes, except for what exactness needs.

    Raises `ConfigError` for a file that is missing, no JSON, or asks for what would change the result.
    """
    zero: dict[str, Any] = {"stage": settings.stage, "reduce_scatter": True, "overlap_comm": False}
    if settings.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
        if settings.stage == 3:
            zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    ours: dict[str, Any] = {
        "zero_optimization": zero,
        "bf16": {"enabled": dtype == torch.bfloat16},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "wall_clock_breakdown": False,
        "steps_per_print": 1 << 40,
    }
    if dtype == torch.bfloat16:
        ours["data_types"] = {"grad_accum_dtype": "fp32"}
    merged = _merged(ours, _read(settings.config)) if settings.config else ours
    for name in ("train_batch_size", "gradient_accumulation_steps", "scheduler", "optimizer", "gradient_clipping"):
        if merged.pop(name, "auto") != "auto":
            _log.warning("the DeepSpeed setting %r is dynaweb's business and is ignored", name)
    if merged.get("fp16", {}).get("enabled") is True:
        raise ConfigError("DeepSpeed's fp16 rounds ratios away; use model.dtype = 'bfloat16' or 'float32'")
    if dtype == torch.bfloat16 and merged["zero_optimization"]["stage"] == 1:
        # DeepSpeed's stage 1 is another program in bfloat16, which never refuses a step. Stage 2 gives the same.
        merged["zero_optimization"]["stage"] = 2
    fixed = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    return {**merged, **fixed, "gradient_clipping": max_grad_norm}


def _read(path: str) -> dict[str, Any]:
    return read_json(expanded(path), dict, error=ConfigError, advice="give a file of DeepSpeed settings")


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for name, value in over.items():
        if isinstance(value, Mapping) and isinstance(out.get(name), Mapping):
            out[name] = _merged(out[name], value)
        elif value != "auto":
            out[name] = value
    return out


def import_deepspeed() -> Any:
    """The package. Raises `MissingError` where it is not installed or cannot run here."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError as error:
        raise MissingError(
            f"backend.name = 'deepspeed' needs the package deepspeed ({error}); run: pip install 'dynaweb[deepspeed]'"
        ) from error
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return deepspeed
