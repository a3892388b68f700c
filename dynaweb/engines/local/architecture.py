"""What a model of transformers computes, read or tried on it before anything relies on it.

The trainer lays sequences side by side and the engine pads prompts on the left. Both change where tokens lie, and are
right only for a model whose tokens see each other by a causal mask, with or without a sliding window, and look at
positions that they are given. What is read here: the mask of each attention layer, for sequences longer than any window
(`read_attention`), and rotary frequencies that depend on a sequence's length (`rope_limit`). What is tried: that later
tokens change nothing (`refuse_unfit`). Where there is doubt, the answer is no, and the slower way is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from dynaweb.engines.local.llama import HALF
from dynaweb.errors import ConfigError

LONGEST = 1 << 17
"""Masks are read for sequences of so many tokens."""
READING = "dynaweb_reading"
"""What transformers calls the attention that reads masks."""
PLAIN_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer)
"""Layers of a cache that hold keys and values, and whose rows can be selected."""
PLAIN = frozenset({"dropout", "is_causal", "position_ids", "sliding_window", "use_cache", "cache_position"})
"""Arguments of attention that change nothing, or that masks and given positions stand for."""


def body_of(model: Any) -> Any:
    """The model without its output head; None where it has no such part."""
    names = (model.base_model_prefix, "model", "transformer")
    return next((body for name in names if isinstance(body := getattr(model, name, None), nn.Module)), None)


def language_part(model: Any) -> Any:
    """The language model within a model that sees, without its output head; a model that reads text alone itself."""
    if getattr(model.config, "vision_config", None) is None:
        return model
    decoder = getattr(model, "get_decoder", lambda: None)()
    inner = getattr(model, "model", model)
    parts = (decoder, getattr(inner, "text_model", None), getattr(inner, "language_model", None))
    return next((part for part in parts if isinstance(part, nn.Module) and part not in (model, inner)), model)


def trains_vision(model: Any) -> bool:
    """Whether any weight outside of the language model is trained; True for a model that reads text alone."""
    language = language_part(model)
    own = {id(parameter) for parameter in language.parameters()}
    head = model.get_output_embeddings()
    own |= {id(parameter) for parameter in head.parameters()} if head is not None else set()
    return language is model or any(p.requires_grad for p in model.parameters() if id(p) not in own)


def near(values: torch.Tensor, wanted: torch.Tensor, *, half: float = 3e-2, full: float = 1e-4) -> bool:
    """Whether they are the same but for rounding: the mean difference over the mean size, by the values' precision."""
    apart, size = (values - wanted).float().abs().mean(), wanted.float().abs().mean()
    return bool(apart <= size * (half if values.dtype in HALF else full))


# Masks: transformers makes each from a function of two positions, which can be asked about any two.


class UnreadableError(ValueError):
    """A mask or an attention that says more than how far back a token sees."""


@dataclass(slots=True)
class Attention:
    """What a model's attention layers do: `windows`, by module, are the tokens that each token sees, itself counted
    (None = all before it); `twists` names the arguments of attention beside its mask, such as a soft cap."""

    windows: dict[nn.Module, int | None] = field(default_factory=dict)
    twists: set[str] = field(default_factory=set)


def read_attention(model: Any) -> Attention | None:
    """How the model's layers attend, from one pass over a few tokens; None where it cannot be read.

    Every mask that the model makes must be causal, with or without a window, and every layer that asks for an attention
    function must hand one of them on as it is. A layer that attends by itself is not among the `windows`.
    """
    reader = _Reader()
    return reader.attention if reader.read(model) and reader.masks else None


class _Reader:
    """Stands for mask and attention of transformers during one pass."""

    def __init__(self) -> None:
        self.attention = Attention()
        self.masks: dict[int, tuple[torch.Tensor, int | None]] = {}
        self.causal: list[bool] = []
        """Whether each mask hides what comes later, that of the layer included which could not be read further."""

    def read(self, model: Any) -> bool:
        """One pass; whether it came to its end."""
        AttentionInterface.register(READING, self.attend)
        AttentionMaskInterface.register(READING, self.mask)
        try:
            with attention_named(model, READING), torch.no_grad():
                model(input_ids=_ids(model, 8), use_cache=False)
        except Exception:  # of any model's code, which was not written to be read
            return False
        finally:
            # The registers are for good: what lies there must not keep the model.
            AttentionInterface.register(READING, _unread)
            AttentionMaskInterface.register(READING, _unread)
        return True

    def mask(self, *, kv_length: int, mask_function: Any, use_vmap: bool = False, **more: Any) -> Any:
        if use_vmap:
            raise UnreadableError("a mask that may depend on more than positions")
        # Before it had lengths, transformers said which positions ask, and they said where.
        asking = more.get("cache_position")
        q_length = more["q_length"] if asking is None else len(asking)
        device = more.get("device", "cpu") if asking is None else asking.device
        self.causal.append(is_causal(mask_function))
        window = window_of(mask_function)
        rows, columns = torch.arange(q_length, device=device), torch.arange(kv_length, device=device)
        seen = columns <= rows[:, None]
        if window is not None:
            seen &= columns > rows[:, None] - window
        mask = seen[None, None].expand(more.get("batch_size", 1), -1, -1, -1).contiguous()
        self.masks[mask.untyped_storage().data_ptr()] = mask, window
        return mask

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **more: Any,
    ) -> tuple[torch.Tensor, None]:
        known = None if attention_mask is None else self.masks.get(attention_mask.untyped_storage().data_ptr())
        if known is None or attention_mask is None or attention_mask.dtype != torch.bool:
            raise UnreadableError(f"{type(module).__name__} does not hand its mask on as it was made")
        mask, window = known
        if self.attention.windows.setdefault(module, window) != window:
            raise UnreadableError(f"{type(module).__name__} has several masks")
        used = {name for name, value in more.items() if value is not None and value is not False}
        self.attention.twists |= used - PLAIN
        grouped = query.shape[1] != key.shape[1]
        mixed = F.scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=grouped)
        return mixed.transpose(1, 2), None


def _unread(*args: Any, **named: Any) -> Any:
    raise UnreadableError("attention is read by `read_attention` alone")


def is_causal(mask_function: Callable[..., Any], longest: int = 1 << 12) -> bool:
    """Whether no token sees a later one by a mask function of transformers: asked of some tokens."""
    column, zero = torch.arange(longest), torch.zeros((), dtype=torch.long)
    rows = [0, 1, 2, 7, 63, longest // 3, longest // 2, longest - 2]
    seen = [torch.as_tensor(mask_function(zero, zero, torch.tensor(row), column)).expand(longest) for row in rows]
    return not any(bool(one[row + 1 :].any()) for row, one in zip(rows, seen, strict=True))


def window_of(mask_function: Callable[..., Any], longest: int = LONGEST) -> int | None:
    """How many tokens a token sees by a mask function of transformers, itself counted; None for all before it.

    Raises `UnreadableError` for any other mask: one with chunks, blocks, or a view of what comes later.
    """
    column = torch.arange(longest)
    zero = torch.zeros((), dtype=torch.long)

    def seen(row: int) -> torch.Tensor:
        return torch.as_tensor(mask_function(zero, zero, torch.tensor(row), column)).expand(longest)

    window = int(seen(longest - 1).sum())
    starts = range(0, 5 * window, max(1, window))
    edges = [start + shift for start in starts for shift in (-1, 0, 1, window // 2)]
    rows = {*range(4), *edges, longest // 2, longest // 3, longest - 1} & {*range(longest)}
    for row in sorted(rows):
        if not torch.equal(seen(row), (column <= row) & (column > row - window)):
            raise UnreadableError("a mask that is neither causal nor a window")
    return None if window == longest else window


@contextmanager
def attention_named(model: nn.Module, name: str) -> Iterator[None]:
    """While it lasts, all parts of the model take the attention (and mask) that transformers knows by this name."""
    configs: dict[int, Any] = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    before = [(config, config._attn_implementation) for config in configs.values()]
    for config in configs.values():
        config._attn_implementation = name
    try:
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation = implementation


# Rotary frequencies that depend on how long a sequence is. transformers takes the longest of a batch for all of it, so
# rows on both sides of the border must not meet.


@dataclass(frozen=True, slots=True)
class RopeLimit:
    """Sequences up to `length` tokens share one set of frequencies. Longer ones share another (`switches`), or have
    each its own (`grows`)."""

    length: int
    kind: Literal["switches", "grows"]


def rope_limit(model: nn.Module) -> RopeLimit | None:
    """Where the model's rotary frequencies change with the length; None where they do not."""
    limits: set[tuple[int, Literal["switches", "grows"]]] = set()
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        config = getattr(module, "config", None)
        if kinds is None or config is None:
            continue
        settings = getattr(config, "rope_parameters", None) or {}
        for layer, kind in kinds.items() if isinstance(kinds, Mapping) else [(None, kinds)]:
            own = settings if layer is None else settings.get(layer) or {}
            if kind == "longrope":
                limits.add((int(own["original_max_position_embeddings"]), "switches"))
            elif isinstance(kind, str) and "dynamic" in kind:
                first = getattr(module, "original_max_seq_len", config.max_position_embeddings)
                limits.add((int(first), "grows"))
    if len(limits) > 1:
        raise ConfigError(
            f"{type(model).__name__} changes its rotary frequencies at several lengths ({sorted(limits)}), which is not"
            " supported; take a model with one rope_type"
        )
    return RopeLimit(*limits.pop()) if limits else None


# What is tried with a few tokens.


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """While it lasts, no dropout and no gradients."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def refuse_unfit(model: Any) -> None:
    """Raise `ConfigError` for a model in which later tokens change what earlier ones predict, or that fails.

    Log-probabilities of a whole row would not be those that tokens were drawn with.
    """
    ids = _ids(model, 12)
    other = torch.cat([ids[:, :8], ids[:, 8:].flip(1)], dim=1)
    name = type(model).__name__
    try:
        with torch.no_grad():
            one, two = (model(input_ids=part, use_cache=False).logits[:, :8] for part in (ids, other))
    except Exception as error:  # of any model's code
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"{name} fails on a few tokens in {model.dtype} ({words}); take another model.dtype, or another model"
        ) from error
    # Tokens that are masked change no bit, but how experts group theirs, which rounds otherwise. Where the masks that
    # the model makes are causal, that much is allowed.
    reader = _Reader()
    reader.read(model)
    half = 0.1 if reader.causal and all(reader.causal) else 1e-3
    if bool(torch.isfinite(one).all()) and not near(two, one, half=half):
        raise ConfigError(
            f"{name} is not causal (its attention is {model.config._attn_implementation!r}): a token's prediction"
            " depends on tokens after it, so it can neither generate nor be trained here; take another model"
        )


def has_plain_cache(model: Any) -> bool:
    """Whether the model remembers keys and values of earlier tokens and nothing else: no recurrence, no convolution."""
    try:
        layers = DynamicCache(config=model.config).layers
    except Exception:  # of any model's configuration
        return False
    return all(type(layer) in PLAIN_LAYERS for layer in layers)


def _ids(model: Any, count: int) -> torch.Tensor:
    """Token ids [1, count], all different where the vocabulary allows it."""
    first = next(model.parameters())
    size: int = model.get_input_embeddings().weight.shape[0]
    return ((torch.arange(count, device=first.device) * 7 + 3) % size)[None]
