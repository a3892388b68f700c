"""`python -m dynaweb_env_sites.pretrain.tune`: go on training a tiny model on a CPU, with a mixture heavy in goals.

Uses the trainer of the main loop, whose output head sees target tokens only; a step of 192 sequences takes about two
seconds on two cores. The corpus is one that `python -m dynaweb_env_sites.pretrain --corpus DIR --corpus-only` has made,
with the tokenizer of the model in its folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

import numpy as np

from dynaweb.backends.models import load_model
from dynaweb.backends.torch_backend import TorchTrainer
from dynaweb.protocols import TokenRow
from dynaweb_env_sites.pretrain.corpus import Corpus
from dynaweb_env_sites.pretrain.probe import Probe

MIXTURE: dict[str, float] = {"click": 0.08, "act": 0.12, "goal": 0.38, "change": 0.12, "judge": 0.30}
"""Share of sequences of each job."""
WEIGHT: dict[str, float] = {"click": 2.0, "act": 1.0, "goal": 2.0, "change": 0.6, "judge": 8.0}
"""Weight of a target token of each job: a verdict is one token, a change is seventy."""


class Rows:
    """Draws supervised rows of one corpus by the mixture."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self.corpus = corpus
        self.rng = np.random.default_rng(seed)
        self.pools = {kind: corpus.by_kind(kind) for kind in MIXTURE}

    def draw(self, count: int) -> list[TokenRow]:
        """About `count` rows."""
        return [
            self._row(int(index), kind)
            for kind, share in MIXTURE.items()
            for index in self.rng.choice(self.pools[kind], int(count * share))
        ]

    def _row(self, index: int, kind: str) -> TokenRow:
        part = slice(self.corpus.offsets[index], self.corpus.offsets[index + 1])
        ids = self.corpus.ids[part].tolist()
        first = int(np.argmax(self.corpus.weights[part] > 0))
        return TokenRow(tuple(ids[:first]), tuple(ids[first:]), weight=WEIGHT[kind])


def main() -> None:
    """Parse arguments, train, probe and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--init", type=Path, required=True, help="folder of the model to start from")
    parser.add_argument("--corpus", type=Path, required=True, help="folder with train.npz and probes.npz")
    parser.add_argument("--out", type=Path, required=True, help="folder of the new model")
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--batch", type=int, default=192, help="sequences of one step")
    parser.add_argument("--lr", type=float, default=8e-4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shutil.copytree(options.init, options.out, dirs_exist_ok=True)
    _tune(options)


def _tune(options: argparse.Namespace) -> None:
    model = load_model(options.init)
    probe = Probe(Corpus.load(options.corpus / "probes.npz"), "cpu", per_kind=128, batch=32)
    rows = Rows(Corpus.load(options.corpus / "train.npz"), options.seed)
    trainer = TorchTrainer(
        model,
        lr=options.lr,
        total_steps=options.steps,
        warmup=20,
        final_fraction=0.03,
        betas=(0.9, 0.95),
        micro_tokens=16_384,
    )
    losses, started = [], time.time()
    for step in range(1, options.steps + 1):
        losses.append(trainer.supervised_step(rows.draw(options.batch))["loss"])
        if step % 150 == 0 or step == options.steps:
            row = {"stage": "tune", "step": step, "seconds": round(time.time() - started, 1)}
            row |= {"loss": round(float(np.mean(losses[-150:])), 4), **probe(model)}
            with (options.out / "training_log.jsonl").open("a") as log:
                log.write(json.dumps(row) + "\n")
            model.save_pretrained(options.out)


if __name__ == "__main__":
    main()
