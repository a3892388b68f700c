"""Plans that click on what the goal names."""

from __future__ import annotations

from collections.abc import Mapping

from dynaweb.types import Node
from dynaweb_env_miniwob.plan import Page, Plan, PlanError, Planner, match, on, quoted


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
    """`Click on the link "In".`: links have no role, and a plain word of that name does nothing."""
    yield from _words(page, quoted(goal))


def tab(goal: str, page: Page) -> Plan:
    """`Click on Tab #1.`"""
    yield page.click("tab", match(r"Click on (Tab #\d)", goal)[0])


def link_in_tabs(goal: str, page: Page) -> Plan:
    """`Switch between the tabs to find and click on the link "ut.".`"""
    yield from _behind("tab", goal, page)


def section(goal: str, page: Page) -> Plan:
    """`Expand the section below and click submit.`"""
    page = yield page.click("tab")
    for _ in range(5):
        # A section that is still unfolding moves.
        page = yield page.submit()


def link_in_sections(goal: str, page: Page) -> Plan:
    """`Expand the sections below, to find and click on the link "ut.".`"""
    yield from _behind("tab", goal, page)


def menu(goal: str, page: Page) -> Plan:
    """`Select Xaviera>Laurie>Melinde`"""
    for name in match(r"Select (.*)", goal)[0].split(">"):
        page = yield page.click("menuitem", name)


def pie(goal: str, page: Page) -> Plan:
    """`Expand the pie menu below and click on the item labeled "J".`"""
    page = yield page.click("text", "+")
    for _ in range(5):
        # The slices fly out.
        page = yield page.click("text", quoted(goal))


def ticket(goal: str, page: Page) -> Plan:
    """`Buy the ticket with the cheapest cost.`, or the shortest duration, or the opposite of each."""
    (which,) = match(r"the (cheapest|most expensive|shortest|longest)", goal)
    books = page.all("button")
    times = [_minutes(node.name) for node in page.all("text")]
    costs = [int(node.name.rpartition("$")[2]) for node in books]
    values = costs if which in ("cheapest", "most expensive") else times
    best = (min if which in ("cheapest", "shortest") else max)(values)
    yield on("click", books[values.index(best)])


def greatest(goal: str, page: Page) -> Plan:
    """`Find and pick the card with the greatest number, then press submit.`"""
    cards = page.all("text")
    page = yield on("click", max(cards, key=lambda node: int(node.name)))
    yield page.submit()


def focus(goal: str, page: Page) -> Plan:
    """`Focus into the textbox.`"""
    yield page.click("textbox")


def parity(goal: str, page: Page) -> Plan:
    """`Mark the numbers below as odd or even and press submit when done.`"""
    for place, number in enumerate(page.all("text")):
        page = yield page.click("button", "Odd" if int(number.name) % 2 else "Even", nth=place)
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


def _fits(goal: str, shown: str) -> bool:
    if not shown.lstrip("-").isdigit():
        return False
    how, limit = match(r"(even|odd|less|greater)(?: number| than (\d+))", goal)
    number = int(shown)
    tests = {"even": number % 2 == 0, "odd": number % 2 == 1}
    if how in tests:
        return tests[how]
    return number < int(limit) if how == "less" else number > int(limit)


def _minutes(text: str) -> int:
    hours, minutes = match(r"(\d+)h (\d+)m", text)
    return 60 * int(hours) + int(minutes)


def _words(page: Page, name: str) -> Plan:
    """Click on every text of that name in turn: one of them is the link."""
    for place in range(len([node for node in page.all("text") if node.name == name])):
        page = yield page.click("text", name, nth=place)


def _behind(role: str, goal: str, page: Page) -> Plan:
    """Open one after another of the things that hide text, and look for the link in each."""
    name = quoted(goal)
    doors: list[Node] = page.all(role)
    for place in range(len(doors)):
        if place or role == "tab":
            page = yield page.click(role, nth=place)
        for _ in range(3):
            found = [node for node in page.all("text") if node.name == name]
            for number in range(len(found)):
                page = yield page.click("text", name, nth=number)
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
    "click-pie": pie,
    "click-pie-nodelay": pie,
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
