"""Observers that a recipe names: TensorBoard, Weights & Biases, trackio, with their real packages; lines of metrics."""

from __future__ import annotations

import io
import json
import sqlite3
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from core_kit import Cli, PackageMaker

from dynaweb import events
from dynaweb.config import Recipe, resolve
from dynaweb.errors import ConfigError, MissingError
from dynaweb.observers import MetricsFile, ProgressDisplay
from dynaweb.observers.chosen import chosen_observers
from dynaweb.observers.scalars import finite, of_cached, of_evaluation
from dynaweb.plugin import registry as plugins


@contextmanager
def observed(folder: Path, name: str, **settings: Any) -> Iterator[Recipe]:
    """A short run, told to one observer."""
    loaded = plugins.load(warn=False)
    overrides = {"run.observers": [name], **{f"run.observer_settings.{name}.{key}": v for key, v in settings.items()}}
    recipe = resolve("smoke", overrides=overrides, plugins=loaded)
    folder.mkdir(exist_ok=True)
    with chosen_observers(recipe, loaded, folder):
        loaded.notify(events.RunStart(folder, recipe.tree()))
        for stage in ("sft", "rl"):
            for index in range(3):
                loaded.notify(events.Update(stage, index, {"loss": 1.0 / (1 + index), "bad": float("nan"), "kl": 0.25}))
            loaded.notify(events.Stage(stage, "done", "k", cost={"seconds": 2.0}))
        loaded.notify(events.Evaluation("dynaweb", "test", (1.0, 0.0, None)))
        yield recipe
        loaded.notify(events.RunEnd(folder, "done", 3.0))


def test_the_display_writes_lines_of_metrics_where_it_is_asked_to() -> None:
    stream = io.StringIO()
    display = ProgressDisplay(stream)
    display.dynaweb_run_start(events.RunStart(Path("run"), {"run": {"log_every": 2, "log_metrics": ["k", "loss"]}}))
    for stage in ("sft", "rl"):
        for index in range(3):
            metrics = {"loss": 1.0 / (1 + index), "kx": float("nan"), "kl": 0.25, "reward": 1.0}
            display.dynaweb_update(events.Update(stage, index, metrics))
    display.dynaweb_eval(events.Evaluation("dynaweb", "test", (1.0, 0.0, None)))
    lines = stream.getvalue().splitlines()[1:]
    assert lines[:2] == ["sft update 0: loss=1 kl=0.25", "sft update 2: loss=0.333 kl=0.25"]
    assert lines[-1] == "test, dynaweb: success=0.5 n=2"
    assert len(lines) == 6


def test_tensorboard_files_hold_the_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with observed(tmp_path / "run", "tensorboard"):
        pass
    read = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    read.Reload()
    assert [(one.step, round(one.value, 3)) for one in read.Scalars("rl/loss")] == [(0, 1.0), (1, 0.5), (2, 0.333)]
    assert {"sft/loss", "rl/kl", "eval/dynaweb/success", "eval/dynaweb/n", "cost/rl/seconds"} <= set(
        read.Tags()["scalars"]
    )
    assert not any("bad" in tag for tag in read.Tags()["scalars"])


def _made(folder: Path) -> tuple[events.Stage, list[object]]:
    """A stage as a run finds it in the cache, and what was told while it was made."""
    told: list[object] = [events.Update("rl", at, {"reward": 0.5 * at, "step_seconds": 2.0}) for at in range(2)]
    told.append(events.Evaluation("dynaweb", "test", (1.0, None), {"steps": 3.0}))
    file = MetricsFile(folder / "metrics.jsonl")
    (folder / "stage").mkdir(parents=True)
    file.dynaweb_stage(events.Stage("rl", "start", folder=folder / "stage"))
    for event in told:
        (file.dynaweb_update if isinstance(event, events.Update) else file.dynaweb_eval)(event)  # type: ignore[operator]
    file.dynaweb_stage(events.Stage("rl", "done", folder=folder / "stage"))
    file.close()
    return events.Stage("rl", "cached", "k", cost={"seconds": 2.0}, folder=folder / "stage"), told


def test_what_a_cached_stage_had_told_is_known(tmp_path: Path) -> None:
    cached, told = _made(tmp_path)
    assert list(of_cached(cached)) == told
    assert list(of_cached(replace(cached, status="done"))) == []


@pytest.mark.parametrize("resumed", [False, True])
def test_tensorboard_has_the_curves_of_cached_stages_unless_the_run_went_on(resumed: bool, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cached, _ = _made(tmp_path / "made")
    loaded = plugins.load(warn=False)
    recipe = resolve("smoke", overrides={"run.observers": ["tensorboard"]}, plugins=loaded)
    with chosen_observers(recipe, loaded, tmp_path):
        loaded.notify(events.RunStart(tmp_path, recipe.tree(), resumed=resumed))
        for _ in range(2):  # a run may have several stages of one name
            loaded.notify(cached)
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(one.step, one.value) for one in read.Scalars("cost/rl/seconds")] == [(0, 2.0), (1, 2.0)]
    assert (
        ("rl/reward" in read.Tags()["scalars"]) == ("eval/dynaweb/success" in read.Tags()["scalars"]) == (not resumed)
    )


def test_wandb_stays_offline_in_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_API_KEY", "")
    with observed(tmp_path / "run", "wandb", project="mine"):
        pass
    (written,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    # Its own process writes the file, and says that it is done before it is.
    wanted = (b"rl/loss", b"sft/update", b"eval/dynaweb/success")
    for _ in range(200):
        if missing := [name for name in wanted if name not in written.read_bytes()]:
            time.sleep(0.1)
    assert not missing


def test_a_resumed_run_is_the_same_run_in_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_API_KEY", "")
    for folder in ("run", "run", "other"):
        with observed(tmp_path / folder, "wandb"):
            pass
    ids = {
        folder: {path.name.split("-")[3] for path in (tmp_path / folder / "wandb").glob("offline-run-*")}
        for folder in ("run", "other")
    }
    assert len(ids["run"]) == len(ids["other"]) == 1 and ids["run"] != ids["other"]


def _in_tensorboard(folder: Path) -> set[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return set(read.Tags()["scalars"])


def _in_wandb(folder: Path) -> set[str]:
    from wandb.proto import wandb_internal_pb2

    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    names: set[str] = set()
    # Its own process writes the file, and says that it is done before it is.
    for _ in range(200):
        records = []
        for data in _records(path.read_bytes()):
            records.append(wandb_internal_pb2.Record())
            records[-1].ParseFromString(data)
        items = [item for record in records for item in (*record.history.item, *record.summary.update)]
        names = {item.key or "/".join(item.nested_key) for item in items}
        if any(record.HasField("exit") for record in records):
            break
        time.sleep(0.1)
    return {name for name in names if not name.startswith("_")}


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a file of Weights & Biases: LevelDB's log format (blocks of 32 KiB) after a head of 7 bytes."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if (rest := 32_768 - at % 32_768) < 7:
            at += rest
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def _in_trackio(folder: Path) -> set[str]:
    (database,) = (folder.parent / "trackio").glob("*.db")
    connection = sqlite3.connect(database)
    names = {name for (row,) in connection.execute("select metrics from metrics") for name in json.loads(row)}
    connection.close()
    return names


def _in_mlflow(folder: Path) -> set[str]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")
    run = client.get_run((folder / "mlflow" / "run-id").read_text())
    assert run.info.status == "FINISHED" and run.data.params["rl.updates"]
    steps = [(one.step, round(one.value, 3)) for one in client.get_metric_history(run.info.run_id, "rl/loss")]
    assert steps == [(0, 1.0), (1, 0.5), (2, 0.333)]
    return set(run.data.metrics)


READERS = {"tensorboard": _in_tensorboard, "wandb": _in_wandb, "trackio": _in_trackio, "mlflow": _in_mlflow}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what trackers are made of
@pytest.mark.parametrize("name", READERS)
def test_every_tracker_gets_the_same_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers of a run are called alike wherever they are watched; some want an axis for each stage too."""
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # it looks once, when it is imported
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    pytest.importorskip(name)
    with observed(tmp_path / "run", name):
        pass
    assert capsys.readouterr().out == ""
    names = {one for one in READERS[name](tmp_path / "run") if not one.endswith("/update")}
    curves = {f"{stage}/{metric}" for stage in ("sft", "rl") for metric in ("loss", "kl")}
    costs = {"cost/sft/seconds", "cost/rl/seconds"}
    assert names == curves | costs | {"eval/dynaweb/success", "eval/dynaweb/n"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_resumed_run_is_the_same_run_in_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow import MlflowClient

    loaded, folder = plugins.load(warn=False), tmp_path / "run"
    recipe = resolve("smoke", overrides={"run.observers": ["mlflow"]}, plugins=loaded)
    folder.mkdir()
    for resumed, status in ((False, "interrupted"), (True, "done")):
        with chosen_observers(recipe, loaded, folder):
            loaded.notify(events.RunStart(folder, recipe.tree(), resumed=resumed))
            loaded.notify(events.Update("rl", int(resumed), {"odd name @1": 0.5}))
            loaded.notify(events.RunEnd(folder, status, 1.0))  # type: ignore[arg-type]
    client = MlflowClient(f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("dynaweb").experiment_id])
    assert run.info.status == "FINISHED"
    assert [one.step for one in client.get_metric_history(run.info.run_id, "rl/odd name _1")] == [0, 1]


QUICK = (
    "env.driver=static data.demos=1 sft.batch=1 sft.steps=0 rl.updates=0 controls.sft_steps=[] eval.episodes=1 "
    "eval.steps=1 model.threads=1"
)


def _results(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("test, ")]


def test_an_observed_run_from_the_command_line_and_from_python(
    cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import dynaweb

    pytest.importorskip("tensorboard")
    settings = [word for setting in [*QUICK.split(), "run.log_every=1"] for word in ("--set", setting)]
    done = cli("run", "smoke", "--env", "sites", "--observe", "tensorboard", "--out", "run", *settings)
    assert done.returncode == 0, done.stderr
    assert "test, base: success=" in done.stderr
    rows = json.loads((tmp_path / "run" / "plugins.json").read_text())
    used = {f"{row['kind']} {row['name']}" for row in rows if row["used"] == "yes"}
    assert used > {"engine transformers", "env sites", "observer tensorboard", "opt gspo", "wm delta"}
    assert not used & {"env dream", "opt grpo", "engine vllm"}
    # All is in the cache now: what it had told is told again.
    again = cli("run", "smoke", "--env", "sites", "--observe", "tensorboard", "--out", "again", *settings)
    assert _results(again.stderr) == _results(done.stderr) != []
    changed = [*QUICK.split(), "sft.steps=1", "run.log_every=1"]
    dynaweb.sft("smoke", env="sites", overrides=changed, out=tmp_path / "sft", progress=True)
    assert "sft update 0: " in capsys.readouterr().err


def test_unknown_observers_and_settings_are_refused_before_anything_starts(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "--observe", "tensorbord", "--dry-run")
    assert done.returncode == 3
    assert "no observer is called 'tensorbord'; did you mean 'tensorboard'" in done.stderr
    loaded = plugins.load(warn=False)
    with pytest.raises(ConfigError, match=r"run\.observer_settings\.tensorboard.*did you mean 'flush_seconds'"):
        resolve("smoke", overrides={"run.observer_settings.tensorboard.flush_second": 2}, plugins=loaded)


def test_observers_change_no_result_and_may_change_on_resume() -> None:
    from dynaweb.matrix.plan import cell_id
    from dynaweb.runs.folder import FREE

    loaded = plugins.load(warn=False)
    plain = resolve("smoke", plugins=loaded)
    changed = {"run.observer_settings.tensorboard.flush_seconds": 3, "run.log_every": 5}
    watched = resolve("smoke", observe=["tensorboard"], overrides=changed, plugins=loaded)
    assert watched.run.observers == ("tensorboard",)
    assert cell_id(plain) == cell_id(watched)
    assert all(line.startswith(FREE) for line in plain.differences(watched))


def test_a_third_party_observer_is_closed_even_when_the_run_fails(package: PackageMaker, tmp_path: Path) -> None:
    code = """
from pydantic import BaseModel
from dynaweb.hookspecs import PluginSpec, hookimpl
class Config(BaseModel):
    word: str = "x"
@hookimpl
def dynaweb_observers():
    return [PluginSpec("noter", "noter_impl:Noter", Config, "writes notes")]
"""
    body = """
from dynaweb.hookspecs import hookimpl
class Noter:
    def __init__(self, config, context):
        self.path = context.folder / config.word
    @hookimpl
    def dynaweb_update(self, event):
        self.path.write_text(str(event.index))
    def close(self):
        self.path.with_suffix(".closed").touch()
"""
    package("noter", code, modules={"noter_impl": body})
    with pytest.raises(RuntimeError, match="broken"), observed(tmp_path / "run", "noter", word="y"):
        raise RuntimeError("broken")
    assert (tmp_path / "run" / "y").read_text() == "2"
    assert (tmp_path / "run" / "y.closed").exists()


def test_a_missing_extra_is_an_error_before_the_run(package: PackageMaker, tmp_path: Path) -> None:
    import dynaweb

    code = """
from pydantic import BaseModel
from dynaweb.hookspecs import PluginSpec, hookimpl
class Config(BaseModel):
    pass
@hookimpl
def dynaweb_observers():
    return [PluginSpec("far", "far_impl:Far", Config, "needs much", extra="big")]
"""
    package("far", code, requires=['no-such-distribution; extra == "big"'])
    plugins.load(warn=False)
    with pytest.raises(MissingError, match=r"pip install 'far\[big\]'"):
        dynaweb.run("smoke", overrides=['run.observers=["far"]'], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_numbers_only() -> None:
    assert finite({"a": 1, "b": True, "c": float("inf"), "d": None, "e": "x"}) == {"a": 1.0}
    assert of_evaluation(events.Evaluation("a", "test", (None,))) == {"eval/a/n": 0.0}
