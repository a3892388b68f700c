"""Time of one GSPO update on web-shaped rows: ours, and TRL's GRPOTrainer with sequence-level importance sampling.

    python benchmarks/trainer.py [--sizes 135m 1.5b] [--ways ours trl trl-liger] [--repeat 5] [--device cuda]

8 groups of 8 trajectories of 4 steps, prompts of about 1,500 tokens and responses of about 80; the first page of a
group is shared by its rollouts, as in a run. Both ways get the same rows and advantages, take one AdamW step, and run
in a process of their own on the same card; log-probabilities of the old policy are those of the present one. TRL knows
rows, not trajectories, so each of its rows is a sequence; its work is the same. `trl-liger` is TRL with the layers of
liger-kernel. Random weights: speed does not depend on them.

One JSON object for each way and size: seconds (median of `--repeat` updates), the quickest of them, the first update of
the process before them, two updates of rows with other lengths after them, tokens per second (prompt and response
tokens of all rows), peak memory, and MFU: the operations of `flops` (every prompt once) by the card's `--peak-tflops`
(989 for an H100 or H200 in bfloat16). The last lines are ratios: the quickest update of TRL's ways by our median.
`--shape tiny` is for trying the script out. TRL is only needed for its own part (pip install 'dynaweb[trl]').
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty
from typing import Any

import torch  # noqa: TID253  (a script, run on its own)

from dynaweb.protocols import TokenRow
from dynaweb.trainer.torch_trainer import TorchTrainer
from dynaweb.types import Prompt
from dynaweb_opt_gspo import GspoConfig
from dynaweb_opt_gspo.gspo import Gspo

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "heads": (4, 4), "vocab_size": 512},
    "135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "heads": (9, 3),
        "vocab_size": 49152,
    },
    "1.5b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "heads": (32, 8),
        "vocab_size": 32768,
    },
}
"""Llama shapes: SmolLM2-135M's, and one of 1.5 billion parameters."""
SHAPES = {"web": (8, 8, 4, 1500, 80), "small": (2, 4, 2, 400, 40), "tiny": (2, 2, 2, 40, 8)}
"""Groups, trajectories of each, steps of each, tokens of a prompt, tokens of a response."""
OTHER_LENGTHS = 0.9
"""Part of the usual lengths in updates that come first with their lengths."""


def model_of(size: str, device: str, dtype: torch.dtype) -> Any:
    """A random Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    given = dict(SIZES[size])
    heads, kv_heads = given.pop("heads")
    config = LlamaConfig(
        **given,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=size != "1.5b",
    )
    with torch.device(device):
        return LlamaForCausalLM(config).to(dtype)


def rows_of(shape: str, vocabulary: int, part: float = 1.0, seed: int = 0) -> tuple[list[TokenRow], list[float]]:
    """Rows, and one advantage for each trajectory; prompts and responses are `part` as long as usual."""
    groups, each, steps, prompt, response = SHAPES[shape]
    prompt, response = (max(4, round(part * length)) for length in (prompt, response))
    rng = random.Random(seed)

    def tokens(about: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(rng.randint(int(0.8 * about), int(1.2 * about))))

    rows = []
    for group in range(groups):
        first = tokens(prompt)
        for member in range(each):
            for step in range(steps):
                rows.append(
                    TokenRow(Prompt(first if step == 0 else tokens(prompt)), tokens(response), group * each + member)
                )
    advantages = [rng.choice([-1.0, 1.0]) * rng.uniform(0.5, 1.5) for _ in range(groups * each)]
    return rows, advantages


Prepare = Callable[[list[TokenRow], list[float]], Callable[[], object]]
"""Makes, of rows and advantages, what does one update."""


def ours(given: argparse.Namespace, model: Any) -> Prepare:
    """Updates of ours."""
    settings = {"lr": 1e-6, "total_steps": 100, "micro_tokens": given.micro_tokens, **_options(given)}
    trainer = TorchTrainer(model, **settings)
    optimizer = Gspo(GspoConfig())
    return lambda rows, advantages: lambda: trainer.policy_step(rows, optimizer, advantages)


def _options(given: argparse.Namespace) -> dict[str, Any]:
    """Further arguments of the trainer from `--ours name=value`."""
    pairs = (text.partition("=") for text in given.ours)
    return {name: json.loads(value) for name, _, value in pairs}


def trl(given: argparse.Namespace, model: Any) -> Prepare:
    """Updates of TRL: its own loss on padded micro-batches, gradients accumulated, clipped, one AdamW step."""
    trainer = _trl_trainer(given, model)
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def prepare(rows: list[TokenRow], advantages: list[float]) -> Callable[[], object]:
        batches = [_padded(part, rows, advantages, device) for part in _parts(rows, given.micro_tokens)]

        def update() -> None:
            trainer.current_gradient_accumulation_steps = len(batches)
            for batch in batches:
                trainer._compute_loss(model, batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return update

    return prepare


def trl_liger(given: argparse.Namespace, model: Any) -> Prepare:
    """The same with fused norms, rotary embedding and SwiGLU."""
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    _apply_liger_kernel_to_instance(model=model, fused_linear_cross_entropy=False)
    return trl(given, model)


def _trl_trainer(given: argparse.Namespace, model: Any) -> Any:
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")), pad_token="a", eos_token="a"
    )
    config = GRPOConfig(
        output_dir="trl-benchmark",
        importance_sampling_level="sequence",
        loss_type="grpo",
        epsilon=3e-4,
        epsilon_high=4e-4,
        beta=0.0,
        num_generations=8,
        per_device_train_batch_size=8,
        bf16=given.dtype == "bfloat16",
        gradient_checkpointing=given.trl_checkpointing,
        use_cpu=given.device == "cpu",
        report_to=[],
        use_vllm=False,
    )
    data = Dataset.from_list([{"prompt": "a"}] * 8)
    trainer = GRPOTrainer(
        model, lambda completions, **_: [0.0] * len(completions), config, data, processing_class=words
    )
    model.train()
    return trainer


def _parts(rows: Sequence[TokenRow], tokens: int) -> list[list[int]]:
    """Indices of rows, of similar length together, at most so many padded tokens each."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].prompt) + len(rows[i].response_ids))
    parts: list[list[int]] = []
    for index in order:
        width = len(rows[index].prompt) + len(rows[index].response_ids)
        if parts and (len(parts[-1]) + 1) * width <= tokens:
            parts[-1].append(index)
        else:
            parts.append([index])
    return parts


def _padded(part: Sequence[int], rows: Sequence[TokenRow], advantages: Sequence[float], device: Any) -> dict[str, Any]:
    prompts, answers = [rows[i].prompt.ids for i in part], [rows[i].response_ids for i in part]
    wide, long = max(map(len, prompts)), max(map(len, answers))

    def tensor(values: list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, device=device)

    mask = tensor([[1] * len(a) + [0] * (long - len(a)) for a in answers])
    return {
        "prompt_ids": tensor([[0] * (wide - len(p)) + list(p) for p in prompts]),
        "prompt_mask": tensor([[0] * (wide - len(p)) + [1] * len(p) for p in prompts]),
        "completion_ids": tensor([list(a) + [0] * (long - len(a)) for a in answers]),
        "completion_mask": mask,
        "advantages": torch.tensor([advantages[rows[i].trajectory] for i in part], device=device),
        "num_items_in_batch": mask.sum(),
    }


def flops(model: Any, rows: Sequence[TokenRow]) -> float:
    """Floating point operations of forward and backward: every prompt once however many rows have it, the output head
    on response tokens, recomputation not counted."""
    config, seen = model.config, set[Prompt]()
    body = sum(p.numel() for p in model.model.parameters()) - config.vocab_size * config.hidden_size
    total = 0.0
    for row in rows:
        length = len(row.response_ids) + (0 if row.prompt in seen else len(row.prompt))
        seen.add(row.prompt)
        # Causal attention sees half of the square.
        total += length * (6 * body + 6 * config.num_hidden_layers * config.hidden_size * length)
        total += 6 * len(row.response_ids) * config.vocab_size * config.hidden_size
    return total


def measure(given: argparse.Namespace, way: str, size: str, queue: Any) -> None:
    """One way in this process; the result into the queue."""
    warnings.simplefilter("ignore")
    try:
        queue.put(_measured(given, way, size))
    except Exception as error:
        queue.put({"way": way, "model": size, "failed": f"{type(error).__name__}: {error}"[:500]})


def _measured(given: argparse.Namespace, way: str, size: str) -> dict[str, Any]:
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[given.dtype]
    model = model_of(size, given.device, dtype)
    rows, advantages = rows_of(given.shape, model.config.vocab_size)
    cuda = given.device != "cpu"
    prepare = WAYS[way](given, model)
    update = prepare(rows, advantages)

    def timed(update: Callable[[], object]) -> float:
        start = time.perf_counter()
        update()
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds = [timed(update)]
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds += [timed(update) for _ in range(given.repeat)]
    peak = round(torch.cuda.max_memory_allocated() / 2**30, 2) if cuda else None
    others = [timed(prepare(*rows_of(given.shape, model.config.vocab_size, OTHER_LENGTHS, seed))) for seed in (1, 2)]
    if given.profile:
        _profile(update, f"{way} {size}")
    median = statistics.median(seconds[1:])
    tokens = sum(len(row.prompt) + len(row.response_ids) for row in rows)
    return {
        "way": way,
        "model": size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "rows": len(rows),
        "tokens": tokens,
        "seconds": round(median, 4),
        "quickest": round(min(seconds[1:]), 4),
        "first": round(seconds[0], 2),
        "new_lengths": [round(one, 4) for one in others],
        "tokens_per_second": round(tokens / median),
        "peak_gib": peak,
        "mfu": round(flops(model, rows) / median / (given.peak_tflops * 1e12), 4) if cuda else None,
        "card": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__,
    }


def _profile(update: Callable[[], object], name: str) -> None:
    """Write to stderr what one update spends the GPU's time on, and how much of it the GPU was busy."""
    from torch.profiler import ProfilerActivity, profile

    start = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        update()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    wall = time.perf_counter() - start
    kernels = seen.key_averages()
    key = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    busy = sum(getattr(one, key) for one in kernels) / 1e6
    sys.stderr.write(f"{name}: {busy:.3f} s of kernels in {wall:.3f} s\n")
    sys.stderr.write(kernels.table(sort_by=key, row_limit=25, max_name_column_width=90) + "\n")


WAYS = {"ours": ours, "trl": trl, "trl-liger": trl_liger}


def main() -> int:
    """Measure everything; the exit code is the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["135m", "1.5b"], choices=sorted(SIZES))
    parser.add_argument("--ways", nargs="+", default=["ours", "trl"], choices=sorted(WAYS))
    parser.add_argument("--shape", default="web", choices=sorted(SHAPES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--micro-tokens", type=int, default=32768, help="padded tokens of one forward pass, both ways")
    parser.add_argument("--trl-checkpointing", action="store_true", help="TRL recomputes activations (its default)")
    parser.add_argument("--ours", nargs="*", default=[], metavar="NAME=JSON", help="arguments of our trainer")
    parser.add_argument("--profile", action="store_true", help="what an update spends its time on, to stderr")
    parser.add_argument("--peak-tflops", type=float, default=989.0)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for size in given.sizes:
        for way in given.ways:
            queue = context.Queue()
            process = context.Process(target=measure, args=(given, way, size, queue))
            process.start()
            while True:
                with suppress(Empty):
                    found[size, way] = queue.get(timeout=1.0)
                    break
                if not process.is_alive() and queue.empty():
                    found[size, way] = {"model": size, "way": way, "failed": f"killed (exit code {process.exitcode})"}
                    break
            process.join()
            sys.stdout.write(json.dumps(found[size, way]) + "\n")
            sys.stdout.flush()
    for size in given.sizes:
        a = found.get((size, "ours"), {})
        others = [one for (of, way), one in found.items() if of == size and way != "ours" and "seconds" in one]
        b = min(others, key=lambda one: one["quickest"], default={})
        if a.get("seconds") and b:
            memory = round(a["peak_gib"] / b["peak_gib"], 3) if a["peak_gib"] else None
            line = {"model": size, "times_trl_speed": round(b["quickest"] / a["seconds"], 3), "of_trl_memory": memory}
            sys.stdout.write(json.dumps(line) + "\n")
    return sum("failed" in one for one in found.values())


if __name__ == "__main__":
    sys.exit(main())
