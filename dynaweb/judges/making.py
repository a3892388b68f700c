"""Creating the judge of a recipe: on which model it runs, with which trained weights, and of which parts.

A judge's setting `model` says whose weights it uses (`base`: the frozen base model, `policy`: the one in training).
Judges that can be fitted (capability `trainable`) have a setting `weights`, a folder that `dynaweb orm fit` made; where
it is empty, the run fits them itself. A judge made of others (capability `combines`) has a table `judges`, and gets a
function that makes each of them in `context.services["judges"]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dynaweb.config.code import OWN, code_of
from dynaweb.errors import ConfigError
from dynaweb.files import read_json
from dynaweb.judges.calibration import Platt
from dynaweb.protocols import PluginContext

if TYPE_CHECKING:
    from dynaweb.engines.transformers_engine import TransformersEngine
    from dynaweb.loop.workspace import Workspace
    from dynaweb.policy.formats import PromptFormat
    from dynaweb.protocols import Judge

FITTED = "judge.json"
"""Calibration and quality of a fitted judge, beside its weights."""
TRAINABLE, COMBINES = "trainable", "combines"


def make_judge(ws: Workspace, policy: TransformersEngine, policy_format: PromptFormat) -> Judge:
    """The recipe's judge."""
    return judge_named(ws, ws.recipe.reward.name, ws.recipe.reward.config, policy, policy_format)


def judge_named(
    ws: Workspace, name: str, settings: Any, policy: TransformersEngine, policy_format: PromptFormat
) -> Judge:
    """A judge by name; `settings` is its config or plain data. Raises `ConfigError` for settings that are not valid."""
    config = checked_config(ws, name, settings)
    services: dict[str, Any] = {
        "judges": lambda part, given: judge_named(ws, part, given, policy, policy_format),
        "count": ws.meter.engines.append,
    }
    wants = getattr(config, "model", None)
    engine, prompts = (policy, policy_format) if wants == "policy" else (None, ws.format)
    if TRAINABLE in ws.plugins.find("reward", name).spec.capabilities:
        folder = weights_of(ws, name, config)
        model = ws.load(folder / "model" if (folder / "model").is_dir() else folder)
        engine, prompts = ws.engine(model, "reward"), model.format
        services["calibration"] = calibration_in(folder)
    elif wants == "base":
        engine = ws.base_engine
    context = PluginContext(engine=engine, format=prompts, seed=ws.seed("judge"), services=services)
    return cast("Judge", ws.plugins.create("reward", name, config, context))


def checked_config(ws: Workspace, name: str, settings: Any) -> Any:
    """A judge's settings, validated."""
    from pydantic import BaseModel, ValidationError

    if isinstance(settings, BaseModel):
        return settings
    try:
        return ws.plugins.find("reward", name).spec.config.model_validate(dict(settings))
    except ValidationError as error:
        raise ConfigError(f"settings of judge {name!r}: {error}") from error


def parts(ws: Workspace, name: str, config: Any) -> Iterator[tuple[str, Any]]:
    """The judge itself and, where it is made of others, all of them, with their settings."""
    yield name, config
    if COMBINES in ws.plugins.find("reward", name).spec.capabilities:
        for part, given in config.judges.items():
            yield from parts(ws, part, checked_config(ws, part, given.settings))


def to_fit(ws: Workspace) -> tuple[str, Any] | None:
    """Name and settings of the recipe's judge, or of its first part, that has to be fitted in this run; None: none."""
    for name, config in parts(ws, ws.recipe.reward.name, ws.recipe.reward.config):
        able = TRAINABLE in ws.plugins.find("reward", name).spec.capabilities
        if able and not getattr(config, "weights", ""):
            return name, config
    return None


def weights_of(ws: Workspace, name: str, config: Any) -> Path:
    """The folder of a trainable judge's weights. Raises `ConfigError` when there are none, or another judge's."""
    given = str(getattr(config, "weights", ""))
    if given:
        if not Path(given).is_dir():
            raise ConfigError(
                f"reward.weights: there is no folder {given}; make one with dynaweb orm fit --out {given}"
            )
        return fitted_folder(Path(given))
    if ws.fitted_judge is None:
        raise ConfigError(
            "this judge has to be fitted first: run dynaweb orm fit, and name its folder in reward.weights"
        )
    fitted = read_json(ws.fitted_judge / FITTED, dict).get("judge")
    if fitted != name:
        raise ConfigError(
            f"this run fitted the judge {fitted!r}, whose weights {name!r} cannot use: a run fits one judge; fit the "
            "other with dynaweb orm fit, and name its folder in its weights"
        )
    return ws.fitted_judge


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
        found: Mapping[str, float] = document["calibration"]
        return Platt(float(found["slope"]), float(found["intercept"]), int(found["n"]), float(found["prior"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); fit the judge again") from error


def judge_key(ws: Workspace) -> dict[str, str]:
    """What the recipe's judge depends on besides its settings, for cache keys: empty where that is nothing."""
    from dynaweb.loop.files import files_hash

    used = list(parts(ws, *_reward(ws)))
    given = [str(getattr(config, "weights", "")) for _, config in used]
    found = {f"weights {path}": files_hash(fitted_folder(Path(path))) for path in given if path and Path(path).is_dir()}
    for plugin in (ws.plugins.find("reward", name) for name, _ in used[1:]):
        if plugin.origin.package != OWN:
            found[f"code {plugin.name}"] = code_of(plugin)
    if ws.fitted_judge is not None:
        found["fitted"] = ws.fitted_judge.name
    return found


def _reward(ws: Workspace) -> tuple[str, Any]:
    return ws.recipe.reward.name, ws.recipe.reward.config
