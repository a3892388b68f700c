"""The shop: home, categories, search, product pages, cart, checkout, orders and account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Blueprint, abort, redirect, request
from werkzeug.wrappers import Response

from dynaweb.types import Split
from dynaweb_env_sites.base import current, render
from dynaweb_env_sites.content import Locale
from dynaweb_env_sites.shop_state import (
    MAX_QUANTITY,
    PAGE_SIZE,
    PER_CATEGORY,
    SHIPPING,
    SORTS,
    Product,
    ShopState,
    fresh_state,
)
from dynaweb_env_sites.shop_tasks import TEMPLATES

View = Callable[..., str | Response]


class Shop:
    """The embedded shop, `shop.localhost`."""

    name = "shop"
    host = "shop.localhost"
    templates = TEMPLATES

    def build(self, seed: int, split: Split, locale: Locale) -> ShopState:
        """See `Site`."""
        return fresh_state(seed, split, locale)

    def blueprint(self) -> Blueprint:
        """See `Site`."""
        views = Blueprint("shop", __name__)
        for rule, view in PAGES.items():
            views.add_url_rule(rule, view_func=view)
        for rule, view in FORMS.items():
            views.add_url_rule(rule, view_func=view, methods=["GET", "POST"])
        for rule, view in ACTIONS.items():
            views.add_url_rule(rule, view_func=view, methods=["POST"])
        return views

    def snapshot(self, state: Any) -> dict[str, Any]:
        """`cart.items` and `cart.coupon`, `wishes` (sorted names), `profile`, `orders.count` and `orders.last`."""
        data: dict[str, Any] = state.snapshot()
        return data


def home() -> str:
    """The featured products and all categories."""
    state = current(ShopState)
    return render("shop/home.html", products=[state.content.products[key] for key in state.content.featured])


def category(key: int) -> str:
    """One category, sorted and in pages."""
    state = current(ShopState)
    if key >= len(state.content.categories):
        abort(404)
    sort = request.args.get("sort", SORTS[0])
    shelf = [product for product in state.content.products if product.category == key]
    return render(
        "shop/category.html",
        key=key,
        sort=sort,
        sorts=SORTS,
        products=_page(state.listed(shelf, sort)),
        page=_page_number(),
        pages=-(-PER_CATEGORY // PAGE_SIZE),
        href=f"/category/{key}?" + (f"sort={sort}&" if sort in SORTS[1:] else "") + "page=",
    )


def search() -> str:
    """Products whose name has all words of the query; `stock=yes` leaves out what is sold out."""
    state = current(ShopState)
    query, in_stock = request.args.get("q", "").strip(), request.args.get("stock") == "yes"
    hits = state.search(query, in_stock)
    return render("shop/search.html", query=query, in_stock=in_stock, hits=len(hits), products=hits[:PAGE_SIZE])


def help_page() -> str:
    """How to order, in a few words."""
    return render("shop/help.html")


def product(key: int) -> str:
    """One product with its facts, reviews and buttons."""
    item = _product(key)
    return render("shop/product.html", product=item, category=current(ShopState).content.categories[item.category])


def cart() -> str:
    """What is in the cart."""
    state = current(ShopState)
    lines = [(state.content.products[key], count) for key, count in state.cart.items()]
    return render("shop/cart.html", lines=lines, total=state.total())


def add(key: int) -> Response:
    """Put a product into the cart."""
    state, item = current(ShopState), _product(key)
    quantity = _quantity(request.form.get("quantity", "1"))
    state.notice = state.add(item, quantity) if quantity else "Please enter a quantity."
    return redirect(f"/product/{key}", 303)


def wish(key: int) -> Response:
    """Put a product on the wish list."""
    state, item = current(ShopState), _product(key)
    if item.id not in state.wishes:
        state.wishes.append(item.id)
    state.notice = "Added to the wish list."
    return redirect(f"/product/{key}", 303)


def unwish(key: int) -> Response:
    """Take a product off the wish list."""
    state = current(ShopState)
    state.wishes = [other for other in state.wishes if other != key]
    state.notice = "Removed from the wish list."
    return redirect("/wishes", 303)


def remove(key: int) -> Response:
    """Take a product out of the cart."""
    state = current(ShopState)
    state.cart.pop(key, None)
    state.notice = "Removed from the cart."
    return redirect("/cart", 303)


def update() -> Response:
    """Set all quantities of the cart; 0 removes."""
    state = current(ShopState)
    for key in list(state.cart):
        count = _quantity(request.form.get(f"quantity-{key}", str(state.cart[key])), low=0)
        if count is None or count > state.content.products[key].stock:
            state.notice = "Please check the quantity."
            return redirect("/cart", 303)
        state.cart[key] = count
    state.cart = {key: count for key, count in state.cart.items() if count}
    state.notice = "Cart updated."
    return redirect("/cart", 303)


def coupon() -> Response:
    """Note a coupon code."""
    state = current(ShopState)
    state.coupon = request.form.get("code", "").strip()
    state.notice = "Coupon applied." if state.coupon else "Please enter a code."
    return redirect("/cart", 303)


def checkout() -> str | Response:
    """The form before ordering, and the order itself."""
    state = current(ShopState)
    if not state.cart:
        state.notice = "The cart is empty."
        return redirect("/cart", 303)
    if request.method == "GET":
        return render("shop/checkout.html", options=SHIPPING, total=state.total())
    form = request.form
    street, city = form.get("street", "").strip(), form.get("city", "").strip()
    if not street or not city:
        state.notice = "Please fill in street and city."
        return redirect("/checkout", 303)
    shipping = form.get("shipping", SHIPPING[0])
    placed = state.place_order(
        shipping if shipping in SHIPPING else SHIPPING[0], form.get("gift") == "yes", street, city
    )
    state.notice = "Thank you for the order."
    return redirect(f"/order/{placed.number}", 303)


def orders() -> str:
    """All orders, newest first."""
    return render("shop/orders.html", orders=current(ShopState).orders[::-1][:6])


def order(number: int) -> str:
    """One order."""
    match = next((order for order in current(ShopState).orders if order.number == number), None)
    return render("shop/order.html", order=match or abort(404))


def account() -> str:
    """The customer's own pages."""
    return render("shop/account.html")


def profile() -> str | Response:
    """The form with the customer's addresses."""
    state = current(ShopState)
    if request.method == "GET":
        return render("shop/profile.html")
    values = {name: request.form.get(name, "").strip() for name in state.profile}
    if not all(values[name] for name in ("email", "street", "city")):
        state.notice = "Please fill in all fields."
    else:
        state.profile = values
        state.notice = "Profile saved."
    return redirect("/profile", 303)


def wishes() -> str:
    """The wish list."""
    state = current(ShopState)
    return render("shop/wishes.html", products=[state.content.products[key] for key in state.wishes[:6]])


def _product(key: int) -> Product:
    products = current(ShopState).content.products
    return products[key] if key < len(products) else abort(404)


def _quantity(text: str, low: int = 1) -> int | None:
    text = text.strip()
    number = int(text) if text.isdecimal() and len(text) <= 4 else -1
    return number if low <= number <= MAX_QUANTITY else None


def _page_number() -> int:
    return max(1, request.args.get("page", 1, type=int))


def _page(products: list[Product]) -> list[Product]:
    start = (_page_number() - 1) * PAGE_SIZE
    return products[start : start + PAGE_SIZE]


PAGES: dict[str, View] = {
    "/": home,
    "/category/<int:key>": category,
    "/search": search,
    "/product/<int:key>": product,
    "/cart": cart,
    "/account": account,
    "/orders": orders,
    "/order/<int:number>": order,
    "/wishes": wishes,
    "/help": help_page,
}
FORMS: dict[str, View] = {"/checkout": checkout, "/profile": profile}
ACTIONS: dict[str, View] = {
    "/product/<int:key>/add": add,
    "/product/<int:key>/wish": wish,
    "/wishes/<int:key>/remove": unwish,
    "/cart/<int:key>/remove": remove,
    "/cart/update": update,
    "/cart/coupon": coupon,
}
SITE = Shop()
