"""Fixtures for all tests: a clean environment, real temporary plugin packages, and the command line in a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from core_kit import Cli, PackageMaker
from hypothesis import HealthCheck, settings
from warm_kit import command_line

from dynaweb import masking
from dynaweb.plugin import registry as plugins

# Before torch is imported: threads that spin while they wait make everything crawl when a browser needs the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Processes of tests side by side share the cores.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
# A runner in the background of a shell ignores SIGINT, and the processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# How long a property takes says nothing on a machine that is busy with other things.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


LONGEST = (
    *(
        "test_loop_stages",
        "test_opt_runs",
        "test_env_commands",
        "test_judges_runs",
        "test_wm_stages",
        "test_cli_commands",
    ),
    *(
        "test_opt_ranks",
        "test_matrix_runs",
        "test_matrix_recipes",
        "test_full_disk",
        "test_backend_team",
        "test_baselines",
    ),
)
"""Files that take longest begin first, so that those who share the work end together."""


def pytest_configure(config: pytest.Config) -> None:
    """The order of files is ours, not that of their numbers of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by file; the order within each stays."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture(autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting of the developer's shell reaches a test, and no test reaches the user's cache."""
    for name in [name for name in os.environ if name.startswith("DYNAWEB_") and name != "DYNAWEB_CHROMIUM"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    plugins._current = None
    masking.forget()


@pytest.fixture
def package(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageMaker]:
    """Makes plugin packages that this process can import, and forgets them afterwards."""
    folder = tmp_path_factory.mktemp("site")
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield PackageMaker(folder)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(folder)):
            del sys.modules[name]


def _environment(path: Path | None, changes: dict[str, str]) -> dict[str, str]:
    found = {**os.environ, **changes}
    if path is not None:
        found["PYTHONPATH"] = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return found


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Runs `dynaweb ...` in a process of its own, in a temporary folder; `path` is put before PYTHONPATH."""

    def run(
        *arguments: str, path: Path | None = None, timeout: float = 240, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        env = _environment(path, environment)
        command = [sys.executable, "-m", "dynaweb", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=timeout, check=False
        )

    return run


@pytest.fixture
def warm_cli(tmp_path: Path) -> Cli:
    """The same in a process that has imported everything, which saves seconds where it would import torch."""

    def run(
        *arguments: str, path: Path | None = None, timeout: float = 240, typed: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        env = _environment(path, environment)
        return command_line(arguments, cwd=tmp_path, env=env, timeout=timeout, typed=typed)

    return run


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread of torch: small models are faster, and sums come in one order."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
