"""Speed-up of an update and of generation by several ranks over one.

    torchrun --standalone --nproc-per-node 1 benchmarks/ranks.py [--size 1.5b] [--backend NAME] [--stage 3]
    torchrun --standalone --nproc-per-node 2 benchmarks/ranks.py ...

NAME is torch, deepspeed or fsdp. Run it with each number of ranks; rank 0 prints one JSON object: seconds of one GSPO
update on the rows of `benchmarks/trainer.py`, and of one batch of 256 prompts with 64 new tokens each (medians), tokens
per second, and peak memory of rank 0. The speed-up is the ratio of two such lines.
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

sys.path.insert(0, str(Path(__file__).resolve().parent))

from trainer import SHAPES, SIZES, model_of, rows_of

from dynaweb.config.sections import Backend
from dynaweb.engines.local.engine import TransformersEngine
from dynaweb.engines.scheduler import Lockstep
from dynaweb.protocols import GenerateRequest
from dynaweb.trainer.choice import make_trainer
from dynaweb.trainer.distributed.team import Team
from dynaweb.trainer.distributed.team_engine import TeamEngine
from dynaweb.types import Prompt
from dynaweb_opt_gspo import GspoConfig
from dynaweb_opt_gspo.gspo import Gspo


def seconds_of(work: Callable[[], object], repeat: int) -> float:
    """The median of some runs after one to warm up."""
    found = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def made(size: str, dtype: str) -> Any:
    """The same random model on every rank."""
    device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    return model_of(size, device, {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype])


def measure(team: Team, given: argparse.Namespace) -> dict[str, Any]:
    """Update and generation."""
    model = team.make("ranks:made", given.size, given.dtype)
    rows, advantages = rows_of(given.shape, model.config.vocab_size)
    backend = Backend(name=given.backend, stage=given.stage)
    trainer = make_trainer(model, backend, team, lr=1e-6, total_steps=100, micro_tokens=given.micro_tokens)
    update = seconds_of(lambda: trainer.policy_step(rows, Gspo(GspoConfig()), advantages), given.repeat)
    tokens = sum(len(row.prompt) + len(row.response_ids) for row in rows)
    engine = TeamEngine(team, TransformersEngine(model, Lockstep()), 0)
    rng = random.Random(1)
    prompts = [tuple(rng.randrange(model.config.vocab_size) for _ in range(given.prompt)) for _ in range(given.prompts)]
    asked = [GenerateRequest(Prompt(prompt), given.new, seed=i) for i, prompt in enumerate(prompts)]
    generation = seconds_of(lambda: engine.generate_batch(asked), given.repeat)
    cuda = torch.cuda.is_available()
    return {
        "ranks": team.ranks.size,
        "backend": given.backend if given.backend == "torch" else f"{given.backend} {given.stage}",
        "model": given.size,
        "update_seconds": round(update, 4),
        "update_tokens_per_second": round(tokens / update),
        "generate_seconds": round(generation, 4),
        "new_tokens_per_second": round(given.prompts * given.new / generation),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if cuda else None,
        "card": torch.cuda.get_device_name() if cuda else "cpu",
    }


def main() -> int:
    """One line from rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="135m", choices=sorted(SIZES))
    parser.add_argument("--shape", default="web", choices=sorted(SHAPES))
    parser.add_argument("--backend", default="torch", choices=["torch", "deepspeed", "fsdp"])
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--micro-tokens", type=int, default=32768)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=1500)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    sys.modules["ranks"] = sys.modules["__main__"]
    team = Team.join()
    if team.ranks.rank:
        return team.serve()
    sys.stdout.write(json.dumps(measure(team, given)) + "\n")
    team.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
