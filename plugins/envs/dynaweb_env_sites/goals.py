"""What tasks are made of: plans by visible words, phrases with slots, checks, and the tasks that several sites have.

A site's module of tasks has one function a template, `(state, rng) -> Goal`, and a table of them by kind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynaweb.types import ActionKind
from dynaweb_env_sites.state import AccountState

Evaluation = dict[str, Any]


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
    impossible, long.
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


def templates_of(
    site: str, kinds: Mapping[str, Sequence[Callable[[Any, random.Random], Goal | None]]]
) -> tuple[Template, ...]:
    """A site's templates, named after their functions: `add_to_cart` is `shop/add-to-cart`."""
    return tuple(
        Template(f"{site}/{make.__name__.replace('_', '-')}", site, kind, make)
        for kind, makers in kinds.items()
        for make in makers
    )


def via_search(name: str) -> tuple[Do, ...]:
    """Search for a name and click it."""
    return fill("Search", name, enter=True), click(name)


def not_there(rng: random.Random, phrases: Sequence[str], **slot: str) -> Goal:
    """Impossible: what is asked for (the only slot) is nowhere on the site."""
    (name,) = slot.values()
    return goal(rng, phrases, (fill("Search", name, enter=True), stop("N/A")), answer_is("N/A"), **slot)


def change_contact(state: AccountState, rng: random.Random, name_label: str, **unchanged: Any) -> Goal:
    """Change the user's name or e-mail address in the settings; `unchanged` are the other settings that must stay."""
    words, settings = state.new_words(rng), state.settings
    label, key, value = rng.choice(((name_label, "name", words.name()), ("e-mail", "email", words.email())))
    phrases = ("Change my {label} to '{value}'.", "Set my {label} to '{value}' in the settings.")
    plan = (click("Settings"), fill(label.capitalize(), value), press("Save"), stop())
    expected = {"name": settings.name, "email": settings.email, **unchanged, key: value}
    check = state_is(*((f"settings.{name}", text) for name, text in expected.items()))
    return goal(rng, phrases, plan, check, label=label, value=value)


def switch_setting(state: AccountState, rng: random.Random, key: str, option: str) -> Goal:
    """Turn a setting with a checkbox on, or off where it is on."""
    value = not getattr(state.settings, key)
    phrases = ("Turn '{option}' {switch}.", "Turn {switch} the option '{option}' in the settings.")
    plan = (click("Settings"), tick(option), press("Save"), stop())
    check = state_is((f"settings.{key}", value), ("settings.name", state.settings.name))
    return goal(rng, phrases, plan, check, option=option, switch="on" if value else "off")
