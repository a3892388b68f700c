"""Whole recipes side by side, as a matrix with the one axis `recipe`: same tasks, same seeds, same evaluation.

    dynaweb compare --recipes sft,webrl,dynaweb --seeds 0,1,2

Settings given for all recipes keep each what it is: a count that a recipe itself sets to 0 (it does without that stage)
stays 0, and `env.task_settings.*` are settings of the tasks' environment, which some recipes play in and others dream
of. `RECIPE:PATH=VALUE` is for one recipe alone and taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dynaweb.config.layers import parse_set
from dynaweb.config.resolving import resolve
from dynaweb.errors import ConfigError, hint
from dynaweb.matrix.plan import RECIPE, Matrix, When, check_axes

if TYPE_CHECKING:
    from dynaweb.config import Recipe

NAME = "recipes"
SEEDS = (0, 1, 2)
MEASURES = ("main", "real_steps", "tokens_generated", "seconds")
TASKS = "env.task_settings."
"""Where a dream environment has the settings of the environment that it dreams of."""

Sets = Mapping[str, Any]


def comparison(
    recipes: Iterable[str], *, sets: Iterable[str] = (), seeds: tuple[int, ...] = SEEDS
) -> tuple[Matrix, list[str]]:
    """The matrix of recipes, the first being the reference, and what stays 0 in spite of `sets`, a sentence each.

    `sets` are texts as `--set` takes them.

    Raises `ConfigError` for recipes and settings that are not there.
    """
    names = list(recipes)
    every, own = _by_recipe(sets, names)
    cells, unchanged = [], list[str]()
    for name in names:
        recipe = resolve(name)
        off = [path for path in every if _is_off(recipe, path)]
        unchanged += [f"{name} keeps {path} = 0" for path in off if path not in own[name]]
        shared = {_path_in(recipe, path): value for path, value in every.items() if path not in off}
        settings = {**_controls(recipe), **shared, **own[name]}
        cells.append(When.model_validate({"if": {RECIPE: name}, "set": settings}))
    matrix = Matrix(
        name=NAME,
        base=names[0],
        description="Whole recipes on the same tasks, seeds and evaluation",
        seeds=seeds,
        measures=MEASURES,
        axes={RECIPE: names},
        when=cells,
    )
    check_axes(matrix)
    return matrix, unchanged


def _by_recipe(sets: Iterable[str], names: list[str]) -> tuple[Sets, dict[str, Sets]]:
    """Settings for all recipes, and those of one alone."""
    shared, own = [], {name: list[str]() for name in names}
    for text in sets:
        name, colon, rest = text.partition("=")[0].partition(":")
        if not colon:
            shared.append(text)
        elif name in own:
            own[name].append(text.removeprefix(f"{name}:"))
        else:
            raise ConfigError(f"--set {text}: {name!r} is none of the recipes to compare; {hint(name, names)}: {rest}")
    parsed = {name: parse_set(texts) for name, texts in {"": shared, **own}.items()}
    problems = [text for _, errors in parsed.values() for text in errors]
    if problems:
        raise ConfigError("\n".join(problems))
    return parsed[""][0], {name: parsed[name][0] for name in names}


def _is_off(recipe: Recipe, path: str) -> bool:
    """Whether a recipe itself does without what the setting counts."""
    value = recipe.flat().get(path)
    return type(value) is int and value == 0 and recipe.origins.get(path, "default") != "default"


def _path_in(recipe: Recipe, path: str) -> str:
    """Where a recipe has a setting of the tasks' environment."""
    from dynaweb.plugin.registry import current

    dreams = "dreams" in current().find("env", recipe.env.name).spec.capabilities
    return path if dreams or not path.startswith(TASKS) else f"env.{path.removeprefix(TASKS)}"


def _controls(recipe: Recipe) -> dict[str, Any]:
    """No longer SFT beside a method of its own: the recipe `sft` is that."""
    method = recipe.rl.updates or recipe.agent.kind != "direct"
    return {"controls.sft_steps": []} if method else {}
