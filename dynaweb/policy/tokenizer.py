"""The tokenizer of the tiny model: byte-level BPE in which the page's own marks are single tokens.

A page line costs two tokens besides its name: the opener (`\\nlink '`) and the closer with the element number
(`' [12]`). A name has the same tokens wherever it stands in quotes, so that pointing at an element is copying.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_ID = 96
"""Largest element number with a token of its own; longer pages still encode, from digits."""

PAD, EOS = "<pad>", "<eos>"
ACT, WM, JUDGE, POINT, NEXT, PAGE, DO = "<act>", "<wm>", "<judge>", "<point>", "<next>", "<page>", "<do>"
YES, NO = "<yes>", "<no>"
SPECIAL: tuple[str, ...] = (PAD, EOS, ACT, WM, JUDGE, POINT, NEXT, PAGE, DO, YES, NO)

ROLES: tuple[str, ...] = (
    "link",
    "button",
    "textbox",
    "combobox",
    "checkbox",
    "radio",
    "heading",
    "text",
    "status",
    "alert",
    "dialog",
)
_VERBS: tuple[str, ...] = ("click", "type", "select", "hover", "press", "goto", "stop")
_WORDS: tuple[str, ...] = (
    "\nnotice '",
    "\nurl ",
    "\n- ",
    "same",
    "go_back",
    "go_forward",
    "scroll down",
    "scroll up",
    "' enter",
    "' '",
    " = '",
    " of '",
    " checked",
    " disabled",
    ": ",
    ".localhost/",
)


def structure_tokens() -> list[str]:
    """Every mark of pages, scripts and actions that is one token."""
    openers = [f"\n{sign}{role} '" for sign in ("", "+ ") for role in ROLES]
    verbs = [f"{verb} '" for verb in _VERBS]
    numbers = range(1, MAX_ID + 1)
    ids = [f"' [{n}]" for n in numbers]
    keeps = [f"\n= [{n}]" for n in numbers] + [f"-[{n}]" for n in numbers] + [f"\n~ [{n}]" for n in numbers]
    return [*openers, *verbs, *_WORDS, *ids, *keeps]


def build_tokenizer(texts: Iterable[str], vocab_size: int = 2048) -> Tokenizer:
    """Train the tokenizer on names and labels (not on whole pages: their marks are tokens already)."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{L}+|[^\p{L}]"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    marks = structure_tokens()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(marks),
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    return tokenizer
