"""Vocabulary of the planted marketplace: departments, shelves, brand names and titles from templates."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

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

TIERS = ("Budget", "Everyday", "Premium", "Luxury")
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


def shelf_names(topics: int) -> tuple[list[str], list[str]]:
    """Department and shelf of each topic; neighbouring topics are spread over the departments."""
    departments = list(SHELVES)
    pairs = [(departments[k % 8], SHELVES[departments[k % 8]][k // 8]) for k in range(topics)]
    return [d for d, _ in pairs], [s for _, s in pairs]


def describe(
    item_id: NDArray[np.int64],
    topic: NDArray[np.int64],
    tier: NDArray[np.int64],
    topics: int,
    rng: np.random.Generator,
) -> pl.DataFrame:
    """The item table [V]: `item_id`, `title`, `category`, `department`, `brand`, `price` in money units."""
    departments, shelves = (np.array(names) for names in shelf_names(topics))
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
            "tier": np.array(TIERS)[tier],
        }
    )
    title = pl.format("{} {} {} {}, {}, No. {}", "brand", "tier", "style", "category", "colour", "item_id")
    return frame.with_columns(title.alias("title")).select(
        "item_id", "title", "category", "department", "brand", "price"
    )
