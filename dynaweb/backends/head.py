"""The output head on agent tokens only: log-probabilities in float32, without keeping logits or a wide head.

Shapes: N response tokens, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from dynaweb.backends.masters import HALF
from dynaweb.engines.llama import widen

HEAD_ELEMENTS = 1 << 25
"""Logits that exist at once."""


def token_scores(logits_NV: torch.Tensor, target_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability [N] of the targets and entropy [N] (nats, detached) of logits."""
    logp_NV = torch.log_softmax(widen(logits_NV), dim=-1)
    return logp_NV.gather(1, target_N[:, None])[:, 0], _entropy(logp_NV.detach())


def head_scores(
    weight_VD: torch.Tensor, bias_V: torch.Tensor | None, hidden_ND: torch.Tensor, target_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`token_scores` of the output head on hidden states, computed in float32 at least.

    A head in half precision would round logits of about 10 by up to 0.03, more than policies move in an update. Logits
    are made in parts of `HEAD_ELEMENTS` and made again in the backward pass, where the gradient of the head adds up in
    float32; what stays in between is the hidden states and one number per token.
    """
    return _HeadScores.apply(hidden_ND, weight_VD, bias_V, target_N)  # type: ignore[no-any-return,no-untyped-call]


class _HeadScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None, target_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        head = _Head(weight_VD, bias_V)
        logps, entropies, sums = [], [], []
        for part in head.parts(len(hidden_ND)):
            logits = head.logits(hidden_ND[part])
            sums.append(logits.logsumexp(-1))
            logits -= sums[-1][:, None]
            logps.append(logits.gather(1, target_N[part, None])[:, 0])
            entropies.append(_entropy(logits))
        sum_N = torch.cat(sums) if sums else hidden_ND.new_zeros(0)
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, target_N, sum_N)
        logp_N = torch.cat(logps) if logps else widen(hidden_ND.new_zeros(0))
        entropy_N = torch.cat(entropies) if entropies else torch.zeros_like(logp_N)
        ctx.mark_non_differentiable(entropy_N)
        return logp_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: torch.Tensor, _: Any) -> tuple[torch.Tensor | None, ...]:
        """d logp / d logits = [v = target] - p_v."""
        hidden_ND, weight_VD, bias_V, target_N, sum_N = ctx.saved_tensors
        head = _Head(weight_VD, bias_V)
        grad_hidden = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(head.weight, dtype=sum_N.dtype) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias_V, dtype=sum_N.dtype) if ctx.needs_input_grad[2] else None
        for part in head.parts(len(hidden_ND)):
            grad = (head.logits(hidden_ND[part]) - sum_N[part, None]).exp_().mul_(-grad_N[part, None])
            grad.scatter_add_(1, target_N[part, None], grad_N[part, None].to(grad.dtype))
            if grad_hidden is not None:
                grad_hidden[part] = head.times(grad)
            if grad_weight is not None:
                head.add_outer(grad_weight, grad, hidden_ND[part])
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_VD.dtype),
            None if grad_bias is None else grad_bias.to(bias_V.dtype),
            None,
        )


class _Head:
    """Products with the head whose sums are float32: on a GPU half-precision factors stay as they are, and the head is
    not copied; elsewhere they are widened for a while."""

    def __init__(self, weight_VD: torch.Tensor, bias_V: torch.Tensor | None) -> None:
        product: Any = torch.ops.aten.mm
        self._native = weight_VD.is_cuda and weight_VD.dtype in HALF and "dtype" in product.overloads()
        self.weight = weight_VD if self._native else widen(weight_VD)
        self._bias = None if bias_V is None else widen(bias_V)

    def parts(self, count: int) -> list[slice]:
        """Slices of `count` tokens that bound the logits."""
        rows = max(1, HEAD_ELEMENTS // len(self.weight))
        return [slice(i, i + rows) for i in range(0, count, rows)]

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Logits [N, V], float32 or wider."""
        if not self._native:
            return F.linear(widen(hidden_ND), self.weight, self._bias)
        found = torch.mm(hidden_ND, self.weight.T, out_dtype=torch.float32)
        return found if self._bias is None else found.add_(self._bias)

    def times(self, grad_NV: torch.Tensor) -> torch.Tensor:
        """The gradient [N, D] of the hidden states."""
        return grad_NV.to(self.weight.dtype) @ self.weight

    def add_outer(self, total_VD: torch.Tensor, grad_NV: torch.Tensor, hidden_ND: torch.Tensor) -> None:
        """Add grad^T x hidden, the head's gradient, in float32."""
        if self._native:
            total_VD += torch.mm(grad_NV.T.to(hidden_ND.dtype), hidden_ND, out_dtype=torch.float32)
        else:
            total_VD.addmm_(grad_NV.T, hidden_ND.to(grad_NV.dtype))


def _entropy(logp_NV: torch.Tensor) -> torch.Tensor:
    """Entropy [N] in nats of log-probabilities."""
    return -(logp_NV.exp() * logp_NV).sum(-1)
