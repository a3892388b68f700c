"""Numbers that no setting may be, asked of every setting of every section and of every plugin that comes along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

import pytest
from pydantic import BaseModel, ValidationError

from dynaweb.config import resolve
from dynaweb.config.recipe import SECTIONS
from dynaweb.config.server import Server
from dynaweb.config.validate import misfits, placed
from dynaweb.errors import ConfigError
from dynaweb.plugin import registry as plugins


def kinds(annotation: Any) -> set[Any]:
    return {annotation} | {found for inner in get_args(annotation) for found in kinds(inner)}


def classes() -> Iterator[type[BaseModel]]:
    yield from (*SECTIONS.values(), Server)
    for plugin in plugins.current().offers.values():
        if plugin.origin.package == "dynaweb":
            yield plugin.spec.config


def fields(wanted: Any) -> list[tuple[type[BaseModel], str]]:
    """Every single-valued setting that holds such a number."""
    found = []
    for model in dict.fromkeys(classes()):
        for name, info in model.model_fields.items():
            if wanted in kinds(info.annotation) and not any("tuple" in repr(kind) for kind in kinds(info.annotation)):
                found.append((model, name))
    return found


def test_no_float_is_infinite_or_nan() -> None:
    every = fields(float)
    assert len(every) > 60
    taken = []
    for model, name in every:
        for value in (float("inf"), float("-inf"), float("nan"), "inf"):
            try:
                model.model_validate({name: value})
            except ValidationError as error:
                assert any(problem["loc"][0] == name for problem in error.errors()), (model, name)
            else:
                taken.append((model.__name__, name, value))
    assert not taken


def test_no_number_is_true_or_false() -> None:
    every = [*fields(float), *fields(int)]
    assert len(every) > 120
    free = [(model, name) for model, name in every if bool not in kinds(model.model_fields[name].annotation)]
    assert [(model, name) for model, name in free if [path for path, _ in misfits(model, {name: True})] != [name]] == []


def test_no_sampling_temperature_is_nearly_nothing() -> None:
    every = [(m, n) for m, n in fields(float) if n == "temperature" or n.endswith("_temperature")]
    assert len(every) >= 8
    for model, name in every:
        for value in (1e-300, 1e-3):
            with pytest.raises(ValidationError, match=r"0\.01"):
                model.model_validate({name: value})
        assert getattr(model.model_validate({name: 0.01}), name) == 0.01


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("dream.horizon=nan", "dream.horizon = nan"),
        ("dream.horizon=0", "dream.horizon = 0"),
        ("dream.horizon=true", "dream.horizon = true"),
        ("replay.perplexity=[1.1, inf]", "replay.perplexity.1 = inf"),
        ("phases.server.timeout=nan", "phases.server.timeout = nan"),
        ("controls.sft_steps=[-1]", "controls.sft_steps = [-1]: -1 is less"),
        ("controls.sft_steps=[0]", "controls.sft_steps = [0]: 0 is less"),
        ("controls.sft_steps=[3, 3]", "controls.sft_steps = [3, 3]: 3 is there more than once"),
        ("rl.updates=true", "rl.updates = true"),
        ("rl.lr=inf", "rl.lr = inf"),
        ("opt.clip_low=nan", "opt.clip_low = nan"),
        *((f"{name}={'1' * 400}", f"{name} = 111") for name in ("rl.updates", "run.seed", "sft.lr", "opt.clip_low")),
        (f"rl.updates={'1' * 5000}", "rl.updates = "),
        (f"rl.updates='{'1' * 400}'", "rl.updates = '111"),
        (f"rl.lr=-{'1' * 400}", "rl.lr = -111"),
        (f"controls.sft_steps=[1, {'9' * 19}]", "controls.sft_steps = [1, 999"),
        ("rl.lr=-0.5", "rl.lr = -0.5"),
    ],
)
def test_one_sentence_names_the_setting_as_it_is_written(setting: str, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(overrides=[setting])
    assert str(caught.value).startswith(f"--set: {path}")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_long_texts_are_no_numbers() -> None:
    assert resolve(overrides=[f"data.demos='{'7' * 30}'"]).data.demos == "7" * 30


def test_truth_values_stay_where_they_are_meant() -> None:
    assert resolve(overrides=["dream.invalid_ends=false"]).dream.invalid_ends is False
    assert resolve(overrides=["explore.temperature=0"]).explore.temperature == 0


class Inner(BaseModel):
    """Settings within settings."""

    on: bool = False


class Outer(BaseModel):
    """Fields of several kinds."""

    either: int | Inner = 0
    several: dict[str, Inner | float] = {}
    off: int | Literal[False] = 0
    text: int | str = 0


def test_a_number_beside_what_may_be_true_or_false_is_not_only_a_number() -> None:
    given = {"either": {"on": True}, "several": {"a": {"on": True}}, "off": False, "text": True}
    assert [path for path, _ in misfits(Outer, given)] == ["text"]


def test_marks_of_unions_are_no_part_of_a_path() -> None:
    assert placed(("horizon", "constrained-int"), {"horizon": 0}) == ["horizon"]
    assert placed(("steps", 1, "int"), {"steps": [1, "x"]}) == ["steps", "1"]
    assert placed((), {}) == []
