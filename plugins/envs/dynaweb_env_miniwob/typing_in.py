"""Plans that type what the goal says."""

from __future__ import annotations

from calendar import month_name
from collections.abc import Mapping

from dynaweb.types import Action
from dynaweb_env_miniwob.plan import Page, Plan, PlanError, Planner, match, on, quoted


def text(goal: str, page: Page) -> Plan:
    """`Enter "Tora" into the text field and press Submit.`"""
    page = yield page.fill(quoted(goal))
    yield page.submit()


def in_case(goal: str, page: Page) -> Plan:
    """`Type "tora" in all upper case letters in the text input and press Submit.`"""
    (case,) = match(r"in all (upper|lower) case", goal)
    page = yield page.fill(quoted(goal).upper() if case == "upper" else quoted(goal).lower())
    yield page.submit()


def password_twice(goal: str, page: Page) -> Plan:
    """`Enter the password "rUT3X" into both text fields and press submit.`"""
    page = yield page.fill(quoted(goal))
    page = yield page.fill(quoted(goal), nth=1)
    yield page.submit()


def login(goal: str, page: Page) -> Plan:
    """`Enter the username "thaddeus" and the password "UT" into the text fields and press login.`"""
    for index in (0, 1):
        page = yield page.fill(quoted(goal, index), nth=index)
        if page.has("button", "Cancel"):
            # A message popped up when the field got the focus, and nothing was typed.
            page = yield page.click("button", "Cancel")
            page = yield page.fill(quoted(goal, index), nth=index)
    yield on("click", page.all("button")[-1])


def date_picker(goal: str, page: Page) -> Plan:
    """`Select 10/11/2016 as the date and hit submit.`: the calendar opens at the end of the year."""
    month, day, year = match(r"(\d\d)/(\d\d)/(\d{4})", goal)
    page = yield page.click("textbox")
    while not page.has("text", f"{month_name[int(month)]} {year}"):
        page = yield page.click("link", "Prev")
    page = yield page.click("link", str(int(day)))
    yield page.submit()


def date(goal: str, page: Page) -> Plan:
    """`Enter 10/20/2017 as the date and hit submit.`, in a native date field."""
    month, day, year = match(r"(\d\d)/(\d\d)/(\d{4})", goal)
    page = yield page.fill(f"{year}-{month}-{day}")
    yield page.submit()


def time(goal: str, page: Page) -> Plan:
    """`Enter 7:55 PM as the time and press submit.`, in a native time field."""
    hour, minute, half = match(r"(\d+):(\d\d) (AM|PM)", goal)
    page = yield page.fill(f"{int(hour) % 12 + 12 * (half == 'PM'):02d}:{minute}")
    yield page.submit()


def spinner(goal: str, page: Page) -> Plan:
    """`Select 5 with the spinner and hit Submit.`"""
    page = yield page.fill(match(r"Select (-?\d+) with", goal)[0])
    yield page.submit()


def completed(goal: str, page: Page) -> Plan:
    """`Enter an item that starts with "Sa" and ends with "ino".`: the list shows what there is."""
    start = quoted(goal)
    end = quoted(goal, 1) if "ends with" in goal else ""
    page = yield page.fill(start)
    for _ in range(5):
        others = [node for node in page.nodes if node.role not in ("textbox", "list", "status")]
        offers = [node for node in others if node.name.startswith(start) and node.name.endswith(end)]
        if offers:
            page = yield on("click", offers[0])
            yield page.submit()
        page = yield Action("wait")
    raise PlanError(f"nothing is offered that starts with {start!r} and ends with {end!r}")


def guess(goal: str, page: Page) -> Plan:
    """`Guess the number between 0-9 and press Submit. Use the feedback below to find the right number.`"""
    low, high = 0, 9
    while low <= high:
        middle = (low + high) // 2
        page = yield page.fill(str(middle))
        page = yield page.submit()
        if any("higher" in node.name for node in page.nodes):
            low = middle + 1
        else:
            high = middle - 1


def movie(goal: str, page: Page) -> Plan:
    """`Search for surreal movies directed by Baxter from year 1995.`, whatever the form looks like."""
    genre, director, year = match(r"Search for (.*) movies directed by (.*) from year (\d+)", goal)
    wanted = {"Genre": genre, "Director": director, "Year": year, "Date": year}
    for index in range(3):
        page = yield page.fill(wanted[_label(page, index, wanted)], nth=index)
    yield page.click("button")


def _label(page: Page, index: int, known: Mapping[str, str]) -> str:
    """Which of the known labels the nth textbox has: the last text before it, or the next where labels come after."""
    box = page.get("textbox", nth=index)
    before = page.nodes[box.id - 2 :: -1] if page.nodes[0].role != "textbox" else page.nodes[box.id :]
    texts = [node.name for node in before if node.role != "textbox"]
    label = next((key for name in texts for key in known if key in name), None)
    if label is None:
        raise PlanError(f"textbox {index + 1} has none of the labels {', '.join(known)}")
    return label


PLANS: Mapping[str, Planner] = {
    "choose-date": date_picker,
    "choose-date-easy": date_picker,
    "choose-date-medium": date_picker,
    "choose-date-nodelay": date_picker,
    "enter-date": date,
    "enter-password": password_twice,
    "enter-text": text,
    "enter-text-2": in_case,
    "enter-text-dynamic": text,
    "enter-time": time,
    "guess-number": guess,
    "login-user": login,
    "login-user-popup": login,
    "multi-layouts": movie,
    "multi-orderings": movie,
    "use-autocomplete": completed,
    "use-autocomplete-nodelay": completed,
    "use-spinner": spinner,
}
"""Tasks and their plans."""
