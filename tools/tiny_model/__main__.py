"""`python -m tools.tiny_model --out FOLDER`: makes a corpus, trains the tiny base model, saves it.

Everything is seeded. On one H100 it takes minutes; `--corpus DIR --corpus-only` makes the corpus alone.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
from tokenizers import Tokenizer

from tools.tiny_model.build import HOLDOUT, BuildConfig, build, make_tokenizer
from tools.tiny_model.corpus import KINDS, Corpus
from tools.tiny_model.probe import Probe
from tools.tiny_model.train import Batches, TrainConfig, Trainer, new_model

MIXTURES: dict[str, dict[str, float]] = {
    "point": {"click": 0.3, "act": 0.18, "goal": 0.14, "point": 0.3, "change": 0.08},
    "full": {"click": 0.06, "act": 0.12, "goal": 0.26, "point": 0.06, "change": 0.18, "next": 0.04, "judge": 0.28},
}
"""Share of sequences of each job in each stage."""


def main() -> None:
    """Parse arguments and run."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    config = BuildConfig(sites=options.sites, probe_sites=options.probe_sites, seed=options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        corpus, probes, tokenizer = _corpus(config, Path(scratch), options)
        accuracies = {} if options.corpus_only else _train(corpus, probes, tokenizer, options)
    (options.out / "training.json").write_text(json.dumps({"build": asdict(config), "probes": accuracies}, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--corpus", type=Path, help="folder that keeps the corpus for further trainings")
    parser.add_argument("--corpus-only", action="store_true", help="make the corpus and stop")
    parser.add_argument("--init", type=Path, help="go on from the model in this folder")
    parser.add_argument("--sites", type=int, default=BuildConfig().sites, help="pre-training site seeds")
    parser.add_argument("--probe-sites", type=int, default=BuildConfig().probe_sites, help="held-out site seeds")
    parser.add_argument("--point", type=int, default=7000, help="most steps of stage 1")
    parser.add_argument("--full", type=int, default=9000, help="steps of stage 2")
    parser.add_argument("--layers", type=int, default=TrainConfig().layers, help="layers of a new model")
    parser.add_argument("--tokens", type=int, default=65_536, help="tokens of one step")
    parser.add_argument("--lr", type=float, default=2.5e-3, help="peak learning rate")
    parser.add_argument("--probe-every", type=int, default=500, help="steps between probes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def _corpus(config: BuildConfig, scratch: Path, options: argparse.Namespace) -> tuple[Corpus, Corpus, Path]:
    """Corpus, probes and tokenizer: read from `--corpus` where they are there, else made (and kept there)."""
    started = time.time()
    folder = options.corpus or scratch
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "probes.npz").exists():
        if not (folder / "tokenizer.json").exists():
            make_tokenizer(config, folder / "tokenizer.json")
        held_out = range(HOLDOUT, HOLDOUT + config.probe_sites)
        train = build(config, folder / "tokenizer.json", scratch, range(config.sites), options.processes)
        train.save(folder / "train.npz")
        build(config, folder / "tokenizer.json", scratch, held_out, options.processes).save(folder / "probes.npz")
    tokenizer = options.out / "tokenizer.json"
    tokenizer.write_bytes((folder / "tokenizer.json").read_bytes())
    corpus, probes = Corpus.load(folder / "train.npz"), Corpus.load(folder / "probes.npz")
    counts = {kind: len(corpus.by_kind(kind)) for kind in KINDS}
    _log(options, {"samples": counts, "tokens": len(corpus.ids), "seconds": round(time.time() - started, 1)})
    return corpus, probes, tokenizer


def _train(corpus: Corpus, probes: Corpus, tokenizer: Path, options: argparse.Namespace) -> dict[str, float]:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    device = "cuda" if torch.cuda.is_available() else "cpu"
    backend = Tokenizer.from_file(str(tokenizer))
    pad, eos = backend.token_to_id("<pad>"), backend.token_to_id("<eos>")
    config = TrainConfig(
        layers=options.layers,
        tokens_per_step=options.tokens,
        lr=options.lr,
        seed=options.seed,
        probe_every=options.probe_every,
    )
    model = new_model(config, backend.get_vocab_size(), eos, pad)
    if options.init:
        model = LlamaForCausalLM.from_pretrained(options.init, dtype=torch.float32)
    trainer = Trainer(config, model, device, Probe(probes, device), options.out, pad)
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", clean_up_tokenization_spaces=False
    ).save_pretrained(options.out)
    trainer.point(Batches(corpus, MIXTURES["point"], config.tokens_per_step, options.seed), options.point)
    return trainer.full(Batches(corpus, MIXTURES["full"], config.tokens_per_step, options.seed), options.full)


def _log(options: argparse.Namespace, row: dict[str, object]) -> None:
    with (options.out / "log.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
