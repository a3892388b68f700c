"""Copies of WebArena's sites: each episode has one to itself, begins on what was published, and shares no state.

Small servers that keep state and count what they are asked stand in for the sites.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, redirect, request
from webarena_stubs import stub_sites
from werkzeug.serving import make_server

from dynaweb.config.sections import Web
from dynaweb.errors import ConfigError, InfrastructureError
from dynaweb.protocols import EnvironmentContext
from dynaweb.types import Action, Observation, Step, Trajectory
from dynaweb.web.chromium.session import ChromiumSession
from dynaweb_env_webarena import WebarenaConfig
from dynaweb_env_webarena.copies import Copies, address_sets
from dynaweb_env_webarena.env import WebarenaEnvironment, WebarenaSource
from dynaweb_env_webarena.sites import filled, full_reset

PUBLISHED = ["tea"]


@dataclass
class Shop:
    """A shop with a basket that everybody sees. `base` is where its links lead."""

    url: str = ""
    base: str = ""
    basket: list[str] = field(default_factory=lambda: list(PUBLISHED))
    asked: int = 0
    resets: list[str] = field(default_factory=list)


@contextmanager
def shops(count: int) -> Iterator[list[Shop]]:
    """So many shops, each on a port of its own."""
    states, servers, threads = [], [], []
    for _ in range(count):
        state = Shop()
        server = make_server("127.0.0.1", 0, _app(state), threaded=True)
        state.url = state.base = f"http://127.0.0.1:{server.server_port}"
        threads.append(threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}))
        threads[-1].start()
        states.append(state)
        servers.append(server)
    try:
        yield states
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


def _app(state: Shop) -> Flask:
    app = Flask("shop")

    @app.get("/")
    def home() -> str:
        state.asked += 1
        form = "<form method=post action=/add><button>Add</button></form>"
        link = f"<a href={state.base}/help>Help</a>"
        return f"<!doctype html><title>Shop</title><h1>{len(state.basket)} goods</h1>{form}{link}"

    @app.get("/help")
    def help_page() -> str:
        return "<!doctype html><title>Help</title><h1>Help</h1>"

    @app.post("/add")
    def add() -> Any:
        state.basket.append("rice")
        return redirect("/")

    @app.get("/reset")
    def reset() -> str:
        state.basket[:] = PUBLISHED
        state.resets.append(request.args.get("sites", ""))
        return "done"

    return app


Make = Callable[..., WebarenaSource]


@pytest.fixture
async def make(tmp_path: Path) -> Any:
    """Makes a source with tasks of one site, `shop`."""
    sources: list[WebarenaSource] = []

    def source(*urls: str, at_once: int = 2, **settings: Any) -> WebarenaSource:
        evaluation = {
            "eval_types": ["program_html"],
            "program_html": [{"url": "__SHOP__/", "locator": "", "required_contents": {"must_include": ["2 goods"]}}],
        }
        raw = {"sites": ["shop"], "intent": "Add one", "start_url": "__SHOP__/", "eval": evaluation}
        path = tmp_path / "tasks.json"
        path.write_text(json.dumps([raw | {"task_id": number} for number in range(4)]))
        own = {"path": str(path), "auth": str(tmp_path / "auth"), "view": "compact", "urls": {"shop": urls}}
        web = Web(contexts=at_once)
        sources.append(WebarenaSource(WebarenaConfig(**(own | settings)), EnvironmentContext(web=web)))
        return sources[-1]

    yield source
    for one in sources:
        await one.close()


async def add_one(source: WebarenaSource, environment: WebarenaEnvironment, number: int) -> list[Observation]:
    """An episode that puts one more thing into the basket, and is right when exactly one was added."""
    task = source.catalogue("test")[number]
    pages = [await environment.reset(task, 0)]
    (button,) = [node.id for node in pages[0].nodes if node.role == "button"]
    pages.append((await environment.step(Action("click", button))).observation)
    steps = (Step(pages[1], Action("stop", text="done")),)
    verdict = await source.evaluate(environment, Trajectory(task.id, task, steps, pages[1], "real", "stop"))
    assert verdict.score == 1.0, verdict.why
    return pages


def heading(page: Observation) -> str:
    return next(node.name for node in page.nodes if node.role == "heading")


async def test_episodes_side_by_side_share_no_state_and_begin_on_what_was_published(make: Make, tmp_path: Path) -> None:
    with shops(2) as (first, second):
        ports = [shop.url.rpartition(":")[2] for shop in (first, second)]
        script = tmp_path / "reset.py"
        script.write_text(
            "import sys, urllib.request\n"
            f"port = {ports}[int(sys.argv[1]) - 1]\n"
            "urllib.request.urlopen(f'http://127.0.0.1:{port}/reset?sites={sys.argv[2]}')\n"
        )
        source = make(first.url, second.url, reset_copy=f"{sys.executable} {script} {{copy}} {{sites}}")
        environments = [source.environment() for _ in range(2)]
        for numbers in ((0, 1), (2, 3)):
            played = await asyncio.gather(*map(add_one, [source] * 2, environments, numbers))
            for pages in played:
                assert [heading(page) for page in pages] == ["1 goods", "2 goods"]
                # Whichever copy it was: what is stored and learned from has the first one's addresses.
                assert {page.url for page in pages} == {f"{first.url}/"}
                assert {node.address for page in pages for node in page.nodes if node.role == "link"} <= {
                    "",
                    f"{first.url}/help",
                }
        assert first.asked and second.asked
        assert [shop.resets for shop in (first, second)] == [["shop", "shop"]] * 2
        for environment in environments:
            await environment.close()
        # A copy that was given back is there for the next; a page of the second copy is the second copy's.
        again = source.environment()
        assert heading(await again.reset(source.catalogue("test")[0], 0)) == "1 goods"
        await again.close()


async def test_without_a_reset_what_an_episode_changed_stays(make: Make) -> None:
    with shops(1) as (shop,):
        source = make(shop.url, at_once=1)
        environment = source.environment()
        await add_one(source, environment, 0)
        assert heading(await environment.reset(source.catalogue("test")[1], 0)) == "2 goods" and not shop.resets
        await environment.close()


async def test_a_copy_that_leads_to_another_ends_the_episode(make: Make) -> None:
    with shops(2) as (first, second):
        second.base = first.url  # as a shop whose base address was not set
        source = make(first.url, second.url, reset_copy=f"{first.url}/reset?copy={{copy}}&sites={{sites}}")
        one, two = source.environment(), source.environment()
        for environment in (one, two):
            page = await environment.reset(source.catalogue("test")[0], 0)
            (link,) = [node.id for node in page.nodes if node.role == "link"]
            if environment is one:
                assert (await environment.step(Action("click", link))).observation.url == f"{first.url}/help"
                continue
            with pytest.raises(InfrastructureError, match="copy 2 led to copy 1 of shop, so"):
                await environment.step(Action("click", link))
        await one.close()
        await two.close()
        assert first.resets == ["shop", "shop"]


async def test_a_reset_that_fails_costs_the_episode_and_is_tried_again(make: Make, tmp_path: Path) -> None:
    with shops(1) as (shop,):
        flag, script = tmp_path / "works", tmp_path / "reset.sh"
        script.write_text(f"[ -e {flag} ] || {{ echo 'Error: no such container: shop'; echo '}}'; exit 3; }}\n")
        source = make(shop.url, at_once=1, reset_copy=f"sh {script}")
        environment = source.environment()
        task = source.catalogue("test")[0]
        with pytest.raises(InfrastructureError, match=r"resetting copy 1 failed: .*Error: no such container: shop"):
            await environment.reset(task, 0)
        flag.touch()
        assert heading(await environment.reset(task, 0)) == "1 goods"
        await environment.close()
        for reset in ("no-such-program-here", f"{shop.url}/nowhere"):
            broken = make(shop.url, at_once=1, reset_copy=reset).environment()
            with pytest.raises(InfrastructureError, match="resetting copy 1 failed"):
                await broken.reset(task, 0)
            await broken.close()


def copies_of(urls: dict[str, tuple[str, ...]], reset: str, **settings: Any) -> Copies:
    return Copies(WebarenaConfig(urls=urls, reset_copy=reset, **settings), address_sets(urls), None)


def two_shops(first: Shop, second: Shop) -> tuple[dict[str, tuple[str, ...]], str]:
    """The sites `shop` and `forum` of one copy, and what resets them."""
    return {"shop": (first.url,), "forum": (second.url,)}, f"{first.url}/reset?sites={{sites}}"


async def played(copies: Copies, *sites: str) -> None:
    """An episode that begins on sites."""
    copy = await copies.take()
    try:
        await copies.prepare(copy, sites)
    finally:
        copies.give_back(copy)


async def test_a_reset_that_is_given_up_does_not_go_on_behind_the_next_episode(tmp_path: Path) -> None:
    script, late, begun = tmp_path / "reset.sh", tmp_path / "late", tmp_path / "begun"
    # As a script that has a program of its own do the work.
    script.write_text(f"(touch {begun}; sleep 1; touch {late}) &\nwait\n")
    urls = {"shop": ("http://127.0.0.1:9",)}
    copies = copies_of(urls, f"sh {script}", reset_timeout=0.3)
    with pytest.raises(InfrastructureError, match=r"resetting copy 1 failed: .*: no end after 0\.3 s"):
        await played(copies)
    begun.unlink()
    cancelled = asyncio.create_task(played(copies_of(urls, f"sh {script}")))
    while not begun.exists():
        await asyncio.sleep(0.01)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await asyncio.sleep(1.2)
    assert not late.exists()
    # What a reset has started may go on, such as the site itself.
    script.write_text(f"(sleep 0.5; touch {late}) &\n")
    began = time.monotonic()
    await played(copies_of(urls, f"sh {script}"))
    assert time.monotonic() - began < 0.5
    while not late.exists():
        await asyncio.sleep(0.05)


ANSWERS: dict[str, tuple[bytes | None, str]] = {
    "why": (b"HTTP/1.0 500 X\r\n\r\nworker 1: no such image", "HTTP Error 500: X: worker 1: no such image"),
    "no words": (b"HTTP/1.0 503 Busy\r\n\r\n", "HTTP Error 503: Busy$"),
    "no http": (b"hello\r\n\r\n", "hello"),
    "cut": (b"HTTP/1.0 200 OK\r\nContent-Length: 90\r\n\r\ndone", "IncompleteRead"),
    "nothing": (b"", "closed connection"),
    "late": (None, "timed out"),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_whatever_a_reset_server_answers_costs_no_more_than_the_episode(case: str) -> None:
    reply, why = ANSWERS[case]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if reply is None:
            await reader.read()
        writer.write(reply or b"")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        copies = copies_of({"shop": (base,)}, f"{base}/reset", reset_timeout=0.3)
        with pytest.raises(InfrastructureError, match=f"resetting copy 1 failed: .*{why}"):
            await played(copies)
        with pytest.raises(InfrastructureError, match=r"the reset server does not answer|did not become ready"):
            await full_reset(base, 0.3, poll=0.05)


HOLD = """
import asyncio, sys
from dynaweb_env_webarena import WebarenaConfig
from dynaweb_env_webarena.copies import Copies, address_sets
urls = {"shop": tuple(sys.argv[1:])}
copies = Copies(WebarenaConfig(urls=urls), address_sets(urls), None)
print(asyncio.run(copies.take()).number, flush=True)
sys.stdin.read()
"""


async def test_two_processes_never_share_a_copy(make: Make) -> None:
    with shops(2) as (first, second):
        source = make(first.url, second.url, reset_copy=f"{second.url}/reset?sites={{sites}}", reset_timeout=2)
        copies = source.copies
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", HOLD, first.url, second.url], stdin=pipe, stdout=pipe) as other:
            assert other.stdout is not None and other.stdin is not None
            assert other.stdout.readline() == b"1\n"
            copy = await copies.take()
            assert copy.number == 2
            await copies.prepare(copy, [])
            copies.give_back(copy)
            copy = await copies.take()
            assert not copy.unclean  # nobody was there in between
            with pytest.raises(InfrastructureError, match="all 2 copies of the sites were in use for 2 s"):
                await copies.take()
            other.stdin.close()
            other.wait()
        # A process that ended, in whatever way, holds nothing; what it left is reset.
        mine = await copies.take()
        assert (mine.number, mine.unclean) == (1, {"shop"})
        for one in (copy, mine):
            copies.give_back(one)


async def test_what_another_source_of_the_process_changed_is_reset() -> None:
    with shops(2) as (first, second):
        urls, reset = two_shops(first, second)
        training, evaluation = copies_of(urls, reset), copies_of(urls, reset)
        await played(training, "shop")
        await played(training, "shop")
        await played(evaluation, "forum")
        await played(training, "shop")
        await played(training)
        await played(training)
        # Each source begins with a reset of all; then comes what was visited since, by whomever.
        assert first.resets == ["forum,shop", "shop", "forum,shop", "forum,shop", "shop"]


async def test_what_another_source_led_to_or_failed_to_reset_is_reset() -> None:
    with shops(2) as (first, second):
        urls, reset = two_shops(first, second)
        training, evaluation = copies_of(urls, reset), copies_of(urls, reset)
        for copies in (evaluation, training):
            await played(copies)
        copy = await evaluation.take()
        evaluation.look_at(copy, f"{second.url}/add")
        evaluation.give_back(copy)
        await played(training)
        assert first.resets[2:] == ["forum"]
        # A reset that fails may have dropped half of a site.
        with pytest.raises(InfrastructureError, match="resetting copy 1 failed"):
            await played(copies_of(urls, f"{first.url}/nowhere"))
        await played(training)
        assert first.resets[3:] == ["forum,shop"]


async def test_sources_with_some_sites_in_common_never_share_these() -> None:
    with shops(2) as (first, second):
        urls, reset = two_shops(first, second)
        both, one = copies_of(urls, reset), copies_of({"shop": (f"{first.url}/",)}, reset, reset_timeout=0.2)
        copy = await both.take()
        with pytest.raises(InfrastructureError, match="all 1 copies of the sites were in use"):
            await one.take()
        both.give_back(copy)
        copy = await one.take()
        other = copies_of({"forum": (second.url,)}, reset)
        other.give_back(await other.take())
        one.give_back(copy)


async def test_all_sites_are_reset_while_nobody_plays(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with shops(2) as (first, second):
        urls, reset = {"shop": (first.url, second.url)}, f"{first.url}/reset?sites={{sites}}"
        training = copies_of(urls, reset)
        source = make(first.url, second.url, reset_url=first.url, reset_copy=reset, reset_timeout=1)

        async def full_reset(base: str, timeout: float) -> float:
            assert len(source.copies._taken) == 2
            return 0.0

        monkeypatch.setattr("dynaweb_env_webarena.sites.full_reset", full_reset)
        copy = await training.take()
        with pytest.raises(InfrastructureError, match="in use for 1 s"):
            await source.reset_once()
        training.give_back(copy)
        await source.reset_once()
        await played(source.copies, "shop")
        assert not first.resets and not source.copies._taken
        # What another one has done since counts.
        await played(training)
        await played(training, "shop")
        await played(source.copies)
        assert first.resets == ["shop"] * 2


async def test_an_episode_is_graded_alike_on_every_copy(make: Make) -> None:
    with shops(2) as (first, second):
        source = make(first.url, second.url)
        script = "document.querySelector('a[href=\"__SHOP__/help\"]')"
        targets = [
            {"url": "__SHOP__/", "locator": "", "required_contents": {"must_include": ["__SHOP__/help"]}},
            {"url": "last", "locator": f"{script}.href", "required_contents": {"exact_match": "__SHOP__/help"}},
            # As an episode has written it: with the address that it was shown.
            {"url": "last", "locator": "document.title", "required_contents": {"must_include": ["__SHOP__"]}},
        ]
        environments = [source.environment() for _ in range(2)]
        for environment, shop in zip(environments, (first, second), strict=True):
            task = source.catalogue("test")[0]
            evaluation = filled({"eval_types": ["program_html"], "program_html": targets}, source.urls)
            page = await environment.reset(replace(task, evaluation=evaluation), 0)
            assert environment.copy is not None and environment.copy.urls["shop"] == shop.url
            await ChromiumSession.evaluate(environment.session, "last", f"document.title = 'See {first.url}.'")
            end = Trajectory(
                task.id, replace(task, evaluation=evaluation), (Step(page, Action("stop")),), page, "real", "stop"
            )
            verdict = await source.evaluate(environment, end)
            assert verdict.score == 1.0, verdict.why
            assert environment.copy.real(f"It is {first.url}/help") == f"It is {shop.url}/help"
        for environment in environments:
            await environment.close()


def test_addresses_in_texts_are_swapped_as_a_whole() -> None:
    urls = {"shop": ("http://h:77", "http://h:78"), "wiki": "http://h:99"}
    first, second = Copies(WebarenaConfig(urls=urls), address_sets(urls), None).every
    text = "http://h:77 http://h:77/a <http://h:77>, http://h:77. http://h:77: http://h:770 http://h:77.org http://h:99"
    own = "http://h:78 http://h:78/a <http://h:78>, http://h:78. http://h:78: http://h:770 http://h:77.org http://h:99"
    assert first.real(text) == first.canonical(text) == text and second.real(text) == own
    assert second.canonical({"a": [own, text], "b": 3, "c": None}) == {"a": [text, text], "b": 3, "c": None}


async def test_each_copy_has_logins_of_its_own(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNS_PASSWORD", "secret")
    ann = {"username": "ann", "password_variable": "ANNS_PASSWORD", "check": "/account"}
    with stub_sites() as first, stub_sites() as second:
        source = make(first.url, second.url, logins={"shop": ann})
        environments = [source.environment() for _ in range(2)]
        task = replace(source.catalogue("test")[0], start_url=f"{first.url}/account")
        for _ in range(2):
            for environment in environments:
                page = await environment.reset(task, 0)
                assert page.url == f"{first.url}/account" and "Hello Ann" in [node.name for node in page.nodes]
        assert (first.logins, second.logins) == (1, 1)
        assert {str(path.relative_to(tmp_path / "auth")) for path in (tmp_path / "auth").rglob("*.json")} == {
            "shop_state.json",
            "copy-2/shop_state.json",
        }
        for environment in environments:
            await environment.close()


@pytest.mark.parametrize(
    ("urls", "why"),
    [
        ({"a": ("http://h:1", "http://h:2"), "b": ("http://h:3",)}, "must be of one length .a has 2, b has 1"),
        ({"a": ()}, "a has 0"),
        ({"a": ("http://h:1", "http://h:1")}, "http://h:1 for a and a; each copy has an address of its own"),
        ({"a": ("http://h:1", "http://h:2"), "b": ("http://h:3", "http://h:2")}, "http://h:2 for a and b"),
        ({"a": ("http://h", "http://H:80")}, "http://h for a and a"),
        ({"a": ("http://h:1/admin", "http://h:2")}, "another path than http://h:1/admin"),
    ],
)
def test_lists_that_name_no_copies_are_refused(urls: dict[str, tuple[str, ...]], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        address_sets(urls)


def test_a_copy_is_known_by_its_address_however_a_recipe_writes_it() -> None:
    urls = {"shop": ("http://My-Host:80/A", "https://my-host:443/A", "HTTP://my-host:8080/A")}
    assert [one["shop"] for one in address_sets(urls)] == [
        "http://my-host/A",
        "https://my-host/A",
        "http://my-host:8080/A",
    ]


def test_a_copy_is_one_address_of_each_list() -> None:
    urls = {"shop": ("http://h:1", "http://h:2"), "wiki": "http://h:8", "admin": ("http://h:3/x", "http://h:4/x")}
    assert address_sets(urls) == [
        {"shop": "http://h:1", "wiki": "http://h:8", "admin": "http://h:3/x"},
        {"shop": "http://h:2", "wiki": "http://h:8", "admin": "http://h:4/x"},
    ]


def test_more_episodes_than_copies_and_a_reset_without_copies_are_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"web\.contexts = 3 episodes .* names 2 copies .*; set web\.contexts to 2"):
        make("http://h:1", "http://h:2", at_once=3)
    with pytest.raises(ConfigError, match=r"env\.urls has no list of copies"):
        make(urls={"shop": "http://h:1"}, reset_copy="reset {copy}")
    for reset, why in (("sh 'reset {copy}", "is no command .No closing quotation."), (" ", "is blank")):
        with pytest.raises(ConfigError, match=rf"env\.reset_copy .*{why}"):
            make("http://h:1", "http://h:2", reset_copy=reset)
    with pytest.raises(ConfigError, match=r"env\.urls\.shop = 'h:2' is no address"):
        make("http://h:1", "h:2")
