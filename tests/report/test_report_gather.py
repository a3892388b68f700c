from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from report_fakes import KINDS, episode

from dynaweb.cli.view import report
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import CheckpointError
from dynaweb.report import build_report, closing_json, closing_text, gather
from dynaweb.report.gather import RunResult, Sampler
from dynaweb.report.html import render
from dynaweb.report.outcome import outcome
from dynaweb.types import EpisodeFacts, Trajectory

OUTCOMES = {"sft": ["success", "loop", "answer", "loop"], "dynaweb": ["success", "success", "answer", "success"]}


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder as a run leaves it, without `summary.json`."""
    run = tmp_path / "dynaweb-0-1"
    (run / "trajectories").mkdir(parents=True)
    settings = {"run": {"seed": 3}, "eval": {"split": "test"}, "wm": {"name": "delta"}}
    write(run / "recipe.json", {"description": "a trial", "settings": settings, "origins": {"run.seed": "--set"}})
    write(run / "status.json", {"status": "done"})
    write(run / "seeds.json", {"run": 3})
    write(run / "plugins.json", [{"kind": "wm", "name": "delta", "package": "dynaweb", "version": "0.1.0"}])
    write(run / "versions.json", {"python": "3.11.9"})
    for arm, kinds in OUTCOMES.items():
        played = [episode(number, kind) for number, kind in enumerate(kinds)]
        TrajectoryStore(run / "trajectories" / f"eval-{arm}.jsonl.gz").append(played)
    dreams = [episode(number, KINDS[number % 5], "dream") for number in range(30)]
    TrajectoryStore(run / "trajectories" / "dreams.jsonl.gz").append(dreams)
    lines = [json.dumps(row) for row in metrics()]
    (run / "metrics.jsonl").write_text("\n".join(lines) + '\n{"event": "upd', encoding="utf-8")
    return run


def metrics() -> list[dict[str, Any]]:
    cost = {"metrics": {"tokens_generated": 10.0, "browser_steps": 4.0}, "time.seconds": 2.5}
    rows: list[dict[str, Any]] = [
        {"event": "stage", "name": "sft", "key": "aa", "time.status": "cached", "metrics": {}, "time.seconds": 9.0}
    ]
    for at in range(4):
        rows.append({"event": "update", "stage": "rl", "index": at, "metrics": {"reward": at / 4, "kl": None}})
    for arm, kinds in OUTCOMES.items():
        successes = [float(kind == "success") for kind in kinds]
        rows.append({"event": "eval", "arm": arm, "split": "validation", "successes": [0.0]})
        rows.append({"event": "eval", "arm": arm, "split": "test", "successes": successes})
        rows.append({"event": "eval", "arm": f"judge of {arm}", "split": "test", "successes": [1.0] * 4})
        memory = {"time.peak_memory_mib": 100.0 + len(arm)}
        rows.append({"event": "stage", "name": "eval", "key": arm, "time.status": "done"} | cost | memory)
    return [*rows, {"event": "run_end", "status": "done", "time.seconds": 61.0}]


def test_a_run_folder_becomes_a_report(folder: Path) -> None:
    path = build_report(folder)
    assert path == folder / "report.html"
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "DynaWeb succeeds on 75.0 %" in text
    assert "of 4 held-out episodes" in text
    assert not list(folder.glob(".*tmp"))


def test_arms_come_from_the_evaluations_of_the_recipes_split(folder: Path) -> None:
    data = gather(folder)
    assert [(arm.name, arm.label, arm.role, arm.outcomes) for arm in data.arms] == [
        ("sft", "SFT", "sft", ((1.0, 0.0, 0.0, 0.0),)),
        ("dynaweb", "DynaWeb", "main", ((1.0, 1.0, 0.0, 1.0),)),
    ]
    assert (data.title, data.subtitle, data.status) == ("dynaweb-0-1", "a trial", "done")
    assert (data.seconds, data.seed) == (61.0, 3)
    assert [(item.path, item.value, item.origin) for item in data.settings][1] == ("run.seed", 3, "--set")


def test_stages_of_one_name_are_added_up(folder: Path) -> None:
    sft, evaluation = gather(folder).stages
    assert (sft.name, sft.status, sft.key, sft.cost) == ("sft", "cached", "aa", {"seconds": 9.0})
    assert (evaluation.status, evaluation.detail) == ("done", "2 parts")
    assert evaluation.cost == {"tokens_generated": 20.0, "browser_steps": 8.0, "seconds": 5.0, "peak_memory_mib": 107.0}


def test_curves_failures_and_audits(folder: Path) -> None:
    data = gather(folder)
    assert {(curve.metric, curve.points) for curve in data.curves} == {
        ("reward", ((1, 0.0), (2, 0.25), (3, 0.5), (4, 0.75))),
        ("kl", ((1, None), (2, None), (3, None), (4, None))),
    }
    assert data.failures["sft"] == {"did not stop in time": 2, "wrong answer": 1}
    assert list(data.failures) == ["sft", "dynaweb", "dreams"]
    assert data.episodes == {"dreams": 30, "dynaweb": 4, "sft": 4}
    audits = {audit.label: audit for audit in data.audits}
    assert set(audits) == {"SFT", "DynaWeb"}
    # Two of SFT's failures did not stop in time: the judge was not asked about them.
    assert (audits["SFT"].false_positive.n, audits["SFT"].failed) == (1, 3)
    assert (audits["DynaWeb"].false_negative.n, audits["DynaWeb"].solved) == (3, 3)


def test_a_sample_holds_successes_and_failures_or_everything(folder: Path) -> None:
    data = gather(folder, each=4)
    dreams = [sample.trajectory.reward for sample in data.samples if sample.arm == "dreams"]
    assert sorted(value or 0.0 for value in dreams) == [0.0, 0.0, 1.0, 1.0]
    assert data.total == 38
    assert len(gather(folder, each=None).samples) == 38


def test_trajectories_come_from_the_whole_run(tmp_path: Path, folder: Path) -> None:
    """Of 40 updates the first, the last and some between, of every outcome; and how to see all."""
    played = [
        replace(episode(number, ("success", "loop")[number % 2], "dream"), facts=EpisodeFacts(update=number // 4))
        for number in range(160)
    ]
    path = folder / "trajectories" / "dreams.jsonl.gz"
    path.unlink()
    TrajectoryStore(path).append(played)
    data = gather(folder, each=8)
    dreams = [(sample.update, sample.trajectory.reward) for sample in data.samples if sample.arm == "dreams"]
    assert len(dreams) == 8
    for reward in (0.0, 1.0):
        updates = [update for update, found in dreams if found == reward]
        assert updates == sorted(updates)
        assert updates[0] == 1 and updates[-1] == 40
        assert all(8 <= after - before <= 18 for before, after in pairwise(updates))
    html = render(data)
    assert "16 of 168 trajectories" in html
    assert f"dynaweb report --all {folder}" in html
    assert "--all" not in render(gather(folder, each=None)).split("<script")[0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 50, 1001])
@pytest.mark.parametrize("each", [1, 2, 5, 8])
def test_a_spread_is_even_whatever_the_length(count: int, each: int) -> None:
    spread = Sampler(each)
    one = episode(0, "success")
    for at in range(count):
        spread.add(one, "success", at)
    chosen = [update for _, update in spread.chosen()]
    assert len(chosen) == min(count, max(1, each // 2))
    assert chosen == sorted(set(chosen))
    if len(chosen) > 1:
        assert (chosen[0], chosen[-1]) == (0, count - 1)
        gaps = [after - before for before, after in pairwise(chosen)]
        assert max(gaps) <= 2 * min(gaps) + 2


def test_rollouts_on_real_pages_are_called_so(folder: Path) -> None:
    path = folder / "trajectories" / "dreams.jsonl.gz"
    path.unlink()
    TrajectoryStore(path).append([episode(number, "success") for number in range(3)])
    data = gather(folder)
    assert data.episodes == {"sft": 4, "dynaweb": 4, "rollouts": 3}
    assert "rollouts on real pages 3" in closing_text(data) and "dreams" not in closing_text(data)
    path.rename(path.with_name("rollouts.jsonl.gz"))
    assert gather(folder).episodes == data.episodes


def test_episodes_that_could_not_be_graded_are_no_failures(folder: Path) -> None:
    path = folder / "trajectories" / "eval-sft.jsonl.gz"
    TrajectoryStore(path).append([episode(9, "infrastructure")])
    section = render(gather(folder)).split("<h2>Failures by kind")[1].split("</section>")[0]
    failed, ungraded = section.split("Not graded")
    assert "infrastructure failed" in ungraded and "did not stop in time" in failed
    assert "infrastructure" not in failed


def test_the_summary_says_what_files_cannot(folder: Path) -> None:
    names = ("exact", "element_f1", "next_action")
    probes = [dict(zip(names, values, strict=True)) for values in ((1.0, 0.5, None), (0.0, 0.9, 1.0))]
    arms = [{"name": "a", "role": "main", "outcomes": [[1.0, None], [0.0, 1.0]], "note": "why"}]
    drift = [
        [{"element_f1": 0.8, "alive": 1.0}, {"element_f1": 0.6, "alive": 1.0}],
        [{"element_f1": 0.0, "alive": 0.0}],
    ]
    told = {"prerequisites": ["a judge"], "probes": probes, "drift": drift, "episodes_are": "episodes"}
    write(folder / "summary.json", {"arms": arms, **told})
    data = gather(folder)
    assert (data.arms[0].label, data.arms[0].success.n, data.arms[0].success.missing) == ("a", 3, 1)
    assert (data.prerequisites, data.episodes_are) == (("a judge",), "episodes")
    assert {measure.label: (measure.estimate.value, measure.estimate.n) for measure in data.fidelity} == {
        "Exact": (0.5, 2),
        "Element F1": (0.7, 2),
        "Next action": (1.0, 1),
    }
    assert all(measure.meaning for measure in data.fidelity)
    found = [(round(step["element_f1"].value or 0.0, 6), step["alive"].n) for step in data.drift]
    assert found == [(0.7, 2), (0.0, 1)]
    assert "Open loop, by step of the dream (n = 2, 1)" in render(data)


def test_without_its_list_of_seeds_a_run_has_the_seed_of_its_recipe(folder: Path) -> None:
    """Else runs of several seeds would pass for one, and the last of them would count alone."""
    (folder / "seeds.json").unlink()
    assert gather(folder).seed == 3


def test_a_run_that_was_killed_has_a_report_of_what_there_is(folder: Path) -> None:
    for name in ("plugins.json", "versions.json", "seeds.json", "recipe.json", "metrics.jsonl"):
        (folder / name).unlink()
    write(folder / "status.json", {"status": "running"})
    dreams = folder / "trajectories" / "dreams.jsonl.gz"
    TrajectoryStore(dreams).append([episode(99, "loop", "dream")])
    dreams.write_bytes(dreams.read_bytes()[:-9])
    data = gather(folder)
    assert (data.status, data.arms, data.stages, data.episodes["dreams"]) == ("running", (), (), 30)
    assert "Result</h2>" not in build_report(folder).read_text(encoding="utf-8")


def test_what_is_no_run_folder_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a run folder: it has no status\.json"):
        build_report(tmp_path)
    (folder / "metrics.jsonl").write_text("{broken\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged"):
        build_report(folder)
    (folder / "recipe.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"recipe\.json is damaged"):
        build_report(folder)


def test_the_report_command_reads_every_trajectory_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[Trajectory] = []

    def counted(trajectory: Trajectory) -> str:
        read.append(trajectory)
        return outcome(trajectory)

    # By `sys.modules`, since the package's `gather` is the function.
    monkeypatch.setattr(sys.modules["dynaweb.report.gather"], "outcome", counted)
    report(folder)
    assert len(read) == 38
    assert "75.0 [30.1, 95.4]" in capsys.readouterr().out
    assert "DynaWeb succeeds on 75.0 %" in (folder / "report.html").read_text(encoding="utf-8")
    result = RunResult(folder, folder / "report.html")
    assert str(result) == repr(result) == result.text and len(read) == 38, "its end needs no trajectory"
    assert result.full == result.full != result.text and len(read) == 2 * 38


def test_closing_text_and_json_agree(folder: Path) -> None:
    data = gather(folder)
    text, plain = closing_text(data, report=folder / "report.html"), closing_json(data)
    main = plain["arms"][1]
    assert (main["success"]["value"], main["success"]["n"]) == (0.75, 4)
    assert (main["against_reference"]["value"], main["against_reference"]["gained"]) == (0.5, 2)
    assert plain["reference"] == "sft"
    assert "75.0 [30.1, 95.4]" in text
    assert f"report: {folder / 'report.html'}" in text
    assert "dreams 30" in text
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


@pytest.mark.parametrize("wrong", [["a"], [[1.0]], [{}]])
def test_outcomes_that_are_no_numbers_are_damage(wrong: list[object], folder: Path) -> None:
    """Also those that are read only where there is no summary; else statistics would stumble over them later."""
    metrics = folder / "metrics.jsonl"
    row = {"event": "eval", "arm": "sft", "split": "test", "successes": wrong}
    metrics.write_text(json.dumps(row) + "\n" + metrics.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged \(it does not hold"):
        gather(folder)
    write(folder / "summary.json", {"arms": [{"name": "sft", "outcomes": [wrong]}]})
    with pytest.raises(CheckpointError, match=r"summary\.json is damaged"):
        gather(folder)


ODD: tuple[Any, ...] = (None, True, -1, 1e308, "x", [], {}, [[]], {"a": {"b": 1}})


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a document with every key or index of it."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for at in keys:
        yield value, at
        yield from places(value[at])


@pytest.mark.parametrize("name", ["plugins.json", "versions.json", "seeds.json", "recipe.json", "summary.json"])
def test_a_document_with_another_kind_of_value_is_shown_or_named(name: str, folder: Path) -> None:
    """Of a run without checksums, where nothing else tells that it is damaged."""
    arms = [{"name": "sft", "label": "SFT", "role": "sft", "note": "", "outcomes": [[1.0, 0.0]]}]
    more = {"prerequisites": ["Six."], "probes": [{"url": 1.0}], "drift": [[{"url": 1.0}]], "browser_sample": "None."}
    write(folder / "summary.json", {"arms": arms, "episodes_are": "episodes", **more})
    document = json.loads((folder / name).read_text())
    for container, at in list(places(document)):
        kept = container[at]
        for odd in ODD:
            container[at] = odd
            write(folder / name, document)
            try:
                page = render(gather(folder, episodes=False))
            except CheckpointError as error:
                assert name in str(error)
            else:
                assert "</html>" in page
        container[at] = kept
