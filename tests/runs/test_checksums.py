"""Checksums of a finished run: whatever happens to a record, it is named, and no number is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from matrix_kit import Fakes, plan
from report_fakes import episode

from dynaweb import api
from dynaweb.compare import compare
from dynaweb.config import resolve
from dynaweb.data.demonstrations import read_demonstrations
from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import CheckpointError
from dynaweb.matrix.results import results
from dynaweb.report import build_report, gather
from dynaweb.runs import RunFolder, open_run, write_json
from dynaweb.runs.checksums import CHECKSUMS, STATUS, damaged_records, fits_sum, read_summed, with_sum
from dynaweb.serve.site import Site
from dynaweb.stages.judge_fit import read_graded

Damage = Callable[[Path], object]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run with two arms, some metrics and episodes."""
    folder = open_run(resolve("smoke"), out=tmp_path / "run")
    folder.begin()
    arms = [
        {"name": name, "label": name, "role": role, "outcomes": [[1.0, 0.0, 1.0]]}
        for name, role in (("sft", "sft"), ("dynaweb", "main"))
    ]
    write_json(folder.path / "summary.json", {"arms": arms, "probes": [{"element_f1": 0.5}]})
    rows = [{"event": "update", "stage": "rl", "index": at, "metrics": {"reward": at / 8}} for at in range(8)]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("eval-sft", "eval-dynaweb"):
        TrajectoryStore(folder.trajectories / f"{name}.jsonl.gz").append([episode(at, "success") for at in range(3)])
    folder.finish()
    return folder.path


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_a_line(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def edit(path: Path) -> None:
    path.write_text(path.read_text().replace("0.0", "1.0", 1))


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES: list[tuple[str, Damage]] = [
    ("metrics.jsonl", cut_a_line),
    ("metrics.jsonl", empty),
    ("summary.json", edit),
    ("summary.json", Path.unlink),
    ("trajectories/eval-sft.jsonl.gz", halve),
    ("trajectories/eval-sft.jsonl.gz", empty),
    ("trajectories/eval-sft.jsonl.gz", Path.unlink),
    ("recipe.json", edit),
    ("seeds.json", lambda path: write_json(path, {"run": 7})),
    (CHECKSUMS, lambda path: path.write_text(path.read_text().replace("metrics", "metricz"))),
    (CHECKSUMS, Path.unlink),
    (CHECKSUMS, empty),
    (STATUS, lambda path: write_json(path, {"status": "failed"})),
    (STATUS, lambda path: write_json(path, {"status": "done", "sum": "0"})),
    ("results.json", lambda path: write_json(path, {})),
    ("trajectories/eval-more.jsonl.gz", lambda path: shutil.copy(path.with_name("eval-sft.jsonl.gz"), path)),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_every_reader_names_the_damaged_record_and_tells_no_number(run: Path, name: str, damage: Damage) -> None:
    whole = shutil.copytree(run, run.with_name("whole"))
    assert compare([run, whole]).plain()["arms"] and Site(run).answer("/")
    damage(run / name)
    readers: list[Callable[[], object]] = [
        lambda: gather(run),
        lambda: build_report(run),
        lambda: compare([whole, run]),
        lambda: Site(run).answer("/"),
    ]
    for read in readers:
        with pytest.raises(CheckpointError, match="damaged") as caught:
            read()
        assert Path(name).name in str(caught.value)
    assert not (run / "report.html").exists()


def twice(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


def swap(path: Path) -> None:
    shutil.copy(path.with_name("eval-sft.jsonl.gz"), path)


@pytest.mark.parametrize("damage", [twice, swap, halve, empty, Path.unlink])
def test_whoever_learns_from_a_run_reads_what_it_has_left(run: Path, damage: Damage, tmp_path: Path) -> None:
    """Stores that whole batches were lost of, or added to, are sound stores: only the run knows what was in them."""
    store = run / "trajectories" / "eval-dynaweb.jsonl.gz"
    demos = run / "trajectories" / "demos.jsonl.gz"
    learned = episode(7, "success")
    shutil.copy(store, demos)
    TrajectoryStore(demos).append([replace(learned, task=replace(learned.task, split="train"))])
    RunFolder(run).finish()
    readers: list[Callable[[], object]] = [
        lambda: api.import_data("run", run, tmp_path / "a.jsonl.gz", trajectories=True),
        lambda: api.import_data("run", run, tmp_path / "b.jsonl.gz"),
        lambda: read_demonstrations(str(run)),
    ]
    of_file: list[Callable[[], object]] = [
        lambda: api.import_data("run", demos, tmp_path / "c.jsonl.gz"),
        lambda: read_demonstrations(str(demos)),
        lambda: api.data_stats(demos),
        lambda: api.data_record(demos),
        lambda: read_graded(demos),
    ]
    for read in (*readers, *of_file):
        read()
        for made in tmp_path.glob("?.jsonl.gz"):
            made.unlink()
    damage(demos)
    for read in (*readers, *(of_file if demos.exists() else ())):
        with pytest.raises(CheckpointError, match=r"damaged \(trajectories/demos\.jsonl\.gz"):
            read()
    assert api.data_stats(store), "what is whole can be read"


def test_a_matrix_names_the_damaged_cell_and_leaves_it_out(tmp_path: Path) -> None:
    fakes = Fakes(plan(), tmp_path / "m")
    fakes.run()
    whole = results(fakes.plan, fakes.folder)
    for cell in fakes.plan.cells:
        RunFolder(fakes.folder.cell(cell.id)).finish()
    assert results(fakes.plan, fakes.folder).plain() == whole.plain()
    first = fakes.plan.cells[0].id
    cut_a_line(fakes.folder.cell(first) / "metrics.jsonl")
    outcome = results(fakes.plan, fakes.folder)
    assert list(outcome.problems) == [first] and "metrics.jsonl has changed" in outcome.problems[first]
    assert outcome.rows[0].estimates["main"] != whole.rows[0].estimates["main"]
    halve(fakes.folder.plan_file)
    with pytest.raises(CheckpointError, match=r"matrix\.json is damaged"):
        fakes.folder.read_plan()


def test_a_run_that_goes_on_may_change_its_records_and_is_summed_anew(run: Path) -> None:
    before = json.loads((run / STATUS).read_text())
    folder = RunFolder(run)
    folder.begin()
    assert not (run / CHECKSUMS).exists()
    cut_a_line(run / "metrics.jsonl")
    assert gather(run).status == "running"
    folder.finish()
    assert json.loads((run / STATUS).read_text()) != before
    assert gather(run).status == "done"


def test_killed_between_the_steps_of_beginning_and_ending_a_run_is_not_damaged(run: Path) -> None:
    RunFolder(run).set_status("running")
    assert damaged_records(run) == []
    RunFolder(run).set_status("done")
    assert damaged_records(run) == []


def test_a_run_without_checksums_is_read_as_it_is(run: Path) -> None:
    (run / CHECKSUMS).unlink()
    RunFolder(run).set_status("done")
    assert len(gather(run).arms) == 2


def test_a_report_is_no_record_and_neither_is_what_others_leave(run: Path) -> None:
    build_report(run)
    (run / "notes.json").write_text("{}")
    (run / ".summary.json.x.tmp").write_text("")
    assert damaged_records(run) == []


def test_a_document_carries_the_sum_of_its_values(tmp_path: Path) -> None:
    document = with_sum({"b": (1, 2.0), "a": {"x": None, "\ud800": 1e-9}})
    write_json(tmp_path / "a.json", document)
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "a.json").write_text(json.dumps(json.loads(text), sort_keys=True))
    assert read_summed(tmp_path / "a.json", ())["b"] == [1, 2.0]
    assert not fits_sum({**document, "b": [1, 2]})
    (tmp_path / "a.json").write_text(text.replace("2.0", "3.0"))
    with pytest.raises(CheckpointError, match="checksum does not fit"):
        read_summed(tmp_path / "a.json", ("a", "b"))
    write_json(tmp_path / "a.json", {"a": 1})
    assert read_summed(tmp_path / "a.json", ("a", "b")) == {"a": 1}
    write_json(tmp_path / "a.json", {"a": 1, "sun": "of a version that has no such key"})
    with pytest.raises(CheckpointError, match="checksum does not fit"):
        read_summed(tmp_path / "a.json", ("a", "b"))
