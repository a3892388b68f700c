"""`benchmarks/gpu_suite.py`: what it asks of scripts is what they take, and nothing that hangs stops the rest."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import gpu_suite  # noqa: E402

HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print('{"child": %d}' % child.pid, flush=True)
print("{'no': 'JSON'}", flush=True)
time.sleep(600)
"""


class Parsed(Exception):
    """A script has read its arguments."""


def given(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"small": False, "stand_in": False, "gpus": 1, "again": False} | more)


def commands(**more: Any) -> list[Any]:
    return [
        pytest.param(command, id=f"{part.name}-{number}")
        for part in gpu_suite.parts(given(**more), Path("work"))
        for number, command in enumerate(part.commands)
    ]


@pytest.mark.parametrize("command", [*commands(gpus=2), *commands(small=True, stand_in=True)])
def test_scripts_take_what_the_suite_asks_of_them(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    if command[0] == "-m":
        command = command[command.index("benchmarks/ranks.py") :]
    if "async_trl" in command[0] and not (find_spec("trl") and find_spec("openenv")):
        pytest.skip("TRL and OpenEnv are not installed")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")  # that its trainer may change is known
    parse = argparse.ArgumentParser.parse_args

    def parsed(self: argparse.ArgumentParser, *more: Any, **named: Any) -> Any:
        raise Parsed(vars(parse(self, *more, **named)))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.setattr(sys, "argv", [str(ROOT / command[0]), *command[1:]])
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    with pytest.raises(Parsed):
        runpy.run_path(str(ROOT / command[0]), run_name="__main__")


@pytest.mark.parametrize(("visible", "count"), [(None, 2), ("0", 1), ("0,1", 2), ("", 0), ("0,1,2", 2)])
def test_only_gpus_that_the_process_may_use_are_counted(
    visible: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_suite, "_nvidia", lambda query: ["GPU-a", "GPU-b"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_suite.n_gpus() == count


def test_a_part_that_hangs_is_ended_with_all_its_processes_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def parts(*of: Any) -> list[gpu_suite.Part]:
        return [
            gpu_suite.Part("hangs", "", 2.0, (("-c", HANGS),)),
            gpu_suite.Part("fails", "", 20.0, (("-c", "raise SystemExit(3)"), ("-c", "print('{}')"))),
            gpu_suite.Part("works", "", 20.0, (("-c", "print('{\"a\": 1}')"), ("-c", "print('{\"b\": 2}')"))),
        ]

    monkeypatch.setattr(gpu_suite, "parts", parts)
    monkeypatch.setattr(gpu_suite, "LEAST_SECONDS", 0.5)
    monkeypatch.setattr(sys, "argv", ["gpu_suite.py", str(tmp_path / "found")])
    started = time.monotonic()
    assert gpu_suite.main() == 2
    assert time.monotonic() - started < 20
    (line,) = (tmp_path / "found" / "hangs.jsonl").read_text().splitlines()
    assert not psutil.pid_exists(json.loads(line)["child"])
    assert "{'no': 'JSON'}" in (tmp_path / "found" / "hangs.log").read_text()
    assert (tmp_path / "found" / "works.jsonl").read_text() == '{"a": 1}\n{"b": 2}\n'
    assert (tmp_path / "found" / "fails.jsonl").read_text() == ""
    lines = [json.loads(line) for line in (tmp_path / "found" / "summary.jsonl").read_text().splitlines()]
    assert [(one["part"], one["exit"]) for one in lines] == [("hangs", -1), ("fails", 3), ("works", 0)]

    # The same command goes on: what came through is not done again, and nothing begins that has no time.
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["gpu_suite.py", str(tmp_path / "found"), "--within", "0.1"])
    assert gpu_suite.main() == 0
    again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["part"], one["left"]) for one in again] == [("hangs", "no time for it"), ("fails", "no time for it")]
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--only", "fails", "works"])
    assert gpu_suite.main() == 0
    assert [json.loads(line)["part"] for line in capsys.readouterr().out.splitlines()] == ["fails"]
