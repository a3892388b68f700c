"""Raw results: what is read of a file is what the run folders say, and a damaged file says nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from compare_kit import outcomes, run
from core_kit import Cli

from dynaweb.compare import read_run
from dynaweb.compare.raw import FORMAT, RawResults, read_results, write_results
from dynaweb.errors import CheckpointError, ConfigError
from dynaweb.matrix.raw import collect, plan_of_raw


def folders(tmp_path: Path) -> list[Path]:
    runs = []
    for at, rate in enumerate((0.5, 0.7)):
        for seed in (0, 1):
            played = {**outcomes(seed, rate, 20), "ungraded": None}
            runs.append(run(tmp_path / f"{at}-{seed}", seed, played, lr=at))
    return runs


def written(tmp_path: Path) -> Path:
    path = tmp_path / "results" / "rates.jsonl.gz"
    write_results(path, collect(folders(tmp_path), "rates", title="Two rates"))
    return path


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_a_file_tells_what_the_folders_tell(tmp_path: Path) -> None:
    read = read_results(written(tmp_path))
    assert (read.name, read.title, read.axes) == ("rates", "Two rates", ("rl.lr",))
    assert [(one.id, one.labels, one.seed) for one in read.runs] == [
        (f"{at}-{seed}", (("rl.lr", str(at)),), seed) for at in (0, 1) for seed in (0, 1)
    ]
    for one in read.runs:
        there = read_run(tmp_path / one.id)
        assert one.record.episodes == there.episodes and one.record.judge == there.judge
        assert [measure.estimate for measure in one.record.data.fidelity] == [
            measure.estimate for measure in there.data.fidelity
        ]
        assert [arm.success for arm in one.record.data.arms] == [arm.success for arm in there.data.arms]
    assert plan_of_raw(read).combinations() == [(("rl.lr", "0"),), (("rl.lr", "1"),)]


def test_every_episode_has_a_row_of_its_own_settings(tmp_path: Path) -> None:
    header, *rows = lines(written(tmp_path))
    episodes = [row for row in rows if row["row"] == "episode"]
    assert header["format"] == FORMAT and header["episodes"] == len(episodes) == 4 * 2 * 21
    assert episodes[-1] == {
        "row": "episode", "run": "1-1", "seed": 1, "settings": {"rl.lr": "1"}, "arm": "dynaweb", "task": "ungraded",
        "success": None, "real_steps": None, "tokens": None,
    }  # fmt: skip


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    first = written(tmp_path)
    write_results(second := tmp_path / "again" / first.name, read_results(first))
    assert second.read_bytes() == first.read_bytes()


def spoiled(data: bytes, how: str) -> bytes:
    if how == "cut":
        return data[: len(data) // 2]
    if how == "flipped":
        return data[:200] + bytes([data[200] ^ 1]) + data[201:]
    text = gzip.decompress(data).decode()
    if how == "success changed":
        return gzip.compress(text.replace('"success":0.0', '"success":1.0', 1).encode())
    if how == "row gone":
        return gzip.compress("\n".join(text.split("\n")[:-2]).encode() + b"\n")
    if how == "axes changed":
        return gzip.compress(text.replace('"axes":["rl.lr"]', '"axes":[]', 1).encode())
    if how == "header gone":
        return gzip.compress(text.split("\n", 1)[1].encode())
    if how == "later version":
        return gzip.compress(text.replace('"version":1', '"version":2', 1).encode())
    return b"" if how == "empty" else b"no gzip"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("cut", "is damaged"),
        ("flipped", "is damaged"),
        ("success changed", "its checksum does not fit"),
        ("row gone", "its checksum does not fit"),
        ("axes changed", "its checksum does not fit"),
        ("header gone", "is no file of raw results"),
        ("later version", "has version 2 of the format"),
        ("empty", "is no file of raw results"),
        ("text", "is damaged"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, how: str, why: str) -> None:
    path = written(tmp_path)
    path.write_bytes(spoiled(path.read_bytes(), how))
    with pytest.raises(CheckpointError, match=why):
        read_results(path)


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize("at", ["name", "settings"])
def test_a_recipe_with_what_is_no_finite_number_is_named(tmp_path: Path, at: str, value: str) -> None:
    """A run that has not ended has no checksums: what stands there is read."""
    folder = folders(tmp_path)[0]
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe = {**recipe, "name": "MARK"} if at == "name" else {**recipe, "settings": {"rl": {"lr": "MARK"}}}
    (folder / "recipe.json").write_text(json.dumps(recipe).replace('"MARK"', value))
    with pytest.raises(CheckpointError, match=r"recipe\.json is damaged .*no finite number"):
        collect([folder], "rates")


def test_a_file_under_another_name_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(CheckpointError, match="another name, 'rates'"):
        read_results(path.rename(tmp_path / "other.jsonl.gz"))


def test_what_cannot_be_one_file_is_refused(tmp_path: Path) -> None:
    results = collect(folders(tmp_path), "rates")
    with pytest.raises(ConfigError, match=r"does not end in \.jsonl\.gz"):
        write_results(tmp_path / "rates.json", results)
    with pytest.raises(ConfigError, match="two runs are called 0-0"):
        write_results(tmp_path / "x.jsonl.gz", RawResults("x", (results.runs[0], results.runs[0]), ()))
    for name in ("../evil", "..", "y"):
        with pytest.raises(ConfigError, match=r"no name of results|another name"):
            write_results(tmp_path / "x.jsonl.gz", RawResults(name, results.runs, ()))
    with pytest.raises(ConfigError, match="give the folder of one matrix, or run folders"):
        collect([], "none")
    assert not list(tmp_path.glob("*.gz"))


def test_the_command_writes_and_lists(cli: Cli, tmp_path: Path) -> None:
    runs = [str(path) for path in folders(tmp_path)]
    out = tmp_path / "kept" / "rates.jsonl.gz"
    done = cli("results", "write", "rates", *runs, "--out", str(out), "--title", "Two rates")
    assert (done.returncode, done.stdout) == (0, f"{out}: 4 runs, 168 episodes\n"), done.stderr
    assert "Two rates" in cli("results", "list", str(out.parent)).stdout
    (tmp_path / "0-0" / "status.json").unlink()
    done = cli("results", "write", "rates", *runs)
    assert done.returncode == 1 and "is not a run folder" in done.stderr
