"""The viewer of trajectories in a real browser: refused actions, addresses that change, keys, the order of a change."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright
from report_fakes import episode, fake_report, page

from dynaweb.report.data import Arm, ReportData, Sample
from dynaweb.report.html import render
from dynaweb.report.outcome import failure_kind, refused, unreadable
from dynaweb.report.viewer import blocks
from dynaweb.types import Action, Observation, Step, StepFacts, Trajectory
from dynaweb.web import observation_formats
from dynaweb.web.actions.grammar import format_action, parse_action

Show = Callable[..., Page]
SHOP = page("/", ("combobox", "Size's", None), ("heading", "Łołer [9] Pillow"))
OPTIONS = replace(SHOP, nodes=tuple(replace(one, props=(("options", "S|M"),)) for one in SHOP.nodes))
MISFITS = {
    "no such element": (Action("click", 99), SHOP),
    "no elements": (Action("click", 99), replace(SHOP, nodes=())),
    "takes no text": (Action("type", 7, "x", target_role="heading", target_name="Łołer [9] Pillow"), SHOP),
    "has no options": (Action("select", 7, "x", target_role="heading", target_name="Łołer [9] Pillow"), SHOP),
    "has no such option": (Action("select", 6, "XL", target_role="combobox", target_name="Size's"), OPTIONS),
}
"""Each way in which an action does not fit its page."""


@pytest.fixture(scope="module")
def open_page() -> Iterator[Page]:
    """One page for all; what it writes to the console is a failure."""
    trouble: list[str] = []
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        made = browser.new_page(viewport={"width": 1280, "height": 900})
        made.on("console", lambda message: trouble.append(message.text))
        made.on("pageerror", lambda error: trouble.append(str(error)))
        yield made
        browser.close()
    assert trouble == []


@pytest.fixture
def show(open_page: Page, tmp_path: Path) -> Show:
    """Opens a report as a file."""

    def open_report(data: ReportData, *, hash: str = "") -> Page:
        path = tmp_path / "report.html"
        path.write_text(render(data), encoding="utf-8")
        open_page.goto(path.as_uri() + hash)
        return open_page

    return open_report


def ended_by(step: Step) -> Trajectory:
    return replace(episode(3, "invalid"), steps=(step,))


def answered(reply: str, observation: Observation, grammar: str) -> Step:
    """The step of a reply from which no action came."""
    error = parse_action(reply, observation, grammar)
    assert isinstance(error, str), error
    return Step(observation, None, reply=reply, error=error)


@pytest.mark.parametrize("grammar", observation_formats.names("grammar"))
@pytest.mark.parametrize("why", MISFITS)
def test_an_action_that_does_not_fit_its_page_is_refused_in_every_grammar(grammar: str, why: str) -> None:
    action, observation = MISFITS[why]
    step = answered(format_action(action, grammar), observation, grammar)
    assert refused(step) and not unreadable(step), step.error
    assert failure_kind(ended_by(step)) == "invalid action"


def test_another_name_than_that_of_the_element_is_refused() -> None:
    step = answered("click 'Kettle's' [7]".replace("e's", "e\\'s"), SHOP, "compact")
    assert step.error.startswith("element [7] is heading") and refused(step)
    assert failure_kind(ended_by(step)) == "invalid action"


@pytest.mark.parametrize("grammar", observation_formats.names("grammar"))
@pytest.mark.parametrize(
    "reply",
    [
        "",
        "I think the price is",
        "click",
        "click [",
        "click 'Home'",
        "Click [x]",
        "click('x')",
        "scroll sideways",
        "do(action='Click')",
        "link 'x' [3] takes no text; ",
        "there is no element [3] on this page; ",
        "tab_focus x",
    ],
)
def test_a_reply_without_an_action_is_unreadable_in_every_grammar(grammar: str, reply: str) -> None:
    step = answered(reply, SHOP, grammar)
    assert unreadable(step) and not refused(step), step.error
    assert failure_kind(ended_by(step)) == "reply without an action"


@pytest.mark.parametrize(
    ("reply", "reasoning", "shown"),
    [
        ("click 'Home' [99]", "", "click 'Home' [99]"),
        ("The home page.\nclick 'Home' [99]", "The home page.", "click 'Home' [99]"),
        ("REASON: Go home.\nACTION: click [99]", "Go home.", "click [99]"),
        ("Thought: Go home.\n**Action:** Click [99]", "Go home.", "Click [99]"),
        ("So the next action is ```click [99]```", "So the next action is", "click [99]"),
        ("ACTION: click [99]", "not in it", "click [99]"),
    ],
)
def test_the_viewer_says_that_an_action_was_refused_and_which(
    show: Show, reply: str, reasoning: str, shown: str
) -> None:
    step = Step(SHOP, None, reasoning, reply, "there is no element [99] on this page; its elements are [1] to [9]")
    shop = show(ReportData("x", samples=(Sample("a", ended_by(step)),)))
    assert shop.locator(".reply .refused").inner_text() == "This action was refused:"
    assert shop.locator(".reply .action").inner_text() == shown
    assert "its elements are [1] to [9]" in shop.locator(".reply .error").inner_text()
    assert "ended: invalid action" in shop.locator(".detail .chips").inner_text()
    assert shop.locator(".steps button").get_attribute("title") == shown


def test_only_refusals_are_called_so() -> None:
    first = episode(3, "success").steps[0]
    found = {
        "done": first,
        "refused by the environment": replace(first, error="the tab is gone"),
        "answer of the world model": replace(first, error="line 4 of the delta", facts=StepFacts(dreamed=True)),
        "no answer of the world model": replace(first, error="no page", facts=StepFacts(world_model_error="no page")),
        "unreadable": replace(first, action=None, error="the reply is empty; its last line must be an action"),
    }
    assert [why for why, step in found.items() if refused(step)] == ["refused by the environment"]
    (block,) = blocks([Sample("a", replace(ended_by(first), steps=tuple(found.values())))])
    assert [at for at, step in enumerate(block["items"][0]["steps"]) if step.get("refused")] == [1]


def place(shop: Page) -> tuple[int, int]:
    """The trajectory and the step that are shown, counted from 0."""
    current = "all => all.findIndex(one => one.getAttribute('aria-current') === 'true')"
    return tuple(shop.locator(part).evaluate_all(current) for part in ("#viewer li button", ".steps button"))  # type: ignore[return-value]


def test_a_changed_address_changes_what_is_shown(show: Show) -> None:
    shop = show(fake_report(), hash="#trajectory-5-1")
    assert place(shop) == (5, 0)
    for address, wanted in (("3-2", (3, 1)), ("7", (7, 0)), ("0-99", (0, 1)), ("4-2", (4, 1))):
        shop.evaluate("address => { scrollTo(0, 0); location.hash = '#trajectory-' + address; }", address)
        shop.wait_for_function("() => scrollY > 0")
        assert place(shop) == wanted
        assert shop.url.endswith(f"#trajectory-{wanted[0]}-{wanted[1] + 1}")
    shop.go_back()
    shop.wait_for_url("**#trajectory-0-2")
    assert place(shop) == (0, 1)
    shop.evaluate("location.hash = '#trajectory-99999-1'")
    shop.wait_for_url("**#trajectory-0-2")
    assert place(shop) == (0, 1)


def test_an_address_is_shown_whatever_the_filters_hide(show: Show) -> None:
    shop = show(fake_report())
    shop.select_option("#filter-outcome", "ungraded")
    shop.fill("#search", "price")
    shop.evaluate("location.hash = '#trajectory-2-2'")
    shop.wait_for_url("**#trajectory-2-2")
    shop.wait_for_function("() => document.getElementById('search').value === ''")
    assert place(shop) == (2, 1) and shop.locator("#filter-outcome").input_value() == ""


@pytest.mark.parametrize("key", ["j", "k"])
@pytest.mark.parametrize("above", [10, 890, 3000])
def test_a_key_never_chooses_out_of_sight(show: Show, key: str, above: int) -> None:
    shop = show(fake_report(), hash="#trajectory-3-1")
    shop.evaluate("top => scrollTo(0, document.getElementById('viewer').offsetTop - top)", above)
    shop.keyboard.press(key)
    assert place(shop)[0] == {"j": 4, "k": 2}[key]
    heading = shop.locator(".detail h3").bounding_box()
    assert heading is not None and heading["y"] >= 0 and heading["y"] + heading["height"] <= 900


def test_arrows_move_the_page_where_the_viewer_is_out_of_sight(show: Show) -> None:
    shop = show(fake_report(), hash="#trajectory-3-1")
    shop.evaluate("scrollTo(0, 0)")
    shop.keyboard.press("ArrowRight")
    assert place(shop) == (3, 0) and shop.evaluate("scrollY") == 0
    shop.keyboard.press("/")
    box = shop.locator("#search").bounding_box()
    assert shop.evaluate("document.activeElement.id") == "search" and box is not None and 0 <= box["y"] < 900


def test_what_went_stands_before_what_came_in_its_place(show: Show) -> None:
    first = page("/", ("heading", "Old"), ("text", "same"), ("text", "gone"))
    then = page("/", ("heading", "New"), ("text", "same"), ("text", "come"))
    steps = (Step(first, Action("wait")), Step(then, Action("stop")))
    shop = show(ReportData("x", samples=(Sample("a", replace(episode(3, "success"), steps=steps, final=then)),)))
    kinds = (
        shop.locator(".page >> nth=1").locator(".lines > div:not(.url)").evaluate_all("a => a.map(o => o.className)")
    )
    assert [kind for kind in kinds if kind != "kept"] == ["removed", "added"] * 2
    assert kinds[5:10] == ["removed", "added", "kept", "removed", "added"]


def test_the_choice_of_arms_has_arms_only(show: Show) -> None:
    shop = show(fake_report())
    arms = ["all arms", *(arm.label for arm in fake_report().arms)]
    assert shop.locator("#filter-arm option").all_inner_texts() == arms
    total = shop.locator("#viewer li").count()
    shop.fill("#search", "demos")
    assert 0 < shop.locator("#viewer li").count() < total
    alone = ReportData("x", arms=(Arm("b", "B", "main", ((1.0,),)),), samples=(Sample("a", episode(3, "success")),))
    assert show(alone).locator("#filter-arm option").all_inner_texts() == ["all arms", "a"]
