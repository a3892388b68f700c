"""A critic that says how likely success is: two outputs (failure, success) for each page, trained by cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dynaweb.backends.loss import clean
from dynaweb.credit import ValueInput
from dynaweb.protocols import LossOutput

CLASSES = 2


def probability(outputs: Sequence[float]) -> float:
    """Chance of success from the outputs for failure and success."""
    no, yes = outputs
    return 1 / (1 + math.exp(max(-700.0, min(700.0, no - yes))))


def cross_entropy(batch: ValueInput, *, heads: int = 1) -> LossOutput:
    """Cross-entropy of success against failure on each page: mean over pages, sum over heads of two outputs each.

    `value_mean_sum` is the share of the mean chance of success, of the first head.
    """
    mask_R = batch.mask_RT[:, 0]
    label_R = clean(batch.target_RT[:, 0], mask_R).long()
    total = batch.output_RTO.new_zeros(())
    for head in range(heads):
        logits_RC = clean(batch.output_RTO[:, 0, CLASSES * head : CLASSES * (head + 1)], mask_R[:, None])
        entropy_R = torch.nn.functional.cross_entropy(logits_RC, label_R, reduction="none")
        total = total + clean(entropy_R, mask_R).sum() / max(1, batch.states)
    sure_R = clean(batch.output_RTO[:, 0, :CLASSES].detach().softmax(-1)[:, 1], mask_R)
    return LossOutput(total, {"value_mean_sum": float(sure_R.sum()) / max(1, batch.states)})
