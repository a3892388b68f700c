"""WebVoyager's format end to end on local sites: ten tasks, a judge behind a server, limits, walls, pictures."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from judge_server import judge_server

from dynaweb.errors import ConfigError, InfrastructureError, MissingError
from dynaweb.judges.reward import grading, success_of
from dynaweb.protocols import EnvironmentContext
from dynaweb.rollout.agents import ExpertPlayer
from dynaweb.rollout.episode import Episode, Rules, play_all
from dynaweb.stages.evaluate import label_of, rows_by, site_name
from dynaweb.types import Action, Node, Observation, Task
from dynaweb_env_sites.expert import SitesExpert
from dynaweb_env_sites.server import SitesServer, create_app
from dynaweb_env_sites.tasks import sites as embedded
from dynaweb_env_sites.tasks import sites_tasks
from dynaweb_env_sites.world_store import DEFAULT_TOKEN, WorldStore
from dynaweb_env_webvoyager import WebvoyagerConfig
from dynaweb_env_webvoyager.blocked import wall
from dynaweb_env_webvoyager.env import WebvoyagerSource
from dynaweb_env_webvoyager.files import read

LOCAL = ("*.localhost", "127.0.0.1")


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Any]:
    sources: list[WebvoyagerSource] = []

    def source(**settings: Any) -> WebvoyagerSource:
        options = {"path": str(tmp_path), "hosts": LOCAL, "view": "compact", "region": "page", **settings}
        sources.append(WebvoyagerSource(WebvoyagerConfig(**options), EnvironmentContext()))
        return sources[-1]

    yield source
    for one in sources:
        await one.close()


def write(folder: Path, tasks: list[dict[str, Any]], answers: dict[str, Any] | None = None) -> None:
    (folder / "WebVoyager_data.jsonl").write_text("\n".join(map(json.dumps, tasks)), encoding="utf-8")
    if answers is not None:
        (folder / "reference_answer.json").write_text(json.dumps(answers), encoding="utf-8")


def task(name: str = "Shop", number: int = 0, web: str = "http://shop.localhost/") -> dict[str, Any]:
    return {"web_name": name, "id": f"{name}--{number}", "ques": "What is it?", "web": web}


async def test_the_default_list_of_hosts_is_that_of_the_tasks(make: Any, tmp_path: Path) -> None:
    own = {"Shop": "https://www.shop.example/a", "Papers": "https://papers.example:8080/", "Router": "http://10.0.0.1/"}
    write(tmp_path, [task(name, 0, web) for name, web in own.items()])
    pool = make(hosts=())._browser()
    assert pool.hosts == ("10.0.0.1", "papers.example", "*.papers.example", "shop.example", "*.shop.example")
    assert pool.allows("https://www.shop.example/b") and pool.allows("http://10.0.0.1/")
    assert not pool.allows("https://elsewhere.example/") and not pool.allows("http://10.0.0.2/")
    assert make(hosts=("*",))._browser().allows("https://elsewhere.example/")
    odd = ("http://*/", "http://*.example/", "http://a, EXCLUDE *, EXCLUDE b.localhost/", "http://shop.example/")
    write(tmp_path, [task("Odd", at, web) for at, web in enumerate(odd)])
    assert make(hosts=())._browser().hosts == ("shop.example", "*.shop.example")


async def test_ten_local_tasks_run_end_to_end_and_are_judged(make: Any, tmp_path: Path) -> None:
    store = WorldStore(embedded())
    # Questions about one world, which is the one that a visitor without a header sees.
    drawn = [
        one
        for one in sites_tasks("train", 400, 1, site_seeds=[10_000])
        if one.evaluation["eval_types"] == ["string_match"]
    ]
    own = {f"{one.sites[0].capitalize()}--{number}": one for number, one in enumerate(drawn[:10])}
    assert len(own) == 10
    with SitesServer(create_app(store)) as server, judge_server(partial(_judge, own)) as judge:
        real = {f"http://{site.host}": f"http://{site.host}:{server.port}" for site in store.sites.values()}
        write(tmp_path, [_line(name, one, real) for name, one in own.items()], _references(own))
        store.put(DEFAULT_TOKEN, store.world(10_000, "train"))
        source = make(judge={"server": {"model": "m", "base_url": judge.url}})
        tasks = source.catalogue("test")
        assert [one.id for one in tasks] == list(own) and tasks[0].evaluation["reference"][0]["ans"]
        wrong = set(list(own)[::3])
        played = await play_all(
            [Episode(one.id, one, 0) for one in tasks],
            source.environment,
            lambda one: ExpertPlayer(_Answers(own[one.id], wrong=one.id in wrong)),
            rules=Rules(15),
            slots=2,
            finish=grading(source),
        )
        assert {t.task.id: success_of(t) for t in played} == {name: float(name not in wrong) for name in own}
        rows = rows_by(played, site_name)
        assert rows[-1].name == "all" and (rows[-1].episodes, rows[-1].agent) == (10, len(wrong))


async def test_fifteen_steps_end_an_episode_and_pictures_are_taken(make: Any, tmp_path: Path) -> None:
    with SitesServer(create_app(WorldStore(embedded()))) as server:
        write(tmp_path, [task(web=f"http://shop.localhost:{server.port}/")])
        source = make(screenshots=str(tmp_path / "pictures"), max_steps=15)
        environment = source.environment()
        await environment.reset(source.catalogue("test")[0], 7)
        results = [await environment.step(Action("scroll", text="down")) for _ in range(15)]
        assert [result.done for result in results] == [False] * 14 + [True]
        names = sorted(path.name for path in (tmp_path / "pictures").iterdir())
        assert len(names) == 16 and names[0] == "Shop--0-7-00.png" and results[-1].facts.screenshot.endswith("15.png")
        assert Path(results[0].facts.screenshot).read_bytes().startswith(b"\x89PNG")
        await environment.close()


async def test_a_site_that_does_not_answer_is_no_failure_of_the_agent(make: Any, tmp_path: Path) -> None:
    with _Served(tmp_path) as url:
        write(tmp_path, [task(web=url)])
    environment = make().environment()
    with pytest.raises(InfrastructureError, match="could not be loaded"):
        await environment.reset(make().catalogue("test")[0], 0)
    await environment.close()


async def test_a_wall_is_told_apart_from_a_failure(make: Any, tmp_path: Path) -> None:
    (tmp_path / "wall.html").write_text("<title>Just checking</title><h1>Are you a robot?</h1><p>Solve the captcha</p>")
    (tmp_path / "open.html").write_text("<h1>Welcome</h1>")
    with _Served(tmp_path) as url:
        write(tmp_path, [task(web=f"{url}/wall.html"), task(number=1, web=f"{url}/open.html")])
        source = make()
        played = await play_all(
            [Episode(one.id, one, 0) for one in source.catalogue("test")],
            source.environment,
            lambda one: ExpertPlayer(_Scrolls()),
            rules=Rules(3),
            slots=1,
            finish=grading(source),
        )
        assert [label_of(one) for one in played] == ["ungraded", "agent"]
        assert "blocked: captcha" in played[0].facts.verdict.why


@pytest.mark.parametrize(
    ("url", "names", "expected"),
    [
        ("http://x/", ["heading: Unusual traffic from your network"], "captcha"),
        ("http://x/", ["heading: Robots are coming", *[f"link: {n}" for n in range(40)], "text: captcha"], ""),
        ("http://x/login?next=/", ["textbox: Email", "textbox: Password", "button: Go"], "login"),
        ("http://x/products/login-furniture-set", ["heading: Sofa", "link: Cart"], ""),
        ("http://x/settings", ["textbox: New password"], ""),
        ("http://x/item", ["text: Please sign in to continue", "button: Sign in"], "login"),
        ("http://x/", ["text: We value your privacy", "button: Accept all", "heading: News"], "consent"),
        ("http://x/", ["text: We value your privacy", "link: Policy"], ""),
        ("http://x/", ["heading: Welcome"], ""),
    ],
)
def test_walls_are_known(url: str, names: list[str], expected: str) -> None:
    parts = [name.split(": ", 1) for name in names]
    page = Observation(url, tuple(Node(n, role, name) for n, (role, name) in enumerate(parts, start=1)))
    assert wall(page) == expected


def test_files_are_fetched_on_request_only(make: Any, tmp_path: Path) -> None:
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    write(
        upstream,
        [task(), task("ArXiv", 3)],
        {"Shop": {"notice": "", "answers": [{"id": 0, "type": "golden", "ans": "42"}]}},
    )
    with pytest.raises(MissingError, match=r"env\.download = true"):
        make(path=str(tmp_path / "data")).catalogue("test")
    with _Served(upstream) as url:
        source = make(path=str(tmp_path / "data"), download=True, source=url)
        assert [one.id for one in source.catalogue("test")] == ["Shop--0", "ArXiv--3"]
    (first, _) = make(path=str(tmp_path / "data")).catalogue("test")
    assert first.meta["kind"] == "golden" and first.evaluation["reference"][0]["ans"] == "42"
    assert [one.id for one in make(path=str(tmp_path / "data"), sites=("ArXiv",)).tasks("test", count=9, seed=0)] == [
        "ArXiv--3"
    ]
    with pytest.raises(ConfigError, match="ArXiv"):
        make(path=str(tmp_path / "data"), sites=("arXiv",)).catalogue("test")
    with pytest.raises(InfrastructureError, match="could not be fetched"):
        make(path=str(tmp_path / "other"), download=True, source="http://127.0.0.1:9").catalogue("test")
    assert list((tmp_path / "other").iterdir()) == []


def test_what_is_wrong_with_files_is_said(make: Any, tmp_path: Path) -> None:
    write(tmp_path, [task(), {"id": "x"}])
    with pytest.raises(ConfigError, match=r"line 2 of .* has no web_name, ques, web"):
        make().catalogue("test")
    with pytest.raises(ConfigError, match=r"set env\.train"):
        make().catalogue("train")
    write(tmp_path, [task()], {"Shop": []})
    with pytest.raises(ConfigError, match="reference answers"):
        make().catalogue("test")


class _Answers:
    """The plan of an embedded site's task; a wrong one answers something else."""

    def __init__(self, own: Task, *, wrong: bool) -> None:
        self.expert, self.wrong = SitesExpert(own), wrong

    def act(self, observation: Observation) -> Action:
        action = self.expert.act(observation)
        return Action("stop", text="no idea") if action.kind == "stop" and self.wrong else action


class _Scrolls:
    def act(self, observation: Observation) -> Action:
        return Action("scroll", text="down")


def _judge(own: dict[str, Task], request: dict[str, Any]) -> str:
    """Says SUCCESS when the answer holds the reference of the task that is asked about."""
    message = request["messages"][1]["content"]
    about = next(one for one in own.values() if f"Task: {one.intent}\n" in message)
    answer = re.search(r"answer:\n<<<\n(.*?)\n>>>", message, re.DOTALL)
    assert answer is not None
    return "SUCCESS" if answer[1] == _answer(about) else "NOT SUCCESS"


def _answer(own: Task) -> str:
    return str(own.meta["plan"][-1]["text"])


def _line(name: str, own: Task, real: dict[str, str]) -> dict[str, Any]:
    url = own.start_url
    for canonical, address in real.items():
        url = url.replace(canonical, address)
    return {"web_name": name.split("--")[0], "id": name, "ques": own.intent, "web": url}


def _references(own: dict[str, Task]) -> dict[str, Any]:
    references: dict[str, Any] = {}
    for name, one in own.items():
        site, number = name.split("--")
        entry = references.setdefault(site, {"notice": "", "answers": []})
        entry["answers"].append({"id": int(number), "type": "golden", "ans": _answer(one)})
    return references


class _Served:
    """A folder on a port of its own."""

    def __init__(self, folder: Path) -> None:
        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))

    def __enter__(self) -> str:
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.mark.parametrize("separator", ["\u2028", "\x85"])
def test_a_separator_inside_a_question_ends_no_line(tmp_path: Path, separator: str) -> None:
    asked = {"id": "Shop--0", "web_name": "Shop", "ques": f"Find{separator}tea", "web": "http://shop.test/"}
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(f"{json.dumps(asked, ensure_ascii=False)}\r\n\n".encode())
    assert read(path) == [asked]
