"""The engine in this process: batched generation and scoring with a Hugging Face causal language model.

Requests of concurrent episodes are gathered by `Lockstep`. Within a batch, equal requests and equal prompts are
computed once, rows are sorted by length, and rows that are finished leave the batch. What a request gets depends on its
own prompt, seed and settings; batch mates change it by float noise only, and the same batch gives the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from dynaweb.engines.local.sampling import Decode, Sampler, complete, need_decoder, refuse_divergence, unwritten
from dynaweb.engines.local.sessions import Runner, Session, runner_for, survivors
from dynaweb.engines.local.sharing import spans
from dynaweb.errors import EngineError
from dynaweb.protocols import (
    BaseEngine,
    Batching,
    Completion,
    EngineContext,
    EngineStats,
    GenerateRequest,
    TokenRow,
    Vision,
    text_ids,
)
from dynaweb.types import Prompt

if TYPE_CHECKING:
    from dynaweb.engines.plugin import TransformersConfig

ChoiceRequest = tuple[Prompt, tuple[int, ...]]

MAX_BATCH_TOKENS = 65_536
"""Prompt and new tokens, padding included, of one batch: bounds the memory of the key-value cache."""


class TransformersEngine(BaseEngine):
    """An `Engine` on a model that lives in this process, on CPU or GPU.

    `model` is shared, not copied: weights that a trainer changes in place are used from the next batch on. `pad_id` is
    any valid token id. With `static`, decoding steps are recorded on a GPU (`recording`). The model is put into
    evaluation mode for each batch (dropout off) and put back after it. `unwritten` are ids that stand for no text; they
    are never drawn. `vision` makes inputs of prompts with images; without it they are refused. Raises `EngineError` or
    `ConfigError` for a model that cannot generate right.
    """

    def __init__(
        self,
        model: nn.Module,
        batching: Batching,
        *,
        pad_id: int = 0,
        max_batch_tokens: int = MAX_BATCH_TOKENS,
        decode: Decode | None = None,
        static: bool = True,
        unwritten: Sequence[int] = (),
        vision: Vision | None = None,
    ) -> None:
        self.decode = decode
        self.vision = vision
        self.unwritten = tuple(unwritten)
        self.static = static
        self.model = model
        self._pad_id = pad_id
        self._layers = _kinds(model)
        self._runner: Runner = runner_for(model, pad_id, static=static, vision=vision)
        self.max_batch_tokens = max_batch_tokens
        config: Any = getattr(model, "config", None)
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        self._vocabulary: int = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        self._context: int | None = getattr(config, "max_position_embeddings", None)
        self.batching = batching
        self._generations = batching.queue(self.generate_batch)
        self._choices = batching.queue(self.choice_batch)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one completion; it ends where the model's context ends, at the latest.

        Raises `EngineError` for a prompt that the model cannot take.
        """
        return await self._generations.ask(self.fitted(request))

    def fitted(self, request: GenerateRequest) -> GenerateRequest:
        """The request, ended where the model's context ends. Raises `EngineError` where nothing fits."""
        if request.max_new_tokens < 1:
            raise EngineError(f"max_new_tokens is {request.max_new_tokens}; it must be at least 1")
        self.check(request.prompt, 1)
        need_decoder(request, self.decode)
        if self._context is not None and len(request.prompt) + request.max_new_tokens > self._context:
            request = replace(request, max_new_tokens=self._context - len(request.prompt))
        return request

    async def choice_logprobs(self, prompt: Prompt, choices: tuple[int, ...]) -> tuple[float, ...]:
        """Natural-log probability of each token of `choices` as the next token after the prompt."""
        self.check(prompt, 0)
        return await self._choices.ask((prompt, choices))

    def weights_changed(self) -> None:
        """Call after weights were replaced; in-place updates by an optimizer are noticed without it."""
        super().weights_changed()
        self._runner.weights_changed()

    def generate_batch(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Completions of many requests, in order; split by `max_batch_tokens` where needed.

        Equal requests, seed included, are computed once.
        """
        distinct = sorted(set(requests), key=_sort_key)
        done: dict[GenerateRequest, Completion] = {}
        with self._work(len(requests)):
            for part in self._parts(distinct):
                done.update(zip(distinct[part], self._decode(distinct[part]), strict=True))
        return [done[request] for request in requests]

    def choice_batch(self, requests: Sequence[ChoiceRequest]) -> list[tuple[float, ...]]:
        """Next-token log-probabilities for many (prompt, choices) pairs, in order; prefill only."""
        prompts = sorted({prompt for prompt, _ in requests}, key=lambda prompt: (len(prompt), prompt))
        with self._work(len(requests)):
            table: dict[Prompt, torch.Tensor] = {}
            for part in spans([len(prompt) for prompt in prompts], self.max_batch_tokens):
                logp_BV = torch.log_softmax(self._runner.next_logits(prompts[part]), dim=-1)
                table.update(zip(prompts[part], logp_BV, strict=True))
            self.stats.prompt_tokens += sum(len(prompt) for prompt, _ in requests)
            self.stats.computed_prompt_tokens += sum(map(len, prompts))
            self._count_images(prompts)
            logps = [tuple(table[prompt][list(choices)].tolist()) for prompt, choices in requests]
        refuse_divergence(logp for row in logps for logp in row)
        return logps

    def token_logprobs(self, rows: Sequence[TokenRow]) -> list[np.ndarray]:
        """Float32 log-probabilities of each row's response tokens by decoding one at a time (slow; for checks)."""
        logps = []
        with self._work(len(rows)):
            for row in rows:
                session = self._runner.start([row.prompt], len(row.response_ids))
                logps.append(np.array([_force(session, token) for token in row.response_ids], dtype=np.float32))
        return logps

    def check(self, prompt: Prompt, room: int) -> None:
        """Raise `EngineError` for a prompt that the model cannot take with room for so many tokens."""
        if not prompt:
            raise EngineError("an empty prompt was sent to the engine; it needs at least one token")
        ids = prompt.ids if self.vision is not None else text_ids(prompt, "the engine transformers")
        if min(ids) < 0 or max(ids) >= self._vocabulary:
            raise EngineError(
                f"the prompt holds token ids from {min(ids)} to {max(ids)}; valid are 0 to"
                f" {self._vocabulary - 1}. Is the tokenizer that of this model?"
            )
        if self._context is not None and len(prompt) + room > self._context:
            raise EngineError(
                f"a prompt of {len(prompt)} tokens does not fit into the model's context of {self._context} tokens"
                f"{' with room for an answer' if room else ''}; shorten the page or the history"
            )

    def _parts(self, requests: Sequence[GenerateRequest]) -> Iterator[slice]:
        return spans([len(r.prompt) + r.max_new_tokens for r in requests], self.max_batch_tokens)

    def _decode(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        prompts = [request.prompt for request in requests]
        session = self._runner.start(prompts, max(request.max_new_tokens for request in requests))
        self.stats.prompt_tokens += sum(map(len, prompts))
        self.stats.computed_prompt_tokens += session.computed
        self._count_images(prompts)
        return _Decoding(requests, session, self.stats, self.decode, self.unwritten).run()

    def _count_images(self, prompts: Sequence[Prompt]) -> None:
        if self.vision is not None:
            image_id = self.vision.image_id
            self.stats.image_tokens += sum(prompt.ids.count(image_id) for prompt in prompts if prompt.images)

    @contextmanager
    def _work(self, requests: int) -> Iterator[None]:
        """No gradients, no dropout, and the clock running."""
        # Adapters may have come or gone since: the fastest runner for a plain model would read past them.
        layers = _kinds(self.model)
        if layers != self._layers:
            self._layers = layers
            self._runner = runner_for(self.model, self._pad_id, static=self.static, vision=self.vision)
        started, training = time.perf_counter(), self.model.training
        self.stats.requests += requests
        self.stats.batches += 1
        if training:
            self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            if training:
                self.model.train()
            self.stats.seconds += time.perf_counter() - started


def _kinds(model: nn.Module) -> list[type[nn.Module]]:
    """The kind of every layer."""
    return [type(layer) for layer in model.modules()]


def _sort_key(request: GenerateRequest) -> tuple[Any, ...]:
    """Length first, so that the rows of a batch are about as long."""
    return len(request.prompt), *by_prompt(request)


def by_prompt(request: GenerateRequest) -> tuple[Any, ...]:
    """A key with all that a request says: equal prompts are neighbours, and the order of arrival plays no part."""
    return (
        request.prompt,
        request.max_new_tokens,
        request.seed,
        request.temperature,
        request.top_p,
        request.stop_ids,
        request.stop,
    )


def _force(session: Session, token: int) -> float:
    """Log-probability of `token`, which is then appended."""
    value = float(torch.log_softmax(session.logits, dim=-1)[0, token])
    session.step(torch.tensor([token], device=session.logits.device))
    return value


class _Decoding:
    """The token loop of one batch."""

    def __init__(
        self,
        requests: Sequence[GenerateRequest],
        session: Session,
        stats: EngineStats,
        decode: Decode | None,
        unwritten: Sequence[int],
    ) -> None:
        self._requests = requests
        self._unwritten_V = None
        if unwritten:
            self._unwritten_V = torch.zeros(session.logits.shape[-1], dtype=torch.bool, device=session.logits.device)
            self._unwritten_V[list(unwritten)] = True
        self._decode = decode
        self._session = session
        self._stats = stats
        self._stops = [frozenset(request.stop_ids) for request in requests]
        self._texts = [bool(request.stop) for request in requests]
        self._rooms = [request.max_new_tokens for request in requests]
        self._tokens: list[list[int]] = [[] for _ in requests]
        self._logps: list[list[float]] = [[] for _ in requests]
        self._finished = [False] * len(requests)

    def run(self) -> list[Completion]:
        """Decode until every request has its stop token or its number of tokens."""
        device = self._session.logits.device
        sampler = Sampler.of(self._requests, device, self._unwritten_V)
        live = list(self._session.order)
        step = 0
        while live:
            token_B, logp_B = sampler.draw(self._session.logits, torch.tensor(live, device=device), step)
            ended = self._append(live, token_B.tolist(), logp_B.tolist())
            rows = survivors(ended)
            if rows and len(rows) < len(live):
                self._session.keep(rows)
                token_B = token_B[rows]
            live = [live[row] for row in rows]
            if live:
                self._session.step(token_B)
            step += 1
        return [
            Completion(tuple(tokens), tuple(logps), finished)
            for tokens, logps, finished in zip(self._tokens, self._logps, self._finished, strict=True)
        ]

    def _said(self, i: int) -> bool:
        """Whether a row has completed one of its stop texts."""
        return self._decode is not None and complete(self._tokens[i], self._requests[i].stop, self._decode)

    def _append(self, live: Sequence[int], tokens: Sequence[int], logps: Sequence[float]) -> list[bool]:
        """Record one token per live row; tells which rows have ended. Raises `DivergedError` for a diverged model."""
        refuse_divergence(logps)
        ended = []
        for i, token, logp in zip(live, tokens, logps, strict=True):
            written = self._tokens[i]
            written.append(token)
            self._logps[i].append(logp)
            finished = token in self._stops[i] or (self._texts[i] and self._said(i))
            self._finished[i] = finished
            ended.append(finished or len(written) >= self._rooms[i])
        self._stats.new_tokens += len(live)
        return ended


class TransformersRole(TransformersEngine):
    """`TransformersEngine` as a plugin. It computes with the trainer's own weights, so nothing has to be pushed."""

    def __init__(self, config: TransformersConfig, context: EngineContext) -> None:
        loaded = context.weights
        model: Any = loaded.model
        vision = loaded.vision
        textless = unwritten(loaded.tokenizer, model.get_output_embeddings().weight.shape[0])
        super().__init__(
            model,
            context.batching,
            pad_id=loaded.format.pad_id,
            max_batch_tokens=config.max_batch_tokens,
            static=config.static,
            decode=getattr(loaded.tokenizer, "decode", None),
            unwritten=textless if vision is None else (*textless, *vision.unwritten),
            vision=vision,
        )
