"""The matrices `world-model` and `expert-share` on the tiny model, killed in the middle and resumed.

    python scripts/nightly_matrix.py [FOLDER]

Every cell is real, with small counts and pages without a browser. Each matrix is killed with SIGKILL when its third
cell runs, started again, and must end with every cell done, without touching the cells that were done before, and with
a table in which every number has its n and its interval.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

COUNTS = (
    "env.task_settings.driver=static data.demos=6 sft.steps=6 sft.batch=8 explore.episodes=12 explore.steps=3 "
    "wm_fit.batch=8 dream.horizon=3 rl.updates=3 rl.tasks=2 rl.n=4 rl.bc_batch=4 rl.checkpoint_every=1 "
    "eval.episodes=18 eval.steps=5 controls.sft_steps=[] web.contexts=4"
)
MATRICES = {"world-model": (), "expert-share": ("--axis", "rl.expert_share=0.0,0.4,1.0")}


def command(name: str, folder: Path, *more: str) -> list[str]:
    """The command line of a matrix."""
    sets = [word for setting in COUNTS.split() for word in ("--set", setting)]
    run = [sys.executable, "-m", "dynaweb", "matrix", "run", name, "--seeds", "0,1", "--out", str(folder)]
    return [*run, *sets, *more]


def killed(arguments: list[str]) -> None:
    """Run until the third cell has started, then kill."""
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(line)
            if line.startswith("[2/") and ": running" in line:
                break
        os.kill(process.pid, signal.SIGKILL)


def check(name: str, folder: Path, *more: str) -> None:
    """One matrix, killed and resumed."""
    arguments = command(name, folder, *more)
    killed(arguments)
    done = {path: path.stat().st_mtime_ns for path in folder.glob("cells/*/summary.json")}
    assert len(done) == 2, done
    again = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
    assert all(path.stat().st_mtime_ns == when for path, when in done.items()), "a finished cell was run again"
    print(again.stdout)
    rows = [line for line in again.stdout.splitlines() if re.search(r" 2  ", line)]
    assert rows and all(re.search(r"\d+\.\d \[\d+\.\d, \d+\.\d\] +36 ", row) for row in rows), rows


def main() -> None:
    """Both matrices."""
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary)
        for name, more in MATRICES.items():
            check(name, base / name, *more)


if __name__ == "__main__":
    main()
