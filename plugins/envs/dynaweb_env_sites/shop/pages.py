"""The shop: home, categories, search, product pages, cart, checkout, orders and account."""

from __future__ import annotations

from flask import Blueprint, abort, request
from werkzeug.wrappers import Response

from dynaweb_env_sites.base import Site, View, current, render, sent, show
from dynaweb_env_sites.shop.state import (
    MAX_QUANTITY,
    PAGE_SIZE,
    PER_CATEGORY,
    SHIPPING,
    SORTS,
    Product,
    ShopState,
)
from dynaweb_env_sites.shop.tasks import TEMPLATES

pages = Blueprint("shop", __name__)
SITE = Site("shop", pages, TEMPLATES, ShopState.fresh)


@pages.get("/")
def home() -> str:
    """The featured products and all categories."""
    state = current(ShopState)
    return render("shop/home.html", products=[state.content.products[key] for key in state.content.featured])


@pages.get("/category/<int:key>")
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


@pages.get("/search")
def search() -> str:
    """Products whose name has all words of the query; `stock=yes` leaves out what is sold out."""
    state = current(ShopState)
    query, in_stock = request.args.get("q", "").strip(), request.args.get("stock") == "yes"
    hits = state.search(query, in_stock)
    return render("shop/search.html", query=query, in_stock=in_stock, hits=len(hits), products=hits[:PAGE_SIZE])


@pages.get("/help")
def help_page() -> str:
    """How to order, in a few words."""
    return render("shop/help.html")


@pages.get("/product/<int:key>")
def product(key: int) -> str:
    """One product with its facts, reviews and buttons."""
    item = _product(key)
    return render("shop/product.html", product=item, category=current(ShopState).content.categories[item.category])


@pages.get("/cart")
def cart() -> str:
    """What is in the cart."""
    state = current(ShopState)
    lines = [(state.content.products[key], count) for key, count in state.cart.items()]
    return render("shop/cart.html", lines=lines, total=state.total())


@pages.post("/product/<int:key>/add")
def add(key: int) -> Response:
    """Put a product into the cart."""
    state, item = current(ShopState), _product(key)
    quantity = _quantity(request.form.get("quantity", "1"))
    return show(state, f"/product/{key}", state.add(item, quantity) if quantity else "Please enter a quantity.")


@pages.post("/product/<int:key>/wish")
def wish(key: int) -> Response:
    """Put a product on the wish list."""
    state, item = current(ShopState), _product(key)
    if item.id not in state.wishes:
        state.wishes.append(item.id)
    return show(state, f"/product/{key}", "Added to the wish list.")


@pages.post("/wishes/<int:key>/remove")
def unwish(key: int) -> Response:
    """Take a product off the wish list."""
    state = current(ShopState)
    state.wishes = [other for other in state.wishes if other != key]
    return show(state, "/wishes", "Removed from the wish list.")


@pages.post("/cart/<int:key>/remove")
def remove(key: int) -> Response:
    """Take a product out of the cart."""
    state = current(ShopState)
    state.cart.pop(key, None)
    return show(state, "/cart", "Removed from the cart.")


@pages.post("/cart/update")
def update() -> Response:
    """Set all quantities of the cart; 0 removes."""
    state = current(ShopState)
    for key in list(state.cart):
        count = _quantity(request.form.get(f"quantity-{key}", str(state.cart[key])), low=0)
        if count is None or count > state.content.products[key].stock:
            return show(state, "/cart", "Please check the quantity.")
        state.cart[key] = count
    state.cart = {key: count for key, count in state.cart.items() if count}
    return show(state, "/cart", "Cart updated.")


@pages.post("/cart/coupon")
def coupon() -> Response:
    """Note a coupon code."""
    state = current(ShopState)
    state.coupon = sent("code")
    return show(state, "/cart", "Coupon applied." if state.coupon else "Please enter a code.")


@pages.route("/checkout", methods=["GET", "POST"])
def checkout() -> View:
    """The form before ordering, and the order itself."""
    state = current(ShopState)
    if not state.cart:
        return show(state, "/cart", "The cart is empty.")
    if request.method == "GET":
        return render("shop/checkout.html", options=SHIPPING, total=state.total())
    form = request.form
    street, city = sent("street"), sent("city")
    if not street or not city:
        return show(state, "/checkout", "Please fill in street and city.")
    shipping = form.get("shipping", SHIPPING[0])
    placed = state.place_order(shipping if shipping in SHIPPING else SHIPPING[0], sent("gift") == "yes", street, city)
    return show(state, f"/order/{placed.number}", "Thank you for the order.")


@pages.get("/orders")
def orders() -> str:
    """All orders, newest first."""
    return render("shop/orders.html", orders=current(ShopState).orders[::-1][:6])


@pages.get("/order/<int:number>")
def order(number: int) -> str:
    """One order."""
    match = next((order for order in current(ShopState).orders if order.number == number), None)
    return render("shop/order.html", order=match or abort(404))


@pages.get("/account")
def account() -> str:
    """The customer's own pages."""
    return render("shop/account.html")


@pages.route("/profile", methods=["GET", "POST"])
def profile() -> View:
    """The form with the customer's addresses."""
    state = current(ShopState)
    if request.method == "GET":
        return render("shop/profile.html")
    values = {name: sent(name) for name in state.profile}
    if not all(values[name] for name in ("email", "street", "city")):
        return show(state, "/profile", "Please fill in all fields.")
    state.profile = values
    return show(state, "/profile", "Profile saved.")


@pages.get("/wishes")
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
