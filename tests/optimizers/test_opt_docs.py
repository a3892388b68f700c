"""docs/optimizers.md names every option of every optimizer with its default, and its examples are valid settings."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from folders import ROOT
from pydantic import BaseModel, ValidationError

from dynaweb.config.optim import TokenWeights
from dynaweb.config.sections import Rl, Section
from dynaweb.plugin.registry import current

PAGE = (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")
NAMES = ("awr", "cispo", "digirl", "gigpo", "grpo", "gspo", "ppo", "reinforce-pp", "rloo", "webrl")


def config(name: str) -> type[BaseModel]:
    return current().find("opt", name).spec.config


def table(name: str) -> dict[str, str]:
    """Option and default of each row of an optimizer's table."""
    section = re.split(r"\n##+ ", PAGE.split(f"\n### `{name}`")[1])[0]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, flags=re.MULTILINE)
    return {option: default.strip().strip("`") for option, default in rows}


def says(text: str, default: Any) -> bool:
    """Whether a cell of the table gives this default."""
    if isinstance(default, bool | str) or default is None:
        return text == str(default).lower()
    return float(text) == default


def test_all_optimizers_of_this_package_are_on_the_page() -> None:
    assert {name for name in current().names("opt") if f"### `{name}`" in PAGE} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_has_every_option_with_its_default(name: str) -> None:
    fields = config(name).model_fields
    found = table(name)
    assert found.keys() == fields.keys()
    for option, text in found.items():
        default = fields[option].default
        assert text == "" if option == "norm_const" else says(text, default), option


def test_examples_are_valid() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.split("## Porting")[1].split("\n| here |")[0], re.DOTALL)
    parsed = [tomllib.loads(block) for block in blocks]
    assert len(parsed) == 2
    for example in parsed:
        settings = dict(example["opt"])
        config(settings.pop("name")).model_validate(settings)
        Rl.model_validate(example.get("rl", {}))


@pytest.mark.parametrize("name", NAMES)
def test_settings_of_optimizers_are_sections_that_share_what_is_common(name: str) -> None:
    """Unknown keys are refused and values frozen as everywhere in a recipe; a constant needs its weight and back."""
    kind = config(name)
    assert issubclass(kind, Section)
    assert ("agg" in kind.model_fields) is issubclass(kind, TokenWeights)
    with pytest.raises(ValidationError, match="clip_hihg"):
        kind.model_validate({"clip_hihg": 0.2})
    if issubclass(kind, TokenWeights):
        assert kind(agg="constant", norm_const=9.0).norm_const == 9.0
        for half in ({"agg": "constant"}, {"agg": "token_mean", "norm_const": 9.0}):
            with pytest.raises(ValidationError, match="give both or neither"):
                kind.model_validate(half)
