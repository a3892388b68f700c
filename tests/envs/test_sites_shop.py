"""The shop's pages as a customer uses them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import unescape

import pytest

from dynaweb_env_sites.server import create_app
from dynaweb_env_sites.shop.state import CART_LIMIT, ShopState


class Customer:
    """A browser without a browser: follows redirects, keeps the last page."""

    def __init__(self) -> None:
        app = create_app()
        self.client = app.test_client()
        world = app.store.get("0")
        assert world is not None
        state = world.state("shop")
        assert isinstance(state, ShopState)
        self.state = state
        self.text = self.path = ""

    def get(self, path: str) -> str:
        return self._keep(self.client.get(path, base_url="http://shop.localhost", follow_redirects=True))

    def post(self, path: str, data: Mapping[str, str] | None = None) -> str:
        return self._keep(self.client.post(path, base_url="http://shop.localhost", data=data, follow_redirects=True))

    def _keep(self, answer: object) -> str:
        self.path = answer.request.path.removeprefix("/shop")  # type: ignore[attr-defined]
        self.text = unescape(answer.text)  # type: ignore[attr-defined]
        return self.text

    @property
    def listed(self) -> list[str]:
        return re.findall(r'<li><a href="/product/\d+">([^<]+)</a>', self.text)

    @property
    def notice(self) -> str:
        match = re.search(r'<p role="status">([^<]*)</p>', self.text)
        return match[1] if match else ""


@pytest.fixture
def customer() -> Customer:
    return Customer()


def test_sorting_and_pages_of_a_category(customer: Customer) -> None:
    shelf = [product for product in customer.state.content.products if product.category == 2]
    for sort, wanted in (
        ("Newest", shelf),
        ("Price", sorted(shelf, key=lambda product: product.price)),
        ("Rating", sorted(shelf, key=lambda product: -product.rating)),
    ):
        customer.get(f"/category/2?sort={sort}")
        first = customer.listed
        following = re.search(r'href="([^"]+)">Next', customer.text)
        assert following is not None
        customer.get(following[1])
        assert first + customer.listed == [product.name for product in wanted]
        assert ">Previous</a>" in customer.text and ">Next</a>" not in customer.text


def test_search_and_filter(customer: Customer) -> None:
    products = customer.state.content.products
    gone = next(product for product in products if not product.stock)
    customer.get(f"/search?q={gone.name}")
    assert customer.listed == [gone.name] and "Found: 1" in customer.text
    customer.get(f"/search?q={gone.name}&stock=yes")
    assert customer.listed == [] and "No results" in customer.text
    noun = gone.name.split()[1].lower()
    customer.get(f"/search?q={noun}")
    assert set(customer.listed) == {product.name for product in products if noun in product.name.lower()}
    assert "No results" in customer.get("/search?q=+")


def test_a_sold_out_product_has_a_disabled_button(customer: Customer) -> None:
    products = customer.state.content.products
    for product in (next(p for p in products if not p.stock), next(p for p in products if p.stock)):
        disabled = "disabled>Add to cart" in customer.get(f"/product/{product.id}")
        assert disabled == (product.stock == 0)


def test_the_cart_from_filling_to_ordering(customer: Customer) -> None:
    state = customer.state
    staying, removed = sorted(state.cart)
    customer.post("/cart/update", {f"quantity-{staying}": "3", f"quantity-{removed}": "1"})
    assert (customer.path, customer.notice, state.cart) == ("/cart", "Cart updated.", {staying: 3, removed: 1})
    customer.post(f"/cart/{removed}/remove")
    assert state.cart == {staying: 3}
    before = len(state.orders)
    customer.get("/checkout")
    assert f"Total: {state.locale.price(3 * state.content.products[staying].price)}" in customer.text
    customer.post("/checkout", {"shipping": "Express", "gift": "yes", "street": "Way 1", "city": "Town"})
    order = state.orders[-1]
    assert len(state.orders) == before + 1 and state.cart == {}
    assert customer.path == f"/order/{order.number}" and "Shipping: Express" in customer.text
    assert (order.gift_wrap, order.street, order.items) == (True, "Way 1", ((state.content.products[staying].name, 3),))
    assert f"Order {order.number}" in customer.get("/orders")


def test_what_the_checkout_refuses(customer: Customer) -> None:
    customer.post("/checkout", {"shipping": "Express", "street": " ", "city": "Town"})
    assert customer.notice == "Please fill in street and city." and customer.state.cart
    customer.post("/checkout", {"shipping": "Rocket", "street": "Way 1", "city": "Town"})
    assert customer.state.orders[-1].shipping == "Standard"
    customer.post("/checkout", {"street": "Way 1", "city": "Town"})
    assert (customer.path, customer.notice) == ("/cart", "The cart is empty.")


@pytest.mark.parametrize("quantity", ["100", "-1", "x"])
def test_impossible_quantities_change_nothing(customer: Customer, quantity: str) -> None:
    before = dict(customer.state.cart)
    customer.post("/cart/update", {f"quantity-{min(before)}": quantity})
    assert customer.notice == "Please check the quantity." and customer.state.cart == before


def test_zero_removes_and_the_cart_has_a_limit(customer: Customer) -> None:
    state = customer.state
    customer.post("/cart/update", {f"quantity-{key}": "0" for key in state.cart})
    assert state.cart == {} and "The cart is empty" in customer.text
    for product in [product for product in state.content.products if product.stock][: CART_LIMIT + 1]:
        customer.post(f"/product/{product.id}/add", {"quantity": "1"})
    assert len(state.cart) == CART_LIMIT and customer.notice == "The cart is full."


def test_profile_wish_list_and_coupon(customer: Customer) -> None:
    state = customer.state
    customer.post("/profile", {"email": "a@b.com", "street": "Way 1", "city": "Town", "newsletter": "yes"})
    assert state.profile == {"email": "a@b.com", "street": "Way 1", "city": "Town", "newsletter": "yes"}
    assert "checked" in customer.text
    customer.post("/profile", {"email": "", "street": "Way 1", "city": "Town"})
    assert customer.notice == "Please fill in all fields." and state.profile["email"] == "a@b.com"
    wished = state.wishes[0]
    customer.post(f"/wishes/{wished}/remove")
    assert wished not in state.wishes and customer.path == "/wishes"
    for _ in range(2):
        customer.post(f"/product/{wished}/wish")
    assert state.wishes.count(wished) == 1
    customer.post("/cart/coupon", {"code": "Velmor5"})
    assert state.snapshot()["cart"]["coupon"] == "Velmor5"
