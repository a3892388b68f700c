"""Generated content: the same for the same seed, and never the same name in two splits."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import pytest

from dynaweb.web.environment import FIRST_SEED
from dynaweb_env_sites.content import LOCALES, SPLITS, Words, locale_of, split_of
from dynaweb_env_sites.shop.state import NOUNS, ShopState, shop_content


def _words(value: Any) -> set[str]:
    """Pseudo-words of a generated name, list of names, or whole shop."""
    texts = value if isinstance(value, list | tuple) else [value]
    tokens = {word.lower() for text in texts for word in re.findall(r"[^\W\d_]+", str(text))}
    return tokens - {noun.lower() for noun in NOUNS} - {"com"}


def _shop_names(seed: int, split: Any) -> set[str]:
    content = shop_content(seed, split, locale_of(seed).code)
    products = [text for product in content.products for text in (product.name, product.brand, product.reviews[0][0])]
    orders = [order.courier for order in content.orders]
    own = [content.owner, content.email, content.street, content.city, *content.spare, *content.addresses]
    return _words([*products, *orders, *own, *content.towns, *content.categories])


def test_same_seed_same_words_other_seed_other_words() -> None:
    first, again, other = (Words(seed, "train", LOCALES["pl"], "x") for seed in (7, 7, 8))
    names = first.names(50)
    assert names == again.names(50)
    assert len(set(names)) == 50
    assert set(names).isdisjoint(other.names(5))


@pytest.mark.parametrize("code", sorted(LOCALES))
def test_words_belong_to_their_split_in_every_locale(code: str) -> None:
    for split in SPLITS:
        words = Words(1, split, LOCALES[code])
        drawn = [*words.names(40), *words.person().split(), words.titled(NOUNS).split()[0]]
        assert {split_of(word) for word in drawn} == {split}


def test_shop_names_are_disjoint_between_splits() -> None:
    names = {split: set().union(*(_shop_names(FIRST_SEED[split] + k, split) for k in range(60))) for split in SPLITS}
    assert all(len(tokens) > 3000 for tokens in names.values())
    for index, split in enumerate(SPLITS):
        for other in SPLITS[index + 1 :]:
            assert names[split].isdisjoint(names[other])


def test_numbers_follow_the_locale() -> None:
    assert LOCALES["en"].price(1250) == "£12.50"
    assert LOCALES["de"].price(905) == "9,05 €"
    assert LOCALES["sv"].date(date(2024, 3, 5)) == "2024-03-05"
    assert LOCALES["pl"].date(date(2024, 3, 5)) == "05.03.2024"


def test_content_is_shared_and_state_is_not() -> None:
    first, second = (ShopState.fresh(10_003, "train", locale_of(10_003)) for _ in range(2))
    assert first.content is second.content
    first.cart.clear()
    first.wishes.clear()
    first.profile["city"] = "Elsewhere"
    assert second.cart and second.wishes and second.profile["city"] != "Elsewhere"


def test_prices_and_ratings_tell_the_items_of_a_category_apart() -> None:
    content = shop_content(30_001, "test", locale_of(30_001).code)
    for category in range(len(content.categories)):
        shelf = [product for product in content.products if product.category == category]
        assert len({product.price for product in shelf}) == len({product.rating for product in shelf}) == len(shelf)
