"""Settings that are lists or tables: a single word is a list of one, and what is neither is refused in plain words."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel
from test_config_misfits import classes

from dynaweb.config import resolve
from dynaweb.config.sections import Section
from dynaweb.errors import ConfigError


def lists() -> list[tuple[type[BaseModel], str]]:
    """Every setting that is a list of any length."""
    found = []
    for model in dict.fromkeys(classes()):
        for name, info in model.model_fields.items():
            if get_origin(info.annotation) is tuple and get_args(info.annotation)[-1] is Ellipsis:
                found.append((model, name))
    return found


def test_every_list_takes_a_single_value() -> None:
    every = lists()
    assert len(every) >= 9 and all(issubclass(model, Section) for model, _ in every)
    for model, name in every:
        kinds = get_args(model.model_fields[name].annotation)
        words = get_args(kinds[0]) if get_origin(kinds[0]) is Literal else ()
        value: Any = words[0] if words else 7 if kinds[0] is int else "one"
        given = {field: "x" for field, info in model.model_fields.items() if info.is_required()}
        taken = getattr(model.model_validate(given | {name: value}), name)
        assert tuple(taken) == (value,), (model, name)


@pytest.mark.parametrize(
    ("setting", "section", "expected"),
    [
        ("run.observers=tensorboard", "run.observers", ("tensorboard",)),
        ("run.observers=tensorboard, trackio", "run.observers", ("tensorboard", "trackio")),
        ("run.observers=", "run.observers", ()),
        ("controls.sft_steps=60", "controls.sft_steps", (60,)),
        ("web.endpoint=http://a:1 http://b:1", "web.endpoint", ("http://a:1", "http://b:1")),
    ],
)
def test_as_people_type_them(setting: str, section: str, expected: tuple[Any, ...]) -> None:
    assert tuple(resolve("smoke", overrides=[setting]).flat()[section]) == expected


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("run.observers={a=1}", 'must be a list such as ["a", "b"]'),
        ("run.observers=true", 'must be a list such as ["a", "b"]'),
        ("replay.perplexity=0.5", "must be a list such as [1.05, 2.0]"),
        ("replay.perplexity=[1.1, 1.2, 1.3]", "must have at most 2 values, not 3"),
        ("run.observer_settings=5", "must be a table such as { key = value }"),
        ("controls.sft_steps=abc", "should be a valid integer"),
    ],
)
def test_what_is_no_list_is_refused_in_words_of_a_recipe(setting: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("smoke", overrides=[setting])
    assert words in str(caught.value) and str(caught.value).startswith(f"--set: {setting.split('=')[0]}")
    assert not re.search(r"tuple|dictionary|None|True", str(caught.value).partition(": must")[2])
