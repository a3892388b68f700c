"""Cells of a matrix as processes that fail, wait or are killed, and the table of what they left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from matrix_kit import Fakes, plan

from dynaweb.errors import ConfigError
from dynaweb.matrix import MatrixFolder
from dynaweb.matrix.page import matrix_page
from dynaweb.matrix.results import ARMS, measures_of, results
from dynaweb.matrix.runner import Progress, Runner
from dynaweb.matrix.table import matrix_table, matrix_text
from dynaweb.stages import arms


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    return Fakes(plan("smoke", axes=["rl.updates=1,2,3"], seeds=(0, 1)), tmp_path / "matrix")


def test_a_failed_cell_is_recorded_and_the_rest_go_on(fakes: Fakes) -> None:
    bad = fakes.plan.cells[1].id
    fakes.failing = {bad}
    seen: list[tuple[str, str]] = []
    states = fakes.run(jobs=2, changed=lambda progress: seen.append((progress.cell.id, progress.state)))
    assert {id for id, state in states.items() if state == "failed"} == {bad}
    assert list(states.values()).count("done") == 5
    status = fakes.folder.status(fakes.plan.cells[1])
    assert (status.state, status.detail) == ("failed", "error: out of luck")
    assert "working on" in fakes.folder.log(bad).read_text()
    assert (bad, "running") in seen and (bad, "failed") in seen
    # Again: only what is not done.
    fakes.failing = set()
    assert set(fakes.run().values()) == {"done"}
    assert {fakes.tries(cell.id) for cell in fakes.plan.cells if cell.id != bad} == {1}


def test_a_done_cell_has_the_time_of_all_its_stages_however_its_runner_ended(fakes: Fakes) -> None:
    fakes.run()
    cell, other = fakes.plan.cells[:2]
    rows = [{"event": "stage", "name": name, "time.seconds": 20.5} for name in ("sft", "rl")]
    metrics = fakes.folder.cell(cell.id) / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"event": "eval"}]))
    fakes.folder.outcome(cell.id).unlink()
    assert fakes.folder.status(cell).seconds == 41
    assert 0 < (fakes.folder.status(other).seconds or 0) < 30
    metrics.write_text('{"event": "stage"}\n')
    assert fakes.folder.status(cell).seconds is None


def test_a_refused_second_run_leaves_the_plan_alone(fakes: Fakes) -> None:
    fakes.run()
    other = Fakes(plan("smoke", axes=["rl.updates=4,5"]), fakes.folder.path)
    with fakes.folder.lock(), pytest.raises(ConfigError, match="runs the matrix"):
        other.run()
    assert fakes.folder.read_plan() == fakes.plan


def test_folders_that_cannot_take_a_matrix(fakes: Fakes, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    for name, why in (("mine", "is not empty and not a matrix"), ("mine/notes/matrix", "cannot be written: Not a dir")):
        with pytest.raises(ConfigError, match=why):
            Runner(fakes.plan, MatrixFolder(tmp_path / name)).run()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]


def test_a_killed_cell_has_failed_for_everybody_until_it_is_tried_again(fakes: Fakes) -> None:
    cell = fakes.plan.cells[0]
    folder = fakes.folder.cell(cell.id)

    def killed(matrix: MatrixFolder, id: str) -> Sequence[str]:
        if id != cell.id:
            return fakes.command(matrix, id)
        state = f'mkdir -p {folder}; echo \'{{"status": "running"}}\' > {folder}/status.json; echo too much >&2'
        return ["sh", "-c", f"{state}; kill -9 $$"]

    done = Runner(fakes.plan, fakes.folder, command=killed).run()
    assert (done[0].state, fakes.folder.status(cell).state) == ("failed", "failed")
    assert fakes.folder.status(cell).detail == "killed by SIGKILL; its last words: too much"
    assert "cells: 1 failed, 5 done" in matrix_text(results(fakes.plan, fakes.folder))
    # While it is tried again, how the last attempt ended says nothing.
    seen: set[bool] = set()
    fakes.run(changed=lambda progress: seen.add(fakes.folder.outcome(cell.id).exists() and progress.state == "running"))
    assert seen == {False}
    assert fakes.folder.status(cell).state == "done"


def test_fail_fast_leaves_the_rest_for_later(fakes: Fakes) -> None:
    fakes.failing = {fakes.plan.cells[1].id}
    states = list(fakes.run(fail_fast=True).values())
    assert states == ["done", "failed", "waiting", "waiting", "waiting", "waiting"]


def test_a_matrix_that_grows_keeps_what_is_done(fakes: Fakes, tmp_path: Path) -> None:
    fakes.run()
    more = Fakes(plan("smoke", axes=["rl.updates=4,3,2,1"], seeds=(0, 1, 2)), fakes.folder.path)
    assert set(more.run().values()) == {"done"}
    for cell in more.plan.cells:
        assert more.tries(cell.id) == 1
    assert more.folder.read_plan() == more.plan


def test_as_many_at_once_as_there_are_jobs(fakes: Fakes) -> None:
    fakes.gate.unlink()
    running: list[int] = []
    cells: list[Progress] = []

    def changed(progress: Progress) -> None:
        running.append(sum(cell.state == "running" for cell in cells))
        if running[-1] == 3 and progress.line.startswith("working"):
            fakes.gate.touch()

    assert set(fakes.run(jobs=3, changed=changed, progress=cells).values()) == {"done"}
    assert max(running) == 3


def test_the_table_has_n_mean_interval_and_paired_differences(fakes: Fakes) -> None:
    fakes.failing = {fakes.plan.cells[2].id, fakes.plan.cells[5].id}
    fakes.run()
    found = results(fakes.plan, fakes.folder, ["main", "sft", "element_f1"])
    first, second, third = found.rows
    assert first.is_reference and first.against is None
    assert (first.estimates["main"].n, second.estimates["main"].n) == (60, 60)  # type: ignore[union-attr]
    assert second.against is not None and second.against.paired is not None
    assert second.against.paired.difference.value == 0.0 and not second.against.is_significant
    assert second.against.paired.seeds == 2
    assert second.estimates["element_f1"].value == 0.625  # type: ignore[union-attr]
    assert third.done == 0 and third.estimates["main"] is None
    text = matrix_text(found)
    assert "66.7 [" in text and "0.625" in text and "0/2" in text
    assert text.count("out of luck") == 2 and "cells: 4 done, 2 failed" in text
    # Two questions of each of two runs.
    assert second.estimates["element_f1"].n == 4  # type: ignore[union-attr]
    page = matrix_page(found, fakes.folder.path)
    assert page.count("<tr>") >= 3 + len(fakes.plan.cells)
    assert "out of luck" in page and "http://" not in page and page.count("<script>") == 1
    json.dumps(found.plain())


def test_every_axis_has_a_column_in_markdown(tmp_path: Path) -> None:
    two = plan("smoke", axes=["rl.updates=1,2", "rl.n=2,3"])
    head, marks, *rest = matrix_table(results(two, MatrixFolder(tmp_path))).to("markdown").splitlines()
    assert head.startswith("| rl.updates | rl.n | seeds |")
    assert marks.startswith("| --- | --- | ---:")
    assert rest[1].startswith("| 1 | 3 | 0/1 |")
    assert {line.count("|") for line in (head, marks, *rest[:4])} == {head.count("|")}


def test_every_arm_of_a_run_is_a_measure() -> None:
    source = Path(arms.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r'ArmSpec\(\s*"([\w-]+)"', source)) == set(ARMS) - {"main"}
    found = plan("smoke")
    for name in (*ARMS, "element_f1", "Element F1", "Address"):
        assert measures_of(found, [name]) == (name,)


def test_text_of_a_matrix_stays_text(tmp_path: Path) -> None:
    bad = "</td><script>alert(1)</script>"
    file = tmp_path / "m.toml"
    values = f"[{{label = '{bad}', 'rl.n' = 2}}, {{label = 'b', 'rl.n' = 3}}]"
    file.write_text(f"[matrix]\nbase = 'smoke'\ndescription = '{bad}'\n[matrix.axes]\n'{bad}' = {values}\n")
    made = plan(file)
    text = matrix_page(results(made, MatrixFolder(tmp_path / "m")), tmp_path / "m")
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4
    assert text.count("<script") == 1 and "<script>alert" not in text


TINY = (
    "env.task_settings.driver=static data.demos=2 sft.steps=1 sft.batch=2 explore.episodes=2 explore.steps=1 "
    "wm_fit.batch=2 dream.horizon=1 rl.updates=1 rl.tasks=1 rl.n=2 rl.bc_batch=2 eval.episodes=2 "
    "eval.steps=1 controls.sft_steps=[] model.threads=1 wm.max_new_tokens=8 wm.retries=0 web.contexts=4"
)


def test_a_killed_matrix_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    """`world-model` of real cells: kill -9 the matrix while the second one runs."""
    command = [sys.executable, "-m", "dynaweb", "matrix", "run", "smoke", "--axis", "wm_fit.steps=0,1", "--out", "m"]
    command += [word for setting in TINY.split() for word in ("--set", setting)]
    folders: list[Path] = []
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as first:
        assert first.stderr is not None
        for line in first.stderr:
            if line.startswith("[1/2]") and "running" in line:
                folders = _wait_for_second(tmp_path / "m" / "cells")
                break
        os.kill(first.pid, signal.SIGKILL)
    assert len(folders) == 2, line
    _wait_until_free(folders)
    ended = {
        folder.name: (folder / "status.json").stat().st_mtime_ns for folder in folders if _status(folder) == "done"
    }
    assert len(ended) == 1
    status = subprocess.run([*command[:4], "status", "m"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert sorted(line.split()[1] for line in status.stdout.splitlines()[1:]) == ["done", "interrupted"]
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "done after" in again.stderr and again.stderr.count("running") == 1
    for name, time_ns in ended.items():
        assert (tmp_path / "m" / "cells" / name / "status.json").stat().st_mtime_ns == time_ns
    assert "cells: 2 done" in again.stdout
    rows = [line for line in again.stdout.splitlines() if line.startswith(("0 ", "1 "))]
    assert len(rows) == 2 and all("[" in row and " 2 " in row for row in rows)
    assert (tmp_path / "m" / "report.html").stat().st_size > 5000


def _status(folder: Path) -> str:
    path = folder / "status.json"
    return str(json.loads(path.read_text())["status"]) if path.exists() else ""


def _wait_for_second(cells: Path) -> list[Path]:
    for _ in range(600):
        found = [path for path in cells.iterdir() if (path / "status.json").exists()]
        if len(found) == 2:
            return found
        time.sleep(0.05)
    raise AssertionError("the second cell did not start")


def _wait_until_free(folders: list[Path]) -> None:
    from dynaweb.runs.lock import locked

    for folder in folders:
        for _ in range(600):
            with locked(folder / ".lock", what="", wait=False) as free:
                if free:
                    break
            time.sleep(0.05)
        else:
            raise AssertionError(f"a cell of a killed matrix goes on in {folder}")
