"""Task templates of 8 to 15 best-case steps on every site: several pages, and forms across pages.

No default draws them (`env.length = "long"` does), and no model of this package was pre-trained on them. They ask what
dreams are worth where an episode is longer than a short dream.
"""

from __future__ import annotations

import random
from typing import Any

from dynaweb_env_sites.forum import state as forum_state
from dynaweb_env_sites.forum.state import ForumState
from dynaweb_env_sites.goals import (
    Goal,
    Template,
    choose,
    click,
    fill,
    goal,
    press,
    state_is,
    stop,
    templates_of,
    tick,
    via_search,
)
from dynaweb_env_sites.mail import state as mail_state
from dynaweb_env_sites.mail.state import MailState
from dynaweb_env_sites.shop.state import SHIPPING, Product, ShopState
from dynaweb_env_sites.tracker import state as tracker_state
from dynaweb_env_sites.tracker.state import TrackerState


def _bought(state: ShopState, **wanted: Any) -> tuple[tuple[str, Any], ...]:
    return ("orders.count", len(state.orders) + 1), *((f"orders.last.{key}", value) for key, value in wanted.items())


def _in_cart(state: ShopState) -> dict[str, int]:
    return {state.content.products[key].name: count for key, count in state.cart.items()}


def _stocked(state: ShopState, rng: random.Random, count: int) -> list[Product] | None:
    """Products that are on sale and neither in the cart nor on the wish list."""
    taken = {*state.cart, *state.wishes}
    free = [product for product in state.content.products if product.stock >= 3 and product.id not in taken]
    return rng.sample(free, count) if len(free) >= count else None


def buy_two(state: ShopState, rng: random.Random) -> Goal | None:
    """Find two products, put both into the cart and order."""
    chosen = _stocked(state, rng, 2)
    if chosen is None:
        return None
    names, shipping = [product.name for product in chosen], rng.choice(SHIPPING[1:])
    phrases = (
        "Add '{first}' and '{second}' to the cart, then order with '{shipping}' shipping.",
        "Order '{first}' and '{second}' together with what is in the cart, shipping '{shipping}'.",
    )
    finding = [step for name in names for step in (*via_search(name), press("Add to cart"))]
    plan = (*finding, click("Cart"), click("Checkout"), choose("Shipping", shipping), press("Place order"), stop())
    items = _in_cart(state) | dict.fromkeys(names, 1)
    checks = _bought(state, items=items, shipping=shipping)
    return goal(rng, phrases, plan, state_is(*checks), first=names[0], second=names[1], shipping=shipping)


def start_over(state: ShopState, rng: random.Random) -> Goal | None:
    """Empty the cart, then order several pieces of another product with a coupon."""
    chosen, inside = _stocked(state, rng, 1), sorted(_in_cart(state))
    if chosen is None or len(inside) != 2:
        return None
    product, count = chosen[0], str(rng.randrange(2, min(chosen[0].stock, 9) + 1))
    code = f"{rng.choice(state.content.towns)}{rng.choice((5, 10, 15, 20))}"
    phrases = (
        "Empty the cart, put {count} of '{item}' in it, apply the coupon '{code}' and order.",
        "Remove everything from the cart, then order {count} of '{item}' with the coupon '{code}'.",
    )
    emptying = (click("Cart"), *(press(f"Remove {name}") for name in inside))
    filling = (*via_search(product.name), fill("Quantity", count), press("Add to cart"), click("Cart"))
    paying = (fill("", code), press("Apply coupon"), click("Checkout"), press("Place order"), stop())
    checks = _bought(state, items={product.name: int(count)})
    check = state_is(*checks, ("cart.coupon", code))
    return goal(rng, phrases, (*emptying, *filling, *paying), check, count=count, item=product.name, code=code)


def move_house(state: ShopState, rng: random.Random) -> Goal:
    """Change the address in the profile, then order the cart as a gift to it."""
    street, city = rng.sample(state.content.towns, 2)
    street = f"{street} {rng.randrange(2, 99)}"
    phrases = (
        "Change my profile to the street '{street}' and the city '{city}', then order the cart with gift wrap.",
        "I moved to '{street}' in '{city}': update my profile, then order the cart with gift wrap.",
    )
    moving = (click("Account"), click("Profile"), fill("Street", street), fill("City", city), press("Save"))
    plan = (*moving, click("Cart"), click("Checkout"), tick("Gift wrap"), press("Place order"), stop())
    profile = (("profile.street", street), ("profile.city", city))
    checks = _bought(state, items=_in_cart(state), gift_wrap=True, street=street, city=city)
    return goal(rng, phrases, plan, state_is(*profile, *checks), street=street, city=city)


def buy_wish(state: ShopState, rng: random.Random) -> Goal | None:
    """Order several pieces of something on the wish list."""
    wishes = [key for key in state.wishes if state.content.products[key].stock >= 3 and key not in state.cart]
    if not wishes:
        return None
    product = state.content.products[rng.choice(wishes)]
    count, shipping = str(rng.randrange(2, min(product.stock, 9) + 1)), rng.choice(SHIPPING[1:])
    phrases = (
        "Put {count} of '{item}' from my wish list in the cart and order with '{shipping}' shipping.",
        "From the wish list, order {count} of '{item}' with the cart, shipping '{shipping}'.",
    )
    taking = (click("Account"), click("Wish list"), click(product.name), fill("Quantity", count), press("Add to cart"))
    paying = (click("Cart"), click("Checkout"), choose("Shipping", shipping), press("Place order"), stop())
    checks = _bought(state, items=_in_cart(state) | {product.name: int(count)}, shipping=shipping)
    return goal(rng, phrases, (*taking, *paying), state_is(*checks), count=count, item=product.name, shipping=shipping)


def start_and_follow(state: ForumState, rng: random.Random) -> Goal:
    """Start a thread with a text, then follow a member."""
    words = state.new_words(rng)
    name, text = forum_state.title(words), words.phrase(forum_state.OPENERS)
    board, member = rng.choice(state.content.boards).name, rng.choice(state.content.members).name
    phrases = (
        "Start a thread '{title}' on the board '{board}' with the text '{text}', then follow the member '{member}'.",
        "Post '{text}' as the thread '{title}' on '{board}', then find '{member}' and follow them.",
    )
    form = (fill("Title", name), choose("Board", board), fill("Text", text), press("Post thread"))
    plan = (click("New thread"), *form, *via_search(member), press("Follow"), stop())
    checks = (("started", [name]), (f"threads.{name}", {"board": board, "text": text}), ("followed", [member]))
    return goal(rng, phrases, plan, state_is(*checks), title=name, board=board, text=text, member=member)


def set_up_account(state: ForumState, rng: random.Random) -> Goal:
    """Fill in all settings, then mark the notifications as read."""
    words, digests = state.new_words(rng), not state.settings.digests
    name, email, signature = words.name(), words.email(), words.name()
    phrases = (
        "In the settings, set the display name '{name}', the e-mail '{email}' and the signature '{signature}', turn "
        "'E-mail digests' {switch}, then mark all notifications as read.",
    )
    form = (fill("Display name", name), fill("E-mail", email), fill("", signature), tick("E-mail digests"))
    plan = (click("Settings"), *form, press("Save"), click("Notifications"), press("Mark all read"), stop())
    wanted = {"name": name, "email": email, "signature": signature, "digests": digests}
    check = state_is(*((f"settings.{key}", value) for key, value in wanted.items()), ("unread", False))
    switch = "on" if digests else "off"
    return goal(rng, phrases, plan, check, name=name, email=email, signature=signature, switch=switch)


def two_threads(state: ForumState, rng: random.Random) -> Goal:
    """Subscribe to a thread of one board, and reply to one of another."""
    first, second = rng.sample(state.content.boards, 2)
    here, there = (rng.choice(state.board_threads(board.name)[: forum_state.PAGE]) for board in (first, second))
    text = state.new_words(rng).phrase(forum_state.REMARKS)
    phrases = (
        "On the board '{board}', upvote '{thread}' and subscribe to it; on '{other}', upvote '{second}' and reply "
        "'{text}'.",
    )
    before = (click(first.name), click(here.title), press("Upvote"), press("Subscribe"), click("Home"))
    after = (click(second.name), click(there.title), press("Upvote"), fill("Reply", text), press("Post reply"), stop())
    checks = (
        ("upvoted", sorted([here.title, there.title])),
        ("subscribed", [here.title]),
        ("replies", {there.title: [text]}),
    )
    slots = {"board": first.name, "thread": here.title, "other": second.name, "second": there.title, "text": text}
    return goal(rng, phrases, (*before, *after), state_is(*checks), **slots)


def file_and_plan(state: TrackerState, rng: random.Random) -> Goal:
    """Create an issue with its fields, then give it a milestone, an assignee and a label."""
    words, project = state.new_words(rng), rng.choice(state.content.projects)
    name, text = tracker_state.title(words), words.phrase(tracker_state.REPORTS)
    milestone = project.milestones[-1].name
    person, label = rng.choice(state.team(project)).name, rng.choice(tracker_state.LABELS[1:])
    phrases = (
        "In '{project}', create the issue '{title}' with the text '{text}', set its milestone '{milestone}', assign it "
        "to '{person}' and label it '{label}'.",
    )
    filing = (click("New issue"), fill("Title", name), fill("Description", text), press("Create issue"))
    planning = (click("Edit"), choose("Milestone", milestone), press("Save changes"))
    giving = (choose("Assign to", person), press("Assign"), choose("Label", label), press("Set label"))
    wanted = {"description": text, "milestone": milestone, "assignee": person, "label": label}
    checks = [(f"issues.{name}.{key}", value) for key, value in wanted.items()]
    check = state_is(("created", [name]), ("changed", [name]), *checks)
    plan = (click(project.name), *filing, *planning, *giving, stop())
    slots = {"project": project.name, "title": name, "text": text, "milestone": milestone, "person": person}
    return goal(rng, phrases, plan, check, **slots, label=label)


def triage(state: TrackerState, rng: random.Random) -> Goal | None:
    """Change priority and label of an issue of a project, and comment on it."""
    project = rng.choice(state.content.projects)
    issues = state.project_issues(project.name)[: tracker_state.PAGE]
    issue, text = rng.choice(issues), state.new_words(rng).phrase(tracker_state.REMARKS)
    priority = rng.choice([one for one in tracker_state.PRIORITIES if one != issue.priority])
    label = rng.choice([one for one in tracker_state.LABELS if one != issue.label])
    phrases = (
        "In '{project}', set the priority of '{issue}' to '{priority}' and its label to '{label}', then comment "
        "'{text}' on it.",
    )
    editing = (click("Edit"), choose("Priority", priority), press("Save changes"))
    rest = (choose("Label", label), press("Set label"), fill("Comment", text), press("Add comment"), stop())
    checks = [(f"issues.{issue.title}.priority", priority), (f"issues.{issue.title}.label", label)]
    check = state_is(("changed", [issue.title]), ("comments", {issue.title: [text]}), *checks)
    plan = (click(project.name), click(issue.title), *editing, *rest)
    slots = {"project": project.name, "issue": issue.title, "priority": priority, "label": label, "text": text}
    return goal(rng, phrases, plan, check, **slots)


def hand_over(state: TrackerState, rng: random.Random) -> Goal | None:
    """Assign two issues of a project to one person."""
    project = rng.choice(state.content.projects)
    person = rng.choice(project.team)
    issues = [one for one in state.project_issues(project.name)[: tracker_state.PAGE] if one.assignee != person]
    if len(issues) < 2:
        return None
    first, second = rng.sample(issues, 2)
    phrases = ("In '{project}', assign both '{first}' and '{second}' to '{person}'.",)
    assign = (choose("Assign to", person), press("Assign"))
    plan = (
        *(click(project.name), click(first.title), *assign),
        *(click(project.name), click(second.title), *assign, stop()),
    )
    checks = [(f"issues.{issue.title}.assignee", person) for issue in (first, second)]
    check = state_is(("changed", sorted([first.title, second.title])), *checks)
    slots = {"project": project.name, "first": first.title, "second": second.title, "person": person}
    return goal(rng, phrases, plan, check, **slots)


def clear_desk(state: MailState, rng: random.Random) -> Goal:
    """Delete one message, answer and file another, and note a contact."""
    first, second = rng.sample(state.in_folder(mail_state.INBOX)[: mail_state.PAGE - 1], 2)
    words, folder = state.new_words(rng), rng.choice(state.content.folders)
    text, person, address = words.phrase(mail_state.ANSWERS), words.person(), words.email()
    phrases = (
        "Delete '{first}', reply '{text}' to '{second}' and move it to '{folder}', then add the contact '{person}' "
        "with the e-mail '{address}'.",
    )
    letters = (click(first.subject), press("Delete"), click(second.subject), fill("Reply", text), press("Send reply"))
    filing = (choose("Folder", folder), press("Move"), click("Contacts"), click("New contact"))
    plan = (*letters, *filing, fill("Name", person), fill("E-mail", address), press("Add contact"), stop())
    checks = (
        ("moved", {first.subject: mail_state.TRASH, second.subject: folder}),
        ("answers", {second.subject: [text]}),
        (f"contacts.{person}.email", address),
    )
    slots = {"first": first.subject, "second": second.subject, "text": text, "folder": folder, "person": person}
    return goal(rng, phrases, plan, state_is(*checks), **slots, address=address)


LONG: tuple[Template, ...] = (
    *templates_of("shop", {"long": (buy_two, start_over, move_house, buy_wish)}),
    *templates_of("forum", {"long": (start_and_follow, set_up_account, two_threads)}),
    *templates_of("tracker", {"long": (file_and_plan, triage, hand_over)}),
    *templates_of("mail", {"long": (clear_desk,)}),
)
