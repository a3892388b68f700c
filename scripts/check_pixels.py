"""A policy that sees, through a whole run: python scripts/check_pixels.py [--family idefics3] [--dreams text] [--lora]

A tiny random vision-language model in a family's ways (`tests/kits/vision_families.py`) goes through `dynaweb run`
from the command line: demonstrations with screenshots in Chromium, SFT on them, exploration, a world model, RL in
dreams with experts that have pictures, and the evaluation in Chromium. Dreams are drawn by the world model of
`examples/dynaweb-wm-drawing`, or with `--dreams text` are text. Then the run folder is looked at: replies were sampled
from prompts with images whose files are there, prompts of dreams have the pictures that were drawn (or none), losses
are finite, the language model moved, its vision did not, and what the run leaves can be loaded and sees. Exits with 1
where something is wrong. `--out FOLDER` keeps the run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "kits"))

import torch  # noqa: E402  (a script, run on its own)
from folders import as_installed  # noqa: E402
from vision_families import FAMILIES  # noqa: E402

from dynaweb.cli import main as main_of_dynaweb  # noqa: E402
from dynaweb.data.images import images_of  # noqa: E402
from dynaweb.data.store import TrajectoryStore  # noqa: E402
from dynaweb.trainer.models import load_model  # noqa: E402
from dynaweb.trainer.vision import ModelVision  # noqa: E402
from dynaweb.types import Image, Node, Observation, Prediction, Trajectory  # noqa: E402
from dynaweb_wm_delta.model import DeltaWorldModel  # noqa: E402

PROMPT = '''
system = "You operate a web browser. Write one action."
user = """
OBJECTIVE: {goal}
PREVIOUS ACTIONS:
{history}
URL: {url}
PAGE:
{page}"""
reply = "{action}"
'''
"""A short prompt of the policy and a short reply, so that a run takes seconds and some actions can be read."""
RUN = (
    "observation.modality=both",
    "observation.width=320",
    "observation.height=240",
    "observation.max_pixels=9000",
    "env.task_settings.train_sites=1",
    "model.threads=1",
    "model.max_prompt_tokens=700",
    "policy.max_prompt_tokens=260",
    "policy.max_new_tokens=20",
    "data.demos=3",
    "sft.steps=20",
    "sft.batch=4",
    "sft.lr=0.01",
    "explore.episodes=2",
    "explore.steps=2",
    "explore.player=random",
    "wm_fit.steps=2",
    "wm_fit.batch=2",
    "wm_fit.open_loop=0",
    "wm.max_new_tokens=8",
    "wm.retries=0",
    "reward.soft=true",
    "reward.evidence=false",
    "dream.horizon=2",
    "rl.updates=2",
    "rl.tasks=1",
    "rl.n=6",
    "rl.temperature=0.7",
    "rl.lr=0.0001",
    "rl.bc_batch=2",
    "rl.expert_share=0.3",
    "eval.episodes=2",
    "eval.steps=2",
    "controls.sft_steps=[]",
)
DRAWN = ["wm.name=drawing", "observation.marks=true", "dream.recall=false", "dream.memory=none"]
LORA = ["rl.lora_rank=4", "sft.lora_rank=4"]


async def predicted(self: Any, page: Observation, *_: Any, **__: Any) -> Prediction:
    """What follows a page in drawn dreams: a model that was fitted for two steps writes nothing that can be read."""
    more = Node(len(page.nodes) + 1, "heading", "And more")
    return Prediction(replace(page, nodes=(*page.nodes, more), screenshot=None))


def run(model: Path, out: Path, extra: Sequence[str] = ()) -> int:
    """`dynaweb run smoke` on a model folder; its exit code."""
    prompt = out.parent / "prompt.toml"
    prompt.write_text(PROMPT, encoding="utf-8")
    sets = [*RUN, f"policy.prompt={prompt}", *extra]
    words = ["run", "smoke", "--model", str(model), "--out", str(out)]
    sys.argv = ["dynaweb", *words, *(word for setting in sets for word in ("--set", setting))]
    try:
        main_of_dynaweb()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def faults(model: Path, out: Path, *, drawn: bool) -> Iterator[str]:
    """What the folder of a finished run shows to be wrong; in its dreams pages were `drawn`, or text."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    updates = [row for row in rows if row["event"] == "update"]
    for stage in ("sft", "rl"):
        mine = [row["metrics"] for row in updates if row["stage"] == stage]
        if not mine or not all(math.isfinite(one["loss"]) and one["updated"] for one in mine):
            yield f"stage {stage} has no updates, or some without a finite loss"
        if not any(one["image_tokens"] > 0 for one in mine):
            yield f"no update of {stage} had tokens of images"
    episodes = {file.name: list(TrajectoryStore(file)) for file in sorted(out.glob("trajectories/*.jsonl.gz"))}
    real = [one for name, few in episodes.items() if name.startswith("eval") for one in few]
    dreamed = [one for few in episodes.values() for one in few if one.source == "dream"]
    yield from _seeing(out, real)
    # Dreams are kept without their prompts, so what was read in them is counted.
    (read,) = (row["metrics"].get("image_tokens", 0) for row in rows if row["event"] == "stage" and row["name"] == "rl")
    if not dreamed or bool(read) != drawn:
        yield f"{len(dreamed)} dreams were played, and {read:g} tokens of images were read in them"
    if drawn:
        browser = {image for name, few in episodes.items() if name != "dreams.jsonl.gz" for image in _pictures(few)}
        own = _pictures(dreamed) - browser
        if not own:
            yield "no page of a dream was drawn"
        for image in own:
            images_of(out).get(image)  # raises where it is missing or damaged
    yield from _weights(model, out / "checkpoints" / "dynaweb")


def _seeing(out: Path, real: Sequence[Trajectory]) -> Iterator[str]:
    sampled = [step for one in real for step in one.steps if step.logprobs]
    if not sampled:
        yield "the policy sampled nothing on real pages"
    store = images_of(out)
    for step in sampled:
        if not step.prompt.images or step.observation.screenshot is None:
            yield "a real page was not shown as a picture"
            return
        if step.prompt.images != (step.observation.screenshot.image,):
            yield "a prompt has another picture than its page"
        store.get(step.prompt.images[0])  # raises where it is missing or damaged


def _pictures(episodes: Sequence[Trajectory]) -> set[Image]:
    pages = [page for one in episodes for page in (*(step.observation for step in one.steps), one.final) if page]
    return {page.screenshot.image for page in pages if page.screenshot is not None}


def _weights(model: Path, left: Path) -> Iterator[str]:
    before, after = (load_model(one, vision=True).state_dict() for one in (model, left))
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    seeing = {name for name in before if "vis" in name}
    if not moved - seeing:
        yield "the language model did not move"
    if moved & seeing:
        yield f"the vision moved: {sorted(moved & seeing)[0]}"
    vision = ModelVision(str(left), lambda image: b"")
    if vision.expansion_of_size(80, 60) != ModelVision(str(model), lambda image: b"").expansion_of_size(80, 60):
        yield "what the run leaves sees otherwise than its model"


def main(given: Sequence[str] | None = None) -> int:
    """Check one family; 0 where nothing is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--family", default="idefics3", choices=sorted(FAMILIES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dreams", default="drawn", choices=["drawn", "text"])
    parser.add_argument("--lora", action="store_true")
    options: Any = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as temporary:
        home = options.out or Path(temporary)
        os.environ["DYNAWEB_CACHE"] = str(home / "cache")
        started = time.monotonic()
        model = FAMILIES[options.family].write(home / "model")
        drawn = options.dreams == "drawn"
        if drawn:
            as_installed(ROOT / "examples" / "dynaweb-wm-drawing", home / "plugins")
            DeltaWorldModel.predict = predicted  # type: ignore[method-assign]
        code = run(model, home / "run", [*DRAWN * drawn, *LORA * options.lora])
        problems = [f"the run ended with {code}"] if code else list(faults(model, home / "run", drawn=drawn))
        took = time.monotonic() - started
    print(f"{options.family}: {'; '.join(problems) or 'passes'} ({took:.0f} s)", file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
