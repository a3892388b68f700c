"""For what a run would be refused here, and what it takes: all that `dynaweb run --dry-run` finds. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dynaweb.config.agreement import check_agreement, used_extras, used_plugins
from dynaweb.config.validate import Problems
from dynaweb.errors import CheckpointError, ConfigError, DynawebError, MissingError, PluginError
from dynaweb.estimate.machine import look
from dynaweb.estimate.plan import Estimate, estimate
from dynaweb.plugin.discovery import missing_requirements
from dynaweb.plugin.registry import current
from dynaweb.trainer.models import check_documents

if TYPE_CHECKING:
    from dynaweb.config import Recipe


def examined(recipe: Recipe, nproc: int = 1) -> tuple[Estimate | None, Problems]:
    """The estimate (None where the model's size is not known) and every problem, of plugins and of settings."""
    plan = estimate(recipe, look(recipe.model.device), ranks=nproc)
    problems = Problems(plugins=list(_missing(recipe)))
    checks: list[Callable[[], None]] = [lambda: check_agreement(recipe, current())]
    for check in [*checks, plan.check] if plan is not None else checks:
        try:
            check()
        except ConfigError as error:
            problems.texts.append(str(error))
    try:
        check_documents(recipe.model.path)
    except (MissingError, CheckpointError) as error:
        problems.plugins.append(error)
    return plan, problems


def _missing(recipe: Recipe) -> Iterator[DynawebError]:
    """What a recipe uses and this installation lacks, plugins that cannot be imported among it."""
    for kind, name in used_plugins(recipe, current()):
        try:
            current().try_class(kind, name)
        except (MissingError, PluginError) as error:
            yield error
    for extra, what in used_extras(recipe):
        if lacking := missing_requirements("dynaweb", extra):
            needs = f"{what} needs {', '.join(lacking)}, which is not installed"
            yield MissingError(f"{needs}; run: pip install 'dynaweb[{extra}]'")
