"""Batches that are being decoded: a common face for the compact Llama forward and for any other model of transformers.

A *runner* belongs to a model, a *session* to one batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from transformers import DynamicCache

from dynaweb.engines.local import decoding, llama
from dynaweb.engines.local.architecture import (
    RopeLimit,
    body_of,
    evaluating,
    has_plain_cache,
    near,
    read_attention,
    refuse_unfit,
    rope_limit,
)
from dynaweb.engines.local.llama import HALF
from dynaweb.engines.local.recording import (
    FixedGeneric,
    FixedLlama,
    FixedLlamaSession,
    FixedSession,
    Recorders,
    fixable,
    no_recorder,
    recorder_for,
)
from dynaweb.engines.local.sharing import Ids, Lanes, Plan, spans
from dynaweb.errors import EngineError
from dynaweb.protocols import Vision
from dynaweb.types import Prompt

PREFILL_TOKENS = 2048
"""Padded tokens of one prefill pass: small enough for the processor's caches, large enough to keep it busy."""
GPU_PREFILL_TOKENS = 16_384
"""The same on a GPU, which fewer tokens leave waiting for launches."""

FIRST_ROOM = 32
"""New tokens that a cache has room for at first, at least."""


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


def runner_for(model: nn.Module, pad_id: int, *, static: bool = True, vision: Vision | None = None) -> Runner:
    """The fastest runner that serves the model; with `static`, decoding steps are recorded where that is faster.

    With `vision` it takes prompts with images.
    """
    recorders = recorder_for if static else no_recorder
    if vision is None and not llama.unsupported(model):
        return LlamaRunner(model, pad_id, recorders)
    return GenericRunner(model, pad_id, recorders, vision)


def pad_right(prompts: Sequence[Ids], pad_id: int, device: torch.device) -> torch.Tensor:
    """Token ids [B, T], padding behind each prompt."""
    width = max(map(len, prompts))
    return torch.tensor([[*prompt, *[pad_id] * (width - len(prompt))] for prompt in prompts], device=device)


class LlamaRunner:
    """Runs `dynaweb.engines.local.llama`; gathers the fused weights again when the model's own have changed."""

    def __init__(self, model: nn.Module, pad_id: int, recorders: Recorders = recorder_for) -> None:
        self._model = model
        self._pad_id = pad_id
        self._recorders = recorders
        self._weights: llama.Weights | None = None
        self._fixed: FixedLlama | None = None
        self._steps: tuple[llama.Weights, decoding.Decode] | None = None
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
        return torch.cat([self._prefill([prompt.ids for prompt in prompts[part]], None) for part in parts])

    def start(self, prompts: Sequence[Prompt], room: int) -> Session:
        """Compute what prompts share once, then what is their own."""
        plan = Plan.of(prompts)
        fixed = self._recorded()
        session = self._start_fixed(plan, prompts, room, fixed) if fixed else self._start_growing(plan, prompts, room)
        session.computed = plan.computed
        return session

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

    def _start_fixed(self, plan: Plan, prompts: Sequence[Prompt], room: int, fixed: FixedLlama) -> FixedLlamaSession:
        cache = fixed.cache(len(prompts), plan.columns + room)
        logits = self._start(plan, cache, _session_rows(plan), cache, None)
        return FixedLlamaSession(fixed, cache, [len(prompts[row]) for row in plan.order], logits, plan.order)

    def _start_growing(self, plan: Plan, prompts: Sequence[Prompt], room: int) -> LlamaSession:
        lanes = plan.lanes() if self.device.type == "cpu" else None
        if lanes is None:
            cache = self._cache(len(prompts), plan.columns, room)
            logits = self._start(plan, cache, _session_rows(plan), cache, None)
            lengths = [len(prompts[row]) for row in plan.order]
            return LlamaSession(self._decode(), cache, lengths, logits, plan.order)
        cache = self._cache(len(prompts), plan.widest, room)
        common = Common.of(self.weights, lanes, plan.order)
        logits = self._start(plan, common.cache, lanes.lane, cache, common)
        lengths = [len(prompts[row]) - lanes.lengths[row] for row in plan.order]
        return LlamaSession(self._decode(), cache, lengths, logits, plan.order, common)

    def _decode(self) -> decoding.Decode:
        """What takes steps with the present weights."""
        weights = self.weights
        if self._steps is None or self._steps[0] is not weights:
            self._steps = (
                weights,
                decoding.SmallSteps(weights) if decoding.small(weights) else partial(decoding.decode, weights),
            )
        return self._steps[1]

    def _start(
        self,
        plan: Plan,
        beginnings: decoding.Cache,
        position: Mapping[int, int],
        own: decoding.Cache,
        common: Common | None,
    ) -> torch.Tensor:
        """Logits [B, V] in plan order. Row r's beginning goes to `position[r]` of `beginnings`, its tail to `own`."""
        for part in spans([len(prefix) for prefix, _ in plan.prefixes], self._pass_tokens):
            ids_BT = pad_right([prefix for prefix, _ in plan.prefixes[part]], self._pad_id, self.device)
            target = self._target(beginnings, plan.prefixes[part], position)
            decoding.prefill(self.weights, ids_BT, None, target)
        parts = [*self._start_tails(plan, own, common)]
        for part in spans([len(prompt) for prompt, _ in plan.whole], self._pass_tokens):
            chosen = plan.whole[part]
            owner = self._index([i for i, (_, rows) in enumerate(chosen) for _ in rows])
            logits = self._prefill([prompt for prompt, _ in chosen], self._target(beginnings, chosen, position))
            parts.append(logits.index_select(0, owner))
        return torch.cat(parts)

    def _start_tails(self, plan: Plan, own: decoding.Cache, common: Common | None) -> Iterator[torch.Tensor]:
        for part in spans([len(tail.ids) for tail in plan.tails], self._pass_tokens):
            tails = plan.tails[part]
            ids_BT = pad_right([tail.ids for tail in tails], self._pad_id, self.device)
            start = [tail.start if common is None else 0 for tail in tails]
            last_B = self._index([len(tail.ids) - 1 for tail in tails])
            columns = max(start) + ids_BT.shape[1]
            shared = None if common is None else common.shared(part)
            yield decoding.extend(self.weights, ids_BT, self._index(start), last_B, own, part, columns, shared)

    def _cache(self, rows: int, columns: int, room: int) -> decoding.Cache:
        """A cache that begins with as much room as there are columns, or a little more."""
        first = columns + min(room, max(columns, FIRST_ROOM))
        return decoding.Cache(self.weights, rows, first, ragged=columns, limit=columns + room)

    def _target(
        self, cache: decoding.Cache, chosen: Sequence[tuple[Ids, tuple[int, ...]]], position: Mapping[int, int]
    ) -> decoding.Target:
        """Each sequence goes to the positions of all its rows."""
        pairs = [(i, at) for i, (_, rows) in enumerate(chosen) for at in dict.fromkeys(position[row] for row in rows)]
        return decoding.Target(cache, self._index([at for _, at in pairs]), self._index([i for i, _ in pairs]))

    def _prefill(self, prompts: Sequence[Ids], target: decoding.Target | None) -> torch.Tensor:
        ids_BT = pad_right(prompts, self._pad_id, self.device)
        last_B = self._index([len(prompt) - 1 for prompt in prompts])
        logits_BV = decoding.prefill(self.weights, ids_BT, last_B, target)
        assert logits_BV is not None
        return logits_BV

    def _index(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)


class Common:
    """What the rows of a session share, in lanes; a lane without rows is overwritten by the last one."""

    def __init__(self, cache: decoding.Cache, lanes: Sequence[int], lengths: Sequence[int]) -> None:
        self.cache = cache
        self._lanes = list(lanes)
        self._lengths = list(lengths)

    @classmethod
    def of(cls, weights: llama.Weights, lanes: Lanes, order: Sequence[int]) -> Common:
        """Empty lanes for the rows of a plan."""
        cache = decoding.Cache(weights, lanes.count, lanes.width, ragged=lanes.width)
        return cls(cache, [lanes.lane[row] for row in order], [lanes.lengths[row] for row in order])

    def shared(self, rows: slice) -> decoding.Shared:
        """What some rows read."""
        return decoding.Shared.of(self.cache, self._lanes[rows], self._lengths[rows])

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        count = max(self._lanes) + 1
        self._lanes = [self._lanes[row] for row in rows]
        self._lengths = [self._lengths[row] for row in rows]
        live = set(self._lanes)
        kept = survivors([lane not in live for lane in range(count)])
        self.cache.keep(kept, max(self._lengths))
        now = {source: target for target, source in enumerate(kept)}
        self._lanes = [now[lane] for lane in self._lanes]


class LlamaSession:
    """Rows of one cache; rows that end are overwritten by the last ones, so the live rows stay together.

    `lengths` counts the tokens that lie in each row of `cache`, those in lanes (`common`) not among them. All rows
    store their next token in the same column; what shorter rows leave unwritten before it is hidden from them.
    """

    def __init__(
        self,
        decode: decoding.Decode,
        cache: decoding.Cache,
        lengths: Sequence[int],
        logits: torch.Tensor,
        order: Sequence[int],
        common: Common | None = None,
    ) -> None:
        self.logits = logits
        self.order = order
        self.computed = sum(lengths)
        self._decode = decode
        self._cache = cache
        self._common = common
        self._lengths = list(lengths)
        self._first = max(lengths)
        self._new = 0
        self._see()

    def step(self, token_B: torch.Tensor) -> None:
        """One decoding step of all live rows."""
        column, position_B = self._first + self._new, self._position_B + self._new
        self.logits = self._decode(token_B, position_B, self._cache, column, self._mask, self._shared)
        self._new += 1

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows, as made by `survivors`."""
        self._cache.keep(rows, self._first + self._new)
        self.logits = self.logits[list(rows)]
        self._lengths = [self._lengths[row] for row in rows]
        if self._common is not None:
            self._common.keep(rows)
        self._see()

    def _see(self) -> None:
        """What the live rows see: what they share, and their own columns but the unwritten ones."""
        length_B = torch.tensor(self._lengths, device=self.logits.device)
        mask = decoding.hidden(length_B, self._first, self._cache.key.dtype)
        ragged = min(self._lengths) < self._first
        self._shared, self._position_B, self._mask = None, length_B, mask if ragged else None
        if self._common is not None:
            shared = self._shared = self._common.shared(slice(0, len(self._lengths)))
            self._position_B = length_B + shared.length_B
            self._mask = torch.cat([decoding.hidden(shared.length_B, shared.columns, mask.dtype), mask], dim=-1)


def _session_rows(plan: Plan) -> dict[int, int]:
    """The row of the session that answers each prompt."""
    return {row: i for i, row in enumerate(plan.order)}


def survivors(ended: Sequence[bool]) -> list[int]:
    """The rows that go on, in an order that moves as few of them as possible: gaps are filled from the end."""
    count = len(ended) - sum(ended)
    spare = iter([row for row in range(count, len(ended)) if not ended[row]])
    return [next(spare) if ended[row] else row for row in range(count)]


class GenericRunner:
    """Any causal language model of transformers, with its own cache.

    Prompts are padded on the left, and rows that share one or end early share or leave the cache, where the model was
    read and tried to take that; else (recurrence, chunks, masks of its own) prompts of one length form a batch, and all
    its rows are computed to the end. Prompts with images are padded together in families of which that is known
    (`PADDED_IMAGES`), else each row is computed by itself. Raises `EngineError` for a model whose cache gives other
    tokens than a pass over the whole sequence.
    """

    def __init__(
        self, model: nn.Module, pad_id: int, recorders: Recorders = recorder_for, vision: Vision | None = None
    ) -> None:
        self._model: Any = model
        self._pad_id = pad_id
        self._recorders = recorders
        self._vision = vision
        self._fixed: FixedGeneric | None = None
        rope = rope_limit(model)
        # Frequencies that grow do so beyond the model's context, where no prompt is taken.
        self._rope = rope if rope is not None and rope.kind == "switches" else None
        self._forward = CachedForward(model)
        with evaluating(model):
            refuse_unfit(model)
            self._refuse_broken_cache()
            self._pads = self._can_pad()

    @property
    def device(self) -> torch.device:
        """Where the model is now."""
        return self._forward.device

    def weights_changed(self) -> None:
        """Nothing is kept between calls."""

    def next_logits(self, prompts: Sequence[Prompt]) -> torch.Tensor:
        """Prefill only."""
        session = self._session(prompts, 0)
        index = {row: i for i, row in enumerate(session.order)}
        return session.logits[[index[row] for row in range(len(prompts))]]

    def start(self, prompts: Sequence[Prompt], room: int) -> Session:
        """Compute the distinct prompts and, where the model takes that, repeat their cache for rows that share them."""
        if self._sees(prompts) or not self._padded_together(prompts, room):
            return self._session(prompts, room)
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        session = self._padded(list(distinct))
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
        # They compute rows of earlier batches too, which are of any length.
        if self._rope is not None:
            return None
        if self._fixed is None and (record := self._recorders(self.device)) and fixable(self._model):
            self._fixed = FixedGeneric(self._model, record)
        return self._fixed

    def _session(self, prompts: Sequence[Prompt], room: int) -> Session:
        """The prompts in batches that they may share."""
        if self._sees(prompts):
            return self._seeing(prompts, room)
        together: dict[str | int, list[int]] = {}
        for row, prompt in enumerate(prompts):
            together.setdefault(self._company(len(prompt), room), []).append(row)
        if self._padded_together(prompts, room):
            return self._padded(prompts)
        parts = [(self._part(kind, [prompts[row] for row in rows]), rows) for kind, rows in together.items()]
        return JoinedSession(parts)

    def _sees(self, prompts: Sequence[Prompt]) -> bool:
        """Whether some of the prompts have images that the model is shown."""
        return self._vision is not None and any(prompt.images for prompt in prompts)

    def _seeing(self, prompts: Sequence[Prompt], room: int) -> Session:
        """The same for prompts of which some have images; those without are computed among themselves."""
        seeing = [row for row, prompt in enumerate(prompts) if prompt.images]
        blind = [row for row, prompt in enumerate(prompts) if not prompt.images]
        parts: list[tuple[Session, Sequence[int]]] = []
        if blind:
            parts.append((self._session([prompts[row] for row in blind], room), blind))
        if self._pads and self._rope is None and self._model.config.model_type in PADDED_IMAGES:
            # Prompts are the same only where their images are.
            distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts[row] for row in seeing))}
            session = self._padded(list(distinct))
            if len(distinct) < len(seeing):
                session.keep([distinct[prompts[row]] for row in seeing])
                session.order = range(len(seeing))
            if not blind:
                return session
            parts.append((session, seeing))
        else:
            alone = [WholeSession(self._forward, [prompts[row]], self._rope, self._vision) for row in seeing]
            parts += [(session, [row]) for session, row in zip(alone, seeing, strict=True)]
        return JoinedSession(parts)

    def _padded_together(self, prompts: Sequence[Prompt], room: int) -> bool:
        """Whether all of the prompts may be padded to one batch."""
        kinds = {self._company(len(prompt), room) for prompt in prompts}
        return len(kinds) == 1 and isinstance(next(iter(kinds)), str)

    def _company(self, length: int, room: int) -> str | int:
        """What a prompt must have in common with those that share its batch; a number is its very length."""
        if not self._pads:
            return length
        if self._rope is None:
            return "any"
        if length + room <= self._rope.length:
            return "short"
        return "long" if length > self._rope.length else length

    def _part(self, kind: str | int, prompts: Sequence[Prompt]) -> Session:
        return self._padded(prompts) if isinstance(kind, str) else WholeSession(self._forward, prompts, self._rope)

    def _padded(self, prompts: Sequence[Prompt]) -> GenericSession:
        width = max(map(len, prompts))
        ids = [[*[self._pad_id] * (width - len(prompt)), *prompt.ids] for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        mask_BT = torch.tensor(mask, device=self.device)
        ids_BT = torch.tensor(ids, device=self.device)
        return GenericSession(
            self._forward, ids_BT, mask_BT, Sight.of(self._model, self._vision, prompts, ids_BT, mask_BT)
        )

    def _refuse_broken_cache(self) -> None:
        name = type(self._model).__name__
        try:
            whole = partial(WholeSession, self._forward, rope=self._rope)
            same = self._decodes_alike(whole, [TRIED[0]], half=0.15)
        except Exception as error:  # of any model's code
            raise EngineError(
                f"{name} cannot generate with the engine transformers: with its cache it fails ({type(error).__name__}:"
                f" {str(error).splitlines()[0] if str(error) else ''}); take another model or another engine"
            ) from error
        if not same:
            raise EngineError(
                f"{name} cannot generate with the engine transformers: with its cache it predicts other tokens than"
                " from the whole sequence; take another model or another engine"
            )

    def _can_pad(self) -> bool:
        """Whether padding on the left, and selecting rows of the cache, change nothing: read, then tried."""
        attention = read_attention(self._model)
        if attention is None or attention.twists - HARMLESS or not has_plain_cache(self._model):
            return False
        try:
            return self._decodes_alike(self._padded, TRIED, half=0.05)
        except Exception:  # of any model's code, which was not written for this
            return False

    def _decodes_alike(
        self, start: Callable[[Sequence[Prompt]], Session], rows: Sequence[tuple[int, ...]], *, half: float
    ) -> bool:
        """Whether steps of a session give what a pass over each row alone gives, rows swapped and repeated midway.

        `half` is the mean error that rounding may make in half precision, over the mean size of logits.
        """
        size: int = self._model.get_input_embeddings().weight.shape[0]
        ids = [torch.tensor([token % size for token in row], device=self.device) for row in rows]
        session = start([Prompt(tuple(row[:-STEPS].tolist())) for row in ids])
        seen, truth = [], []
        for step in range(STEPS + 1):
            if step == STEPS // 2 and len(ids) > 1:
                order = [len(ids) - 1, *range(len(ids))]
                ids = [ids[row] for row in order]
                session.keep(order)
            parts = [row[: len(row) - STEPS + step] for row in ids]
            seen.append(session.logits)
            truth += [self._model(input_ids=part[None], use_cache=False).logits[:, -1].float() for part in parts]
            if step < STEPS:
                session.step(torch.stack([row[len(part)] for row, part in zip(ids, parts, strict=True)]))
        whole = torch.cat(truth)
        bound = half if next(self._model.parameters()).dtype in HALF else 1e-4
        # A model that has diverged is told of when it is asked.
        return not bool(torch.isfinite(whole).all()) or near(torch.cat(seen), whole, full=bound)


TRIED: tuple[tuple[int, ...], ...] = (tuple(range(3, 47, 3)), tuple(range(5, 50, 5)))
"""Rows on which sessions are tried, of different lengths."""
STEPS = 4
"""Decoding steps of a trial."""
HARMLESS = frozenset({"softcap", "s_aux"})
"""Twists of attention that look at tokens, not at where they lie."""
PADDED_IMAGES = frozenset({"smolvlm", "idefics3", "qwen2_5_vl", "qwen3_vl", "gemma3"})
"""Model types of which prompts with images may be padded on the left: what tests compare with each prompt alone."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a pass over prompts takes besides their tokens.

    `inputs` are of the images. Where images take fewer positions than tokens (Qwen's three axes), `position` has those
    of the prompts, [3, B, T], and `shift_B` is what the positions of later tokens are moved by.
    """

    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)
    position: torch.Tensor | None = None
    shift_B: torch.Tensor | None = None

    @classmethod
    def of(
        cls,
        model: Any,
        vision: Vision | None,
        prompts: Sequence[Prompt],
        ids_BT: torch.Tensor,
        mask_BT: torch.Tensor | None = None,
    ) -> Sight:
        """Of prompts, whose tokens are `ids_BT`; nothing where they have no images."""
        if vision is None or not any(prompt.images for prompt in prompts):
            return NO_SIGHT
        inputs = seen(model, vision, prompts, ids_BT)
        index = getattr(body_of(model), "get_rope_index", None)
        if index is None:
            return cls(inputs)
        known = {"input_ids": ids_BT, "attention_mask": mask_BT, **inputs}
        taken = {name: known[name] for name in inspect.signature(index).parameters if name in known}
        position, shift = index(**taken)
        return cls(inputs, position, shift.flatten())


NO_SIGHT = Sight()


def seen(model: Any, vision: Vision, prompts: Sequence[Prompt], ids_BT: torch.Tensor) -> dict[str, torch.Tensor]:
    """Inputs of the prompts' images on the model's device, in its precision, and the types of the tokens."""
    first = next(model.parameters())
    pixels = {
        name: value.to(first.device, first.dtype) if value.is_floating_point() else value.to(first.device)
        for name, value in vision.inputs(prompts).items()
    }
    return {**pixels, **vision.token_types(ids_BT)}


class CachedForward:
    """A model's forward pass with its own kind of cache. Raises `EngineError` for one that takes none."""

    def __init__(self, model: Any) -> None:
        self._model = model
        # transformers renamed the argument in 5.24.
        known = inspect.signature(model.forward).parameters
        keyword = next((name for name in ("cache", "past_key_values") if name in known), None)
        if keyword is None:
            raise EngineError(
                f"{type(model).__name__} cannot generate with the engine transformers: it takes no cache that the"
                " engine knows; take another model or another engine"
            )
        self._keyword = keyword

    @property
    def device(self) -> torch.device:
        """Where the model is now."""
        return next(self._model.parameters()).device  # type: ignore[no-any-return]

    def new_cache(self) -> Any:
        """An empty cache."""
        return DynamicCache(config=self._model.config)

    @property
    def model(self) -> Any:
        """The model."""
        return self._model

    def __call__(
        self,
        ids_BT: torch.Tensor,
        mask: torch.Tensor | None,
        position_BT: torch.Tensor,
        cache: Any,
        images: Mapping[str, torch.Tensor] = NO_SIGHT.inputs,
    ) -> torch.Tensor:
        """Float32 logits [B, V] after the last of the tokens; the mask is [B, all columns] or has four axes.

        `images` are inputs of the images among the tokens.
        """
        out = self._model(
            input_ids=ids_BT,
            attention_mask=mask,
            position_ids=position_BT,
            use_cache=True,
            logits_to_keep=1,
            **{self._keyword: cache},
            **images,
        )
        logits: torch.Tensor = out.logits[:, -1].float()
        return logits


class GenericSession:
    """Rows padded on the left; they share the column of their newest token."""

    def __init__(
        self, forward: CachedForward, ids_BT: torch.Tensor, mask_BT: torch.Tensor, sight: Sight = NO_SIGHT
    ) -> None:
        self.order: Sequence[int] = range(len(ids_BT))
        self.computed = int(mask_BT.sum())
        self.run = forward
        self.mask = mask_BT
        self.cache = forward.new_cache()
        self._shift_B = sight.shift_B
        position = (mask_BT.cumsum(-1) - 1).clamp_min(0) if sight.position is None else sight.position
        self.logits = self.run(ids_BT, mask_BT, position, self.cache, sight.inputs)

    def step(self, token_B: torch.Tensor) -> None:
        """One decoding step."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], dim=1)
        position_BT = self.mask.sum(-1, keepdim=True) - 1
        if self._shift_B is not None:
            position_BT = position_BT + self._shift_B[:, None]
        self.logits = self.run(token_B[:, None], self.mask, position_BT, self.cache)

    def keep(self, rows: Sequence[int]) -> None:
        """Select or repeat rows of the cache."""
        index = torch.tensor(rows, device=self.mask.device)
        self.cache.batch_select_indices(index)
        self.mask = self.mask.index_select(0, index)
        self.logits = self.logits.index_select(0, index)
        if self._shift_B is not None:
            self._shift_B = self._shift_B.index_select(0, index)


class WholeSession:
    """Rows of one length, none padded, shared or left out; computed anew where rotary frequencies switch."""

    def __init__(
        self, forward: CachedForward, prompts: Sequence[Prompt], rope: RopeLimit | None, vision: Vision | None = None
    ) -> None:
        self.order: Sequence[int] = range(len(prompts))
        self.computed = sum(map(len, prompts))
        self._run, self._rope = forward, rope
        self._prompts, self._vision = prompts, vision
        device = forward.device
        self._ids_BT = torch.tensor([prompt.ids for prompt in prompts], device=device)
        self._begin()

    def _begin(self) -> None:
        self._cache = self._run.new_cache()
        sight = self._sight = Sight.of(self._run.model, self._vision, self._prompts, self._ids_BT)
        position = self._positions(0) if sight.position is None else sight.position
        self.logits = self._run(self._ids_BT, None, position, self._cache, sight.inputs)

    def _positions(self, first: int) -> torch.Tensor:
        count, length = self._ids_BT.shape
        return torch.arange(first, length, device=self._ids_BT.device).expand(count, -1)

    def step(self, token_B: torch.Tensor) -> None:
        """One decoding step."""
        self._ids_BT = torch.cat([self._ids_BT, token_B[:, None]], dim=1)
        length = self._ids_BT.shape[1]
        if self._rope is not None and length == self._rope.length + 1:
            self._begin()
        else:
            position_BT, shift_B = self._positions(length - 1), self._sight.shift_B
            if shift_B is not None:
                position_BT = position_BT + shift_B[:, None]
            self.logits = self._run(token_B[:, None], None, position_BT, self._cache)

    def keep(self, rows: Sequence[int]) -> None:
        """Not offered: see `JoinedSession`."""
        raise NotImplementedError


class JoinedSession:
    """Several sessions as one. Rows that are not kept are computed on, with any token, as long as their session is.

    `parts` are sessions with the rows that they answer.
    """

    def __init__(self, parts: Sequence[tuple[Session, Sequence[int]]]) -> None:
        self._parts = [part for part, _ in parts]
        self.order: Sequence[int] = [rows[i] for part, rows in parts for i in part.order]
        self.computed = sum(part.computed for part in self._parts)
        self._slots = [(number, i) for number, part in enumerate(self._parts) for i in range(len(part.order))]
        self._gather()

    def _gather(self) -> None:
        self.logits = torch.stack([self._parts[number].logits[i] for number, i in self._slots])

    def step(self, token_B: torch.Tensor) -> None:
        """One decoding step of the sessions that have live rows."""
        for number, part in enumerate(self._parts):
            live = {i: row for row, (owner, i) in enumerate(self._slots) if owner == number}
            if live:
                anyone = next(iter(live.values()))
                part.step(token_B[[live.get(i, anyone) for i in range(len(part.logits))]])
        self._gather()

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order."""
        self._slots = [self._slots[row] for row in rows]
        self._gather()
