"""Plans of matrices for tests, and cells that are quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynaweb.matrix import MatrixFolder, Plan, plan_of, read_matrix
from dynaweb.matrix.runner import Runner
from dynaweb.plugin import registry as plugins


def plan(source: str | Path = "smoke", **more: Any) -> Plan:
    return plan_of(read_matrix(source, **more), plugins=plugins.load(warn=False))


FAKE = """
import json, sys, time
from pathlib import Path
folder, fails, gate = Path(sys.argv[1]), sys.argv[2] == "yes", Path(sys.argv[3])
print("working on", folder.name, flush=True)
folder.mkdir(parents=True, exist_ok=True)
(folder / "tries").open("a").write("x")
while not gate.exists():
    time.sleep(0.01)
if fails:
    sys.exit("error: out of luck")
seed = int(sys.argv[4])
arms = [{"name": n, "label": n, "role": r, "outcomes": [[float((at + seed + k) % 3 > 0) for at in range(30)]]}
        for k, (n, r) in enumerate((("sft", "sft"), ("dynaweb", "main")))]
for arm in arms:
    with (folder / "metrics.jsonl").open("a") as file:
        for at in range(30):
            row = {"event": "rollout", "phase": "eval " + arm["name"], "task": f"t{seed}-{at}"}
            file.write(json.dumps(row) + "\\n")
(folder / "recipe.json").write_text(json.dumps({"settings": {"run": {"seed": seed}}, "origins": {}}))
(folder / "seeds.json").write_text(json.dumps({"run": seed}))
(folder / "summary.json").write_text(json.dumps({"arms": arms, "probes": [{"element_f1": 0.5}, {"element_f1": 0.75}]}))
(folder / "status.json").write_text('{"status": "done"}')
"""


class Fakes:
    """Cells that are quick: what fails and what waits is decided here."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self.plan, self.folder = plan, MatrixFolder(path)
        self.failing: set[str] = set()
        self.gate = path.parent / "gate"
        self.gate.touch()

    def command(self, folder: MatrixFolder, id: str) -> Sequence[str]:
        seed = next(cell.seed for cell in self.plan.cells if cell.id == id)
        fails = "yes" if id in self.failing else "no"
        return [sys.executable, "-c", FAKE, str(folder.cell(id)), fails, str(self.gate), str(seed)]

    def run(self, **options: Any) -> dict[str, str]:
        done = Runner(self.plan, self.folder, command=self.command, **options).run()
        return {progress.cell.id: progress.state for progress in done}

    def tries(self, id: str) -> int:
        path = self.folder.cell(id) / "tries"
        return len(path.read_text()) if path.exists() else 0
