"""Comparisons of runs: groups by seed, pairing by episode, and differences that are only called so when they are."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from compare_kit import outcomes, run
from core_kit import Cli

from dynaweb.compare import Comparison, Versus, compare, read_run
from dynaweb.compare.comparing import versus_of
from dynaweb.compare.records import named
from dynaweb.errors import CheckpointError, ConfigError
from dynaweb.stats import Estimate, wilson


def made(tmp_path: Path, rates: Sequence[float], seeds: Sequence[int] = (0, 1)) -> Comparison:
    folders = [
        run(tmp_path / f"{at}-{seed}", seed, outcomes(seed, rate), lr=at)
        for at, rate in enumerate(rates)
        for seed in seeds
    ]
    return compare(folders)


def test_runs_that_differ_in_their_seed_are_one_group(tmp_path: Path) -> None:
    found = made(tmp_path, [0.5, 0.7])
    assert [[item.seed for item in group.runs] for group in found.groups] == [[0, 1], [0, 1]]
    assert found.differences == {"rl.lr": [0, 1]}
    assert list(found.arms) == ["sft", "dynaweb"]


def test_a_time_budget_makes_another_group(tmp_path: Path) -> None:
    folders = [run(tmp_path / f"{at}", 0, outcomes(0, 0.5), budget=budget) for at, budget in enumerate((0.0, 5.0))]
    assert compare(folders).differences == {"run.time_budget": [0.0, 5.0]}


def test_a_measure_over_seeds_is_taken_over_the_questions_of_all(tmp_path: Path) -> None:
    found = []
    for number, values in enumerate(((1.0, 1.0), (1.0, 0.98))):
        folders = [run(tmp_path / f"{number}-{seed}", seed, outcomes(seed, 0.5)) for seed in (0, 1)]
        for folder, value in zip(folders, values, strict=True):
            summary = json.loads((folder / "summary.json").read_text())
            probes = [{"element_f1": value, "url": 0.0}] * 40
            (folder / "summary.json").write_text(json.dumps(summary | {"probes": probes}))
        found.append(compare(folders).groups[0])
    perfect, nearly = (group.measure("element_f1") for group in found)
    assert perfect == Estimate(1.0, None, None, 80)
    # Two seeds that differ: much wider than 80 questions alone would have it.
    assert nearly is not None and (nearly.value, nearly.high, nearly.n) == (0.99, 1.0, 80)
    assert nearly.low is not None and nearly.low < 0.9
    assert found[0].measure("url") == wilson(0, 80)


def test_every_pair_of_groups_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dynaweb.compare import comparing

    compared: list[int] = []

    def counted(*arguments: Any) -> Versus:
        compared.append(arguments[-1])
        return versus_of(*arguments)

    monkeypatch.setattr(comparing, "versus_of", counted)
    plain = made(tmp_path, [0.5, 0.6, 0.7, 0.8], seeds=[0]).plain()
    assert compared == [3] * 6, "three groups against the first, in two arms"
    assert [list(row) for row in plain["arms"]["dynaweb"]][:2] == [
        ["group", "success"],
        ["group", "success", "against_first"],
    ]


def test_a_real_difference_is_shown_with_its_interval(tmp_path: Path) -> None:
    found = made(tmp_path, [0.5, 0.7])
    first, second = found.against_first("dynaweb")
    assert first is None and second is not None and second.paired is not None
    assert second.is_significant
    assert second.paired.difference.n == 400 and second.paired.seeds == 2
    assert 0.1 < (second.paired.difference.value or 0) < 0.3
    assert (second.paired.lost, second.paired.p < 1e-6) == (0, True)
    text = str(found)
    assert "rl.lr" in text and "* interval without 0" in text and " * " in text


def test_no_difference_is_called_one(tmp_path: Path) -> None:
    """Two groups of equal skill on other draws of the same tasks: nothing is marked."""
    rng = random.Random(5)
    folders = []
    for at in range(2):
        for seed in range(3):
            found = {f"t{k}": float(rng.random() < 0.6) for k in range(80)}
            folders.append(run(tmp_path / f"{at}-{seed}", seed, found, lr=at))
    (_, second) = compare(folders).against_first("dynaweb")
    assert second is not None and not second.is_significant


def test_many_comparisons_need_a_stricter_level(tmp_path: Path) -> None:
    """A gain that one comparison shows narrowly is not shown among many."""
    tasks = [f"t{at}" for at in range(100)]
    base: dict[str, float | None] = {task: float(at < 50) for at, task in enumerate(tasks)}
    better: dict[str, float | None] = {task: float(at < 58 and at != 0) for at, task in enumerate(tasks)}
    two = [run(tmp_path / "a", 0, base, lr=0), run(tmp_path / "b", 0, better, lr=1)]
    (_, alone) = compare(two).against_first("dynaweb")
    assert alone is not None and alone.paired is not None and alone.is_significant
    many = [*two, *(run(tmp_path / f"c{at}", 0, base, lr=2 + at) for at in range(20))]
    among = compare(many).against_first("dynaweb")[1]
    assert among is not None and among.paired == alone.paired
    assert not among.is_significant and among.comparisons == 21


def test_only_episodes_that_both_played_are_paired(tmp_path: Path) -> None:
    first: dict[str, float | None] = {"a": 1.0, "b": 0.0, "c": 0.0, "d": None}
    second: dict[str, float | None] = {"c": 1.0, "b": 0.0, "x": 1.0, "a": 1.0, "d": 1.0}
    found = compare([run(tmp_path / "1", 0, first, lr=0), run(tmp_path / "2", 0, second, lr=1)])
    against = found.against_first("dynaweb")[1]
    assert against is not None and against.paired is not None
    assert (against.paired.difference.n, against.paired.gained, against.paired.lost) == (3, 1, 0)
    apart = compare([run(tmp_path / "3", 0, first, lr=0), run(tmp_path / "4", 1, second, lr=1)])
    (_, none) = apart.against_first("dynaweb")
    assert none is not None and none.paired is None
    assert "no episode in common" in str(apart)
    assert apart.plain()["arms"]["dynaweb"][1]["against_first"] is None


def test_tasks_that_were_played_twice_and_unknown_ones() -> None:
    assert named([1.0, 0.0, None], ["a", "a", "b"]) == {"a": 1.0, "a #2": 0.0, "b": None}
    assert named([1.0, 0.0], ["a"]) == {"episode 0": 1.0, "episode 1": 0.0}


def test_the_judges_errors_are_pooled(tmp_path: Path) -> None:
    group = made(tmp_path, [0.5, 0.7]).groups[0]
    judged = group.judged("dynaweb", "false positives")
    assert judged is not None and (judged.value, judged.n) == (0.25, 16)
    assert group.judged("sft", "false positives") is None


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    folders = [str(run(tmp_path / name, 0, outcomes(0, 0.5), lr=at)) for at, name in enumerate("ab")]
    done = cli("compare", *folders)
    assert done.returncode == 0, done.stderr
    assert "no difference" not in done.stdout and "rl.lr" in done.stdout
    data = json.loads(cli("compare", *folders, "--json").stdout)
    assert data["differences"] == {"rl.lr": [0, 1]}
    against = data["arms"]["dynaweb"][1]["against_first"]
    assert (against["value"], against["n"], against["shown"]) == (0.0, 200, False)
    done = cli("compare", folders[0])
    assert (done.returncode, done.stderr) == (2, "error: give at least two run folders to compare\n")
    done = cli("compare", folders[0], str(tmp_path))
    assert done.returncode == 1
    assert "is not a run folder" in done.stderr


def test_runs_without_an_arm_in_common_say_so(tmp_path: Path) -> None:
    folders = [run(tmp_path / name, 0, outcomes(0, 0.5), lr=at) for at, name in enumerate("ab")]
    summary = json.loads((folders[1] / "summary.json").read_text())
    for arm in summary["arms"]:
        arm["name"] = f"other-{arm['name']}"
    (folders[1] / "summary.json").write_text(json.dumps(summary))
    text = str(compare(folders)).replace("\n", " ")
    assert "no arm is in all groups, so no success is compared" in text
    assert "A has sft, dynaweb; B has other-sft, other-dynaweb" in text
    assert "no arm is in all groups" not in str(compare([folders[0], run(tmp_path / "c", 0, outcomes(0, 0.5), lr=3)]))


def test_a_copy_of_a_run_counts_once_everywhere(tmp_path: Path) -> None:
    runs = [run(tmp_path / f"a{seed}", seed, outcomes(seed, 0.5)) for seed in (0, 1)]
    other = run(tmp_path / "b", 0, outcomes(0, 0.7), lr=1)
    copies = [Path(shutil.copytree(folder, f"{folder}-copy")) for folder in (*runs, other)]
    once, again = compare([*runs, other]), compare([*runs, other, *copies])
    assert [run.folder for run in again.groups[0].runs] == copies[:2], "the last one given counts"
    plain, plainly = once.plain(), again.plain()
    assert plainly["arms"]["dynaweb"][1] == plain["arms"]["dynaweb"][1]
    assert plainly["world_model"] == plain["world_model"]
    assert [group["copies"] for group in plainly["groups"]] == [list(map(str, runs)), [str(other)]]
    assert "\nalso".join(str(again).split("\nalso")[1:]) == "\nalso".join(str(once).split("\nalso")[1:]) != ""
    for name in ("real_steps", "tokens_generated", "seconds"):
        assert again.groups[0].cost(name) == once.groups[0].cost(name)
    assert "have the same settings and seed" not in str(once)
    assert f"left out, since another run here has the same settings and seed: {runs[0]}, {runs[1]}" in str(again)


def test_the_same_folder_twice_is_an_error_and_copies_alone_are_no_comparison(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", 0, outcomes(0, 0.5))
    (tmp_path / "link").symlink_to(folder)
    for second in (folder, tmp_path / "x" / ".." / "a", tmp_path / "link"):
        with pytest.raises(ConfigError, match="more than once"):
            compare([folder, run(tmp_path / "b" / second.name, 0, outcomes(0, 0.5), lr=1), second])
        shutil.rmtree(tmp_path / "b")
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    assert "one run: the others have the same settings and seed" in str(compare([folder, copy]))


def test_settings_stand_in_one_order_whoever_has_them(tmp_path: Path) -> None:
    first = run(tmp_path / "a", 0, outcomes(0, 0.5), lr=0, updates=1)
    second = run(tmp_path / "b", 0, outcomes(0, 0.5), kl=0.1, lr=1, zeta=2)
    found = compare([first, second]).differences
    assert list(found) == ["rl.kl", "rl.lr", "rl.updates", "rl.zeta"]


def test_controls_name_a_group_only_where_nothing_else_does(tmp_path: Path) -> None:
    def labels(name: str, *settings: tuple[int, bool]) -> list[str]:
        folders = []
        for at, (updates, control) in enumerate(settings):
            folder = run(tmp_path / f"{name}{at}", 0, outcomes(0, 0.5, 10), updates=updates)
            recipe = json.loads((folder / "recipe.json").read_text())
            recipe["settings"]["controls"] = {"filtered_bc": control}
            (folder / "recipe.json").write_text(json.dumps(recipe))
            folders.append(folder)
        return [group.label for group in compare(folders).groups]

    assert labels("a", (40, True), (100, False)) == ["rl.updates=40", "rl.updates=100"]
    assert labels("b", (40, True), (40, False)) == ["controls.filtered_bc=true", "controls.filtered_bc=false"]


def test_a_run_without_an_evaluation(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", 0, outcomes(0, 0.5))
    (folder / "summary.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no evaluated arm.*--resume"):
        read_run(folder)
    with pytest.raises(ConfigError, match="at least two"):
        compare([folder])
