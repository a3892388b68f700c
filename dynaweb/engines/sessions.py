"""Batches that are being decoded: a common face for the compact Llama forward and for any other model.

A *runner* belongs to a model, a *session* to one batch. Rows of a session may share a prompt: `owners[i]` is the index of
row i's prompt among the distinct ones, which are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from dynaweb.engines import llama

Prompt = tuple[int, ...]

PREFILL_TOKENS = 2048
"""Padded tokens of one prefill pass: small enough for the processor's caches, large enough to keep it busy."""


class Session(Protocol):
    """One batch. `logits` [B, V] float32 are those of the next token of each row."""

    logits: torch.Tensor

    def step(self, token_B: torch.Tensor) -> None:
        """Append one token to every row and compute the next logits."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        ...


class Runner(Protocol):
    """Computes prompts and opens sessions; `device` is where its tensors live."""

    device: torch.device

    def start(self, prompts: Sequence[Prompt], owners: Sequence[int], room: int) -> Session:
        """A session with one row per owner and room for that many new tokens in each row. Owners are ascending."""
        ...

    def next_logits(self, prompts: Sequence[Prompt]) -> torch.Tensor:
        """Float32 logits [B, V] after each prompt."""
        ...

    def weights_changed(self) -> None:
        """The model's parameters have new values."""
        ...


def runner_for(model: nn.Module, pad_id: int) -> Runner:
    """The fastest runner that serves the model."""
    return GenericRunner(model, pad_id) if llama.unsupported(model) else LlamaRunner(model, pad_id)


def pad_right(prompts: Sequence[Prompt], pad_id: int, device: torch.device) -> torch.Tensor:
    """Token ids [B, T], padding behind each prompt."""
    width = max(map(len, prompts))
    return torch.tensor([[*prompt, *[pad_id] * (width - len(prompt))] for prompt in prompts], device=device)


def spans(lengths: Sequence[int], limit: int) -> Iterator[slice]:
    """Cut a sequence of lengths into slices whose padded size (count x longest) stays within `limit`."""
    start, widest = 0, 0
    for index, length in enumerate(lengths):
        widest = max(widest, length)
        if index > start and (index - start + 1) * widest > limit:
            yield slice(start, index)
            start, widest = index, length
    if start < len(lengths):
        yield slice(start, len(lengths))


class LlamaRunner:
    """Runs `dynaweb.engines.llama`; gathers the fused weights again when the model's own have changed."""

    def __init__(self, model: nn.Module, pad_id: int) -> None:
        self._model = model
        self._pad_id = pad_id
        self._weights: llama.Weights | None = None
        self._seen: tuple[tuple[int, int], ...] = ()
        self.device = next(model.parameters()).device

    @property
    def weights(self) -> llama.Weights:
        """Fused weights that agree with the model's present ones (in-place updates are noticed by themselves)."""
        seen = tuple((p.data_ptr(), p._version) for p in self._model.parameters())
        if self._weights is None or seen != self._seen:
            self.device = next(self._model.parameters()).device
            with torch.no_grad():
                self._weights = llama.fuse(self._model)
            self._seen = seen
        return self._weights

    def weights_changed(self) -> None:
        """Gather the weights anew at the next call, also after writes that leave no trace (`tensor.data`)."""
        self._weights = None

    def next_logits(self, prompts: Sequence[Prompt]) -> torch.Tensor:
        """Prefill only."""
        weights = self.weights
        parts = [
            llama.prefill(weights, *self._pack(prompts[part]))
            for part in spans([len(prompt) for prompt in prompts], PREFILL_TOKENS)
        ]
        return torch.cat(parts)

    def start(self, prompts: Sequence[Prompt], owners: Sequence[int], room: int) -> Session:
        """Prefill each distinct prompt once and spread its keys and values over the rows that share it."""
        weights = self.weights
        lengths = [len(prompt) for prompt in prompts]
        cache = llama.Cache(weights, len(owners), max(lengths) + room)
        parts, row = [], 0
        for part in spans(lengths, PREFILL_TOKENS):
            local = [owner - part.start for owner in owners if part.start <= owner < part.stop]
            rows = slice(row, row + len(local))
            owner = torch.tensor(local, device=self.device)
            found = llama.prefill(weights, *self._pack(prompts[part]), cache, rows, owner)
            parts.append(found.index_select(0, owner))
            row = rows.stop
        return LlamaSession(weights, cache, [lengths[owner] for owner in owners], torch.cat(parts))

    def _pack(self, prompts: Sequence[Prompt]) -> tuple[torch.Tensor, torch.Tensor]:
        last = torch.tensor([len(prompt) - 1 for prompt in prompts], device=self.device)
        return pad_right(prompts, self._pad_id, self.device), last


class LlamaSession:
    """Rows of one cache; rows that end are overwritten by the last ones, so the live rows stay together."""

    def __init__(
        self, weights: llama.Weights, cache: llama.Cache, lengths: Sequence[int], logits: torch.Tensor
    ) -> None:
        self.logits = logits
        self._weights = weights
        self._cache = cache
        self._width = max(lengths)
        self._position = torch.tensor(lengths, device=logits.device)
        columns = torch.arange(cache.value.shape[3], device=logits.device)
        hidden = columns >= self._position[:, None]
        self._mask = torch.zeros(hidden.shape, dtype=cache.value.dtype, device=logits.device)
        self._mask.masked_fill_(hidden, float("-inf"))

    def step(self, token_B: torch.Tensor) -> None:
        """One decoding step of all live rows."""
        self._width += 1
        self._mask.scatter_(1, self._position[:, None], 0.0)
        mask = self._mask[:, : self._width]
        self.logits = llama.decode(self._weights, token_B, self._position, self._cache, mask)
        self._position = self._position + 1

    def keep(self, rows: Sequence[int]) -> None:
        """Rows are moved only into the gaps; `rows` must come from `survivors`."""
        moved = [(source, target) for target, source in enumerate(rows) if source != target]
        if moved:
            self._cache.move([source for source, _ in moved], [target for _, target in moved], self._width)
        index = torch.tensor(rows, device=self.logits.device)
        self.logits = self.logits.index_select(0, index)
        self._position = self._position.index_select(0, index)
        self._mask = self._mask.index_select(0, index)
        self._width = int(self._position.max())


def survivors(ended: Sequence[bool]) -> list[int]:
    """The rows that go on, in an order that moves as few of them as possible: gaps are filled from the end."""
    count = len(ended) - sum(ended)
    spare = iter([row for row in range(count, len(ended)) if not ended[row]])
    return [next(spare) if ended[row] else row for row in range(count)]


class GenericRunner:
    """Any causal language model of transformers: left padding, attention mask and its own cache."""

    def __init__(self, model: nn.Module, pad_id: int) -> None:
        self._model: Any = model
        self._pad_id = pad_id

    @property
    def device(self) -> torch.device:
        """Where the model is now."""
        return next(self._model.parameters()).device  # type: ignore[no-any-return]

    def weights_changed(self) -> None:
        """Nothing is kept between calls."""

    def next_logits(self, prompts: Sequence[Prompt]) -> torch.Tensor:
        """Prefill only."""
        return self.start(prompts, range(len(prompts)), 0).logits

    def start(self, prompts: Sequence[Prompt], owners: Sequence[int], room: int) -> Session:
        """Compute the distinct prompts and repeat their cache for the rows that share them."""
        width = max(map(len, prompts))
        ids = [[*[self._pad_id] * (width - len(prompt)), *prompt] for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        mask_BT = torch.tensor(mask, device=self.device)
        session = GenericSession(self._model, torch.tensor(ids, device=self.device), mask_BT)
        if list(owners) != list(range(len(prompts))):
            session.keep(list(owners))
        return session


class GenericSession:
    """A batch of a `GenericRunner`; rows share the column of their newest token."""

    def __init__(self, model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> None:
        self._model = model
        self._mask = mask_BT
        self._cache: Any = None
        self.logits = self._forward(ids_BT, (mask_BT.cumsum(-1) - 1).clamp_min(0))

    def _forward(self, ids_BT: torch.Tensor, position_BT: torch.Tensor) -> torch.Tensor:
        out = self._model(
            input_ids=ids_BT,
            attention_mask=self._mask,
            position_ids=position_BT,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = out.past_key_values
        logits: torch.Tensor = out.logits[:, -1].float()
        return logits

    def step(self, token_B: torch.Tensor) -> None:
        """One decoding step."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=1)
        self.logits = self._forward(token_B[:, None], self._mask.sum(-1, keepdim=True) - 1)

    def keep(self, rows: Sequence[int]) -> None:
        """Select or repeat rows of the cache."""
        index = torch.tensor(rows, device=self._mask.device)
        self._cache.batch_select_indices(index)
        self._mask = self._mask.index_select(0, index)
        self.logits = self.logits.index_select(0, index)
