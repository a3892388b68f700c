"""Log-probabilities of response tokens, with gradients, without a [batch, length, vocabulary] tensor.

`LlamaScorer` computes each prompt once however many responses it has, and the last layer and the output head only where
a response token is predicted. `GenericScorer` serves any other causal language model of transformers with plain right
padding and the output head at response positions. Both give the same gradients.

Shapes: see `dynaweb.backends.batch.MicroBatch`; D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from dynaweb.backends.batch import MicroBatch
from dynaweb.engines import llama

HEAD_ELEMENTS = 1 << 25
"""Logits computed at once; larger micro-batches recompute them in the backward pass, part by part."""


class Scorer(Protocol):
    """Computes micro-batches with one kind of model; `shares_prompts` tells how rows should be grouped."""

    shares_prompts: bool

    def step(self) -> AbstractContextManager[None]:
        """Around all micro-batches of one optimizer step; gradients are complete when it is left."""
        ...

    def logprobs(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Natural-log probability and entropy [N] of the response tokens, float32; only the first has a gradient."""
        ...

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Final hidden states [N, D] that predict the response tokens, in the model's precision, with gradient."""
        ...


def scorer_for(model: nn.Module) -> Scorer:
    """The fastest scorer that serves the model."""
    return GenericScorer(model) if llama.unsupported(model) else LlamaScorer(model)


def token_scores(logits_NV: torch.Tensor, target_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability [N] of the targets and entropy [N] (nats, detached) of logits."""
    logp_NV = torch.log_softmax(llama.widen(logits_NV), dim=-1)
    with torch.no_grad():
        entropy_N = -(logp_NV.exp() * logp_NV).sum(-1)
    return logp_NV.gather(1, target_N[:, None])[:, 0], entropy_N


def head_scores(
    weight_VD: torch.Tensor, bias_V: torch.Tensor | None, hidden_ND: torch.Tensor, target_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`token_scores` of the output head, computed in float32 at least, in parts that bound the memory of the logits.

    A head in half precision would round logits of about 10 by up to 0.03, more than policies move in an update.
    """
    wide_VD, wide_V = llama.widen(weight_VD), None if bias_V is None else llama.widen(bias_V)

    def part(hidden: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return token_scores(F.linear(llama.widen(hidden), wide_VD, wide_V), target)

    rows = max(1, HEAD_ELEMENTS // len(weight_VD))
    if len(hidden_ND) <= rows:
        return part(hidden_ND, target_N)
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = [
        checkpoint(part, hidden_ND[i : i + rows], target_N[i : i + rows], use_reentrant=False)
        for i in range(0, len(hidden_ND), rows)
    ]
    return torch.cat([logp for logp, _ in pairs]), torch.cat([entropy for _, entropy in pairs])


class LlamaScorer:
    """Prefix and tails of each unit on the compact Llama forward."""

    shares_prompts = True

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._proxies: llama.Proxies | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Fuse the weights once for all micro-batches, and send their gradients on at the end."""
        self._proxies = llama.Proxies(self._model)
        try:
            yield
            self._proxies.push()
        finally:
            self._proxies = None

    def logprobs(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies [N] of response tokens."""
        weights = self._weights()
        return head_scores(weights.head_VD, None, _predictors(weights, batch), batch.target_N)

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Final hidden states [N, D] that predict the response tokens."""
        return _predictors(self._weights(), batch)

    def _weights(self) -> llama.Weights:
        return llama.fuse(self._model) if self._proxies is None else self._proxies.weights


def _predictors(weights: llama.Weights, batch: MicroBatch) -> torch.Tensor:
    hidden_ND = shared_hidden(weights, batch).flatten(0, 1).index_select(0, batch.flat_N)
    return llama.normalise(hidden_ND, weights.eps) * weights.norm_D


def shared_hidden(weights: llama.Weights, batch: MicroBatch) -> torch.Tensor:
    """Final hidden states [U, Q, D] of the tails, each of which sees its prefix and its own earlier tokens."""
    columns = torch.arange(batch.prefix_UP.shape[1], device=batch.prefix_UP.device)
    prefix_turn, tail_turn = llama.rotary(weights, columns), llama.rotary(weights, batch.position_UQ)
    mask = tail_mask(batch)
    prefix, tail = F.embedding(batch.prefix_UP, weights.embed_VD), F.embedding(batch.tail_UQ, weights.embed_VD)
    for index, layer in enumerate(weights.layers):
        final = index == len(weights.layers) - 1
        if final:
            prefix_key, prefix_value = llama.project_keys(weights, layer, prefix, prefix_turn)
        else:
            query, prefix_key, prefix_value = llama.project(weights, layer, prefix, prefix_turn)
            mixed = llama.attend(query, prefix_key, prefix_value, is_causal=True)
            prefix = llama.finish(weights, layer, prefix, mixed)
        query, key, value = llama.project(weights, layer, tail, tail_turn)
        keys, values = torch.cat([prefix_key, key], dim=1), torch.cat([prefix_value, value], dim=1)
        tail = llama.finish(weights, layer, tail, llama.attend(query, keys, values, attn_mask=mask))
    return tail


def tail_mask(batch: MicroBatch) -> torch.Tensor:
    """Bool [U, 1, Q, P+Q]: tail tokens see their whole prefix, and themselves and earlier tokens of their own row."""
    columns = torch.arange(batch.prefix_UP.shape[1], device=batch.prefix_UP.device)
    prefix = (columns < batch.prefix_U[:, None])[:, None, :].expand(-1, batch.tail_UQ.shape[1], -1)
    same = batch.segment_UQ[:, :, None] == batch.segment_UQ[:, None, :]
    return torch.cat([prefix, same.tril()], dim=-1)[:, None]


class GenericScorer:
    """Plain right-padded rows on the model's own forward; one row per unit."""

    shares_prompts = False

    def __init__(self, model: nn.Module) -> None:
        self._model: Any = model
        self._head: nn.Linear | None = None
        self._checked = False

    def step(self) -> AbstractContextManager[None]:
        """Nothing to prepare."""
        return nullcontext()

    def logprobs(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies [N] of response tokens."""
        ids_UL, mask_UL, flat_N = _join(batch)
        if not self._checked:
            self._find_head(ids_UL[:1], mask_UL[:1])
        if self._head is not None:
            return head_scores(self._head.weight, self._head.bias, self.hidden(batch), batch.target_N)
        logits = self._model(input_ids=ids_UL, attention_mask=mask_UL, use_cache=False).logits
        return token_scores(logits.flatten(0, 1).index_select(0, flat_N), batch.target_N)

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Final hidden states [N, D] that predict the response tokens."""
        ids_UL, mask_UL, flat_N = _join(batch)
        hidden: torch.Tensor = self._body()(input_ids=ids_UL, attention_mask=mask_UL, use_cache=False).last_hidden_state
        return hidden.flatten(0, 1).index_select(0, flat_N)

    def _body(self) -> Any:
        return getattr(self._model, self._model.base_model_prefix)

    def _find_head(self, ids: torch.Tensor, mask: torch.Tensor) -> None:
        """Use body and head apart only where together they are the model (no soft cap, no scale in between)."""
        self._checked = True
        head = self._model.get_output_embeddings()
        if not isinstance(head, nn.Linear) or not hasattr(self._model, self._model.base_model_prefix):
            return
        with torch.no_grad():
            whole = self._model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            parts = head(self._body()(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state)
        if whole.shape == parts.shape and torch.equal(whole, parts):
            self._head = head


def _join(batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids [U, L] and attention mask of whole rows, and the index [N] of each response token's predictor."""
    count, width = batch.prefix_UP.shape
    real_UQ = batch.segment_UQ >= 0
    length = int((batch.prefix_U + real_UQ.sum(-1)).max())
    ids_UL = batch.prefix_UP.new_zeros(count, max(length, width))
    ids_UL[:, :width] = batch.prefix_UP
    unit, column = real_UQ.nonzero(as_tuple=True)
    position = batch.position_UQ[unit, column]
    ids_UL[unit, position] = batch.tail_UQ[unit, column]
    ids_UL = ids_UL[:, :length]
    mask_UL = (torch.arange(length, device=ids_UL.device) < (batch.prefix_U + real_UQ.sum(-1))[:, None]).long()
    tail = batch.tail_UQ.shape[1]
    place = torch.div(batch.flat_N, tail, rounding_mode="floor")
    return ids_UL, mask_UL, place * length + batch.position_UQ[place, batch.flat_N % tail]
