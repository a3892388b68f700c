"""Run every shipped recipe to its end on the tiny model with small counts, each in a process of its own.

    python scripts/baselines.py [--only NAME,NAME] [--driver chromium|static] [--limit SECONDS] [--seed N] [--out DIR]

Prints a line for each recipe: seconds, success of its last arm with interval and n, real steps. Exit code 1 when one
fails or takes longer than the limit (600 s). Nightly work: small counts show that everything runs, not how good it is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RECIPES = (
    *("prompted", "sft", "filtered-bc", "awr", "digirl", "webagent-r1", "webrl", "webdreamer", "wma", "webevolver"),
    *("explorer", "dynaweb", "dynaweb-paper", "dynaweb-frozen", "dynaweb-orm", "dreams-filtered-bc"),
)
REAL = frozenset({"prompted", "sft", "filtered-bc", "awr", "digirl", "webagent-r1", "webrl", "explorer"})
"""Recipes whose environment is the real one; the others dream of it."""
UNTRAINED = frozenset({"prompted", "sft", "webdreamer", "wma"})
"""Recipes without updates."""
OFFLINE = frozenset({"filtered-bc", "awr", "explorer"})
LOOKING_AHEAD = frozenset({"webdreamer", "wma"})
SMALL = (
    "sft.steps=20",
    "explore.episodes=48",
    "wm_fit.steps=40",
    "judge_fit.episodes=64",
    "judge_fit.steps=20",
    "eval.episodes=24",
    "controls.sft_steps=[]",
)


def settings(recipe: str, driver: str) -> list[str]:
    """What is changed in a recipe: counts, and the driver of the embedded sites."""
    found = [setting for setting in SMALL if not (recipe == "prompted" and setting.startswith("sft."))]
    if recipe in ("dynaweb-frozen", "webdreamer"):
        found.remove("wm_fit.steps=40")
    if recipe not in UNTRAINED:
        tasks, n = (8, 2) if recipe == "webrl" else (4, 4)
        found += [f"rl.updates={2 if recipe == 'webrl' else 6}", f"rl.tasks={tasks}", f"rl.n={n}"]
    if recipe in OFFLINE:
        found.append("offline.episodes=48")
    if recipe == "webevolver":
        found += ["wm_fit.refresh_every=3", "wm_fit.refresh_episodes=8"]
    if recipe in LOOKING_AHEAD:
        found.append("eval.episodes=12")
    return [*found, f"env.driver={driver}" if recipe in REAL else f"env.task_settings.driver={driver}"]


def run(recipe: str, out: Path, *, driver: str, seed: int, limit: float, more: list[str]) -> dict[str, Any]:
    """One recipe in a process of its own: whether it came to its end, how long it took, and what it says."""
    command = [
        sys.executable,
        "-m",
        "dynaweb",
        "run",
        recipe,
        "--json",
        "--seed",
        str(seed),
        "--out",
        str(out / recipe),
    ]
    for setting in [*settings(recipe, driver), *more]:
        command += ["--set", setting]
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"recipe": recipe, "ok": False, "seconds": limit, "error": f"took longer than {limit:g} s"}
    seconds = time.monotonic() - started
    if done.returncode:
        return {
            "recipe": recipe,
            "ok": False,
            "seconds": seconds,
            "error": f"exit {done.returncode}: {why(done.stderr)}",
        }
    results = json.loads(done.stdout)["results"]
    return {"recipe": recipe, "ok": True, "seconds": seconds, "arm": results["arms"][-1], "cost": results["cost"]}


def why(stderr: str) -> str:
    """The error in what a run wrote; the interpreter may have said something after it."""
    lines = stderr.strip().splitlines() or ["no message"]
    return next((text for text in reversed(lines) if text.startswith("error: ")), lines[-1])


def line(found: dict[str, Any]) -> str:
    """A result in words."""
    head = f"{found['recipe']:<20} {found['seconds']:6.1f} s"
    if not found["ok"]:
        return f"{head}  FAILED  {found['error']}"
    success = found["arm"]["success"]
    interval = f"[{success['low']:.3f}, {success['high']:.3f}]"
    cost = found["cost"]
    steps = cost.get("browser_steps", 0) + cost.get("static_steps", 0)
    tokens = cost.get("tokens_generated", 0)
    return f"{head}  {success['value']:.3f} {interval} n={success['n']}  {steps:.0f} real steps, {tokens:.0f} tokens"


def main() -> int:
    """Run what was asked for; 1 when anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(RECIPES), help="recipes, separated by commas")
    parser.add_argument("--driver", choices=("chromium", "static"), default="chromium")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a recipe may take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/baselines"))
    parser.add_argument("--set", dest="more", action="append", default=[], metavar="PATH=VALUE")
    given = parser.parse_args()
    failed = 0
    for recipe in given.only.split(","):
        found = run(recipe, given.out, driver=given.driver, seed=given.seed, limit=given.limit, more=given.more)
        print(line(found), flush=True)
        failed += not found["ok"]
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
