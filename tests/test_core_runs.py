"""Run folders, the stage cache, and writes that survive a kill."""

from __future__ import annotations

import asyncio
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

from dynaweb import events, plugins
from dynaweb.config import Recipe, resolve
from dynaweb.errors import CheckpointError, ConfigError, TrainingError
from dynaweb.runs import JsonlWriter, StageCache, last_run, open_run, read_jsonl, write_json, write_text, write_with
from dynaweb.runs import cache as cache_module
from dynaweb.runs.cache import default_root
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


# The stage cache


def test_a_stage_is_made_once(tmp_path: Path) -> None:
    told: list[events.Stage] = []
    cache = StageCache(tmp_path, notify=told.append)  # type: ignore[arg-type]
    for _ in range(2):
        with cache.stage("sft", "k1", settings={"steps": 3}) as stage:
            if not stage.cached:
                (stage.scratch / "optimizer").write_text("only for a resume")
                (stage.folder / "weights").write_text("w")
                stage.commit(cost={"tokens": 5.0})
        assert (stage.folder / "weights").read_text() == "w"
        assert stage.cost["tokens"] == 5
    assert [event.status for event in told] == ["start", "done", "cached"]
    assert told[2].cost == told[1].cost
    assert told[1].folder == told[2].folder == tmp_path / "sft" / "k1" == cache.find("sft", "k1")
    assert sorted(path.name for path in stage.folder.iterdir()) == ["manifest.json", "weights"]
    manifest = json.loads((stage.folder / "manifest.json").read_text())
    assert manifest["settings"] == {"steps": 3}
    assert manifest["cost"]["seconds"] >= 0
    assert cache.find("sft", "k2") is None
    assert cache.find("rl", "k1") is None


@pytest.mark.parametrize("resumable", [True, False])
def test_what_a_failed_stage_left_is_kept_only_for_resumable_ones(resumable: bool, tmp_path: Path) -> None:
    told: list[events.Stage] = []
    cache = StageCache(tmp_path, notify=told.append)  # type: ignore[arg-type]
    with (
        pytest.raises(RuntimeError, match="power"),
        cache.stage("rl", "k", resumable=resumable) as stage,
    ):
        (stage.folder / "half").write_text("1")
        (stage.scratch / "step").write_text("7")
        raise RuntimeError("power")
    assert told[-1].status == "failed"
    assert "power" in told[-1].detail
    assert cache.find("rl", "k") is None
    with cache.stage("rl", "k", resumable=resumable) as stage:
        assert (stage.folder / "half").exists() is resumable
        assert (stage.scratch / "step").exists() is resumable
        stage.commit()


def test_a_stage_without_commit_is_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="ended without commit"), StageCache(tmp_path).stage("sft", "k"):
        pass


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest", "zeros", "one bit"])
def test_a_damaged_stage_is_made_anew(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = StageCache(tmp_path)
    with cache.stage("sft", "k") as stage:
        (stage.folder / "weights").write_text("weights")
        stage.commit()
    victim = stage.folder / ("manifest.json" if damage == "manifest" else "weights")
    if damage == "remove":
        victim.unlink()
    else:
        data, seen = victim.read_bytes(), victim.stat()
        harmed = {"zeros": bytes(len(data)), "one bit": bytes([data[0] ^ 1]) + data[1:]}.get(damage, data[:3])
        victim.unlink()
        victim.write_bytes(harmed)
        os.utime(victim, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    cache = StageCache(tmp_path)  # of another process; who made a stage does not look at it again
    assert cache.find("sft", "k") is None
    with cache.stage("sft", "k") as again:
        assert again.cached is False
        assert not (again.folder / "weights").exists()
        (again.folder / "weights").write_text("weights")
        again.commit()
    assert f"{tmp_path / 'sft' / 'k'} is damaged; it is made anew" in caplog.text
    assert cache.find("sft", "k") is not None


def test_a_damaged_stage_that_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StageCache(tmp_path).stage("sft", "k") as stage:
        (stage.folder / "weights").write_text("weights")
        stage.commit()
    (stage.folder / "weights").chmod(0o644)
    (stage.folder / "weights").write_bytes(bytes(7))

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("dynaweb.runs.cache.shutil.rmtree", refused)
    told = f"{stage.folder} is damaged and cannot be removed .Permission denied.; delete it, or set DYNAWEB_CACHE"
    with pytest.raises(CheckpointError, match=told), StageCache(tmp_path).stage("sft", "k"):
        pass


def test_checksums_are_compared_once_by_each_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StageCache(tmp_path).stage("sft", "k") as stage:
        (stage.folder / "weights").write_text("weights")
        stage.commit()
    read: list[Path] = []
    hashed = cache_module._hash
    monkeypatch.setattr(cache_module, "_hash", lambda path: read.append(path) or hashed(path))
    cache = StageCache(tmp_path)
    for _ in range(3):
        assert cache.find("sft", "k") == stage.folder
        with cache.stage("sft", "k") as again:
            assert again.cached
    assert read == [stage.folder / "weights"]


def test_a_stage_of_a_version_without_checksums_counts(tmp_path: Path) -> None:
    with StageCache(tmp_path).stage("sft", "k") as stage:
        (stage.folder / "weights").write_text("weights")
        stage.commit()
    manifest = json.loads((stage.folder / "manifest.json").read_text())
    del manifest["sha256"]
    (stage.folder / "manifest.json").chmod(0o644)
    (stage.folder / "manifest.json").write_text(json.dumps(manifest))
    assert StageCache(tmp_path).find("sft", "k") == stage.folder


def test_finished_files_are_read_only(tmp_path: Path) -> None:
    with StageCache(tmp_path).stage("sft", "k") as stage:
        (stage.folder / "model").mkdir()
        (stage.folder / "model" / "weights").write_text("w")
        stage.commit()
    for name in ("manifest.json", "model/weights"):
        assert (stage.folder / name).stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_an_interrupted_stage_has_not_failed(error: BaseException, tmp_path: Path) -> None:
    told: list[events.Stage] = []
    cache = StageCache(tmp_path, notify=told.append)  # type: ignore[arg-type]
    with pytest.raises(type(error)), cache.stage("rl", "k", resumable=True):
        raise error
    assert (told[-1].status, told[-1].detail) == ("interrupted", "what it has done is kept")


def test_a_damaged_state_names_the_folder_to_delete(tmp_path: Path) -> None:
    cache = StageCache(tmp_path)
    with pytest.raises(CheckpointError, match=r"^too short$"), cache.stage("rl", "k", resumable=True) as stage:
        (stage.scratch / "state").write_text("half")
        raise CheckpointError("too short")
    told = f"stage rl cannot go on .*: too short. .* delete {tmp_path}/rl/k.partial and give the same command again"
    with pytest.raises(CheckpointError, match=told), cache.stage("rl", "k", resumable=True) as stage:
        assert stage.resumed
        raise CheckpointError("too short")
    # Other errors are not blamed on it.
    with pytest.raises(RuntimeError, match=r"^power$"), cache.stage("rl", "k", resumable=True):
        raise RuntimeError("power")


STAGE = """
    import sys, time
    from pathlib import Path
    from dynaweb.runs import StageCache
    with StageCache(Path(sys.argv[1])).stage("sft", "k", resumable=True) as stage:
        if not stage.cached:
            with (stage.scratch / "log").open("a") as log:
                log.write("begun ")
            print("working", flush=True)
            time.sleep(float(sys.argv[2]))
            (stage.folder / "log").write_text((stage.scratch / "log").read_text())
            stage.commit()
        print("cached" if stage.cached else "made", flush=True)
"""


def start_stage(root: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(STAGE), str(root), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_process_leaves_no_lock_and_its_work(tmp_path: Path) -> None:
    first = start_stage(tmp_path, 60)
    assert first.stdout is not None
    assert first.stdout.readline() == "working\n"
    first.kill()
    first.communicate()
    second, _ = start_stage(tmp_path, 0).communicate(timeout=20)
    assert second.split() == ["working", "made"]
    assert (tmp_path / "sft" / "k" / "log").read_text() == "begun begun "


def test_two_processes_make_one_stage(tmp_path: Path) -> None:
    first = start_stage(tmp_path, 1.0)
    assert first.stdout is not None
    assert first.stdout.readline() == "working\n"
    second = start_stage(tmp_path, 1.0)
    assert first.communicate(timeout=20)[0] == "made\n"
    assert second.communicate(timeout=20)[0] == "cached\n"


WAIT = """
    import asyncio, sys
    from pathlib import Path
    from dynaweb.runs import StageCache
    async def wait():
        await asyncio.sleep(0)
        print("waiting", flush=True)
        with StageCache(Path(sys.argv[1])).stage("sft", "k"):
            print("never", flush=True)
    try:
        asyncio.run(wait())
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_ends_the_wait_for_another_process(tmp_path: Path) -> None:
    first = start_stage(tmp_path, 60)
    assert first.stdout is not None
    assert first.stdout.readline() == "working\n"
    command = [sys.executable, "-c", textwrap.dedent(WAIT), str(tmp_path)]
    second = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert second.stdout is not None
    assert second.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    second.send_signal(signal.SIGINT)
    try:
        assert second.communicate(timeout=5)[0] == "interrupted\n"
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert default_root() == Path(os.environ["DYNAWEB_CACHE"])
    monkeypatch.delenv("DYNAWEB_CACHE")
    assert default_root().parts[-2:] == ("dynaweb", "stages")
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"cannot be written.*DYNAWEB_CACHE"),
        StageCache(tmp_path / "file" / "x").stage("sft", "k"),
    ):
        pass


# Run folders


def test_a_run_folder_holds_what_the_run_used(recipe: Recipe, tmp_path: Path) -> None:
    rows = plugins.current().manifest(recipe.choices())
    run = open_run(recipe, out=tmp_path / "run", plugins=rows)
    assert run.recipe() == recipe
    assert run.status == "running"
    assert "seed = 3  # --seed" in (run.path / "recipe.toml").read_text()
    plugin = next(row for row in json.loads((run.path / "plugins.json").read_text()) if row["name"] == "toy")
    assert plugin == {"kind": "wm", "name": "toy", "package": "toy-package", "version": "1.2", "used": "yes"}
    assert json.loads((run.path / "versions.json").read_text())["dynaweb"]
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
    free = resolve(recipe, overrides={"run.time_budget": 5, "web.workers": 1}, plugins=plugins.current())
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
