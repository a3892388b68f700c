"""Sequences of any length side by side in one row, without padding, through a model of transformers.

Everything but attention looks at tokens one by one, so it runs on exactly the tokens that there are. Attention keeps
the sequences apart: by torch's variable-length kernel where there is one (half precision on CUDA), else on a padded
view of queries, keys and values, which is right everywhere. Positions start anew in each sequence.

Shapes: U sequences, L tokens of the longest, T packed tokens, H query heads, K key heads, E head width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dynaweb.backends.masters import HALF

NAME = "dynaweb_packed"
"""What transformers calls the attention below."""
UNKNOWN = ("softcap", "s_aux")
"""Twists of attention that it does not know."""
WIDEST_HEAD = 256
"""Head width that the variable-length kernel takes at most."""


class CannotPackError(ValueError):
    """A model whose attention cannot be told where sequences end."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where sequences lie: `start` [U+1] (int32) among packed tokens, `place_T` each token in the U*L padded ones."""

    start: torch.Tensor
    longest: int
    place_T: torch.Tensor

    @classmethod
    def of(cls, mask_UL: torch.Tensor) -> Layout:
        """Of sequences that are padded on the right."""
        lengths = mask_UL.sum(-1)
        start = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        return cls(start, mask_UL.shape[1], mask_UL.flatten().nonzero()[:, 0])

    @property
    def position_T(self) -> torch.Tensor:
        """Position of each token in its sequence."""
        return self.place_T % self.longest

    def padded(self, x_T: torch.Tensor) -> torch.Tensor:
        """[T, ...] as [U, L, ...], 0 behind each sequence."""
        rows = len(self.start) - 1
        flat = x_T.new_zeros(rows * self.longest, *x_T.shape[1:]).index_copy(0, self.place_T, x_T)
        return flat.view(rows, self.longest, *x_T.shape[1:])

    def packed(self, x_UL: torch.Tensor) -> torch.Tensor:
        """The opposite of `padded`."""
        return x_UL.flatten(0, 1).index_select(0, self.place_T)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, scale: float | None, window: int | None
) -> torch.Tensor:
    """Causal attention of [T, H, E] over [T, K, E] within each sequence; `window` tokens back at most."""
    grouped = query.shape[1] != key.shape[1]
    kernel = varlen()
    if kernel is not None and query.is_cuda and query.dtype in HALF and query.shape[-1] <= WIDEST_HEAD:
        ends = (layout.start, layout.start, layout.longest, layout.longest)
        back = -1 if window is None else window - 1
        more: dict[str, Any] = {"scale": scale, "window_size": (back, 0)}
        if grouped and knows_groups(kernel):
            more["enable_gqa"] = True
        elif grouped:
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
        out: torch.Tensor = kernel(query, key, value, *ends, **more)
        return out
    q, k, v = (layout.padded(x).transpose(1, 2) for x in (query, key, value))
    seen = None if window is None or window >= layout.longest else _band(layout.longest, window, query.device)
    mixed = F.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, is_causal=seen is None, scale=scale, enable_gqa=grouped
    )
    return layout.packed(mixed.transpose(1, 2))


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    """Bool [L, L]: each token sees itself and the `window` - 1 before it."""
    ones = torch.ones(length, length, dtype=torch.bool, device=device)
    return ones.tril() & ones.triu(1 - window)


@cache
def varlen() -> Callable[..., Any] | None:
    """torch's variable-length attention, where the installed torch has one with all that is needed."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    wanted = {"scale", "window_size"}
    return varlen_attn if wanted <= inspect.signature(varlen_attn).parameters.keys() else None


@cache
def knows_groups(kernel: Callable[..., Any]) -> bool:
    """Whether it takes fewer heads of keys than of queries; else they are repeated."""
    return "enable_gqa" in inspect.signature(kernel).parameters


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    layout: Layout | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """`attend` as transformers calls it: [1, H, T, E] in, [1, T, H, E] out."""
    if layout is None or len(query) != 1 or any(more.get(name) is not None for name in UNKNOWN):
        raise CannotPackError(f"{type(module).__name__} gives attention something that packing does not know")
    heads = [x[0].transpose(0, 1) for x in (query, key, value)]
    return attend(heads[0], heads[1], heads[2], layout, scaling, sliding_window)[None], None


@contextmanager
def packed_attention(model: nn.Module) -> Iterator[None]:
    """While it lasts, the model's attention is the one above: give it `layout` beside its other inputs."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)
    found: dict[int, Any] = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    before = [(config, config._attn_implementation) for config in found.values()]
    for config in found.values():
        config._attn_implementation = NAME
    try:
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name


def can_pack(model: Any, body: Any) -> bool:
    """Whether packed sequences give what each gives alone: tried on two short ones.

    Models with state beside attention (convolutions, recurrence) or a twist of attention fail, and stay padded.
    """
    device = next(model.parameters()).device
    ids = torch.arange(1, 9, device=device) % model.config.get_text_config().vocab_size
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2], device=device)
    layout = Layout.of(mask)
    with torch.no_grad():
        alone = [body(input_ids=part[None], use_cache=False).last_hidden_state[0] for part in (ids[:5], ids[5:])]
        try:
            with packed_attention(model):
                found = run_packed(body, ids, layout)
        except (CannotPackError, TypeError, ValueError, RuntimeError):
            return False
    apart = (found - torch.cat(alone)).float().abs().mean() / torch.cat(alone).float().abs().mean()
    return bool(apart < (3e-2 if found.dtype in HALF else 1e-4))


def run_packed(body: Any, ids_T: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Last hidden states [T, D] of packed tokens; within `packed_attention`."""
    given = {"input_ids": ids_T[None], "position_ids": layout.position_T[None], "use_cache": False}
    hidden: torch.Tensor = body(**given, layout=layout).last_hidden_state
    return hidden[0]
