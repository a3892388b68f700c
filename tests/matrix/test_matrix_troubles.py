"""A matrix whose folder, cells or plugins are in trouble: what is told, what goes on, what can still be looked at."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from core_kit import TOY_CLASS, Cli, PackageMaker, toy_source
from folders import KITS
from matrix_kit import Fakes, plan

from dynaweb.errors import StorageError
from dynaweb.matrix import MatrixFolder
from dynaweb.matrix.runner import Runner


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    return Fakes(plan("smoke", axes=["rl.updates=1,2"], seeds=(0,)), tmp_path / "matrix")


def test_a_place_that_cannot_be_written_is_one_clear_error(fakes: Fakes) -> None:
    fakes.folder.path.mkdir()
    fakes.folder.write_plan(fakes.plan)
    (fakes.folder.path / "outcomes").write_text("a file")
    with pytest.raises(StorageError, match=r"the folder of the matrix cannot be used .*outcomes.*go on with: dynaweb"):
        fakes.run(jobs=2)
    (fakes.folder.path / "outcomes").unlink()
    assert set(fakes.run().values()) == {"done"}


def test_cells_outlive_their_logs(fakes: Fakes) -> None:
    fakes.gate.unlink()

    def meddle() -> None:
        while len(list(fakes.folder.path.glob("cells/*/tries"))) < 2:
            time.sleep(0.01)
        shutil.rmtree(fakes.folder.path / "logs")
        time.sleep(0.8)  # longer than it takes to look at the logs again
        fakes.gate.touch()

    thread = threading.Thread(target=meddle)
    thread.start()
    assert set(fakes.run(jobs=2).values()) == {"done"}
    thread.join()


def test_how_a_cell_was_killed_is_said(fakes: Fakes) -> None:
    def killed(matrix: MatrixFolder, id: str) -> Sequence[str]:
        return ["sh", "-c", "echo stage 6 of 10 >&2; kill -ABRT $$"]

    (first, _) = Runner(fakes.plan, fakes.folder, command=killed).run()
    assert first.line == "killed by SIGABRT; its last words: stage 6 of 10"
    assert json.loads(fakes.folder.outcome(first.cell.id).read_text())["error"] == first.line


@pytest.mark.parametrize("name", ["status.json", "recipe.json", "all"])
def test_a_cell_that_cannot_go_on_starts_anew_and_nothing_is_lost(name: str, fakes: Fakes) -> None:
    id = fakes.plan.cells[0].id
    fakes.run()
    folder = fakes.folder.cell(id)
    if name == "all":
        shutil.rmtree(folder)
        folder.write_text("{")
    else:
        (folder / name).write_text("{")
    with fakes.folder.prepared(id) as resumed:
        assert resumed is False
    assert not folder.exists()
    (aside,) = folder.parent.glob(f"{id}.damaged-*")
    assert (aside if name == "all" else aside / name).read_text() == "{"
    assert fakes.run()[id] == "done"


def test_looking_writes_nothing(fakes: Fakes) -> None:
    fakes.run()
    cell = fakes.plan.cells[0]
    folder = fakes.folder.cell(cell.id)
    (folder / "status.json").write_text('{"status": "running"}')
    before = sorted(fakes.folder.path.rglob("*"))
    assert fakes.folder.status(cell).state == "interrupted"
    assert sorted(fakes.folder.path.rglob("*")) == before


def test_results_need_no_plugin_of_a_cell(cli: Cli, package: PackageMaker, tmp_path: Path) -> None:
    package("toy-package", toy_source(), modules={"toys": TOY_CLASS})
    made = cli("matrix", "show", "smoke", "--axis", "wm=toy,delta", "--json", path=package.folder)
    assert made.returncode == 0, made.stderr
    code = (
        "from dynaweb.plugin import registry; from dynaweb.matrix import MatrixFolder, plan_of, read_matrix\n"
        "registry.load()\n"
        "from pathlib import Path; folder = MatrixFolder(Path('m')); folder.path.mkdir()\n"
        "folder.write_plan(plan_of(read_matrix('smoke', axes=['wm=toy,delta'])))"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(package.folder), "PATH": ""}, check=True
    )
    for command in ("status", "table"):
        done = cli("matrix", command, "m")
        assert done.returncode == 0 and "toy" in done.stdout, done.stderr
    done = cli("matrix", "run", "m")
    assert done.returncode == 3 and "no world model is called 'toy'" in done.stderr


SLOW = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from dynaweb.errors import Interrupted
from matrix_kit import Fakes, plan
fakes = Fakes(plan("smoke", axes=["rl.updates=1,2"], seeds=(0,)), Path(sys.argv[2]))
fakes.gate.unlink()
try:
    fakes.run(jobs=2)
except Interrupted as error:
    print(error, file=sys.stderr)
"""


def test_a_second_ctrl_c_prints_no_traceback_of_asyncio(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, str(KITS), str(tmp_path / "m")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("m/cells/*/tries"))) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    time.sleep(0.15)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert "the state is saved" in said and "Traceback" not in said


def test_a_cell_waits_for_one_that_outlives_its_killed_matrix(fakes: Fakes) -> None:
    """What still starts makes its folder late: whoever looked before would find it where a new run belongs."""
    fakes.folder.path.mkdir()
    fakes.folder.write_plan(fakes.plan)
    id = fakes.plan.cells[0].id
    cell, seen = fakes.folder.cell(id), []

    def next_attempt() -> None:
        with fakes.folder.prepared(id) as resumed:
            seen.append((resumed, cell.exists()))

    thread = threading.Thread(target=next_attempt)
    with fakes.folder.prepared(id) as resumed:
        assert resumed is False
        thread.start()
        time.sleep(0.3)
        cell.mkdir(parents=True)
        (cell / "status.json.partial").touch()
        assert not seen
    thread.join()
    assert seen == [(False, False)]
