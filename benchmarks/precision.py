"""What bfloat16 costs log-probabilities: which way of computing them, and which activations.

    python benchmarks/precision.py [--rows 8] [--model tiny]

The truth is float32 with the same (bfloat16) weights. `way` compares computations in bfloat16 with it and with the
plain one, the model's own forward with its head in float32 (`head`, in bfloat16: `plain`). `rounded` computes in
float32 and rounds one kind of activation to bfloat16 (`weights`: the matrices into which scales are folded): what it
costs by itself. Absolute differences per token; one JSON object for each measurement.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from typing import Any

import torch  # noqa: TID253  (a script, run on its own)
import torch.nn.functional as F  # noqa: TID253

from dynaweb.engines.local import llama
from dynaweb.protocols import TokenRow
from dynaweb.trainer.logprobs import GenericScorer, LlamaScorer, micro_batches
from dynaweb.trainer.models import load_model
from dynaweb.types import Prompt

KINDS = ("norm", "projected", "rotated", "mixed", "residual", "gate", "inner", "down", "final", "weights")


def report(what: str, name: str, found: torch.Tensor, wanted: torch.Tensor, against: str) -> None:
    """One line of JSON on stdout."""
    error = (found - wanted).abs()
    numbers = {"mean": error.mean(), "p90": error.quantile(0.9), "max": error.max()}
    line = {what: name, "against": against, **{key: round(float(value), 4) for key, value in numbers.items()}}
    sys.stdout.write(json.dumps(line) + "\n")


def sampled(model: Any, count: int) -> list[TokenRow]:
    """Rows whose responses the model samples itself, as those of an update are."""
    rng, rows = random.Random(0), []
    torch.manual_seed(0)
    for _ in range(count):
        prompt = torch.tensor([[rng.randrange(model.config.vocab_size) for _ in range(rng.randint(40, 120))]])
        out = model.generate(prompt, max_new_tokens=12, do_sample=True, top_k=0, pad_token_id=0)
        rows.append(TokenRow(Prompt(tuple(prompt[0].tolist())), tuple(out[0, prompt.shape[1] :].tolist())))
    return rows


def picked(logits_TV: torch.Tensor, row: TokenRow) -> torch.Tensor:
    """Log-probabilities of a row's response from logits of all its tokens."""
    start, target = len(row.prompt) - 1, torch.tensor(row.response_ids)
    logp_TV = torch.log_softmax(logits_TV, -1)[start : start + len(target)]
    return logp_TV.gather(1, target[:, None])[:, 0]


def plain(model: Any, rows: Sequence[TokenRow], *, wide_head: bool) -> torch.Tensor:
    """The model's own forward, row by row."""
    out = []
    for row in rows:
        hidden = model.model(torch.tensor([[*row.prompt.ids, *row.response_ids]])).last_hidden_state[0]
        weight = model.lm_head.weight
        logits = F.linear(hidden.float(), weight.float()) if wide_head else F.linear(hidden, weight).float()
        out.append(picked(logits, row))
    return torch.cat(out)


def scored(scorer: Any, rows: Sequence[TokenRow], micro_tokens: int) -> torch.Tensor:
    """A scorer's log-probabilities, in the order of rows."""
    out: dict[int, torch.Tensor] = {}
    for batch in micro_batches(scorer, rows, range(len(rows)), micro_tokens, torch.device("cpu")):
        logp_N = scorer.logprobs(batch)[0]
        out |= {row: logp_N[batch.row_N == place] for place, row in enumerate(batch.rows)}
    return torch.cat([out[row] for row in range(len(rows))])


def rounding(weights: llama.Weights, rows: Sequence[TokenRow], kinds: Sequence[str]) -> torch.Tensor:
    """The compact forward in float32, with some kinds of activations rounded to bfloat16."""

    def cut(x: torch.Tensor, kind: str) -> torch.Tensor:
        return x.bfloat16().float() if kind in kinds else x

    out = []
    for row in rows:
        ids = torch.tensor([[*row.prompt.ids, *row.response_ids]])
        turn, x = llama.rotary(weights, torch.arange(ids.shape[1])[None]), F.embedding(ids, weights.embed_VD)
        heads = weights.heads + weights.kv_heads
        for layer in weights.layers:
            given = cut(llama.normalise(x, weights.eps), "norm")
            flat = cut(F.linear(given, cut(layer.qkv, "weights")), "projected")
            parts = flat.view(*flat.shape[:-1], -1, weights.head_dim)
            turned = cut(llama.rotate(parts[..., :heads, :], turn), "rotated")
            query, key = turned[..., : weights.heads, :], turned[..., weights.heads :, :]
            mixed = cut(llama.attend(query, key, parts[..., heads:, :], is_causal=True).flatten(-2), "mixed")
            x = cut(x + F.linear(mixed, layer.out), "residual")
            given = cut(llama.normalise(x, weights.eps), "norm")
            gate, up = cut(F.linear(given, cut(layer.up, "weights")), "gate").chunk(2, -1)
            x = cut(x + cut(F.linear(cut(F.silu(gate) * up, "inner"), layer.down), "down"), "residual")
        final = cut(llama.normalise(x, weights.eps) * weights.norm_D, "final")
        out.append(picked(F.linear(final, weights.head_VD)[0], row))
    return torch.cat(out)


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--model", default="tiny")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad():
        rows = sampled(load_model(given.model), given.rows)
        half = load_model(given.model, "bfloat16")
        exact = load_model(given.model, "bfloat16").float()
        truth, head = plain(exact, rows, wide_head=True), plain(half, rows, wide_head=True)
        ways = {
            "plain": plain(half, rows, wide_head=False),
            "head": head,
            "generic, row by row": scored(GenericScorer(half), rows, 1),
            "generic, packed": scored(GenericScorer(half), rows, 4096),
            "compact": scored(LlamaScorer(half), rows, 4096),
        }
        for name, found in ways.items():
            report("way", name, found, truth, "truth")
            report("way", name, found, head, "head")
        weights = llama.fuse(exact)
        for kinds in ([], *([kind] for kind in KINDS), list(KINDS)):
            report("rounded", "+".join(kinds) or "nothing", rounding(weights, rows, kinds), truth, "truth")


if __name__ == "__main__":
    main()
