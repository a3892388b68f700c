"""The Python API: everything that the command line does.

Each call takes a recipe (a shipped name, a TOML file, or a resolved `Recipe`) with overrides and flags as
`dynaweb.config.resolving.resolve` knows them (`seed=1`, `wm="delta"`, `thorough=True`...; any other keyword is a
`ConfigError` that names the nearest), and shows nothing by itself;
`progress=True` draws progress on stderr. Errors are those of `dynaweb.errors`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynaweb.config.agreement import used_plugins
from dynaweb.config.resolving import DEFAULT, Overrides, check_flags, resolve
from dynaweb.errors import ConfigError
from dynaweb.plugins import Plugins, current, use

if TYPE_CHECKING:
    from dynaweb.config import Recipe
    from dynaweb.judges.audit import JudgeAudits
    from dynaweb.loop.closing import RunResult, StageResult
    from dynaweb.loop.wmeval import Shown, WorldModelScores


def run(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    overrides: Overrides = (),
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    **flags: Any,
) -> RunResult:
    """Run the main job: demonstrations, SFT, world model, reinforcement learning in dreams, evaluation, report.

    `out` is the run folder (default: `runs/<recipe>-<seed>-<n>`); with `resume` the run that is there goes on, by its
    own recipe unless another is named. Returns the result with the closing table; its text is that table.
    """
    if resume and out is not None and recipe == DEFAULT:
        from dynaweb.runs import RunFolder

        recipe = RunFolder(Path(out)).recipe()
    result: RunResult = _call("dynaweb.loop.api:run", recipe, overrides, flags, progress, out=out, resume=resume)
    return result


def sft(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> StageResult:
    """Make demonstrations and fine-tune the policy on them."""
    result: StageResult = _call("dynaweb.loop.api:sft", recipe, overrides, flags, progress, out=out)
    return result


def fit_world_model(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    data: str | Path | None = None,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> StageResult:
    """Fit the world model on real transitions and measure its fidelity.

    `data` is a transition store to use instead of exploration by the recipe.
    """
    result: StageResult = _call(
        "dynaweb.loop.api:fit_world_model", recipe, overrides, flags, progress, out=out, data=_path(data)
    )
    return result


def evaluate_world_model(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    weights: str | Path | None = None,
    data: str | Path | None = None,
    horizon: int = 8,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> WorldModelScores:
    """Compare a world model with real pages: one step, open-loop over `horizon` steps, and its confidence.

    `weights` is a folder of weights, by default those that the recipe fits; `data` a transition store to measure on, by
    default the held-out sites of the recipe's exploration.
    """
    options = {"weights": _path(weights), "data": _path(data), "horizon": horizon}
    result: WorldModelScores = _call(
        "dynaweb.loop.api:evaluate_world_model", recipe, overrides, flags, progress, out=out, **options
    )
    return result


def show_prediction(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    index: int = 0,
    weights: str | Path | None = None,
    data: str | Path | None = None,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> Shown:
    """One prediction of a held-out transition beside the truth; `weights` and `data` as in `evaluate_world_model`."""
    options = {"weights": _path(weights), "data": _path(data), "index": index}
    result: Shown = _call("dynaweb.loop.api:show_prediction", recipe, overrides, flags, progress, out=out, **options)
    return result


def collect(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    store: str | Path | None = None,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> StageResult:
    """Collect real transitions as `explore.player` says: with the SFT policy, experts, or random actions.

    They are added to `store`, by default to `transitions.jsonl.gz` in the run folder.
    """
    result: StageResult = _call(
        "dynaweb.loop.api:collect", recipe, overrides, flags, progress, out=out, store=_path(store)
    )
    return result


def evaluate(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    policy: str | Path | None = None,
    world_model: str | Path | None = None,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> StageResult:
    """Evaluate a policy on held-out tasks in the real browser.

    `policy` is a folder of weights or one of `sft` (default), `base` (the model as it is), `expert`, `random`. The
    result has rows by site and by kind of task, and every failure with its label. With `agent="lookahead"` the policy
    looks ahead in the world model of these weights (`world_model`), by default the one that the recipe fits.
    """
    options = {"policy": policy or _path(policy), "world_model": _path(world_model)}
    result: StageResult = _call("dynaweb.loop.api:evaluate", recipe, overrides, flags, progress, out=out, **options)
    return result


def fit_judge(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    data: str | Path | None = None,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> StageResult:
    """Fit the recipe's judge (`reward="orm"`) on graded real episodes, and measure it on held-out sites.

    `data` is a trajectory store with such episodes, by default new ones of the SFT policy.
    """
    result: StageResult = _call(
        "dynaweb.judges.api:fit_judge", recipe, overrides, flags, progress, out=out, data=_path(data)
    )
    return result


def audit_judges(
    recipe: str | Path | Recipe = DEFAULT,
    *,
    judges: Sequence[str] = (),
    data: str | Path | None = None,
    episodes: int = 0,
    overrides: Overrides = (),
    out: str | Path | None = None,
    progress: bool = False,
    **flags: Any,
) -> JudgeAudits:
    """Compare judges (default: the recipe's) with the environment's verdicts on the same real episodes.

    `data` is a trajectory store of graded episodes; by default `episodes` new ones are played on validation sites.
    """
    options = {"judges": tuple(judges), "data": _path(data), "episodes": episodes}
    result: JudgeAudits = _call(
        "dynaweb.judges.api:audit_judges", recipe, overrides, flags, progress, out=out, **options
    )
    return result


def _call(
    target: str,
    recipe: str | Path | Recipe,
    overrides: Overrides,
    flags: dict[str, Any],
    progress: bool,
    *,
    out: str | Path | None,
    **options: Any,
) -> Any:
    """Call `target`, a `module:function`, with the resolved recipe, once all plugins that it chooses are there."""
    module, _, function = target.partition(":")
    own = signature(globals()[function]).parameters
    check_flags(flags, f"dynaweb.{function}", [name for name in own if name != "flags"])
    if flags.get("plugins") is not None:
        use(flags["plugins"])
    plugins = current()
    resolved = resolve(recipe, overrides=overrides, **flags)
    for kind, name in used_plugins(resolved, plugins):
        plugins.try_class(kind, name)
    # Only now: torch and the browser's driver take seconds to import.
    from importlib import import_module

    call = getattr(import_module(module), function)
    _check_models(options)
    with _shown(plugins, progress):
        return call(resolved, out=_path(out), **options)


def _check_models(options: Mapping[str, Any]) -> None:
    """Check folders of weights that were given, before anything is made."""
    from dynaweb.backends.folders import check_given

    for given in (options.get(name) for name in ("policy", "weights", "world_model")):
        if given is not None and Path(given).is_dir():
            check_given(Path(given))


@contextmanager
def _shown(plugins: Plugins, progress: bool) -> Iterator[None]:
    if not progress:
        yield
        return
    from dynaweb.observers import ProgressDisplay

    display = ProgressDisplay()
    try:
        with plugins.observing(display):
            yield
    finally:
        display.close()


def _path(path: str | Path | None) -> Path | None:
    """Raises `ConfigError` for an empty one, which would stand for the working directory."""
    if path is not None and not str(path):
        raise ConfigError("a path is empty; name a file or folder, or leave it out")
    return None if path is None else Path(path)
