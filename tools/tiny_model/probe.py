"""Probes of the base model on sites that it was not trained on: greedy exact match, job by job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tools.tiny_model.corpus import KINDS

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

    from tools.tiny_model.corpus import Corpus


class Probe:
    """Share of sequences whose every target token is the most likely one; for `judge` that is plain accuracy."""

    def __init__(self, corpus: Corpus, device: str, per_kind: int = 512, batch: int = 64) -> None:
        self.corpus = corpus
        self.device = device
        self.batch = batch
        self.rows = {kind: corpus.by_kind(kind)[:per_kind] for kind in KINDS}

    @torch.no_grad()
    def __call__(self, model: LlamaForCausalLM) -> dict[str, float]:
        """Accuracy of each job, and the number of sequences behind it as `n_<job>`."""
        model.eval()
        accuracies: dict[str, float] = {}
        for kind, rows in self.rows.items():
            if len(rows):
                right = [self._right(model, rows[i : i + self.batch]) for i in range(0, len(rows), self.batch)]
                accuracies[kind] = float(np.concatenate(right).mean())
                accuracies[f"n_{kind}"] = float(len(rows))
        return accuracies

    def _right(self, model: LlamaForCausalLM, rows: np.ndarray) -> np.ndarray:
        width = int(self.corpus.lengths[rows].max())
        ids, weights = self.corpus.padded(rows, width)
        ids_BT = torch.from_numpy(ids).to(self.device, torch.long)
        wanted = torch.from_numpy(weights[:, 1:] > 0).to(self.device)
        guess = model(input_ids=ids_BT[:, :-1]).logits.argmax(-1)
        wrong = (guess != ids_BT[:, 1:]) & wanted
        return (~wrong.any(dim=1)).cpu().numpy()
