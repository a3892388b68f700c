"""Small tools that the forum and the tracker share: addresses from names, pages of a list, form fields."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from flask import Blueprint, abort, redirect, request
from werkzeug.wrappers import Response

from dynaweb_env_sites.base import SiteState
from dynaweb_env_sites.content import Words

ItemT = TypeVar("ItemT")
View = str | Response
"""What a view that takes a form gives."""


class Addressed(Protocol):
    """Something with a page of its own."""

    @property
    def slug(self) -> str:
        """The last part of its address."""
        ...


AddressedT = TypeVar("AddressedT", bound=Addressed)

# Letters that Unicode does not decompose into an ASCII letter and a mark.
_LETTERS = str.maketrans({"ß": "ss", "ł": "l", "ø": "o", "æ": "ae", "œ": "oe", "đ": "d"})


def folded(text: str) -> str:
    """Lower-case ASCII letters of a text, as search and addresses compare it: `Łóż` -> `loz`."""
    decomposed = unicodedata.normalize("NFKD", text.lower().translate(_LETTERS))
    return decomposed.encode("ascii", "ignore").decode()


def slug(name: str, taken: Container[str] = ()) -> str:
    """The address part of a name: `Wéłmor Repair` -> `welmor-repair`; with a number when that is taken."""
    base = re.sub(r"[^a-z0-9]+", "-", folded(name)).strip("-") or "item"
    result, number = base, 2
    while result in taken:
        result, number = f"{base}-{number}", number + 1
    return result


def matches(query: str, text: str) -> bool:
    """Whether every word of the query occurs in the text, case and accents aside."""
    words = folded(query).split()
    return bool(words) and all(word in folded(text) for word in words)


@dataclass(frozen=True, slots=True)
class Listing(Generic[ItemT]):
    """One page of a longer list; `page` counts from 1 to `count`."""

    items: tuple[ItemT, ...]
    page: int
    count: int


def listing(items: Sequence[ItemT], size: int) -> Listing[ItemT]:
    """The page of `items` that the request's `page` argument asks for, clipped to what there is."""
    count = max(1, -(-len(items) // size))
    asked = request.args.get("page", "1")
    page = min(max(int(asked), 1), count) if asked.isascii() and asked.isdigit() else 1
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


def blueprint(name: str, read: Mapping[str, Callable[..., str]], write: Mapping[str, Callable[..., View]]) -> Blueprint:
    """A site's views by address: what shows a page, and what takes a form."""
    pages = Blueprint(name, __name__)
    for path, view in read.items():
        pages.add_url_rule(path, view_func=view)
    for path, action in write.items():
        pages.add_url_rule(path, view_func=action, methods=["POST"])
    return pages


def found_at(items: Iterable[AddressedT], address: str) -> AddressedT:
    """The item with this address; a page that says that there is none otherwise."""
    return next((item for item in items if item.slug == address), None) or abort(404)


def named() -> dict[str, str] | None:
    """`name` and `email` of a settings form, or None when one of them cannot be right."""
    name, email = sent("name"), sent("email")
    return {"name": name, "email": email} if name and "@" in email else None


LACKING = "Please give a name and an e-mail address."
"""What a settings form says then."""


def new_words(state: SiteState, rng: random.Random) -> Words:
    """Words of the state's split and locale for what a task writes: titles, texts, names."""
    return Words(rng.getrandbits(48), state.split, state.locale, "task")
