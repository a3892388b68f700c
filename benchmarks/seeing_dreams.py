"""What it does to success that a policy which sees dreams in pictures: dreams as text against dreams that are drawn.

    python benchmarks/seeing_dreams.py                                    # a tiny random model: does every part work?
    python benchmarks/seeing_dreams.py --model FOLDER --full --seeds 0,1,2,3,4 --out seeing-dreams

A matrix with two arms and the same seeds: the world model `delta`, whose dreams are text, and `drawing`
(`examples/dynaweb-wm-drawing`), which predicts the same and draws it. Demonstrations, SFT, experts and the evaluation
in Chromium have the browser's pictures in both. Nothing is recalled or remembered in dreams, so that arms differ in
pages that are imagined. The table has success with n and 95 % intervals, and the difference paired by seed and episode.
Below it, how many pages of dreams the policy was shown, and of how many it saw a picture that was drawn: where these
are few, success says nothing of them. `--full` is the recipe `dynaweb` as it is, with a model that can act and be its
own world model and judge; a random one can neither, and both of its arms succeed by accident only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "kits"), str(ROOT / "scripts")]

from check_pixels import PROMPT, RUN  # noqa: E402  (a script, run on its own)
from folders import as_installed  # noqa: E402

from dynaweb.api import plan_matrix, run_matrix  # noqa: E402
from dynaweb.config.labels import labels_text  # noqa: E402
from dynaweb.data.store import TrajectoryStore  # noqa: E402
from dynaweb.matrix.folder import MatrixFolder  # noqa: E402
from dynaweb.matrix.table import matrix_text  # noqa: E402
from dynaweb.stats import text_table  # noqa: E402
from dynaweb.types import Image, Trajectory  # noqa: E402

ARMS = "wm=delta,drawing"
SEEING: Mapping[str, Any] = {
    "observation.modality": "both",
    "observation.marks": True,
    "env.task_settings.driver": "chromium",
    "dream.recall": False,
    "dream.memory": "none",
}


def settings_of(texts: Sequence[str]) -> dict[str, Any]:
    """`path=value` as settings; a value that is no JSON is a text."""
    settings: dict[str, Any] = {}
    for text in texts:
        path, _, value = text.partition("=")
        try:
            settings[path] = json.loads(value)
        except json.JSONDecodeError:
            settings[path] = value
    return settings


def small(folder: Path) -> dict[str, Any]:
    """Settings of a run of seconds with a tiny random model, which is written to `folder`."""
    from vision_families import FAMILIES

    model, prompt = folder / "model", folder / "prompt.toml"
    if not model.exists():
        FAMILIES["idefics3"].write(model)
        prompt.write_text(PROMPT, encoding="utf-8")
    return {**settings_of(RUN), "model.path": str(model), "policy.prompt": str(prompt), "eval.episodes": 8}


def pictures(episodes: Sequence[Trajectory]) -> list[Image | None]:
    """What the pages of episodes show as pictures, page by page."""
    shots = [step.observation.screenshot for one in episodes for step in one.steps]
    return [None if shot is None else shot.image for shot in shots]


def shown(plan: Any, out: Path) -> str:
    """How many pages of dreams each arm showed to the policy, and as what."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for cell in plan.cells:
        stores = {file.name: list(TrajectoryStore(file)) for file in MatrixFolder(out).cell(cell.id).glob("t*/*.gz")}
        dreams = pictures([one for one in stores.get("dreams.jsonl.gz", []) if one.source == "dream"])
        browser = {image for name, few in stores.items() if name != "dreams.jsonl.gz" for image in pictures(few)}
        drawing = dict(cell.labels)["wm"] == "drawing"
        row = counts[labels_text(cell.labels)]
        row[0] += len(dreams)
        row[1] += sum(drawing and image is not None and image in browser for image in dreams)
        row[2] += sum(drawing and image is not None and image not in browser for image in dreams)
    head = ["arm", "pages of dreams", "with a picture of the browser", "with one that was drawn"]
    return text_table(head, [[arm, *map(str, row)] for arm, row in counts.items()])


def main(given: Sequence[str] | None = None) -> None:
    """Run what is not done, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(given)
    if options.full and not options.model:
        parser.error("--full needs a model that can act and sees: --model FOLDER, or a name of the hub")
    with tempfile.TemporaryDirectory() as temporary:
        out = (options.out or Path(temporary)).absolute()
        as_installed(ROOT / "examples" / "dynaweb-wm-drawing", Path(temporary) / "plugins")
        if options.out is None:
            os.environ["DYNAWEB_CACHE"] = str(out / "cache")
        model = {"model.path": options.model} if options.model else {}
        plan = plan_matrix(
            "dynaweb" if options.full else "smoke",
            axes=[ARMS],
            overrides={**({} if options.full else small(out)), **model, **SEEING, **settings_of(options.set)},
            seeds=[int(seed) for seed in options.seeds.split(",")],
        )
        print(matrix_text(run_matrix(plan, out=out / "matrix", jobs=options.jobs)))
        print(f"\n{shown(plan, out / 'matrix')}")


if __name__ == "__main__":
    main()
