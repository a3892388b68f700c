"""Stop runs and matrices at random moments, go on each time, and compare with those that were left alone.

    python scripts/check_resume.py [--kills 40] [--jobs 1] [--seed 0] [--what run|matrix]

Half of the kills are for a run, half for a matrix of four cells; each is SIGKILL, SIGTERM or SIGINT by chance. After
every one the same has to go on: `--resume` for a run, the same command for a matrix. In the end the weights have to be
equal to the last bit (one CPU process), and the rollouts the same, none lost and none doubled. What is done before
enough kills starts anew. SIGTERM and SIGINT have to leave the status `interrupted`, or the work done.
No browser is needed, and no GPU is used. `--jobs` shares the kills out among so many runs and matrices that go on side
by side, one core and 1 GB each.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    "model.device": "cpu",
}
CELL = {**SETTINGS, "rl.updates": 3}
AXES = ("--axis", "rl.negative_scale=0.25,1.0", "--seeds", "0,1")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ALONE = "alone"
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
            return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

    def runs(self, folder: Path) -> Iterator[Path]:
        """The run folders that it leaves."""
        return iter(sorted(folder.glob("cells/*/")) if self.what == "matrix" else [folder])


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


def same(subject: Subject, alone: Path, killed: Path) -> bool:
    """Whether both left the same runs, and in each the same weights and the same dreams."""
    pairs = list(zip(subject.runs(alone), subject.runs(killed), strict=True))
    equal = [_same(*pair) for pair in pairs]
    say(what=subject.what, killed=killed.name, runs=len(pairs), equal=all(equal))
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
    return weights and rollouts and (alone.name == killed.name or alone.name == ALONE)


@dataclass(frozen=True)
class Job:
    """Some of a subject's kills, one after another, in a folder of their own."""

    subject: Subject
    folder: Path
    name: str
    kills: int
    seconds: float
    rng: random.Random

    def run(self) -> bool:
        """Stop it so many times; whether all that was done in the end is what was left alone."""
        done = 0
        while done < self.kills:
            more = self._one_round(self.kills - done)
            if more < 0 or not same(self.subject, self.folder / ALONE, self.folder / self.name):
                return False
            done += more
            for path in (self.name, f"cache-{self.name}"):
                shutil.rmtree(self.folder / path)
        say(what=self.subject.what, name=self.name, kills=done)
        return True

    def _one_round(self, kills: int) -> int:
        """Stopped up to so many times until it is done; returns how often it was, -1 for a failure."""
        what, done = self.subject.what, 0
        while True:
            before = self._statuses()
            process = self.subject.start(self.folder, self.name)
            try:
                code = process.wait(timeout=self.rng.uniform(0.02, 0.6) * self.seconds if done < kills else None)
            except subprocess.TimeoutExpired:
                chosen = self.rng.choice(SIGNALS)
                # Ctrl-C reaches the whole group; others end one process, and a kill leaves nothing behind.
                (os.kill if chosen == signal.SIGTERM else os.killpg)(process.pid, chosen)
                try:
                    code = process.wait(timeout=LONGEST)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    return self._failed(f"still there {LONGEST} s after {chosen.name}")
                done += 1
                after = self._statuses()
                statuses = [status for status, _ in after.values()]
                say(what=what, name=self.name, kill=done, signal=chosen.name, code=code, statuses=statuses)
                # What an earlier SIGKILL left stands until a process has begun with the run.
                own = [now[0] for path, now in after.items() if now != before.get(path)]
                if chosen != signal.SIGKILL and "running" in own:
                    return self._failed(f"{chosen.name} left a run that says it runs")
                if code != 0:
                    continue
            if code == 0:
                return done
            return self._failed(f"exit code {code} after kill {done}")

    def _statuses(self) -> dict[Path, tuple[str, int]]:
        """What each run says, and when it was written, in nanoseconds."""
        files = sorted((self.folder / self.name).glob("**/status.json"))
        return {path: (json.loads(path.read_text())["status"], path.stat().st_mtime_ns) for path in files}

    def _failed(self, why: str) -> int:
        say(failed=f"{self.subject.what} {self.name}: {why}", log=_log(self.folder, self.name))
        return -1


def _log(folder: Path, name: str) -> str:
    return (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-1500:]


def seconds_alone(subject: Subject, folder: Path) -> float:
    """How long it takes when it is left alone, 0 if it fails."""
    started = time.monotonic()
    if subject.start(folder, ALONE).wait() != 0:
        say(failed=f"the {subject.what} that is left alone", log=_log(folder, ALONE))
        return 0
    seconds = time.monotonic() - started
    say(what=subject.what, name=ALONE, seconds=round(seconds, 1))
    return seconds


def shares(kills: int, jobs: int) -> list[int]:
    """So many kills as so many shares at most, none of them empty, as even as can be."""
    jobs = max(1, min(jobs, kills))
    return [kills // jobs + (index < kills % jobs) for index in range(jobs)]


def check(subjects: Sequence[Subject], kills: int, jobs: int, seed: int) -> bool:
    """All subjects, left alone and then stopped so many times, so many of them side by side."""
    with tempfile.TemporaryDirectory(prefix="dynaweb-resume-") as name, ThreadPoolExecutor(jobs) as pool:
        folders = [Path(name) / subject.what for subject in subjects]
        for folder in folders:
            folder.mkdir()
        seconds = list(pool.map(seconds_alone, subjects, folders))
        if not all(seconds):
            return False
        work = [
            Job(subject, folder, f"killed-{index}", share, alone, random.Random(f"{seed} {subject.what} {index}"))
            for subject, folder, alone in zip(subjects, folders, seconds, strict=True)
            for index, share in enumerate(shares(-(-kills // len(subjects)), -(-jobs // len(subjects))))
        ]
        # Matrices take longest, so they begin first.
        work.sort(key=lambda job: -job.seconds)
        return all(list(pool.map(Job.run, work)))


def main() -> int:
    """Exit code 0 when everything holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many runs and matrices go on at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--what", choices=[one.what for one in SUBJECTS])
    options = parser.parse_args()
    if options.kills < 1 or options.jobs < 1:
        parser.error("--kills and --jobs are 1 or more")
    # Started in the background by a shell, this and its children would ignore SIGINT; with a handler they do not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    subjects = [one for one in SUBJECTS if options.what in (None, one.what)]
    return int(not check(subjects, options.kills, options.jobs, options.seed))


if __name__ == "__main__":
    sys.exit(main())
