"""The file of a matrix: what varies, what depends on it, what is left out.

[matrix]
base = "dynaweb"                 # a recipe
mode = "grid"                    # or "one-at-a-time": one axis leaves its first value at a time
seeds = [0, 1, 2]
max_cells = 64
set = {"eval.episodes" = 60}     # for every cell

[matrix.axes]
wm = ["delta", "full-state"]     # a flag of `dynaweb run`, the path of a setting, or `recipe`: whole recipes
"dream.horizon" = [1, 2, 4, 8]
anchor = [{label = "none", "rl.bc_weight" = 0.0}, {label = "both", "rl.bc_weight" = 0.2, "rl.expert_share" = 0.25}]

[[matrix.zip]]                   # these vary together: one axis
"rl.tasks" = [4, 8]
"rl.n" = [16, 8]

[[matrix.when]]
if = {wm = "full-state"}
set = {"wm_fit.steps" = 120}

[[matrix.exclude]]               # cells that fit all of it; a list means any of its values
wm = "full-state"
"dream.horizon" = [8]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from dynaweb.config.layers import flatten, read_toml, shipped_recipes, toml_value
from dynaweb.config.resolving import FLAGS
from dynaweb.config.sections import Section
from dynaweb.errors import ConfigError
from dynaweb.files import expanded
from dynaweb.matrix.folder import PLAN
from dynaweb.runs.folder import RUNS
from dynaweb.suggest import hint

_SHIPPED = Path(__file__).parent / "shipped"
LABEL = "label"
RECIPE = "recipe"
"""The axis whose values are recipes, each in the place of the base."""


class When(Section):
    """Settings of the cells that fit a condition."""

    condition: dict[str, Any] = Field(alias="if")
    """Axis names with the value (or a list of values) that a cell must have."""
    set: dict[str, Any]
    """Settings, as for every cell."""


class Matrix(Section):
    """A matrix as its file says; `name` is the file's stem."""

    name: str = "matrix"
    """How the matrix is called."""
    base: str = "dynaweb"
    """A shipped recipe or the path of one, relative to the file."""
    description: str = ""
    """What it is for."""
    mode: Literal["grid", "one-at-a-time"] = "grid"
    """`grid`: all combinations. `one-at-a-time`: the first values, and every other value with all others first."""
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    """Seeds of each combination."""
    max_cells: int = Field(default=100, ge=1)
    """More cells than this are refused."""
    measures: tuple[str, ...] = ("main",)
    """Columns of the table: `main`, the name of an arm, or a measure of the world model such as `element_f1`."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings of every cell."""
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    """Name to values."""
    zip: list[dict[str, list[Any]]] = Field(default_factory=list)
    """Groups of axes whose values are taken together."""
    when: list[When] = Field(default_factory=list)
    """Settings that depend on the cell."""
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    """Cells that are left out."""


def shipped_matrices() -> dict[str, Path]:
    """Name and file of every matrix that comes with the package."""
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.toml"))}


def read_matrix(
    source: str | Path,
    *,
    axes: Iterable[str] = (),
    sets: Mapping[str, Any] | None = None,
    seeds: tuple[int, ...] | None = None,
    mode: str | None = None,
    max_cells: int | None = None,
) -> Matrix:
    """A matrix from a shipped name, a TOML file, or a recipe (which then is the base), with what a command line adds.

    `axes` are `NAME=VALUE,VALUE` texts; an axis of the same name is replaced. Raises `ConfigError`.
    """
    data = _source(str(source))
    data["axes"] = {**data.get("axes", {}), **parse_axes(axes)}
    data["set"] = {**by_path(data.get("set", {})), **(sets or {})}
    given = {"seeds": seeds, "mode": mode, "max_cells": max_cells}
    data |= {key: value for key, value in given.items() if value is not None}
    try:
        matrix = Matrix.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"matrix {source}: {_problems(error)}") from error
    check_axes(matrix)
    return matrix


def _source(source: str) -> dict[str, Any]:
    """The `[matrix]` table with its name; of a recipe, a matrix without axes."""
    path = shipped_matrices().get(source, expanded(source))
    if path.is_file():
        whole = read_toml(path)
        table = whole.pop("matrix", None)
        if table is None:
            return {"name": path.stem, "base": str(path)}
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: matrix must be a table [matrix]")
        if whole:
            odd = ", ".join(f"[{name}]" for name in whole)
            raise ConfigError(f"{path}: {odd} is beside [matrix]; all of a matrix is below it, such as [matrix.axes]")
        if "name" in table:
            raise ConfigError(f"{path}: matrix.name is no setting; a matrix is called like its file")
        if isinstance(axes := table.get("axes"), dict) and isinstance(recipes := axes.get(RECIPE), list):
            axes[RECIPE] = [str(path.parent / one) if (path.parent / str(one)).is_file() else one for one in recipes]
        return {**table, "name": path.stem, "base": _base(str(table.get("base", "dynaweb")), path)}
    if source in shipped_recipes():
        return {"name": source, "base": source}
    raise ConfigError(_unknown(source))


def _unknown(source: str) -> str:
    """What is said of a source that is nothing."""
    folders = [RUNS / name for name in (source, f"matrix-{source}") if (RUNS / name / PLAN).is_file()]
    if folders:
        return f"no matrix or recipe is called {source!r}; there is the folder of a matrix: give {folders[0]}"
    known = hint(source, {**shipped_matrices(), **shipped_recipes()})
    return (
        f"no matrix or recipe is called {source!r}; {known}; a file ends in .toml, and a matrix that was run is named "
        f"by its folder, such as {RUNS / 'matrix-smoke'}"
    )


def _base(base: str, path: Path) -> str:
    return base if base in shipped_recipes() else str(path.parent / base)


def parse_axes(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Values by name of all `--axis` texts. Raises `ConfigError`, also for an axis that is given twice."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, values = parse_axis(text)
        if name in found:
            raise ConfigError(f"--axis {text}: axis {name!r} is given twice; list all its values in one --axis")
        found[name] = values
    return found


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """Name and values of `--axis NAME=VALUE,VALUE`. Commas within quotes or brackets do not separate."""
    name, equals, rest = text.partition("=")
    values = [part.strip() for part in _split(rest)]
    if not equals or not name.strip() or not all(values):
        raise ConfigError(f"--axis {text}: write it as NAME=VALUE,VALUE, such as --axis wm=delta,full-state")
    return name.strip(), [toml_value(value) for value in values]


def _split(text: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        depth += (not quote) * ((char in "[{") - (char in "]}"))
        if char == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def check_axes(matrix: Matrix) -> None:
    """Raise `ConfigError` with everything that is wrong with the axes, seeds and conditions of a matrix."""
    names = [*matrix.axes, *(name for group in matrix.zip for name in group)]
    problems = [f"axis {name!r} is there twice" for name in {name for name in names if names.count(name) > 1}]
    for name, values in [*matrix.axes.items(), *(item for group in matrix.zip for item in group.items())]:
        problems += _axis_problems(matrix, name, values)
    for group in matrix.zip:
        lengths = {name: len(values) for name, values in group.items()}
        if len(set(lengths.values())) > 1:
            problems.append(f"a [[matrix.zip]] has axes of different lengths: {lengths}")
    conditions = [*(when.condition for when in matrix.when), *matrix.exclude]
    for name in dict.fromkeys(name for condition in conditions for name in condition):
        if name not in names:
            problems.append(f"a condition names {name!r}, which is no axis; {hint(name, names)}")
    problems += [
        f"seeds {', '.join(map(str, matrix.seeds))} (matrix.seeds, --seeds) have {seed} more than once, which would be "
        "the same run; give each seed once"
        for seed in dict.fromkeys(matrix.seeds)
        if matrix.seeds.count(seed) > 1
    ]
    if problems:
        raise ConfigError("\n  - ".join([f"matrix {matrix.name}:", *problems]))


def _axis_problems(matrix: Matrix, name: str, values: list[Any]) -> Iterable[str]:
    if FLAGS.get(name, name) == "run.seed":
        yield "seeds are no axis: list them in matrix.seeds, or give --seeds"
    if not values:
        yield f"axis {name!r} has no values"
    if name == RECIPE and not all(isinstance(value, str) for value in values):
        yield f"axis {name!r} has recipes as its values: shipped names or TOML files"
    texts = [value_label(value) for value in values]
    if len(set(texts)) < len(texts):
        yield f"axis {name!r} has a value twice: {', '.join(texts)}"
    for value in values:
        if isinstance(value, Mapping) and not (isinstance(value.get(LABEL), str) and len(value) > 1):
            yield f"axis {name!r}: a value that is a table needs a label and settings, not {value!r}"
    paths = {path for value in values for path in settings_of(name, value)}
    if taken := paths & set(matrix.set):
        yield f"{', '.join(sorted(taken))}: set for every cell and by axis {name!r} too; keep one of them"


def settings_of(axis: str, value: Any) -> dict[str, Any]:
    """The settings, by path, that one value of an axis stands for; none for a recipe."""
    if axis == RECIPE:
        return {}
    if isinstance(value, Mapping):
        return by_path({key: inner for key, inner in value.items() if key != LABEL})
    return by_path({axis: value})


def by_path(table: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by path out of a table, which may be nested and may name flags of `dynaweb run`."""
    return {FLAGS.get(key, key): value for key, value in flatten(table)}


def value_label(value: Any) -> str:
    """How a value of an axis is shown and matched."""
    if isinstance(value, Mapping):
        return str(value.get(LABEL, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _problems(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        path = ".".join(["matrix", *(str(part) for part in problem["loc"])])
        if problem["type"] == "extra_forbidden":
            lines.append(f"no setting is called {path!r}; {hint(str(problem['loc'][-1]), Matrix.model_fields)}")
        else:
            lines.append(f"{path} = {problem['input']!r}: {problem['msg']}")
    return "\n  - ".join(["", *lines]) if len(lines) > 1 else lines[0]
