"""What an image costs a policy: tokens, memory, and seconds of reading, answering and learning.

    python benchmarks/seeing.py [--model FOLDER | --family idefics3] [--size 1280x720] [--rows 4] [--new 16] [--json]

Without a model it measures a tiny random one in a family's ways (`tests/kits/vision_families.py`), whose numbers say
how the toolkit's own work grows, not what a real model takes. Each row of the table is one size of the picture, and 0x0
the same prompt as text alone. `processor`: from PNG bytes to the inputs of the model. `reply`: a prompt that is read,
and `--new` tokens. `update`: forward and backward of a row and its part of the step. `memory`: peak of the device's
memory in an update on a GPU; on a CPU how far the process grew, which is rough.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "kits"))

import torch  # noqa: E402, TID253  (a script, run on its own)
from vision_families import FAMILIES, Album  # noqa: E402

from dynaweb.engines.local.engine import TransformersEngine  # noqa: E402
from dynaweb.engines.scheduler import Lockstep  # noqa: E402
from dynaweb.policy.prompt_formats import ChatFormat  # noqa: E402
from dynaweb.policy.settings import PromptSettings  # noqa: E402
from dynaweb.protocols import GenerateRequest, TokenRow  # noqa: E402
from dynaweb.trainer.models import load_model, pick_device  # noqa: E402
from dynaweb.trainer.torch_trainer import TorchTrainer  # noqa: E402
from dynaweb.trainer.vision import ModelVision  # noqa: E402
from dynaweb.types import Node, Observation, Prompt, Screenshot, Task  # noqa: E402

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Cost:
    """A row of the table: seconds of one row, memory in MiB."""

    size: str
    prompt_tokens: int
    image_tokens: int
    processor: float
    reply: float
    update: float
    memory: float


def measured(model: Any, vision: ModelVision, album: Album, size: tuple[int, int], rows: int, new: int) -> Cost:
    """What prompts with pictures of a size cost; (0, 0) are prompts without."""
    prompts = [_prompt(vision, album, size, seed) for seed in range(rows)]
    processor = _seconds(lambda: [vision.inputs([prompt]) for prompt in prompts]) / rows
    engine = TransformersEngine(model, Lockstep(), vision=vision, unwritten=vision.unwritten, static=False)
    requests = [GenerateRequest(prompt, new, seed=i) for i, prompt in enumerate(prompts)]
    replies = [engine.generate_batch(requests)]
    reply = _seconds(lambda: replies.append(engine.generate_batch(requests))) / rows
    examples = [TokenRow(prompt, done.token_ids) for prompt, done in zip(prompts, replies[-1], strict=True)]
    trainer = TorchTrainer(model, lr=1e-6, total_steps=10, vision=vision)
    before = _memory(reset=True)
    trainer.supervised_step(examples)
    update = _seconds(lambda: trainer.supervised_step(examples)) / rows
    first = prompts[0]
    grown = _memory() - (0.0 if torch.cuda.is_available() else before)
    images = first.ids.count(vision.image_id)
    return Cost(f"{size[0]}x{size[1]}", len(first), images, processor, reply, update, grown)


def _prompt(vision: ModelVision, album: Album, size: tuple[int, int], seed: int) -> Prompt:
    seen = all(size)
    image = album.add(*size, seed=seed) if seen else None
    settings = PromptSettings(modality="both" if seen else "text", vision=vision)
    page = Observation(
        "http://shop.localhost/",
        tuple(Node(i + 1, "link", f"Wool Scarf {seed} {i}") for i in range(12)),
        screenshot=None if image is None else Screenshot(image, size),
    )
    return ChatFormat(vision.processor.tokenizer, settings).policy_prompt(Task("t", "Buy a scarf", ""), page, ())


def _seconds(work: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _memory(*, reset: bool = False) -> float:
    """Peak MiB of the GPU since the last reset, or of this process so far."""
    if not torch.cuda.is_available():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.max_memory_allocated() / MIB


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="")
    parser.add_argument("--family", default="idefics3", choices=sorted(FAMILIES))
    parser.add_argument("--size", action="append", default=[])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--new", type=int, default=16)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", action="store_true")
    options: Any = parser.parse_args(given)
    names = options.size or ["0x0", "320x180", "640x360", "1280x720"]
    sizes = [(int(width), int(height)) for width, height in (name.split("x") for name in names)]
    with tempfile.TemporaryDirectory() as folder:
        source = options.model or str(FAMILIES[options.family].write(Path(folder) / "model"))
        model = load_model(source, options.dtype, pick_device("auto"), vision=True)
        album = Album()
        vision = ModelVision(source, album.read)
        costs = [measured(model, vision, album, size, options.rows, options.new) for size in sizes]
    if options.json:
        sys.stdout.write(json.dumps([asdict(cost) for cost in costs]) + "\n")
        return
    head = [field.name for field in fields(Cost)]
    lines = [head, ["---"] * len(head)]
    lines += [[f"{v:.4f}" if isinstance(v, float) else str(v) for v in asdict(cost).values()] for cost in costs]
    sys.stdout.write("".join(f"| {' | '.join(line)} |\n" for line in lines))


if __name__ == "__main__":
    main()
