"""Supervised stages: a fixed number of updates on token rows, with checkpoints from which a killed stage goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb import events
from dynaweb.errors import TrainingError
from dynaweb.protocols import TokenRow

if TYPE_CHECKING:
    from dynaweb.backends.torch_backend import TorchTrainer
    from dynaweb.credit import CriticSpec
    from dynaweb.loop.stopping import EarlyStop
    from dynaweb.loop.workspace import LoadedModel, Workspace
    from dynaweb.runs import Stage

WARMUP = 3
"""Warm-up updates of supervised stages."""
CHECKPOINT_EVERY = 50
"""Updates between two checkpoints of a supervised stage."""
CHECKPOINTS = 2
"""How many of them are kept: the last one, and one to go on from should it be damaged."""


async def fit(
    ws: Workspace,
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
    trainer = new_trainer(ws, model, name=name, lr=lr, total_steps=steps, warmup=min(WARMUP, steps // 2))
    resume(trainer, stage.scratch)
    if watch is not None:
        watch.resume(trainer.steps)
    advance = ws.progress(name, steps, "updates", done=trainer.steps)

    def checkpoint() -> None:
        trainer.save(stage.scratch, keep=CHECKPOINTS)
        ws.remember_cost(stage)

    try:
        while trainer.steps < steps and not (watch is not None and watch.given_up):
            index = trainer.steps
            metrics = trainer.supervised_step([rows[i] for i in trainer.draw(len(rows), batch)])
            ws.meter.tokens_trained += int(metrics["tokens"])
            if watch is not None and watch.due(trainer.steps, last=trainer.steps == steps):
                metrics["validation_loss"] = watch.look(trainer)
                ws.remember_cost(stage)
            ws.tell(events.Update(name, index, metrics))
            advance(loss=metrics["loss"])
            if trainer.steps % CHECKPOINT_EVERY == 0:
                checkpoint()
            await ws.breathe()
    except asyncio.CancelledError:
        checkpoint()
        raise
    count_skipped(ws, trainer, name)
    if watch is not None:
        watch.put_back_best(trainer)
    model.save(stage.folder)


def count_skipped(ws: Workspace, trainer: TorchTrainer, name: str) -> int:
    """How many updates of a stage that is over were skipped, since their loss or gradient was not finite.

    Observers are told of them. Raises `TrainingError` when all were: what the stage left would be what it began with.
    """
    skipped, steps = trainer.skipped, trainer.steps
    if not skipped:
        return 0
    told = f"{skipped} of {steps} updates were skipped: their loss or gradient was not finite"
    if skipped >= steps:
        raise TrainingError(
            f"stage {name} learned nothing: {told}; lower the learning rate, or take another optimizer (--opt)"
        )
    ws.tell(events.Failure(where=name, error=told))
    return skipped


def new_trainer(
    ws: Workspace,
    model: LoadedModel,
    *,
    name: str,
    lr: float,
    total_steps: int,
    warmup: int,
    max_grad_norm: float = 1.0,
    critic: tuple[Any, CriticSpec] | None = None,
) -> TorchTrainer:
    """A trainer whose data order derives from the run's seed and the stage's name; `critic` as it takes it."""
    from dynaweb.backends.choice import make_trainer

    return make_trainer(
        model.model,
        ws.recipe.backend,
        ws.team,
        critic=critic,
        lr=lr,
        total_steps=total_steps,
        warmup=warmup,
        max_grad_norm=max_grad_norm,
        micro_tokens=ws.recipe.model.micro_tokens,
        checkpointing=ws.recipe.model.checkpointing,
        seed=ws.seed("order", name),
    )


def resume(trainer: TorchTrainer, folder: Path) -> bool:
    """Load the last checkpoint in `folder` that is whole; damaged ones alone are an error, not a fresh start."""
    from dynaweb.backends.checkpoint import steps

    if not steps(folder):
        return False
    trainer.load(folder)
    return True


def updates_kept(folder: Path, per_update: int) -> set[int]:
    """Numbers of whole updates, of so many optimizer steps each, that the checkpoints in `folder` hold."""
    from dynaweb.backends.checkpoint import steps

    return {step // per_update for step in steps(folder)}
