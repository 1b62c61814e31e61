"""A generated marketplace with known ground truth: data of any size, offline.

Popularity is a power law; shoppers have latent interests that drift, a price tier, and sessions in
which the last two purchases lead to the next. `_marketplace` states the law. The tables are a
function of the spec (with one version of numpy). Nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field

from fullrank.core.constraints import SeedNumber
from fullrank.core.memory import require_memory
from fullrank.data.sources import Generated, Tables
from fullrank.data.sources._marketplace import TIERS, Floats, Ints, Market, draw_accessories

BLOCK = 16_384
"""Users simulated at once: bounds memory (some hundred MB at 20 events per user)."""
START = 1_577_836_800
"""The market opens on 2020-01-01 00:00 UTC (seconds since 1970) and runs for three years."""
YEAR = 365 * 86_400
EVENT_BYTES, USER_BYTES, ITEM_BYTES = 100, 300, 1000
"""Memory that they take at least, measured on a million of each."""
REDRAWS = 4
"""How often an item that the user already has is drawn again before the repeat is accepted."""


SHELVES: dict[str, tuple[str, ...]] = {
    "Kitchen": ("Kettle", "Frying Pan", "Bread Knife", "Cutting Board", "Tea Set", "Mixer", "Baking Tin", "Grater"),
    "Garden": ("Watering Can", "Spade", "Seed Box", "Hose", "Bird Feeder", "Rake", "Plant Pot", "Hedge Shears"),
    "Sports": (
        "Running Shoe",
        "Yoga Mat",
        "Dumbbell",
        "Tennis Racket",
        "Water Bottle",
        "Swim Cap",
        "Football",
        "Skates",
    ),
    "Music": ("Guitar String", "Metronome", "Keyboard Stand", "Violin Bow", "Drum Stick", "Tuner", "Harmonica", "Capo"),
    "Beauty": ("Hand Cream", "Shampoo", "Lip Balm", "Face Mask", "Perfume", "Nail Polish", "Hair Brush", "Soap Bar"),
    "Toys": ("Puzzle", "Building Set", "Plush Bear", "Card Game", "Kite", "Toy Train", "Marble Run", "Doll House"),
    "Office": ("Notebook", "Fountain Pen", "Desk Lamp", "Stapler", "Paper Tray", "Planner", "Ink Bottle", "Ruler"),
    "Travel": ("Backpack", "Suitcase", "Neck Pillow", "Rain Jacket", "Tent", "Sleeping Bag", "Head Lamp", "Trail Map"),
}
"""Eight departments of eight shelves: the most topics that a marketplace can have is 64."""

TIER_NAMES = ("Budget", "Everyday", "Premium", "Luxury")
STYLES = (
    "Classic",
    "Compact",
    "Nordic",
    "Retro",
    "Modern",
    "Rustic",
    "Urban",
    "Pocket",
    "Deluxe",
    "Slim",
    "Bold",
    "Soft",
)
COLOURS = ("Red", "Blue", "Green", "Black", "White", "Amber", "Violet", "Grey", "Ivory", "Teal")
_STARTS = ("Al", "Bor", "Cal", "Den", "Eld", "Fen", "Gal", "Hol", "Iv", "Jor", "Kel", "Lun", "Mor", "Nor", "Or", "Pel")
_ENDS = ("ana", "eck", "ino", "ora", "ster", "vik", "wyn", "zen")
BRANDS = tuple(start + end for start in _STARTS for end in _ENDS)
"""128 invented brand names."""


class Planted(Generated):
    """Generated marketplace. 3,000 users and about 60,000 events by default: a small model trains on it in a minute."""

    kind: Literal["planted"] = "planted"
    users: int = Field(3_000, ge=1, le=10**8)
    """Number of users."""
    items: int = Field(1_000, ge=32, le=10**7)
    """Number of items, at least 32 (two shelves at four price tiers)."""
    events_per_user: float = Field(20.0, ge=5.0, le=10**4)
    """Mean events of a user; lengths are skewed, from 5 to ten times the mean."""
    session_length: float = Field(6.0, gt=1.0, le=1e6)
    """Mean events of a session (geometric)."""
    popularity_exponent: float = Field(1.1, ge=0.0, le=100)
    """Exponent of the items' attractiveness over their rank; 0 makes all alike."""
    follow: float = Field(0.1, ge=0.0, lt=1.0)
    """Probability that a purchase inside a session is an accessory of the one before."""
    loyalty: float = Field(0.85, gt=0.0, lt=1.0)
    """Probability that a shopper buys at the preferred price tier."""
    drift: float = Field(0.03, ge=0.0, le=1000)
    """Radians that a shopper's interests rotate per event; 0 keeps them fixed."""
    seed: SeedNumber = 0
    """Which of the marketplaces with these settings."""

    def read(self, folder: Path | None = None) -> Tables:
        """The events, items and users of the marketplace; `folder` is not used.

        Events are in the order of time (ties by user), with a `rating` of 1 to 5 that is
        higher at the preferred tier.
        """
        expected = int(self.users * (USER_BYTES + EVENT_BYTES * self.events_per_user) + ITEM_BYTES * self.items)
        require_memory(
            expected,
            f"a marketplace of {self.users:,} users with {self.events_per_user:g} events each and {self.items:,} items",
            "set fewer of them",
        )
        market = self.truth()
        blocks = [self._block(market, low) for low in range(0, self.users, BLOCK)]
        user, item, time, rating = (np.concatenate(column) for column in zip(*blocks, strict=True))
        order = np.lexsort((user, time))
        ids, user_ids = self.item_ids(), np.arange(self.users, dtype=np.int64) + 1
        columns = {"user_id": user_ids[user], "item_id": ids[item], "timestamp": time, "rating": rating}
        events = pl.DataFrame({name: column[order] for name, column in columns.items()})
        rng = np.random.default_rng([self.seed, 2])
        items = _item_table(ids, market, rng).sort("item_id")
        regions = np.array(["north", "east", "south", "west"])
        users = pl.DataFrame({"user_id": user_ids, "region": regions[rng.integers(4, size=self.users)]})
        return Tables(events, items, users, notes=(f"generated by fullrank from {self.to_json().strip()}",))

    def truth(self) -> Market:
        """The latent quantities behind the tables: row u is user id u + 1, row i is `item_ids()[i]`."""
        rng = np.random.default_rng([self.seed, 0])
        topics, width = max(2, min(64, self.items // (4 * TIERS))), 8
        # Every (topic, tier) cell gets one item before chance fills the rest: no draw
        # can meet an empty shelf.
        cells = topics * TIERS
        cell = rng.permutation(np.concatenate([np.arange(cells), rng.integers(cells, size=self.items - cells)]))
        weight = rng.permutation((np.arange(self.items) + 5.0) ** -self.popularity_exponent)
        vectors = rng.normal(size=(topics, width))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        turn, other = (np.linalg.qr(rng.normal(size=(width, width)))[0] for _ in range(2))
        topic = cell // TIERS
        lead = 2.0 * vectors @ vectors.T + 3.5 * vectors @ turn @ vectors.T
        interests = rng.normal(size=(self.users, 2, width)) * 1.3
        share = 1.0 / np.arange(1, 5)
        return Market(
            topic=topic,
            tier=cell % TIERS,
            weight=weight,
            topic_vectors=vectors,
            lead=lead,
            echo=3.0 * vectors @ other @ vectors.T,
            accessories=draw_accessories(topic, lead, len(share), rng),
            accessory_share=share / share.sum(),
            interests=interests,
            user_tier=rng.choice(TIERS, size=self.users, p=[0.35, 0.3, 0.2, 0.15]),
            drift=self.drift,
            follow=self.follow,
            loyalty=self.loyalty,
            restart=1.0 / self.session_length,
        )

    def item_ids(self) -> Ints:
        """[V] external id of each item of the truth; shuffled, so that an id says nothing about the item."""
        return np.random.default_rng([self.seed, 1]).permutation(self.items).astype(np.int64) + 1001

    def _block(self, market: Market, low: int) -> tuple[Ints, Ints, Ints, NDArray[np.int8]]:
        """User rows, item rows, seconds and ratings [E] of some users, grouped by user."""
        rng = np.random.default_rng([self.seed, 3, low])
        lengths = self._lengths(rng, min(BLOCK, self.users - low))
        users = np.arange(low, low + len(lengths))
        # Longest first: the users that still act at step t are the first n rows.
        rank = np.argsort(-lengths, kind="stable")
        lengths, users = lengths[rank], users[rank]
        width = int(lengths[0])
        bought = np.full((len(users), width), -1, dtype=np.int64)
        fresh = rng.random((len(users), width)) < market.restart
        fresh[:, 0] = True
        draws = _Draws(market)
        for step in range(width):
            n = int(np.searchsorted(-lengths, -step, side="left"))
            # A fresh session has no last item, and its second event no previous one. The first
            # event is fresh, so columns before it (-1, -2) are never read.
            last = np.where(fresh[:n, step], -1, bought[:n, step - 1])
            previous = np.where(fresh[:n, step] | fresh[:n, step - 1], -1, bought[:n, step - 2])
            bought[:n, step] = draws.step(users[:n], step, last, previous, bought[:n, :step], rng)
        acted = np.arange(width) < lengths[:, None]
        user = np.repeat(users, lengths)
        item = bought[acted]
        return user, item, _times(fresh, rng)[acted], _ratings(market, user, item, rng)

    def _lengths(self, rng: np.random.Generator, users: int) -> Ints:
        """[n] events of each user: 5 plus a skewed (exponential) number,
        capped at ten times the mean."""
        extra = rng.exponential(max(self.events_per_user - 4.5, 0.5), size=users)
        return np.minimum(5 + extra.astype(np.int64), int(10 * self.events_per_user))


class _Draws:
    """Draws the next items of many users from a market, by inverse cumulative sums over sorted items."""

    def __init__(self, market: Market):
        self.market = market
        cell = market.topic * TIERS + market.tier
        self.order = np.argsort(cell, kind="stable")
        self.cumulated = np.concatenate([[0.0], np.cumsum(market.weight[self.order])])
        self.starts = np.searchsorted(cell[self.order], np.arange(len(market.topic_vectors) * TIERS + 1))
        self.accessory_reach = np.cumsum(market.accessory_share)

    def step(self, users: Ints, step: int, last: Ints, previous: Ints, owned: Ints, rng: np.random.Generator) -> Ints:
        """The item rows [n] that `users` buy at `step`; `owned` [n, step] is what they have."""
        logits = self.market.topic_logits(users, step, last, previous)
        # [n, topics] running sums of unnormalised probabilities: a draw is where a uniform
        # number falls among them
        reach = np.cumsum(np.exp(logits - logits.max(axis=1, keepdims=True)), axis=1)
        item = self._draw(users, last, reach, rng)
        again = np.flatnonzero((owned == item[:, None]).any(axis=1))
        for _ in range(REDRAWS):
            item[again] = self._draw(users[again], last[again], reach[again], rng)
            again = again[(owned[again] == item[again, None]).any(axis=1)]
        return item

    def _draw(self, users: Ints, last: Ints, reach: Floats, rng: np.random.Generator) -> Ints:
        market, chance = self.market, rng.random((5, len(users)))
        topic = (reach < (chance[0] * reach[:, -1])[:, None]).sum(axis=1)
        other = (market.user_tier[users] + 1 + (chance[1] * (TIERS - 1)).astype(np.int64)) % TIERS
        tier = np.where(chance[2] < market.loyalty, market.user_tier[users], other)
        cell = topic * TIERS + tier
        low, high = self.cumulated[self.starts[cell]], self.cumulated[self.starts[cell + 1]]
        at = np.searchsorted(self.cumulated, low + chance[3] * (high - low), side="right") - 1
        # Rounding may land on the border: stay inside the cell.
        at = np.clip(at, self.starts[cell], self.starts[cell + 1] - 1)
        item = self.order[at]
        follows = (last >= 0) & (chance[4] < market.follow)
        rank = np.minimum(np.searchsorted(self.accessory_reach, chance[3]), len(self.accessory_reach) - 1)
        return np.where(follows, market.accessories[last, rank], item)


def _times(fresh: NDArray[np.bool_], rng: np.random.Generator) -> Ints:
    """[n, T] seconds, increasing along a row: minutes inside a session, days between sessions."""
    inside = 30 + rng.exponential(240.0, size=fresh.shape)
    between = 43_200 + rng.exponential(9 * 86_400.0, size=fresh.shape)
    gaps = np.where(fresh, between, np.minimum(inside, 3_600.0)).astype(np.int64)
    gaps[:, 0] = START + rng.integers(0, 3 * YEAR, size=len(fresh))
    return np.cumsum(gaps, axis=1)


def _ratings(market: Market, user: Ints, item: Ints, rng: np.random.Generator) -> NDArray[np.int8]:
    """[E] stars 1 to 5: 4.4 on average at the preferred tier, a star less for each tier away."""
    away = np.abs(market.tier[item] - market.user_tier[user])
    return np.clip(np.rint(4.4 - 0.8 * away + rng.normal(0.0, 0.8, size=len(user))), 1, 5).astype(np.int8)


def _item_table(item_id: Ints, market: Market, rng: np.random.Generator) -> pl.DataFrame:
    """The item table [V]: `item_id`, `title`, `category`, `department`,
    `brand`, `price` in money units."""
    topic, tier = market.topic, market.tier
    # Neighbouring topics are spread over the departments.
    departments = np.resize(list(SHELVES), len(market.topic_vectors))
    shelves = np.array([SHELVES[name][number // len(SHELVES)] for number, name in enumerate(departments)])
    style, colour = rng.integers(len(STYLES), size=len(item_id)), rng.integers(len(COLOURS), size=len(item_id))
    # A brand sells few shelves at one tier, so that it says something about the item.
    brand = (topic * 7 + tier * 31 + rng.integers(4, size=len(item_id))) % len(BRANDS)
    typical = np.array([8.0, 20.0, 55.0, 160.0])[tier]
    price = np.round(typical * np.exp(rng.normal(0.0, 0.25, size=len(item_id))), 2)
    frame = pl.DataFrame(
        {
            "item_id": item_id,
            "category": shelves[topic],
            "department": departments[topic],
            "brand": np.array(BRANDS)[brand],
            "price": price,
            "style": np.array(STYLES)[style],
            "colour": np.array(COLOURS)[colour],
            "tier": np.array(TIER_NAMES)[tier],
        }
    )
    title = pl.format("{} {} {} {}, {}, No. {}", "brand", "tier", "style", "category", "colour", "item_id")
    return frame.select("item_id", title.alias("title"), "category", "department", "brand", "price")
