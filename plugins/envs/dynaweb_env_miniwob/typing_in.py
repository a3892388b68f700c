"""Plans that type what the goal says."""

from __future__ import annotations

from collections.abc import Mapping

from dynaweb_env_miniwob.plan import Page, Plan, PlanError, Planner, match, quoted


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
    for place in (0, 1):
        page = yield from _undisturbed(page)
        page = yield page.fill(quoted(goal, place), nth=place)
    page = yield from _undisturbed(page)
    yield page.click("button", "Login")


def date_picker(goal: str, page: Page) -> Plan:
    """`Select 10/11/2016 as the date and hit submit.`: the field takes text too."""
    page = yield page.fill(match(r"(\d\d/\d\d/\d{4})", goal)[0])
    page = yield page.click("text", "Date:")
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
        found = [node for node in page.nodes if node.name.startswith(start) and node.name.endswith(end)]
        offered = [node for node in found if node.role in ("text", "menuitem", "option")]
        if offered:
            page = yield page.fill(offered[0].name)
            page = yield page.click("menuitem", offered[0].name)
            yield page.submit()
        page = yield page.click("textbox")
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
    wanted = {"Genre": genre, "Direct": director, "Year": year}
    for place in range(3):
        page = yield page.fill(wanted[_label(page, place, wanted)], nth=place)
    ends = [node for node in page.nodes if node.name in ("Submit", "Search", "Go", "Find")]
    yield page.click(ends[-1].role, ends[-1].name)


def _label(page: Page, place: int, known: Mapping[str, str]) -> str:
    """Which of the known labels the nth textbox has: its own name, or the last text before it."""
    box = page.get("textbox", nth=place)
    said = [box.name, *(node.name for node in reversed(page.nodes[: box.id - 1]) if node.role != "textbox")]
    found = next((key for name in said for key in known if key in name), None)
    if found is None:
        raise PlanError(f"textbox {place + 1} has none of the labels {', '.join(known)}")
    return found


def _undisturbed(page: Page) -> Plan:
    """Close the message that pops up at any moment."""
    if page.has("button", "OK"):
        page = yield page.click("button", "OK")
    return page


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
