"""Batches that are being decoded: a common face for the compact Llama forward and for any other model.

A *runner* belongs to a model, a *session* to one batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from transformers import DynamicCache

from dynaweb.engines import llama
from dynaweb.engines.sharing import Plan, Prompt, spans

PREFILL_TOKENS = 2048
"""Padded tokens of one prefill pass: small enough for the processor's caches, large enough to keep it busy."""


class Session(Protocol):
    """One batch. `logits` [B, V] float32 are those of the next token of each row.

    Row i answers prompt `order[i]` of those that the session was started with; `computed` counts the prompt tokens that
    went through the model.
    """

    logits: torch.Tensor
    order: Sequence[int]
    computed: int

    def step(self, token_B: torch.Tensor) -> None:
        """Append one token to every row and compute the next logits."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        ...


class Runner(Protocol):
    """Computes prompts and opens sessions."""

    @property
    def device(self) -> torch.device:
        """Where its tensors live."""
        ...

    def start(self, prompts: Sequence[Prompt], room: int) -> Session:
        """A session with one row per prompt and room for that many new tokens in each row."""
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


class LlamaRunner:
    """Runs `dynaweb.engines.llama`; gathers the fused weights again when the model's own have changed."""

    def __init__(self, model: nn.Module, pad_id: int) -> None:
        self._model = model
        self._pad_id = pad_id
        self._weights: llama.Weights | None = None
        self._seen: tuple[tuple[int, int], ...] = ()

    @property
    def device(self) -> torch.device:
        """Where the model is now."""
        return next(self._model.parameters()).device

    @property
    def weights(self) -> llama.Weights:
        """Fused weights that agree with the model's present ones (in-place updates are noticed by themselves)."""
        seen = tuple((p.data_ptr(), p._version) for p in self._model.parameters())
        if self._weights is None or seen != self._seen:
            with torch.no_grad():
                self._weights = llama.fuse(self._model)
            self._seen = seen
        return self._weights

    def weights_changed(self) -> None:
        """Gather the weights anew at the next call, also after writes that leave no trace (`tensor.data`)."""
        self._weights = None

    def next_logits(self, prompts: Sequence[Prompt]) -> torch.Tensor:
        """Prefill only."""
        parts = spans([len(prompt) for prompt in prompts], PREFILL_TOKENS)
        return torch.cat([self._prefill(prompts[part], None) for part in parts])

    def start(self, prompts: Sequence[Prompt], room: int) -> Session:
        """Compute what prompts share once, then what is their own."""
        plan = Plan.of(prompts)
        cache = llama.Cache(self.weights, len(prompts), plan.columns(room))
        logits = [*self._start_tails(plan, cache), *self._start_whole(plan, cache)]
        lengths = [len(prompts[row]) for row in plan.order]
        session = LlamaSession(self.weights, cache, lengths, torch.cat(logits), plan.order)
        session.computed = plan.computed
        return session

    def _start_whole(self, plan: Plan, cache: llama.Cache) -> Iterator[torch.Tensor]:
        row = len(plan.tails)
        for part in spans([len(prompt) for prompt, _ in plan.whole], PREFILL_TOKENS):
            chosen = plan.whole[part]
            owner = self._index([i for i, (_, rows) in enumerate(chosen) for _ in rows])
            target = llama.Target(cache, slice(row, row + len(owner)), owner)
            yield self._prefill([prompt for prompt, _ in chosen], target).index_select(0, owner)
            row += len(owner)

    def _start_tails(self, plan: Plan, cache: llama.Cache) -> Iterator[torch.Tensor]:
        place = {row: i for i, row in enumerate(plan.order)}
        for part in spans([len(prefix) for prefix, _ in plan.prefixes], PREFILL_TOKENS):
            chosen = plan.prefixes[part]
            owner = self._index([i for i, (_, rows) in enumerate(chosen) for _ in rows])
            rows = self._index([place[row] for _, rows in chosen for row in rows])
            ids_BT = pad_right([prefix for prefix, _ in chosen], self._pad_id, self.device)
            llama.prefill(self.weights, ids_BT, None, llama.Target(cache, rows, owner))
        for part in spans([len(tail.ids) for tail in plan.tails], PREFILL_TOKENS):
            tails = plan.tails[part]
            ids_BT = pad_right([tail.ids for tail in tails], self._pad_id, self.device)
            start_B = self._index([tail.start for tail in tails])
            last_B = self._index([len(tail.ids) - 1 for tail in tails])
            columns = max(tail.start for tail in tails) + ids_BT.shape[1]
            yield llama.extend(self.weights, ids_BT, start_B, last_B, cache, part, columns)

    def _prefill(self, prompts: Sequence[Prompt], target: llama.Target | None) -> torch.Tensor:
        ids_BT = pad_right(prompts, self._pad_id, self.device)
        last_B = self._index([len(prompt) - 1 for prompt in prompts])
        logits_BV = llama.prefill(self.weights, ids_BT, last_B, target)
        assert logits_BV is not None
        return logits_BV

    def _index(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)


class LlamaSession:
    """Rows of one cache; rows that end are overwritten by the last ones, so the live rows stay together."""

    def __init__(
        self,
        weights: llama.Weights,
        cache: llama.Cache,
        lengths: Sequence[int],
        logits: torch.Tensor,
        order: Sequence[int],
    ) -> None:
        self.logits = logits
        self.order = order
        self.computed = sum(lengths)
        self._weights = weights
        self._cache = cache
        self._lengths = list(lengths)
        self._zero = torch.zeros(len(lengths), dtype=torch.long, device=logits.device)

    def step(self, token_B: torch.Tensor) -> None:
        """One decoding step of all live rows."""
        start_B = torch.tensor(self._lengths, device=token_B.device)
        rows = slice(0, len(self._lengths))
        columns = max(self._lengths) + 1
        last_B = self._zero[rows]
        self.logits = llama.extend(self._weights, token_B[:, None], start_B, last_B, self._cache, rows, columns)
        self._lengths = [length + 1 for length in self._lengths]

    def keep(self, rows: Sequence[int]) -> None:
        """Move the rows that are not in place; `rows` as made by `survivors`, so that none is overwritten too early."""
        moved = [(source, target) for target, source in enumerate(rows) if source != target]
        if moved:
            self._cache.move([source for source, _ in moved], [target for _, target in moved], max(self._lengths))
        self.logits = self.logits[list(rows)]
        self._lengths = [self._lengths[row] for row in rows]


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
        return self._session(prompts).logits

    def start(self, prompts: Sequence[Prompt], room: int) -> Session:
        """Compute the distinct prompts and repeat their cache for the rows that share them."""
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        session = self._session(list(distinct))
        if len(distinct) < len(prompts):
            session.keep([distinct[prompt] for prompt in prompts])
        session.order = range(len(prompts))
        session.computed = sum(map(len, distinct))
        return session

    def _session(self, prompts: Sequence[Prompt]) -> GenericSession:
        width = max(map(len, prompts))
        ids = [[*[self._pad_id] * (width - len(prompt)), *prompt] for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        mask_BT = torch.tensor(mask, device=self.device)
        return GenericSession(self._model, torch.tensor(ids, device=self.device), mask_BT)


class GenericSession:
    """A batch of a `GenericRunner`; rows share the column of their newest token."""

    def __init__(self, model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor) -> None:
        self.order: Sequence[int] = range(len(ids_BT))
        self.computed = int(mask_BT.sum())
        self._model = model
        self._mask = mask_BT
        self._cache = DynamicCache(config=model.config)
        # transformers renamed the argument in 5.24.
        forward = inspect.signature(model.forward).parameters
        self._keyword = "cache" if "cache" in forward else "past_key_values"
        self.logits = self._forward(ids_BT, (mask_BT.cumsum(-1) - 1).clamp_min(0))

    def _forward(self, ids_BT: torch.Tensor, position_BT: torch.Tensor) -> torch.Tensor:
        out = self._model(
            input_ids=ids_BT,
            attention_mask=self._mask,
            position_ids=position_BT,
            use_cache=True,
            logits_to_keep=1,
            **{self._keyword: self._cache},
        )
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
