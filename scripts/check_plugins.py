"""Check the way of a plugin's author, end to end: python scripts/check_plugins.py [--each-runs]

For each kind, a package from `dynaweb new plugin`, and the one under `examples/`, is installed into an environment of
its own beside the wheel of dynaweb (built here), and its tests must pass. Then all kinds together take part in one
`dynaweb run`, or with `--each-runs` every package in one of its own. At last the commands of `docs/plugins.md` and
`docs/write-a-judge.md` are typed as they stand there. Dependencies are those of the environment that runs this script,
so nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TINY = (
    "data.demos=2 sft.steps=1 sft.batch=2 explore.episodes=2 explore.steps=2 wm_fit.steps=1 wm_fit.batch=2 "
    "dream.horizon=2 rl.updates=1 rl.tasks=1 rl.n=2 rl.bc_batch=2 eval.episodes=2 eval.steps=2 controls.sft_steps=[] "
    "model.threads=1"
)
STATIC = "env.task_settings.driver=static"
PLUGINS = {
    "world-model": ("check-world", ("--wm", "check-world"), (STATIC,)),
    "optimizer": ("check-opt", ("--opt", "check-opt"), (STATIC,)),
    "reward": ("check-reward", ("--reward", "check-reward"), (STATIC,)),
    "env": ("check-env", ("--env", "check-env", "--reward", "checker"), ()),
    "observer": ("check-obs", ("--observe", "check-obs"), (STATIC,)),
    "engine": ("check-engine", (), (STATIC, "policy.engine.name=check-engine")),
    # For models with a chat template; the run is with the tiny one, which has none.
    "prompt": ("check-prompt", (), (STATIC,)),
}
TOGETHER = (
    ("--wm", "check-world", "--opt", "check-opt", "--reward", "check-reward", "--observe", "check-obs"),
    ("env.tasks=check-env", "policy.engine.name=check-engine"),
)
EXAMPLE = ("--wm", "example-memory"), (STATIC,)


class Place:
    """An environment with the wheel of dynaweb and nothing else of this repository."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder, self.bin = folder, folder / "venv" / "bin"
        venv.create(folder / "venv", with_pip=False)
        (packages,) = (folder / "venv" / "lib").glob("python3*/site-packages")
        # A path file adds the dependencies; path files within them, such as that of an editable dynaweb, are not read.
        (packages / "dependencies.pth").write_text("\n".join(_dependencies()) + "\n")
        self.env: Mapping[str, str] = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("DYNAWEB_", "PYTHON"))},
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(folder / "venv"),
            "DYNAWEB_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        self.install(str(wheel))

    def install(self, *what: str) -> None:
        """Install without dependencies."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "-q", "--no-deps"]
        self.call([*pip, "--no-build-isolation", *what], self.folder)

    def call(self, command: Sequence[str], cwd: Path) -> str:
        """Run a command; ends the script with what it said when it fails."""
        done = subprocess.run(command, cwd=cwd, env=self.env, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done.stdout

    def python(self, *arguments: str, cwd: Path) -> str:
        """Run a module with the environment's Python."""
        return self.call([str(self.bin / "python"), "-m", *arguments], cwd)


def _dependencies() -> list[str]:
    """Every folder of packages that this Python imports from."""
    return list(dict.fromkeys(path for path in sys.path if path.endswith("site-packages"))) or site.getsitepackages()


def build(folder: Path) -> Path:
    """The wheel of this repository."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check(place: Place, package: Path) -> None:
    """Install a package and run its tests."""
    where = place.python("site", cwd=place.folder)
    # The checkout itself must not be importable; an environment that stands in it may be.
    assert not [line for line in where.splitlines() if str(ROOT) in line and "site-packages" not in line], where
    place.install(str(package))
    output = place.python("pytest", "-q", "-p", "no:cacheprovider", cwd=package)
    if "warning" in output.lower():
        sys.exit(f"the tests of {package} print warnings:\n{output[-4000:]}")


def run(place: Place, flags: Sequence[str], sets: Sequence[str]) -> None:
    """A run with tiny counts."""
    options = [word for setting in (*TINY.split(), *sets) for word in ("--set", setting)]
    shutil.rmtree(place.folder / "run", ignore_errors=True)  # a page may have two runs
    place.python("dynaweb", "run", "smoke", *flags, *options, "--out", "run", cwd=place.folder)
    report = place.folder / "run" / "report.html"
    assert report.stat().st_size > 10_000, report


def follow(place: Place, page: Path) -> int:
    """Type the commands of a page's `bash` blocks, and write the files that its other blocks name; returns how many.

    A block is written to a file when the line before it ends with `: FILE` in backticks. Lines that begin with
    `pip install` use the packages that are there. Blocks with a line `<!-- needs ... -->` above are left out.
    """
    text = re.sub(r"<!-- needs .*?-->\n```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    cwd, count = place.folder, 0
    for name, language, body in re.findall(r"(?:`([^`\n]+)`:\n\n)?```(\w+)\n(.*?)```", text, flags=re.DOTALL):
        if language != "bash":
            if name:
                (cwd / name).write_text(body, encoding="utf-8")
            continue
        for line in body.strip().split("\n"):
            count += 1
            if line.startswith("cd "):
                cwd = cwd / line.removeprefix("cd ")
            elif line.startswith("pip install"):
                place.install(str(cwd))
                place.env = {**place.env, "PYTHONPATH": str(cwd)}  # what `-e` does, without its build requirements
            elif line.startswith("dynaweb run"):
                run(place, line.split()[3:], (STATIC,))
            elif line.startswith("pytest"):
                place.python(*line.split(), cwd=cwd)
            else:
                place.call(["bash", "-c", line], cwd)
    return count


def fresh(folder: Path, wheel: Path, kind: str, *, runs: bool) -> Path:
    """A package from `dynaweb new plugin`, installed and tested; returns its folder."""
    start = time.monotonic()
    plugin, flags, sets = PLUGINS[kind]
    place = Place(folder / kind, wheel)
    place.python("dynaweb", "new", "plugin", "--kind", kind, plugin, "--out", "package", cwd=place.folder)
    check(place, place.folder / "package")
    if runs:
        run(place, flags, sets)
    print(f"{kind}: {time.monotonic() - start:.0f} s", flush=True)
    return place.folder / "package"


def example(folder: Path, wheel: Path, *, runs: bool) -> None:
    """The packages under `examples/`, installed and tested."""
    check(Place(folder / "drawing", wheel), ROOT / "examples" / "dynaweb-wm-drawing")
    place = Place(folder / "example", wheel)
    check(place, ROOT / "examples" / "dynaweb-wm-example")
    if runs:
        run(place, *EXAMPLE)
    print("example", flush=True)


def page(folder: Path, wheel: Path) -> None:
    """The commands of the pages that lead to a plugin."""
    for name in ("plugins.md", "write-a-judge.md"):
        count = follow(Place(folder / name, wheel), ROOT / "docs" / name)
        print(f"docs/{name}: {count} commands", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Check everything; what does not depend on each other at once, on two cores."""
    runs = "--each-runs" in arguments
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        folder = Path(name)
        wheel = build(folder)
        packages = [pool.submit(fresh, folder, wheel, kind, runs=runs) for kind in PLUGINS]
        others = [pool.submit(page, folder, wheel), pool.submit(example, folder, wheel, runs=runs)]
        together = Place(folder / "together", wheel)
        together.install(*(str(package.result()) for package in packages))
        run(together, *TOGETHER)
        print("one run with all of them", flush=True)
        for other in others:
            other.result()


if __name__ == "__main__":
    main(sys.argv[1:])
