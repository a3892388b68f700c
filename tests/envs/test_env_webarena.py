"""WebArena's format on real pages: files, sites, logins, resets, and the verdicts of the evaluators."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from chat_server import chat_server
from webarena_stubs import Stub, stub_sites

from dynaweb.errors import ConfigError, InfrastructureError, MissingError
from dynaweb.protocols import EnvironmentContext
from dynaweb.types import Action, Judgement, Observation, Step, Task, Trajectory
from dynaweb.web.session import UrlMap
from dynaweb_env_sites.expert import SitesExpert
from dynaweb_env_sites.server import SitesServer, create_app
from dynaweb_env_sites.tasks import sites as embedded
from dynaweb_env_sites.tasks import sites_tasks, to_webarena
from dynaweb_env_sites.world_store import WorldStore
from dynaweb_env_webarena import WebarenaConfig, files
from dynaweb_env_webarena.copies import Copy
from dynaweb_env_webarena.env import WebarenaSource
from dynaweb_env_webarena.functions import post_url, resolved
from dynaweb_env_webarena.grading import Grader
from dynaweb_env_webarena.sites import Account, filled, full_reset, placeholders, together
from dynaweb_env_webarena.verified import response_of


@pytest.fixture(autouse=True)
def no_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHOPPING", "SHOPPING_ADMIN", "REDDIT", "GITLAB", "MAP", "WIKIPEDIA", "HOMEPAGE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(f"WA_{name}", raising=False)


@pytest.fixture
def stub() -> Iterator[Stub]:
    with stub_sites() as state:
        yield state


ANN = {"username": "ann", "password_variable": "ANNS_PASSWORD", "check": "/account"}
ACCOUNT = Account("ann", "secret", check="/account")


@pytest.fixture(autouse=True)
def _passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNS_PASSWORD", "secret")
    monkeypatch.setenv("WRONG_PASSWORD", "no")


@contextmanager
def other_site() -> Iterator[Stub]:
    """Another site on the same host name; its cookie has the same name and other values."""
    with stub_sites() as state:
        state.logins = 100
        yield state


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Any]:
    """Makes a source over tasks that it writes to a file."""
    sources: list[WebarenaSource] = []

    def source(*raw: dict[str, Any], **settings: Any) -> WebarenaSource:
        path = tmp_path / f"tasks-{len(sources)}.json"
        path.write_text(json.dumps(raw), encoding="utf-8")
        response = {"path": str(path), "auth": str(tmp_path / "auth"), "view": "compact", **settings}
        sources.append(WebarenaSource(WebarenaConfig(**response), EnvironmentContext()))
        return sources[-1]

    yield source
    for one in sources:
        await one.close()


def raw(number: int = 1, site: str = "reddit", **fields: Any) -> dict[str, Any]:
    evaluation = fields.pop("evaluation", {"eval_types": ["string_match"], "reference_answers": {"exact_match": "42"}})
    url = f"__{site.upper()}__"
    return {"task_id": number, "sites": [site], "intent": "Do it", "start_url": url, "eval": evaluation, **fields}


async def play(source: WebarenaSource, task: Task, *actions: Action) -> tuple[Judgement, list[Observation]]:
    """Play actions that name their targets; the last is a `stop`."""
    environment = source.environment()
    pages = [await environment.reset(task, 0)]
    steps = []
    for action in actions:
        names = [
            node.id for node in pages[-1].nodes if (node.role, node.name) == (action.target_role, action.target_name)
        ]
        action = replace(action, target=names[0]) if action.target_role else action
        steps.append(Step(pages[-1], action))
        result = await environment.step(action)
        assert not result.error
        pages.append(result.observation)
    trajectory = Trajectory(task.id, task, tuple(steps), pages[-1], "real", "stop")
    verdict = await source.evaluate(environment, trajectory)
    await environment.close()
    return verdict, pages


def click(role: str, name: str) -> Action:
    return Action("click", target_role=role, target_name=name)


# --- files ---


def test_tasks_come_out_of_lists_and_folders_and_skipped_ones_are_counted(make: Any, tmp_path: Path) -> None:
    source = make(raw(1), raw(2, "gitlab"), raw(3, "map"), raw(4), urls={"reddit": "http://127.0.0.1:9"})
    assert [task.id for task in source.catalogue("test")] == ["1", "4"]
    assert source.skipped("test") == {
        "gitlab has no address (set GITLAB or env.urls)": 1,
        "map has no address (set MAP or env.urls)": 1,
    }
    assert source.catalogue("test")[0].start_url == "http://127.0.0.1:9"
    assert {task.id for task in source.tasks("test", count=9, seed=0)} == {"1", "4"}
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in (10, 9):
        (folder / f"{number}.json").write_text(json.dumps(raw(number)), encoding="utf-8")
    source = make(path=str(folder), urls={"reddit": "http://127.0.0.1:9"})
    assert [task.id for task in source.catalogue("test")] == ["9", "10"]


def test_only_sites_count_as_placeholders() -> None:
    assert placeholders(["__SHOP__/a", {"x": ("git@__SSH_HOST__:a", "__REDDIT__")}]) == {"shop", "reddit"}
    assert filled({"x": ["__SHOP__/a", "__OTHER__"]}, {"shop": "http://s"}) == {"x": ["http://s/a", "__OTHER__"]}


@pytest.mark.parametrize("prefix", ["", "WA_"])
def test_addresses_come_from_the_usual_variables(make: Any, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    monkeypatch.setenv(f"{prefix}REDDIT", "http://forum:9999/")
    (task,) = make(raw()).catalogue("test")
    assert task.start_url == "http://forum:9999"


def test_what_is_no_address_is_refused(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("my-host:9999", "htp:foo", "http://", "ftp://host"):
        with pytest.raises(
            ConfigError, match=r"env\.urls\.reddit = .* is no address of a site; write one such as http"
        ):
            make(raw(), urls={"reddit": url})
    with pytest.raises(MissingError, match="sites with an address: redit"):
        make(raw(), urls={"redit": "http://host"}).catalogue("test")
    monkeypatch.setenv("WA_REDDIT", "my-host:9999")
    with pytest.raises(ConfigError, match="the variable WA_REDDIT = 'my-host:9999' is no address"):
        make(raw())
    assert make(raw(27), urls={"reddit": "http://host"}).task("27").id == "27"


def test_what_is_wrong_with_files_is_said(make: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set env\.train"):
        make(raw(), urls={"reddit": "http://x"}).tasks("train", count=1, seed=0)
    assert make(raw(), train=make(raw(7)).config.path, urls={"reddit": "http://x"}).catalogue("train")[0].id == "7"
    # Validation has tasks of its own, or those of the evaluation.
    source = make(raw(), validation=make(raw(8)).config.path, urls={"reddit": "http://x"})
    assert [source.catalogue(split)[0].id for split in ("validation", "test")] == ["8", "1"]
    assert (
        source.task("8") is not None and make(raw(), urls={"reddit": "http://x"}).catalogue("validation")[0].id == "1"
    )
    with pytest.raises(MissingError, match="reddit has no address"):
        make(raw()).catalogue("test")
    with pytest.raises(ConfigError, match="has no eval"):
        make({"task_id": 1, "sites": [], "intent": "x"}).catalogue("test")
    bad = tmp_path / "bad.json"
    bad.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.json is no JSON"):
        make(path=str(bad)).catalogue("test")
    with pytest.raises(ConfigError, match="cannot be read"):
        make(path=str(tmp_path / "none.json")).catalogue("test")
    with pytest.raises(MissingError, match="dynaweb env install webarena-verified"):
        make(path="", set="hard").catalogue("test")
    with pytest.raises(MissingError, match="dynaweb env install browsergym-webarenalite"):
        make(path="", set="lite").catalogue("test")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"evaluation": None}, "task 1 in .*eval is an object with eval_types, not None"),
        ({"evaluation": "string_match"}, "eval is an object with eval_types"),
        ({"evaluation": []}, "eval is a list of objects with `expected`"),
        ({"evaluation": [{"evaluator": "x"}]}, "eval is a list of objects with `expected`"),
        ({"evaluation": {}}, "eval_types is a list of names"),
        (
            {"evaluation": {"eval_types": None}},
            "eval_types is a list of names .string_match, url_match, program_html, page_image_query., not",
        ),
        ({"evaluation": {"eval_types": "string_match"}}, "eval_types is a list of names"),
        ({"evaluation": {"eval_types": ["string_mach"]}}, "no eval type 'string_mach'; did you mean 'string_match'"),
        (
            {"evaluation": {"eval_types": ["string_match"], "reference_answers": ["a"]}},
            "reads reference_answers, which is",
        ),
        (
            {"evaluation": {"eval_types": ["url_match"], "reference_url": ["a"]}},
            "reads reference_url, which is an address",
        ),
        (
            {"evaluation": {"eval_types": ["program_html"], "program_html": {"url": "x"}}},
            "program_html, which is a list",
        ),
        ({"sites": "reddit"}, "sites is a list of names, not 'reddit'"),
        ({"sites": None}, "sites is a list of names, not None"),
        ({"sites": [None]}, "sites is a list of names"),
        ({"start_url": None}, "it has no start_url"),
        ({"start_url": ""}, "it has no start_url"),
        ({"start_url": 5}, "it has no start_url"),
        ({"start_urls": []}, "it has no start_url"),
    ],
)
def test_a_task_of_another_shape_is_refused_by_name(make: Any, fields: dict[str, Any], why: str) -> None:
    task = raw(**{"evaluation": fields["evaluation"]} if "evaluation" in fields else {})
    task |= {key: value for key, value in fields.items() if key != "evaluation"}
    source = make(raw(7), task, urls={"reddit": "http://127.0.0.1:9"})
    for look in (source.catalogue, source.skipped):
        with pytest.raises(ConfigError, match=why):
            look("test")


def test_tasks_without_start_and_twice_the_same_id_are_refused(make: Any, tmp_path: Path) -> None:
    task = raw()
    del task["start_url"]
    with pytest.raises(ConfigError, match="has no start_url"):
        make(task).catalogue("test")
    with pytest.raises(ConfigError, match="several tasks of the id 3"):
        make(raw(3), raw(4), raw(3)).catalogue("test")
    for name in ("a", "b"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / f"{name}.json").write_text(json.dumps(raw(3)), encoding="utf-8")
    with pytest.raises(ConfigError, match="several tasks of the id 3"):
        make(path=str(tmp_path / "folder")).catalogue("test")


# --- episodes ---


async def test_the_tasks_of_the_embedded_sites_run_in_webarenas_format(make: Any) -> None:
    store = WorldStore(embedded())
    tasks = [task for task in sites_tasks("train", 60, 5) if "server_state" not in task.evaluation["eval_types"]]
    chosen = {task.template: task for task in tasks}
    assert len(chosen) >= 4
    with SitesServer(create_app(store)) as server:
        urls = {name: f"http://{site.host}:{server.port}" for name, site in store.sites.items()}
        headers = {name: {"X-Dynaweb-World": "9"} for name in urls}
        source = make(*map(to_webarena, chosen.values()), urls=urls, headers=headers)
        for task, own in zip(source.catalogue("test"), chosen.values(), strict=True):
            store.put("9", store.world(own.meta["site_seed"], own.split))
            environment, expert, steps = source.environment(), SitesExpert(own), []
            page = await environment.reset(task, 0)
            while not steps or steps[-1].action.kind != "stop":
                steps.append(Step(page, expert.act(page)))
                page = (await environment.step(steps[-1].action)).observation
            played = Trajectory(task.id, task, tuple(steps), page, "expert", "stop")
            assert (await source.evaluate(environment, played)).score == 1.0, own.id
            gave_up = replace(played, steps=(Step(page, Action("stop", text="no idea")),), final=steps[0].observation)
            assert (await source.evaluate(environment, gave_up)).score == 0.0, own.id
            await environment.close()


async def test_several_start_pages_open_in_tabs_and_the_first_is_current(make: Any, stub: Stub) -> None:
    start = "__REDDIT__/f/1 |AND| __REDDIT__/dashboard/todos"
    source = make(raw(start_url=start), urls={"reddit": stub.url}, view="full", logins={})
    (task,) = source.catalogue("test")
    task = replace(task, meta={**task.meta, "raw": {**task.meta["raw"], "require_login": False}})
    _, pages = await play(source, task, Action("stop", text="42"))
    assert [tab.url for tab in pages[0].tabs] == [f"{stub.url}/f/1", f"{stub.url}/dashboard/todos"]
    assert pages[0].url == f"{stub.url}/f/1" and pages[0].tabs[0].current


async def test_a_login_is_stored_checked_and_made_again_once(make: Any, stub: Stub, tmp_path: Path) -> None:
    settings = {"urls": {"reddit": stub.url}, "logins": {"reddit": ANN}}
    plan = click("link", "Account"), Action("stop", text="42")
    source = make(raw(), **settings)
    for _ in range(2):
        verdict, pages = await play(source, source.catalogue("test")[0], *plan)
        assert verdict.score == 1.0 and "Hello Ann" in [node.name for node in pages[-1].nodes]
    assert stub.logins == 1 and (tmp_path / "auth" / "reddit_state.json").exists()
    again = make(raw(), **settings)
    await play(again, again.catalogue("test")[0], *plan)
    assert stub.logins == 1
    stub.valid.clear()
    expired = make(raw(), **settings)
    _, pages = await play(expired, expired.catalogue("test")[0], *plan)
    assert stub.logins == 2 and "Hello Ann" in [node.name for node in pages[-1].nodes]
    # Somebody signed out on the site meanwhile: the episodes after it are not lost.
    stub.valid.clear()
    _, pages = await play(expired, expired.catalogue("test")[0], *plan)
    assert stub.logins == 3 and "Hello Ann" in [node.name for node in pages[-1].nodes]
    wrong = make(
        raw(),
        **{
            **settings,
            "logins": {"reddit": {**ANN, "password_variable": "WRONG_PASSWORD"}},
            "auth": str(tmp_path / "b"),
        },
    )
    with pytest.raises(InfrastructureError, match=r"logging in to .* as ann failed"):
        await play(wrong, wrong.catalogue("test")[0], *plan)


async def test_a_task_that_needs_no_login_is_played_without_one(make: Any, stub: Stub) -> None:
    source = make(raw(require_login=False), urls={"reddit": stub.url}, logins={"reddit": ANN})
    _, pages = await play(source, source.catalogue("test")[0], click("link", "Account"), Action("stop", text="42"))
    assert stub.logins == 0 and "Hello Ann" not in [node.name for node in pages[-1].nodes]


def test_a_task_that_needs_a_login_nobody_has_is_skipped(make: Any, tmp_path: Path) -> None:
    urls = dict.fromkeys(("blog", "map", "wiki"), "http://127.0.0.1:9")
    (tmp_path / "ann.json").write_text('{"cookies": []}')
    tasks = (
        raw(1, "blog", require_login=True),
        raw(2, "blog", require_login=False),
        raw(3, "blog"),
        # The benchmark's own sites without accounts need none, whatever its files say.
        raw(4, "map", require_login=True),
        raw(5, "wiki", require_login=True),
        raw(6, "blog", require_login=True, storage_state="ann.json"),
        raw(7, "blog", storage_state="./.auth/bob.json"),
        raw(8, "blog", require_login=True, storage_state="./.auth/blog_state.json"),
    )
    source = make(*tasks, urls=urls, headers={"wiki": {"X-Auto-Login": "ann"}})
    assert [task.id for task in source.catalogue("test")] == ["2", "3", "4", "5", "6"]
    assert source.skipped("test") == {
        "blog has no login (set env.logins.blog, or env.headers.blog)": 2,
        "its storage_state ./.auth/bob.json is not there": 1,
    }
    with_login = make(*tasks, urls=urls, logins={"blog": ANN})
    assert [task.id for task in with_login.catalogue("test")] == ["1", "2", "3", "4", "6", "8"]


async def test_two_accounts_of_one_site_share_a_run(make: Any, stub: Stub, tmp_path: Path) -> None:
    for user in ("ann", "bob", "eve"):
        cookie = {"name": "session", "value": user, "domain": "127.0.0.1", "path": "/", "expires": -1}
        state = {"cookies": [{**cookie, "httpOnly": False, "secure": False, "sameSite": "Lax"}], "origins": []}
        (tmp_path / f"{user}.json").write_text(json.dumps(state))
    stub.valid.update(("ann", "bob"))
    tasks = [raw(n, storage_state=f"./{user}.json") for n, user in enumerate(("ann", "bob", "ann", "eve"))]
    source = make(*tasks, urls={"reddit": stub.url}, logins={"reddit": ANN})
    environment = source.environment()
    for task, user in zip(source.catalogue("test")[:3], ("ann", "bob", "ann"), strict=True):
        await environment.reset(task, 0)
        assert await environment.session.evaluate("last", "document.cookie") == f"session={user}"
    with pytest.raises(InfrastructureError, match=r"the stored login .*eve\.json does not hold"):
        await environment.reset(source.catalogue("test")[3], 0)
    await environment.close()
    assert stub.logins == 0


def test_passwords_come_from_the_environment_alone(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make(raw(), urls={"reddit": "http://x"}, logins={"reddit": ANN})
    assert "secret" not in source.config.model_dump_json() and "secret" not in repr(source.accounts)
    monkeypatch.delenv("ANNS_PASSWORD")
    with pytest.raises(ConfigError, match=r"env\.logins\.reddit reads the password from the variable 'ANNS_PASSWORD'"):
        make(raw(), urls={"reddit": "http://x"}, logins={"reddit": ANN})
    with pytest.raises(ValueError, match="password_variable"):
        make(raw(), logins={"reddit": {"username": "ann", "password": "secret"}})


async def test_a_new_login_is_looked_at_once(make: Any, stub: Stub) -> None:
    source = make(raw(), urls={"reddit": stub.url}, logins={"reddit": ANN})
    await play(source, source.catalogue("test")[0], Action("stop", text="42"))
    assert (stub.logins, stub.looks) == (1, 1)


async def test_on_one_host_name_a_task_on_forum_and_shop_is_logged_in_to_the_forum(
    make: Any, stub: Stub, tmp_path: Path
) -> None:
    plan = click("link", "Account"), Action("stop", text="42")
    with other_site() as shop:
        urls = {"reddit": stub.url, "shopping": shop.url}
        source = make(raw(sites=["shopping", "reddit"]), urls=urls, logins=dict.fromkeys(urls, ANN))
        for _ in range(2):
            _, pages = await play(source, source.catalogue("test")[0], *plan)
            assert "Hello Ann" in [node.name for node in pages[-1].nodes]
        assert (stub.logins, shop.logins) == (1, 100)
    assert [path.name for path in (tmp_path / "auth").iterdir()] == ["reddit_state.json"]


async def test_logins_that_end_each_other_cost_the_episode_and_not_the_run(make: Any, stub: Stub) -> None:
    with other_site() as other:
        urls = {"reddit": stub.url, "forge": other.url}
        source = make(raw(sites=list(urls)), urls=urls, logins=dict.fromkeys(urls, ANN))
        with pytest.raises(InfrastructureError, match=r"logging in to .* as ann failed.*/account"):
            await play(source, source.catalogue("test")[0], Action("stop", text="42"))


async def test_a_start_page_that_does_not_load_is_no_failure_of_the_agent(make: Any, stub: Stub) -> None:
    with stub_sites() as gone:
        urls = {"reddit": stub.url, "gone": gone.url}
    for start in ("__GONE__/f/1", "__REDDIT__/f/1 |AND| __GONE__/f/1"):
        source = make(raw(start_url=start, require_login=False), urls=urls)
        with pytest.raises(InfrastructureError, match="/f/1 could not be loaded"):
            await source.environment().reset(source.catalogue("test")[0], 0)


async def test_a_site_that_is_down_does_not_count_as_logged_in(make: Any, tmp_path: Path) -> None:
    with stub_sites() as gone:
        url = gone.url
    (tmp_path / "auth").mkdir()
    (tmp_path / "auth" / "reddit_state.json").write_text('{"cookies": [], "origins": []}')
    source = make(raw(), urls={"reddit": url}, logins={"reddit": ANN})
    with pytest.raises(InfrastructureError, match="/account could not be loaded"):
        await play(source, source.catalogue("test")[0], Action("stop", text="42"))


def test_forum_and_shop_on_hosts_of_their_own_are_both_logged_in_to() -> None:
    urls = {"reddit": "http://forum:1", "shopping": "http://shop:1", "shopping_admin": "http://forum:2/admin"}
    logins = dict.fromkeys((*urls, "gitlab"), ACCOUNT)
    assert set(together(logins, {**urls, "gitlab": "http://forum:3"})) == {"reddit", "shopping", "gitlab"}
    assert set(together({"shopping_admin": ACCOUNT}, urls)) == {"shopping_admin"}


async def test_headers_of_a_site_go_with_every_request_and_replace_the_login(make: Any, stub: Stub) -> None:
    source = make(raw(), urls={"reddit": stub.url}, headers={"reddit": {"X-Auto-Login": "ann"}})
    await play(source, source.catalogue("test")[0], click("link", "Todos"), Action("stop", text="x"))
    assert stub.logins == 0 and set(stub.headers) == {"ann"}


async def test_other_hosts_are_refused(make: Any, stub: Stub) -> None:
    source = make(raw(require_login=False), urls={"reddit": stub.url})
    environment = source.environment()
    await environment.reset(source.catalogue("test")[0], 0)
    assert "not allowed" in (await environment.step(Action("goto", text="http://example.com/"))).error
    await environment.close()


async def test_the_sites_are_reset_and_waited_for(stub: Stub) -> None:
    assert await full_reset(stub.url, 20, poll=0.01) < 20 and stub.polls == 4
    with pytest.raises(InfrastructureError, match="did not become ready"):
        await full_reset(stub.url, 0.05, poll=0.2)
    with pytest.raises(InfrastructureError, match="does not answer"):
        await full_reset("http://127.0.0.1:9", 1)
    stub.failure = "failed: no such image"
    with pytest.raises(InfrastructureError, match="did not reset the sites: failed: no such image"):
        await full_reset(stub.url, 20, poll=0.01)


# --- verdicts ---


async def test_functions_of_tasks_become_addresses_and_locators(stub: Stub) -> None:
    plan = {"url": stub.url, "urls": {"shopping": stub.url}}
    order = await resolved({"url": "func:shopping_get_latest_order_url()", "locator": ""}, **plan)
    assert order["url"] == f"{stub.url}/sales/order/view/order_id/190/"
    author = await resolved({"url": "last", "locator": "func:shopping_get_sku_latest_review_author('B1')"}, **plan)
    rating = await resolved({"url": "last", "locator": "func:shopping_get_sku_latest_review_rating('B1')"}, **plan)
    assert (author["locator"], rating["locator"]) == ('document.body, "Ann"', 'document.body, "80"')
    assert post_url("http://f/f/books/12/title/-/comment/3") == "http://f/f/books/12/"
    assert post_url("http://f/user/ann") == "http://f/user/ann"


@pytest.mark.parametrize("evaluator", ["repaired", "upstream"])
async def test_pages_are_graded_while_they_stand(make: Any, stub: Stub, evaluator: str) -> None:
    def target(locator: str, *wanted: str, url: str = "last") -> dict[str, Any]:
        return {"url": url, "locator": locator, "required_contents": {"must_include": list(wanted)}}

    review = target("func:shopping_get_sku_latest_review_author('B1')", "Ann")
    good = [
        target("document.querySelector('h1').innerText", "Forum"),
        target("", "Nothing |OR| nil", url="__REDDIT__/dashboard/todos"),
    ]
    tasks = [
        raw(1, evaluation={"eval_types": ["program_html"], "program_html": [*good, review]}),
        raw(2, evaluation={"eval_types": ["program_html"], "program_html": [*good, target("", "Everything")]}),
        raw(3, evaluation={"eval_types": ["program_html"], "program_html": [target("document.nope.nope", "x")]}),
        raw(
            4,
            evaluation={
                "eval_types": ["url_match", "string_match"],
                "reference_url": "__REDDIT__/f/1",
                "url_note": "GOLD in PRED",
                "reference_answers": {"must_include": ["42"]},
            },
        ),
        raw(5, evaluation={"eval_types": ["program_html"], "program_html": [target("func:unknown(__page__)", "x")]}),
    ]
    source = make(
        *[{**task, "require_login": False} for task in tasks],
        urls={"reddit": stub.url, "shopping": stub.url},
        evaluator=evaluator,
    )
    scores = [
        (await play(source, task, click("link", "Forum"), Action("stop", text="it is 42")))[0].score
        for task in source.catalogue("test")
    ]
    assert scores == [1.0, 0.0, 0.0, 1.0, None]


@pytest.mark.parametrize(("evaluator", "score"), [("repaired", 0.0), ("upstream", 1.0)])
async def test_an_episode_that_did_not_stop(make: Any, stub: Stub, evaluator: str, score: float) -> None:
    evaluation = {"eval_types": ["url_match"], "reference_url": "__REDDIT__/f/1", "url_note": "GOLD in PRED"}
    source = make(raw(evaluation=evaluation, require_login=False), urls={"reddit": stub.url}, evaluator=evaluator)
    (task,) = source.catalogue("test")
    environment = source.environment()
    page = await environment.reset(replace(task, start_url=f"{stub.url}/f/1"), 0)
    cut = Trajectory(task.id, task, (Step(page, Action("wait")),), page, "real", "max-steps")
    assert (await source.evaluate(environment, cut)).score == score
    await environment.close()


FUZZY = {"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["blue", "red"]}}
NOT = {"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": "N/A"}, "string_note": "no such shop"}


class PageTexts:
    """A session that shows one page."""

    async def html(self, url: str) -> str:
        return "<p>Foro de jardines</p>"


async def graded(source: WebarenaSource, answer: str) -> Judgement:
    """The verdict on an episode that answers at once; what a judge says does not need a browser."""
    (task,) = source.catalogue("test")
    page = Observation(task.start_url, ())
    stopped = Trajectory(task.id, task, (Step(page, Action("stop", text=answer)),), page, "real", "stop")
    return await source.grader.grade(stopped, PageTexts(), None, Copy(1, {}))  # type: ignore[arg-type]


@pytest.mark.parametrize("evaluator", ["repaired", "upstream"])
async def test_a_judge_compares_by_meaning(make: Any, stub: Stub, evaluator: str) -> None:
    cases: list[tuple[dict[str, Any], str, tuple[str | int, ...], float | None]] = [
        (FUZZY, "azure and scarlet", ("It is correct.", "Correct"), 1.0),
        (FUZZY, "azure and green", ("correct", "This is incorrect"), 0.0),
        (FUZZY, "azure", ("partially correct",), 0.0),
        (FUZZY, "azure", ("I cannot say",), None),
        (NOT, "n/a", ("different",), 1.0),
        (NOT, "the shop does not exist", ("same",), 1.0),
        (NOT, "I did not want to", ("They are different.",), 0.0),
        (FUZZY, "azure", (500,), None),
    ]
    for evaluation, answer, reason, expected in cases:
        with chat_server(*reason) as server:
            judge = {"model": "m", "base_url": server.url, "retries": 1, "logprobs": False}
            source = make(
                raw(evaluation=evaluation, require_login=False),
                urls={"reddit": stub.url},
                judge=judge,
                evaluator=evaluator,
            )
            verdict = await graded(source, answer)
            assert verdict.score == expected, (answer, reason, verdict)
            await source.close()
    source = make(raw(evaluation=FUZZY, require_login=False), urls={"reddit": stub.url}, evaluator=evaluator)
    verdict = await graded(source, "azure")
    assert verdict.score is None and "judge" in verdict.why


PAGE_FUZZY = {
    "eval_types": ["program_html"],
    "program_html": [{"url": "last", "locator": "", "required_contents": {"fuzzy_match": ["Foro", "mañana"]}}],
}


@pytest.mark.parametrize("evaluator", ["repaired", "upstream"])
async def test_a_judge_reads_pages_too(make: Any, stub: Stub, evaluator: str) -> None:
    """WebArena-Lite compares what four of its tasks leave on a page by meaning."""
    common = {"urls": {"reddit": stub.url}, "evaluator": evaluator}
    task = raw(evaluation=PAGE_FUZZY, require_login=False)
    for reason, expected in (("correct", 1.0), ("incorrect", 0.0), ("well", None)):
        with chat_server(reason) as server:
            judge = {"model": "m", "base_url": server.url, "retries": 0, "logprobs": False}
            source = make(task, judge=judge, **common)
            verdict = await graded(source, "done")
            assert verdict.score == expected, (reason, verdict)
            assert "Foro, mañana" in server.requests[0]["messages"][-1]["content"]
            await source.close()
    source = make(task, **common)
    verdict = await graded(source, "done")
    assert verdict.score is None and "judge" in verdict.why


ODD: tuple[Any, ...] = (
    None,
    1,
    -1.5,
    True,
    "",
    "x",
    [],
    ["x"],
    [None],
    {},
    {"a": 1},
    [[]],
    [{}],
    "func:f()",
    "http://[",
)
ODD += tuple(f"func:{name}()" for name in ("reddit_get_post_url", "gitlab_get_project_memeber_role"))
ODD += ("func:shopping_get_sku_latest_review_author('x')",)
EVALS: tuple[dict[str, Any], ...] = (
    {"eval_types": ["string_match"], "reference_answers": {"exact_match": "a", "must_include": ["b"]}},
    {"eval_types": ["url_match"], "reference_url": "http://a/x?b=c", "url_note": "GOLD in PRED"},
    {
        "eval_types": ["program_html"],
        "program_html": [
            {
                "url": "last",
                "locator": "document.x",
                "prep_actions": ["x"],
                "required_contents": {"must_include": ["a |OR| b"], "exact_match": "c", "fuzzy_match": ["c"]},
            }
        ],
    },
    {
        "eval_types": ["page_image_query"],
        "page_image_query": [
            {
                "eval_image_url": "last",
                "eval_image_class": ".x",
                "eval_vqa": [{"question": "q", "answer": "a"}],
                "eval_fuzzy_image_match": "a.png",
                "ssim_threshold": 0.8,
            }
        ],
    },
)


def changed(value: Any) -> Iterator[Any]:
    """A value with each of its parts in turn taken away, and replaced by each odd one."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in list(parts):
        for other in (*ODD, *changed(part)):
            copied = dict(value) if isinstance(value, dict) else list(value)
            copied[key] = other
            yield copied
        yield (
            {k: v for k, v in value.items() if k != key} if isinstance(value, dict) else value[:key] + value[key + 1 :]
        )


@pytest.mark.parametrize("evaluator", ["repaired", "upstream"])
@pytest.mark.parametrize("evaluation", EVALS, ids=lambda one: one["eval_types"][0])
async def test_an_evaluation_of_any_shape_is_refused_followed_or_not_graded(
    evaluation: dict[str, Any], evaluator: Any, tmp_path: Path
) -> None:
    class Pages:
        async def html(self, url: str) -> str:
            return "<p>x"

        async def evaluate(self, url: str, script: str) -> Any:
            return {"count": 1, "files": ["AAAA"]} if "files" in script else "abc"

    file, read = tmp_path / "tasks.json", 0
    grader = Grader(WebarenaConfig(path=str(file), evaluator=evaluator))
    page = Observation("http://a/", ())
    for odd in changed(evaluation):
        raw = {"task_id": 1, "sites": ["shopping"], "intent": "i", "start_url": "http://a", "eval": odd}
        file.write_text(json.dumps([raw]))
        try:
            task = Task("t", "i", "http://a", (), evaluation=files.read(file)[0]["eval"])
        except ConfigError:
            continue
        read += 1
        step = Step(page, Action("stop", text="abc"))
        played = Trajectory(id="x", task=task, steps=(step,), final=page, source="real", end="stop")
        verdict = await grader.grade(played, cast(Any, Pages()), None, Copy(1, {}, UrlMap({})))
        assert isinstance(verdict, Judgement)
    assert read > 20


def test_answers_are_wrapped_for_the_package_or_taken_as_they_are() -> None:
    def task(kind: str) -> dict[str, Any]:
        return {"eval": [{"expected": {"task_type": kind}}]}

    assert response_of(task("navigate"), "done")["retrieved_data"] is None
    assert response_of(task("retrieve"), "12.5")["retrieved_data"] == [12.5]
    assert response_of(task("retrieve"), "Band")["retrieved_data"] == ["Band"]
    response = {"task_type": "RETRIEVE", "status": "NOT_FOUND_ERROR", "retrieved_data": None}
    assert response_of(task("retrieve"), json.dumps(response)) == response
