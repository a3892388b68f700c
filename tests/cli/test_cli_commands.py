"""The command line: data on stdout, exit codes, and one clear message for every mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from core_kit import TOY_CLASS, Cli, PackageMaker, toy_source
from typer.testing import CliRunner

import dynaweb
from dynaweb.cli.app import tree
from dynaweb.config import resolve
from dynaweb.errors import ConfigError
from dynaweb.plugin import registry as plugins
from dynaweb.runs import open_run


def test_help_and_version(cli: Cli) -> None:
    done = cli("--help")
    assert done.returncode == 0
    for command in ("run", "sft", "wm", "collect", "eval", "plugins", "config", "setup", "doctor", "tasks"):
        assert f"\n  {command} " in done.stdout
    assert cli("--version").stdout == f"dynaweb {__import__('dynaweb').__version__}\n"
    assert cli().returncode == 2


@pytest.mark.parametrize(
    "command", ["run", "sft", "wm fit", "collect", "eval", "plugins list", "config show", "config schema", "tasks list"]
)
def test_every_command_explains_itself(command: str, cli: Cli) -> None:
    done = cli(*command.split(), "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: dynaweb {command} ")
    assert done.stderr == ""


def test_plugins_list(cli: Cli) -> None:
    done = cli("plugins", "list", "--json")
    rows = {(row["kind"], row["name"]): row for row in json.loads(done.stdout)}
    expected = {
        ("wm", "delta"),
        ("opt", "gspo"),
        ("reward", "self-assess"),
        ("reward", "checker"),
        ("env", "dream"),
        ("env", "sites"),
    }
    assert expected <= set(rows)
    for key in expected:
        assert (rows[key]["status"], rows[key]["package"]) == ("ok", "dynaweb")
        assert rows[key]["summary"]
    text = cli("plugins", "list", "-p", "no:delta").stdout
    assert "blocked by -p no:delta" in text
    assert text.splitlines()[0].split() == ["kind", "name", "package", "status", "summary"]


def test_a_broken_plugin_is_listed_and_warned_of(cli: Cli, package: PackageMaker) -> None:
    package("bad-package", "import no_such_module_anywhere", entry_points={"bad": "bad_package"})
    done = cli("plugins", "list", path=package.folder)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "broken ModuleNotFoundError: No module named 'no_such_module_anywhere'" in " ".join(done.stdout.split())
    done = cli("config", "show", path=package.folder)
    assert done.returncode == 0
    assert done.stderr.startswith("warning: plugin 'bad' of package bad-package 1.2 cannot be used: ModuleNotFound")
    assert cli("config", "show", "-p", "no:bad-package", path=package.folder).stderr == ""
    done = cli("config", "show", "--wm", "bad", path=package.folder)
    assert done.returncode == 3
    assert "error: --wm: world model 'bad' (package bad-package 1.2) cannot be used" in done.stderr
    assert cli("config", "show", path=package.folder, DYNAWEB_STRICT="1").returncode == 3


def test_config_show_is_a_recipe_with_origins(cli: Cli, tmp_path: Path) -> None:
    done = cli("config", "show", "dynaweb-paper", "--set", "rl.updates=5", "--seed", "2", "--thorough")
    assert done.returncode == 0
    assert done.stderr == ""
    data = tomllib.loads(done.stdout)
    assert (data["rl"]["updates"], data["run"]["seed"], data["eval"]["episodes"]) == (5, 2, 360)
    assert "updates = 5  # --set\n" in done.stdout
    assert "expert_share = 0.5  # dynaweb-paper.toml:rl.expert_share\n" in done.stdout
    (tmp_path / "mine.toml").write_text(done.stdout)
    again = cli("config", "show", "mine.toml")
    assert tomllib.loads(again.stdout) == data
    shown = json.loads(cli("config", "show", "--json").stdout)
    assert shown["origins"]["rl.lr"] == "default"
    schema = json.loads(cli("config", "schema").stdout)
    assert "updates" in schema["properties"]["rl"]["properties"]
    assert set(json.loads(cli("config", "recipes", "--json").stdout)) >= {"dynaweb", "dynaweb-paper", "smoke"}


def test_json_is_written_in_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    from dynaweb.cli.output import emit

    emit({"path": Path("größe"), "ids": ("a",), "unknown": [float("nan"), 0.5]}, "text", as_json=True)
    emit({"path": Path("größe")}, "text", as_json=False)
    written, _, text = capsys.readouterr().out.partition("\n}\n")
    assert written == '{\n  "path": "größe",\n  "ids": [\n    "a"\n  ],\n  "unknown": [\n    null,\n    0.5\n  ]'
    assert text == "text\n"
    commands = Path(__import__("dynaweb.cli").cli.__file__).parent
    assert [path.name for path in sorted(commands.glob("*.py")) if "echo(json.dumps" in path.read_text()] == [
        "output.py"
    ]


def test_dry_run_prints_the_plan(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "--wm", "delta", "--opt", "gspo", "--dry-run")
    assert done.returncode == 0
    assert done.stdout.startswith("Recipe dynaweb: wm=delta opt=gspo reward=self-assess env=dream")
    plan = json.loads(cli("run", "--dry-run", "--json", "--time-budget", "3").stdout)
    assert plan["settings"]["run"]["time_budget"] == 3
    assert plan["origins"]["run.time_budget"] == "--time-budget"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_stops_a_run_but_not_its_plan(cli: Cli, package: PackageMaker) -> None:
    requires = ['no-such-distribution; extra == "big"']
    package("toy-package", toy_source(extra="big"), requires=requires, modules={"toys": TOY_CLASS})
    done = cli("run", "--wm", "toy", "--dry-run", path=package.folder)
    assert done.returncode == 3 and "Estimate, " in done.stdout
    assert "needs no-such-distribution, which is not installed; run: pip install 'toy-package[big]'" in done.stderr
    done = cli("run", "--wm", "toy", path=package.folder)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "pip install 'toy-package[big]'" in done.stderr


IMPOSSIBLE = {
    "judge of real pages in dreams": (["--reward", "checker"], 2, "cannot score dream episodes"),
    "nothing to look ahead in": (["--env", "sites", "--agent", "lookahead"], 2, "has none; use --env dream"),
    "records of dreams": (["--set", "offline.episodes=4"], 2, "offline.episodes records real episodes"),
    "refresh of what is not fitted": (
        ["--wm", "frozen-llm", "--set", "wm_fit.refresh_every=1"],
        2,
        "'frozen-llm' cannot be fitted",
    ),
    "engine": (["--set", "policy.engine.name=toy-engine"], 3, "engine 'toy-engine' needs no-such-distribution"),
    "module that raises": (["--reward", "toy-judge"], 3, "its module toy_judges cannot be imported: ZeroDivisionError"),
    "module that is not there": (["--reward", "lost-judge"], 3, "'lost_judges'"),
    "class that is not there": (["--opt", "toy-opt"], 3, "toys has no class 'Lost'"),
    "environment of the evaluation": (["--eval-env", "toy-env"], 3, "environment 'toy-env' needs no-such-distribution"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_dry_run_refuses_what_the_run_would_and_a_refused_run_leaves_nothing(
    case: str,
    cli: Cli,
    package: PackageMaker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the same code and the same words, said once, after the plan; and without torch."""
    monkeypatch.chdir(tmp_path)
    offers = {
        "toy-engine": toy_source("toy-engine", hook="dynaweb_engines", extra="big"),
        "toy-env": toy_source("toy-env", hook="dynaweb_environments", extra="big"),
        "toy-judge": toy_source("toy-judge", hook="dynaweb_rewards", target="toy_judges:Toy"),
        "lost-judge": toy_source("lost-judge", hook="dynaweb_rewards", target="lost_judges:Toy"),
        "toy-opt": toy_source("toy-opt", hook="dynaweb_optimizers", target="toys:Lost"),
    }
    modules = {"toys": TOY_CLASS, "toy_judges": "import dynaweb.types\n1 / 0"}
    for name, source in offers.items():
        requires = ['no-such-distribution; extra == "big"'] if "big" in source else []
        package(f"{name}-package", source, requires=requires, modules=modules)
    arguments, code, message = IMPOSSIBLE[case]
    dry = cli("run", "smoke", *arguments, "--dry-run", path=package.folder)
    assert (dry.returncode, dry.stderr.count(message)) == (code, 1), dry.stderr
    assert dry.stdout.startswith("Recipe smoke") and "Estimate, " in dry.stdout
    real = CliRunner().invoke(tree(), ["run", "smoke", *arguments])
    assert (real.exit_code, real.stderr.count(message), real.stdout) == (code, 1, "")
    assert list(tmp_path.iterdir()) == []


def test_an_error_at_the_start_of_a_stage_alone_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (
        ["wm", "fit", "smoke", "--set", "wm_fit.validate_every=2", "--set", "wm_fit.holdout=0"],
        ["orm", "fit", "smoke", "--reward", "self-assess"],
        ["eval", "smoke", "--env", "sites", "--agent", "lookahead"],
        ["sft", "smoke", "--model", str(tmp_path)],
    ):
        done = CliRunner().invoke(tree(), words)
        assert done.exit_code in (2, 3) and done.stderr.count("\n") == 1, done.stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "--wm", "detla"], 3, "error: --wm: no world model is called 'detla'; did you mean 'delta'?"),
        (["run", "--set", "rl.updats=3"], 2, "error: --set: no setting is called 'rl.updats'; did you mean 'updates'?"),
        (["run", "--set", "rl.n=two"], 2, "error: --set: rl.n = 'two': input should be a valid integer"),
        (["run", "--set", "rl.n=1", "--set", "sft.lr=0"], 2, "error: 2 problems:\n  - --set: sft.lr = 0"),
        (["run", "nothing.toml"], 2, "error: recipe file nothing.toml does not exist"),
        (["run", "dynawep"], 2, "error: no recipe is called 'dynawep'; did you mean 'dynaweb'"),
        (["run", "-p", "delta"], 2, "error: -p delta: only `-p no:NAME` is known"),
        (["run", "-p", "no:delta"], 3, "blocked by -p no:delta"),
        (["run", "--resume", "--out", "nowhere"], 1, "error: nowhere is not a run folder"),
        (["run", "--seed", "x"], 2, "Invalid value for '--seed'"),
        (["run", "--nproc", "0"], 2, "Invalid value for '--nproc'"),
        (["run", "--nonsense"], 2, "No such option: --nonsense"),
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["tasks", "list", "--split", "tset"], 2, "error: no split is called 'tset'; did you mean 'test'?"),
    ],
)
def test_mistakes_get_one_clear_message(arguments: list[str], code: int, message: str, cli: Cli) -> None:
    done = cli(*arguments)
    assert message in done.stderr
    assert done.returncode == code
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(cli: Cli) -> None:
    for arguments in (["--debug", "run", "--wm", "x"], ["run", "--wm", "x", "--debug"]):
        done = cli(*arguments)
        assert done.returncode == 3
        assert "Traceback" in done.stderr
        assert done.stderr.rstrip().splitlines()[-1].startswith("error: --wm: no world model is called 'x'")


def test_a_changed_recipe_is_not_resumed_and_the_same_needs_no_flags(cli: Cli, tmp_path: Path) -> None:
    open_run(resolve("smoke", seed=4, plugins=plugins.load(warn=False)), out=tmp_path / "run")
    # Without a word about the recipe, the folder's own is meant.
    done = cli("run", "--resume", "--out", "run", "--dry-run", "--json")
    assert json.loads(done.stdout)["settings"]["run"]["seed"] == 4


def test_resume_without_a_folder_takes_the_last_run(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "--resume", "--dry-run")
    assert (done.returncode, done.stderr) == (
        1,
        "error: there is no run in runs/ to resume; name its folder with --out\n",
    )
    loaded = plugins.load(warn=False)
    open_run(resolve("smoke", seed=4, plugins=loaded), base=tmp_path / "runs")
    open_run(resolve("smoke", seed=5, plugins=loaded), base=tmp_path / "runs", command="sft")
    done = cli("run", "--resume", "--dry-run", "--json")
    assert json.loads(done.stdout)["settings"]["run"]["seed"] == 4
    assert "--resume goes on with runs/smoke-4-1, the run that was at work last (running); name another" in done.stderr
    done = cli("run", "smoke", "--seed", "4", "--resume", "--dry-run")
    assert "goes on with runs/smoke-4-1, the run of this recipe and seed that was begun last (running)" in done.stderr
    done = cli("run", "--resume", "--out", "runs/sft-smoke-5-1")
    assert done.returncode == 2
    assert "error: runs/sft-smoke-5-1 was made by `dynaweb sft`" in done.stderr


def test_a_resumed_run_is_compared_with_its_own_recipe(warm_cli: Cli, tmp_path: Path) -> None:
    """What the user changes is listed, and nothing by which the run differs from the default recipe."""
    (tmp_path / "mine.toml").write_text('extends = "smoke"\n[rl]\nupdates = 17\n')
    loaded = plugins.load(warn=False)
    open_run(resolve(tmp_path / "mine.toml", plugins=loaded), base=tmp_path / "runs")
    for words in (["--out", "runs/mine-0-1"], []):
        done = warm_cli("run", "--resume", *words, "--set", "rl.updates=20", "--set", "run.observers=[]")
        assert done.returncode == 2 and "another recipe" in done.stderr
        assert [line for line in done.stderr.splitlines() if "->" in line and "(folder" not in line] == [
            "  rl.updates: 17 -> 20"
        ]
    with pytest.raises(ConfigError, match="another recipe") as caught:
        dynaweb.run(out=tmp_path / "runs" / "mine-0-1", resume=True, seed=4)
    assert str(caught.value).count("\n  ") == 1 and "run.seed: 0 -> 4" in str(caught.value)
    free = warm_cli("run", "--resume", "--time-budget", "3", "--out", "runs/mine-0-1", "--dry-run", "--json")
    settings = json.loads(free.stdout)["settings"]
    assert settings["rl"]["updates"] == 17 and settings["run"]["time_budget"] == 3


def test_folders_that_cannot_take_a_run(warm_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    done = warm_cli("run", "smoke", "--out", "full")
    assert done.returncode == 2
    assert done.stderr.startswith("error: full exists and is not empty; nothing is overwritten.")
    done = warm_cli("run", "smoke", "--out", "full/notes/run")
    assert done.returncode == 2
    assert "run folder full/notes/run cannot be written: Not a directory; choose another with --out" in done.stderr
    open_run(resolve("smoke", seed=4, plugins=plugins.load(warn=False)), out=tmp_path / "run")
    done = warm_cli("run", "smoke", "--seed", "5", "--resume", "--out", "run")
    assert done.returncode == 2
    assert "\n  run.seed: 4 -> 5\n" in done.stderr
    assert done.stdout == ""


HANDLER = """
    import os, signal, sys, threading, time, asyncio
    import typer
    from dynaweb.cli import app as module
    from dynaweb.errors import Interrupted

    @module.app.command("wait")
    def wait(how: str) -> None:
        async def sleep() -> None:
            # Once the task waits: a signal that comes earlier would hit the task itself.
            asyncio.get_running_loop().call_soon(lambda: print("ready", flush=True))
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                print("saved", flush=True)
                raise
        if how == "async":
            asyncio.run(sleep())
        elif how == "raise":
            raise Interrupted("stopped; --resume goes on")
        else:
            print("ready", flush=True)
            time.sleep(30)

    from dynaweb.cli import main
    main(["wait", sys.argv[1]])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("how", ["async", "sync"])
@pytest.mark.parametrize("background", [False, True])
def test_signals_end_with_130(number: signal.Signals, how: str, background: bool) -> None:
    if background and number == signal.SIGINT:
        return  # a shell's background jobs ignore it on purpose
    command = [sys.executable, "-c", textwrap.dedent(HANDLER), how]

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if background else signal.default_int_handler)

    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=ignore)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == "interrupted\n"
    assert out == ("saved\n" if how == "async" else "")


def test_interrupted_with_state_saved_is_130() -> None:
    command = [sys.executable, "-c", textwrap.dedent(HANDLER), "raise"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "error: stopped; --resume goes on\n")


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m dynaweb config schema | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=dict(os.environ), check=False)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_setup_and_doctor(cli: Cli) -> None:
    done = cli("setup")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Chromium ")
    checks = {one["name"]: one for one in json.loads(cli("doctor", "--json").stdout)}
    assert checks["stage cache"] == {"name": "stage cache", "status": "ok", "detail": os.environ["DYNAWEB_CACHE"]}
    assert checks["plugin wm delta"]["status"] == "ok"
    assert checks["browser"]["status"] == "ok"
    done = cli("doctor", DYNAWEB_CHROMIUM="/nowhere/chromium", DYNAWEB_CACHE="/dev/null/x")
    assert done.returncode == 3
    assert "/nowhere/chromium" in done.stdout
    assert "not ready: " in done.stderr
    assert "browser, " in done.stderr
    assert "stage cache" in done.stderr


def test_a_browser_that_does_not_start(cli: Cli, tmp_path: Path) -> None:
    broken = tmp_path / "chrome"
    broken.write_text(
        "#!/bin/sh\necho 'chrome: error while loading shared libraries: libnss3.so: not found' >&2\nexit 127\n"
    )
    broken.chmod(0o755)
    done = cli("setup", DYNAWEB_CHROMIUM=str(broken))
    assert done.returncode == 3
    assert done.stdout == ""
    assert f"the browser {broken} (from environment) does not start: " in done.stderr
    assert "libnss3.so" in done.stderr
    assert "-m playwright install-deps chromium`" in done.stderr
    assert "apt-get install" in done.stderr
    # The setting wins over the environment; other checks are made all the same.
    done = cli("doctor", "--json", "--set", f"web.browser={broken}", DYNAWEB_CHROMIUM="/nowhere/chromium")
    assert done.returncode == 3
    checks = {one["name"]: one for one in json.loads(done.stdout)}
    assert f"the browser {broken} (from setting web.browser) does not start" in checks["browser"]["detail"]
    assert checks["plugin env sites"]["status"] == "ok"
    assert cli("doctor", "--set", "web.browsr=x").returncode == 2


RAISES = (
    TOY_CLASS
    + """
    def catalogue(self, split):
        return first(split)

    tasks = environment = expert = evaluate = skipped = catalogue


def first(split):
    return {}[split]
"""
)


def test_an_error_in_another_packages_code_names_it_and_where(cli: Cli, package: PackageMaker) -> None:
    source = toy_source(hook="dynaweb_environments").replace('extra=""', 'capabilities=frozenset({"tasks"})')
    package("toy-package", source, modules={"toys": RAISES})
    done = cli("tasks", "list", "--env", "toy", path=package.folder)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "error: environment 'toy' (package toy-package 1.2) failed in first (toys.py, line 13): KeyError: 'train'"
    )
    assert "return {}[split]" in done.stderr and len(done.stderr.splitlines()) < 6
    whole = cli("tasks", "list", "--env", "toy", path=package.folder, DYNAWEB_DEBUG="1")
    assert "Traceback" in whole.stderr
