"""Plans that tick boxes and choose from lists."""

from __future__ import annotations

from collections.abc import Mapping

from dynaweb_env_miniwob.plan import Page, Plan, Planner, match, on, ordinal, quoted


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


PLANS: Mapping[str, Planner] = {
    "choose-list": from_list,
    "click-checkboxes": boxes,
    "click-checkboxes-large": boxes,
    "click-checkboxes-transfer": boxes,
    "click-option": option,
    "click-scroll-list": from_scroll_list,
    "form-sequence-2": radio_and_number,
    "form-sequence-3": height_and_button,
}
"""Tasks and their plans."""
