"""Train LLM web agents by reinforcement learning in the dreams of a learned web world model.

    import dynaweb

    result = dynaweb.run("dynaweb", overrides={"rl.updates": 20}, seed=1)
    dynaweb.evaluate("dynaweb", out="runs/eval")

`dynaweb.api` and `dynaweb.tools` document these calls, `docs/api.md` lists them; the command line is a thin layer over
them.
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
    from dynaweb.tools import (
        check_plugin,
        compare_recipes,
        compare_runs,
        contamination,
        data_stats,
        doctor,
        estimate_run,
        export_data,
        import_data,
        install_environment,
        label_data,
        list_cache,
        list_matrices,
        list_plugins,
        list_recipes,
        list_tasks,
        matrix_table,
        new_plugin,
        open_place,
        plan_matrix,
        prune_cache,
        recipe_schema,
        report_server,
        run_matrix,
        setup,
        write_report,
    )

__version__ = "0.1.0"

_HOMES = {
    "audit_judges": "dynaweb.api",
    "check_plugin": "dynaweb.tools",
    "collect": "dynaweb.api",
    "compare_recipes": "dynaweb.tools",
    "compare_runs": "dynaweb.tools",
    "contamination": "dynaweb.tools",
    "data_stats": "dynaweb.tools",
    "doctor": "dynaweb.tools",
    "estimate_run": "dynaweb.tools",
    "evaluate": "dynaweb.api",
    "evaluate_world_model": "dynaweb.api",
    "export_data": "dynaweb.tools",
    "fit_judge": "dynaweb.api",
    "fit_world_model": "dynaweb.api",
    "import_data": "dynaweb.tools",
    "install_environment": "dynaweb.tools",
    "label_data": "dynaweb.tools",
    "list_cache": "dynaweb.tools",
    "list_matrices": "dynaweb.tools",
    "list_plugins": "dynaweb.tools",
    "list_recipes": "dynaweb.tools",
    "list_tasks": "dynaweb.tools",
    "matrix_table": "dynaweb.tools",
    "new_plugin": "dynaweb.tools",
    "open_place": "dynaweb.tools",
    "plan_matrix": "dynaweb.tools",
    "prune_cache": "dynaweb.tools",
    "recipe_schema": "dynaweb.tools",
    "report_server": "dynaweb.tools",
    "resolve": "dynaweb.config.resolving",
    "run": "dynaweb.api",
    "run_matrix": "dynaweb.tools",
    "setup": "dynaweb.tools",
    "sft": "dynaweb.api",
    "show_prediction": "dynaweb.api",
    "write_report": "dynaweb.tools",
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
    "check_plugin",
    "collect",
    "compare_recipes",
    "compare_runs",
    "contamination",
    "data_stats",
    "doctor",
    "estimate_run",
    "evaluate",
    "evaluate_world_model",
    "export_data",
    "fit_judge",
    "fit_world_model",
    "import_data",
    "install_environment",
    "label_data",
    "list_cache",
    "list_matrices",
    "list_plugins",
    "list_recipes",
    "list_tasks",
    "matrix_table",
    "new_plugin",
    "open_place",
    "plan_matrix",
    "prune_cache",
    "recipe_schema",
    "report_server",
    "resolve",
    "run",
    "run_matrix",
    "setup",
    "sft",
    "show_prediction",
    "write_report",
]
