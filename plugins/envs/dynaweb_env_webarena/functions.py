"""What a task's `func:` stands for: pages and values that upstream looks up with code of its own.

They become plain addresses and locators before any evaluator sees them, so both evaluators treat them alike.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from dynaweb.errors import InfrastructureError
from dynaweb_env_webarena.sites import ACCOUNTS

_LONGEST = 2**24
"""Bytes of an answer that are read."""
_CALL = re.compile(r"func:(\w+)\((.*)\)\s*$")
_TEXT = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_NEWEST = {
    "searchCriteria[sortOrders][0][field]": "created_at",
    "searchCriteria[sortOrders][0][direction]": "DESC",
    "searchCriteria[pageSize]": "1",
}
_ROLE = (
    'document.querySelectorAll("td.col-max-role span")[[...document.querySelectorAll('
    "\"td[data-label='Account'] span.gl-avatar-labeled-sublabel\")].findIndex(e => e.outerText === %s)].outerText"
)


async def resolved(target: Mapping[str, Any], *, url: str, urls: Mapping[str, str]) -> dict[str, Any]:
    """A target of `program_html` without `func:`. Unknown functions stay, and are ungraded later.

    `url` is the address the episode ended on, `urls` the addresses of the sites. Raises `InfrastructureError` when a
    site does not tell what was asked.
    """
    copy = dict(target)
    call = _CALL.match(str(target.get("url", "")))
    if call and call[1] in _URLS:
        copy["url"] = await asyncio.to_thread(_URLS[call[1]], _arguments(call[2], url), urls)
    call = _CALL.match(str(target.get("locator", "")))
    if call and call[1] == "gitlab_get_project_memeber_role":
        copy["locator"] = _ROLE % json.dumps("@" + _arguments(call[2], url)[-1])
    elif call and call[1] in _VALUES:
        value = await asyncio.to_thread(_VALUES[call[1]], _arguments(call[2], url), urls)
        copy["locator"] = f"document.body, {json.dumps(value)}"
    return copy


def post_url(url: str) -> str:
    """The address of a forum's post out of any address below it; any other address as it is."""
    parts = urlsplit(url)
    path = parts.path.split("/")
    if len(path) < 4 or path[1] != "f":
        return url
    return f"{parts.scheme}://{parts.netloc}/f/{path[2]}/{path[3]}/"


def _latest_order(arguments: list[str], urls: Mapping[str, str]) -> str:
    shop = urls["shopping"]
    orders = _shop(shop, f"/rest/V1/orders?{urllib.parse.urlencode(_NEWEST)}")
    number = int(_first(orders.get("items") if isinstance(orders, dict) else None, shop)["increment_id"])
    return f"{shop}/sales/order/view/order_id/{number}/"


def _author(arguments: list[str], urls: Mapping[str, str]) -> str:
    reviews = _reviews(arguments[0], urls)
    return str(reviews[-1]["nickname"]) if reviews else ""


def _rating(arguments: list[str], urls: Mapping[str, str]) -> str:
    reviews = _reviews(arguments[0], urls)
    return str(reviews[-1]["ratings"][0]["percent"]) if reviews else ""


def _reviews(sku: str, urls: Mapping[str, str]) -> list[Any]:
    return list(_shop(urls["shopping"], f"/rest/V1/products/{urllib.parse.quote(sku)}/reviews"))


def _shop(base: str, path: str) -> Any:
    """An answer of the shop's interface, asked as its administrator."""
    admin = ACCOUNTS["shopping_admin"]
    account = {"username": admin.username, "password": admin.password}
    token = _json(f"{base}/rest/default/V1/integration/admin/token", {}, account)
    return _json(base + path, {"Authorization": f"Bearer {token}"})


def _json(url: str, headers: Mapping[str, str], body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise ValueError(f"more than {_LONGEST >> 20} MiB")
        return json.loads(text)
    except (OSError, ValueError, RecursionError, HTTPException) as error:
        raise InfrastructureError(f"the shop does not answer {url}: {error}") from None


def _first(items: Any, shop: str) -> Any:
    if not items:
        raise InfrastructureError(f"{shop} has no orders")
    return items[0]


def _arguments(text: str, url: str) -> list[str]:
    return [(a or b).replace("__last_url__", url) for a, b in _TEXT.findall(text)]


_URLS: Mapping[str, Callable[[list[str], Mapping[str, str]], str]] = {
    "reddit_get_post_url": lambda arguments, urls: post_url(arguments[0]),
    "shopping_get_latest_order_url": _latest_order,
}
_VALUES: Mapping[str, Callable[[list[str], Mapping[str, str]], str]] = {
    "shopping_get_sku_latest_review_author": _author,
    "shopping_get_sku_latest_review_rating": _rating,
}
