"""Trying to import a module without the heavy libraries that it may need: what a quick check can know of it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

HEAVY = frozenset(
    {
        "datasets", "deepspeed", "flask", "gymnasium", "lxml", "matplotlib", "numpy", "openai", "pandas", "peft",
        "playwright", "pyarrow", "safetensors", "scipy", "sklearn", "tensorboard", "tensorflow", "tokenizers", "torch",
        "trackio", "transformers", "vllm", "waitress", "wandb",
    }
)  # fmt: skip
"""Libraries that take long to import."""


class _NeedsHeavyError(BaseException):
    """A heavy library would have been imported. No `Exception`: modules may catch those and go on without."""


class _Finder:
    """Stops imports of heavy libraries that are not loaded yet, in one thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if threading.get_ident() == self._thread and name.partition(".")[0] in HEAVY:
            raise _NeedsHeavyError(name)
        return None


def import_light(name: str) -> ModuleType | None:
    """The module, or None where importing it takes a heavy library first. Raises what the module raises.

    A library that is loaded already stops nothing. Modules that were imported on the way stay, whole.
    """
    before = set(sys.modules)
    with _without_heavy():
        try:
            return import_module(name)
        except _NeedsHeavyError:
            # A package that was stopped is gone, its finished modules are not: found there, they would be taken for
            # imported without their package.
            for added in sorted(set(sys.modules) - before):
                if any(parent not in sys.modules for parent in _parents(added)):
                    del sys.modules[added]
            return None


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


@contextmanager
def _without_heavy() -> Iterator[None]:
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
