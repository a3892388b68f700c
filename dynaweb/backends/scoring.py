"""Log-probabilities of response tokens, with gradients, without a [batch, length, vocabulary] tensor.

`LlamaScorer` computes each prompt once however many responses it has, and the last layer and the output head only where
a response token is predicted. `GenericScorer` serves any other causal language model of transformers: rows are packed
without padding where the model allows it, and the output head is at response positions. Both give the same gradients.

Shapes: see `dynaweb.backends.batch.MicroBatch`; D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from dynaweb.backends import batch as batching
from dynaweb.backends.batch import MicroBatch
from dynaweb.backends.head import head_scores, token_scores
from dynaweb.backends.models import frozen
from dynaweb.backends.packing import Layout, can_pack, packed_attention, run_packed
from dynaweb.backends.recompute import recomputed, recomputing
from dynaweb.engines import llama
from dynaweb.protocols import TokenRow


class Scorer(Protocol):
    """Computes micro-batches with one kind of model; `shares_prompts` tells how rows should be grouped, and `packs`
    whether padding is left out of what it computes."""

    shares_prompts: bool

    @property
    def packs(self) -> bool:
        """Whether a micro-batch costs its real tokens, not the padded ones."""
        ...

    def step(self) -> AbstractContextManager[None]:
        """Around all micro-batches of one optimizer step; gradients are complete when it is left."""
        ...

    def logprobs(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Natural-log probability and entropy [N] of the response tokens, float32; only the first has a gradient."""
        ...

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Final hidden states [N, D] that predict the response tokens, in the model's precision, with gradient."""
        ...


def scorer_for(model: nn.Module, *, checkpointing: bool = False) -> Scorer:
    """The fastest scorer that serves the model; with `checkpointing` it makes activations again in backward passes."""
    if llama.unsupported(model):
        return GenericScorer(model, checkpointing=checkpointing)
    return LlamaScorer(model, checkpointing=checkpointing)


def micro_batches(
    scorer: Scorer, rows: Sequence[TokenRow], chosen: Sequence[int], micro_tokens: int, device: torch.device
) -> list[MicroBatch]:
    """The chosen rows as micro-batches of at most `micro_tokens` tokens, as the scorer counts and groups them."""
    found = batching.units(rows, chosen, share=scorer.shares_prompts)
    return [batching.collate(rows, part, device) for part in batching.plan(found, micro_tokens, packed=scorer.packs)]


class LlamaScorer:
    """Prefix and tails of each unit on the compact Llama forward."""

    shares_prompts = True
    packs = False

    def __init__(self, model: nn.Module, *, checkpointing: bool = False) -> None:
        self._model = model
        self._checkpointing = checkpointing
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
        return head_scores(weights.head_VD, None, self._predictors(weights, batch), batch.target_N)

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Final hidden states [N, D] that predict the response tokens."""
        return self._predictors(self._weights(), batch)

    def _predictors(self, weights: llama.Weights, batch: MicroBatch) -> torch.Tensor:
        hidden = shared_hidden(weights, batch, checkpointing=self._checkpointing)
        hidden_ND = hidden.flatten(0, 1).index_select(0, batch.flat_N)
        return llama.normalise(hidden_ND, weights.eps) * weights.norm_D

    def _weights(self) -> llama.Weights:
        return llama.fuse(self._model) if self._proxies is None else self._proxies.weights


def shared_hidden(weights: llama.Weights, batch: MicroBatch, *, checkpointing: bool = False) -> torch.Tensor:
    """Final hidden states [U, Q, D] of the tails, each of which sees its prefix and its own earlier tokens."""
    columns = torch.arange(batch.prefix_UP.shape[1], device=batch.prefix_UP.device)
    turns = llama.rotary(weights, columns), llama.rotary(weights, batch.position_UQ)
    mask = tail_mask(batch)
    prefix, tail = F.embedding(batch.prefix_UP, weights.embed_VD), F.embedding(batch.tail_UQ, weights.embed_VD)
    for index, layer in enumerate(weights.layers):
        block = partial(_block, weights, layer, turns, mask, index == len(weights.layers) - 1)
        prefix, tail = recomputed(block, prefix, tail) if checkpointing else block(prefix, tail)
    return tail


def _block(
    weights: llama.Weights,
    layer: llama.Layer,
    turns: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor,
    final: bool,
    prefix: torch.Tensor,
    tail: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One layer; the final one leaves the prefixes as they are, since nothing looks at them any more."""
    if final:
        prefix_key, prefix_value = llama.project_keys(weights, layer, prefix, turns[0])
    else:
        query, prefix_key, prefix_value = llama.project(weights, layer, prefix, turns[0])
        prefix = llama.finish(weights, layer, prefix, llama.attend(query, prefix_key, prefix_value, is_causal=True))
    query, key, value = llama.project(weights, layer, tail, turns[1])
    keys, values = torch.cat([prefix_key, key], dim=1), torch.cat([prefix_value, value], dim=1)
    return prefix, llama.finish(weights, layer, tail, llama.attend(query, keys, values, attn_mask=mask))


def tail_mask(batch: MicroBatch) -> torch.Tensor:
    """Bool [U, 1, Q, P+Q]: tail tokens see their whole prefix, and themselves and earlier tokens of their own row."""
    columns = torch.arange(batch.prefix_UP.shape[1], device=batch.prefix_UP.device)
    prefix = (columns < batch.prefix_U[:, None])[:, None, :].expand(-1, batch.tail_UQ.shape[1], -1)
    same = batch.segment_UQ[:, :, None] == batch.segment_UQ[:, None, :]
    return torch.cat([prefix, same.tril()], dim=-1)[:, None]


class GenericScorer:
    """The model's own forward; one row per unit. Rows are packed without padding where the model can take that."""

    shares_prompts = False

    def __init__(self, model: nn.Module, *, checkpointing: bool = False) -> None:
        self._model: Any = model
        self._checkpointing = checkpointing

    @cached_property
    def packs(self) -> bool:
        """Whether rows are packed: tried once. Not where head and body are not apart: the whole model pads."""
        if self._head is None:
            return False
        with frozen(self._model):
            return can_pack(self._model, self._body)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Attention and layers stay as the passes need them until the backward passes are over."""
        with ExitStack() as stack:
            if self.packs:
                stack.enter_context(packed_attention(self._model))
            if self._checkpointing:
                stack.enter_context(recomputing(self._model))
            yield

    def logprobs(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies [N] of response tokens."""
        if self._head is not None:
            return head_scores(self._head.weight, self._head.bias, self.hidden(batch), batch.target_N)
        joined = Joined.of(batch)
        logits = self._model(input_ids=joined.ids_UL, attention_mask=joined.mask_UL.long(), use_cache=False).logits
        return token_scores(logits.flatten(0, 1).index_select(0, joined.flat_N), batch.target_N)

    def hidden(self, batch: MicroBatch) -> torch.Tensor:
        """Final hidden states [N, D] that predict the response tokens."""
        joined = Joined.of(batch)
        if not self.packs:
            given = {"input_ids": joined.ids_UL, "attention_mask": joined.mask_UL.long(), "use_cache": False}
            hidden: torch.Tensor = self._body(**given).last_hidden_state
            return hidden.flatten(0, 1).index_select(0, joined.flat_N)
        layout = Layout.of(joined.mask_UL)
        with packed_attention(self._model):
            hidden_TD = run_packed(self._body, joined.ids_UL[joined.mask_UL], layout)
        return hidden_TD.index_select(0, joined.packed_N)

    @cached_property
    def _body(self) -> Any:
        """The model without its head; None where it has no such part."""
        return getattr(self._model, self._model.base_model_prefix, None)

    @cached_property
    def _head(self) -> nn.Linear | None:
        """The head, used apart from the body only where together they are the model: no soft cap or scale between."""
        head, body = self._model.get_output_embeddings(), self._body
        if not isinstance(head, nn.Linear) or body is None:
            return None
        ids = torch.arange(4, device=head.weight.device)[None]
        with frozen(self._model), torch.no_grad():
            whole = self._model(input_ids=ids, use_cache=False).logits
            parts = head(body(input_ids=ids, use_cache=False).last_hidden_state)
        return head if whole.shape == parts.shape and torch.equal(whole, parts) else None


@dataclass(frozen=True, slots=True)
class Joined:
    """Whole rows [U, L], padded on the right, and the index of each response token's predictor: `flat_N` among all
    U*L tokens, `packed_N` among the real ones."""

    ids_UL: torch.Tensor
    mask_UL: torch.Tensor
    flat_N: torch.Tensor
    packed_N: torch.Tensor

    @classmethod
    def of(cls, batch: MicroBatch) -> Joined:
        """Prefixes and tails of a micro-batch put together; each unit must be one row."""
        count, width = batch.prefix_UP.shape
        real_UQ = batch.segment_UQ >= 0
        lengths = batch.prefix_U + real_UQ.sum(-1)
        length = int(lengths.max())
        ids_UL = batch.prefix_UP.new_zeros(count, max(length, width))
        ids_UL[:, :width] = batch.prefix_UP
        unit, column = real_UQ.nonzero(as_tuple=True)
        ids_UL[unit, batch.position_UQ[unit, column]] = batch.tail_UQ[unit, column]
        mask_UL = torch.arange(length, device=ids_UL.device) < lengths[:, None]
        tail = batch.tail_UQ.shape[1]
        place = torch.div(batch.flat_N, tail, rounding_mode="floor")
        position = batch.position_UQ[place, batch.flat_N % tail]
        packed = (lengths.cumsum(0) - lengths)[place] + position
        return cls(ids_UL[:, :length], mask_UL, place * length + position, packed)
