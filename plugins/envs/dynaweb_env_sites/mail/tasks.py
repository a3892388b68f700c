"""The mail service's task templates: what is asked, the scripted plan, and how success is checked."""

from __future__ import annotations

import random

from dynaweb_env_sites.content import slug
from dynaweb_env_sites.goals import (
    Do,
    Goal,
    all_of,
    answer_is,
    change_contact,
    choose,
    click,
    fill,
    goal,
    not_there,
    page_has,
    press,
    state_is,
    stop,
    switch_setting,
    templates_of,
    url_is,
    via_search,
)
from dynaweb_env_sites.mail.state import ANSWERS, INBOX, PAGE, TRASH, MailState, Message, Person, subject

URL = "http://mail.localhost"


def _message_url(message: Message) -> str:
    return f"{URL}/messages/{message.slug}"


def _recent(state: MailState, rng: random.Random) -> Message:
    """A message that the first page shows."""
    return rng.choice(state.in_folder(INBOX)[:PAGE])


def _filed(state: MailState, rng: random.Random) -> Message:
    """A message on the first page of another folder."""
    folder = rng.choice([name for name in state.folders if name not in (INBOX, TRASH)])
    return rng.choice(state.in_folder(folder)[:PAGE])


def _any(state: MailState, rng: random.Random) -> Message:
    return rng.choice(list(state.messages.values()))


def _to_message(state: MailState, message: Message) -> tuple[Do, ...]:
    """From the first page: click what is on it, search for anything else."""
    if message in state.in_folder(INBOX)[:PAGE]:
        return (click(message.subject),)
    return via_search(message.subject)


def _person(state: MailState, rng: random.Random) -> Person:
    return rng.choice(list(state.people.values()))


def _to_person(state: MailState, person: Person) -> tuple[Do, ...]:
    """From the first page: the address book where its first page has them, else the search."""
    if person in state.contacts()[:PAGE]:
        return click("Contacts"), click(person.name)
    return via_search(person.name)


def _elsewhere(state: MailState, rng: random.Random, message: Message) -> str:
    """A folder that a message is not in."""
    return rng.choice([name for name in state.folders if name not in (message.folder, TRASH)])


def open_folder(state: MailState, rng: random.Random) -> Goal:
    """Open a folder."""
    folder = rng.choice([name for name in state.folders if name != INBOX])
    phrases = ("Open the folder '{folder}'.", "Go to the folder '{folder}'.", "Show the messages in '{folder}'.")
    return goal(rng, phrases, (click(folder), stop()), url_is(f"{URL}/folders/{slug(folder)}"), folder=folder)


def open_message(state: MailState, rng: random.Random) -> Goal:
    """Open a message of a folder."""
    message = _filed(state, rng)
    phrases = (
        "Open the message '{message}' in the folder '{folder}'.",
        "Go to the folder '{folder}' and open '{message}'.",
    )
    plan = (click(message.folder), click(message.subject), stop())
    return goal(rng, phrases, plan, url_is(_message_url(message)), message=message.subject, folder=message.folder)


def open_sender(state: MailState, rng: random.Random) -> Goal:
    """Open the contact that a message is from."""
    message = _recent(state, rng)
    person = state.sender(message)
    assert person is not None  # nothing was added or taken away yet
    phrases = ("Open the contact who sent '{message}'.", "Open '{message}' and go to the contact of its sender.")
    plan = (click(message.subject), click(message.sender), stop())
    return goal(rng, phrases, plan, url_is(f"{URL}/contacts/{person.slug}"), message=message.subject)


def search_message(state: MailState, rng: random.Random) -> Goal:
    """Search for a message and open it."""
    message = _any(state, rng)
    phrases = ("Search for '{message}' and open it.", "Find the message '{message}' with the search and open it.")
    plan = (*via_search(message.subject), stop())
    return goal(rng, phrases, plan, url_is(_message_url(message)), message=message.subject)


def search_contact(state: MailState, rng: random.Random) -> Goal:
    """Search for a contact and open it."""
    person = _person(state, rng)
    phrases = (
        "Search for the contact '{person}' and open it.",
        "Find '{person}' with the search and open the contact.",
    )
    plan = (*via_search(person.name), stop())
    return goal(rng, phrases, plan, url_is(f"{URL}/contacts/{person.slug}"), person=person.name)


def read_message(state: MailState, rng: random.Random) -> Goal:
    """Answer with a fact of a message."""
    message = _recent(state, rng) if rng.random() < 0.5 else _any(state, rng)
    facts = {
        "amount": state.locale.price(message.amount),
        "reference": message.reference,
        "date": state.locale.date(message.day),
        "sender": message.sender,
    }
    fact, answer = rng.choice(list(facts.items()))
    phrases = ("What is the {fact} of the message '{message}'?", "Tell me the {fact} of '{message}'.")
    plan = (*_to_message(state, message), stop(answer))
    return goal(rng, phrases, plan, answer_is(answer), fact=fact, message=message.subject)


def read_contact(state: MailState, rng: random.Random) -> Goal:
    """Answer with a fact of a contact."""
    person = _person(state, rng)
    fact, attribute = rng.choice((("e-mail", "email"), ("phone", "phone"), ("company", "company"), ("city", "city")))
    answer = str(getattr(person, attribute))
    phrases = ("What is the {fact} of '{person}'?", "Look up the {fact} of the contact '{person}'.")
    plan = (*_to_person(state, person), stop(answer))
    return goal(rng, phrases, plan, answer_is(answer), fact=fact, person=person.name)


def compare_messages(state: MailState, rng: random.Random) -> Goal:
    """Name the oldest message of a folder, or that with the largest amount."""
    folder = rng.choice([name for name in state.folders if name not in (INBOX, TRASH)])
    sort, words = rng.choice((("Oldest", "is the oldest"), ("Largest amount", "has the largest amount")))
    best = state.in_folder(folder, sort)[0].subject
    phrases = ("Which message in the folder '{folder}' {what}?", "In '{folder}', which message {what}?")
    plan = (click(folder), choose("Sort", sort), press("Apply"), stop(best))
    return goal(rng, phrases, plan, answer_is(best), folder=folder, what=words)


def last_met(state: MailState, rng: random.Random) -> Goal:
    """Name the contact who was met last."""
    person = state.contacts("Last met")[0].name
    phrases = ("Which contact did I meet last?", "Name the contact that I met last.")
    plan = (click("Contacts"), choose("Sort", "Last met"), press("Apply"), stop(person))
    return goal(rng, phrases, plan, answer_is(person))


def write_message(state: MailState, rng: random.Random) -> Goal:
    """Write to an address."""
    words = state.new_words(rng)
    address, name = words.email(), subject(words)
    phrases = ("Write to '{address}' with the subject '{subject}'.", "Send '{address}' a message titled '{subject}'.")
    plan = (click("Write"), fill("To", address), fill("Subject", name), press("Send"), stop())
    checks = state_is(("sent.count", 1), ("sent.last.to", address), ("sent.last.subject", name))
    return goal(rng, phrases, plan, checks, address=address, subject=name)


def add_contact(state: MailState, rng: random.Random) -> Goal:
    """Add a contact with name and address."""
    words = state.new_words(rng)
    name, address = words.person(), words.email()
    phrases = (
        "Add the contact '{person}' with the e-mail '{address}'.",
        "Put '{person}', e-mail '{address}', into my contacts.",
    )
    form = (fill("Name", name), fill("E-mail", address))
    plan = (click("Contacts"), click("New contact"), *form, press("Add contact"), stop())
    checks = state_is(("added", [name]), (f"contacts.{name}.email", address))
    return goal(rng, phrases, plan, all_of(checks, page_has("last", name)), person=name, address=address)


def change_settings(state: MailState, rng: random.Random) -> Goal:
    """Change the user's name or e-mail address."""
    return change_contact(state, rng, "full name", signature="")


def toggle_vacation(state: MailState, rng: random.Random) -> Goal:
    """Turn the vacation reply on or off."""
    return switch_setting(state, rng, "vacation", "Vacation reply")


def star(state: MailState, rng: random.Random) -> Goal:
    """Star a message of a folder."""
    message = _filed(state, rng)
    phrases = ("Star the message '{message}' in the folder '{folder}'.", "In the folder '{folder}', star '{message}'.")
    plan = (click(message.folder), click(message.subject), press("Star"), stop())
    check = state_is(("starred", [message.subject]), ("moved", {}))
    return goal(rng, phrases, plan, check, message=message.subject, folder=message.folder)


def delete(state: MailState, rng: random.Random) -> Goal:
    """Delete a message."""
    message = _recent(state, rng) if rng.random() < 0.5 else _any(state, rng)
    phrases = ("Delete the message '{message}'.", "Find '{message}' and delete it.")
    plan = (*_to_message(state, message), press("Delete"), stop())
    return goal(rng, phrases, plan, state_is(("moved", {message.subject: TRASH})), message=message.subject)


def move(state: MailState, rng: random.Random) -> Goal:
    """Move a message into another folder."""
    message = _recent(state, rng)
    folder = _elsewhere(state, rng, message)
    phrases = ("Move '{message}' to the folder '{folder}'.", "Put the message '{message}' into '{folder}'.")
    plan = (click(message.subject), choose("Folder", folder), press("Move"), stop())
    check = state_is(("moved", {message.subject: folder}))
    return goal(rng, phrases, plan, check, message=message.subject, folder=folder)


def reply(state: MailState, rng: random.Random) -> Goal:
    """Reply to a message."""
    message, text = _recent(state, rng), state.new_words(rng).phrase(ANSWERS)
    phrases = ("Reply '{text}' to the message '{message}'.", "Open '{message}' and send the reply '{text}'.")
    plan = (click(message.subject), fill("Reply", text), press("Send reply"), stop())
    check = state_is(("answers", {message.subject: [text]}))
    return goal(rng, phrases, plan, check, message=message.subject, text=text)


def settle(state: MailState, rng: random.Random) -> Goal:
    """Long: answer a message of a folder, star it and move it."""
    message, text = _filed(state, rng), state.new_words(rng).phrase(ANSWERS)
    folder = _elsewhere(state, rng, message)
    phrases = (
        "In the folder '{folder}', star '{message}', reply '{text}' and move it to '{target}'.",
        "Star '{message}' in the folder '{folder}', reply '{text}', then move it to '{target}'.",
    )
    buttons = (press("Star"), fill("Reply", text), press("Send reply"), choose("Folder", folder), press("Move"))
    plan = (click(message.folder), click(message.subject), *buttons, stop())
    name = message.subject
    checks = state_is(("starred", [name]), ("answers", {name: [text]}), ("moved", {name: folder}))
    return goal(rng, phrases, plan, checks, folder=message.folder, message=name, text=text, target=folder)


def write_to_contact(state: MailState, rng: random.Random) -> Goal:
    """Long: find a contact and write to them."""
    person, words = _person(state, rng), state.new_words(rng)
    name, text = subject(words), words.phrase(ANSWERS)
    phrases = (
        "Write to my contact '{person}': subject '{subject}', text '{text}'.",
        "Send my contact '{person}' a message '{subject}' with the text '{text}'.",
    )
    form = (fill("Subject", name), fill("Text", text), press("Send"))
    plan = (*_to_person(state, person), click(f"Write to {person.name}"), *form, stop())
    checks = state_is(("sent.count", 1), ("sent.last", {"to": person.email, "subject": name, "text": text}))
    return goal(rng, phrases, plan, checks, person=person.name, subject=name, text=text)


def missing(state: MailState, rng: random.Random) -> Goal | None:
    """Impossible: a message or a contact that does not exist."""
    words = state.new_words(rng)
    message, person = subject(words), words.person()
    name, phrases = rng.choice(
        (
            (message, ("Open the message '{name}'.", "Delete '{name}'.", "What is the amount of '{name}'?")),
            (person, ("What is the phone of '{name}'?", "Search for the contact '{name}' and open it.")),
        )
    )
    return None if any(state.find(name)) else not_there(rng, phrases, name=name)


TEMPLATES = templates_of(
    "mail",
    {
        "navigate": (open_folder, open_message, open_sender),
        "search": (search_message, search_contact),
        "read": (read_message, read_contact),
        "compare": (compare_messages, last_met),
        "form": (write_message, add_contact, change_settings, toggle_vacation),
        "state": (star, delete, move, reply, settle, write_to_contact),
        "impossible": (missing,),
    },
)
