"""Speed of the transformers engine and of the trainer on the shapes of the default run, against the plain way.

    python benchmarks/engine.py [--model FOLDER] [--device cpu] [--repeat 5]

Without `--model` a random Llama of the tiny model's size is used; speed does not depend on the weights. Prints one JSON
object for each measurement: best and median of `--repeat` runs in milliseconds, and tokens per second of the best.
Decoding steps of few rows on a CPU (`small`) are compared with the usual ones by processor time, in turns.
`plain` is the model's own forward: for generation with its own cache, for training with padded rows and one row each.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # noqa: TID253  (a script, run on its own)

from dynaweb.engines.local import decoding
from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.local.sessions import GenericRunner, LlamaRunner
from dynaweb.engines.scheduler import Lockstep
from dynaweb.protocols import GenerateRequest, TokenRow
from dynaweb.trainer.logprobs import GenericScorer, LlamaScorer
from dynaweb.trainer.models import load_model
from dynaweb.trainer.torch_trainer import TorchTrainer
from dynaweb.types import Prompt

TINY = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}


def random_tiny() -> Any:
    """A random Llama of the tiny model's shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**TINY)).eval()


def timed(work: Callable[[], object], repeat: int) -> list[float]:
    """Sorted seconds of `repeat` runs after one to warm up."""
    seconds = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds[1:])


def report(what: str, way: str, tokens: int, seconds: list[float], **more: Any) -> None:
    """One line of JSON on stdout."""
    line = {
        "what": what,
        "way": way,
        **more,
        "best_ms": round(1e3 * seconds[0], 2),
        "median_ms": round(1e3 * statistics.median(seconds), 2),
        "tokens_per_second": round(tokens / seconds[0]),
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Bench:
    """Random prompts of the default run's lengths, and the measurements."""

    def __init__(self, model: Any, repeat: int) -> None:
        self.model = model
        self.repeat = repeat
        self.rng = random.Random(0)
        self.vocabulary: int = model.config.vocab_size

    def tokens(self, low: int, high: int) -> tuple[int, ...]:
        """`low` to `high` random token ids."""
        return tuple(self.rng.randrange(self.vocabulary) for _ in range(self.rng.randint(low, high)))

    def engine(self, way: str) -> TransformersEngine:
        """The engine with the compact forward, or with the model's own."""
        engine = TransformersEngine(self.model, Lockstep())
        engine._runner = LlamaRunner(self.model, 0) if way == "compact" else GenericRunner(self.model, 0)
        return engine

    def prefill(self, way: str, batch: int) -> None:
        """Score `batch` prompts of 120 to 200 tokens."""
        engine = self.engine(way)
        prompts = [(Prompt(self.tokens(120, 200)), (1, 2)) for _ in range(batch)]
        seconds = timed(lambda: engine.choice_batch(prompts), self.repeat)
        report("prefill", way, sum(len(prompt) for prompt, _ in prompts), seconds, batch=batch)

    def generate(self, way: str, batch: int, distinct: int, new: int) -> None:
        """Sample `new` tokens after `batch` prompts, of which `distinct` differ."""
        engine = self.engine(way)
        prompts = [Prompt(self.tokens(120, 200)) for _ in range(distinct)]
        requests = [GenerateRequest(prompts[i % distinct], new, seed=i) for i in range(batch)]
        seconds = timed(lambda: engine.generate_batch(requests), self.repeat)
        report("generate", way, batch * new, seconds, batch=batch, distinct=distinct, new=new)

    def decode(self, way: str, batch: int) -> None:
        """One decoding step after prompts of 160 to 180 tokens, sampling left out."""
        runner = self.engine(way)._runner
        prompts = [Prompt(self.tokens(160, 180)) for _ in range(batch)]
        token = torch.ones(batch, dtype=torch.long, device=runner.device)
        with torch.inference_mode():
            session = runner.start(prompts, 8 * (self.repeat + 1))
            seconds = timed(lambda: [session.step(token) for _ in range(8)], self.repeat)
        report("decode step", way, batch, [total / 8 for total in seconds], batch=batch)

    def small_steps(self, batch: int) -> None:
        """A step of `decoding.SmallSteps` against the usual one, in turns; ratios of processor time."""
        runner = LlamaRunner(self.model, 0)
        page = self.tokens(300, 300)
        prompts = [Prompt(page + self.tokens(10, 30)) for _ in range(batch)]
        token = torch.ones(batch, dtype=torch.long)
        seconds: dict[int, list[float]] = {0: [], decoding.SMALL_ROWS: []}
        with torch.inference_mode():
            for turn in range(8 * (self.repeat + 1)):
                for rows in seconds:
                    session = runner.start(prompts, 8)
                    seconds[rows].append(_stepped(session, token, rows))
                    if turn == 0:
                        seconds[rows].clear()  # warming up
        usual, new = (sorted(found) for found in seconds.values())
        report("decode step", "usual", batch, usual, batch=batch)
        report("decode step", "small", batch, new, batch=batch, ratio=round(_median(usual) / _median(new), 2))

    def train(self, way: str, micro_tokens: int) -> None:
        """Forward and backward of 64 trajectories x 4 rows; 8 groups share their first prompts."""
        first = [self.tokens(120, 200) for _ in range(8)]
        rows = [
            TokenRow(Prompt(first[t // 8] if step == 0 else self.tokens(120, 200)), self.tokens(8, 16), t)
            for t in range(64)
            for step in range(4)
        ]
        trainer = TorchTrainer(self.model, lr=1e-9, total_steps=1000, micro_tokens=micro_tokens)
        trainer._moved = True
        trainer._scorer = LlamaScorer(self.model) if way == "compact" else GenericScorer(self.model)
        seconds = timed(lambda: trainer.supervised_step(rows), self.repeat)
        total = sum(len(row.prompt) + len(row.response_ids) for row in rows)
        report("train", way, total, seconds, rows=len(rows), micro_tokens=micro_tokens)


def _stepped(session: Any, token: torch.Tensor, rows: int) -> float:
    """Processor seconds of a step where small steps have at most so many rows."""
    before, decoding.SMALL_ROWS = decoding.SMALL_ROWS, rows
    start = time.process_time()
    for _ in range(8):
        session.step(token)
    seconds = (time.process_time() - start) / 8
    decoding.SMALL_ROWS = before
    return seconds


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds)


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="model folder (default: a random one of the tiny size)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (default: torch's own choice)")
    parser.add_argument("--ways", nargs="+", default=["compact", "plain"], choices=["compact", "plain"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 16, 32, 64])
    parser.add_argument("--micro-tokens", type=int, nargs="+", default=[2048, 4096, 8192])
    given = parser.parse_args()
    model = load_model(given.model, device=given.device) if given.model else random_tiny().to(given.device)
    if given.threads:
        torch.set_num_threads(given.threads)
    bench = Bench(model, given.repeat)
    if given.device == "cpu":
        for batch in (1, 2, 4, 8, 16, decoding.SMALL_ROWS):
            bench.small_steps(batch)
    for way in given.ways:
        for batch in given.batches:
            bench.prefill(way, batch)
            bench.decode(way, batch)
        for distinct in (64, 8):
            bench.generate(way, 64, distinct, 16)
        for micro_tokens in given.micro_tokens:
            bench.train(way, micro_tokens)


if __name__ == "__main__":
    main()
