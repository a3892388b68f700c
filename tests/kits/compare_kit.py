"""Run folders with given outcomes, for tests of comparisons, tables and figures."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Outcomes = Mapping[str, float | None]


def run(
    folder: Path, seed: int, main: Outcomes, *, sft: Outcomes | None = None, budget: float = 0.0, **settings: Any
) -> Path:
    """A run folder with the outcomes of two arms by task."""
    folder.mkdir(parents=True)
    tree: dict[str, Any] = {"run": {"seed": seed, "time_budget": budget}, "wm": {"name": "delta"}, "rl": settings}
    files = {"recipe": {"settings": tree, "origins": {}}, "seeds": {"run": seed}, "status": {"status": "done"}}
    played = {"sft": sft or dict.fromkeys(main, 0.0), "dynaweb": main}
    arms = [
        {"name": name, "label": name, "role": "sft" if name == "sft" else "main", "outcomes": [list(found.values())]}
        for name, found in played.items()
    ]
    files["summary"] = {"arms": arms, "probes": [{"element_f1": 0.5}, {"element_f1": 0.7}]}
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    rows = [
        {"event": "rollout", "phase": f"eval {arm}", "task": task} for arm, found in played.items() for task in found
    ]
    judge = {"judge_false_positive": 0.25, "judge_failed_n": 8.0, "judge_false_negative": 0.5, "judge_solved_n": 4.0}
    rows.append({"event": "eval", "arm": "judge of dynaweb", "split": "test", "successes": [], "metrics": judge})
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder


def outcomes(seed: int, rate: float, count: int = 200) -> dict[str, float | None]:
    """Task i is solved when its difficulty, the same in every run, is below the rate."""
    rng = random.Random(seed)
    return {f"task {seed}-{at}": float(rng.random() < rate) for at in range(count)}
