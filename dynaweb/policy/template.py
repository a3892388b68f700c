"""Chat templates: turns as token ids, where a reply ends, and what of a reply is thought.

Three promises hold for every tokenizer and template:
- A prompt has exactly the ids that `apply_chat_template` gives for the same turns.
- Text of pages, goals and replies never becomes a control token, whatever it says.
- A reply ends where the model ends a turn, and what it thinks before is never taken for its answer.

Example: `ChatTemplate(tokenizer).prompt("You browse.", "Open the cart.")` are the ids of a system and a user turn with
the beginning of the model's own. With images the user's turn begins with them: where the template writes its
placeholder, the prompt has what the family's processor makes of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from dynaweb.errors import ConfigError

if TYPE_CHECKING:
    from dynaweb.protocols import Vision

THOUGHTS: tuple[tuple[str, str], ...] = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
)
"""What opens and closes a thought, in the families that mark it in text."""
CHANNEL, MESSAGE, FINAL = "<|channel|>", "<|message|>", "final"
"""The marks of gpt-oss' harmony format: a reply is a chain of channels, of which `final` is the answer."""
TODAY = date(2025, 1, 1)
"""The day that templates print, so that a prompt does not depend on when it is built."""
ARGUMENTS: Mapping[str, Any] = {"enable_thinking": False}
"""Arguments of templates where nobody says otherwise: replies are short, and a thought would fill them."""

_ALIAS = "\U0010fffc{}\U0010fffd"
_QUOTE = "\U0010fffa{}\U0010fffb"
_ODD = re.compile("[\U0010fffa-\U0010fffd]")
_SLOTS = ("DYNAWEB-SYSTEM-SLOT", "DYNAWEB-USER-SLOT", "DYNAWEB-REPLY-SLOT", "DYNAWEB-NEXT-SLOT")


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A reply taken apart: `thought`, `text` (the answer), and `error`, why there is no answer ('' where there is)."""

    text: str
    thought: str = ""
    error: str = ""


class ChatTemplate:
    """The way in which one tokenizer's chat model is spoken to.

    `ends` are ids that end a reply besides those that tokenizer and template name: those of the model's
    `generation_config`. `arguments` go to the template (`enable_thinking`, `reasoning_effort`); without a template,
    turns are plain text. `vision` is how the model sees: its processor's template is then the one, and prompts may have
    images. Raises `ConfigError` for a template that cannot hold a system and a user text, or with `vision` an image.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        ends: Sequence[int] = (),
        arguments: Mapping[str, Any] | None = None,
        vision: Vision | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._source = (vision.template if vision is not None else "") or _source(tokenizer)
        self._arguments = dict(ARGUMENTS if arguments is None else arguments)
        control = "" if vision is None else vision.control + vision.placeholder
        self._text = TextEncoder(tokenizer, self._source + control + "".join(map("".join, THOUGHTS)))
        self._layout = self._choose_layout()
        self._placeholder = "" if vision is None else vision.placeholder
        self._seeing = None if vision is None else self._choose_seeing()
        prompt, whole = self._render(*_SLOTS[:2]), self._render(*_SLOTS[:3])
        self._thoughts = [pair for pair in THOUGHTS if pair[1] in self._source or pair[1] in self._text.marks]
        self._harmony = CHANNEL in self._text.marks and CHANNEL in self._source
        self._opened = self._open_thought(prompt)
        self.lead = self._answer_lead(prompt, whole)
        """What stands between the prompt and an answer: an empty thought, the head of the final channel, or nothing."""
        stops = {*ends} - {None}
        if tokenizer.eos_token_id is not None:
            stops.add(tokenizer.eos_token_id)
        self._end = self._turn_end(whole, stops)
        if self._end:
            stops.add(self._end[-1])
        if not stops:
            raise ConfigError(
                "the tokenizer has no end-of-sequence token and its template none that ends a turn, so that a reply "
                "could not end; set eos_token in its tokenizer_config.json"
            )
        if not self._end:
            self._end = (tokenizer.eos_token_id if tokenizer.eos_token_id is not None else min(stops),)
        self.stop_ids: tuple[int, ...] = tuple(sorted(stops))
        """Ids that end a reply."""

    def prompt(self, system: str, user: str, *, answer: bool = False, images: Sequence[str] = ()) -> tuple[int, ...]:
        """Everything before a reply; with `answer` also what goes before its answer, such as the end of a thought.

        `images` are the texts that stand for images (`Vision.expansion`), which the user's turn begins with.
        """
        text = self._render(self._text.quoted(system), self._text.quoted(user), images=len(images))
        if images:
            # Quoted text cannot hold the placeholder, so what is there is the template's, once for each image.
            pieces = text.split(self._placeholder)
            text = "".join(map("".join, zip(pieces, (*images, ""), strict=True)))
        return self._text.encode(text + self.lead if answer else text)

    def reply(self, text: str) -> tuple[int, ...]:
        """A reply as the model should give it: what leads to its answer, the answer, and the end of the turn.

        The ids follow those of a prompt, whatever prompt that is.
        """
        prompt = self._render(*_SLOTS[:2])
        head = prompt[prompt.rfind(_SLOTS[1]) :]
        before = self._text.encode(head)
        both = self._text.encode(head + self.lead + self._text.quoted(text))
        if both[: len(before)] != before:
            both = (*before, *self._text.encode(self.lead + self._text.quoted(text)))
        return (*both[len(before) :], *self._end)

    def messages(
        self, system: str, user: str, reply: str, *, images: int = 0
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The turns before a reply, laid out as this template takes them, and the reply's; the user's begins with so
        many images.

        Who applies the template to them reads control tokens out of text, so what would be one has a space in it.
        """
        layout = self._seeing if images and self._seeing is not None else self._layout
        turns = layout(self._text.harmless(system), self._text.harmless(user))
        content = self._text.harmless(reply)
        whole: Any = content if isinstance(turns[-1]["content"], str) else _parts(content)
        if images:
            turns[-1]["content"] = [*({"type": "image"} for _ in range(images)), *turns[-1]["content"]]
        return turns, [{"role": "assistant", "content": whole}]

    @property
    def arguments(self) -> Mapping[str, Any]:
        """What the template is given besides the turns."""
        return dict(self._arguments)

    def size(self, text: str) -> int:
        """Tokens of a user's text by itself."""
        return len(self._text.encode(self._text.quoted(text)))

    def first_id(self, word: str) -> int:
        """The id with which an answer that is this word begins."""
        return self.reply(word)[len(self._text.encode(self.lead)) if self.lead else 0]

    def read(self, token_ids: Sequence[int]) -> ChatReply:
        """Take a sampled reply apart. Never raises.

        A thought that does not end leaves no answer; nothing in it is ever read as one.
        """
        kept = [i for i in token_ids if i not in self.stop_ids]
        text: str = self._tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return self._channels(text) if self._harmony else self._thinking(text)

    def _thinking(self, text: str) -> ChatReply:
        thoughts = []
        opened = self._opened
        for opening, closing in self._thoughts or THOUGHTS[:1]:
            thought, closes, rest = text.rpartition(closing)
            if not closes and opened == opening:
                return ChatReply("", self._bare(text), "the reply ended inside its thought")
            if closes:
                thoughts.append(self._bare(thought.replace(opening, "")))
                text = rest
            answer, opens, late = text.partition(opening)
            if opens:
                thoughts.append(self._bare(late))
                return ChatReply("", "\n".join(thoughts), "the reply ended inside its thought")
            text = answer
        return ChatReply(self._bare(text), "\n".join(filter(None, thoughts)))

    def _channels(self, text: str) -> ChatReply:
        if CHANNEL not in text:
            return ChatReply(self._bare(text))
        thoughts, answer = [self._bare(text[: text.find(CHANNEL)])], None
        for part in text.split(CHANNEL)[1:]:
            head, _, body = part.partition(MESSAGE)
            body = self._bare(self._text.first_part(body))
            if head.split(maxsplit=1)[:1] == [FINAL]:
                answer = body
            else:
                thoughts.append(body)
                answer = None
        thought = "\n".join(filter(None, thoughts))
        if answer is None:
            return ChatReply("", thought, "the reply ended before its final channel")
        return ChatReply(answer, thought)

    def _bare(self, text: str) -> str:
        """Without control tokens, which are no part of an answer."""
        return self._text.without_marks(text).strip()

    def _choose_layout(self) -> Callable[..., list[dict[str, Any]]]:
        """The way of giving turns that this template takes: with a system turn where it can."""
        problem = ""
        for layout in (_with_system, _with_system_parts, _in_user, _in_user_parts):
            self._layout = layout
            try:
                text = self._render(*_SLOTS[:2])
            except Exception as error:  # templates are programs, and raise what they like
                problem = problem or str(error)
                continue
            if 0 <= text.find(_SLOTS[0]) < text.find(_SLOTS[1]) and all(text.count(slot) == 1 for slot in _SLOTS[:2]):
                return layout
        why = f" ({problem})" if problem else ""
        raise ConfigError(
            "the chat template of this model takes no instructions and question of a user, each once and in this "
            f"order{why}; set another `chat_template` in its tokenizer_config.json, or choose another model"
        )

    def _choose_seeing(self) -> Callable[..., list[dict[str, Any]]]:
        """The way of giving turns with an image: the user's text in parts, and the image before it."""
        if self._placeholder not in self._text.marks:
            raise ConfigError(
                f"the tokenizer of this model has no token {self._placeholder!r}, which stands for an image in its "
                "prompts, so that a page could write one; take the tokenizer that belongs to its processor, or set "
                "observation.modality = text"
            )
        for layout in (_with_system_parts, _in_user_parts):
            self._seeing = layout
            try:
                text = self._render(*_SLOTS[:2], images=2)
            except Exception:  # templates are programs, and raise what they like
                continue
            there = all(text.count(slot) == 1 for slot in _SLOTS[:2])
            if there and text.count(self._placeholder) == 2 and text.find(_SLOTS[0]) < text.find(_SLOTS[1]):
                return layout
        raise ConfigError(
            f"the chat template of this model writes no {self._placeholder} for an image in a user's turn, so that it "
            "cannot be shown pages as pictures; put its processor's chat_template.jinja into the model folder, or set "
            "observation.modality = text"
        )

    def _render(
        self, system: str, user: str, reply: str | None = None, following: str | None = None, images: int = 0
    ) -> str:
        """The text of turns, in which what stands for a control token is one. Without `reply`, up to the model's.

        The user's turn begins with so many images.
        """
        turns = self._layout(system, user)
        if images:
            if self._seeing is None:
                raise ConfigError("this chat template was made for a model that reads text alone")
            turns = self._seeing(system, user)
            turns[-1]["content"] = [*({"type": "image"} for _ in range(images)), *turns[-1]["content"]]
        if not self._source:
            return f"{system}\n\n{user}\n\n" + (reply or "")
        for role, words in (("assistant", reply), ("user", following)):
            if words is not None:
                content = turns[-1]["content"]
                turns.append({"role": role, "content": words if isinstance(content, str) else _parts(words)})
        text: str = self._tokenizer.apply_chat_template(
            turns,
            chat_template=_dated(self._source),
            tokenize=False,
            add_generation_prompt=reply is None,
            **self._arguments,
        )
        return text

    def _open_thought(self, prompt: str) -> str:
        """What opens the thought that a prompt leaves open; '' where none is."""
        tail = prompt[prompt.rfind(_SLOTS[1]) :]
        return next((opens for opens, closes in self._thoughts if tail.rfind(opens) > tail.rfind(closes)), "")

    def _answer_lead(self, prompt: str, whole: str) -> str:
        if not self._source:
            return ""
        lead = whole[len(prompt) : whole.rfind(_SLOTS[2])] if whole.startswith(prompt) else ""
        if self._harmony:
            return lead if MESSAGE in lead else f"{CHANNEL}{FINAL}{MESSAGE}"
        if self._opened:
            closing = dict(THOUGHTS)[self._opened]
            return lead if closing in lead else f"\n{closing}\n\n"
        return lead

    def _turn_end(self, whole: str, stops: set[int]) -> tuple[int, ...]:
        """What ends the model's turn after its text: up to the first id of `stops`, or else the first control token."""
        if not self._source:
            return ()
        texts = [whole]
        with suppress(Exception):  # templates are programs; not all take a second question
            texts.append(self._render(*_SLOTS))
        tails = [self._text.tail(text[text.rfind(_SLOTS[2]) :], _SLOTS[2]) for text in texts]
        for ids in tails:
            for i, token in enumerate(ids):
                if token in stops:
                    return ids[: i + 1]
        marks = self._text.mark_ids
        for ids in tails:
            for i, token in enumerate(ids):
                if token in marks:
                    return ids[: i + 1]
        return ()


class TextEncoder:
    """Encodes text in which a tokenizer's control tokens may stand, as the tokenizer does, and text which only names
    them as text.

    Marks are the control tokens: special ones, and those that `control` (a template's source) names. A copy of the
    tokenizer knows them by other names, so that what a page calls `<|im_end|>` is plain text to it, while everything
    else is split and merged as before. Tokenizers without a backend of the `tokenizers` library have no such copy: to
    them a mark in a page is written with a space in it.
    """

    def __init__(self, tokenizer: Any, control: str) -> None:
        added = {
            token.content: (number, token)
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.content.strip()
        }
        self.marks = {text: n for text, (n, token) in added.items() if token.special or text in control}
        self.mark_ids = frozenset(self.marks.values())
        self._tokenizer = tokenizer
        self._find = _any_of(self.marks)
        self._alias = {text: _ALIAS.format(i) for i, text in enumerate(self.marks)}
        self._quote = {text: _QUOTE.format(i) for i, text in enumerate(self.marks)}
        self._unquote = {quote: text for text, quote in self._quote.items()}
        self._find_quoted = _any_of(self._unquote)
        self._backend, self._ids = _renamed(tokenizer, self._alias)

    def quoted(self, text: str) -> str:
        """Text of a page or a person, with what would be a mark written so that it is none."""
        return self._find.sub(lambda found: self._quote[found[0]], _ODD.sub("", text))

    def harmless(self, text: str) -> str:
        """Text of a page or a person for who knows no quoted text: a mark in it is written with a space."""
        return self._find.sub(lambda found: _broken(found[0]), _ODD.sub("", text))

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of text with marks, in which `quoted` text is plain."""
        if self._backend is None:
            plain = self._find_quoted.sub(lambda found: _broken(self._unquote[found[0]]), text)
            return tuple(self._tokenizer(plain, add_special_tokens=False).input_ids)
        named = self._find.sub(lambda found: self._alias[found[0]], text)
        plain = self._find_quoted.sub(lambda found: self._unquote[found[0]], named)
        ids = self._backend.encode(plain, add_special_tokens=False).ids
        return tuple(self._ids.get(i, i) for i in ids)

    def tail(self, text: str, head: str) -> tuple[int, ...]:
        """Ids of what follows `head` in a text that begins with it."""
        before, both = self.encode(head), self.encode(text)
        return both[len(before) :] if both[: len(before)] == before else self.encode(text[len(head) :])

    def first_part(self, text: str) -> str:
        """Text up to the first mark."""
        return self._find.split(text, maxsplit=1)[0]

    def without_marks(self, text: str) -> str:
        """Text without its marks."""
        return self._find.sub("", text)


def _source(tokenizer: Any) -> str:
    """The template itself; '' where the tokenizer has none."""
    if not tokenizer.chat_template:
        return ""
    text: str = tokenizer.get_chat_template()
    return text


def _dated(source: str) -> str:
    """A template in which it is `TODAY`: transformers' own clock is hidden behind a macro of the same name."""
    if "strftime_now" not in source:
        return source
    steps = "".join(f" | replace('%{sign}', '{TODAY.strftime('%' + sign)}')" for sign in "aAbBdmyYjHIMSp")
    return f"{{%- macro strftime_now(format) -%}}{{{{ format | replace('%-', '%'){steps} }}}}{{%- endmacro -%}}{source}"


def _with_system(system: str, user: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _in_user(system: str, user: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{system}\n\n{user}"}]


def _with_system_parts(system: str, user: str) -> list[dict[str, Any]]:
    return [{**turn, "content": _parts(turn["content"])} for turn in _with_system(system, user)]


def _in_user_parts(system: str, user: str) -> list[dict[str, Any]]:
    return [{**turn, "content": _parts(turn["content"])} for turn in _in_user(system, user)]


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _any_of(texts: Mapping[str, Any]) -> re.Pattern[str]:
    """Finds any of the texts, the longest first; nothing where there are none."""
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) if ordered else r"(?!)")


def _broken(mark: str) -> str:
    return f"{mark[0]} {mark[1:]}"


def _renamed(tokenizer: Any, alias: Mapping[str, str]) -> tuple[Any, dict[int, int]]:
    """A copy of a tokenizer that knows its marks by their aliases, and its ids of added tokens -> the tokenizer's own.

    (None, {}) for a tokenizer without a backend.
    """
    from tokenizers import Tokenizer

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        return None, {}
    known = json.loads(backend.to_str())
    own = {alias.get(token["content"], token["content"]): token["id"] for token in known["added_tokens"]}
    for token in known["added_tokens"]:
        token["content"] = alias.get(token["content"], token["content"])
    # What it would put around a text, and how it would cut or fill it, is not asked for.
    known["post_processor"] = known["truncation"] = known["padding"] = None
    as_it_is = json.dumps(known)
    model = known["model"]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {alias.get(text, text): number for text, number in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[alias.get(text, text), *rest] for text, *rest in vocabulary]
    if (unknown := model.get("unk_token")) is not None:
        model["unk_token"] = alias.get(unknown, unknown)
    try:
        copy = Tokenizer.from_str(json.dumps(known))
    except (
        Exception
    ):  # the library is written in Rust; a mark may be the product of a merge, and then stays in the vocabulary
        copy = Tokenizer.from_str(as_it_is)
    numbers = {copy.token_to_id(text): number for text, number in own.items()}
    return copy, {now: number for now, number in numbers.items() if now is not None and now != number}
