"""Packages that only some uses need, imported where they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dynaweb.errors import MissingError


def library(module: str, extra: str, *, what: str = "this") -> Any:
    """An optional module. Raises `MissingError` that says what needs it (`what`) and how to get it (`extra`)."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingError(
            f"{what} needs the package {package}, which is not installed; run: pip install 'dynaweb[{extra}]'"
        ) from error
