"""Which models of transformers train and generate right here: a table over tiny random ones of every architecture.

    python benchmarks/architectures.py [--json] [--write docs/models.md] [NAME ...]

Each model has two or three layers, windows, chunks and thresholds shorter than its sequences, and weights large enough
that a token which should not be seen shows. Compared, in float32 on one core:

- `rows`: how the trainer computes rows (`compact`, `packed`, `padded`), and `head`: whether the output head sees
  response tokens alone (`apart`) or all (`whole`);
- `logp`, `grad`, `lora`: log-probabilities of rows of many lengths, all gradients, and log-probabilities with adapters,
  against the model's own forward pass on each row alone;
- `batches`: how the engine batches prompts (`compact`, `padded`, `by length`), `generate`: greedy tokens of requests
  that share prompts and end at different times against `model.generate` on each alone, and `alone`: next-token
  probabilities of a prompt in company against those alone.

A cell is `ok`, `refused` (with one line of error before anything is computed), or what went wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch  # noqa: TID253  (a script, run on its own)
import transformers  # noqa: TID253
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: TID253

from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.local.sessions import LlamaRunner
from dynaweb.engines.scheduler import Lockstep
from dynaweb.errors import DynawebError
from dynaweb.pipeline.artifacts import LoadedModel
from dynaweb.pipeline.fit import with_adapters
from dynaweb.protocols import GenerateRequest, TokenRow
from dynaweb.trainer.logprobs import LlamaScorer, Scorer, micro_batches, scorer_for
from dynaweb.types import Prompt

VOCABULARY = 96
TOLERANCE = 2e-3
"""Nats, and shares of the largest entry of a gradient."""
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size",), VOCABULARY),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "lru_width"), 32),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "intermediate_size_mlp"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 256),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "rotary_dim", "mamba_dt_rank"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "first_k_dense_replace", "mamba_n_groups"), 1),
    **dict.fromkeys(("n_groups", "head_dim", "state_size", "mamba_d_state", "ssm_state_size", "mamba_d_head"), 8),
    **dict.fromkeys(("mamba_head_dim", "mamba_n_heads", "mamba_num_heads", "num_heads"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "chunk_size", "mamba_chunk_size", "attention_chunk_size"), 8),
    **dict.fromkeys(("floor_scale", "index_topk", "log_scaling_n_floor", "keep_window_size"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "sliding_window", "time_step_rank"), 16),
    **dict.fromkeys(("bos_token_id", "eos_token_id"), 1),
    "pad_token_id": 0,
}
"""Sizes by the names that configurations use; each gets those that it knows."""
BLOCK = re.compile(r"(?<=<!-- measured: benchmarks/architectures.py -->\n).*?(?=<!-- end -->)", re.S)
"""Where a page holds the table."""
WINDOWED = {"use_sliding_window": True, "max_window_layers": 0}
FULL_LATER = {"layer_types": ["linear_attention", "full_attention"]}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0] * 4,
    "long_factor": [1.5, 4.0, 9.0, 30.0],
    "original_max_position_embeddings": 24,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    # Llama and its kin
    "llama": {},
    "llama (dynamic rope)": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}},
    "llama (yarn rope)": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "mistral": {},
    "ministral": {},
    "ministral3": {},
    "qwen2": {},
    "qwen2 (window)": WINDOWED,
    "qwen3": {},
    "smollm3": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "phi": {},
    "phi3": {},
    "phi3 (longrope)": {"rope_parameters": LONGROPE, "original_max_position_embeddings": 24, "sliding_window": None},
    "gemma": {},
    "gemma2": {"final_logit_softcapping": 5.0, "attn_logit_softcapping": 5.0},
    "gemma3_text": {},
    "vaultgemma": {"final_logit_softcapping": 5.0, "attn_logit_softcapping": 5.0},
    "granite": {"logits_scaling": 4.0},
    "granite_swa": {"logits_scaling": 4.0},
    "cohere": {},
    "cohere2": {},
    "glm": {},
    "glm4": {},
    "exaone4": {},
    "ernie4_5": {},
    "hunyuan_v1_dense": {},
    "hyperclovax": {"logits_scaling": 0.25},
    "seed_oss": {},
    "arcee": {},
    "apertus": {},
    "bitnet": {},
    "cwm": {},
    "diffllama": {},
    "helium": {},
    "jais2": {},
    "nanochat": {"final_logit_softcapping": 5.0},
    "nemotron": {},
    "stablelm": {},
    "persimmon": {},
    "starcoder2": {},
    "minicpm3": {"head_dim": 16, "num_key_value_heads": 4},
    # Older ones
    "gpt2": {},
    "gpt_bigcode": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "gpt_neox": {},
    "gptj": {},
    "codegen": {},
    "falcon": {},
    "falcon (alibi)": {"alibi": True, "new_decoder_architecture": False},
    "bloom": {},
    "mpt": {},
    "opt": {},
    "xglm": {},
    "biogpt": {},
    "openai-gpt": {},
    "ctrl": {},
    # Mixtures of experts
    "mixtral": {},
    "qwen2_moe": {},
    "qwen2_moe (window)": {"use_sliding_window": True, "max_window_layers": 2},
    "qwen3_moe": {},
    "phimoe": {},
    "olmoe": {},
    "granitemoe": {"logits_scaling": 4.0},
    "granitemoeshared": {"logits_scaling": 4.0},
    "gpt_oss": {},
    "glm4_moe": {},
    "deepseek_v2": {"head_dim": 8, "num_key_value_heads": 4},
    "deepseek_v3": {"head_dim": 8, "num_key_value_heads": 4},
    "dots1": {},
    "ernie4_5_moe": {},
    "flex_olmo": {},
    "hunyuan_v1_moe": {},
    "jetmoe": {},
    "minimax_m2": {},
    "llama4_text": {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "attn_temperature_tuning": True},
    "doge": {},
    # Recurrent and hybrid ones
    "mamba": {},
    "mamba2": {},
    "falcon_mamba": {},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], "logits_scaling": 4.0},
    "falcon_h1": {"mamba_d_ssm": 64, "lm_head_multiplier": 0.25},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "minimax": FULL_LATER | {"block_size": 8},
    "qwen3_next": FULL_LATER,
    "qwen3_5_text": FULL_LATER,
    "olmo_hybrid": FULL_LATER,
    "nemotron_h": {},
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 16, "logits_soft_cap": 5.0},
    "rwkv": {"attention_hidden_size": 32},
    "xlstm": {},
    # No causal language models, unless they are told to be
    "bert": {},
    "roberta (decoder)": {"is_decoder": True},
}
"""Architectures by the names that transformers has for them, with what makes each differ from the plain model."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of the table."""

    name: str
    rows: str = "-"
    head: str = "-"
    logp: str = "-"
    grad: str = "-"
    lora: str = "-"
    batches: str = "-"
    generate: str = "-"
    alone: str = "-"

    @property
    def wrong(self) -> list[str]:
        """Columns whose cell says that something went wrong."""
        return [f.name for f in fields(self) if getattr(self, f.name).startswith(("off", "fails"))]


def tiny(name: str) -> Any:
    """A random model of an architecture, small enough for every test and loud enough to show each mistake."""
    kind, changes = name.partition(" ")[0], ARCHITECTURES[name]
    default = type(AutoConfig.for_model(kind))
    known = default()
    sizes = {key: value for key, value in SMALL.items() if hasattr(known, key) and _settable(default, key)}
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(default(**sizes | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(4)
    model.generation_config.eos_token_id = None
    return model


def _settable(config: type, key: str) -> bool:
    known = getattr(config, key, None)
    return not isinstance(known, property) or known.fset is not None


def token_rows() -> list[TokenRow]:
    """Rows of many lengths, some beyond every window, some with the same prompt."""
    rng = random.Random(1)
    prompts = [_tokens(rng, length) for length in (2, 7, 13, 22, 23, 30, 47)]
    return [
        TokenRow(Prompt(prompt), _tokens(rng, rng.randint(1, 6)), i)
        for i, prompt in enumerate([*prompts, prompts[2], prompts[5]])
    ]


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(2, VOCABULARY) for _ in range(count))


def plain_logprobs(model: Any, row: TokenRow) -> torch.Tensor:
    """Log-probabilities of a row's response by the model's own forward pass on what predicts it."""
    ids = torch.tensor([[*row.prompt.ids, *row.response_ids[:-1]]])
    logp_TV = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float(), dim=-1)
    return logp_TV[len(row.prompt) - 1 :].gather(1, torch.tensor(row.response_ids)[:, None])[:, 0]


def scored(scorer: Scorer, rows: Sequence[TokenRow], *, backward: bool = False) -> torch.Tensor:
    """The trainer's log-probabilities of all rows, in order; with `backward` also the gradient of their sum."""
    parts: dict[int, torch.Tensor] = {}
    with scorer.step():
        for micro in micro_batches(scorer, rows, range(len(rows)), 120, torch.device("cpu")):
            logp_N, _ = scorer.logprobs(micro)
            if backward:
                logp_N.sum().backward()
            parts |= {row: logp_N.detach()[micro.row_N == index] for index, row in enumerate(micro.rows)}
    return torch.cat([parts[row] for row in range(len(rows))])


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """All gradients, which are dropped."""
    out = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    return out


def trained(name: str) -> dict[str, str]:
    """The trainer's columns."""
    model, rows = tiny(name), token_rows()
    scorer = scorer_for(model)
    compact = isinstance(scorer, LlamaScorer)
    way = {
        "rows": "compact" if compact else "packed" if scorer.packs else "padded",
        "head": "apart" if compact or getattr(scorer, "_tail", None) is not None else "whole",
    }
    logps = scored(scorer, rows, backward=True)
    ours = gradients(model)
    plain = torch.cat([plain_logprobs(model, row) for row in rows])
    plain.sum().backward()
    truth = gradients(model)
    loudest = max(float(value.abs().max()) for value in truth.values())
    away = max(float((ours[key] - value).abs().max()) for key, value in truth.items()) / loudest
    error = float((logps - plain.detach()).abs().max())
    return {**way, "logp": _within(error, "nats"), "grad": _within(away, "of the largest")}


def adapted(name: str) -> dict[str, str]:
    """The column of low-rank adapters."""
    model, rows = tiny(name), token_rows()
    try:
        with_adapters(LoadedModel(model, None, None), 2, seed=0)  # type: ignore[arg-type]
    except ValueError:
        return {"lora": "no linear layer"}
    torch.manual_seed(1)
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if "lora_B" in part:
                parameter.normal_(std=0.3)
    logps = scored(scorer_for(model), rows)
    with torch.no_grad():
        plain = torch.cat([plain_logprobs(model, row) for row in rows])
    return {"lora": _within(float((logps - plain).abs().max()), "nats")}


def generated(name: str) -> dict[str, str]:
    """The engine's columns."""
    model = tiny(name)
    engine = TransformersEngine(model, Lockstep())
    runner: Any = engine._runner
    way = "compact" if isinstance(runner, LlamaRunner) else "padded" if runner._pads else "by length"
    rng = random.Random(2)
    prompts = [Prompt(_tokens(rng, length)) for length in (3, 9, 9, 17, 22, 30, 41)]
    requests = [GenerateRequest(prompt, 4 + 3 * (i % 3), 0.0) for i, prompt in enumerate(prompts)]
    requests += [GenerateRequest(prompt, 11, 0.0) for prompt in prompts[1:5]]
    off = sum(
        completion.token_ids != greedy(model, request)
        for request, completion in zip(requests, engine.generate_batch(requests), strict=True)
    )
    company = torch.tensor(engine.choice_batch([(prompt, (5, 6, 7)) for prompt in prompts]))
    with torch.no_grad():
        logits = [model(input_ids=torch.tensor([prompt.ids]), use_cache=False).logits[0, -1] for prompt in prompts]
    alone = torch.log_softmax(torch.stack(logits).float(), dim=-1)[:, 5:8]
    return {
        "batches": way,
        "generate": f"off: {off} of {len(requests)}" if off else "ok",
        "alone": _within(float((company - alone).abs().max()), "nats"),
    }


def greedy(model: Any, request: GenerateRequest) -> tuple[int, ...]:
    """The tokens of `generate` for a request alone."""
    ids = torch.tensor([request.prompt.ids])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=request.max_new_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return tuple(out[0, ids.shape[1] :].tolist())


def _within(error: float, unit: str) -> str:
    return "ok" if error < TOLERANCE else f"off: {error:.1g} {unit}"


def measured(name: str) -> Verdict:
    """All columns of an architecture."""
    cells: dict[str, str] = {}
    columns: dict[Callable[[str], dict[str, str]], tuple[str, ...]] = {
        trained: ("rows", "head", "logp", "grad"),
        adapted: ("lora",),
        generated: ("batches", "generate", "alone"),
    }
    for measure, names in columns.items():
        try:
            cells |= measure(name)
        except DynawebError:
            cells |= dict.fromkeys(names, "refused")
        except Exception as error:
            sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
            cells |= dict.fromkeys(names, f"fails: {type(error).__name__}")
    return Verdict(name, **cells)


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as a table of markdown."""
    names = [f.name for f in fields(Verdict)]
    lines = [names, ["---"] * len(names), *([f"`{v.name}`", *list(asdict(v).values())[1:]] for v in verdicts)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def documented(page: Path) -> Iterator[Verdict]:
    """The verdicts that stand in a page of the documentation."""
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == len(fields(Verdict)) and cells[0].strip("`") in ARCHITECTURES:
            yield Verdict(cells[0].strip("`"), *cells[1:])


def main() -> int:
    """Measure, print or write the table; 1 where a cell is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into a page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    verdicts = []
    for name in options.names or ARCHITECTURES:
        verdicts.append(measured(name))
        if options.json:
            sys.stdout.write(json.dumps(asdict(verdicts[-1])) + "\n")
        sys.stderr.write(f"{name}: {', '.join(verdicts[-1].wrong) or 'nothing wrong'}\n")
    if options.write:
        text = options.write.read_text(encoding="utf-8")
        options.write.write_text(BLOCK.sub(lambda _: f"{table(verdicts)}", text), encoding="utf-8")
    elif not options.json:
        sys.stdout.write(table(verdicts))
    return int(any(verdict.wrong for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
