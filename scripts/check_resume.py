"""Kill a run with SIGKILL at random moments, go on each time, and compare with a run that was left alone.

    python scripts/check_resume.py [--kills 20] [--seed 0]

After every kill `--resume` has to work; in the end the final weights have to be equal to the last bit (one CPU
process), and the rollouts the same, none lost and none doubled. A run that is done before enough kills starts anew.
One JSON line for each kill, and one for each comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors.torch import load_file

from dynaweb.data.store import TrajectoryStore

SETTINGS = {
    "rl.updates": 12,
    "rl.checkpoint_every": 1,
    "sft.steps": 6,
    "controls.sft_steps": [],
    "eval.episodes": 4,
    "env.task_settings.driver": "static",
}


def start(folder: Path, name: str, *more: str) -> subprocess.Popen[bytes]:
    """A run in a process group of its own, with one thread, so that sums are always made in the same order."""
    sets = [item for key, value in SETTINGS.items() for item in ("--set", f"{key}={json.dumps(value)}")]
    command = [sys.executable, "-m", "dynaweb", "run", "smoke", *sets, "--out", str(folder / name), *more]
    env = {**os.environ, "DYNAWEB_CACHE": str(folder / f"cache-{name}"), "OMP_NUM_THREADS": "1"}
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)


def say(**line: object) -> None:
    """One line of JSON on stdout."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def same(folder: Path) -> bool:
    """Whether both runs left the same weights and the same dreams."""
    a, b = (load_file(folder / name / "checkpoints" / "dynaweb" / "model.safetensors") for name in ("alone", "killed"))
    weights = all(bool((a[key] == b[key]).all()) for key in a) and a.keys() == b.keys()
    dreams = [
        [(one.id, one.reward, tuple(step.response_ids for step in one.steps)) for one in TrajectoryStore(path)]
        for path in (folder / name / "trajectories" / "dreams.jsonl.gz" for name in ("alone", "killed"))
    ]
    rollouts = dreams[0] == dreams[1] and len({one[0] for one in dreams[0]}) == len(dreams[0])
    say(weights_equal=weights, rollouts_equal=rollouts, rollouts=len(dreams[0]))
    return weights and rollouts


def main() -> int:
    """Exit code 0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="dynaweb-resume-") as name:
        folder = Path(name)
        started = time.monotonic()
        if start(folder, "alone").wait() != 0:
            say(failed="the run that is left alone", said=(folder / "alone.log").read_text()[-1500:])
            return 1
        whole = time.monotonic() - started
        kills = 0
        while kills < given.kills:
            more = one_round(folder, rng, whole, given.kills - kills)
            if more < 0 or not same(folder):
                return 1
            kills += more
            for place in ("killed", "cache-killed"):
                shutil.rmtree(folder / place)
        say(kills=kills)
        return 0


def one_round(folder: Path, rng: random.Random, whole: float, kills: int) -> int:
    """A run that is killed up to so many times until it is done; returns how often it was, -1 for a failure."""
    done = 0
    while True:
        run = start(folder, "killed", *(["--resume"] if (folder / "killed").exists() else []))
        try:
            code = run.wait(timeout=rng.uniform(0.1, 0.5) * whole if done < kills else None)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            done += 1
            say(kill=done)
            continue
        if code == 0:
            return done
        say(failed=f"--resume after kill {done}", said=(folder / "killed.log").read_text()[-1500:])
        return -1


if __name__ == "__main__":
    sys.exit(main())
