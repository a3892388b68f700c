"""Train LLM web agents by reinforcement learning in the dreams of a learned web world model.

    import dynaweb

    result = dynaweb.run("dynaweb", overrides={"rl.updates": 20}, seed=1)
    dynaweb.evaluate("dynaweb", out="runs/eval")

`dynaweb.api` documents these calls; the command line is a thin layer over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynaweb.api import (
        audit_judges,
        collect,
        evaluate,
        evaluate_world_model,
        fit_judge,
        fit_world_model,
        run,
        sft,
        show_prediction,
    )
    from dynaweb.config.resolving import resolve

__version__ = "0.1.0"

_HOMES = {
    "audit_judges": "dynaweb.api",
    "fit_judge": "dynaweb.api",
    "collect": "dynaweb.api",
    "evaluate": "dynaweb.api",
    "evaluate_world_model": "dynaweb.api",
    "fit_world_model": "dynaweb.api",
    "show_prediction": "dynaweb.api",
    "resolve": "dynaweb.config.resolving",
    "run": "dynaweb.api",
    "sft": "dynaweb.api",
}


def __getattr__(name: str) -> Any:
    # Every plugin imports this package: nothing is loaded before it is used.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


__all__ = [
    "__version__",
    "audit_judges",
    "collect",
    "evaluate",
    "evaluate_world_model",
    "fit_judge",
    "fit_world_model",
    "resolve",
    "run",
    "sft",
    "show_prediction",
]
