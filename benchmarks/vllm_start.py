"""How long vLLM takes to start on a GPU, and what it gives then: with torch.compile or without, first and second start.

    python benchmarks/vllm_start.py [--model FOLDER|NAME] [--ways uncompiled compiled eager] [--together 3]

Each way has empty folders of compiled code for its first start, and the same folders for its second. As many vLLMs as
`--together` says start side by side, as those of policy, world model and judge do. Then one of them answers the same
prompts, of up to `--length` random tokens with `--new` new ones each, all at once, twice; the second time counts.
One JSON object for each start: seconds until all are there (`start`), until the one has the weights and the probe has
passed (`ready`), and new tokens per second. `--stand-in` tries the script out without vLLM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WAYS: dict[str, dict[str, bool]] = {
    "uncompiled": {"compile": False},
    "compiled": {"compile": True},
    "eager": {"eager": True},
}
FOLDERS = {"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
FAKE = Path(__file__).resolve().parents[1] / "tests" / "kits" / "fake_vllm"


async def measured(given: argparse.Namespace) -> dict[str, Any]:
    """One start in this process."""
    from dynaweb.engines.plugin import VllmConfig
    from dynaweb.engines.scheduler import Lockstep
    from dynaweb.engines.vllm.engine import VllmEngine
    from dynaweb.pipeline.artifacts import LoadedModel
    from dynaweb.pipeline.models import ROLES
    from dynaweb.protocols import EngineContext, GenerateRequest
    from dynaweb.trainer.models import load_model, pick_device, pick_dtype
    from dynaweb.types import Prompt

    model = load_model(given.model, pick_dtype(given.dtype), pick_device(given.device))
    weights = LoadedModel(model, None, None)  # type: ignore[arg-type]
    config = VllmConfig.model_validate({**WAYS[given.way], "memory": given.memory})
    contexts = [
        EngineContext(weights=weights, batching=Lockstep(), role=role, roles=given.together)
        for role in ROLES[: given.together]
    ]
    engines = [VllmEngine(config, context) for context in contexts]
    engine = engines[0]
    begun = time.monotonic()
    await asyncio.gather(*(one.start() for one in engines))
    started = time.monotonic()
    await engine.ready()
    ready = time.monotonic()
    rng = random.Random(0)
    prompts = [
        Prompt(tuple(rng.randrange(4, 200) for _ in range(rng.randint(given.length // 2, given.length))))
        for _ in range(given.prompts)
    ]
    spent = []
    for turn in range(2):
        at = time.monotonic()
        requests = [
            GenerateRequest(prompt, given.new, 1.0, 1.0, 1000 * turn + number) for number, prompt in enumerate(prompts)
        ]
        done = await asyncio.gather(*map(engine.generate, requests))
        spent.append(sum(len(one.token_ids) for one in done) / (time.monotonic() - at))
    await asyncio.gather(*(one.close() for one in engines))
    seconds = {"start": round(started - begun, 1), "ready": round(ready - begun, 1)}
    return {**seconds, "tokens_per_second": round(spent[-1])}


def main() -> int:
    """Measure all ways; the exit code is the number of starts that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--together", type=int, default=3, choices=(1, 2, 3))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--memory", type=float, default=0.4)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        sys.stdout.write(json.dumps(asyncio.run(measured(given))) + "\n")
        return 0
    failed = 0
    for way in given.ways:
        with tempfile.TemporaryDirectory() as folder:
            for start in ("first", "second"):
                made = {name: str(Path(folder) / place) for name, place in FOLDERS.items()}
                if given.stand_in:
                    made["PYTHONPATH"] = os.pathsep.join([str(FAKE), os.environ.get("PYTHONPATH", "")])
                command = [sys.executable, *sys.argv, "--way", way]
                done = subprocess.run(command, env={**os.environ, **made}, stdout=subprocess.PIPE, text=True)
                found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"exit": done.returncode}
                failed += done.returncode != 0
                line = {"way": way, "together": given.together, "start_number": start, **found}
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main())
