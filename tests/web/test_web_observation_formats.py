"""Observation formats of plugins: found by name for pages, actions, views and prompts, and refused with the nearest."""

from __future__ import annotations

import pytest
from core_kit import PackageMaker

from dynaweb.config import resolve
from dynaweb.config.agreement import used_plugins
from dynaweb.errors import MissingError, PluginError
from dynaweb.plugin import registry as plugins
from dynaweb.policy.prompt_formats import format_for
from dynaweb.types import Action, Node, Observation
from dynaweb.web import observation_formats
from dynaweb.web.actions.grammar import format_action, parse_action
from dynaweb.web.page.text import parse_page, render

PAGE = Observation("http://a/", (Node(1, "link", "Home"),))
OFFER = """
from dynaweb.config.sections import Section
from dynaweb.hookspecs import PluginSpec, hookimpl

@hookimpl
def dynaweb_formats():
    parts = frozenset({"dialect", "grammar", "prompt"})
    return [PluginSpec("toy", "toyformats:Toy", Section, "Toys", capabilities=parts)]
"""
CLASS = """
from dynaweb.policy.prompt_formats import format_for
from dynaweb.types import Action, Node, Observation
from dynaweb.web.observation_formats import Dialect, Grammar

class Toy:
    dialect = Dialect(
        lambda page: (node.name for node in page.nodes), lambda text, url: Observation(url, (Node(1, "link", text),))
    )
    grammar = Grammar(lambda reply, page: Action("click", 1), lambda action, with_id: f"{action.kind}!")
"""


TOYS = """
def prompts(tokenizer, settings):
    return ("toy prompts", tokenizer)

Toy.prompt = staticmethod(prompts)
"""


@pytest.fixture
def toy(package: PackageMaker) -> plugins.Plugins:
    """Plugins of which one offers the format `toy`."""
    package("toy-package", OFFER, modules={"toyformats": CLASS + TOYS})
    return plugins.load()


def test_a_third_party_format_is_found_by_name(toy: plugins.Plugins) -> None:
    assert "toy" in observation_formats.names("dialect") and "toy" not in observation_formats.names("view")
    assert render(PAGE, "toy") == "Home" and parse_page("Home", "toy", "http://a/") == PAGE
    assert format_action(Action("click", 1), "toy") == "click!" and parse_action("", PAGE, "toy") == Action("click", 1)
    assert format_for("a tokenizer", "toy") == ("toy prompts", "a tokenizer")
    recipe = resolve(overrides={"model.format": "toy"})
    assert recipe.model.format == "toy" and ("format", "toy") in used_plugins(recipe, toy)


def test_names_that_nobody_offers_get_the_nearest() -> None:
    plugins.load()
    with pytest.raises(MissingError, match=r"dialect is called 'webarina'; did you mean 'webarena'\? valid: .*compact"):
        render(PAGE, "webarina")
    with pytest.raises(MissingError, match=r"no grammar is called 'html'; valid: browsergym, compact, webarena"):
        parse_action("", PAGE, "html")
    with pytest.raises(MissingError, match=r"prompt is called 'chatt'; did you mean 'chat'\? valid: auto, chat, comp"):
        resolve(overrides={"model.format": "chatt"})


def test_a_blocked_format_says_so_before_a_run() -> None:
    plugins.load(block=["webvoyager"])
    with pytest.raises(MissingError, match="blocked by -p no:webvoyager"):
        resolve(overrides={"model.format": "webvoyager"})
    plugins.load()


def test_a_part_that_the_class_lacks_is_an_error(package: PackageMaker) -> None:
    package("toy-package", OFFER, modules={"toyformats": CLASS})
    plugins.load()
    with pytest.raises(PluginError, match="'toy' says that it has a prompt, and its class has no attribute"):
        format_for("a tokenizer", "toy")


def test_the_core_needs_no_format_of_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAWEB_PLUGINS", "delta")
    plugins.load()
    assert observation_formats.names("view") == ("compact", "full")
    assert parse_page(render(PAGE)) == PAGE
