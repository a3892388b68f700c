"""Everything that is measured on a GPU, one part after another, unattended: each with a time limit of its own.

    python benchmarks/gpu_suite.py FOLDER                                # all parts, on one Hopper GPU 20 to 25 minutes
    python benchmarks/gpu_suite.py FOLDER --within 570 --only PART ...   # some of them; those that do not fit are left
    python benchmarks/gpu_suite.py FOLDER --list

FOLDER gets `PART.jsonl` (what the part printed), `PART.log` (all that it said), and of each part one line in
`summary.jsonl`: exit code (-1: out of time), seconds, memory of the GPU that was in use before. A part that fails or
hangs is ended with all its processes, and the next one begins. A part that came through is not done again, so the same
command goes on after a break; `--again` does. Models and runs that parts share are in FOLDER-work.

It needs a Python with dynaweb, vLLM, DeepSpeed and TRL (`about` says what is missing), and no network. Every part is
only a call of a script of `benchmarks/` or `scripts/`, which `--list` shows. `--small` tries all of it out with tiny
sizes on a CPU, `--stand-in` with servers of tests in the place of vLLM.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
LEAST_SECONDS = 20.0
"""A part is not begun in less time than this."""
SMALL_FACTOR = 3.0
"""A CPU takes longer for tiny sizes than a GPU for real ones."""
QUIET_SECONDS = 10.0
"""How long the processes of a part that was ended may take to give the GPU back."""


@dataclass(frozen=True)
class Part:
    """A part: what it is for, its commands (scripts with arguments), and its limit in seconds."""

    name: str
    about: str
    limit: float
    commands: tuple[tuple[str, ...], ...]
    vllm: bool = False
    """It cannot be tried out with servers of tests."""
    makes: Path | None = None
    """A folder for the parts after it, which must not be there before."""


def parts(given: argparse.Namespace, work: Path) -> list[Part]:
    """All parts, in order."""
    small, gpus = given.small, given.gpus
    dtype = "float32" if small else "bfloat16"
    on_gpu = () if small else ("--device", "cuda", "--dtype", dtype)
    sizes = {"135m": "tiny", "1.5b": "tiny"} if small else {size: str(work / size) for size in ("135m", "1.5b")}
    runs = {size: work / f"run-{size}" for size in sizes}
    # Learning rates leave the widened models as they are: their replies are those of the tiny model. So the stages
    # before reinforcement learning are short, and parts share them.
    short = ("--explore", "4" if small else "24", "--sft-steps", "2", "--wm-steps", "2", "--dtype", dtype)
    still = ("sft.lr=1e-6", "wm_fit.lr=1e-6", "rl.lr=1e-6", "eval.browser_share=0", "model.micro_tokens=32768")
    played = (*short, "--updates", "1" if small else "2")
    # What runs ahead is measured once it does.
    ahead = (*short, "--updates", "2" if small else "5")
    counts, one = ("2,4", "2") if small else ("64,256", "64")
    stand_in = ("--stand-in",) if given.stand_in else ()
    awake = tuple(f"{role}.engine.sleep=false" for role in ("policy", "wm", "reward"))
    roomy = tuple(f"{role}.engine.max_batch_tokens=524288" for role in ("policy", "wm", "reward"))
    cached = tuple(f"{role}.engine.memory=0.6" for role in ("policy", "wm", "reward"))
    shape = ("--shape", "tiny") if small else ()
    trained = ("--dtype", dtype, *shape, "--repeat", "1" if small else "3")

    def rollout(
        size: str, engine: str, dreams: str, *sets: str, keep: Path | None = None, played: tuple[str, ...] = played
    ) -> tuple[str, ...]:
        on_vllm = stand_in if engine == "vllm" else ()
        kept = ("--keep", str(keep)) if keep is not None else ()
        head = ("benchmarks/rollout.py", "--model", sizes[size], "--engine", engine, "--dreams", dreams)
        return (*head, *played, *on_vllm, *kept, "--set", *still, *sets)

    def ranks(backend: str, stage: str) -> tuple[str, ...]:
        size = ("--size", "tiny", "--prompts", "2", "--prompt", "16", "--new", "2") if small else ("--prompts", "8")
        launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus))
        return (*launch, "benchmarks/ranks.py", "--backend", backend, "--stage", stage, *size, *trained)

    def update(size: str, ways: Sequence[str], *more: str) -> tuple[str, ...]:
        where = ("--device", "cpu") if small else ("--device", "cuda")
        one = "tiny" if small else size
        return ("benchmarks/trainer.py", "--sizes", one, *where, *trained, "--profile", *more, "--ways", *ways)

    check = ("scripts/check_vllm.py", "--model", "random-llama", *on_gpu)
    elsewhere = tuple(f"{role}.engine.replicas=1" for role in ("policy", "wm", "reward"))
    several = (
        Part(
            "vllm-apart",
            "the trainer on the first GPU, vLLM on the others: weights by NCCL",
            420,
            (("scripts/check_vllm.py", "--gpu", "--nccl", "replicas", "servers", "--eager"),),
            vllm=True,
        ),
        Part(
            "loop-split",
            "the whole loop with staleness 1, vLLM on a GPU of its own",
            600,
            (rollout("135m", "vllm", one, "rl.max_staleness=1", *elsewhere, played=ahead),),
        ),
    )
    trl = ["trl"] if importlib.util.find_spec("trl") else []
    liger = ["trl-liger"] if trl and not small and importlib.util.find_spec("liger_kernel") else []
    # What an earlier part has left: TRL starts from the same policy and dreams with the same world model.
    left = runs["135m"] / "checkpoints"
    policy = str(left / "sft") if (left / "sft").is_dir() else sizes["135m"]
    dreamer = ("--world-model", str(left / "world-model")) if (left / "world-model").is_dir() else ()
    trl_size = ("--dreams", "4", "--rows", "8", "--micro-rows", "4", "--updates", "1") if small else ("--dreams", "64")
    trl_engine = ("--engine", "transformers", "--stand-in") if given.stand_in else ()
    return [
        Part("about", "what is here, and what is missing", 60, (("benchmarks/gpu_suite.py", "--about"),)),
        Part("vllm-eager", "vLLM without graphs", 180, ((*check, "--eager"),), vllm=True),
        Part("vllm-graphs", "vLLM with CUDA graphs, and with adapters", 300, ((*check, "--adapters"),), vllm=True),
        Part(
            "vllm-pictures",
            "a model that sees on vLLM",
            180,
            (("scripts/check_vllm.py", "--pictures", "idefics3", *(() if small else ("--gpu",)), "--eager"),),
            vllm=True,
        ),
        *(several if gpus > 1 else ()),
        Part(
            "models",
            "models of 135 million and 1.5 billion weights with the tiny model's replies",
            150,
            ()
            if small
            else (
                ("benchmarks/widen.py", sizes["135m"], "--size", "135m", "--head-width", "64", "--dtype", dtype),
                ("benchmarks/widen.py", sizes["1.5b"], "--size", "1.5b", "--dtype", dtype),
            ),
        ),
        Part(
            "vllm-start",
            "how long vLLM takes to start, with torch.compile and without, and what it gives then",
            600,
            (
                (
                    *("benchmarks/vllm_start.py", "--model", sizes["135m"], "--dtype", dtype, *stand_in),
                    *(("--prompts", "4", "--length", "40", "--new", "4") if small else ()),
                    *("--ways", "uncompiled", "compiled"),
                ),
            ),
        ),
        Part(
            "dreams-135m-vllm",
            "dreams on vLLM, and the whole loop colocated: a whole run, vLLM asleep while the trainer works",
            600,
            (rollout("135m", "vllm", counts, keep=runs["135m"]),),
            makes=runs["135m"],
        ),
        Part("dreams-135m-local", "dreams on the local engine", 300, (rollout("135m", "local", counts, *roomy),)),
        Part("dreams-1.5b-vllm", "the same", 600, (rollout("1.5b", "vllm", counts, *(() if small else cached)),)),
        Part("dreams-1.5b-local", "the same, 64 dreams", 240, (rollout("1.5b", "local", one, *roomy),)),
        Part(
            "loop-stale",
            "the whole loop with staleness 1, vLLM beside the trainer",
            600,
            (rollout("135m", "vllm", one, "rl.max_staleness=1", *awake, played=ahead),),
        ),
        Part(
            "loop-trl",
            "the whole loop by TRL's asynchronous trainer, on the same dreams through OpenEnv",
            480,
            (
                (
                    *("benchmarks/async_trl.py", "--model", policy, *dreamer, "--dtype", dtype, *trl_size),
                    *(*trl_engine, "--logs", str(work / "trl-logs")),
                ),
            ),
        ),
        Part(
            "ranks",
            "DeepSpeed's stages 2 and 3 and FSDP2's 1 to 3 give what one process gives",
            300,
            (("scripts/check_ranks.py", "--ranks", str(gpus), "--only", "same", "--limit", "300" if small else "100"),),
        ),
        *(
            Part(
                f"update-{backend}-{stage}",
                f"seconds of an update of 135 million weights, {backend} {stage}",
                120,
                (ranks(backend, stage),),
            )
            for backend, stage in (("torch", "1"), ("fsdp", "3"), ("deepspeed", "2"), ("deepspeed", "3"))
        ),
        Part("update-135m", "an update beside TRL's", 240, (update("135m", ["ours", *trl, *liger]),)),
        Part(
            "update-135m-wide",
            "the same with micro-batches four times as large: a small model waits for the launches of each",
            240,
            (update("135m", ["ours", *trl, *liger], "--micro-tokens", "131072"),),
        ),
        Part("update-1.5b", "an update beside TRL's", 300, (update("1.5b", ["ours", *trl, *liger]),)),
    ]


def main() -> int:
    """Run the chosen parts; the exit code is the number of those that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=None)
    parser.add_argument("--only", nargs="*", default=[], metavar="PART", help="some parts, in this order")
    parser.add_argument("--within", type=float, default=0.0, metavar="SECONDS", help="end by then; 0 = when it is done")
    parser.add_argument("--again", action="store_true", help="also parts that came through before")
    parser.add_argument("--small", action="store_true", help="tiny sizes on a CPU")
    parser.add_argument("--stand-in", action="store_true", help="with --small: no vLLM")
    parser.add_argument("--list", action="store_true", help="print parts, limits and commands")
    parser.add_argument("--about", action="store_true", help="print what is here, and what is missing")
    given = parser.parse_args()
    if given.about:
        return about()
    if given.folder is None:
        parser.error("name a folder for what is found")
    folder = given.folder.resolve()
    work = folder.with_name(f"{folder.name}-work")
    given.gpus = 1 if given.small else max(1, n_gpus())
    known = {part.name: part for part in parts(given, work)}
    unknown = [name for name in given.only if name not in known]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(known)}")
    if given.list:
        for part in known.values():
            commands = "\n    ".join(" ".join(["python", *command]) for command in part.commands)
            sys.stdout.write(f"{part.name} ({part.limit:g} s at most): {part.about}\n    {commands}\n")
        return 0
    for place in (folder, work):
        place.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + given.within if given.within else float("inf")
    failed = 0
    for name in given.only or known:
        if name in came_through(folder) and not given.again:
            continue
        (part,) = (part for part in parts(given, work) if part.name == name)
        failed += not done(part, folder, work, end, given)
    return failed


def came_through(folder: Path) -> set[str]:
    """Names of the parts that need not be done again."""
    summary = folder / "summary.jsonl"
    lines = map(json.loads, summary.read_text().splitlines()) if summary.exists() else ()
    return {line["part"] for line in lines if line.get("exit") == 0}


def done(part: Part, folder: Path, work: Path, end: float, given: argparse.Namespace) -> bool:
    """Do a part, and say in the summary how that went; whether it came through."""
    line: dict[str, Any] = {"part": part.name}
    limit = min(part.limit * (SMALL_FACTOR if given.small else 1.0), end - time.monotonic())
    if part.vllm and given.stand_in:
        line["left"] = "needs vLLM"
    elif limit < LEAST_SECONDS:
        line["left"] = "no time for it"
    else:
        sys.stderr.write(f"==> {part.name}: {part.about}\n")
        if part.makes is not None:
            shutil.rmtree(part.makes, ignore_errors=True)
        # Parts share what comes before reinforcement learning; that itself is what they measure.
        for measured in ("rl", "eval", "judge-audit"):
            shutil.rmtree(work / "cache" / measured, ignore_errors=True)
        started, code = time.monotonic(), 0
        line["gpu_mib_before"] = used_mib()
        with (folder / f"{part.name}.jsonl").open("w") as out, (folder / f"{part.name}.log").open("w") as log:
            for command in part.commands:
                left = limit - (time.monotonic() - started)
                code = run([sys.executable, *command], out, log, left, environment(work, given))
                if code:
                    break
        line |= {"exit": code, "seconds": round(time.monotonic() - started, 1)}
    text = json.dumps(line) + "\n"
    sys.stdout.write(text)
    sys.stdout.flush()
    with (folder / "summary.jsonl").open("a") as summary:
        summary.write(text)
    return line.get("exit", 0) == 0


def environment(work: Path, given: argparse.Namespace) -> dict[str, str]:
    """Of the processes of a part: nothing is fetched, and nothing is written beside the folders."""
    chosen = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "NCCL_NVLS_ENABLE": "0",
        # What a start of vLLM spends its time on stands in the part's log.
        "VLLM_LOGGING_LEVEL": "INFO",
        "DYNAWEB_CACHE": str(work / "cache"),
    }
    # Kernels that one part has compiled are there for the next, and can be taken to another machine.
    for name, place in (("VLLM_CACHE_ROOT", "vllm"), ("TRITON_CACHE_DIR", "triton")):
        chosen[name] = os.environ.get(name) or str(work / "kernels" / place)
    if given.small:
        chosen |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    return {**os.environ, **chosen}


def run(command: Sequence[str], out: IO[str], log: IO[str], limit: float, env: dict[str, str]) -> int:
    """The exit code of a command, -1 when it was ended; its JSON lines go to `out` as they come, all else to `log`."""
    import psutil

    log.write(f"$ {' '.join(command)}\n")
    log.flush()
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
    )
    reader = threading.Thread(target=_sorted, args=(process, out, log), daemon=True)
    reader.start()
    family: dict[int, psutil.Process] = {}
    until = time.monotonic() + limit
    while process.poll() is None and time.monotonic() < until:
        # Servers lead groups of their own, and whoever started one may be gone when it has to be ended.
        with suppress(psutil.Error):
            family |= {one.pid: one for one in psutil.Process(process.pid).children(recursive=True)}
        time.sleep(0.5)
    code = process.poll()
    left = [one for one in family.values() if one.is_running()]
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        for one in left:
            with suppress(psutil.Error):
                one.send_signal(number)
        _, left = psutil.wait_procs(left, timeout=QUIET_SECONDS)
        with suppress(subprocess.TimeoutExpired):
            process.wait(QUIET_SECONDS if left or process.poll() is None else 0)
    reader.join(QUIET_SECONDS)
    if code is None:
        log.write(f"ended after {limit:.0f} s\n")
    return -1 if code is None else code


def _sorted(process: subprocess.Popen[str], out: IO[str], log: IO[str]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            target = out if line.startswith("{") and _is_json(line) else log
            target.write(line)
            target.flush()


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def n_gpus() -> int:
    """How many GPUs this process may use, without torch."""
    there, named = len(_nvidia("--query-gpu=uuid")), os.environ.get("CUDA_VISIBLE_DEVICES")
    return there if named is None else min(there, len([one for one in named.split(",") if one.strip()]))


def used_mib() -> int:
    """Memory of all GPUs that is in use."""
    return sum(int(line.split()[0]) for line in _nvidia("--query-gpu=memory.used") if line.split()[0].isdigit())


def _nvidia(query: str) -> list[str]:
    try:
        asked = ["nvidia-smi", query, "--format=csv,noheader"]
        return subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout.split("\n")[:-1]
    except (OSError, subprocess.SubprocessError):
        return []


NEEDED = (
    *("flask", "lxml", "numpy", "packaging", "peft", "platformdirs", "pluggy", "psutil", "pydantic", "rich"),
    *("safetensors", "tokenizers", "tomli_w", "torch", "transformers", "typer", "waitress"),
    *("vllm", "uvicorn", "aiohttp", "trl", "datasets", "accelerate", "openenv", "websockets", "deepspeed", "openai"),
    *(
        "prometheus_fastapi_instrumentator",
        "model_hosting_container_standards",
        "mcp",
        "python_multipart",
        "watchfiles",
    ),
    *("uvloop", "numba"),
)


def about() -> int:
    """One JSON object; exit code 1 where something is missing."""
    from importlib import metadata

    import torch

    from dynaweb.plugin.registry import load

    versions = {}
    for name in (*NEEDED, "liger_kernel", "triton", "openenv-core"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name.replace("_", "-"))
    plugins = {one.kind: one.name for one in load().statuses()}
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    missing += [] if {"opt", "wm", "env", "engine"} <= plugins.keys() else ["dynaweb's plugins: install its metadata"]
    line = {
        "python": sys.version.split()[0],
        "cards": _nvidia("--query-gpu=name,driver_version,memory.total"),
        "torch sees": torch.cuda.device_count(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions,
        "missing": missing,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
