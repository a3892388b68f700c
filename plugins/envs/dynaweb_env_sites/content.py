"""Generated content: pseudo-words, people, products, prices and dates, all from a seed, in several locales.

Names never cross splits: a pseudo-word belongs to the split that `split_of` computes from its letters, and the
generators refuse words of other splits. Interface words (Search, Price, Add to cart...) are the same everywhere.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from zlib import crc32

from dynaweb.runs.seeding import derive
from dynaweb.types import Split

SPLITS: tuple[Split, ...] = ("pretrain", "train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Locale:
    """Letters and number formats of one language area.

    `price_format` has one slot for the amount, `decimal` is its separator, `date_format` is for `strftime`.
    """

    code: str
    onsets: tuple[str, ...]
    vowels: tuple[str, ...]
    codas: tuple[str, ...]
    price_format: str
    decimal: str
    date_format: str

    def price(self, cents: int) -> str:
        """An amount in words of this locale: 1250 -> `12,50 €`."""
        return self.price_format.format(f"{cents // 100}{self.decimal}{cents % 100:02d}")

    def date(self, day: date) -> str:
        """A date in this locale's order: `05.03.2024`."""
        return day.strftime(self.date_format)


def _locale(code: str, onsets: str, vowels: str, codas: str, price: str, decimal: str, day: str) -> Locale:
    return Locale(code, tuple(onsets.split()), tuple(vowels.split()), tuple(codas.split()), price, decimal, day)


LOCALES: dict[str, Locale] = {
    locale.code: locale
    for locale in (
        _locale(
            "en",
            "b br c d f fl g gr h k l m n p r s sh st t tr v w",
            "a e i o u ee oo",
            "l m n r s t ck nd",
            "£{}",
            ".",
            "%d/%m/%Y",
        ),
        _locale(
            "de",
            "b br d f g gr h k kl l m n p r s sch st t w z",
            "a e i o u ä ö ü ei",
            "l m n r s t ck ng",
            "{} €",
            ",",
            "%d.%m.%Y",
        ),
        _locale(
            "es",
            "b br c ch d f g j l ll m n ñ p r s t tr v z",
            "a e i o u á é í ó",
            "l n r s d z",
            "{} €",
            ",",
            "%d/%m/%Y",
        ),
        _locale(
            "fr",
            "b bl c ch d f fr g j l m n p pl r s t v",
            "a e i o u é è ai ou",
            "l n r s t c x",
            "{} €",
            ",",
            "%d/%m/%Y",
        ),
        _locale(
            "sv",
            "b bj d f fj g h k l m n p r s sk sj t v",
            "a e i o u å ä ö y",
            "l m n r s t nd rg",
            "{} kr",
            ",",
            "%Y-%m-%d",
        ),
        _locale(
            "pl",
            "b c cz d g h k kr l ł m n p r s sz t w z ż",
            "a e i o u ó ą",
            "k l n r s w cz ń",
            "{} zł",
            ",",
            "%d.%m.%Y",
        ),
    )
}


def locale_of(site_seed: int) -> Locale:
    """The locale of a site: locales in rotation over site seeds."""
    return tuple(LOCALES.values())[site_seed % len(LOCALES)]


def split_of(word: str) -> Split:
    """The one split in which this pseudo-word may occur (upper and lower case count as the same word)."""
    return SPLITS[crc32(word.lower().encode()) % len(SPLITS)]


class Words:
    """Draws pseudo-words of one split, each at most once; the same seed and labels give the same sequence.

    `rng` is the generator behind it, for every other random choice of the content.
    """

    def __init__(self, seed: int, split: Split, locale: Locale, *labels: str) -> None:
        self.split = split
        self.locale = locale
        self.rng = random.Random(derive(seed, "sites", split, locale.code, *labels))
        self._used: set[str] = set()

    def word(self, syllables: int = 2) -> str:
        """A new lower-case pseudo-word, such as `velmor`."""
        while True:
            word = "".join(self._syllable() for _ in range(syllables)) + self.rng.choice(self.locale.codas)
            if word not in self._used and split_of(word) == self.split:
                self._used.add(word)
                return word

    def name(self, syllables: int = 2) -> str:
        """A new capitalised pseudo-word, such as `Velmor`."""
        return self.word(syllables).capitalize()

    def names(self, count: int) -> list[str]:
        """`count` new capitalised pseudo-words."""
        return [self.name() for _ in range(count)]

    def person(self) -> str:
        """A new full name of two pseudo-words, such as `Tarnik Osvel`."""
        return f"{self.name()} {self.name()}"

    def titled(self, nouns: Sequence[str]) -> str:
        """A new pseudo-word with a common noun: `Velmor Scarf`."""
        return f"{self.name()} {self.rng.choice(nouns)}"

    def phrase(self, forms: Sequence[str]) -> str:
        """A new pseudo-word in one of some forms, such as `Thanks for the {}`."""
        return self.rng.choice(forms).format(self.word())

    def email(self) -> str:
        """A new address of two pseudo-words in ASCII letters: `velmor@tarnik.com`."""
        return f"{self._ascii_word()}@{self._ascii_word()}.com"

    def cents(self, low: int = 300, high: int = 9900) -> int:
        """A price in cents that ends in 0, 5 or 9 tens of cents' last digit (x.00, x.50, x.90)."""
        return self.rng.randrange(low // 100, high // 100) * 100 + self.rng.choice((0, 50, 90))

    def day(self, first: date = date(2024, 1, 1), days: int = 366) -> date:
        """A date within `days` days from `first`."""
        return first + timedelta(days=self.rng.randrange(days))

    def _syllable(self) -> str:
        return self.rng.choice(self.locale.onsets) + self.rng.choice(self.locale.vowels)

    def _ascii_word(self) -> str:
        while True:
            word = self.word()
            if word.isascii():
                return word


# Letters that Unicode does not decompose into an ASCII letter and a mark.
_LETTERS = str.maketrans({"ß": "ss", "ł": "l", "ø": "o", "æ": "ae", "œ": "oe", "đ": "d"})


def folded(text: str) -> str:
    """Lower-case ASCII letters of a text, as search and addresses compare it: `Łóż` -> `loz`."""
    decomposed = unicodedata.normalize("NFKD", text.lower().translate(_LETTERS))
    return decomposed.encode("ascii", "ignore").decode()


def slug(name: str, taken: Container[str] = ()) -> str:
    """The address part of a name: `Wéłmor Repair` -> `welmor-repair`; with a number when that is taken."""
    base = re.sub(r"[^a-z0-9]+", "-", folded(name)).strip("-") or "item"
    result, number = base, 2
    while result in taken:
        result, number = f"{base}-{number}", number + 1
    return result


def matches(query: str, text: str) -> bool:
    """Whether every word of the query occurs in the text, case and accents aside."""
    words = folded(query).split()
    return bool(words) and all(word in folded(text) for word in words)
