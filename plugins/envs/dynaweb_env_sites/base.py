"""What every embedded site is made of: plans, goals, task templates, state, and the world that holds the sites.

A site module defines a state class (a `SiteState` over cached content), a Flask blueprint with Jinja templates, task
templates, and one module constant `SITE` that follows the `Site` protocol. Views find their state with `current`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flask import g, render_template

from dynaweb.types import ActionKind, Split
from dynaweb_env_sites.content import Locale, locale_of

if TYPE_CHECKING:
    from flask import Blueprint

Evaluation = dict[str, Any]
StateT = TypeVar("StateT", bound="SiteState")


@dataclass(frozen=True, slots=True)
class Do:
    """One step of a plan, by the visible words of the element.

    `within` means: the first match AFTER a node whose name contains this text. `text` is what is typed, the option,
    the url, or the answer of `stop`.
    """

    kind: ActionKind
    role: str = ""
    name: str = ""
    text: str = ""
    enter: bool = False
    within: str = ""


def click(name: str, role: str = "link", within: str = "") -> Do:
    """Click an element."""
    return Do("click", role, name, within=within)


def press(name: str, within: str = "") -> Do:
    """Click a button."""
    return Do("click", "button", name, within=within)


def fill(name: str, text: str, *, enter: bool = False) -> Do:
    """Replace the content of a textbox, then press Enter if asked."""
    return Do("type", "textbox", name, text, enter)


def choose(name: str, option: str) -> Do:
    """Choose an option of a combobox."""
    return Do("select", "combobox", name, option)


def tick(name: str) -> Do:
    """Click a checkbox."""
    return Do("click", "checkbox", name)


def stop(answer: str = "") -> Do:
    """End the episode."""
    return Do("stop", text=answer)


@dataclass(frozen=True, slots=True)
class Goal:
    """A task before it has an id: words, plan (its last step is `stop`), and WebArena's `eval` object.

    `meta` should hold `intent_template` and `slots` (see `goal`).
    """

    intent: str
    plan: tuple[Do, ...]
    evaluation: Evaluation
    start_path: str = "/"
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Template:
    """A family of tasks. `make(state, rng)` gives one instance, or None when this state offers none.

    `name` is `site/what`, such as `shop/add-to-cart`; `kind` one of navigate, search, read, compare, form, state,
    impossible.
    """

    name: str
    site: str
    kind: str
    make: Callable[[Any, random.Random], Goal | None]


def goal(
    rng: random.Random, phrases: Sequence[str], plan: tuple[Do, ...], evaluation: Evaluation, **slots: str
) -> Goal:
    """A goal in one of several phrases with `{slot}` names, which are filled in and kept in its `meta`.

    Write slots in single quotes in the phrase: `"Add '{item}' to the cart."`.
    """
    phrase = rng.choice(list(phrases))
    used = {name: value for name, value in slots.items() if f"{{{name}}}" in phrase}
    return Goal(phrase.format(**used), plan, evaluation, meta={"intent_template": phrase, "slots": used})


def answer_is(text: str) -> Evaluation:
    """Success = the answer of `stop` is exactly this text (case and outer quotes aside)."""
    return {
        "eval_types": ["string_match"],
        "reference_answers": {"exact_match": text},
        "reference_url": "",
        "program_html": [],
    }


def url_is(url: str) -> Evaluation:
    """Success = the episode ends on this canonical url (`http://shop.localhost/product/3`)."""
    return {"eval_types": ["url_match"], "reference_answers": None, "reference_url": url, "program_html": []}


def page_has(url: str, *texts: str) -> Evaluation:
    """Success = the page's html (`url`, or `"last"` for the page where the episode ends) has all these texts."""
    check = {"url": url, "locator": "", "required_contents": {"must_include": list(texts)}}
    return {"eval_types": ["program_html"], "reference_answers": None, "reference_url": "", "program_html": [check]}


def state_is(*checks: tuple[str, Any]) -> Evaluation:
    """Success = every (path into `Site.snapshot`, value) pair holds; keys are joined by dots.

    A path that is not there counts as None. Paths start below the site: the task's own site is meant.
    """
    return {
        "eval_types": ["server_state"],
        "reference_answers": None,
        "reference_url": "",
        "program_html": [],
        "server_state": [{"path": path, "equals": value} for path, value in checks],
    }


def all_of(*evaluations: Evaluation) -> Evaluation:
    """Success = all of these, of different types (such as `answer_is` and `state_is`)."""
    merged = answer_is("") | {"eval_types": [], "reference_answers": None}
    for evaluation in evaluations:
        types = [*merged["eval_types"], *evaluation["eval_types"]]
        merged |= {key: value for key, value in evaluation.items() if value} | {"eval_types": types}
    return merged


@dataclass
class SiteState:
    """Mutable state of one site in one episode; sub-classes add fields and keep generated content in frozen values."""

    seed: int
    split: Split
    locale: Locale
    notice: str = field(default="", kw_only=True)

    def take_notice(self) -> str:
        """The pending message for the user, once."""
        notice, self.notice = self.notice, ""
        return notice


class Site(Protocol):
    """One embedded site. A module `forum` has a constant `SITE` of this shape."""

    name: str
    """`shop`: also the folder of its page templates."""
    host: str
    """`shop.localhost`."""
    templates: tuple[Template, ...]

    def build(self, seed: int, split: Split, locale: Locale) -> SiteState:
        """Fresh mutable state on content that is cached per (seed, split, locale) (`functools.lru_cache`)."""
        ...

    def blueprint(self) -> Blueprint:
        """A new blueprint with the site's views; paths as the user sees them (`/`, `/search`). Never use `url_for`."""
        ...

    def snapshot(self, state: Any) -> dict[str, Any]:
        """The state as plain data for the server-state check."""
        ...


def current(kind: type[StateT]) -> StateT:
    """The state that belongs to the request being served."""
    state = g.state
    if not isinstance(state, kind):
        raise TypeError(f"this request is for a {type(state).__name__}, the view wants a {kind.__name__}")
    return state


def render(template: str, **values: Any) -> str:
    """A page of the current site. Templates also see `site`, `state` and `notice` (which is then taken)."""
    return render_template(template, site=g.site, state=g.state, notice=g.state.take_notice(), **values)


class World:
    """All sites of one episode: one state each, and the lock that its requests take."""

    def __init__(self, sites: Mapping[str, Site], seed: int, split: Split, locale: Locale | None = None) -> None:
        self.seed = seed
        self.split = split
        self.locale = locale or locale_of(seed)
        self.lock = threading.RLock()
        self._sites = sites
        self._states = {name: site.build(seed, split, self.locale) for name, site in sites.items()}

    def state(self, site: str) -> SiteState:
        """The state of a site by name."""
        return self._states[site]

    def snapshot(self, site: str) -> dict[str, Any]:
        """A site's state as plain data, consistent with respect to running requests."""
        with self.lock:
            return self._sites[site].snapshot(self._states[site])
