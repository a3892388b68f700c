"""An embedded site, and what its views share: the state of the request, pages of a list, form fields.

A site module defines views on a Flask blueprint with Jinja templates, and one constant `SITE`, which joins them with a
state class (a `SiteState` over cached content) and task templates. Views find their state with `current`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from flask import Blueprint, abort, g, redirect, render_template, request
from werkzeug.wrappers import Response

from dynaweb.types import Split
from dynaweb_env_sites.content import Locale
from dynaweb_env_sites.goals import Template
from dynaweb_env_sites.state import SiteState

View = str | Response
"""What a view that takes a form gives."""
ItemT = TypeVar("ItemT")
StateT = TypeVar("StateT", bound=SiteState)


@dataclass(frozen=True, slots=True)
class Site(Generic[StateT]):
    """One embedded site. `dynaweb_env_sites.forum.pages` has a constant `SITE` of this type."""

    name: str
    """`shop`: also the folder of its page templates."""
    pages: Blueprint
    """Its views; paths as the user sees them (`/`, `/search`). Never use `url_for`."""
    templates: tuple[Template, ...]
    build: Callable[[int, Split, Locale], StateT]
    """Fresh mutable state on content that is cached per (seed, split, locale) (`functools.lru_cache`)."""

    @property
    def host(self) -> str:
        """`shop.localhost`."""
        return f"{self.name}.localhost"


def current(kind: type[StateT]) -> StateT:
    """The state that belongs to the request being served."""
    state = g.state
    if not isinstance(state, kind):
        raise TypeError(f"this request is for a {type(state).__name__}, the view wants a {kind.__name__}")
    return state


def render(template: str, **values: Any) -> str:
    """A page of the current site. Templates also see `site`, `state` and `notice` (which is then taken)."""
    return render_template(template, site=g.site, state=g.state, notice=g.state.take_notice(), **values)


class Addressed(Protocol):
    """Something with a page of its own."""

    @property
    def slug(self) -> str:
        """The last part of its address."""
        ...


AddressedT = TypeVar("AddressedT", bound=Addressed)


@dataclass(frozen=True, slots=True)
class Listing(Generic[ItemT]):
    """One page of a longer list; `page` counts from 1 to `count`."""

    items: tuple[ItemT, ...]
    page: int
    count: int


def listing(items: Sequence[ItemT], size: int) -> Listing[ItemT]:
    """The page of `items` that the request's `page` argument asks for, clipped to what there is."""
    count = max(1, -(-len(items) // size))
    number = request.args.get("page", "1")
    page = min(max(int(number), 1), count) if number.isascii() and number.isdigit() else 1
    return Listing(tuple(items[(page - 1) * size : page * size]), page, count)


def option(name: str, valid: Sequence[str]) -> str:
    """The request's argument `name`, or the first valid value when it is missing or unknown."""
    value = request.args.get(name, "")
    return value if value in valid else valid[0]


def sent(name: str) -> str:
    """A field of the posted form, surrounding white space removed; empty when missing."""
    return request.form.get(name, "").strip()


def show(state: SiteState, path: str, notice: str) -> Response:
    """Redirect after a form was accepted; the next page shows the notice."""
    state.notice = notice
    return redirect(path, code=303)


def at_address(items: Iterable[AddressedT], address: str) -> AddressedT:
    """The item with this address; a page that says that there is none otherwise."""
    return next((item for item in items if item.slug == address), None) or abort(404)


def posted_contact() -> dict[str, str] | None:
    """`name` and `email` of a settings form, or None when one of them cannot be right."""
    name, email = sent("name"), sent("email")
    return {"name": name, "email": email} if name and "@" in email else None


LACKING = "Please give a name and an e-mail address."
"""What a settings form says then."""
