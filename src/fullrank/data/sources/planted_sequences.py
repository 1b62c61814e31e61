"""Generated impressions whose clicks depend on which events of the history are of the target's category.

    P(click) = sigmoid(bias + strength / counted * sum of s(item) over the newest `counted` events whose category is
                       that of the target)

s is -1 for a share `disliked` of each category's items and +1 for the others. A user has some
interests (categories), and events and a part of the targets are drawn from these. Nothing else
matters: not the user, not the target's item, no event of another category, and none that has
`counted` newer ones of its category behind it. So a model has to ask each history about its target.
A mean of d numbers over a history of C >> d categories has lost the answer, attention of the target
over the events (DIN) has it but for their order, and a search for the target's category that keeps
the last `counted` events has all of it. The column `probability` (no field) is the truth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from fullrank.core.constraints import MOST_COUNT, Count, Parts, SeedNumber, Share
from fullrank.core.errors import UserError
from fullrank.core.memory import require_memory
from fullrank.data.impressions.schema import Categorical, ImpressionSplit, RandomSplit, Schema, SequenceOf
from fullrank.data.sources import Generated, ImpressionTables, Logit
from fullrank.data.sources._marketplace import Ints
from fullrank.metrics.ctr import auc

START, DAY = 1_577_836_800, 86_400
"""2020-01-01 00:00 UTC; a user has one event a day, and an impression of day n comes after n events."""
FIRST_ITEM = 1001
"""Id of the first item; users and categories count from 1."""
ROW_BYTES, EVENT_BYTES, ITEM_BYTES = 100, 16, 64
"""Memory that an impression takes at least, each event of a history (item and category), and an item."""
BLOCK = 1 << 22
"""Events of histories drawn at once."""


class PlantedSequences(Generated):
    """Generated impressions with histories: 100,000 by default, which attention learns within a minute."""

    kind: Literal["planted_sequences"] = "planted_sequences"
    rows: int = Field(100_000, ge=100, le=MOST_COUNT)
    """Impressions."""
    users: Count = 10_000
    """Users."""
    items: int = Field(2_000, ge=2, le=MOST_COUNT)
    """Items, at least as many as categories; equally many of each, up to one."""
    categories: int = Field(200, ge=2, le=MOST_COUNT)
    """Categories."""
    interests: Parts = 10
    """Draws of categories that make up what a user is interested in."""
    length: Parts = 50
    """Most events of a history; the lengths 0 .. `length` are equally frequent."""
    counted: Parts = 3
    """Newest events of the target's category that count; older ones of it do not."""
    interested: Share = 0.6
    """Share of the targets that are of one of the user's interests; the others are of any category."""
    disliked: Share = 0.1
    """Share of each category's items, rounded to whole items, that speak against a click."""
    bias: Logit = -1.5
    """Logit where no event is of the target's category."""
    strength: Logit = 4.0
    """What is added where `counted` events are, all of items with s = 1."""
    split: ImpressionSplit = Field(default_factory=RandomSplit)
    """How the schema splits: random or temporal, where later parts have longer histories (there is
    no split column)."""
    seed: SeedNumber = 0
    """Which of the worlds with these settings."""

    @model_validator(mode="after")
    def _possible(self) -> PlantedSequences:
        if self.items < self.categories:
            raise UserError(
                f"items={self.items} leaves some of categories={self.categories} without an item; set items to at "
                f"least {self.categories}",
                code="settings-contradict",
            )
        return self

    def impressions(self, folder: Path | None = None) -> ImpressionTables:
        """The impressions; `folder` is not used."""
        events = EVENT_BYTES * self.length
        require_memory(
            (ROW_BYTES + events) * self.rows + (events + 8 * self.interests) * self.users + ITEM_BYTES * self.items,
            f"a table of {self.rows:,} impressions of {self.users:,} users with up to {self.length} events",
            "set fewer of them",
        )
        interests, timelines = self._timelines()
        step = BLOCK // self.length
        blocks = [
            self._block(low, min(step, self.rows - low), interests, timelines) for low in range(0, self.rows, step)
        ]
        fields = (
            Categorical(name="user"),
            Categorical(name="item"),
            Categorical(name="category"),
            SequenceOf(name="history", shares="item", extends=True, max_length=self.length),
            SequenceOf(name="history_categories", shares="category", extends=True, max_length=self.length),
        )
        schema = Schema(label="click", fields=fields, group="user", time="timestamp", split=self.split)
        return ImpressionTables(pl.concat(blocks), schema, (f"generated by fullrank from {self.to_json().strip()}",))

    def best_auc(self, rows: Ints | None = None) -> float:
        """The AUC of the true probabilities at these rows of the table, or at all: what no model can beat but by luck.

        The rows of a part of a store are `store.external(store.split("test"))["input_row"]`.
        """
        table = self.impressions().table
        assert isinstance(table, pl.DataFrame)
        probability, click = table["probability"].to_numpy(), table["click"].to_numpy().astype(np.float64)
        return auc(probability, click) if rows is None else auc(probability[rows], click[rows])

    def item_categories(self) -> Ints:
        """The category of each item, from 0: [items]."""
        random = np.random.default_rng([self.seed, 1])
        return random.permutation(np.resize(np.arange(self.categories), self.items)).astype(np.int64)

    def signs(self) -> Ints:
        """s of each item: [items]."""
        category = self.item_categories()
        shuffled = np.random.default_rng([self.seed, 2]).permutation(self.items)
        order = shuffled[np.argsort(category[shuffled], kind="stable")]
        sizes = np.bincount(category, minlength=self.categories)
        rank = np.arange(self.items) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within its category
        signs = np.empty(self.items, np.int64)
        signs[order] = np.where(rank < np.rint(self.disliked * sizes)[category[order]], -1, 1)
        return signs

    def _timelines(self) -> tuple[Ints, Ints]:
        """The interests [users, interests] of each user, and items
        [users, length], oldest first."""
        random = np.random.default_rng([self.seed, 3])
        interests = random.integers(0, self.categories, (self.users, self.interests))
        which = random.integers(0, self.interests, (self.users, self.length))
        return interests, self._items_of(np.take_along_axis(interests, which, axis=1), random)

    def _items_of(self, categories: Ints, random: np.random.Generator) -> Ints:
        """A random item of each category."""
        category = self.item_categories()
        order, sizes = np.argsort(category, kind="stable"), np.bincount(category, minlength=self.categories)
        return order[(np.cumsum(sizes) - sizes)[categories] + random.integers(0, sizes[categories])]

    def _block(self, low: int, size: int, interests: Ints, timelines: Ints) -> pl.DataFrame:
        """`size` rows from row `low` on."""
        random = np.random.default_rng([self.seed, 4, low])
        user, day = random.integers(0, self.users, size), random.integers(0, self.length + 1, size)
        interest = interests[user, random.integers(0, self.interests, size)]
        target = np.where(random.random(size) < self.interested, interest, random.integers(0, self.categories, size))
        item, events = self._items_of(target, random), timelines[user]
        category = self.item_categories()[events]
        same = (category == target[:, None]) & (np.arange(self.length) < day[:, None])
        rank = np.cumsum(same[:, ::-1], axis=1)[:, ::-1]  # 1 is the newest event of the target's category
        evidence = (self.signs()[events] * (same & (rank <= self.counted))).sum(axis=1) / self.counted
        probability = 1 / (1 + np.exp(-(self.bias + self.strength * evidence)))
        lists = pl.DataFrame(
            {"history": pl.Series(events + FIRST_ITEM), "history_categories": pl.Series(category + 1), "day": day}
        ).select(pl.col("history", "history_categories").arr.to_list().list.head(pl.col("day")))
        return pl.DataFrame(
            {
                "click": (random.random(size) < probability).astype(np.int64),
                "user": user + 1,
                "item": item + FIRST_ITEM,
                "category": target + 1,
                "history": lists["history"],
                "history_categories": lists["history_categories"],
                "timestamp": START + DAY * day + random.integers(0, DAY, size),
                "probability": probability,
            }
        )
