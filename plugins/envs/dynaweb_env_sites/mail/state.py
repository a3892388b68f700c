"""What the mail service knows: generated folders, messages and contacts, and the changes that one episode makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import lru_cache
from typing import Any

from dynaweb.types import Split
from dynaweb_env_sites.content import LOCALES, Locale, Words, matches, slug
from dynaweb_env_sites.state import AccountState, Contact

INBOX, ARCHIVE, TRASH = "Inbox", "Archive", "Trash"
OWN_FOLDERS = 2
INBOX_MESSAGES, FOLDER_MESSAGES = 8, 5
CONTACTS = 9
PAGE = 5
"""Messages and contacts on one page."""

SORTS = ("Newest", "Oldest", "Largest amount")
CONTACT_SORTS = ("Name", "Last met")

_SUBJECTS = ("invoice", "offer", "booking", "ticket", "receipt", "contract", "meeting", "delivery", "survey", "refund")
_OPENINGS = ("Here is the {} again", "Please look at the {}", "The {} is ready", "Sorry for the late {}")
ANSWERS = ("Thank you for the {}", "I will send the {}", "No need for the {}", "The {} is fine", "Please call about {}")
_TRADES = ("Bakery", "Garage", "Clinic", "Hotel", "School", "Agency", "Studio")


@dataclass(frozen=True, slots=True)
class Person:
    """An entry of the address book; `met` is a date."""

    name: str
    slug: str
    email: str
    phone: str
    company: str
    city: str
    met: date | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A letter that came; `amount` in cents, unique among all."""

    subject: str
    slug: str
    sender: str
    day: date
    folder: str
    amount: int
    reference: str
    text: str


@dataclass(frozen=True, slots=True)
class Settings(Contact):
    """The user's own settings."""

    signature: str = ""
    vacation: bool = False


@dataclass(frozen=True, slots=True)
class MailContent:
    """Everything that is generated from the seed; messages newest first."""

    brand: str
    folders: tuple[str, ...]
    people: tuple[Person, ...]
    messages: tuple[Message, ...]
    settings: Settings


@dataclass
class MailState(AccountState):
    """The mail of one episode. `messages` and `people` map addresses to values; the sets hold subjects."""

    settings: Settings
    content: MailContent
    messages: dict[str, Message]
    people: dict[str, Person]
    starred: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)
    answers: dict[str, list[str]] = field(default_factory=dict)
    sent: list[dict[str, str]] = field(default_factory=list)
    added: list[str] = field(default_factory=list)

    @classmethod
    def fresh(cls, seed: int, split: Split, locale: Locale) -> MailState:
        """The mail as it is at the start of every episode."""
        content = mail_content(seed, split, locale.code)
        messages = {message.slug: message for message in content.messages}
        people = {person.slug: person for person in content.people}
        return cls(seed, split, locale, content.settings, content, messages, people)

    def snapshot(self) -> dict[str, Any]:
        """What the user changed, by subjects and names, and the present settings."""
        people = {person.name: person for person in self.people.values()}
        return {
            "starred": sorted(self.starred),
            "moved": dict(self.moved),
            "answers": {subject: list(texts) for subject, texts in self.answers.items()},
            "sent": {"count": len(self.sent), "last": self.sent[-1] if self.sent else None},
            "added": list(self.added),
            "contacts": {name: {"email": people[name].email, "phone": people[name].phone} for name in self.added},
            "settings": asdict(self.settings),
        }

    @property
    def folders(self) -> tuple[str, ...]:
        """All folders in the order of the menu."""
        return (INBOX, *self.content.folders, ARCHIVE, TRASH)

    def in_folder(self, folder: str, sort: str = SORTS[0]) -> list[Message]:
        """The messages of a folder in one of the orders `SORTS`."""
        messages = [message for message in self.messages.values() if message.folder == folder]
        if sort == "Largest amount":
            return sorted(messages, key=lambda message: -message.amount)
        return messages[::-1] if sort == "Oldest" else messages

    def contacts(self, sort: str = CONTACT_SORTS[0]) -> list[Person]:
        """All contacts in one of the orders `CONTACT_SORTS`; those that were never met come last."""
        if sort == "Last met":
            return sorted(self.people.values(), key=lambda person: person.met or date.min, reverse=True)
        return sorted(self.people.values(), key=lambda person: person.slug)

    def find(self, query: str) -> tuple[list[Message], list[Person]]:
        """Messages by subject and contacts by name that contain every word of the query."""
        messages = [message for message in self.messages.values() if matches(query, message.subject)]
        return messages, [person for person in self.contacts() if matches(query, person.name)]

    def sender(self, message: Message) -> Person | None:
        """The contact that a message is from."""
        return next((person for person in self.people.values() if person.name == message.sender), None)

    def toggle_star(self, message: Message) -> bool:
        """Star a message or take its star; returns whether it has one now."""
        self.starred ^= {message.subject}
        return message.subject in self.starred

    def move(self, message: Message, folder: str) -> None:
        """Put a message into another folder."""
        self.messages[message.slug] = replace(message, folder=folder)
        self.moved[message.subject] = folder

    def answer(self, message: Message, text: str) -> None:
        """Answer a message."""
        self.answers.setdefault(message.subject, []).append(text)

    def add_contact(self, name: str, email: str, phone: str) -> Person:
        """A new entry of the address book."""
        person = Person(name, slug(name, self.people), email, phone, company="", city="")
        self.people[person.slug] = person
        self.added.append(name)
        return person


def subject(words: Words) -> str:
    """A new subject, such as `Velmor invoice`."""
    return words.titled(_SUBJECTS)


def phone(words: Words) -> str:
    """A telephone number: `0412 337 081`."""
    return f"0{words.rng.randrange(100, 999)} {words.rng.randrange(100, 999)} {words.rng.randrange(0, 999):03d}"


@lru_cache(maxsize=256)
def mail_content(seed: int, split: Split, locale_code: str) -> MailContent:
    """The generated part of a mail service; the same arguments give the same content."""
    words = Words(seed, split, LOCALES[locale_code], "mail")
    brand, folders = words.name(), tuple(words.names(OWN_FOLDERS))
    people = _people(words)
    counts = {INBOX: INBOX_MESSAGES, **dict.fromkeys(folders, FOLDER_MESSAGES), ARCHIVE: FOLDER_MESSAGES}
    messages = _messages(words, people, counts)
    settings = Settings(words.person(), words.email(), vacation=words.rng.random() < 0.5)
    return MailContent(brand, folders, people, messages, settings)


def _people(words: Words) -> tuple[Person, ...]:
    people: dict[str, Person] = {}
    days: set[date] = set()
    while len(people) < CONTACTS:
        name, day = words.person(), words.day()
        if day in days:
            continue
        days.add(day)
        address = slug(name, people)
        company = f"{words.name()} {words.rng.choice(_TRADES)}"
        people[address] = Person(name, address, words.email(), phone(words), company, words.name(), day)
    return tuple(people.values())


def _messages(words: Words, people: Sequence[Person], counts: dict[str, int]) -> tuple[Message, ...]:
    folders = [folder for folder, count in counts.items() for _ in range(count)]
    days: set[date] = set()
    while len(days) < len(folders):
        days.add(words.day())
    amounts = words.rng.sample(range(300, 9900), len(folders))
    words.rng.shuffle(folders)
    messages: dict[str, Message] = {}
    for folder, day, amount in zip(folders, sorted(days, reverse=True), amounts, strict=True):
        name = subject(words)
        address = slug(name, messages)
        sender = words.rng.choice(list(people)).name
        messages[address] = Message(
            name, address, sender, day, folder, amount * 10, words.name(), words.phrase(_OPENINGS)
        )
    return tuple(messages.values())
