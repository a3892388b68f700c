"""DeepSpeed as backend: ZeRO stages 1, 2 and 3 (arXiv 1910.02054) around the same losses as the torch backend.

Every rank is given the same rows and computes a part of the micro-batches; losses are shares of the whole batch, so the
result does not depend on the number of ranks. DeepSpeed averages gradients over ranks, so shares are multiplied by
their number. What DeepSpeed trains is a copy: the model that engines and files see stays whole on every rank, in its
own precision, and gets the new weights after each update. Checkpoints have the torch backend's form, with float32
weights and moments, so that another number of ranks, another stage, or the torch backend goes on from them.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dynaweb.backends.batch import MicroBatch, collate, units
from dynaweb.backends.models import trainable
from dynaweb.backends.policy_loss import PolicyBatch
from dynaweb.backends.schedule import Schedule
from dynaweb.backends.scoring import GenericScorer
from dynaweb.backends.stepper import ADAM_EPS, MAX_SKIPPED, AdamSettings
from dynaweb.backends.torch_backend import TorchTrainer
from dynaweb.backends.update import UpdatePass
from dynaweb.backends.zero_config import ZeroSettings, deepspeed_config, import_deepspeed
from dynaweb.errors import CheckpointError, ConfigError, TrainingError
from dynaweb.protocols import PolicyOptimizer, TokenRow

MOMENTS = ("exp_avg", "exp_avg_sq")
_log = logging.getLogger("dynaweb")


class Scored(nn.Module):
    """A language model whose output are the log-probabilities of response tokens: what DeepSpeed wraps."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.scorer = GenericScorer(model)

    def forward(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """As `Scorer.logprobs`."""
        return self.scorer.logprobs(batch)


class EngineScorer:
    """A `Scorer` that computes through DeepSpeed's engine, so that partitioned weights are there when needed."""

    shares_prompts = False

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @contextmanager
    def step(self) -> Iterator[None]:
        """Nothing to prepare."""
        yield

    def logprobs(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies [N] of response tokens."""
        found: tuple[torch.Tensor, torch.Tensor] = self._engine(batch)
        return found

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Not offered: a critic has a model of its own."""
        raise TrainingError("hidden states are not computed through DeepSpeed")


@dataclass(slots=True)
class ZeroStepper:
    """What `TorchTrainer` asks of a stepper, answered by DeepSpeed. `parameters` are those of DeepSpeed's copy."""

    engine: Any
    parameters: dict[str, nn.Parameter]
    schedule: Schedule
    skipped: int = 0
    in_row: int = 0
    taken: bool = field(default=True)

    def update(self, step: int, *, loss: float, norm: float, computed: bool = True) -> bool:
        """Count what the pass has done. Raises `TrainingError` after `MAX_SKIPPED` unsound updates in a row."""
        if not computed:
            return False
        if self.taken:
            self.in_row = 0
            return True
        self.skipped += 1
        self.in_row += 1
        _log.warning("update %d skipped: loss %s, gradient norm %s (model)", step, loss, norm)
        if self.in_row >= MAX_SKIPPED:
            raise TrainingError(
                f"{MAX_SKIPPED} updates in a row had a loss or gradient that is not finite (last: loss {loss}, gradient"
                f" norm {norm}, of the model); lower the learning rate, or go back to the last checkpoint"
            )
        return False

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
        self.skipped, self.in_row = skipped, 0
        moments = any(name.startswith("adam.exp_avg.") for name in tensors)
        if moments and not self._has_moments():
            self._make_moments()
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

    def _states(self) -> list[dict[str, Any]]:
        return [state for state in self.engine.optimizer.optimizer.state.values() if state]

    def _has_moments(self) -> bool:
        return bool(self._states()) and all("exp_avg" in state for state in self._states())

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
        """AdamW makes its moments in its first step: take one that moves nothing."""
        optimizer = self.engine.optimizer.optimizer
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
            for parameter in group["params"]:
                parameter.grad = None


class DeepSpeedTrainer(TorchTrainer):
    """`TorchTrainer` with weights, gradients and AdamW's state spread over ranks as the ZeRO stage says.

    Needs a process group with all ranks (`Team.join`). Every rank calls every method, with the same arguments.
    """

    def __init__(self, model: nn.Module, *, zero: ZeroSettings, **named: Any) -> None:
        betas, decay = named.get("betas", (0.9, 0.999)), named.get("weight_decay", 0.0)
        super().__init__(model, **named)
        if not 1 <= zero.stage <= 3:
            raise ConfigError(f"backend.stage is {zero.stage}; ZeRO has stages 1, 2 and 3")
        self._engine, stepper = _initialize(model, zero, self.schedule, self.max_grad_norm, AdamSettings(decay, betas))
        self._stepper: Any = stepper
        self._scorer = EngineScorer(self._engine)
        self._filler = _filler(model)

    def _update(self) -> UpdatePass:
        return ZeroPass(self)

    def _even_out(self, count: int) -> None:
        for _ in range(-(-count // self.ranks.size) - len(self.ranks.mine(range(count)))):
            self._scorer.logprobs(self._filler)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As the torch backend's, and the whole model gets the weights too."""
        super().load_state_dict(state)
        self.publish()

    def publish(self) -> None:
        """The trained weights into the model that engines and files see."""
        import deepspeed

        with torch.no_grad():
            for name, parameter in trainable(self.model).items():
                trained = self._stepper.parameters[name]
                with deepspeed.zero.GatheredParameters([trained], enabled=hasattr(trained, "ds_id")):
                    parameter.copy_(trained)

    def _find_offender(self, batch: PolicyBatch, live: Sequence[int], optimizer: PolicyOptimizer) -> int | None:
        """The first trajectory with a log-probability that is not finite; others are not told apart here."""
        found = self.logprobs([batch.rows[i] for i in live])
        bad = [
            batch.rows[i].trajectory for i, one in zip(live, found, strict=True) if not bool((abs(one) < 1e30).all())
        ]
        return min(bad, default=None)


class ZeroPass(UpdatePass):
    """One update through DeepSpeed: micro-batches without, and a last empty one with the exchange of gradients."""

    def __init__(self, trainer: DeepSpeedTrainer) -> None:
        parameters = trainer._stepper.parameters.values()
        super().__init__(
            trainer.model, trainer._scorer, trainer.micro_batches, parameters, trainer.max_grad_norm, trainer.ranks
        )
        self._trainer, self._engine = trainer, trainer._engine
        self._losses: list[float] = []

    def __enter__(self) -> UpdatePass:
        self._engine.set_gradient_accumulation_boundary(False)
        return super().__enter__()

    def _backward(self, loss: torch.Tensor, micro: MicroBatch, entropy_N: torch.Tensor) -> None:
        self._differentiate(loss)
        self._losses.append(float(loss.detach()))
        self.computed = True
        self.tokens += len(micro.target_N)
        self.padded_tokens += micro.padded_tokens
        self.entropy += float(entropy_N.sum())

    def _differentiate(self, loss: torch.Tensor) -> None:
        self._engine.backward(loss * self._ranks.size, scale_wrt_gas=False)

    def _even_out(self, count: int, *, gradient: bool) -> None:
        for _ in range(-(-count // self._ranks.size) - len(self._ranks.mine(range(count)))):
            with torch.set_grad_enabled(gradient):
                logp_N, _ = self._scorer.logprobs(self._trainer._filler)
            if gradient:
                self._differentiate(0.0 * logp_N.sum())

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._step.__exit__(kind, error, trace)
        self._frozen.__exit__(kind, error, trace)
        if kind is not None:
            return
        parts = self._ranks.gather((self.computed, self.tokens, self.padded_tokens, self.entropy, sum(self._losses)))
        self.computed = any(part[0] for part in parts)
        self.tokens, self.padded_tokens = sum(part[1] for part in parts), sum(part[2] for part in parts)
        self.entropy = sum(part[3] for part in parts)
        if self.computed:
            self._finish(sum(part[4] for part in parts))

    def _finish(self, loss: float) -> None:
        """Exchange gradients and step. A loss that is not finite makes DeepSpeed drop the step on all ranks."""
        self._engine.set_gradient_accumulation_boundary(True)
        logp_N, _ = self._scorer.logprobs(self._trainer._filler)
        sound = loss == loss and abs(loss) != float("inf")
        self._differentiate((0.0 if sound else float("nan")) * logp_N.sum())
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self._trainer.schedule.at(self._trainer.steps)
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        self.grad_norm = float("nan") if norm is None else float(norm)
        stepper = self._trainer._stepper
        stepper.taken = not bool(self._engine.optimizer.overflow)
        if stepper.taken:
            self._trainer.publish()


def _initialize(
    model: nn.Module, zero: ZeroSettings, schedule: Schedule, max_grad_norm: float, adam: AdamSettings
) -> tuple[Any, ZeroStepper]:
    deepspeed = import_deepspeed()
    scored = Scored(copy.deepcopy(model))
    _find_head(scored, next(model.parameters()).device)
    parameters = trainable(scored.model)
    dtype = next(p.dtype for p in parameters.values())
    config = deepspeed_config(zero, dtype=dtype, max_grad_norm=max_grad_norm)
    matrices = [p for p in parameters.values() if p.ndim > 1]
    others = [p for p in parameters.values() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": adam.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=schedule.peak, betas=adam.betas, eps=ADAM_EPS)
    with redirect_stdout(sys.stderr):  # stdout is for data; DeepSpeed tells there what it has built
        deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo", verbose=False)
        engine, *_ = deepspeed.initialize(model=scored, optimizer=optimizer, config=config, dist_init_required=False)
    if config["zero_optimization"]["stage"] == 3 and scored.scorer._head is not None:
        # The head's weight is used outside of the head's own forward.
        deepspeed.zero.register_external_parameter(scored, scored.scorer._head.weight)
    return engine, ZeroStepper(engine, parameters, schedule)


def _find_head(scored: Scored, device: torch.device) -> None:
    ids = torch.zeros(1, 2, dtype=torch.long, device=device)
    scored.scorer._find_head(ids, torch.ones_like(ids))


def _filler(model: nn.Module) -> MicroBatch:
    """A micro-batch of one token, for ranks that have to take part without having anything to compute."""
    rows = [TokenRow((0,), (0,))]
    return collate(rows, units(rows, [0], share=False), next(model.parameters()).device)
