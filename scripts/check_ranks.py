"""Check runs in several real processes: the same result as one, and no hang when one of them fails.

    python scripts/check_ranks.py [--ranks 2] [--only same|zero|fsdp|failures] [--backend deepspeed|fsdp] [--limit 900]

`same` runs a recipe with every stage and three GSPO updates in one process, in several with the torch backend, and with
DeepSpeed's ZeRO-2 and ZeRO-3 and FSDP2's stages 1 to 3, and compares rewards, losses and final weights; `zero` does so
with DeepSpeed alone, and `fsdp` with FSDP2. `failures` ends a rank of --backend by SIGKILL, makes one raise, and
interrupts a run; each must end soon, say why, and go on with --resume to the weights of the run that was left alone. It
needs DeepSpeed, except with `--only fsdp` or `--only failures --backend fsdp`; on a machine without a GPU it runs on
gloo. One JSON line for each check. A run that takes more than --limit seconds is ended and has failed; the next one
begins.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

SETTINGS = {
    "model.micro_tokens": 512,  # several parts, so that every rank has some
    "rl.updates": 3,
    "rl.tasks": 4,
    "rl.n": 4,
    "rl.minibatches": 2,
    "rl.bc_weight": 0.2,
    "dream.horizon": 3,
    "controls.sft_steps": [],
    "eval.episodes": 1,
    "rl.checkpoint_every": 1,
    "env.task_settings.driver": "static",
}
WAYS = {
    "torch": [],
    "torch, {n} ranks": ["--nproc", "{n}"],
    "ZeRO-2, {n} ranks": ["--backend", "deepspeed", "--set", "backend.stage=2", "--nproc", "{n}"],
    "ZeRO-3, {n} ranks": ["--backend", "deepspeed", "--set", "backend.stage=3", "--nproc", "{n}"],
    "FSDP2, stage 1, {n} ranks": ["--backend", "fsdp", "--set", "backend.stage=1", "--nproc", "{n}"],
    "FSDP2, stage 2, {n} ranks": ["--backend", "fsdp", "--set", "backend.stage=2", "--nproc", "{n}"],
    "FSDP2, stage 3, {n} ranks": ["--backend", "fsdp", "--set", "backend.stage=3", "--nproc", "{n}"],
}
WORDS = {"same": "", "zero": "ZeRO", "fsdp": "FSDP2"}
"""What the names of the ways that are compared have in them."""
COMPARED = ("reward", "policy_loss", "supervised_loss", "grad_norm", "approx_kl")
FAIL = """
import os
if os.environ.get("RANK") == "1":
    from dynaweb.trainer import torch_trainer
    def fail(self, *args, **named):
        raise ValueError("a failure made for the check")
    torch_trainer.TorchTrainer.policy_step = fail
"""


class Checks:
    """Runs in a temporary folder, and what they gave."""

    def __init__(self, folder: Path, ranks: int, limit: float = 900.0) -> None:
        self.folder, self.ranks, self.limit = folder, ranks, limit
        self.failed = 0

    def report(self, what: str, passed: bool, **more: Any) -> None:
        """One line."""
        self.failed += not passed
        sys.stdout.write(json.dumps({"check": what, "passed": passed, **more}) + "\n")
        sys.stdout.flush()

    def start(self, name: str, extra: list[str], *, cache: str = "", **environment: str) -> subprocess.Popen[str]:
        """A run in processes of its own; its stderr goes to a file."""
        sets = [item for key, value in SETTINGS.items() for item in ("--set", f"{key}={json.dumps(value)}")]
        options = [text.format(n=self.ranks) for text in extra]
        command = [sys.executable, "-m", "dynaweb", "run", "smoke", *sets, "--out", str(self.folder / name), *options]
        place = {"DYNAWEB_CACHE": str(self.folder / f"cache-{cache or name}"), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("a") as log:
            return subprocess.Popen(
                command, env={**os.environ, **place, **environment}, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def end(self, run: subprocess.Popen[str], limit: float | None = None) -> int | None:
        """Wait for a run: its exit code, None where it had to be ended with all its ranks."""
        try:
            run.communicate(timeout=self.limit if limit is None else limit)
        except subprocess.TimeoutExpired:
            import psutil

            for process in (*psutil.Process(run.pid).children(recursive=True), run):
                process.kill()
            run.communicate()
            return None
        return run.returncode

    def log(self, name: str) -> str:
        """What a run said on stderr."""
        return (self.folder / f"{name}.log").read_text()

    def weights(self, name: str) -> dict[str, Any]:
        """The policy after reinforcement learning."""
        return load_file(self.folder / name / "checkpoints" / "dynaweb" / "model.safetensors")

    def updates(self, name: str) -> list[dict[str, float]]:
        """The metrics of the updates of reinforcement learning."""
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [event for event in events if event.get("event") == "update" and event.get("stage") == "rl"]

    def distance(self, name: str, other: str) -> float:
        """The largest difference of any weight."""
        a, b = self.weights(name), self.weights(other)
        return max(float((a[key] - b[key]).abs().max()) for key in a)

    def same(self, words: str = "") -> None:
        """Every way gives what one process gives; of several processes only those with `words` in their name."""
        first = ""
        for way, extra in WAYS.items():
            if extra and words not in way:
                continue
            name = way.format(n=self.ranks).replace(", ", "-").replace(" ", "-")
            started = time.monotonic()
            run = self.start(name, extra)
            code = self.end(run)
            seconds = round(time.monotonic() - started)
            if code != 0:
                self.report(way.format(n=self.ranks), False, exit=code, seconds=seconds, said=self.log(name)[-1500:])
                continue
            first = first or name
            apart = self.distance(name, first)
            worst = {key: _worst(self.updates(name), self.updates(first), key) for key in COMPARED}
            learned = any(_metric(one, "policy_loss") != 0 for one in self.updates(name))
            close = learned and apart < 2e-4 and all(value < 1e-3 for value in worst.values())
            self.report(way.format(n=self.ranks), close, weights_apart=apart, seconds=seconds, metrics_apart=worst)

    def failures(self, backend: str) -> None:
        """A rank that dies, one that raises, and an interruption."""
        extra = ["--backend", backend, "--nproc", "{n}"]
        whole = self.start("whole", extra)
        self.report("a run that is left alone", self.end(whole) == 0)
        self._killed(extra)
        self._raised(extra)
        self._interrupted(extra)

    def _killed(self, extra: list[str]) -> None:
        run = self.start("killed", extra)
        self._wait_for("killed", "rl 1/3 updates")
        os.kill(_rank(run.pid, 1), signal.SIGKILL)
        started = time.monotonic()
        self.end(run, 120)
        told = "signal 9" in self.log("killed") or "gone without a word" in self.log("killed")
        seconds = round(time.monotonic() - started, 1)
        self.report("SIGKILL of a rank ends the run", run.returncode not in (0, 130) and told, seconds=seconds)
        self._goes_on("killed", extra)

    def _raised(self, extra: list[str]) -> None:
        place = self.folder / "site"
        place.mkdir()
        (place / "sitecustomize.py").write_text(FAIL)
        paths = os.pathsep.join([str(place), *filter(None, [os.environ.get("PYTHONPATH")])])
        started = time.monotonic()
        run = self.start("raised", extra, PYTHONPATH=paths)
        self.end(run, 300)
        told = "rank 1 failed: ValueError: a failure made for the check" in self.log("raised")
        seconds = round(time.monotonic() - started, 1)
        self.report("an error of one rank ends the run with its words", run.returncode == 1 and told, seconds=seconds)
        self._goes_on("raised", extra)

    def _interrupted(self, extra: list[str]) -> None:
        run = self.start("interrupted", extra)
        self._wait_for("interrupted", "rl 1/3 updates")
        run.send_signal(signal.SIGINT)
        self.end(run, 120)
        self.report("Ctrl-C saves and ends with 130", run.returncode == 130, exit=run.returncode)
        self._goes_on("interrupted", extra)

    def _goes_on(self, name: str, extra: list[str]) -> None:
        run = self.start(name, ["--resume", *extra])
        code = self.end(run)
        if code != 0:
            self.report(f"{name}, then --resume", False, exit=code, said=self.log(name)[-1500:])
            return
        apart = self.distance(name, "whole")
        self.report(f"{name}, then --resume", apart < 1e-6, weights_apart=apart)

    def _wait_for(self, name: str, words: str) -> None:
        end = time.monotonic() + 300
        while words not in self.log(name):
            if time.monotonic() > end:
                raise TimeoutError(f"{name} did not say {words!r}: {self.log(name)[-1500:]}")
            time.sleep(0.1)


def _worst(found: list[dict[str, Any]], wanted: list[dict[str, Any]], key: str) -> float:
    if len(found) != len(wanted):
        return float("inf")
    pairs = [(_metric(a, key), _metric(b, key)) for a, b in zip(found, wanted, strict=True)]
    return max((abs(a - b) / (abs(b) + 1e-2) for a, b in pairs), default=float("inf"))


def _metric(event: dict[str, Any], key: str) -> float:
    return float(event.get("metrics", event).get(key, 0.0))


def _rank(launcher: int, number: int) -> int:
    """The process of a rank."""
    import psutil

    for child in psutil.Process(launcher).children(recursive=True):
        if child.environ().get("RANK") == str(number):
            return int(child.pid)
    raise LookupError(f"no process of rank {number}")


def main() -> int:
    """All checks; the exit code is the number of failed ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", choices=[*WORDS, "failures"])
    parser.add_argument("--backend", default="deepspeed", choices=["deepspeed", "fsdp"])
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of one run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dynaweb-ranks-") as folder:
        checks = Checks(Path(folder), given.ranks, given.limit)
        if given.only != "failures":
            checks.same(WORDS[given.only or "same"])
        if given.only in (None, "failures"):
            checks.failures(given.backend)
        return checks.failed


if __name__ == "__main__":
    sys.exit(main())
