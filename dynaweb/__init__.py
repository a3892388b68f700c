"""Train LLM web agents by reinforcement learning in the dreams of a learned web world model.

    import dynaweb

    result = dynaweb.run("dynaweb", overrides={"rl.updates": 20}, seed=1)
    dynaweb.evaluate("dynaweb", out="runs/eval")

`dynaweb.api` documents these calls, `docs/api.md` lists them; the command line is a thin layer over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynaweb.api import (
        audit_judges,
        check_plugin,
        collect,
        compare_recipes,
        compare_runs,
        contamination,
        data_record,
        data_stats,
        demonstrate,
        doctor,
        estimate_run,
        evaluate,
        evaluate_world_model,
        export_data,
        export_site,
        fit_judge,
        fit_world_model,
        import_data,
        install_environment,
        label_data,
        list_cache,
        list_matrices,
        list_plugins,
        list_recipes,
        list_results,
        list_tasks,
        matrix_figures,
        matrix_table,
        new_plugin,
        new_project,
        new_recipe,
        open_environment,
        plan_matrix,
        prune_cache,
        push,
        recipe_schema,
        report_server,
        reproduce,
        results,
        run,
        run_matrix,
        serve_browsers,
        setup,
        sft,
        show_prediction,
        write_report,
        write_results,
    )
    from dynaweb.config.resolving import resolve

__version__ = "0.2.0"

__all__ = [
    "__version__",
    "audit_judges",
    "check_plugin",
    "collect",
    "compare_recipes",
    "compare_runs",
    "contamination",
    "data_record",
    "data_stats",
    "demonstrate",
    "doctor",
    "estimate_run",
    "evaluate",
    "evaluate_world_model",
    "export_data",
    "export_site",
    "fit_judge",
    "fit_world_model",
    "import_data",
    "install_environment",
    "label_data",
    "list_cache",
    "list_matrices",
    "list_plugins",
    "list_recipes",
    "list_results",
    "list_tasks",
    "matrix_figures",
    "matrix_table",
    "new_plugin",
    "new_project",
    "new_recipe",
    "open_environment",
    "plan_matrix",
    "prune_cache",
    "push",
    "recipe_schema",
    "report_server",
    "reproduce",
    "resolve",
    "results",
    "run",
    "run_matrix",
    "serve_browsers",
    "setup",
    "sft",
    "show_prediction",
    "write_report",
    "write_results",
]


def __getattr__(name: str) -> Any:
    # Every plugin imports this package: nothing is loaded before it is used.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("dynaweb.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
