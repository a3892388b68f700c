"""Supervised fitting: updates on token rows, early stopping, low-rank adapters."""

from __future__ import annotations

import asyncio
import copy
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb import events
from dynaweb.errors import TrainingError
from dynaweb.pipeline.artifacts import LoadedModel
from dynaweb.plugin.discovery import library
from dynaweb.protocols import TokenRow
from dynaweb.runs import write_json
from dynaweb.trainer.resume import best_folder, best_of, prune_best, resume

if TYPE_CHECKING:
    from torch import nn

    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import CriticSpec
    from dynaweb.runs import Stage
    from dynaweb.trainer.torch_trainer import TorchTrainer

WARMUP = 3
"""Warm-up updates of supervised stages."""
CHECKPOINT_EVERY = 50
"""Updates between two checkpoints of a supervised stage."""
CHECKPOINTS = 2
"""How many of them are kept: the last one, and one to go on from should it be damaged."""
STATE = "validation.json"
MAX_ROWS = 256


async def fit(
    ctx: RunContext,
    stage: Stage,
    model: LoadedModel,
    rows: Sequence[TokenRow],
    *,
    name: str,
    steps: int,
    batch: int,
    lr: float,
    watch: EarlyStop | None = None,
) -> None:
    """Train `model` in place for `steps` updates of `batch` rows, every row once before any comes again.

    `watch` may end it earlier, and then gives the model its best weights. Goes on from the checkpoint in
    `stage.scratch` if there is one; the result is the same. Writes the weights to `stage.folder`. Raises
    `TrainingError` without rows, and when there was not one sound update.
    """
    if not rows:
        raise TrainingError(f"stage {name} has nothing to learn from: its data holds no usable step")
    trainer = new_trainer(ctx, model, name=name, lr=lr, total_steps=steps, warmup=min(WARMUP, steps // 2))
    if resume(trainer, stage.scratch):
        ctx.meter.resumed()
    if watch is not None:
        watch.resume(trainer.steps)
    advance = ctx.progress(name, steps, "updates", done=trainer.steps)

    def checkpoint() -> None:
        trainer.save(stage.scratch, keep=CHECKPOINTS)
        ctx.remember_cost(stage)

    try:
        while trainer.steps < steps and not (watch is not None and watch.exhausted):
            index = trainer.steps
            metrics = trainer.supervised_step([rows[i] for i in trainer.draw(len(rows), batch)])
            ctx.meter.tokens_trained += int(metrics["tokens"])
            if watch is not None and watch.due(trainer.steps, last=trainer.steps == steps):
                metrics["validation_loss"] = watch.look(trainer)
                ctx.remember_cost(stage)
            ctx.tell(events.Update(name, index, metrics))
            advance(loss=metrics["loss"])
            if trainer.steps % CHECKPOINT_EVERY == 0:
                checkpoint()
            await ctx.breathe()
    except asyncio.CancelledError:
        checkpoint()
        raise
    count_skipped(ctx, trainer, name)
    if watch is not None:
        watch.put_back_best(trainer)
    model.save(stage.folder)


def new_trainer(
    ctx: RunContext,
    model: LoadedModel,
    *,
    name: str,
    lr: float,
    total_steps: int,
    warmup: int,
    max_grad_norm: float = 1.0,
    temperature: float = 1.0,
    critic: tuple[Any, CriticSpec] | None = None,
) -> TorchTrainer:
    """A trainer whose data order derives from the run's seed and the stage's name; the rest as it takes it."""
    from dynaweb.trainer.choice import make_trainer

    return make_trainer(
        model.model,
        ctx.recipe.backend,
        ctx.models.team,
        critic=critic,
        lr=lr,
        total_steps=total_steps,
        warmup=warmup,
        max_grad_norm=max_grad_norm,
        temperature=temperature,
        micro_tokens=ctx.recipe.model.micro_tokens,
        checkpointing=ctx.recipe.model.checkpointing,
        vision=model.vision,
        seed=ctx.seed("order", name),
    )


def count_skipped(ctx: RunContext, trainer: TorchTrainer, name: str) -> int:
    """How many updates of a stage that is over were skipped, since their loss or gradient was not finite.

    Observers are told of them. Raises `TrainingError` when all were: what the stage left would be what it began with.
    """
    skipped, steps = trainer.skipped, trainer.steps
    if not skipped:
        return 0
    reason = f"{skipped} of {steps} updates were skipped: their loss or gradient was not finite"
    if skipped >= steps:
        raise TrainingError(
            f"stage {name} learned nothing: {reason}; lower the learning rate, or take another optimizer (--opt)"
        )
    ctx.tell(events.Failure(where=name, error=reason))
    return skipped


@dataclass(slots=True)
class EarlyStop:
    """Early stopping: the mean loss per target token on `rows`, which are not trained on, every `every` updates and
    after the last one; `patience` looks without a better one end the training.

    Losses and the best weights are in `folder`, the stage's scratch, beside the trainer's checkpoint, so that a stage
    that goes on after a kill stops where it would have.
    """

    rows: Sequence[TokenRow]
    every: int
    patience: int
    folder: Path
    losses: list[tuple[int, float]] = field(default_factory=list)

    def resume(self, steps: int) -> None:
        """Go on with what was seen up to `steps` updates."""
        path = self.folder / STATE
        saved = json.loads(path.read_text(encoding="utf-8")) if steps and path.exists() else []
        self.losses = [(step, loss) for step, loss in saved if step <= steps]

    @property
    def best(self) -> tuple[int, float] | None:
        """Update and loss of the best look, the earliest of equals."""
        step = best_of(self._marks, self.losses[-1][0]) if self.losses else None
        return (step, dict(self.losses)[step]) if step is not None else None

    @property
    def exhausted(self) -> bool:
        """Whether the last `patience` looks were no better than the best before them."""
        best = self.best
        return best is not None and sum(step > best[0] for step, _ in self.losses) >= self.patience

    def due(self, steps: int, *, last: bool = False) -> bool:
        """Whether to look after so many updates: at every `every`th, and at the `last`."""
        return bool(self.rows) and (last or steps % self.every == 0)

    def look(self, trainer: TorchTrainer) -> float:
        """Measure, note, and keep the weights if they are the best so far; then the trainer is checkpointed."""
        from dynaweb.trainer import checkpoint

        loss = mean_loss(trainer, self.rows)
        self.losses.append((trainer.steps, loss))
        if self.best == (trainer.steps, loss):
            tensors = {name: p.detach() for name, p in trainer.model.named_parameters() if p.requires_grad}
            checkpoint.save(best_folder(self.folder, trainer.steps), tensors, {}, trainer.steps)
        write_json(self.folder / STATE, self.losses)
        trainer.save(self.folder, keep=CHECKPOINTS)
        # Older weights go only now: until the trainer was saved, a kill would have led back to them.
        prune_best(self.folder, self._marks, checkpoint.steps(self.folder))
        return loss

    def put_back_best(self, trainer: TorchTrainer) -> None:
        """Give the trainer's model, on all ranks, the best weights that were seen; the training must be over."""
        if self.best is not None and self.best[0] != trainer.steps:
            trainer.load_weights(best_folder(self.folder, self.best[0]))

    @property
    def _marks(self) -> list[tuple[int, float]]:
        return [(step, -loss) for step, loss in self.losses]


def mean_loss(trainer: TorchTrainer, rows: Sequence[TokenRow]) -> float:
    """Mean negative log-probability per target token, in nats."""
    logprobs = trainer.logprobs(rows)
    return -sum(float(one.sum()) for one in logprobs) / max(1, sum(len(one) for one in logprobs))


def with_adapters(model: LoadedModel, rank: int, *, seed: int) -> LoadedModel:
    """The model with low-rank adapters of that rank on every linear layer as the only trained weights; itself for 0.

    Of a model that sees, the linear layers of its language model, unless its vision is trained too
    (`observation.train_vision`).

    LoRA: Hu et al., arXiv 2106.09685. The adapters are put into the given model, so it trains with them, and are merged
    into its weights when training ends: what a stage leaves is a plain model. Raises `MissingError` without the package
    `peft`, and `ConfigError` for a model that adapters do not reach (`dynaweb.trainer.adapters`).
    """
    if rank == 0:
        return model
    peft = library("peft", "lora", what="lora_rank")
    import torch

    from dynaweb.engines.local.architecture import trains_vision
    from dynaweb.trainer.adapters import adapter_layers

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = adapter_layers(model.model, vision=trains_vision(model.model))
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=layers, lora_dropout=0.0)
        with warnings.catch_warnings(action="ignore"):  # that layers of GPT-2 are stored the other way round
            peft.inject_adapter_in_model(config, model.model)
    return AdaptedModel(model.model, model.tokenizer, model.format, model.vision)


@dataclass(frozen=True, slots=True)
class AdaptedModel(LoadedModel):
    """A model with adapters in it, until `save` merges them."""

    def save(self, folder: Path) -> None:
        """Merge, and write the weights as those of any model; the model itself is a plain one from then on."""
        from dynaweb.engines.local.architecture import trains_vision
        from dynaweb.trainer.adapters import freeze_vision

        sees = trains_vision(self.model)
        _merge(self.model)
        for parameter in self.model.parameters():
            parameter.requires_grad_(True)
        if not sees:
            freeze_vision(self.model)
        LoadedModel.save(self, folder)

    def write(self, folder: Path) -> None:
        """Write the weights of a merged copy in main memory; the model keeps its adapters, and a GPU holds it once."""
        replace(self, model=_copy_on_cpu(self.model)).save(folder)


def _copy_on_cpu(model: nn.Module) -> nn.Module:
    from torch import nn

    copies: dict[int, Any] = {id(b): b.detach().cpu().clone() for b in model.buffers()}
    copies |= {id(p): nn.Parameter(p.detach().cpu().clone(), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, copies)


def _merge(model: Any) -> None:
    """Add each adapter to its layer, and put the layer back where it was."""
    from peft.tuners.lora import LoraLayer
    from torch.autograd.graph import increment_version

    for name, layer in [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]:
        adapted: Any = layer
        adapted.merge()
        # peft writes past autograd, by whose count engines notice that weights are new.
        increment_version(adapted.get_base_layer().weight)
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, adapted.get_base_layer())
