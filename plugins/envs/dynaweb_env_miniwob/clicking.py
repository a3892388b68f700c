"""Plans that click on what the goal names."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from itertools import pairwise

from dynaweb.types import Action, Node
from dynaweb_env_miniwob.plan import Page, Plan, PlanError, Planner, match, on, quoted

PATIENCE = 5
"""How often a plan tries again what is still moving."""


def button(goal: str, page: Page) -> Plan:
    """`Click on the "No" button.`"""
    yield page.click("button", quoted(goal))


def only_button(goal: str, page: Page) -> Plan:
    """`Click the button.`"""
    yield page.click("button")


def button_one(goal: str, page: Page) -> Plan:
    """`Click button ONE.`"""
    yield page.click("button", "ONE")


def one_then_two(goal: str, page: Page) -> Plan:
    """`Click button ONE, then click button TWO.`"""
    page = yield page.click("button", "ONE")
    yield page.click("button", "TWO")


def dialog(goal: str, page: Page) -> Plan:
    """`Close the dialog box by clicking the "x".`, or another button of it; the cross is called Close."""
    label = quoted(goal)
    yield page.click("button", "Close" if label == "x" else label)


def link(goal: str, page: Page) -> Plan:
    """`Click on the link "In".`"""
    yield page.click("link", quoted(goal))


def tab(goal: str, page: Page) -> Plan:
    """`Click on Tab #1.`"""
    yield page.click("tab", match(r"Click on (Tab #\d)", goal)[0])


def link_in_tabs(goal: str, page: Page) -> Plan:
    """`Switch between the tabs to find and click on the link "ut.".`"""
    yield from _behind("tab", goal, page)


def section(goal: str, page: Page) -> Plan:
    """`Expand the section below and click submit.`"""
    page = yield page.click("tab")
    for _ in range(PATIENCE):
        # A section that is still unfolding moves.
        page = yield page.submit()


def link_in_sections(goal: str, page: Page) -> Plan:
    """`Expand the sections below, to find and click on the link "ut.".`"""
    yield from _behind("tab", goal, page)


def menu(goal: str, page: Page) -> Plan:
    """`Select Xaviera>Laurie>Melinde`"""
    names = match(r"Select (.*)", goal)[0].split(">")
    for name, below in pairwise(names):
        # A click would choose it; what is below appears after a moment.
        page = yield on("hover", page.get("menuitem", name))
        page = yield from _until(page, "menuitem", below)
    yield page.click("menuitem", names[-1])


def ticket(goal: str, page: Page) -> Plan:
    """`Buy the ticket with the cheapest cost.`, or the shortest duration, or the opposite of each."""
    (which,) = match(r"the (cheapest|most expensive|shortest|longest)", goal)
    books = page.all("button")
    times = [_minutes(node.name) for node in page.all("text") if node.name[:1].isdigit()]
    costs = [int(node.name.rpartition("$")[2]) for node in books]
    values = costs if which in ("cheapest", "most expensive") else times
    best = (min if which in ("cheapest", "shortest") else max)(values)
    yield on("click", books[values.index(best)])


def greatest(goal: str, page: Page) -> Plan:
    """`Find and pick the card with the greatest number, then press submit.`"""
    cards = [node for node in page.all("button") if node.name.isdigit()]
    page = yield on("click", max(cards, key=lambda node: int(node.name)))
    yield page.submit()


def focus(goal: str, page: Page) -> Plan:
    """`Focus into the textbox.`"""
    yield page.click("textbox")


def parity(goal: str, page: Page) -> Plan:
    """`Mark the numbers below as odd or even and press submit when done.`"""
    for position, number in enumerate(page.all("text")):
        page = yield page.click("button", "Odd" if int(number.name) % 2 else "Even", nth=position)
    yield page.submit()


def generate(goal: str, page: Page) -> Plan:
    """`Generate an even number, then press submit.`, or one less or greater than another."""
    while not _fits(goal, page.get("text").name):
        page = yield page.click("button", "Generate")
    yield page.submit()


def contact(goal: str, page: Page) -> Plan:
    """`Find Kara-Lynn in the contact book and click on their address.`"""
    name, what = match(r"Find (\S+) in the contact book and click on their (address|email|phone)", goal)
    while not page.has("heading", name):
        page = yield page.click("link", ">")
    yield page.click("link", after=page.get("text", f"{what.capitalize()}:"))


def _fits(goal: str, card: str) -> bool:
    if not card.lstrip("-").isdigit():
        return False
    how, limit = match(r"(even|odd|less|greater)(?: number| than (\d+))", goal)
    number = int(card)
    tests = {"even": number % 2 == 0, "odd": number % 2 == 1}
    if how in tests:
        return tests[how]
    return number < int(limit) if how == "less" else number > int(limit)


def _minutes(text: str) -> int:
    hours, minutes = match(r"(\d+)h (\d+)m", text)
    return 60 * int(hours) + int(minutes)


def _until(page: Page, role: str, name: str) -> Generator[Action, Page, Page]:
    """Wait until an element is there."""
    for _ in range(PATIENCE):
        if page.has(role, name):
            break
        page = yield Action("wait")
    return page


def _behind(role: str, goal: str, page: Page) -> Plan:
    """Open one after another of the things that hide text, and look for the link in each."""
    name = quoted(goal)
    doors: list[Node] = page.all(role)
    for position in range(len(doors)):
        page = yield page.click(role, nth=position)
        for _ in range(PATIENCE):
            # What unfolds cannot be clicked at once.
            if page.has("link", name):
                page = yield page.click("link", name)
    raise PlanError(f"the link {name!r} is behind none of {[node.name for node in doors]}")


PLANS: Mapping[str, Planner] = {
    "buy-ticket": ticket,
    "click-button": button,
    "click-button-sequence": one_then_two,
    "click-collapsible": section,
    "click-collapsible-2": link_in_sections,
    "click-collapsible-2-nodelay": link_in_sections,
    "click-collapsible-nodelay": section,
    "click-dialog": dialog,
    "click-dialog-2": dialog,
    "click-link": link,
    "click-menu": menu,
    "click-tab": tab,
    "click-tab-2": link_in_tabs,
    "click-tab-2-easy": link_in_tabs,
    "click-tab-2-hard": link_in_tabs,
    "click-tab-2-medium": link_in_tabs,
    "click-test": only_button,
    "click-test-2": button_one,
    "click-test-transfer": button_one,
    "find-greatest": greatest,
    "focus-text": focus,
    "generate-number": generate,
    "odd-or-even": parity,
    "phone-book": contact,
    "unicode-test": button,
}
"""Tasks and their plans."""
