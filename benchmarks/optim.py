"""What policy updates cost: memory of log-probabilities, and the time of each optimizer's own arithmetic.

    python benchmarks/optim.py [--rows 8] [--prompt 512] [--response 32] [--vocabulary 32768] [--repeat 5]
    python benchmarks/optim.py --device cuda --dtype bfloat16 --width 2048 --layers 16 --prompt 1500 --response 80

`logprobs` compares the trainer's ways (hidden states of agent tokens through the output head, in parts; `recomputed`:
with the activations of layers computed again in the backward pass) with the plain one (logits of every position),
forward and backward, each in a process of its own: peak memory above what the loaded model and its gradients take, and
seconds. `loss` is the time of advantages, loss and its gradient for one update of 64 trajectories x 6 rows x 16 agent
tokens, without the model, on the CPU. One JSON object for each measurement; medians of `--repeat` runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch  # noqa: TID253  (a script, run on its own)

from dynaweb.plugin.registry import load
from dynaweb.protocols import Credit, CreditInput, CreditRow, LossInput, PluginContext, TokenRow, wants
from dynaweb.trainer.advantages import compute_advantages
from dynaweb.trainer.batching import collate, units
from dynaweb.trainer.logprobs import GenericScorer, LlamaScorer
from dynaweb.trainer.models import pick_dtype
from dynaweb.types import Prompt

MIB = 1 << 20


def report(**line: Any) -> None:
    """One line of JSON on stdout."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def median_seconds(work: Callable[[], object], repeat: int) -> float:
    """The median of some runs after one to warm up."""
    seconds = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def peak_mib(device: str) -> float:
    """Most memory that this process has held so far, on the device where the model is."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / MIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB


def model_of(given: argparse.Namespace) -> Any:
    """A random Llama; by default its output head is the largest part of it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = max(4, given.width // 64)
    sizes = {"hidden_size": given.width, "intermediate_size": 2 * given.width, "num_attention_heads": heads}
    config = LlamaConfig(
        vocab_size=given.vocabulary, num_hidden_layers=given.layers, max_position_embeddings=8192, **sizes
    )
    return LlamaForCausalLM(config).eval().to(given.device, pick_dtype(given.dtype))


def plain(model: Any, rows: list[TokenRow]) -> torch.Tensor:
    """Log-probabilities from logits of every position of all rows (which are of the same length)."""
    ids = torch.tensor([[*row.prompt.ids, *row.response_ids] for row in rows], device=model.device)
    logp = torch.log_softmax(model(input_ids=ids, use_cache=False).logits.float(), dim=-1)
    start = len(rows[0].prompt)
    return logp[:, start - 1 : -1].gather(2, ids[:, start:, None]).flatten()


WAYS: dict[str, Callable[[Any], Any]] = {
    "plain": GenericScorer,
    "generic": GenericScorer,
    "compact": LlamaScorer,
    "generic, recomputed": partial(GenericScorer, checkpointing=True),
    "compact, recomputed": partial(LlamaScorer, checkpointing=True),
}


def measure(given: argparse.Namespace, way: str, queue: Any) -> None:
    """One way in this process; seconds and memory, or its error, into the queue."""
    try:
        queue.put(_measured(given, way))
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}"[:500])


def _measured(given: argparse.Namespace, way: str) -> tuple[float, float]:
    """Seconds and memory of forward and backward of one micro-batch."""
    torch.set_num_threads(1)
    model, rng = model_of(given), random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(given.vocabulary) for _ in range(count))

    rows = [TokenRow(Prompt(tokens(given.prompt)), tokens(given.response)) for _ in range(given.rows)]
    scorer = WAYS[way](model)
    batch = collate(rows, units(rows, range(len(rows)), share=scorer.shares_prompts), model.device)

    def work() -> None:
        model.zero_grad(set_to_none=False)
        with scorer.step():
            logp = plain(model, rows) if way == "plain" else scorer.logprobs(batch)[0]
            logp.sum().backward()
        if given.device == "cuda":
            torch.cuda.synchronize()

    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    if way == "plain":
        scorer.step = nullcontext
    with scorer.step():  # finds out about the model once, on a few tokens
        pass
    before = peak_mib(given.device)
    seconds = median_seconds(work, given.repeat)
    return seconds, peak_mib(given.device) - before


def logprobs(given: argparse.Namespace) -> None:
    """Memory and time of the ways to compute log-probabilities, and their ratios to the plain one."""
    context = multiprocessing.get_context("spawn")
    found: dict[str, Any] = {}
    for way in WAYS:
        queue = context.Queue()
        process = context.Process(target=measure, args=(given, way, queue))
        process.start()
        found[way] = queue.get()
        process.join()
        if isinstance(found[way], str):
            raise SystemExit(f"{way} failed: {found[way]}")
    for way, (seconds, memory) in found.items():
        report(
            what="logprobs",
            way=way,
            device=given.device,
            dtype=given.dtype,
            tokens=given.rows * (given.prompt + given.response),
            agent_tokens=given.rows * given.response,
            vocabulary=given.vocabulary,
            peak_mib=round(memory, 1),
            ms=round(1e3 * seconds, 1),
            memory_of_plain=round(memory / found["plain"][1], 3),
            time_of_plain=round(seconds / found["plain"][0], 3),
        )


class Update:
    """One update's rollouts as an optimizer sees them, without a model."""

    def __init__(self, optimizer: Any) -> None:
        rng = random.Random(0)
        self.optimizer, want = optimizer, wants(optimizer)
        outputs = want.critic.outputs if want.critic else 0
        states = 1 if want.critic and want.critic.at == "rows" else 16
        self.rows = [self._row(rng, t, k, states, outputs) for t in range(64) for k in range(6)]
        rewards = [float(rng.random() < 0.5) for _ in range(64)]
        self.credit_input = CreditInput(rewards, [str(t // 8) for t in range(64)], self.rows)
        self.old = torch.tensor([row.old_logps for row in self.rows])
        self.logp = (self.old + 0.05 * torch.randn(self.old.shape)).requires_grad_()

    @staticmethod
    def _row(rng: random.Random, trajectory: int, step: int, states: int, outputs: int) -> CreditRow:
        logps = [[-3 * rng.random() for _ in range(16)] for _ in range(2)]
        values = [[rng.random() for _ in range(outputs)] for _ in range(states)] if outputs else []
        return CreditRow(trajectory, step, 16, str(rng.randrange(5)), 0.0, *logps, values)

    def once(self) -> None:
        """Credit, loss and gradient."""
        credit: Credit = compute_advantages(self.optimizer, self.credit_input)
        by_row = credit.rows is not None
        trajectory = torch.tensor([row.trajectory for row in self.rows])
        given = LossInput(
            logp_RT=self.logp,
            old_logp_RT=self.old,
            mask_RT=torch.ones_like(self.old, dtype=torch.bool),
            trajectory_R=trajectory,
            advantage_N=torch.tensor(list(credit.advantages)),
            tokens_N=torch.full((64,), 96),
            advantage_RT=None if credit.tokens is None else torch.tensor([list(row) for row in credit.tokens]),
            ref_logp_RT=self.old,
            row_R=torch.arange(len(self.rows)) if by_row else None,
            advantage_S=torch.tensor(list(credit.rows or ())) if by_row else None,
            tokens_S=torch.full((len(self.rows),), 16) if by_row else None,
        )
        self.optimizer.loss(given).loss.backward()
        self.logp.grad = None


def losses(given: argparse.Namespace) -> None:
    """Time of each optimizer's arithmetic, and its ratio to GSPO's in this run."""
    plugins = load()
    seconds = {}
    for name in plugins.names("opt"):
        update = Update(plugins.create("opt", name, {}, PluginContext()))
        seconds[name] = median_seconds(update.once, given.repeat)
    for name, value in seconds.items():
        ms, ratio = round(1e3 * value, 2), round(value / seconds["gspo"], 2)
        report(what="loss", optimizer=name, tokens=64 * 6 * 16, ms=ms, of_gspo=ratio)


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--response", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logprobs(given)
    losses(given)


if __name__ == "__main__":
    main()
