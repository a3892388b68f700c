"""Creating the judge of a recipe: on which model it runs, with which trained weights, and of which parts.

A judge's setting `model` says whose weights it uses (`base`: the frozen base model, `policy`: the one in training).
Judges that can be fitted (capability `trainable`) have a setting `weights`, a folder that `dynaweb orm fit` made; where
it is empty, the run fits them itself. A judge made of others (capability `combines`) has a table `judges`, and gets a
function that makes each of them in `JudgeContext.judges`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dynaweb.config.files import read_json
from dynaweb.config.keys import OWN, code_of
from dynaweb.errors import ConfigError
from dynaweb.judges.calibration import Platt
from dynaweb.judges.parts import TRAINABLE, checked_config, judges_in, parts
from dynaweb.protocols import JudgeContext

if TYPE_CHECKING:
    from dynaweb.pipeline.artifacts import LoadedModel
    from dynaweb.pipeline.context import RunContext
    from dynaweb.protocols import Engine, Judge, PromptFormat

FITTED = "judge.json"
"""Calibration and quality of a fitted judge, beside its weights."""


def make_judge(ctx: RunContext, policy: Engine, policy_format: PromptFormat) -> Judge:
    """The recipe's judge."""
    return judge_named(ctx, ctx.recipe.reward.name, ctx.recipe.reward.config, policy, policy_format)


def judge_named(ctx: RunContext, name: str, settings: Any, policy: Engine, policy_format: PromptFormat) -> Judge:
    """A judge by name; `settings` is its config or plain data. Raises `ConfigError` for settings that are not valid."""
    config = checked_config(ctx.plugins, name, settings)
    calibration: Platt | None = None
    wants = getattr(config, "model", None)
    engine, prompts = (policy, policy_format) if wants == "policy" else (None, ctx.models.format)
    if TRAINABLE in ctx.plugins.find("reward", name).spec.capabilities:
        learning = ctx.models.learning_judge if to_fit(ctx, name, config) is not None else None
        model, calibration = learning or fitted_model(ctx, name, config)
        engine, prompts = ctx.models.engine(model, "reward"), model.format
    elif wants == "base":
        engine = ctx.models.base_engine
    context = JudgeContext(
        engine=engine,
        format=prompts,
        seed=ctx.seed("judge"),
        calibration=calibration,
        judges=lambda part, settings: judge_named(ctx, part, settings, policy, policy_format),
        count=ctx.meter.engines.append,
        images=ctx.images,
    )
    return cast("Judge", ctx.plugins.create("reward", name, config, context))


def fitted_model(ctx: RunContext, name: str, config: Any) -> tuple[LoadedModel, Platt]:
    """A model of its own with the weights of a trainable judge, and their calibration. Raises `ConfigError`."""
    folder = weights_of(ctx, name, config)
    model = ctx.models.load(folder / "model" if (folder / "model").is_dir() else folder)
    return model, calibration_in(folder)


def to_fit(ctx: RunContext, name: str = "", settings: Any = None) -> tuple[str, Any] | None:
    """Name and settings of the part of a judge (default: the recipe's) that has to be fitted in this run; None: none.

    The first one counts: a run fits one judge. `settings` is the judge's config or plain data.
    """
    plugins = ctx.plugins
    given = parts(plugins, name, checked_config(plugins, name, settings or {})) if name else None
    for part, config in given or judges_in(ctx.recipe, plugins):
        able = TRAINABLE in plugins.find("reward", part).spec.capabilities
        if able and not getattr(config, "weights", ""):
            return part, config
    return None


def refreshes_judge(ctx: RunContext) -> bool:
    """Whether the judge is fitted further while the policy learns."""
    return ctx.recipe.judge_fit.refresh_every > 0 and to_fit(ctx) is not None


def weights_of(ctx: RunContext, name: str, config: Any) -> Path:
    """The folder of a trainable judge's weights. Raises `ConfigError` when there are none, or another judge's."""
    path = str(getattr(config, "weights", ""))
    if path:
        if not Path(path).is_dir():
            raise ConfigError(f"reward.weights: there is no folder {path}; make one with dynaweb orm fit --out {path}")
        return fitted_folder(Path(path))
    if ctx.models.fitted_judge is None:
        raise ConfigError(
            "this judge has to be fitted first: run dynaweb orm fit, and name its folder in reward.weights"
        )
    fitted = read_json(ctx.models.fitted_judge / FITTED, dict).get("judge")
    if fitted != name:
        raise ConfigError(
            f"this run fitted the judge {fitted!r}, whose weights {name!r} cannot use: a run fits one judge; fit the "
            "other with dynaweb orm fit, and name its folder in its weights"
        )
    return ctx.models.fitted_judge


def fitted_folder(folder: Path) -> Path:
    """Where the weights of a fitted judge are, given that folder or the run folder of `dynaweb orm fit`."""
    inside = folder / "checkpoints" / "judge"
    return inside if inside.is_dir() else folder


def calibration_in(folder: Path) -> Platt:
    """The calibration beside a judge's weights; none where there is no file. Raises `ConfigError` for a damaged one."""

    path = folder / FITTED
    if not path.is_file():
        return Platt()
    document = read_json(path, dict, error=ConfigError, advice="fit the judge again")
    try:
        platt: Mapping[str, float] = document["calibration"]
        return Platt(float(platt["slope"]), float(platt["intercept"]), int(platt["n"]), float(platt["prior"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); fit the judge again") from error


def judge_key(ctx: RunContext) -> dict[str, str]:
    """What the recipe's judge depends on besides its settings, for cache keys: empty where that is nothing."""
    from dynaweb.pipeline.artifacts import files_hash

    used = list(judges_in(ctx.recipe, ctx.plugins))
    folders = [str(getattr(config, "weights", "")) for _, config in used]
    key = {f"weights {path}": files_hash(fitted_folder(Path(path))) for path in folders if path and Path(path).is_dir()}
    for plugin in (ctx.plugins.find("reward", name) for name, _ in used[1:]):
        if plugin.origin.package != OWN:
            key[f"code {plugin.name}"] = code_of(plugin)
    if ctx.models.fitted_judge is not None:
        key["fitted"] = ctx.models.fitted_judge.name
    return key
