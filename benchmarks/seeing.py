"""What an image costs a policy: tokens, memory, and seconds of reading, answering and learning.

    python benchmarks/seeing.py [--model FOLDER | --family idefics3] [--size 1280x720] [--docs docs/models.md]

Without a model it measures a tiny random one in a family's ways (`tests/kits/vision_families.py`) that cuts pictures
as the family's released models do (`RELEASED`). So tokens and the processor's time are those of the family; the rest
says how the toolkit's own work grows with them, not what a real model takes. Each row of the table is one size of the
picture, and 0x0 the same prompt as text alone. Times are of one row: `processor`, from PNG bytes to the inputs of the
model; `reply`, a prompt that is read, and `--new` tokens; `update`, forward and backward and its part of the step. On a
GPU they are seconds that pass, on a CPU seconds of one core, since other programs may run beside; the least of
`--repeats`. `memory`: peak of the device's memory in an update on a GPU; on a CPU how far an update of its own process
grew beyond it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
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
from dynaweb.protocols import Completion, GenerateRequest, TokenRow  # noqa: E402
from dynaweb.trainer.models import load_model, pick_device  # noqa: E402
from dynaweb.trainer.torch_trainer import TorchTrainer  # noqa: E402
from dynaweb.trainer.vision import ModelVision  # noqa: E402
from dynaweb.types import Node, Observation, Prompt, Screenshot, Task  # noqa: E402

MIB = 1024 * 1024
BLOCK = re.compile(r"(?<=<!-- measured: benchmarks/seeing.py -->\n).*?(?=<!-- end -->)", re.S)
"""Where a page has the table."""


def tiles_of_364(config: Any, processor: Any) -> None:
    """HuggingFaceM4/Idefics3-8B-Llama3: at most 4 tiles a side and the whole, 169 tokens each."""
    config.vision_config.image_size, config.vision_config.patch_size = 364, 14
    processor.image_processor.size = {"longest_edge": 4 * 364}
    processor.image_processor.max_image_size = {"longest_edge": 364}
    processor.image_seq_len = 169


def patches_of_14(config: Any, processor: Any) -> None:
    """Qwen/Qwen2.5-VL-3B-Instruct: a token for 28 x 28 pixels, up to 16,384 tokens."""
    config.vision_config.patch_size, config.vision_config.window_size = 14, 112
    processor.image_processor.patch_size = 14
    processor.image_processor.size = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16384}


RELEASED = {"idefics3": tiles_of_364, "qwen2.5-vl": patches_of_14}
"""How the released models of a family cut pictures; others are cut as in the tests."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A row of the table: seconds of one row, memory in MiB."""

    model: str
    size: str
    prompt_tokens: int
    image_tokens: int
    processor_s: float
    reply_s: float
    update_s: float
    memory_MiB: float


def written(family: str, folder: Path) -> str:
    """A tiny model of a family that cuts pictures as the released ones do."""
    tiny = FAMILIES[family]

    def parts(tokenizer: Any, head: int) -> tuple[Any, Any]:
        config, processor = tiny.parts(tokenizer, head)
        if family in RELEASED:
            RELEASED[family](config, processor)
        return config, processor

    return str(replace(tiny, parts=parts).write(folder))


def measured(name: str, model: Any, vision: ModelVision, album: Album, size: tuple[int, int], options: Any) -> Cost:
    """What prompts with pictures of a size cost; (0, 0) are prompts without. The first round warms up."""
    rows, new = options.rows, options.new
    engine = TransformersEngine(model, Lockstep(), vision=vision, unwritten=vision.unwritten, static=False)
    trainer = TorchTrainer(model, lr=1e-6, total_steps=10, vision=vision)
    times, memory = [], []
    for round in range(options.repeats + 1):
        # Others each time, since the processor's work on the last prompts is remembered.
        prompts = [_prompt(vision, album, size, round * rows + row) for row in range(rows)]
        processor = _seconds(lambda prompts=prompts: [vision.inputs([prompt]) for prompt in prompts])  # type: ignore[misc]
        replies: list[Completion] = []
        asked = [GenerateRequest(prompt, new, seed=row) for row, prompt in enumerate(prompts)]
        reply = _seconds(lambda asked=asked, replies=replies: replies.extend(engine.generate_batch(asked)))  # type: ignore[misc]
        learned = [TokenRow(prompt, done.token_ids) for prompt, done in zip(prompts, replies, strict=True)]
        before = _memory(reset=True)
        update = _seconds(lambda learned=learned: trainer.supervised_step(learned))  # type: ignore[misc]
        memory.append(_memory() - (0.0 if torch.cuda.is_available() else before))
        times.append((processor, reply, update))
    least = [min(column) / rows for column in zip(*times[1:], strict=True)]
    images = prompts[0].ids.count(vision.image_id)
    return Cost(name, f"{size[0]}x{size[1]}", len(prompts[0]), images, *least, max(memory[1:]))


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
    if not torch.cuda.is_available():
        started = time.process_time()
        work()
        return time.process_time() - started
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def _memory(*, reset: bool = False) -> float:
    """Peak MiB, of the GPU or of this process, since the last reset."""
    if torch.cuda.is_available():
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated() / MIB
    if reset:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what is free goes back, so that growth is seen
        Path("/proc/self/clear_refs").write_text("5")
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024


def table(costs: Sequence[Cost], asked: str) -> str:
    """The costs as a table of Markdown, under what was measured how often."""
    head = [field.name.replace("_", " ") for field in fields(Cost)]
    lines = [head, ["---"] * len(head)]
    lines += [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in asdict(cost).values()] for cost in costs]
    return f"{asked}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="")
    parser.add_argument("--family", action="append", default=[], choices=sorted(FAMILIES))
    parser.add_argument("--size", action="append", default=[])
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--new", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="put the table into a page")
    options: Any = parser.parse_args(given)
    names = options.size or ["0x0", "320x180", "640x360", "1280x720"]
    sizes = [(int(width), int(height)) for width, height in (name.split("x") for name in names)]
    torch.set_num_threads(1 if not torch.cuda.is_available() else torch.get_num_threads())
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in [Path(options.model).name] if options.model else options.family or ["idefics3"]:
            source = options.model or written(name, Path(folder) / name)
            model = load_model(source, options.dtype, pick_device("auto"), vision=True)
            album = Album()
            vision = ModelVision(source, album.read)
            costs += [measured(name, model, vision, album, size, options) for size in sizes]
    if options.json:
        sys.stdout.write(json.dumps([asdict(cost) for cost in costs]) + "\n")
        return
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "one CPU core"
    text = table(costs, f"On {where}, {options.rows} rows, {options.new} new tokens, the least of {options.repeats}:")
    sys.stdout.write(text + "\n")
    if options.docs:
        page = options.docs.read_text(encoding="utf-8")
        if not BLOCK.search(page):
            sys.exit(f"{options.docs} has no lines <!-- measured: benchmarks/seeing.py --> and <!-- end -->")
        options.docs.write_text(BLOCK.sub(lambda _: f"\n{text}\n\n", page), encoding="utf-8")


if __name__ == "__main__":
    main()
