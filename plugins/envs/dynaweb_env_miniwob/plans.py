"""Scripted experts: a plan for each task that can be read and acted on through the accessibility tree."""

from __future__ import annotations

import re
from calendar import month_name
from collections.abc import Generator, Mapping
from itertools import pairwise

from dynaweb.errors import DynawebError, MissingError
from dynaweb.types import Action, Node, Observation, Task
from dynaweb_env_miniwob.plan import Page, Plan, PlanError, Planner, match, on, ordinal, quoted

# --- Clicking what the goal names.


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


# --- Ticking boxes and choosing from lists.


def boxes(goal: str, page: Page) -> Plan:
    """`Select ZrLIee, RKPgD and click Submit.`, or nothing."""
    (names,) = match(r"Select (.*) and click Submit", goal)
    for name in [] if names == "nothing" else names.split(", "):
        page = yield page.click("checkbox", name)
    yield page.submit()


def option(goal: str, page: Page) -> Plan:
    """`Select yMbdWAR and click Submit.`"""
    (name,) = match(r"Select (.*) and click Submit", goal)
    page = yield page.click("radio", name)
    yield page.submit()


def from_list(goal: str, page: Page) -> Plan:
    """`Select Somalia from the list and click Submit.`"""
    (name,) = match(r"Select (.*) from the list", goal)
    page = yield on("select", page.get("combobox"), name)
    yield page.submit()


def from_scroll_list(goal: str, page: Page) -> Plan:
    """`Select Brazil, Mauritania from the scroll list and click Submit.`"""
    (names,) = match(r"Select (.*) from the scroll list", goal)
    for name in names.split(", "):
        page = yield on("select", page.get("listbox"), name)
    yield page.submit()


def radio_and_number(goal: str, page: Page) -> Plan:
    """`Check the 3rd radio button and enter the number "-7" into the 2nd textbox.`"""
    page = yield page.click("radio", nth=ordinal(goal))
    page = yield page.fill(quoted(goal), nth=ordinal(goal, 1))
    yield page.submit()


def height_and_button(goal: str, page: Page) -> Plan:
    """`Choose 6 ft from the dropdown, then click the button labeled "Yes".`"""
    (height,) = match(r"Choose (.*) from the dropdown", goal)
    page = yield on("select", page.get("combobox"), height)
    # The page draws its own list over the buttons, which Escape does not close.
    page = yield page.click("button", "▾")
    yield page.click("button", quoted(goal))


# --- Typing what the goal says.


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


# --- Reading something off the page and typing or clicking it.


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


# --- The mail box and the posts: the icons beside a name.


def mail(goal: str, page: Page) -> Plan:
    """`Find the email by Deva and click the star icon to mark it as important.`, or delete, forward or answer it."""
    (sender,) = match(r"email by (\S+?)\.? ", goal)
    who = page.get("text", sender)
    if "star icon" in goal or "trash icon" in goal:
        yield page.click("button", "star" if "star icon" in goal else "trash", after=who)
    elif "forward" in goal:
        yield from _forward(page, who, match(r"forward that email to (\S+)\.", goal)[0])
    else:
        page = yield on("click", who)
        page = yield page.click("button", "Reply")
        page = yield page.fill(quoted(goal))
        yield page.click("button", "send-reply")


def posts(goal: str, page: Page) -> Plan:
    """`Click the "Retweet" button on all posts by @enola and then click Submit.`, or on some of them."""
    how_many, user = match(r"on (all|\d+) posts? by (@\S+) and", goal)
    count = len(_posts(page, user)) if how_many == "all" else int(how_many)
    for index in range(count):
        page = yield page.click("button", ICONS[quoted(goal)], after=_posts(page, user)[index])
    yield page.submit()


ICONS = {"Reply": "reply", "Retweet": "retweet", "Like": "like", "Share": "share"}
"""Icons under a post by what they do."""


def _posts(page: Page, user: str) -> list[Node]:
    return [node for node in page.all("text") if user in node.name.split()]


def _forward(page: Page, sender: Node, to: str) -> Plan:
    page = yield on("click", sender)
    page = yield page.click("button", "Forward")
    page = yield page.fill(to)
    yield page.click("button", "send-forward")


PLANS: Mapping[str, Planner] = {
    "buy-ticket": ticket,
    "choose-date": date_picker,
    "choose-date-easy": date_picker,
    "choose-date-medium": date_picker,
    "choose-date-nodelay": date_picker,
    "choose-list": from_list,
    "click-button": button,
    "click-button-sequence": one_then_two,
    "click-checkboxes": boxes,
    "click-checkboxes-large": boxes,
    "click-checkboxes-transfer": boxes,
    "click-collapsible": section,
    "click-collapsible-2": link_in_sections,
    "click-collapsible-2-nodelay": link_in_sections,
    "click-collapsible-nodelay": section,
    "click-dialog": dialog,
    "click-dialog-2": dialog,
    "click-link": link,
    "click-menu": menu,
    "click-option": option,
    "click-scroll-list": from_scroll_list,
    "click-tab": tab,
    "click-tab-2": link_in_tabs,
    "click-tab-2-easy": link_in_tabs,
    "click-tab-2-hard": link_in_tabs,
    "click-tab-2-medium": link_in_tabs,
    "click-test": only_button,
    "click-test-2": button_one,
    "click-test-transfer": button_one,
    "copy-paste": copy,
    "copy-paste-2": copy_one,
    "email-inbox": mail,
    "email-inbox-delete": mail,
    "email-inbox-forward": mail,
    "email-inbox-important": mail,
    "email-inbox-noscroll": mail,
    "email-inbox-reply": mail,
    "email-inbox-star-reply": mail,
    "enter-date": date,
    "enter-password": password_twice,
    "enter-text": text,
    "enter-text-2": in_case,
    "enter-text-dynamic": text,
    "enter-time": time,
    "find-greatest": greatest,
    "find-word": word,
    "focus-text": focus,
    "focus-text-2": focus_one,
    "form-sequence-2": radio_and_number,
    "form-sequence-3": height_and_button,
    "generate-number": generate,
    "guess-number": guess,
    "login-user": login,
    "login-user-popup": login,
    "multi-layouts": movie,
    "multi-orderings": movie,
    "odd-or-even": parity,
    "phone-book": contact,
    "read-table": value,
    "read-table-2": values,
    "scroll-text": last_word,
    "search-engine": search,
    "simple-algebra": unknown,
    "simple-arithmetic": sum_of_two,
    "social-media-all": posts,
    "social-media-some": posts,
    "text-transform": copy_text,
    "unicode-test": button,
    "use-autocomplete": completed,
    "use-autocomplete-nodelay": completed,
    "use-spinner": spinner,
}
"""Tasks and their plans."""
SCRIPTED = frozenset(PLANS)
"""Tasks that have an expert."""


class MiniwobExpert:
    """Plays one task and keeps its place in the plan; make a new one for every episode."""

    def __init__(self, task: Task) -> None:
        """Raises `MissingError` when the task has no plan."""
        if task.template not in PLANS:
            raise MissingError(f"there is no scripted expert for {task.template!r}; env.pick = 'scripted' draws others")
        self._task = task
        self._plan: Plan | None = None

    def act(self, observation: Observation) -> Action:
        """The next action on this page. Raises `DynawebError` when the plan is over or does not fit the page."""
        page = Page(observation)
        try:
            if self._plan is None:
                self._plan = PLANS[self._task.template](self._task.intent, page)
                return next(self._plan)
            return self._plan.send(page)
        except StopIteration:
            raise DynawebError(f"the plan of task {self._task.id!r} is over, and the page is not done") from None
        except (PlanError, LookupError, ValueError) as error:
            # Whatever a plan trips over, it is the plan that does not fit.
            raise DynawebError(f"the plan of task {self._task.id!r} does not fit: {error}") from None
