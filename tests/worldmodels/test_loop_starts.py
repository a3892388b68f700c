"""What a run refuses before its first stage, what it runs on instead of dreams, and how it fails."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from stage_kit import SMALL, plan_holds, rows, run, statuses

import dynaweb
from dynaweb.commands import stages as commands
from dynaweb.errors import (
    CheckpointError,
    ConfigError,
    EngineError,
    MissingError,
    TrainingError,
)
from dynaweb.pipeline.context import RunContext


@pytest.fixture(autouse=True)
def _the_plan_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_holds(monkeypatch)


def test_real_pages_are_one_word_away(tmp_path: Path) -> None:
    overrides = [one for one in SMALL if not one.startswith("env.")]
    result = dynaweb.run(
        "dynaweb",
        overrides=[*overrides, "env.driver=static", "rl.updates=2", "controls.sft_steps=[]"],
        env="sites",
        reward="checker",
        out=tmp_path / "real",
    )
    assert [arm["name"] for arm in result.results["arms"]] == ["sft", "dynaweb"]
    found = statuses(tmp_path / "real")
    assert "world-model" not in found and "explore" not in found
    metrics = [row["metrics"] for row in rows(tmp_path / "real", "update") if row["stage"] == "rl"]
    assert all(update["dreamed_steps"] == 0 and update["graded"] == 6 for update in metrics)
    # The checker cannot differ from the check: there is nothing to audit, and the episodes are kept all the same.
    assert "judge" not in found and result.results["judge"] == {}
    assert (tmp_path / "real" / "trajectories" / "eval-dynaweb.jsonl.gz").exists()


def test_the_checker_refuses_dreams_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'checker' cannot score dream episodes.*--env sites"):
        run(tmp_path / "never", reward="checker")
    assert statuses(tmp_path / "never") == {}


def test_what_is_missing_is_told_before_anything_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(MissingError, match="no model 'someone/nothing'"):
        run(tmp_path / "model", "model.path=someone/nothing")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text("{}")
    with pytest.raises(EngineError, match="Unrecognized model"):
        run(tmp_path / "tokenizer", f"model.path={tmp_path / 'bare'}")
    shutil.copy(Path(dynaweb.__file__).parent / "assets" / "tiny" / "config.json", tmp_path / "bare")
    with pytest.raises(CheckpointError, match="cannot be read"):
        run(tmp_path / "tokenizer", f"model.path={tmp_path / 'bare'}")
    assert all(statuses(tmp_path / name) == {} for name in ("model", "tokenizer"))


def test_an_exit_in_the_middle_of_a_run_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a plugin that calls `sys.exit(0)`: the process must not say that all went well."""

    async def leaves(ctx: RunContext) -> Any:
        sys.exit(0)

    monkeypatch.setattr(commands.train, "run", leaves)
    with pytest.raises(TrainingError, match=r"asked the process to exit: sys\.exit\(0\)"):
        run(tmp_path / "left")
    assert json.loads((tmp_path / "left" / "status.json").read_text())["status"] == "failed"
