"""Training of the tiny base model: a two-stage mixture, AdamW, and probes that decide when a stage is over.

Stage 1 is heavy in pointing, stage 2 is the full mixture. From scratch the full mixture can miss the sudden moment at
which a small model learns to point, so that stage 1 goes on until its probe passes, or fails at its step limit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

if TYPE_CHECKING:
    from tools.tiny_model.corpus import Corpus

BUCKET = 32
"""Sequences are padded to a multiple of this."""


@dataclass(frozen=True)
class TrainConfig:
    """Sizes and schedule; `tokens_per_step` counts padding."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    ff: int = 352
    max_positions: int = 1024
    tokens_per_step: int = 65_536
    lr: float = 2.5e-3
    weight_decay: float = 0.05
    warmup: int = 200
    prompt_weight: float = 0.05
    seed: int = 0
    probe_every: int = 500
    gate: float = 0.95
    """Share of clicks on unseen sites that ends stage 1."""
    final_gate: float = 0.98
    """The same share after stage 2, below which the model is refused."""


def new_model(config: TrainConfig, vocabulary: int, eos_id: int, pad_id: int) -> LlamaForCausalLM:
    """A Llama of the configured size with tied embeddings, float32, seeded."""
    torch.manual_seed(config.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=config.hidden,
            intermediate_size=config.ff,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=config.max_positions,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=eos_id,
            pad_token_id=pad_id,
        )
    )


class Batches:
    """Endless batches of one mixture: kinds are drawn by their weights, sequences of similar length stand together."""

    def __init__(self, corpus: Corpus, weights: dict[str, float], tokens_per_step: int, seed: int) -> None:
        self.corpus = corpus
        self.rng = np.random.default_rng(seed)
        self.tokens = tokens_per_step
        kinds = [kind for kind in weights if len(corpus.by_kind(kind))]
        share = np.array([weights[kind] for kind in kinds])
        self.kinds, self.share = kinds, share / share.sum()
        self.pools = {kind: corpus.by_kind(kind) for kind in kinds}

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        while True:
            yield from self._chunk()

    def _chunk(self, sequences: int = 16_384) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        counts = self.rng.multinomial(sequences, self.share)
        drawn = [self.rng.choice(self.pools[kind], count) for kind, count in zip(self.kinds, counts, strict=True)]
        index = np.concatenate(drawn)
        padded = -(-self.corpus.lengths[index] // BUCKET) * BUCKET
        batches = []
        for width in np.unique(padded):
            rows = self.rng.permutation(index[padded == width])
            size = max(1, self.tokens // int(width))
            batches += [(rows[i : i + size], int(width)) for i in range(0, len(rows) - size + 1, size)]
        for position in self.rng.permutation(len(batches)):
            rows, width = batches[position]
            yield self.corpus.padded(rows, width)


@dataclass
class Trainer:
    """Runs the stages; `probe` maps a model to named accuracies in [0, 1]. Each probe saves the model to `out`."""

    config: TrainConfig
    model: LlamaForCausalLM
    device: str
    probe: Any
    out: Path
    pad_id: int = 0

    def __post_init__(self) -> None:
        self.model.to(self.device)
        decay = [p for p in self.model.parameters() if p.ndim >= 2]
        rest = [p for p in self.model.parameters() if p.ndim < 2]
        groups = [{"params": decay, "weight_decay": self.config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            groups, lr=self.config.lr, betas=(0.9, 0.95), fused=self.device.startswith("cuda")
        )
        self.forward = torch.compile(self.model.model) if self.device.startswith("cuda") else self.model.model
        self.done = 0
        self.started = time.time()

    def point(self, batches: Batches, limit: int) -> None:
        """Stage 1, at full learning rate, until the gate is passed. Raises `RuntimeError` at the step limit."""
        losses: list[torch.Tensor] = []
        for step, (ids, weights) in zip(range(1, limit + 1), batches, strict=False):
            losses.append(self._step(ids, weights, left=1.0))
            if step % self.config.probe_every == 0:
                accuracies = self._report("point", step, losses)
                losses = []
                if accuracies["click"] >= self.config.gate:
                    return
        raise RuntimeError(f"after {limit} steps of stage 1 the model cannot point yet: give more, or change the seed")

    def full(self, batches: Batches, steps: int) -> dict[str, float]:
        """Stage 2, with the learning rate falling to 2 %; returns the last probe."""
        losses: list[torch.Tensor] = []
        accuracies: dict[str, float] = {}
        for step, (ids, weights) in zip(range(1, steps + 1), batches, strict=False):
            losses.append(self._step(ids, weights, left=1 - step / steps))
            if step % self.config.probe_every == 0 or step == steps:
                accuracies = self._report("full", step, losses)
                losses = []
        if accuracies.get("click", 0.0) < self.config.final_gate:
            raise RuntimeError(f"clicks on unseen sites {accuracies.get('click', 0.0):.3f} < {self.config.final_gate}")
        return accuracies

    def _step(self, ids: np.ndarray, weights: np.ndarray, left: float) -> torch.Tensor:
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * min(1.0, (self.done + 1) / self.config.warmup) * (0.02 + 0.98 * left)
        ids_BT = torch.from_numpy(ids).to(self.device, torch.long)
        weight_BT = torch.from_numpy(weights).to(self.device)
        loss, target_loss = self._loss(ids_BT, weight_BT)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.done += 1
        return target_loss

    def _loss(self, ids_BT: torch.Tensor, weight_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weighted cross-entropy (1 on targets, `prompt_weight` elsewhere, 0 on padding), and the targets' own mean."""
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.device.startswith("cuda")):
            hidden = self.forward(input_ids=ids_BT[:, :-1]).last_hidden_state
            logits = self.model.lm_head(hidden)
        token_loss = F.cross_entropy(logits.flatten(0, 1).float(), ids_BT[:, 1:].flatten(), reduction="none")
        target = weight_BT[:, 1:].flatten()
        real = (ids_BT[:, 1:] != self.pad_id).flatten()
        weight = torch.where(target > 0, target, self.config.prompt_weight * real)
        target_loss = (token_loss * (target > 0)).sum() / (target > 0).sum().clamp(min=1)
        return (token_loss * weight).sum() / target.sum().clamp(min=1), target_loss.detach()

    def _report(self, stage: str, step: int, losses: list[torch.Tensor]) -> dict[str, float]:
        accuracies: dict[str, float] = self.probe(self.model)
        row: dict[str, object] = {"stage": stage, "step": step, "seconds": round(time.time() - self.started, 1)}
        row["loss"] = round(torch.stack(losses).mean().item(), 4)
        row |= {name: round(value, 4) for name, value in accuracies.items()}
        with (self.out / "log.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.model.save_pretrained(self.out)
        return accuracies
