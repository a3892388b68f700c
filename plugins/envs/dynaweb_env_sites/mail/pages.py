"""The mail service: folders, messages, contacts, writing and settings, without JavaScript.

No model of this package was pre-trained on it, and no default uses it: it is there to ask how much a result owes to
sites that the base model knew (`env.sites = ["mail"]`).
"""

from __future__ import annotations

from dataclasses import replace

from flask import Blueprint, abort, request
from werkzeug.wrappers import Response

from dynaweb_env_sites.base import (
    LACKING,
    Site,
    View,
    current,
    listing,
    option,
    posted_contact,
    render,
    sent,
    show,
)
from dynaweb_env_sites.content import slug
from dynaweb_env_sites.mail.state import CONTACT_SORTS, INBOX, PAGE, SORTS, TRASH, MailState, Message, Person
from dynaweb_env_sites.mail.tasks import TEMPLATES

pages = Blueprint("mail", __name__)
SITE = Site("mail", pages, TEMPLATES, MailState.fresh)


@pages.get("/")
def _home() -> str:
    return _listed(current(MailState), INBOX)


@pages.get("/folders/<name>")
def _folder(name: str) -> str:
    state = current(MailState)
    return _listed(state, next((one for one in state.folders if slug(one) == name), None) or abort(404))


def _listed(state: MailState, folder: str) -> str:
    sort = option("sort", SORTS)
    messages = listing(state.in_folder(folder, sort), PAGE)
    return render("mail/folder.html", folder=folder, messages=messages, sort=sort, sorts=SORTS)


@pages.get("/messages/<name>")
def _message(name: str) -> str:
    state = current(MailState)
    message = _message_at(state, name)
    others = [folder for folder in state.folders if folder not in (message.folder, TRASH)]
    answers = state.answers.get(message.subject, [])
    return render(
        "mail/message.html", message=message, sender=state.sender(message), folders=others, answers=answers[-3:]
    )


@pages.post("/messages/<name>/star")
def _star(name: str) -> Response:
    state = current(MailState)
    starred = state.toggle_star(_message_at(state, name))
    return show(state, f"/messages/{name}", "Starred." if starred else "Star removed.")


@pages.post("/messages/<name>/move")
def _move(name: str) -> Response:
    state = current(MailState)
    message, folder = _message_at(state, name), sent("folder")
    if folder not in state.folders:
        return show(state, f"/messages/{name}", "Please choose a folder.")
    state.move(message, folder)
    return show(state, f"/messages/{name}", f"Moved to {folder}.")


@pages.post("/messages/<name>/delete")
def _delete(name: str) -> Response:
    state = current(MailState)
    state.move(_message_at(state, name), TRASH)
    return show(state, "/", "Message deleted.")


@pages.post("/messages/<name>/reply")
def _reply(name: str) -> Response:
    state = current(MailState)
    message, text = _message_at(state, name), sent("text")
    if not text:
        return show(state, f"/messages/{name}", "Please write a reply.")
    state.answer(message, text)
    return show(state, f"/messages/{name}", "Reply sent.")


@pages.get("/write")
def _write() -> str:
    return render("mail/write.html", values={"to": request.args.get("to", "").strip()})


@pages.post("/write")
def _send() -> View:
    state = current(MailState)
    values = {name: sent(name) for name in ("to", "subject", "text")}
    if "@" not in values["to"] or not values["subject"]:
        state.notice = "Please give an address and a subject."
        return render("mail/write.html", values=values)
    state.sent.append(values)
    return show(state, "/sent", "Message sent.")


@pages.get("/sent")
def _sent() -> str:
    return render("mail/sent.html", messages=current(MailState).sent[::-1][:PAGE])


@pages.get("/search")
def _search() -> str:
    state = current(MailState)
    query = request.args.get("q", "").strip()
    messages, people = state.find(query)
    return render("mail/search.html", query=query, messages=messages[:PAGE], people=people[:PAGE])


@pages.get("/contacts")
def _contacts() -> str:
    state = current(MailState)
    sort = option("sort", CONTACT_SORTS)
    return render("mail/contacts.html", people=listing(state.contacts(sort), PAGE), sort=sort, sorts=CONTACT_SORTS)


@pages.get("/contacts/<name>")
def _contact(name: str) -> str:
    return render("mail/contact.html", person=_person_at(current(MailState), name))


@pages.get("/new-contact")
def _new_contact() -> str:
    return render("mail/new_contact.html", values={})


@pages.post("/new-contact")
def _add_contact() -> View:
    state = current(MailState)
    values = {name: sent(name) for name in ("name", "email", "phone")}
    if not values["name"] or "@" not in values["email"]:
        state.notice = LACKING
        return render("mail/new_contact.html", values=values)
    return show(state, f"/contacts/{state.add_contact(**values).slug}", "Contact added.")


@pages.get("/settings")
def _settings() -> str:
    return render("mail/settings.html")


@pages.post("/settings")
def _save_settings() -> View:
    state = current(MailState)
    contact = posted_contact()
    if contact is None:
        state.notice = LACKING
        return render("mail/settings.html")
    state.settings = replace(state.settings, **contact, signature=sent("signature"), vacation=sent("vacation") == "yes")
    return show(state, "/settings", "Settings saved.")


def _message_at(state: MailState, address: str) -> Message:
    return state.messages.get(address) or abort(404)


def _person_at(state: MailState, address: str) -> Person:
    return state.people.get(address) or abort(404)
