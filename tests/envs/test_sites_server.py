"""The server of the embedded sites: hosts, worlds, errors, and the port."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest

from dynaweb.errors import InfrastructureError
from dynaweb_env_sites.server import SITE_NAMES, SitesApp, SitesServer, create_app
from dynaweb_env_sites.shop.state import ShopState
from dynaweb_env_sites.world_store import HEADER


@pytest.fixture
def app() -> SitesApp:
    return create_app()


@pytest.fixture
def server(app: SitesApp) -> Iterator[SitesServer]:
    with SitesServer(app) as running:
        yield running


def _fetch(server: SitesServer, host: str, path: str, token: str = "0", body: str | None = None) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=5)
    headers = {"Host": f"{host}:{server.port}", HEADER: token, "Content-Type": "application/x-www-form-urlencoded"}
    connection.request("GET" if body is None else "POST", path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def _shop(app: SitesApp, token: str) -> ShopState:
    world = app.store.get(token)
    assert world is not None
    state = world.state("shop")
    assert isinstance(state, ShopState)
    return state


def test_the_host_names_the_site(server: SitesServer) -> None:
    pages = {name: _fetch(server, f"{name}.localhost", "/") for name in SITE_NAMES}
    assert all(status == 200 and f'<body class="{name}">' in text for name, (status, text) in pages.items())
    status, text = _fetch(server, "bank.localhost", "/")
    assert status == 404 and "shop.localhost" in text
    assert _fetch(server, "shop.localhost", "/style.css")[1].startswith(":root")


def test_a_missing_page_is_a_page_of_the_site(server: SitesServer) -> None:
    for path in ("/nowhere", "/product/999", "/category/9", "/order/1"):
        status, text = _fetch(server, "shop.localhost", path)
        assert status == 404 and "Page not found" in text and "Search" in text


def test_worlds_are_apart_and_a_new_one_is_clean(app: SitesApp, server: SitesServer) -> None:
    for token in ("a", "b"):
        app.store.put(token, app.store.world(10_001, "train"))
    shop = _shop(app, "a")
    product = next(item for item in shop.content.products if item.stock and item.id not in shop.cart)
    before = dict(_shop(app, "a").cart)
    status, _ = _fetch(server, "shop.localhost", f"/product/{product.id}/add", "a", "quantity=1")
    assert status == 303
    assert _shop(app, "a").cart == {**before, product.id: 1}
    assert _shop(app, "b").cart == before
    app.store.put("a", app.store.world(10_001, "train"))
    assert _shop(app, "a").cart == before


def test_a_token_without_a_world_is_refused(app: SitesApp, server: SitesServer) -> None:
    app.store.put("gone", app.store.world(1, "pretrain"))
    assert _fetch(server, "shop.localhost", "/", "gone")[0] == 200
    app.store.drop("gone")
    assert _fetch(server, "shop.localhost", "/", "gone")[0] == 410
    assert app.store.new_token() != app.store.new_token()


def test_notices_are_shown_once_and_not_to_the_style_sheet(app: SitesApp, server: SitesServer) -> None:
    _shop(app, "0").notice = "Saved."
    _fetch(server, "shop.localhost", "/style.css")
    first, second = (_fetch(server, "shop.localhost", "/")[1] for _ in range(2))
    assert '<p role="status">Saved.</p>' in first
    assert "Saved." not in second


@pytest.mark.parametrize(
    ("quantity", "notice"),
    [("", "Please enter a quantity."), ("-3", "Please enter a quantity."), ("1e3", "Please enter a quantity."),
     ("99", "Only"), ("9" * 5000, "Please enter a quantity.")],
)  # fmt: skip
def test_odd_quantities_are_refused(app: SitesApp, quantity: str, notice: str) -> None:
    state = _shop(app, "0")
    before = dict(state.cart)
    key = next(item.id for item in state.content.products if item.stock)
    client = app.test_client()
    answer = client.post(f"/product/{key}/add", base_url="http://shop.localhost", data={"quantity": quantity})
    assert answer.status_code == 303
    assert notice in state.notice
    assert state.cart == before


def test_page_text_is_escaped(app: SitesApp) -> None:
    page = app.test_client().get("/search?q=<script>x</script>", base_url="http://shop.localhost").text
    assert "<script>" not in page and "&lt;script&gt;" in page


def test_many_threads_at_once(app: SitesApp, server: SitesServer) -> None:
    for token in "abcd":
        app.store.put(token, app.store.world(30_000, "test"))
    jobs = [(token, site) for token in "abcd" for site in SITE_NAMES] * 4
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda job: _fetch(server, f"{job[1]}.localhost", "/", job[0]), jobs))
    assert {status for status, _ in answers} == {200}


def test_a_taken_port_is_named(app: SitesApp, server: SitesServer) -> None:
    with pytest.raises(InfrastructureError, match=f"port {server.port} is taken"):
        SitesServer(app, port=server.port).start()


def test_stop_frees_the_port_even_with_open_connections(app: SitesApp) -> None:
    server = SitesServer(app).start()
    port = server.port
    idle = HTTPConnection("127.0.0.1", port, timeout=5)
    idle.request("GET", "/", headers={"Host": "shop.localhost"})
    assert idle.getresponse().read()
    server.stop()
    server.stop()
    with SitesServer(app, port=port) as again:
        assert _fetch(again, "shop.localhost", "/")[0] == 200
    idle.close()


def test_port_before_start_is_an_error(app: SitesApp) -> None:
    with pytest.raises(InfrastructureError, match="start"):
        _ = SitesServer(app).port
    assert SitesServer(app).stop() is None
