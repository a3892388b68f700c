"""Early stopping by itself: the loss it looks at, the best weights, when it gives up, and going on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_kit import llama, naive_logprobs, rows_of

from dynaweb.pipeline.fit import EarlyStop, mean_loss
from dynaweb.trainer.torch_trainer import TorchTrainer


def weights(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def trainer(model: Any) -> TorchTrainer:
    return TorchTrainer(model, lr=0.05, total_steps=20)


def test_the_loss_is_the_mean_over_target_tokens() -> None:
    model, rows = llama(), rows_of(3)
    with torch.no_grad():
        found = [naive_logprobs(model, row) for row in rows]
    expected = -sum(float(one.sum()) for one in found) / sum(len(one) for one in found)
    assert mean_loss(trainer(model), rows) == pytest.approx(expected, rel=1e-4)


def test_the_best_weights_come_back_and_patience_is_counted_from_them(tmp_path: Path) -> None:
    model, rows = llama(), rows_of(1)
    trained = trainer(model)
    watch = EarlyStop(rows_of(2), every=1, patience=2, folder=tmp_path)
    best: list[torch.Tensor] = []
    while not watch.exhausted:
        trained.supervised_step(rows)
        watch.look(trained)
        if watch.best is not None and watch.best[0] == trained.steps:
            best = weights(model)
        assert trained.steps < 20
    # Learned by heart, the training rows say nothing about the others: their loss rises.
    assert watch.best is not None and trained.steps == watch.best[0] + 2
    assert not all(map(torch.equal, weights(model), best))
    watch.put_back_best(trained)
    assert all(map(torch.equal, weights(model), best))
    assert [path.name for path in tmp_path.glob("best-*")] == [f"best-{watch.best[0]:08d}"]


def test_it_goes_on_with_the_looks_up_to_the_checkpoint(tmp_path: Path) -> None:
    trained = trainer(llama())
    watch = EarlyStop(rows_of(2), every=2, patience=2, folder=tmp_path)
    assert [watch.due(steps) for steps in (1, 2, 3, 4)] == [False, True, False, True]
    assert watch.due(3, last=True)
    assert not EarlyStop((), every=2, patience=2, folder=tmp_path).due(2, last=True)
    for _ in range(3):
        trained.supervised_step(rows_of(1))
        watch.look(trained)
    again = EarlyStop(rows_of(2), every=2, patience=2, folder=tmp_path)
    again.resume(2)
    assert again.losses == watch.losses[:2]
    again.resume(0)
    assert again.losses == [] and again.best is None and not again.exhausted
