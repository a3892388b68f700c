"""Plans that read something off the page and type or click it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dynaweb_env_miniwob.plan import Page, Plan, Planner, match, ordinal, quoted


def copy(goal: str, page: Page) -> Plan:
    """`Copy the text in the textarea below, paste it into the textbox and press Submit.`"""
    boxes = page.all("textbox")
    full = next(box for box in boxes if box.value)
    page = yield page.fill(str(full.value), nth=next(index for index, box in enumerate(boxes) if not box.value))
    yield page.submit()


def copy_one(goal: str, page: Page) -> Plan:
    """`Copy the text from the 3rd text area below and paste it into the text input, then press Submit.`"""
    boxes = page.all("textbox")
    page = yield page.fill(str(boxes[ordinal(goal)].value), nth=len(boxes) - 1)
    yield page.submit()


def focus_one(goal: str, page: Page) -> Plan:
    """`Focus into the 3rd input textbox.`"""
    yield page.click("textbox", nth=ordinal(goal))


def word(goal: str, page: Page) -> Plan:
    """`Find the 4th word in the paragraph, type that into the textbox and press "Submit".`"""
    words = " ".join(node.name for node in page.all("text")).split()
    page = yield page.fill(re.sub(r"\W", "", words[ordinal(goal)]))
    yield page.submit()


def last_word(goal: str, page: Page) -> Plan:
    """`Find the last word in the text area, enter it into the text field and hit Submit.`"""
    text = next(str(box.value) for box in page.all("textbox") if box.value)
    page = yield page.fill(text.split()[-1], nth=1)
    yield page.submit()


def value(goal: str, page: Page) -> Plan:
    """`Enter the value of Language into the text field and press Submit.`"""
    page = yield page.fill(_value_of(page, match(r"the value of (.*) into", goal)[0]))
    yield page.submit()


def values(goal: str, page: Page) -> Plan:
    """`Enter the value that corresponds with each label into the form and submit when done.`"""
    for index in (0, 1):
        box = page.get("textbox", nth=index)
        label = box.name or page.nodes[box.id - 2].name
        page = yield page.fill(_value_of(page, label.rstrip(":")), nth=index)
    yield page.submit()


def copy_text(goal: str, page: Page) -> Plan:
    """`Type the text below into the text field and press Submit.`"""
    page = yield page.fill("".join(node.name for node in page.all("text")))
    yield page.submit()


def sum_of_two(goal: str, page: Page) -> Plan:
    """`Solve the math problem and type your answer into the textbox. Press submit when done.`"""
    left, sign, right = match(r"(-?\d+) ([-+x*×]) (-?\d+)", " ".join(node.name for node in page.all("text")))
    a, b = int(left), int(right)
    page = yield page.fill(str({"+": a + b, "-": a - b}.get(sign, a * b)))
    yield page.submit()


def unknown(goal: str, page: Page) -> Plan:
    """`Solve for x and type your answer into the textbox. Press Submit when done.`"""
    left, sign, right, result = match(r"(x|-?\d+) ([-+]) (x|-?\d+) = (-?\d+)", page.get("text").name)
    total = int(result)
    if left == "x":
        answer = total - int(right) if sign == "+" else total + int(right)
    else:
        answer = total - int(left) if sign == "+" else int(left) - total
    page = yield page.fill(str(answer))
    yield page.submit()


def search(goal: str, page: Page) -> Plan:
    """`Use the textbox to enter "Truman" and press "Search", then find and click the 5th search result.`"""
    index = ordinal(goal)
    page = yield page.fill(quoted(goal))
    page = yield page.click("button", "Search")
    if index >= RESULTS:
        page = yield page.click("link", str(index // RESULTS + 1))
    yield page.click("link", nth=index % RESULTS)


RESULTS = 3
"""Search results on one page."""


def _value_of(page: Page, label: str) -> str:
    """The text that follows a label in a table."""
    return page.get("text", after=page.get("text", label)).name


PLANS: Mapping[str, Planner] = {
    "copy-paste": copy,
    "copy-paste-2": copy_one,
    "find-word": word,
    "focus-text-2": focus_one,
    "read-table": value,
    "read-table-2": values,
    "scroll-text": last_word,
    "search-engine": search,
    "simple-algebra": unknown,
    "simple-arithmetic": sum_of_two,
    "text-transform": copy_text,
}
"""Tasks and their plans."""
