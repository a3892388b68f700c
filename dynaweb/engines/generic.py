"""Batches of any causal language model of transformers that are being decoded, with the model's own forward."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import DynamicCache

from dynaweb.engines.fixed_generic import FixedGeneric, FixedSession, fixable
from dynaweb.engines.recording import Recorders, recorder_for
from dynaweb.engines.sharing import Prompt

if TYPE_CHECKING:
    from dynaweb.engines.sessions import Session


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
