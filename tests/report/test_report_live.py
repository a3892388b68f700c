"""`dynaweb view`: a report that follows its run, for this machine alone; dreams beside real pages; hostile text."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright
from report_fakes import HOSTILE, click, episode, home, product, served

from dynaweb.data.store import TrajectoryStore
from dynaweb.errors import CheckpointError, ConfigError
from dynaweb.matrix import MatrixFolder, plan_of, read_matrix
from dynaweb.report import build_report, gather
from dynaweb.serve.reports import server_for
from dynaweb.types import EpisodeFacts, Step, StepFacts, Trajectory


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")


def dream(like: Trajectory) -> Trajectory:
    """The first step of a real episode, dreamed with other facts."""
    (first, *_), name = like.steps, like.steps[1].observation.nodes[5].name
    step = replace(first, facts=StepFacts(dreamed=True))
    return replace(
        like, id="dream", steps=(step,), final=product(name, dreamed=True), source="dream", facts=EpisodeFacts()
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that goes on: explored, dreams, and two updates so far."""
    run = tmp_path / "run"
    (run / "trajectories").mkdir(parents=True)
    write(run / "recipe.json", {"description": "a trial", "settings": {"run": {"seed": 0}}, "origins": {}})
    write(run / "status.json", {"status": "running"})
    real = [episode(number, "success") for number in range(4)]
    TrajectoryStore(run / "trajectories" / "explore.jsonl.gz").append(real)
    TrajectoryStore(run / "trajectories" / "dreams.jsonl.gz").append([dream(one) for one in real])
    add_update(run, 0)
    add_update(run, 1)
    return run


def add_update(run: Path, index: int) -> None:
    row = {"event": "update", "stage": "rl", "index": index, "metrics": {"reward": 0.1 * index}}
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def ask(address: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_dream_is_shown_beside_what_really_followed(folder: Path) -> None:
    samples = [sample for sample in gather(folder).samples if sample.trajectory.source == "dream"]
    assert len(samples) == 4
    for sample in samples:
        (real,) = sample.real
        assert real is not None and sample.trajectory.final is not None
        assert real.url == sample.trajectory.final.url and real != sample.trajectory.final
    assert all(not sample.real for sample in gather(folder).samples if sample.trajectory.source == "real")


@pytest.mark.parametrize("facts", [StepFacts(recalled=True), StepFacts()])
def test_only_what_was_imagined_has_a_twin(folder: Path, facts: StepFacts) -> None:
    """A recalled page is the real one: beside itself it would pass for a dream that came true."""
    real = episode(0, "success")
    steps = (replace(real.steps[0], facts=facts),)
    known = replace(
        real, id="known", steps=steps, final=real.steps[1].observation, source="dream", facts=EpisodeFacts()
    )
    TrajectoryStore(folder / "trajectories" / "dreams.jsonl.gz").append([known])
    assert not gather(folder).samples[-1].real


def test_an_unseen_question_has_no_twin(folder: Path) -> None:
    page = home(__import__("random").Random(77))
    name = page.nodes[6].name
    alone = replace(
        episode(1, "success", "dream"),
        steps=(Step(page, click(page, name), facts=StepFacts(dreamed=True)),),
        final=page,
    )
    TrajectoryStore(folder / "trajectories" / "dreams.jsonl.gz").append([alone])
    assert not gather(folder).samples[-1].real


@contextmanager
def opened() -> Iterator[Page]:
    """An empty page of a real browser."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


def test_the_view_follows_the_run_and_shows_dreams_beside_real_pages(folder: Path) -> None:
    with served(folder) as address, opened() as page:
        trouble: list[str] = []
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("console", lambda message: trouble.append(message.text))
        page.on("request", lambda r: None if r.url.startswith(address) else trouble.append(r.url))
        page.goto(address)
        assert page.locator("header .chip.warn").inner_text() == "running"
        figure = page.locator("figure svg").first
        assert "over 2 points" in (figure.get_attribute("aria-label") or "")
        page.select_option("#filter-source", "dream")
        beside = page.locator(".page.compared")
        assert beside.locator("h4").inner_text().startswith("What really followed, against the dream")
        assert "12.50" in beside.locator(".added").inner_text()
        assert "14.90" in beside.locator(".removed").inner_text()
        # Nobody has touched the page since: it shows what is new by itself.
        page.reload()
        add_update(folder, 2)
        page.locator('figure svg[aria-label*="over 3 points"]').wait_for(timeout=10_000)
        # Somebody reads: it only says that there is more.
        page.keyboard.press("Escape")
        add_update(folder, 3)
        page.locator("#news").wait_for(state="visible", timeout=10_000)
        assert page.locator('figure svg[aria-label*="over 4 points"]').count() == 0
        page.click("#news")
        page.locator('figure svg[aria-label*="over 4 points"]').wait_for(timeout=10_000)
    assert trouble == []


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    """A matrix with one cell, which runs."""
    made = MatrixFolder(tmp_path / "matrix")
    plan = plan_of(read_matrix("smoke"))
    with made.lock():
        made.write_plan(plan)
    cell = made.cell(plan.cells[0].id)
    cell.mkdir(parents=True)
    write(cell / "status.json", {"status": "interrupted"})
    return made.path


def test_the_view_of_a_matrix_follows_its_cells(matrix: Path) -> None:
    (cell,) = (matrix / "cells").iterdir()
    with served(matrix) as address, opened() as page:
        trouble: list[str] = []
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("console", lambda message: trouble.append(message.text))
        page.goto(address)
        assert page.locator("td .chip").inner_text() == "interrupted"
        write(cell / "status.json", {"status": "failed", "error": "out of luck"})
        page.locator("td small", has_text="out of luck").wait_for(timeout=10_000)
        (matrix / "outcomes").mkdir()
        write(matrix / "outcomes" / f"{cell.name}.json", {"status": "failed", "seconds": 754.0})
        page.locator("td", has_text="12 min 34 s").wait_for(timeout=10_000)
    assert trouble == []


def test_an_answer_that_is_an_error_is_no_news(folder: Path) -> None:
    with served(folder) as address, opened() as page:
        asked: list[str] = []
        page.on("request", lambda r: None if "/data/" in r.url else asked.append(r.url.removeprefix(address)))
        page.route("**/version", lambda route: route.fulfill(status=500, body="trouble"))
        page.clock.install()
        page.goto(address)
        for _ in range(2):
            with page.expect_response("**/version") as answer:
                page.clock.run_for(2_000)
            answer.value.finished()
    assert asked == ["/", "/version", "/version"]


def test_only_reports_are_served_and_only_to_this_machine(folder: Path) -> None:
    with served(folder) as address:
        status, text = ask(address)
        assert status == 200 and text.startswith("<!doctype html>") and "connect-src" in text
        before = ask(f"{address}/version")[1]
        assert before == ask(f"{address}/version")[1] and before in text
        add_update(folder, 2)
        assert ask(f"{address}/version")[1] != before
        for path in ("/recipe.json", "/../run/recipe.json", "/cells/abc/report.html", "/trajectories/dreams.jsonl.gz"):
            assert ask(address + path)[0] == 404
        for host in ("evil.test", "evil.test:80", "localhost.evil.test", "127.0.0.1.evil.test"):
            assert ask(address, Host=host) == (403, "only this machine may look")
        request = urllib.request.Request(address, data=b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=10)
        assert caught.value.code == 501
        caught.value.close()
        with pytest.raises(ConfigError, match=r"cannot be used.*--port"):
            server_for(folder, port=int(address.rpartition(":")[2]))
    # A report in a file asks nobody.
    assert "connect-src" not in build_report(folder).read_text(encoding="utf-8")


def test_the_address_of_a_cell_gets_its_slash(folder: Path, matrix: Path) -> None:
    """The page asks for its version beside its own address."""
    cells = matrix / "cells"
    shutil.copytree(folder, cells / "abc1")
    with served(matrix) as address, opened() as page:
        asked: list[tuple[str, int]] = []
        page.on(
            "response", lambda r: None if "/data/" in r.url else asked.append((r.url.removeprefix(address), r.status))
        )
        page.goto(f"{address}/cells/abc1")
        with page.expect_response("**/version"):
            page.wait_for_timeout(10)
        assert asked[:2] == [("/cells/abc1", 301), ("/cells/abc1/", 200)]
        assert asked[2] == ("/cells/abc1/version", 200)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("http://[/", 400),
        ("http://[::1/x", 400),
        ("//[", 404),
        (f"/data/explore/{'9' * 5000}.js", 400),
        (f"/data/explore/{'%D9%A3' * 5000}.js", 400),
        ("/data/explore/999999999.js", 404),
        ("/data/explore/-1.js", 404),
    ],
)
def test_an_address_that_nobody_can_read_is_no_news(
    path: str, status: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(folder) as address:
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as browser, browser.makefile("rb") as reply:
            browser.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            assert int(reply.readline().split()[1]) == status
        assert ask(f"{address}/data/explore/0.js")[0] == 200
    assert "Traceback" not in capsys.readouterr().err


def test_a_browser_that_leaves_while_a_page_is_sent_is_no_news(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(folder) as address:
        for _ in range(3):
            port = int(address.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as browser:
                browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                browser.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert ask(address)[0] == 200
    assert capsys.readouterr().err == ""


def test_many_may_be_the_first_to_ask(folder: Path) -> None:
    with served(folder) as address, ThreadPoolExecutor(8) as pool:
        assert {status for status, _ in pool.map(ask, [address] * 32)} == {200}


def test_a_damaged_run_is_said_not_crashed(folder: Path, tmp_path: Path) -> None:
    with served(folder) as address:
        (folder / "recipe.json").write_text("{")
        status, text = ask(address)
        assert status == 500 and "recipe.json is damaged" in text
    with pytest.raises(CheckpointError, match="is no folder of runs"):
        server_for(tmp_path / "nothing")


def test_hostile_text_in_a_store_stays_text(folder: Path) -> None:
    bad = replace(episode(1, "success"), id=HOSTILE[0], task=replace(episode(1, "success").task, intent=HOSTILE[2]))
    TrajectoryStore(folder / "trajectories" / "eval-x.jsonl.gz").append([bad])
    with served(folder) as address:
        text = ask(address)[1]
    assert "<svg onload" not in text and "</textarea></title></style><!--" not in text
