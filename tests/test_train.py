"""The list of stages: a stage is one function and one line; runs, plans, estimates and commands read the same list."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stage_kit import plan_holds, statuses

import dynaweb
from dynaweb import train
from dynaweb.config import resolve
from dynaweb.errors import ConfigError
from dynaweb.estimate import estimate
from dynaweb.estimate.machine import GIB, Machine
from dynaweb.pipeline.artifacts import Artifact, Artifacts
from dynaweb.pipeline.context import RunContext
from dynaweb.pipeline.keys import stage_key
from dynaweb.plugin.registry import current
from dynaweb.runs import Stage, StageCache, write_json
from dynaweb.train import STAGES, StageSpec, after, artifacts_for, n_stages, stages_of

UNTRAINED = ("sft.steps=0", "rl.updates=0", "controls.sft_steps=[]")
ALONE = ("env.driver=static", "eval.episodes=1", "eval.steps=1", "model.threads=1", *UNTRAINED)
CPU = Machine("CPU of 2 cores", 1, 16 * GIB, 16 * GIB, 1e11)


def context(tmp_path: Path, *sets: str, **flags: Any) -> RunContext:
    return RunContext(resolve("dynaweb", overrides=sets, **flags), current(), StageCache(tmp_path / "cache"))


async def census(ctx: RunContext, demos: Artifact) -> Artifact:
    """A stage that counts the demonstrations."""

    async def body(stage: Stage) -> None:
        write_json(stage.folder / "census.json", {"demonstrations": len(demos.episodes())})

    return await ctx.stage("census", stage_key(ctx, demos=demos), body)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    line = StageSpec("census", after("demos"), lambda ctx, have: census(ctx, have.need("demos")))
    monkeypatch.setattr(train, "STAGES", (*STAGES, line))


def test_a_new_stage_is_one_function_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    flags = {"env": "sites", "reward": "checker"}
    before = n_stages(context(tmp_path, *ALONE, **flags))
    request.getfixturevalue("counted")
    assert n_stages(context(tmp_path, *ALONE, **flags)) == before + 1
    found = estimate(resolve("dynaweb", overrides=ALONE, **flags), CPU)
    assert found is not None and found.unknown == ("census",) and "not in these numbers: census" in str(found)
    plan_holds(monkeypatch)
    monkeypatch.setenv("DYNAWEB_CACHE", str(tmp_path / "cache"))
    for name, status in (("first", "done"), ("second", "cached")):
        dynaweb.run("dynaweb", overrides=ALONE, out=tmp_path / name, **flags)
        assert statuses(tmp_path / name)["census"] == {status}


async def test_its_artifact_is_made_with_what_it_needs_and_nothing_else(tmp_path: Path, counted: None) -> None:
    ctx = context(tmp_path, *ALONE, "data.demos=2", env="sites", reward="checker")
    have = await artifacts_for(ctx, "census")
    # A run of this recipe would do without; a world model or a judge that is fitted alone learns from them.
    assert have.need("census").data("census.json") == {"demonstrations": 2}
    assert have.demos is not None and have.sft is None
    assert {path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()} >= {"census", "demos"}
    assert not (tmp_path / "cache" / "sft").exists()
    again = await artifacts_for(context(tmp_path, *ALONE, "data.demos=2", env="sites", reward="checker"), "census")
    assert again.need("census") == have.need("census")


def test_what_is_not_there_is_said_by_name() -> None:
    one = Artifact("key", Path("x"))
    have = Artifacts().having("sft", one).having("census", one).having("nothing", None)
    assert have.need("sft") is have.need("census") is one and "nothing" not in have.others
    for name in ("demos", "nothing", "phases"):
        with pytest.raises(ConfigError, match=f"this needs the stage '{name}'"):
            have.need(name)


@pytest.mark.parametrize(
    ("sets", "flags", "names"),
    [
        ((), {}, "demos experts sft explore world_model drift rl longer_sft"),
        (("wm_fit.open_loop=0", "controls.filtered_bc=true"), {},
         "demos experts sft explore world_model rl longer_sft filtered_bc"),
        (UNTRAINED, {"env": "sites", "reward": "checker"}, "demos experts sft"),
        (("offline.episodes=4", "controls.sft_steps=[]"), {"env": "sites", "reward": "checker"},
         "demos experts sft offline rl"),
        ((), {"reward": "orm"}, "demos experts sft graded judge_fit explore world_model drift rl longer_sft"),
    ],
)  # fmt: skip
def test_a_recipe_has_the_stages_that_it_asks_for(
    tmp_path: Path, sets: tuple[str, ...], flags: dict[str, str], names: str
) -> None:
    assert [spec.name for spec in stages_of(context(tmp_path, *sets, **flags))] == names.split()


def test_every_artifact_of_a_stage_has_the_name_of_the_stage() -> None:
    assert {spec.name for spec in STAGES} <= Artifacts.__dataclass_fields__.keys()


def test_every_stage_comes_after_all_that_it_is_made_from(tmp_path: Path) -> None:
    for ctx in (context(tmp_path), context(tmp_path, "offline.episodes=4", env="sites", reward="checker")):
        for at, spec in enumerate(STAGES):
            assert set(spec.needs(ctx)) <= {earlier.name for earlier in STAGES[:at]}, spec.name


def test_what_a_recipe_does_not_do_is_not_estimated() -> None:
    dreams = estimate(resolve("dynaweb"), CPU)
    real = estimate(resolve("dynaweb", env="sites", reward="checker"), CPU)
    assert dreams is not None and real is not None
    assert (
        set(dreams.work)
        == {"sft", "explore", "world-model", "rl", "eval"}
        == set(real.work)
        | {
            "explore",
            "world-model",
        }
    )
    assert set(dreams.memory) - set(real.memory) == {"world-model"}
    assert (dreams.unknown, real.unknown) == (("drift", "longer-sft"), ("longer-sft",))
    played = replace(dreams.work["eval"])
    untrained = estimate(resolve("dynaweb", overrides=UNTRAINED), CPU)
    assert untrained is not None and untrained.work["eval"].read * 3 == played.read
    assert "rl" not in untrained.memory and "rl" not in untrained.work


def test_the_list_of_stages_is_read_without_anything_heavy() -> None:
    """Plans and help need it."""
    code = "import sys, dynaweb.train; print(*{'torch', 'numpy', 'transformers', 'playwright'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
