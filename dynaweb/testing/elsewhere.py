"""Asks a suite's plugin in other processes, whose strings hash differently: what depends on `hash` is found out so."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dynaweb.testing.suite import PluginSuite

HASH_SEEDS = ("1", "2")
"""Values of PYTHONHASHSEED, one process each."""
NOT_THERE = 3
"""Exit code of a process that cannot import the suite's class."""

_CHILD = "from dynaweb.testing.elsewhere import answer; answer()"


def run_elsewhere(suite: PluginSuite, method: str) -> list[Any]:
    """What `suite.method()` returns in processes that differ in how strings hash, side by side; it must pickle.

    Skips the test when the class of the suite cannot be imported there.
    """
    base = next(one for one in type(suite).__mro__ if one.__module__.startswith("dynaweb.testing."))
    own = [base] if _only_names(type(suite), base) else [type(suite)]
    question = pickle.dumps((own[0].__module__, own[0].__qualname__, suite.name, dict(suite.settings), method))
    children = [_start(seed) for seed in HASH_SEEDS]
    done = [(child, *child.communicate(question)) for child in children]
    if any(child.returncode == NOT_THERE for child, *_ in done):
        pytest.skip(f"{type(suite).__name__} cannot be imported in another process")
    for child, _, errors in done:
        assert child.returncode == 0, f"in a process of its own: {errors.decode(errors='replace')[-2000:]}"
    return [pickle.loads(result) for _, result, _ in done]


def answer() -> None:
    """The other process: the question comes from standard input, the answer goes to standard output."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a plugin prints is no part of the answer
    module, path, name, settings, method = pickle.load(sys.stdin.buffer)
    try:
        home: Any = import_module(module)
        for part in path.split("."):
            home = getattr(home, part)
    except (ImportError, AttributeError):
        sys.exit(NOT_THERE)
    from dynaweb.plugin import registry as plugins

    suite = type("Elsewhere", (home,), {"name": name, "settings": settings})()
    suite.plugins = plugins.load(warn=False)
    with out:
        pickle.dump(getattr(suite, method)(), out)


def _only_names(own: type, base: type) -> bool:
    """Whether a subclass says nothing about how the plugin is made, so that the suite itself will do."""
    between = own.__mro__[: own.__mro__.index(base)]
    added = {key for one in between for key in vars(one) if not key.startswith(("__", "test_"))}
    return added <= {"name", "settings", "xfail"}


def _start(hash_seed: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(part for part in sys.path if part)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}
    pipe, command = subprocess.PIPE, [sys.executable, "-c", _CHILD]
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)


__all__ = ["run_elsewhere"]
