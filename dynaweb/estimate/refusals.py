"""For what a run would be refused here, and what it takes: all that `dynaweb run --dry-run` finds. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dynaweb.config.agreement import check_agreement, used_extras, used_settings
from dynaweb.config.validate import Problems
from dynaweb.errors import CheckpointError, ConfigError, DynawebError, MissingError, PluginError
from dynaweb.estimate.machine import look, named, several
from dynaweb.estimate.placement import generating_gpus
from dynaweb.estimate.plan import Estimate, estimate
from dynaweb.estimate.remedies import remedies
from dynaweb.estimate.sources import Sources, sources_of
from dynaweb.plugin.discovery import missing_requirements
from dynaweb.plugin.registry import current
from dynaweb.trainer.models import check_documents

if TYPE_CHECKING:
    from dynaweb.config import Recipe


@dataclass(frozen=True, slots=True)
class Examination:
    """What a dry run finds: the estimate (None where the model's size is not known), what the run would learn from,
    every problem, and what this installation lacks of what the recipe uses."""

    estimate: Estimate | None
    sources: Sources
    problems: Problems
    missing: tuple[DynawebError, ...]


def examined(recipe: Recipe, nproc: int = 0, on: str = "", *, spread: bool = False) -> Examination:
    """Examine a recipe for this machine, or for another by its name (`dynaweb.estimate.machine.named`).

    `nproc` is the number of processes; 0 stands for 1 here, and for one on each GPU of a named machine that no replica
    of vLLM has. With `spread` they are on as many machines of this kind as they need, and the layout is left to who
    spreads them. What this installation lacks is no problem for another machine. Raises `ConfigError` for a name that
    is not known.
    """
    machine = named(on) if on else look(recipe.model.device)
    ranks = nproc or (max(1, machine.devices - generating_gpus(recipe)) if on else 1)
    if spread:
        machine = several(machine, ranks)
    plan = estimate(recipe, machine, ranks=ranks)
    if spread and plan is not None:
        plan = replace(plan, layout=())
    if plan is not None and plan.problems():
        plan = replace(plan, remedies=remedies(recipe, machine, ranks))
    missing = tuple(_missing(recipe))
    problems = Problems(plugins=[] if on else list(missing))
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
    # What the recipe leaves to its user is a problem of its own already.
    sources, faults = (Sources(), []) if recipe.needs else sources_of(recipe)
    new = [error for error in faults if str(error) not in {*map(str, missing), *problems.texts}]
    problems.texts += [str(error) for error in new if isinstance(error, ConfigError)]
    problems.plugins += [error for error in new if not isinstance(error, ConfigError)]
    return Examination(plan, sources, problems, missing)


def _missing(recipe: Recipe) -> Iterator[DynawebError]:
    """What a recipe uses and this installation lacks, plugins that cannot be imported among it."""
    for kind, name, settings in used_settings(recipe, current()):
        try:
            current().try_class(kind, name, settings)
        except (MissingError, PluginError) as error:
            yield error
        except ConfigError:
            continue  # of settings: said by who uses them
    for extra, what in used_extras(recipe):
        if lacking := missing_requirements("dynaweb", extra):
            needs = f"{what} needs {', '.join(lacking)}, which is not installed"
            yield MissingError(f"{needs}; run: pip install 'dynaweb[{extra}]'")
