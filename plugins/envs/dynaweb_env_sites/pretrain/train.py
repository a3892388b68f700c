"""Training of the tiny base model: a two-stage mixture, AdamW, and probes that decide when a stage is over.

Stage 1 is heavy in pointing, stage 2 is the full mixture. From scratch the full mixture can miss the sudden moment at which a
small model learns to point, so that stage 1 goes on until its probe passes (or its step limit is reached, which fails the run).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

if TYPE_CHECKING:
    from dynaweb_env_sites.pretrain.corpus import Corpus

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
    stages: tuple[tuple[str, int], ...] = (("point", 2000), ("full", 8000))
    probe_every: int = 500
    gates: dict[str, float] = field(default_factory=lambda: {"point": 0.98})


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
    """Runs the stages; `probe` maps a model to named accuracies in [0, 1]."""

    config: TrainConfig
    model: LlamaForCausalLM
    device: str
    probe: Any
    log: Path
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
        self.total = sum(steps for _, steps in self.config.stages)
        self.done = 0
        self.started = time.time()

    def stage(self, name: str, steps: int, batches: Batches) -> dict[str, float]:
        """Train one stage and return its last probe. Raises `RuntimeError` when its gate is not passed."""
        losses: list[torch.Tensor] = []
        found: dict[str, float] = {}
        for step, (ids, weights) in zip(range(1, steps + 1), batches, strict=False):
            losses.append(self._step(ids, weights))
            if step % self.config.probe_every == 0 or step == steps:
                found = self.probe(self.model)
                self._report(name, step, torch.stack(losses).mean().item(), found)
                losses = []
        gate = self.config.gates.get(name)
        if gate is not None and found.get("click", 1.0) < gate:
            raise RuntimeError(f"stage {name}: click probe {found['click']:.3f} < {gate}; go on, or change the seed")
        return found

    def _step(self, ids: np.ndarray, weights: np.ndarray) -> torch.Tensor:
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr()
        ids_BT = torch.from_numpy(ids).to(self.device, torch.long)
        weight_BT = torch.from_numpy(weights).to(self.device)
        loss, shown = self._loss(ids_BT, weight_BT)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.done += 1
        return shown

    def _loss(self, ids_BT: torch.Tensor, weight_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weighted cross-entropy: 1 on targets, `prompt_weight` on the rest, 0 on padding; and the targets' own mean."""
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.device.startswith("cuda")):
            hidden = self.forward(input_ids=ids_BT[:, :-1]).last_hidden_state
            logits = self.model.lm_head(hidden)
        token_loss = F.cross_entropy(logits.flatten(0, 1).float(), ids_BT[:, 1:].flatten(), reduction="none")
        target = weight_BT[:, 1:].flatten()
        real = (ids_BT[:, 1:] != self.pad_id).flatten()
        weight = torch.where(target > 0, target, self.config.prompt_weight * real)
        shown = (token_loss * (target > 0)).sum() / (target > 0).sum().clamp(min=1)
        return (token_loss * weight).sum() / target.sum().clamp(min=1), shown.detach()

    def _lr(self) -> float:
        warm = min(1.0, (self.done + 1) / self.config.warmup)
        left = max(0.0, 1 - self.done / self.total)
        return self.config.lr * warm * (0.02 + 0.98 * left)

    def _report(self, stage: str, step: int, loss: float, found: dict[str, float]) -> None:
        row = {"stage": stage, "step": step, "loss": round(loss, 4), "seconds": round(time.time() - self.started, 1)}
        row |= {name: round(value, 4) for name, value in found.items()}
        with self.log.open("a") as file:
            file.write(json.dumps(row) + "\n")
