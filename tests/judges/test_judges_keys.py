"""What the fit of a judge depends on, and whose weights a judge may use."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from core_kit import TOY_CLASS, PackageMaker, toy_source

from dynaweb.config import keys, resolve
from dynaweb.errors import ConfigError
from dynaweb.pipeline.artifacts import Artifact
from dynaweb.pipeline.context import RunContext
from dynaweb.pipeline.judge import FITTED, judge_key, weights_of
from dynaweb.plugin.registry import current, load
from dynaweb.runs import StageCache
from dynaweb.stages.judge_fit import fit_judge


def _key(tmp_path: Path, *sets: str) -> str:
    """The key of the stage, without running it."""
    ctx = RunContext(resolve("dynaweb-orm", overrides=sets, plugins=current()), current(), StageCache(tmp_path))

    async def stage(name: str, key: str, body: Any, **more: Any) -> Artifact:
        return Artifact(key, tmp_path)

    ctx.stage = stage  # type: ignore[method-assign]
    ctx.keep = lambda *arguments, **named: None  # type: ignore[method-assign]
    return asyncio.run(fit_judge(ctx, [], upstream={})).key


@pytest.mark.parametrize(
    ("setting", "matters"),
    [
        ("reward.threshold=0.9", True),
        ("reward.engine.name=vllm", True),
        ("policy.engine.name=vllm", False),
        ("judge_fit.lr=1", True),
        ("rl.lr=1", False),
        ("model.threads=2", False),
    ],
)
def test_a_fit_depends_on_its_judge_and_the_engine_that_judges(tmp_path: Path, setting: str, matters: bool) -> None:
    assert (_key(tmp_path) != _key(tmp_path, setting)) is matters


def test_the_code_of_a_part_of_a_judge_is_in_the_key(tmp_path: Path, package: PackageMaker) -> None:
    source = toy_source("mine", hook="dynaweb_rewards").replace("toys:", "toys.judge:")
    (package.folder / "toys").mkdir()
    package("toy-package", source, modules={"toys/__init__": "", "toys/judge": TOY_CLASS})
    found = []
    for edit in ("", "# edited"):
        (package.folder / "toys" / "judge.py").write_text(TOY_CLASS + edit, encoding="utf-8")
        keys._source_key.cache_clear()
        loaded = load()
        parts = {"reward.judges": {"mine": {"weight": 1.0}, "self-assess": {"weight": 1.0}}}
        recipe = resolve("dynaweb", overrides=parts, reward="weighted", plugins=loaded)
        found.append(judge_key(RunContext(recipe, loaded, StageCache(tmp_path))))
    assert [set(one) for one in found] == [{"code mine"}] * 2 and found[0] != found[1]


def test_weights_that_were_fitted_for_another_judge_are_refused(tmp_path: Path) -> None:
    (tmp_path / FITTED).write_text(json.dumps({"judge": "theirs"}))
    ctx: Any = SimpleNamespace(models=SimpleNamespace(fitted_judge=tmp_path))
    with pytest.raises(ConfigError, match=r"fitted the judge 'theirs'.*'orm' cannot use"):
        weights_of(ctx, "orm", SimpleNamespace(weights=""))
    assert weights_of(ctx, "theirs", SimpleNamespace(weights="")) == tmp_path
