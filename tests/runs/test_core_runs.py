"""Run folders, and writes that survive a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from core_kit import TOY_CLASS, PackageMaker, toy_source
from folders import ROOT

from dynaweb.config import Recipe, resolve
from dynaweb.config.agreement import used_plugins
from dynaweb.errors import CheckpointError, ConfigError
from dynaweb.plugin import registry as plugins
from dynaweb.runs import JsonlWriter, last_run, open_run, read_jsonl, write_json, write_text, write_with
from dynaweb.runs.jsonl import mend


@pytest.fixture
def recipe(package: PackageMaker) -> Recipe:
    package("toy-package", toy_source(), modules={"toys": TOY_CLASS})
    return resolve("smoke", wm="toy", seed=3, plugins=plugins.load(warn=False))


# Atomic writes


def test_writes_replace_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_text(path, "één")
    write_text(path, "two")
    assert path.read_text(encoding="utf-8") == "two"
    write_json(path, {"b": [1, "é"], "a": None})
    assert json.loads(path.read_text(encoding="utf-8")) == {"b": [1, "é"], "a": None}
    assert [one.name for one in path.parent.iterdir()] == ["file.txt"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    write_text(path, "old")

    def save(temporary: Path) -> None:
        temporary.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_with(path, save)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_process_killed_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_text(path, "old")
    code = f"""
        import os, signal
        from pathlib import Path
        from dynaweb.runs import write_with
        def save(temporary):
            temporary.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        write_with(Path({str(path)!r}), save)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"


def test_torn_lines_are_dropped_and_appending_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with JsonlWriter(path) as writer:
        writer.write({"a": 1})
        writer.write({"a": "é"})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"a": 3, "b": "cut sho')
    assert list(read_jsonl(path)) == [{"a": 1}, {"a": "é"}]
    with JsonlWriter(path) as writer:
        writer.write({"a": 4})
    assert path.read_bytes() == whole + b'{"a": 4}\n'
    assert mend(path) is False
    path.write_bytes(b'{"never": "ended"')
    assert mend(path) is True
    assert path.read_bytes() == b""
    assert list(read_jsonl(tmp_path / "none.jsonl")) == []


def test_a_run_folder_holds_what_the_run_used(recipe: Recipe, tmp_path: Path) -> None:
    rows = plugins.current().manifest(used_plugins(recipe, plugins.current()))
    run = open_run(recipe, out=tmp_path / "run", plugins=rows)
    assert run.recipe() == recipe
    assert run.status == "running"
    assert "seed = 3  # --seed" in (run.path / "recipe.toml").read_text()
    plugin = next(row for row in json.loads((run.path / "plugins.json").read_text()) if row["name"] == "toy")
    assert plugin == {"kind": "wm", "name": "toy", "package": "toy-package", "version": "1.2", "used": "yes"}
    recorded = json.loads((run.path / "versions.json").read_text())
    assert recorded["dynaweb"]
    if (ROOT / ".git").exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert recorded["commit"].removesuffix("-dirty") == head.stdout.strip()
    assert json.loads((run.path / "seeds.json").read_text()) == {"run": 3}
    run.set_status("interrupted", stage="rl")
    assert run.status == "interrupted"
    assert run.trajectories.is_dir()
    assert run.checkpoints.is_dir()


def test_default_folders_are_numbered(recipe: Recipe, tmp_path: Path) -> None:
    first, second = (open_run(recipe, base=tmp_path) for _ in range(2))
    assert [first.path.name, second.path.name] == ["smoke-3-1", "smoke-3-2"]
    named = [open_run(recipe, base=tmp_path, command=name).path.name for name in ("eval", "judge audit", "eval")]
    assert named == ["eval-smoke-3-1", "judge-audit-smoke-3-1", "eval-smoke-3-2"]
    (tmp_path / "smoke-3-10").mkdir()
    (tmp_path / "smoke-3-x").mkdir()
    assert open_run(recipe, base=tmp_path).path.name == "smoke-3-11"
    again = open_run(recipe, base=tmp_path, resume=True)
    assert (again.path.name, again.resumed) == ("smoke-3-11", True)


def test_only_runs_are_resumed(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no run in .* to resume; name its folder with --out"):
        last_run(tmp_path)
    run = open_run(recipe, base=tmp_path)
    stage = open_run(recipe, base=tmp_path, command="wm fit")
    assert [run.path.name, stage.path.name] == ["smoke-3-1", "wm-fit-smoke-3-1"]
    assert (run.command, stage.command) == ("run", "wm fit")
    assert open_run(recipe, base=tmp_path, resume=True).path == run.path == last_run(tmp_path)
    with pytest.raises(ConfigError, match="was made by `dynaweb wm fit`, and --resume goes on with runs only; give"):
        open_run(recipe, out=stage.path, resume=True)
    assert run.how_to_go_on == f"go on with: dynaweb run --resume --out {run.path}"
    assert "give `dynaweb wm fit` again" in stage.how_to_go_on
    later = open_run(recipe, out=tmp_path / "other")
    os.utime(run.path / "status.json", (1, 1))
    assert last_run(tmp_path) == later.path


def test_a_stage_that_was_not_finished_goes_on_in_its_folder(recipe: Recipe, tmp_path: Path) -> None:
    folder = open_run(recipe, out=tmp_path / "eval", command="eval")
    for left in ("running", "interrupted", "failed"):
        folder.set_status(left)  # type: ignore[arg-type]
        again = open_run(recipe, out=folder.path, command="eval")
        assert (again.path, again.resumed) == (folder.path, True)
    with pytest.raises(ConfigError, match="is not empty"):
        open_run(recipe, out=folder.path, command="collect")
    other = resolve(recipe, overrides={"eval.episodes": 7}, plugins=plugins.current())
    with pytest.raises(ConfigError, match=r"(?s)eval\.episodes.*Give the settings that it was made with"):
        open_run(other, out=folder.path, command="eval")
    (folder.path / "status.json").unlink()
    assert open_run(recipe, out=folder.path, command="eval").resumed
    folder.set_status("done")
    with pytest.raises(ConfigError, match="is not empty"):
        open_run(recipe, out=folder.path, command="eval")


def test_nothing_is_overwritten_silently(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(
        ConfigError, match=r"not empty; nothing is overwritten\. Choose another folder.*--out.*remove it"
    ):
        open_run(recipe, out=tmp_path)
    run = open_run(recipe, out=tmp_path / "run").path
    with pytest.raises(ConfigError, match=f"Go on with that run by --resume --out {run}, choose another"):
        open_run(recipe, out=run)
    with pytest.raises(ConfigError, match="not empty"):
        open_run(recipe, out=tmp_path / "notes.txt")
    assert open_run(recipe, out=tmp_path / "new").path.is_dir()


def test_a_run_with_a_changed_recipe_is_not_resumed(recipe: Recipe, tmp_path: Path) -> None:
    open_run(recipe, out=tmp_path / "run")
    changed = resolve(recipe, overrides={"rl.lr": 0.5, "data.experts": "all"}, plugins=plugins.current())
    with pytest.raises(ConfigError) as caught:
        open_run(changed, out=tmp_path / "run", resume=True)
    assert f'\n  data.experts: "few" -> "all"\n  rl.lr: {recipe.rl.lr} -> 0.5\n' in str(caught.value)
    values = {"run.time_budget": 5, "web.workers": 1, "web.endpoint": "http://other.test:1", "web.proxy_port": 4001}
    free = resolve(recipe, overrides=values, plugins=plugins.current())
    assert open_run(free, out=tmp_path / "run", resume=True).resumed


def test_folders_that_cannot_be_resumed_or_written(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a run folder: recipe.json cannot be read"):
        open_run(recipe, out=tmp_path / "none", resume=True)
    with pytest.raises(CheckpointError, match=r"there is no run .*smoke-3-<n> to resume"):
        open_run(recipe, base=tmp_path, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written: Not a directory; choose another with --out"):
        open_run(recipe, out=tmp_path / "file" / "run")
    run = open_run(recipe, out=tmp_path / "run")
    (run.path / "recipe.json").write_text('{"settings": {')
    with pytest.raises(CheckpointError, match=r"recipe.json is damaged"):
        open_run(recipe, out=run.path, resume=True)


def test_a_resumed_run_completes_its_records_and_tells_of_new_versions(
    recipe: Recipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = open_run(recipe, out=tmp_path / "run")
    (run.path / "recipe.toml").unlink()
    write_json(run.path / "versions.json", {"python": "3.1", "dynaweb": "0.0.1"})
    open_run(recipe, out=run.path, resume=True)
    assert (run.path / "recipe.toml").exists()
    assert "begun with other versions" in caplog.text
    assert 'python: "3.1" ->' in caplog.text


def test_one_process_at_a_time(recipe: Recipe, tmp_path: Path) -> None:
    run = open_run(recipe, out=tmp_path / "run")
    code = f"""
        from pathlib import Path
        import time
        from dynaweb.runs import RunFolder
        with RunFolder(Path({str(run.path)!r})).lock():
            print("held", flush=True)
            time.sleep(60)
    """
    other = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"process {other.pid} is at work"), run.lock():
        pass
    other.kill()
    other.communicate()
    time.sleep(0.05)
    with run.lock():
        assert (run.path / ".lock").read_text() == str(os.getpid())
