"""Every baseline is a recipe that resolves, is documented, and is run by the nightly script; the shortest run here."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from folders import ROOT

from dynaweb.config import resolve
from dynaweb.config.layers import shipped_recipes
from dynaweb.plugin.registry import current

SCRIPT = ROOT / "scripts" / "baselines.py"
KIT = runpy.run_path(str(SCRIPT))
SIZES = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8").partition("## Recipes")[2].partition("\n## ")[0]
PAGE = (ROOT / "docs" / "baselines.md").read_text(encoding="utf-8")


def test_the_script_and_the_page_have_every_shipped_recipe() -> None:
    sizes = set(re.findall(r"^\| `([\w-]+)` \|", SIZES, flags=re.MULTILINE))
    assert sizes >= {"tiny", "paper-8xh100"}
    shipped = set(shipped_recipes()) - {"smoke"} - sizes
    assert set(KIT["RECIPES"]) == shipped
    assert set(re.findall(r"^\| `([\w-]+)` \|", PAGE, flags=re.MULTILINE)) == shipped


@pytest.mark.parametrize("name", KIT["RECIPES"])
def test_a_baseline_differs_from_the_default_in_its_method_only(name: str) -> None:
    """Same model, demonstrations, rollouts and evaluation; small counts of the script are valid settings of it."""
    recipe, default = resolve(name), resolve("dynaweb")
    for section in ("run", "model", "web", "data", "eval"):
        assert recipe.section(section) == default.section(section), section
    rl = recipe.rl
    total = rl.updates * rl.tasks * rl.n * recipe.phases.count
    planned = default.rl.updates * default.rl.tasks * default.rl.n
    assert total == 0 or 0.98 * planned <= total <= 1.02 * planned
    assert current().find("reward", recipe.reward.name).spec.capabilities >= (
        {"real"} if recipe.env.name == "sites" else {"dream"}
    )
    for driver in ("static", "chromium"):
        small = resolve(name, overrides=KIT["settings"](name, driver))
        assert (small.rl.updates == 0) == (rl.updates == 0)
        assert small.env.config.model_dump().get("driver", small.env.config.model_dump().get("task_settings")) in (
            driver,
            {"driver": driver},
        )


SHORT = (
    "eval.episodes=4",
    "eval.steps=4",
    "model.threads=1",
    "sft.batch=4",
    "data.demos=6",
    "controls.sft_validation=1",
)


@pytest.mark.slow
def test_the_three_shortest_run_to_their_end_from_the_command_line(tmp_path: Path) -> None:
    sets = [word for setting in SHORT for word in ("--set", setting)]
    command = [sys.executable, str(SCRIPT), "--only", "prompted,sft,filtered-bc", "--driver", "static", *sets]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["prompted", "sft", "filtered-bc"]
    assert all(re.search(r" s  [01]\.\d{3} \[.*\] n=4  \d+ real steps", line) for line in lines)


def test_a_recipe_that_fails_is_said_and_fails_the_script(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--only", "prompted", "--driver", "static", "--set", "eval.episodes=0"]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "FAILED" in done.stdout and "eval.episodes" in done.stdout
