"""What the shop sells (generated, immutable, cached) and what an episode changes (cart, wish list, profile, orders)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from dynaweb.types import Split
from dynaweb_env_sites.content import LOCALES, Locale, Words
from dynaweb_env_sites.state import SiteState

CATEGORIES = 4
PER_CATEGORY = 8
FEATURED = 5
PAGE_SIZE = 5
CART_LIMIT = 4
MAX_QUANTITY = 99
SORTS = ("Newest", "Price", "Rating")
SHIPPING = ("Standard", "Express", "Pickup")
NOUNS = (
    "Scarf", "Lamp", "Chair", "Mug", "Coat", "Bag", "Desk", "Bowl", "Boots", "Clock",
    "Rug", "Vase", "Tent", "Drum", "Kite", "Hat", "Belt", "Ring", "Sofa", "Towel",
    "Pan", "Bell", "Mirror", "Basket", "Blanket", "Bench", "Candle", "Jacket", "Kettle", "Pillow",
)  # fmt: skip
COLOURS = ("Red", "Blue", "Green", "Black", "White", "Yellow", "Grey", "Brown")
REMARKS = ("Looks great", "Works well", "Too small", "Good value", "Very sturdy", "Arrived late", "Nice gift")


@dataclass(frozen=True, slots=True)
class Product:
    """One article. `price` in cents, `rating` in tenths of a star; both are unique within a category."""

    id: int
    name: str
    category: int
    price: int
    rating: int
    stock: int
    brand: str
    colour: str
    reviews: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Order:
    """A placed order. `items` maps product names to quantities."""

    number: int
    day: str
    courier: str
    shipping: str
    gift_wrap: bool
    items: tuple[tuple[str, int], ...]
    total: int
    street: str = ""
    city: str = ""


@dataclass(frozen=True, slots=True)
class ShopContent:
    """Everything that is the same in all episodes on this site."""

    categories: tuple[str, ...]
    products: tuple[Product, ...]
    featured: tuple[int, ...]
    orders: tuple[Order, ...]
    cart: tuple[int, ...]
    wishes: tuple[int, ...]
    owner: str
    email: str
    street: str
    city: str
    courier: str
    spare: tuple[str, ...]
    """Names of things that this shop does not have."""
    addresses: tuple[str, ...]
    """E-mail addresses that nobody uses yet."""
    towns: tuple[str, ...]
    """Streets and towns that nobody uses yet."""

    def named(self, name: str) -> Product | None:
        """The product of that name."""
        return next((product for product in self.products if product.name == name), None)


@dataclass
class ShopState(SiteState):
    """The shop as one customer sees and changes it."""

    content: ShopContent
    cart: dict[int, int] = field(default_factory=dict)
    wishes: list[int] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    profile: dict[str, str] = field(default_factory=dict)
    coupon: str = ""

    @classmethod
    def fresh(cls, seed: int, split: Split, locale: Locale) -> ShopState:
        """A shop as it is at the start of every episode."""
        content = shop_content(seed, split, locale.code)
        return cls(
            seed=seed,
            split=split,
            locale=locale,
            content=content,
            cart={key: 1 + key % 2 for key in content.cart},
            wishes=list(content.wishes),
            orders=list(content.orders),
            profile={"email": content.email, "street": content.street, "city": content.city, "newsletter": ""},
        )

    def listed(self, products: Sequence[Product], sort: str) -> list[Product]:
        """Products in the chosen order: `Price` lowest first, `Rating` best first, else as they came."""
        if sort == "Price":
            return sorted(products, key=lambda product: product.price)
        if sort == "Rating":
            return sorted(products, key=lambda product: -product.rating)
        return list(products)

    def search(self, query: str, in_stock: bool) -> list[Product]:
        """Products whose name has every word of the query."""
        words = query.lower().split()
        hits = (product for product in self.content.products if all(word in product.name.lower() for word in words))
        return [product for product in hits if words and (product.stock or not in_stock)]

    def total(self) -> int:
        """Sum of the cart in cents."""
        return sum(self.content.products[key].price * quantity for key, quantity in self.cart.items())

    def add(self, product: Product, quantity: int) -> str:
        """Put something into the cart; the message tells what happened."""
        wanted = self.cart.get(product.id, 0) + quantity
        if wanted > product.stock:
            return f"Only {product.stock} in stock."
        if product.id not in self.cart and len(self.cart) >= CART_LIMIT:
            return "The cart is full."
        self.cart[product.id] = wanted
        return "Added to the cart."

    def place_order(self, shipping: str, gift_wrap: bool, street: str, city: str) -> Order:
        """Turn the cart into an order and empty it."""
        items = tuple((self.content.products[key].name, quantity) for key, quantity in self.cart.items())
        number = max(order.number for order in self.orders) + 1
        day = self.orders[-1].day
        order = Order(
            number, day, self.content.courier, shipping, gift_wrap, items, self.total(), street=street, city=city
        )
        self.orders.append(order)
        self.cart = {}
        return order

    def snapshot(self) -> dict[str, Any]:
        """`cart.items` and `cart.coupon`, `wishes` (sorted names), `profile`, `orders.count` and `orders.last`."""
        names = {product.id: product.name for product in self.content.products}
        last = self.orders[-1]
        return {
            "cart": {"items": {names[key]: count for key, count in self.cart.items()}, "coupon": self.coupon},
            "wishes": sorted(names[key] for key in self.wishes),
            "profile": dict(self.profile),
            "orders": {"count": len(self.orders), "last": _order_data(last)},
        }


def _order_data(order: Order) -> dict[str, Any]:
    return {
        "items": dict(order.items),
        "shipping": order.shipping,
        "gift_wrap": order.gift_wrap,
        "street": order.street,
        "city": order.city,
    }


@lru_cache(maxsize=512)
def shop_content(seed: int, split: Split, locale_code: str) -> ShopContent:
    """The generated part of a shop."""
    words = Words(seed, split, LOCALES[locale_code], "shop")
    categories = tuple(words.names(CATEGORIES))
    brands = words.names(5)
    products = tuple(product for index in range(CATEGORIES) for product in _shelf(words, index, brands))
    featured = words.rng.sample(range(len(products)), FEATURED)
    # Tasks fill and empty these, so they must be on sale.
    on_sale = [product.id for product in products if product.stock > 2 and product.id not in featured]
    chosen = words.rng.sample(on_sale, 4)
    return ShopContent(
        categories=categories,
        products=products,
        featured=tuple(featured),
        orders=_orders(words, products),
        cart=tuple(chosen[:2]),
        wishes=tuple(chosen[2:]),
        owner=words.person(),
        email=words.email(),
        street=_street(words),
        city=words.name(),
        courier=words.name(),
        spare=tuple(words.titled(NOUNS) for _ in range(12)),
        addresses=tuple(words.email() for _ in range(8)),
        towns=tuple(words.name() for _ in range(8)),
    )


def _shelf(words: Words, category: int, brands: Sequence[str]) -> list[Product]:
    rng = words.rng
    nouns = rng.sample(NOUNS, PER_CATEGORY)
    prices = _distinct_prices(words)
    ratings = rng.sample(range(21, 50), PER_CATEGORY)
    return [
        Product(
            id=category * PER_CATEGORY + slot,
            name=f"{words.name()} {nouns[slot]}",
            category=category,
            price=prices[slot],
            rating=ratings[slot],
            stock=rng.choice((0, 3, 4, 5, 6, 7, 8, 9, 12, 15, 20)),
            brand=rng.choice(list(brands)),
            colour=rng.choice(COLOURS),
            reviews=tuple((words.name(), remark) for remark in rng.sample(REMARKS, 2)),
        )
        for slot in range(PER_CATEGORY)
    ]


def _distinct_prices(words: Words) -> list[int]:
    prices: list[int] = []
    while len(prices) < PER_CATEGORY:
        cents = words.cents()
        if cents not in prices:
            prices.append(cents)
    return prices


def _street(words: Words) -> str:
    return f"{words.name()} {words.rng.randrange(2, 99)}"


def _orders(words: Words, products: Sequence[Product]) -> tuple[Order, ...]:
    rng = words.rng
    numbers = sorted(rng.sample(range(1000, 9000), 4))
    days = sorted(words.day() for _ in numbers)
    orders = []
    for number, day in zip(numbers, days, strict=True):
        product, quantity = rng.choice(list(products)), rng.randrange(1, 4)
        orders.append(
            Order(
                number=number,
                day=words.locale.date(day),
                courier=words.name(),
                shipping=rng.choice(SHIPPING),
                gift_wrap=rng.random() < 0.3,
                items=((product.name, quantity),),
                total=product.price * quantity,
            )
        )
    return tuple(orders)
