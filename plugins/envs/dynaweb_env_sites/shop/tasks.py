"""The shop's task templates: what is asked, the scripted plan, and how success is checked."""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import urlencode

from dynaweb_env_sites.goals import (
    Do,
    Goal,
    answer_is,
    choose,
    click,
    fill,
    goal,
    not_there,
    press,
    state_is,
    stop,
    templates_of,
    tick,
    url_is,
    via_search,
)
from dynaweb_env_sites.shop.state import CART_LIMIT, PAGE_SIZE, PER_CATEGORY, SHIPPING, Product, ShopState

URL = "http://shop.localhost"
FACTS = ("Price", "Brand", "Colour", "Rating", "Stock")


def _product_url(product: Product) -> str:
    return f"{URL}/product/{product.id}"


def _featured(state: ShopState, rng: random.Random, *, stock: int = 0) -> Product | None:
    """A product of the home page that is not in the cart and in stock as often as asked."""
    products = state.content.products
    ids = [key for key in state.content.featured if key not in state.cart and products[key].stock >= stock]
    return state.content.products[rng.choice(ids)] if ids else None


def _to_product(state: ShopState, product: Product) -> tuple[Do, ...]:
    """From the home page: click what is on it, search for anything else."""
    if product.id in state.content.featured:
        return (click(product.name),)
    return via_search(product.name)


def _fact(state: ShopState, product: Product, key: str) -> str:
    rating = f"{product.rating // 10}.{product.rating % 10}"
    values = (state.locale.price(product.price), product.brand, product.colour, rating, str(product.stock))
    return dict(zip(FACTS, values, strict=True))[key]


def _cart(state: ShopState, **changes: int) -> dict[str, int]:
    names = {state.content.products[key].name: count for key, count in state.cart.items()}
    return {name: count for name, count in (names | changes).items() if count}


def open_category(state: ShopState, rng: random.Random) -> Goal:
    """Open a category from the home page."""
    key = rng.randrange(len(state.content.categories))
    name = state.content.categories[key]
    phrases = ("Open the category '{category}'.", "Go to the category '{category}'.", "Show the category '{category}'.")
    return goal(rng, phrases, (click(name), stop()), url_is(f"{URL}/category/{key}"), category=name)


def open_featured(state: ShopState, rng: random.Random) -> Goal | None:
    """Open a product that the home page lists."""
    product = _featured(state, rng)
    if product is None:
        return None
    phrases = ("Open the page of '{item}'.", "Go to the product '{item}'.", "Show me the product '{item}'.")
    return goal(rng, phrases, (click(product.name), stop()), url_is(_product_url(product)), item=product.name)


def open_in_category(state: ShopState, rng: random.Random) -> Goal:
    """Open a product through its category, sometimes on the second page."""
    key, index = rng.randrange(len(state.content.categories)), rng.randrange(PER_CATEGORY)
    product = state.content.products[key * PER_CATEGORY + index]
    category = state.content.categories[key]
    phrases = ("Open '{item}' in the category '{category}'.", "Go to the category '{category}' and open '{item}'.")
    turn = (click("Next"),) if index >= PAGE_SIZE else ()
    plan = (click(category), *turn, click(product.name), stop())
    return goal(rng, phrases, plan, url_is(_product_url(product)), item=product.name, category=category)


def search_open(state: ShopState, rng: random.Random) -> Goal:
    """Search for a product and open it."""
    product = rng.choice(state.content.products)
    phrases = ("Search for '{item}' and open it.", "Find '{item}' with the search and open its page.")
    plan = (*via_search(product.name), stop())
    return goal(rng, phrases, plan, url_is(_product_url(product)), item=product.name)


def search_in_stock(state: ShopState, rng: random.Random) -> Goal:
    """Search for a kind of article and leave out what is sold out."""
    noun = rng.choice(state.content.products).name.split()[-1]
    phrases = ("Search for '{word}' and show only items in stock.", "Find every '{word}' that is in stock.")
    plan = (fill("Search", noun, enter=True), tick("In stock"), press("Filter"), stop())
    return goal(rng, phrases, plan, url_is(f"{URL}/search?{urlencode({'q': noun, 'stock': 'yes'})}"), word=noun)


def read_fact(state: ShopState, rng: random.Random) -> Goal:
    """Answer with a fact from a product's page."""
    product = _featured(state, rng) if rng.random() < 0.5 else None
    product = product or rng.choice(state.content.products)
    fact = rng.choice(FACTS)
    phrases = ("What is the {fact} of '{item}'?", "Tell me the {fact} of '{item}'.", "Find the {fact} of '{item}'.")
    value = _fact(state, product, fact)
    check = answer_is(value)
    return goal(rng, phrases, (*_to_product(state, product), stop(value)), check, fact=fact.lower(), item=product.name)


def read_order(state: ShopState, rng: random.Random) -> Goal:
    """Answer with a fact from an order."""
    order = rng.choice(state.orders)
    facts = {"courier": order.courier, "total": state.locale.price(order.total), "date": order.day}
    fact, value = rng.choice(list(facts.items()))
    phrases = ("What is the {fact} of '{order}'?", "Look up the {fact} of '{order}' in my account.")
    plan = (click("Account"), click("Orders"), click(f"Order {order.number}"), stop(value))
    return goal(rng, phrases, plan, answer_is(value), fact=fact, order=f"Order {order.number}")


def _first_of(state: ShopState, rng: random.Random, sort: str, phrases: tuple[str, ...]) -> Goal:
    key = rng.randrange(len(state.content.categories))
    category = state.content.categories[key]
    shelf = [product for product in state.content.products if product.category == key]
    best = state.listed(shelf, sort)[0].name
    plan = (click(category), choose("Sort by", sort), press("Sort"), stop(best))
    return goal(rng, phrases, plan, answer_is(best), category=category)


def cheapest(state: ShopState, rng: random.Random) -> Goal:
    """Name the cheapest item of a category."""
    phrases = ("Which item in the category '{category}' is cheapest?", "Name the cheapest item in '{category}'.")
    return _first_of(state, rng, "Price", phrases)


def best_rated(state: ShopState, rng: random.Random) -> Goal:
    """Name the best rated item of a category."""
    phrases = ("Which item in the category '{category}' is rated best?", "Name the best rated item in '{category}'.")
    return _first_of(state, rng, "Rating", phrases)


def change_profile(state: ShopState, rng: random.Random) -> Goal:
    """Change one field of the profile."""
    label = rng.choice(("E-mail", "Street", "City"))
    spare = state.content.addresses if label == "E-mail" else state.content.towns
    value = rng.choice(spare) + (f" {rng.randrange(2, 99)}" if label == "Street" else "")
    phrases = ("Change the {field} in my profile to '{value}'.", "Set the {field} of my profile to '{value}'.")
    plan = (click("Account"), click("Profile"), fill(label, value), press("Save"), stop())
    profile = state.profile | {label.lower().replace("-", ""): value}
    return goal(rng, phrases, plan, state_is(("profile", profile)), field=label.lower(), value=value)


def add_to_cart(state: ShopState, rng: random.Random) -> Goal | None:
    """Put one featured item into the cart."""
    product = _featured(state, rng, stock=3)
    if product is None or len(state.cart) >= CART_LIMIT:
        return None
    phrases = ("Add '{item}' to the cart.", "Put '{item}' in the cart.", "I want '{item}' in my cart.")
    plan = (click(product.name), press("Add to cart"), stop())
    return goal(rng, phrases, plan, state_is(("cart.items", _cart(state, **{product.name: 1}))), item=product.name)


def add_many(state: ShopState, rng: random.Random) -> Goal | None:
    """Put several pieces of a featured item into the cart."""
    product = _featured(state, rng, stock=3)
    if product is None:
        return None
    count = rng.randrange(2, min(product.stock, 9) + 1)
    phrases = ("Put {count} of '{item}' in the cart.", "Add {count} pieces of '{item}' to the cart.")
    plan = (click(product.name), fill("Quantity", str(count)), press("Add to cart"), stop())
    check = state_is(("cart.items", _cart(state, **{product.name: count})))
    return goal(rng, phrases, plan, check, count=str(count), item=product.name)


def remove_from_cart(state: ShopState, rng: random.Random) -> Goal:
    """Take an item out of the cart."""
    name = rng.choice(sorted(_cart(state)))
    phrases = ("Remove '{item}' from the cart.", "Take '{item}' out of the cart.")
    plan = (click("Cart"), press(f"Remove {name}"), stop())
    return goal(rng, phrases, plan, state_is(("cart.items", _cart(state, **{name: 0}))), item=name)


def set_quantity(state: ShopState, rng: random.Random) -> Goal | None:
    """Change how many pieces of an item are in the cart."""
    key = rng.choice(sorted(state.cart))
    product, now = state.content.products[key], state.cart[key]
    counts = [count for count in range(1, min(product.stock, 9) + 1) if count != now]
    if not counts:
        return None
    count = rng.choice(counts)
    phrases = ("Change the quantity of '{item}' in the cart to {count}.", "Set '{item}' in the cart to {count} pieces.")
    plan = (click("Cart"), fill(f"Quantity {product.name}", str(count)), press("Update"), stop())
    check = state_is(("cart.items", _cart(state, **{product.name: count})))
    return goal(rng, phrases, plan, check, item=product.name, count=str(count))


def apply_coupon(state: ShopState, rng: random.Random) -> Goal:
    """Enter a coupon code into the field without a label."""
    code = f"{rng.choice(state.content.towns)}{rng.choice((5, 10, 15, 20))}"
    phrases = ("Apply the coupon '{code}' in the cart.", "Use the coupon '{code}' in my cart.")
    plan = (click("Cart"), fill("", code), press("Apply coupon"), stop())
    return goal(rng, phrases, plan, state_is(("cart.coupon", code)), code=code)


def add_to_wish_list(state: ShopState, rng: random.Random) -> Goal | None:
    """Put a product on the wish list."""
    free = [product for product in state.content.products if product.id not in state.wishes]
    listed = [product for product in free if product.id in state.content.featured]
    product = rng.choice(listed if listed and rng.random() < 0.7 else free)
    phrases = ("Add '{item}' to the wish list.", "Put '{item}' on my wish list.")
    plan = (*_to_product(state, product), press("Add to wish list"), stop())
    names = sorted([product.name, *(state.content.products[key].name for key in state.wishes)])
    return goal(rng, phrases, plan, state_is(("wishes", names)), item=product.name)


def _ordered(state: ShopState, **wanted: Any) -> tuple[tuple[str, Any], ...]:
    checks = ((f"orders.last.{key}", value) for key, value in wanted.items())
    return ("orders.count", len(state.orders) + 1), *checks


def order_cart(state: ShopState, rng: random.Random) -> Goal:
    """Order what is in the cart, with a way of shipping or with gift wrap."""
    wrap = rng.random() < 0.4
    shipping = SHIPPING[0] if wrap else rng.choice(SHIPPING[1:])
    if wrap:
        phrases, slots = ("Order the cart with gift wrap.", "Check out the cart and tick gift wrap."), {}
    else:
        phrases = ("Order the cart with '{shipping}' shipping.", "Check out the cart with shipping '{shipping}'.")
        slots = {"shipping": shipping}
    option = tick("Gift wrap") if wrap else choose("Shipping", shipping)
    plan = (click("Cart"), click("Checkout"), option, press("Place order"), stop())
    checks = _ordered(state, items=_cart(state), shipping=shipping, gift_wrap=wrap)
    return goal(rng, phrases, plan, state_is(*checks), **slots)


def buy_gift(state: ShopState, rng: random.Random) -> Goal | None:
    """Find a product, then order it gift-wrapped with a way of shipping: the shop's longest task."""
    stocked = [product for product in state.content.products if product.stock >= 3 and product.id not in state.cart]
    if not stocked:
        return None
    product, shipping = rng.choice(stocked), rng.choice(SHIPPING[1:])
    phrases = (
        "Add '{item}' to the cart and order with gift wrap and '{shipping}' shipping.",
        "Buy '{item}' with gift wrap and shipping '{shipping}'.",
    )
    to_form = (*_to_product(state, product), press("Add to cart"), click("Cart"), click("Checkout"))
    plan = (*to_form, choose("Shipping", shipping), tick("Gift wrap"), press("Place order"), stop())
    checks = _ordered(state, items=_cart(state, **{product.name: 1}), shipping=shipping, gift_wrap=True)
    return goal(rng, phrases, plan, state_is(*checks), item=product.name, shipping=shipping)


def missing_product(state: ShopState, rng: random.Random) -> Goal:
    """Ask for a product that the shop does not have."""
    name = rng.choice(state.content.spare)
    phrases = ("What is the price of '{item}'?", "Find the brand of '{item}'.", "Search for '{item}' and open it.")
    return not_there(rng, phrases, item=name)


TEMPLATES = templates_of(
    "shop",
    {
        "navigate": (open_category, open_featured, open_in_category),
        "search": (search_open, search_in_stock),
        "read": (read_fact, read_order),
        "compare": (cheapest, best_rated),
        "form": (change_profile, order_cart),
        "state": (add_to_cart, add_many, remove_from_cart, set_quantity, apply_coupon, add_to_wish_list, buy_gift),
        "impossible": (missing_product,),
    },
)
