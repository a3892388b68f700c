"""FSDP2 as trainer: torch's `fully_shard` around the same losses as the torch backend (arXiv 2304.11277).

Each decoder layer is one unit of what is gathered and reduced; everything else of the model is another. Shards are the
float32 masters: half-precision weights are rounded from them whenever they are gathered, gradients are reduced and
added in float32, and AdamW moves what each rank has. The stage says what is spread over ranks between the passes of an
update, in the words of ZeRO: 1 the optimizer's state (weights are gathered and gradients reduced once an update), 2
gradients too (reduced in each backward pass), 3 weights too (gathered in each pass, layer by layer).

How ranks share an update, and what is trained and saved: `dynaweb.trainer.distributed.sharded`.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dynaweb.engines.local.architecture import language_part
from dynaweb.engines.local.llama import HALF
from dynaweb.errors import ConfigError, MissingError
from dynaweb.trainer.distributed.sharded import Scored, ShardedPass, ShardedScorer, ShardedTrainer
from dynaweb.trainer.logprobs import Scorer
from dynaweb.trainer.models import trainable
from dynaweb.trainer.stepper import AdamSettings, AnyStepper, Schedule, Stepper
from dynaweb.trainer.torch_trainer import UpdatePass

OLDEST = (2, 8)
"""The first torch whose FSDP2 takes weights that are not trained in another precision than those that are."""
ADVICE = "set backend.name = torch or deepspeed"


class FsdpTrainer(ShardedTrainer):
    """Weights, gradients and AdamW's state spread over ranks by FSDP2, as the stage says."""

    def __init__(self, model: nn.Module, *, stage: int, **named: Any) -> None:
        self.stage = stage
        super().__init__(model, **named)

    def _parts(self, adam: AdamSettings, checkpointing: bool) -> tuple[Scorer, AnyStepper]:
        self.scored: Any = Scored(copy.deepcopy(self.model).eval(), checkpointing, self.vision)
        with torch.no_grad():
            whole = self.scored(self.filler)[0]
        shard(self.scored, self.stage)
        self._try_out(whole)
        self._shards = trainable(self.scored.model)
        return ShardedScorer(self.scored, self.scored), FsdpStepper(self, self._shards, self.schedule, adam)

    def _try_out(self, whole_N: torch.Tensor) -> None:
        """Raise `ConfigError` where the shards do not compute what the whole model does."""
        try:
            with torch.no_grad():
                logp_N = self.scored(self.filler)[0]
        except (torch.OutOfMemoryError, dist.DistError):
            raise
        except Exception as error:  # of any model's code, which reads weights where FSDP2 does not expect it
            raise _unfit(self.model, str(error).partition("\n")[0]) from error
        if not torch.allclose(logp_N, whole_N, rtol=1e-2, atol=1e-2, equal_nan=True):
            raise _unfit(self.model, f"a log-probability is {float(logp_N[0])} instead of {float(whole_N[0])}")
        self.reshard()

    def _update(self) -> UpdatePass:
        return FsdpPass(self)

    def logprobs(self, rows: Any) -> Any:
        """As the torch backend's."""
        try:
            return super().logprobs(rows)
        finally:
            self.reshard()

    def reshard(self) -> None:
        """Free gathered weights: they are not those of the next update."""
        for unit in _units(self.scored):
            unit.reshard()

    def publish(self) -> None:
        """The trained weights into the model that engines and files see, one at a time."""
        with torch.no_grad():
            for name, parameter in trainable(self.model).items():
                parameter.copy_(_whole(self._shards[name].to(parameter.dtype)))


class FsdpPass(ShardedPass):
    """One update through FSDP2; its gradients are shares of the whole batch's, on the shards."""

    def __init__(self, trainer: FsdpTrainer) -> None:
        super().__init__(trainer)
        self._trainer = trainer
        self._at_once = trainer.stage == 1
        """Gradients are reduced once, at the end."""

    def __enter__(self) -> UpdatePass:
        self._trainer.scored.set_requires_gradient_sync(not self._at_once)
        return super().__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        self._trainer.reshard()

    def _differentiate(self, loss: torch.Tensor) -> None:
        super()._differentiate(loss * self._ranks.size)

    def _exchange(self) -> None:
        if self._at_once:
            self._trainer.scored.set_requires_gradient_sync(True)
            self._fill()

    def _clip(self) -> float:
        norm: Any = nn.utils.clip_grad_norm_(self._parameters, self._max_grad_norm)
        return float(_whole(norm))


class FsdpStepper(Stepper):
    """torch's AdamW on shards. Whole tensors are gathered one at a time, and kept by rank 0 alone.

    `torch.distributed.checkpoint.state_dict` is not used: before the first update it would take an empty step of AdamW,
    which a checkpoint would then count.
    """

    def __init__(
        self, trainer: FsdpTrainer, shards: Mapping[str, nn.Parameter], schedule: Schedule, settings: AdamSettings
    ) -> None:
        super().__init__(shards, schedule, settings, what="model")
        self._trainer = trainer
        self._unmoved = None  # float32 masters move at any learning rate that is of use

    def move(self, step: int) -> None:
        """See `AnyStepper`."""
        super().move(step)
        self._trainer.publish()

    def tensors(self) -> dict[str, torch.Tensor]:
        """See `AnyStepper`. All ranks have to ask; only rank 0 gets the numbers."""
        out: dict[str, torch.Tensor] = {}
        for name, tensor in super().tensors().items():
            whole = _whole(tensor)
            if self._trainer.ranks.rank == 0:
                out[name] = whole.cpu()
        return out

    def load(self, tensors: Mapping[str, torch.Tensor], skipped: int) -> None:
        """See `AnyStepper`."""
        self.check(tensors)
        super().load({name: self._share(name, tensor) for name, tensor in tensors.items()}, skipped)

    def _share(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's share of a checkpoint's tensor; AdamW's count of steps is whole everywhere."""
        from torch.distributed.tensor import distribute_tensor

        kind, _, rest = name.partition(".")
        shard: Any = self._leaves[rest if kind == "model" else rest.partition(".")[2]]
        if tensor.shape != shard.shape:
            return tensor
        # Every rank has read the file: nothing has to be sent.
        return distribute_tensor(tensor.to(shard.device), shard.device_mesh, shard.placements, src_data_rank=None)


def shard(scored: Scored, stage: int) -> None:
    """Spread a model's weights over all ranks, in place.

    Raises `ConfigError` for a model that FSDP2 cannot take as it is.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = scored.model
    layers = decoder_layers(model)
    precisions = {parameter.dtype for parameter in model.parameters()}
    if len(precisions) > 1:
        raise _unfit(model, f"its weights have several precisions ({', '.join(sorted(map(str, precisions)))})")
    (dtype,) = precisions
    half = dtype in HALF
    policy = MixedPrecisionPolicy(
        param_dtype=dtype if half else None,
        reduce_dtype=torch.float32 if half else None,
        cast_forward_inputs=False,  # what layers are given keeps the precision that the model chose
    )
    mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
    for module in (*layers, scored):
        for parameter in module.parameters() if half else ():
            if parameter.requires_grad and parameter.dtype == dtype:
                parameter.data = parameter.data.float()
        # What follows the layers is needed again as soon as the backward pass begins.
        free = stage == 3 and module is not scored
        try:
            unit = fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=free)
        except (AssertionError, NotImplementedError, ValueError) as error:
            raise _unfit(model, str(error)) from error
        unit.set_reshard_after_backward(stage == 3, recurse=False)


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a language model that are gathered one after another: those that transformers says must not be
    split, the outer ones, or else the longest list of layers, by weights.

    Raises `ConfigError` where there are none, or where some share weights.
    """
    language: Any = language_part(model)
    names = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in language.modules() if type(module).__name__ in names]
    inner = {id(part) for layer in layers for part in layer.modules() if part is not layer}
    layers = [layer for layer in layers if id(layer) not in inner]
    if not layers:
        lists = [module for module in language.modules() if isinstance(module, nn.ModuleList) and len(module) > 1]
        layers = list(max(lists, key=lambda one: sum(p.numel() for p in one.parameters()), default=()))
    if not layers:
        raise _unfit(model, "it has no list of decoder layers")
    owners = Counter(id(parameter) for layer in layers for parameter in layer.parameters())
    if max(owners.values(), default=1) > 1:
        raise _unfit(model, "some of its layers share weights")
    return layers


def check_fsdp() -> None:
    """Raise `MissingError` for a torch without what is needed of FSDP2."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST:
        least = ".".join(map(str, OLDEST))
        raise MissingError(
            f"backend.name = 'fsdp' needs torch {least} or newer, and this is {torch.__version__}; run: pip install "
            f"'torch>={least}', or {ADVICE}"
        )


def _unfit(model: nn.Module, why: str) -> ConfigError:
    return ConfigError(f"backend.name = 'fsdp' cannot spread {type(model).__name__} over ranks: {why}; {ADVICE}")


def _units(scored: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in scored.modules() if isinstance(module, FSDPModule)]


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of which this rank has a part; all ranks have to ask."""
    from torch.distributed.tensor import DTensor  # older versions of torch have none

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
