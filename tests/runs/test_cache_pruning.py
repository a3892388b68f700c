"""The stage cache is listed and pruned: by age, by size, all of it, and never what a running run uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from core_kit import Cli
from hypothesis import given
from hypothesis import strategies as st

from dynaweb.errors import ConfigError
from dynaweb.runs import StageCache, sidecar
from dynaweb.runs.cache import default_root
from dynaweb.runs.example import EXAMPLE
from dynaweb.runs.pruning import (
    CachedStage,
    State,
    bytes_of,
    cached_stages,
    chosen_stages,
    drop_pictures,
    seconds_of,
    take_out,
)

MIB = 2**20


def made(name: str, key: str, *, size: int = MIB, age: float = 0.0) -> Path:
    """A finished stage in the cache of this test, last used so many seconds ago."""
    cache = StageCache()
    with cache.stage(name, key) as stage:
        (stage.folder / "weights").write_bytes(b"w" * size)
        stage.commit()
    cache.close()
    then = time.time() - age
    for path in (stage.folder, stage.folder.with_name(f"{key}.used")):
        os.utime(path, (then, then))
    return stage.folder


def test_stages_are_listed_with_size_age_and_state(cli: Cli) -> None:
    made("sft", "a", size=2 * MIB, age=3 * 86400)
    made("rl", "b", age=7200)
    cache = StageCache()
    with pytest.raises(KeyboardInterrupt), cache.stage("rl", "c", resumable=True) as stage:
        (stage.scratch / "state").write_text("x")
        raise KeyboardInterrupt
    cache.close()
    found = {one.key: one for one in cached_stages()}
    assert [found[key].state for key in "abc"] == ["done", "done", "unfinished"]
    assert 2 * MIB < found["a"].size < 2 * MIB + 2000 and found["a"].freed == found["a"].size
    assert 2 * 86400 < found["a"].age < 4 * 86400
    text = cli("cache", "list").stdout
    assert "3 d ago" in text and "2 h ago" in text and "3 stages, 3.0 MiB, in" in text
    assert len(json.loads(cli("cache", "list", "--json").stdout)) == 3


def test_what_else_the_cache_folder_holds_is_no_stage(cli: Cli) -> None:
    made("sft", "a")
    kept = [sidecar.root() / "roundup" / "bin", default_root() / EXAMPLE / "0123" / EXAMPLE]
    for folder in kept:
        folder.mkdir(parents=True)
    assert [one.name for one in cached_stages()] == ["sft"]
    cli("cache", "prune", "--all")
    assert not cached_stages() and all(folder.is_dir() for folder in kept)


@pytest.mark.parametrize(
    ("option", "left"),
    [(["--older-than", "1d"], "bc"), (["--max-size", "2.5M"], "bc"), (["--all"], ""), (["--older-than", "9w"], "abc")],
)
def test_stages_are_pruned(option: list[str], left: str, cli: Cli) -> None:
    for key, age in (("a", 3 * 86400.0), ("b", 7200.0), ("c", 5.0)):
        made("sft", key, age=age)
    dry = json.loads(cli("cache", "prune", *option, "--dry-run", "--json").stdout)
    assert len(cached_stages()) == 3
    done = json.loads(cli("cache", "prune", *option, "--json").stdout)
    assert [one["key"] for one in done] == [one["key"] for one in dry]
    assert sorted(one.key for one in cached_stages()) == sorted(left)


def test_bad_choices_are_refused(cli: Cli) -> None:
    for words in ([], ["--older-than", "soon"], ["--max-size", "-3G"], ["--older-than", "3x"]):
        assert cli("cache", "prune", *words).returncode == 2


def test_looking_is_no_use_of_a_stage() -> None:
    """Also of one that has no marks yet, or no longer."""
    folder = made("sft", "a", age=30 * 86400)
    for end in (".used", ".lock"):
        folder.with_name(f"a{end}").unlink()
    for _ in range(2):
        (stage,) = cached_stages()
        assert 29 * 86400 < stage.age < 31 * 86400
    assert [one.key for one in chosen_stages([stage], older_than=7 * 86400)] == ["a"]


def test_a_cache_that_is_only_readable_can_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, really = made("sft", "a"), os.open
    (folder.with_name("a.used")).unlink()

    def open_(path: Path, flags: int, *rest: int, **more: int) -> int:
        if flags & (os.O_RDWR | os.O_CREAT) and Path(path).exists() | bool(flags & os.O_CREAT):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", open_)
    assert [stage.state for stage in cached_stages()] == ["done"]


HOLD = """
import sys, time
from dynaweb.runs import StageCache, sidecar
from dynaweb.runs.cache import default_root
from dynaweb.runs.example import EXAMPLE
cache = StageCache()
with cache.stage("sft", "held") as stage:
    assert stage.cached
print("there", flush=True)
time.sleep(60)
"""


def test_what_a_running_run_was_handed_stays_until_it_ends_or_is_killed() -> None:
    """The lock of making a stage is gone by then: the run reads the folder all the same."""
    folder = made("sft", "held")
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        (stage,) = cached_stages()
        assert stage.state == "in use" and chosen_stages([stage], every=True) == []
        idle = CachedStage(stage.name, stage.key, folder, stage.size, stage.freed, stage.age, "done")
        assert take_out([idle]) == [] and (folder / "weights").exists()  # as if it was idle when it was chosen
        process.kill()
    assert [one.key for one in take_out(cached_stages())] == ["held"] and not folder.exists()


def test_a_stage_that_is_found_or_made_is_in_use_too() -> None:
    folder = made("sft", "a")
    cache = StageCache()
    assert cache.find("sft", "a") == folder
    with cache.stage("rl", "b") as stage:
        assert {one.state for one in cached_stages()} == {"in use"}
        stage.commit()
    assert take_out(cached_stages()) == []
    cache.close()
    assert {one.key for one in take_out(cached_stages())} == {"a", "b"}
    with StageCache().stage("sft", "a") as stage:
        assert not stage.cached
        stage.commit()


def test_run_folders_keep_their_links(tmp_path: Path) -> None:
    folder = made("sft", "a")
    (tmp_path / "weights").hardlink_to(folder / "weights")
    (stage,) = cached_stages()
    assert stage.size - stage.freed == MIB
    take_out([stage])
    assert (tmp_path / "weights").read_bytes() == b"w" * MIB


stages = st.lists(st.tuples(st.integers(0, 50), st.floats(0, 100), st.sampled_from(["done", "unfinished", "in use"])))


@given(stages, st.integers(0, 200))
def test_what_stays_fits_but_for_what_is_in_use(rows: list[tuple[int, float, State]], limit: int) -> None:
    all_ = [CachedStage("s", str(n), Path(), size, size, age, state) for n, (size, age, state) in enumerate(rows)]
    chosen = chosen_stages(all_, max_size=limit)
    kept = [stage for stage in all_ if stage not in chosen]
    left = [stage for stage in kept if stage.state != "in use"]
    size = sum(stage.size for stage in kept)
    assert all(stage.state != "in use" for stage in chosen)
    assert size <= limit or not left, "what is in use may be too large by itself"
    assert all(gone.age >= stage.age for gone in chosen for stage in left), "the oldest go first"
    assert not chosen or size + chosen[-1].size > limit, "and no more of them than have to"


def test_ages_and_sizes() -> None:
    assert [seconds_of(text) for text in ("7", "12h", "2w", "1.5d")] == [604800, 43200, 1209600, 129600]
    assert [bytes_of(text) for text in ("7", "500M", "2GB", "1k")] == [7, 500 * MIB, 2 * 1024 * MIB, 1024]
    for text in ("", "d", "nan", "inf"):
        with pytest.raises(ConfigError):
            seconds_of(text)


def test_pictures_go_with_the_last_stage_that_lists_them(cli: Cli, tmp_path: Path) -> None:
    root = StageCache().root
    names = ["a" * 64, "b" * 64, "c" * 64]
    paths = [root / "images" / name[:2] / f"{name}.png" for name in names]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"png")
        os.utime(path, (0, 0))
    os.utime(paths[2])
    run = tmp_path / "run.png"
    run.hardlink_to(paths[0])
    for key, listed in (("x", names[:1]), ("y", names[:2])):
        cache = StageCache()
        with cache.stage("eval", key) as stage:
            (stage.folder / "pictures.json").write_text(json.dumps([[name, 3, 2] for name in listed]))
            stage.commit()
        cache.close()
    assert len(cached_stages()) == 2, "the folder of pictures is no stage"
    assert drop_pictures() == 0
    cache = StageCache()
    with pytest.raises(KeyboardInterrupt), cache.stage("eval", "z"):
        raise KeyboardInterrupt
    cache.close()
    take_out([one for one in cached_stages() if one.key == "y"])
    assert drop_pictures() == 0, "a stage is in the making"
    cli("cache", "prune", "--all")
    assert not paths[0].exists() and not paths[1].exists() and paths[2].exists(), "the last one is of today"
    assert run.read_bytes() == b"png"
