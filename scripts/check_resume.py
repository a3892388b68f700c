"""Stop runs and matrices at random moments, go on each time, and compare with those that were left alone.

    python scripts/check_resume.py [--kills 40] [--seed 0] [--what run|matrix]

Half of the kills are for a run, half for a matrix of four cells; each is SIGKILL, SIGTERM or SIGINT by chance. After
every one the same has to go on: `--resume` for a run, the same command for a matrix. In the end the weights have to be
equal to the last bit (one CPU process), and the rollouts the same, none lost and none doubled. What is done before
enough kills starts anew. SIGTERM and SIGINT have to leave the status `interrupted`, or the work done.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from dynaweb.data.store import TrajectoryStore

SETTINGS = {
    "rl.updates": 8,
    "rl.checkpoint_every": 1,
    "sft.steps": 6,
    "controls.sft_steps": [],
    "eval.episodes": 4,
    "env.task_settings.driver": "static",
}
CELL = {**SETTINGS, "rl.updates": 3}
AXES = ("--axis", "rl.negative_scale=0.25,1.0", "--seeds", "0,1")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LONGEST = 120
"""Seconds that a process may take to end after SIGTERM or SIGINT."""


@dataclass(frozen=True)
class Subject:
    """What is stopped: its command, and what has to be said to go on."""

    what: str
    words: tuple[str, ...]
    again: tuple[str, ...] = ()

    def start(self, folder: Path, name: str) -> subprocess.Popen[bytes]:
        """In a process group of its own, with one thread, so that sums are always made in the same order."""
        more = self.again if (folder / name).exists() else ()
        command = [sys.executable, "-m", "dynaweb", *self.words, "--out", str(folder / name), *more]
        env = {**os.environ, "DYNAWEB_CACHE": str(folder / f"cache-{name}"), "OMP_NUM_THREADS": "1"}
        with (folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, env=env, stdout=log, stderr=log, start_new_session=True, preexec_fn=heeding_interrupts
            )

    def runs(self, folder: Path) -> Iterator[Path]:
        """The run folders that it leaves."""
        return iter(sorted(folder.glob("cells/*/")) if self.what == "matrix" else [folder])


def heeding_interrupts() -> None:
    """In the new process: a shell that starts this script in the background has it and its children ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def settings(values: dict[str, object]) -> tuple[str, ...]:
    """As options of the command line."""
    return tuple(item for key, value in values.items() for item in ("--set", f"{key}={json.dumps(value)}"))


SUBJECTS = (
    Subject("run", ("run", "smoke", *settings(SETTINGS)), ("--resume",)),
    Subject("matrix", ("matrix", "run", "smoke", *AXES, *settings(CELL))),
)


def say(**line: object) -> None:
    """One line of JSON on stdout."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def same(subject: Subject, folder: Path) -> bool:
    """Whether both left the same runs, and in each the same weights and the same dreams."""
    pairs = list(zip(*(subject.runs(folder / name) for name in ("alone", "killed")), strict=True))
    equal = [_same(*pair) for pair in pairs]
    say(what=subject.what, runs=len(pairs), equal=all(equal))
    return bool(pairs) and all(equal)


def _same(alone: Path, killed: Path) -> bool:
    a, b = (load_file(path / "checkpoints" / "dynaweb" / "model.safetensors") for path in (alone, killed))
    weights = all(bool((a[key] == b[key]).all()) for key in a) and a.keys() == b.keys()
    dreams = [
        [(one.id, one.reward, tuple(step.response_ids for step in one.steps)) for one in TrajectoryStore(path)]
        for path in (folder / "trajectories" / "dreams.jsonl.gz" for folder in (alone, killed))
    ]
    rollouts = dreams[0] == dreams[1] and len({one[0] for one in dreams[0]}) == len(dreams[0])
    say(name=alone.name, weights_equal=weights, rollouts_equal=rollouts, rollouts=len(dreams[0]))
    return weights and rollouts and alone.name in (killed.name, "alone")


def one_round(subject: Subject, folder: Path, rng: random.Random, whole: float, kills: int) -> int:
    """Stopped up to so many times until it is done; returns how often it was, -1 for a failure."""
    done = 0
    while True:
        process = subject.start(folder, "killed")
        try:
            code = process.wait(timeout=rng.uniform(0.02, 0.6) * whole if done < kills else None)
        except subprocess.TimeoutExpired:
            chosen = rng.choice(SIGNALS)
            # Ctrl-C reaches the whole group; others end one process, and a kill leaves nothing behind.
            (os.kill if chosen == signal.SIGTERM else os.killpg)(process.pid, chosen)
            try:
                code = process.wait(timeout=LONGEST)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                say(failed=f"{subject.what}: still there {LONGEST} s after {chosen.name}", log=_log(folder, "killed"))
                return -1
            done += 1
            statuses = [json.loads(path.read_text())["status"] for path in (folder / "killed").glob("**/status.json")]
            say(what=subject.what, kill=done, signal=chosen.name, code=code, statuses=statuses)
            if chosen != signal.SIGKILL and "running" in statuses:
                say(failed=f"{subject.what}: {chosen.name} left a run that says it runs", log=_log(folder, "killed"))
                return -1
            if code != 0:
                continue
        if code == 0:
            return done
        say(failed=f"{subject.what} after kill {done}: exit code {code}", log=_log(folder, "killed"))
        return -1


def _log(folder: Path, name: str) -> str:
    return (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-1500:]


def check(subject: Subject, kills: int, rng: random.Random) -> bool:
    """One subject, left alone and stopped so many times."""
    with tempfile.TemporaryDirectory(prefix="dynaweb-resume-") as name:
        folder = Path(name)
        started = time.monotonic()
        if subject.start(folder, "alone").wait() != 0:
            say(failed=f"the {subject.what} that is left alone", log=_log(folder, "alone"))
            return False
        whole = time.monotonic() - started
        done = 0
        while done < kills:
            more = one_round(subject, folder, rng, whole, kills - done)
            if more < 0 or not same(subject, folder):
                return False
            done += more
            for path in ("killed", "cache-killed"):
                shutil.rmtree(folder / path)
        say(what=subject.what, kills=done)
    return True


def main() -> int:
    """Exit code 0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--what", choices=[one.what for one in SUBJECTS])
    options = parser.parse_args()
    rng = random.Random(options.seed)
    subjects = [one for one in SUBJECTS if options.what in (None, one.what)]
    return int(not all([check(one, -(-options.kills // len(subjects)), rng) for one in subjects]))


if __name__ == "__main__":
    sys.exit(main())
