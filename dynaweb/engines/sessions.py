"""Batches that are being decoded: a common face for the compact Llama forward and for any other model.

A *runner* belongs to a model, a *session* to one batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from transformers import DynamicCache

from dynaweb.engines import llama
from dynaweb.engines.fixed_generic import FixedGeneric, FixedSession, fixable
from dynaweb.engines.fixed_llama import FixedLlama
from dynaweb.engines.recording import Record, recorder_for
from dynaweb.engines.sharing import Plan, Prompt, spans

PREFILL_TOKENS = 2048
"""Padded tokens of one prefill pass: small enough for the processor's caches, large enough to keep it busy."""
GPU_PREFILL_TOKENS = 16_384
"""The same on a GPU, which fewer tokens leave waiting for launches."""


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


def runner_for(model: nn.Module, pad_id: int, *, static: bool = True) -> Runner:
    """The fastest runner that serves the model; with `static`, decoding steps are recorded where that is faster."""
    recorders = recorder_for if static else _no_recorder
    kind = GenericRunner if llama.unsupported(model) else LlamaRunner
    return kind(model, pad_id, recorders)


Recorders = Callable[[torch.device], Record | None]
"""What records the decoding steps on a device, if anything."""


def _no_recorder(device: torch.device) -> None:
    """Steps are launched one by one."""


def pad_right(prompts: Sequence[Prompt], pad_id: int, device: torch.device) -> torch.Tensor:
    """Token ids [B, T], padding behind each prompt."""
    width = max(map(len, prompts))
    return torch.tensor([[*prompt, *[pad_id] * (width - len(prompt))] for prompt in prompts], device=device)


class LlamaRunner:
    """Runs `dynaweb.engines.llama`; gathers the fused weights again when the model's own have changed."""

    def __init__(self, model: nn.Module, pad_id: int, recorders: Recorders = recorder_for) -> None:
        self._model = model
        self._pad_id = pad_id
        self._recorders = recorders
        self._weights: llama.Weights | None = None
        self._fixed: FixedLlama | None = None
        self._seen: tuple[tuple[int, int], ...] = ()

    @property
    def device(self) -> torch.device:
        """Where the model is now."""
        return next(self._model.parameters()).device

    @property
    def _pass_tokens(self) -> int:
        return PREFILL_TOKENS if self.device.type == "cpu" else GPU_PREFILL_TOKENS

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
        parts = spans([len(prompt) for prompt in prompts], self._pass_tokens)
        return torch.cat([self._prefill(prompts[part], None) for part in parts])

    def start(self, prompts: Sequence[Prompt], room: int) -> Session:
        """Compute what prompts share once, then what is their own."""
        plan = Plan.of(prompts)
        fixed = self._recorded()
        cache = (fixed.cache if fixed else self._cache)(len(prompts), plan.columns(room))
        logits = [*self._start_tails(plan, cache), *self._start_whole(plan, cache)]
        lengths = [len(prompts[row]) for row in plan.order]
        step = fixed.step if fixed else partial(_step, self.weights, cache)
        session = LlamaSession(cache, lengths, torch.cat(logits), plan.order, step)
        session.computed = plan.computed
        return session

    def _cache(self, rows: int, columns: int) -> llama.Cache:
        return llama.Cache(self.weights, rows, columns)

    def _recorded(self) -> FixedLlama | None:
        """Recorded steps on the present weights, where there is something to gain."""
        weights = self.weights
        if self._fixed is not None:
            if self._fixed.weights is weights:
                return self._fixed
            if self._fixed.renew(weights):
                self._weights = self._fixed.weights
                return self._fixed
        record = self._recorders(self.device)
        self._fixed = FixedLlama(weights, record) if record else None
        return self._fixed

    def _start_whole(self, plan: Plan, cache: llama.Cache) -> Iterator[torch.Tensor]:
        row = len(plan.tails)
        for part in spans([len(prompt) for prompt, _ in plan.whole], self._pass_tokens):
            chosen = plan.whole[part]
            owner = self._index([i for i, (_, rows) in enumerate(chosen) for _ in rows])
            target = llama.Target(cache, slice(row, row + len(owner)), owner)
            yield self._prefill([prompt for prompt, _ in chosen], target).index_select(0, owner)
            row += len(owner)

    def _start_tails(self, plan: Plan, cache: llama.Cache) -> Iterator[torch.Tensor]:
        place = {row: i for i, row in enumerate(plan.order)}
        for part in spans([len(prefix) for prefix, _ in plan.prefixes], self._pass_tokens):
            chosen = plan.prefixes[part]
            owner = self._index([i for i, (_, rows) in enumerate(chosen) for _ in rows])
            rows = self._index([place[row] for _, rows in chosen for row in rows])
            ids_BT = pad_right([prefix for prefix, _ in chosen], self._pad_id, self.device)
            llama.prefill(self.weights, ids_BT, None, llama.Target(cache, rows, owner))
        for part in spans([len(tail.ids) for tail in plan.tails], self._pass_tokens):
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
        cache: llama.Cache,
        lengths: Sequence[int],
        logits: torch.Tensor,
        order: Sequence[int],
        step: Callable[[torch.Tensor, Sequence[int]], torch.Tensor],
    ) -> None:
        self.logits = logits
        self.order = order
        self.computed = sum(lengths)
        self._cache = cache
        self._lengths = list(lengths)
        self._step = step

    def step(self, token_B: torch.Tensor) -> None:
        """One decoding step of all live rows."""
        self.logits = self._step(token_B, self._lengths)
        self._lengths = [length + 1 for length in self._lengths]

    def keep(self, rows: Sequence[int]) -> None:
        """Move the rows that are not in place; `rows` as made by `survivors`, so that none is overwritten too early."""
        moved = [(source, target) for target, source in enumerate(rows) if source != target]
        if moved:
            self._cache.move([source for source, _ in moved], [target for _, target in moved], max(self._lengths))
        self.logits = self.logits[list(rows)]
        self._lengths = [self._lengths[row] for row in rows]


def _step(weights: llama.Weights, cache: llama.Cache, token_B: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Logits [B, V] after one more token in each of the first B rows, looking at no more columns than are in use."""
    start_B = torch.tensor(lengths, device=token_B.device)
    last_B = torch.zeros_like(start_B)
    rows = slice(0, len(lengths))
    return llama.extend(weights, token_B[:, None], start_B, last_B, cache, rows, max(lengths) + 1)


def survivors(ended: Sequence[bool]) -> list[int]:
    """The rows that go on, in an order that moves as few of them as possible: gaps are filled from the end."""
    count = len(ended) - sum(ended)
    spare = iter([row for row in range(count, len(ended)) if not ended[row]])
    return [next(spare) if ended[row] else row for row in range(count)]


class GenericRunner:
    """Any causal language model of transformers: left padding, attention mask and its own cache."""

    def __init__(self, model: nn.Module, pad_id: int, recorders: Recorders = recorder_for) -> None:
        self._model: Any = model
        self._pad_id = pad_id
        self._recorders = recorders
        self._fixed: FixedGeneric | None = None

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
        fixed = self._recorded()
        if fixed is None:
            return session
        return FixedSession(session, fixed.shape(len(prompts), max(map(len, prompts)) + room))

    def _recorded(self) -> FixedGeneric | None:
        """Recorded steps, where there is something to gain."""
        if self._fixed is None and (record := self._recorders(self.device)) and fixable(self._model):
            self._fixed = FixedGeneric(self._model, record)
        return self._fixed

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
        self.mask = mask_BT
        self.cache = DynamicCache(config=model.config)
        # transformers renamed the argument in 5.24.
        forward = inspect.signature(model.forward).parameters
        self._keyword = "cache" if "cache" in forward else "past_key_values"
        self.logits = self.run(ids_BT, mask_BT, (mask_BT.cumsum(-1) - 1).clamp_min(0), self.cache)

    def run(self, ids_BT: torch.Tensor, mask: torch.Tensor, position_BT: torch.Tensor, cache: Any) -> torch.Tensor:
        """Float32 logits [B, V] after the last of the tokens; the mask is [B, all columns] or has four axes."""
        out = self._model(
            input_ids=ids_BT,
            attention_mask=mask,
            position_ids=position_BT,
            use_cache=True,
            logits_to_keep=1,
            **{self._keyword: cache},
        )
        logits: torch.Tensor = out.logits[:, -1].float()
        return logits

    def step(self, token_B: torch.Tensor) -> None:
        """One decoding step."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], dim=1)
        self.logits = self.run(token_B[:, None], self.mask, self.mask.sum(-1, keepdim=True) - 1, self.cache)

    def keep(self, rows: Sequence[int]) -> None:
        """Select or repeat rows of the cache."""
        index = torch.tensor(rows, device=self.mask.device)
        self.cache.batch_select_indices(index)
        self.mask = self.mask.index_select(0, index)
        self.logits = self.logits.index_select(0, index)
