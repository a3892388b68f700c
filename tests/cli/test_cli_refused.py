"""What people hand to commands that cannot be: one clear message and an exit code, never a traceback.

Each kind of thing (no permission, a folder for a file, another document, a name too long...) is tried on every command
that takes one, in this process.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from core_kit import PackageMaker, toy_source
from typer.testing import CliRunner, Result

import dynaweb
from dynaweb.cli.app import tree
from dynaweb.cli.process import STILL, file_error
from dynaweb.config import resolve
from dynaweb.config.files import expanded, parse_json, read_json
from dynaweb.data.chunks import ChunkFile
from dynaweb.data.store import TransitionStore
from dynaweb.errors import CheckpointError, ConfigError, EngineError
from dynaweb.plugin import registry as plugins
from dynaweb.report import gather
from dynaweb.runs import JsonlWriter, open_run, read_jsonl, write_json
from dynaweb.trainer.models import check_folders
from dynaweb.types import Action, Observation, Transition

TINY = Path(dynaweb.__file__).parent / "assets" / "tiny"
WRONG = {
    "a list": "[1]",
    "a number": "1",
    "a table": '{"a": [1]}',
    "no JSON": "[[",
    "bytes": "\udcff",
    "deep": "[" * 9999,
}

FOLDERS = ["status.json", "recipe.json", "metrics.jsonl", "seeds.json", "summary.json"]


def command(*words: str, code: int | None = None) -> str:
    """What a command that must not work says; only errors that it foresaw count."""
    done: Result = CliRunner().invoke(tree(), words)
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
    assert done.exit_code in ({1, 2, 3} if code is None else {code}), (words, done.output)
    assert "Traceback" not in done.output
    return " ".join(done.output.split())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, as far as commands read it."""
    folder = open_run(resolve("smoke", plugins=plugins.load()), out=tmp_path_factory.mktemp("made") / "run")
    arms = [{"name": "main", "role": "main", "outcomes": [[1.0, 0.0]]}]
    write_json(folder.path / "summary.json", {"arms": arms, "probes": [], "drift": []})
    with JsonlWriter(folder.metrics) as rows:
        rows.write({"event": "eval", "arm": "main", "split": "test", "successes": [1.0, 0.0]})
    folder.set_status("done")
    return folder.path


@pytest.fixture
def run(here: Path, made: Path) -> Path:
    """One of its own for a test, beside a whole one to compare it with: writing to the disk takes longest."""
    shutil.copytree(made, here / "other")
    return shutil.copytree(made, here / "run")


@pytest.fixture
def store(here: Path) -> Path:
    page = Observation("http://a.test/", ())
    TransitionStore(here / "s.jsonl.gz").append([Transition(page, Action("wait"), page, "task", "test", {})])
    return here / "s.jsonl.gz"


PASS_OVER = 0b1110
"""CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER, by which root passes over permissions."""


@pytest.fixture
def permissions() -> Iterator[None]:
    """Permissions hold for root too."""
    libc = ctypes.CDLL(None, use_errno=True)
    head, caps = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(head, caps) == 0
    before = caps[0]
    caps[0] = before & ~PASS_OVER
    assert libc.capset(head, caps) == 0
    yield
    caps[0] = before
    assert libc.capset(head, caps) == 0


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize(
    "name",
    ["status.json", "recipe.json", "metrics.jsonl", "seeds.json", "versions.json", "plugins.json", "summary.json"],
)
def test_files_of_a_run_that_are_no_such_documents(name: str, kind: str, run: Path) -> None:
    (run / name).write_bytes(f"{WRONG[kind]}\n".encode(errors="surrogateescape"))
    if kind == "a table" and name != "plugins.json":
        gather(run)  # tables of other things leave out what they lack
        return
    for words in (("report", "run"), ("compare", "run", "other"), ("run", "--resume", "--out", "run", "--dry-run")):
        if "--resume" in words and name != "recipe.json":
            continue
        told = command(*words, code=1)
        assert f"run/{name} is damaged (" in told and ("restore it" in told or "new run" in told)


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_where_files_of_a_run_belong(name: str, run: Path) -> None:
    (run / name).unlink()
    (run / name).mkdir()
    assert f"run/{name} cannot be read (Is a directory)" in command("report", "run", code=1)
    assert f"run/{name} cannot be read (Is a directory)" in command("compare", "run", "other", code=1)


@pytest.mark.parametrize("event", ["eval", "update", "stage"])
def test_rows_without_what_they_should_hold(event: str, run: Path) -> None:
    (run / "summary.json").unlink()
    row = {"event": event, "split": "test"}
    (run / "metrics.jsonl").write_text(json.dumps({**row, "metrics": {"loss": 1}} if event == "update" else row) + "\n")
    assert "run/metrics.jsonl is damaged (it does not hold what it should: KeyError" in command("report", "run", code=1)


def test_what_a_resumed_run_finds_is_looked_at_first(run: Path) -> None:
    (run / "seeds.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"seeds\.json is damaged .*start a new run"):
        open_run(resolve("smoke", plugins=plugins.current()), out=run, resume=True)


@pytest.mark.parametrize("place", ["folder", "/dev/null"])
def test_a_store_is_a_file(place: str, here: Path, store: Path) -> None:
    (here / "folder").mkdir()
    with pytest.raises(CheckpointError, match="is a folder or a device, not a file"):
        ChunkFile(Path(place))
    told = command("collect", "smoke", "--by", "random", "--store", place, "--out", "out", code=1)
    assert "is a folder or a device, not a file" in told
    if place == "folder":
        for to in ("trl", "llamafactory"):
            told = command("data", "export", str(store), place, "--to", to, "--force", code=1)
            assert "folder is a folder where a file belongs" in told


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("report run", "run/report.html cannot be reached or made, because"),
        ("run --resume --out run", "run/.lock cannot be reached or made, because run cannot be written"),
        ("report closed", "closed/recipe.json cannot be read (Permission denied); get the right to it"),
        ("compare closed run", "closed/recipe.json cannot be read (Permission denied); get the right to it"),
        ("report shut", "shut/matrix.json cannot be reached or made, because shut cannot be entered"),
        ("new plugin hi --kind reward --out ro/x", "ro/x cannot be reached or made, because ro cannot be written"),
        ("run smoke --out ro/r", "run folder ro/r cannot be written"),
        ("data stats secret.gz", "secret.gz cannot be read: Permission denied; get the right to it"),
        ("data import mind2web secret.gz out.gz", "secret.gz cannot be read: Permission denied; get the right to it"),
        ("data export s.jsonl.gz ro/x.json --to trl", "ro/x.json cannot be reached or made, because"),
        ("run secret.toml --dry-run", "recipe secret.toml cannot be read"),
        ("matrix status shut", "shut/matrix.json cannot be reached or made, because shut cannot be entered"),
    ],
)
def test_what_this_user_may_not_do(words: str, why: str, run: Path, store: Path, permissions: None) -> None:
    place = run.parent
    shutil.copytree(run, place / "closed")
    (place / "closed" / "recipe.json").chmod(0)
    for name in ("secret.gz", "secret.toml"):
        (place / name).touch(0)
    for name, mode in (("shut", 0), ("ro", 0o555)):
        (place / name).mkdir(mode)
    run.chmod(0o555)
    try:
        assert why in command(*words.split())
    finally:
        for name in ("run", "shut", "ro"):
            (place / name).chmod(0o755)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENAMETOOLONG, "a name that is too long"),
        (errno.ENOTDIR, "is not a folder"),
        (errno.ELOOP, "leads to itself"),
        (errno.EEXIST, "is there already"),
        (errno.EXDEV, "cannot be used: Invalid cross-device link"),
    ],
)
def test_other_refusals_of_the_system(number: int, words: str) -> None:
    told = str(file_error(OSError(number, os.strerror(number), "/some/place")))
    assert told.startswith("/some/place ") and words in told
    assert "--debug" in told or "give " in told
    assert "ulimit -n" in str(file_error(OSError(errno.EMFILE, "")))
    assert file_error(OSError(number, os.strerror(number))) is None, "of what has no name the traceback says more"
    assert file_error(ValueError("/some/place")) is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("run", "smoke", "--out", "a" * 300), "has a name that is too long; give a shorter one"),
        (("new", "plugin", "a" * 250, "--kind", "reward"), "has a name that is too long; give a shorter one"),
        (("run", "smoke", "--out", ""), "argument 4 after --out is empty"),
        (("eval", "smoke", "--policy", ""), "argument 4 after --policy is empty"),
        (("report", ""), "is empty; give a value"),
        (("run", "smoke", "--out="), "--out= has no value"),
        (("eval", "smoke", "--policy", "\udcff"), "'\\udcff' is not UTF-8 text"),
        (("run", "smoke", "--out", "a\udcff"), "is not UTF-8 text"),
        (("run", "smoke", "--recipe", "sft"), "RECIPE smoke and --recipe sft are two recipes"),
        (("run", "dynaweb", "--recipe", "sft"), "RECIPE dynaweb and --recipe sft are two recipes"),
        (("run", "deep.toml", "--dry-run"), "deep.toml nests its values too deep"),
        (("run", "smoke", "--dry-run", "--set", f"wm.x={'[' * 3000}{']' * 3000}"), "no setting is called 'wm.x'"),
        (("run", "~nouser/x.toml"), "the home of that user is not known"),
        (("data", "import", "mind2web", "none.json", "o.gz"), "none.json is no file"),
        (("data", "import", "mind2web", "none/one.json", "o.gz"), "none/one.json is no file"),
    ],
)
def test_words_that_mean_nothing(words: tuple[str, ...], why: str, here: Path) -> None:
    (here / "deep.toml").write_text(f"x = {'[' * 5000}{']' * 5000}")
    assert why in command(*words)
    assert [path.name for path in here.iterdir()] == ["deep.toml"]


def test_a_data_set_that_is_not_here_is_no_file_either(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    told = command("data", "import", "nnetnav", "owner/name", "o.gz", code=3)
    assert "there is no file or folder owner/name; as the name of a data set, this needs the package datasets" in told


@pytest.mark.parametrize("line", ["run smoke --dry-run", "eval smoke"])
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            ["env.task_settings.driver=nope"],
            "env.task_settings.driver = 'nope': input should be 'chromium' or 'sta",
        ),
        (["env.task_settings.drivr=static"], "no setting is called 'env.task_settings.drivr'; did you mean 'driver'?"),
        (["env.tasks=sitess"], "no environment is called 'sitess'; did you mean 'sites'?"),
        (["eval.env=sitess"], "no environment is called 'sitess'; did you mean 'sites'?"),
        (["eval.env=sites", "eval.env_settings.drivr=x"], "no setting is called 'eval.env_settings.drivr'"),
    ],
)
def test_settings_of_environments_that_others_name(line: str, settings: list[str], why: str, here: Path) -> None:
    told = command(*line.split(), *(word for one in settings for word in ("--set", one)))
    assert f"--set: {why}" in told and "pydantic" not in told
    assert not list(here.iterdir()), "nothing was begun"


BROKEN = {
    "an empty tokenizer": ("tokenizer.json", "{}", "is no tokenizer"),
    "a list for a tokenizer": ("tokenizer.json", "[]", "holds a list where a table belongs"),
    "a list of settings": ("config.json", "[]", "holds a list where a table belongs"),
    "other settings": ("config.json", '{"a": 1}', "transformers cannot load"),
    "a list beside the tokenizer": ("tokenizer_config.json", "[1]", "holds a list where a table belongs"),
    "a list for sampling": ("generation_config.json", "[1]", "holds a list where a table belongs"),
    "odd heads": ("config.json", "7", "not a multiple of the number of attention heads"),
    "a word for a size": ("config.json", '"x"', "hidden_size"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_folders_of_broken_models(what: str, here: Path) -> None:
    name, text, why = BROKEN[what]
    shutil.copytree(TINY, here / "m" / "model", copy_function=shutil.copy)
    check_folders(here / "m")
    file = here / "m" / "model" / name
    if name == "config.json" and text[0] not in "[{":
        text = json.dumps({**json.loads(file.read_text()), "hidden_size": json.loads(text)})
    file.unlink()
    file.write_text(text)
    with pytest.raises((CheckpointError, EngineError), match=why):
        check_folders(here / "m")
    assert why in command("eval", "smoke", "--policy", "m", code=1)
    if what in ("a list of settings", "odd heads"):
        assert why in command("run", "smoke", "--model", "./m/model", code=1)
    CliRunner().invoke(tree(), ["run", "smoke", "--model", "./m/model", "--dry-run"], catch_exceptions=False)


@pytest.mark.parametrize("kind", ["BaseException('boo')", "KeyboardInterrupt", "GeneratorExit", "SystemExit(0)"])
def test_a_plugin_may_raise_what_it_likes(kind: str, package: PackageMaker) -> None:
    package("bad-package", f"raise {kind}", entry_points={"bad": "bad_package"})
    package("late-package", toy_source(target="late_impl:Toy"), entry_points={"late": "late_package"})
    (package.folder / "late_impl.py").write_text(f"raise {kind}")
    assert CliRunner().invoke(tree(), ["config", "recipes"]).exit_code == 0
    name = kind.partition("(")[0]
    assert f"'bad' (package bad-package 1.2) cannot be used: {name}" in command("config", "show", "--wm", "bad", code=3)
    told = command("run", "smoke", "--wm", "toy", "--dry-run", code=3)
    assert f"its module late_impl cannot be imported: {name}" in told


def test_an_interruption_while_plugins_are_imported_is_the_users(package: PackageMaker) -> None:
    source = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nfor _ in range(10**9): pass"
    package("slow-package", source, entry_points={"slow": "slow_package"})
    with pytest.raises(KeyboardInterrupt):
        plugins.load()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_that_a_library_hides_is_the_users(package: PackageMaker, number: signal.Signals) -> None:
    """Some turn whatever ends their imports into an `ImportError`; without a signal it is the plugin's fault."""
    package("late-package", toy_source(target="late_impl:Toy"), entry_points={"late": "late_package"})
    source = """
import os, time
try:
    os.kill(os.getpid(), NUMBER)
    time.sleep(60 if NUMBER else 0)
except KeyboardInterrupt:
    pass
raise ImportError("half imported")
"""
    line = [sys.executable, "-m", "dynaweb", "run", "smoke", "--wm", "toy", "--dry-run"]
    paths = os.pathsep.join(filter(None, [str(package.folder), os.environ.get("PYTHONPATH")]))
    ends = []
    for sent in (int(number), 0):
        (package.folder / "late_impl.py").write_text(source.replace("NUMBER", str(sent)))
        done = subprocess.run(
            line, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths}
        )
        ends.append((done.returncode, "half imported" in done.stderr))
    assert ends == [(130, False), (3, True)]


def test_a_second_signal_is_told_of_to_who_waits(here: Path) -> None:
    code = """
import asyncio, sys, time
from dynaweb.cli.process import tell_of_signals
tell_of_signals(0.1)
async def work():
    print("blocks", flush=True)
    time.sleep(60)
asyncio.run(work())
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "blocks\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == f"{STILL}\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    process.stdout.close()
    process.stderr.close()


def test_streams_that_the_shell_has_closed_or_that_are_full() -> None:
    def shell(line: str) -> subprocess.CompletedProcess[str]:
        words = f"{sys.executable} -m dynaweb {line}"
        return subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False)

    done = shell("play --recipe smoke --set env.task_settings.driver=static <&-")
    assert (done.returncode, "given up after 0 steps" in done.stdout) == (0, True)
    full = shell("config recipes > /dev/full")
    assert full.returncode == 1
    assert full.stderr.startswith("error: the disk is full (No space left on device)")
    assert shell("config recipes >&- 2>&-").returncode == 0


def test_a_folder_that_is_gone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "gone").mkdir()
    monkeypatch.chdir(here / "gone")
    (here / "gone").rmdir()
    assert "is gone; change to another one with cd" in command("new", "plugin", "hi", "--kind", "reward", code=1)


def test_names_that_are_not_utf8_are_escaped_in_records(here: Path) -> None:
    with JsonlWriter(here / "m.jsonl") as rows:
        rows.write({"folder": "a\udcff", "größe": 1})
    assert list(read_jsonl(here / "m.jsonl")) == [{"folder": "a\udcff", "größe": 1}]
    write_json(here / "a.json", {"folder": "a\udcff"})
    assert read_json(here / "a.json", dict) == {"folder": "a\udcff"}


def test_unwritable_files_are_called_by_their_own_names(here: Path) -> None:
    (here / "a.json").mkdir()
    with pytest.raises(OSError, match="directory") as refused:
        write_json(here / "a.json", {})
    assert refused.value.filename == str(here / "a.json")
    assert [path.name for path in here.iterdir()] == ["a.json"]


def test_commands_that_are_advised_can_be_pasted(run: Path) -> None:
    spaced = run.rename(run.with_name("my run"))
    with pytest.raises(ConfigError, match=r"--resume --out '[^']*/my run', choose"):
        open_run(resolve("smoke", plugins=plugins.current()), out=spaced)


def test_documents_and_homes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_json("[1]", list) == [1]
    with pytest.raises(ValueError, match="holds a table where a list belongs"):
        parse_json("{}", list)
    with pytest.raises(ConfigError, match=r"none\.json cannot be read .*No such file.*; write one"):
        read_json(here / "none.json", dict, error=ConfigError, advice="write one")
    monkeypatch.setenv("HOME", str(here))
    assert expanded("~/x") == here / "x"
    with pytest.raises(ConfigError, match="home of that user"):
        expanded("~nouser/x")
    monkeypatch.setenv("DYNAWEB_CACHE", "~nouser/x")
    assert "~nouser/x: the home of that user is not known" in command("cache", "list", code=2)


def test_mistakes_of_our_own_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("dynaweb.data.store.open_store", broken)
    assert isinstance(CliRunner().invoke(tree(), ["data", "stats", "x"]).exception, ZeroDivisionError)
