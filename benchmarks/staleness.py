"""What stale rollouts cost in success, and what playing while the trainer works gains in time (`rl.max_staleness`).

    python benchmarks/staleness.py                                   # a smoke-sized matrix: does every part work?
    python benchmarks/staleness.py --full --seeds 0,1,2,3,4 --jobs 2 # the one to quote: the recipe as it is, hours
    python benchmarks/staleness.py --full --ratios sampler,decoupled --set opt.name=grpo
    python benchmarks/staleness.py --speed --servers http://gpu-1:8000   # tokens a second of the loop, at 0, 1, 2, 4
    python benchmarks/staleness.py --speed --stand-in 0.2            # the same, a reply taking 0.2 s "elsewhere"

The first form is a matrix on the embedded sites (`--out` keeps it; the same command goes on). It prints the table of
`dynaweb matrix table`, every share with its n and its 95 % interval, and differences to on-policy training paired by
seed and episode; then, by `max_staleness`, means over updates of staleness, effective sample size and clip fractions.
Cells run with the engine in this process, which plays in order: the weights are as old as they may be, in every run.

`--speed` runs reinforcement learning alone with the policy behind vLLM servers, which play at once. A line for each
`max_staleness`: updates measured (the first k + 1 are left out), seconds of an update with a 95 % interval, new tokens
a second of the whole loop, and the share of it that the trainer waited for rollouts. `--stand-in` needs no vLLM: a
server in this process answers with a copy of the model (`tests/kits/vllm_server_kit.py`) after so many seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from dynaweb.api import plan_matrix, run, run_matrix
from dynaweb.config.labels import labels_text
from dynaweb.events import Update
from dynaweb.hookspecs import hookimpl
from dynaweb.matrix.folder import MatrixFolder
from dynaweb.matrix.table import matrix_text
from dynaweb.observers import read_metrics
from dynaweb.plugin.registry import current
from dynaweb.stats import COUNT, NO_INTERVAL, SCORE, Estimate, Kind, mean, text_table

ROOT = Path(__file__).resolve().parents[1]
AXIS = "rl.max_staleness"
SMALL: Mapping[str, Any] = {
    "env.task_settings.driver": "static",
    "rl.updates": 6,
    "controls.sft_steps": [],
    "wm_fit.open_loop": 0,
    "wm_fit.fidelity_steps": 0,
}
"""Beside the recipe `smoke`: more updates than the largest staleness, and nothing that has no part in the question."""
MEASURES: Mapping[str, Kind] = {
    "staleness.mean": COUNT,
    **dict.fromkeys(("staleness.share", "staleness.ess", "ratio_ess", "clip_frac_low", "clip_frac_high"), SCORE),
    "reward": SCORE,
}
"""Metrics of updates, and which values their means may have."""


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


def matrix(given: argparse.Namespace, out: Path) -> str:
    """Run the cells that are not done; the table of success, and that of measures by staleness."""
    axes = [f"{AXIS}={given.staleness}"]
    if given.ratios != "sampler":
        axes.append(f"rl.stale_ratio={given.ratios}")
    plan = plan_matrix(
        "dynaweb" if given.full else "smoke",
        axes=axes,
        overrides={**({} if given.full else SMALL), **settings_of(given.set)},
        seeds=[int(seed) for seed in given.seeds.split(",")],
        max_cells=1000,
    )
    table = matrix_text(run_matrix(plan, out=out, jobs=given.jobs))
    by_combination: dict[str, dict[str, list[float]]] = {}
    for cell in plan.cells:
        values = by_combination.setdefault(labels_text(cell.labels), {})
        metrics = MatrixFolder(out).cell(cell.id) / "metrics.jsonl"
        for row in read_metrics(metrics, times=False) if metrics.exists() else ():
            if row["event"] == "update" and row["stage"] == "rl":
                for name in MEASURES:
                    if row["metrics"].get(name) is not None:
                        values.setdefault(name, []).append(row["metrics"][name])
    parts = [table, "Means over updates with 95 % intervals, n updates:"]
    for measure, kind in MEASURES.items():
        means = [(name, kind.cut(mean(values.get(measure, [])))) for name, values in by_combination.items()]
        parts.append(text_table([measure, "mean [95 %]", "n"], [[name, _text(one), str(one.n)] for name, one in means]))
    return "\n\n".join(parts)


def _text(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    known = estimate.low is not None and estimate.high is not None
    return f"{estimate.value:.3f} " + (f"[{estimate.low:.3f}, {estimate.high:.3f}]" if known else NO_INTERVAL)


class Clock:
    """When each update of reinforcement learning was done, and its metrics."""

    def __init__(self) -> None:
        self.updates: list[tuple[float, dict[str, float]]] = []

    @hookimpl
    def dynaweb_update(self, event: Update) -> None:
        """One update is done."""
        if event.stage == "rl":
            self.updates.append((time.perf_counter(), dict(event.metrics)))


@contextmanager
def servers(given: argparse.Namespace) -> Iterator[list[str]]:
    """Addresses of the servers that were named, or of a stand-in."""
    if given.servers:
        yield given.servers
        return
    sys.path.append(str(ROOT / "tests" / "kits"))
    from vllm_server_kit import serving

    from dynaweb.trainer.models import load_model

    with serving(load_model(given.model, "float32", "cpu")) as stand_ins:
        stand_ins[0].slow = given.stand_in
        yield [stand_ins[0].address]


def speed(given: argparse.Namespace, folder: Path) -> Iterator[list[str]]:
    """A line of the table for each staleness."""
    for most in map(int, given.staleness.split(",")):
        clock = Clock()
        with servers(given) as addresses:
            settings = {
                "model.path": given.model,
                "env.driver": "static",
                "sft.steps": 30,
                "controls.sft_steps": [],
                "eval.episodes": 1,
                "eval.steps": 1,
                "policy.max_new_tokens": 16,
                "rl.updates": given.updates + most + 1,
                AXIS: most,
                "policy.engine.name": "vllm",
                "policy.engine.servers": addresses,
                **settings_of(given.set),
            }
            with current().observing(clock):
                texts = [f"{path}={json.dumps(value)}" for path, value in settings.items()]
                run("dynaweb", overrides=texts, env="sites", reward="checker", out=folder / f"run-{most}")
        marks = clock.updates[most:]
        seconds = [after[0] - before[0] for before, after in pairwise(marks)]
        measured = [metrics for _, metrics in marks[1:]]
        tokens = sum(metrics["policy_tokens"] for metrics in measured)
        waited = sum(metrics["time.rollout"] for metrics in measured) / sum(seconds)
        rate = f"{tokens / sum(seconds):.1f}"
        yield [str(most), str(len(seconds)), _text(COUNT.cut(mean(seconds))), rate, f"{100 * waited:.0f} %"]


SPEED_HEAD = [AXIS, "n (updates)", "seconds an update [95 %]", "new tokens a second", "trainer waited"]


def main() -> None:
    """Run the matrix, or measure the speed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--staleness", default="0,1,2,4", help="values of rl.max_staleness, with commas between")
    parser.add_argument("--ratios", default="sampler", help="values of rl.stale_ratio, with commas between")
    parser.add_argument("--full", action="store_true", help="the recipe dynaweb as it is, in the place of a small one")
    parser.add_argument("--seeds", default="0", help="with commas between")
    parser.add_argument("--jobs", type=int, default=1, help="cells at once")
    parser.add_argument("--out", type=Path, help="the matrix's folder, to go on with; default: one that is removed")
    parser.add_argument("--set", nargs="*", default=[], metavar="PATH=VALUE", help="settings of all cells")
    parser.add_argument("--speed", action="store_true", help="measure the speed of the loop behind servers")
    parser.add_argument("--servers", nargs="*", default=[], help="addresses of vLLM servers")
    parser.add_argument("--stand-in", type=float, default=0.2, help="without servers: seconds of a stand-in's reply")
    parser.add_argument("--model", default="tiny", help="with --speed: the model")
    parser.add_argument("--updates", type=int, default=6, help="with --speed: updates that are measured")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dynaweb-staleness-") as name:
        if given.speed:
            os.environ.setdefault("DYNAWEB_CACHE", f"{name}/cache")
            sys.stdout.write(text_table(SPEED_HEAD, list(speed(given, Path(name)))) + "\n")
        else:
            sys.stdout.write(matrix(given, given.out or Path(name) / "matrix") + "\n")


if __name__ == "__main__":
    main()
