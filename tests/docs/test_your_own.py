"""`docs/your-own.md` from its first command to its last: a random chat model, a small shop, two trajectories."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from core_kit import Cli
from folders import ROOT
from own_kit import bring, shop

PAGE = (ROOT / "docs" / "your-own.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:^<!-- (?P<mark>.*) -->\n)?^```(?P<kind>bash|python)\n(?P<text>(?s:.*?))^```", re.M)
ADDRESS = "http://localhost:7770"


def steps() -> list[tuple[str, str]]:
    """What the page has one do: each command, and each block of Python, in order; what needs more is left out."""
    found = []
    for block in BLOCK.finditer(PAGE):
        if (block["mark"] or "").startswith("needs "):
            continue
        if block["kind"] == "python":
            found.append(("python", block["text"]))
        else:
            lines = block["text"].replace("\\\n", " ").splitlines()
            found += [("dynaweb", line.removeprefix("dynaweb ")) for line in lines]
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_leads_from_nothing_to_a_table(
    tmp_path: Path, warm_cli: Cli, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    outputs = {}
    with shop() as address:
        bring(tmp_path, address)
        for kind, text in steps():
            if kind == "python":
                capsys.readouterr()
                exec(compile(text, "your-own.md", "exec"), {})
                outputs["python"] = capsys.readouterr().out
                continue
            done = warm_cli(*shlex.split(text.replace(ADDRESS, address)))
            assert done.returncode == 0, (text, done.stdout[-2000:], done.stderr[-2000:])
            outputs[text] = done.stdout

    def of(start: str) -> str:
        (output,) = [output for text, output in outputs.items() if text.startswith(start)]
        return output

    assert "Open the page of tea" in of("data show")
    dry = outputs["run try.toml --dry-run"]
    assert "Tasks: 3 of split train, 3 of split test" in dry
    assert "2 usable trajectories with 4 steps, 2 of them of 2 of the environment's own tasks" in dry
    assert "machine: 8 x NVIDIA H100" in outputs["run try.toml --dry-run --on 8xh100"]
    table = of("run try.toml --out")
    said = r"DynaWeb succeeds on \d+\.\d % \[\d+\.\d, \d+\.\d\] of 3 tasks of split test, in the real browser"
    assert re.search(said, table), table
    assert (tmp_path / "runs" / "try" / "report.html").stat().st_size > 10_000
    assert "Open the page of tea" in outputs["python"]
    card = (tmp_path / "runs" / "try" / "hub" / "dynaweb" / "README.md").read_text(encoding="utf-8")
    assert "| DynaWeb |" in card and address not in card and str(tmp_path) not in card


def test_what_is_left_out_is_little() -> None:
    ran = [text.split()[0] for kind, text in steps() if kind == "dynaweb"]
    assert {"new", "run", "eval", "data", "push", "tasks"} <= set(ran) and len(ran) > 12
