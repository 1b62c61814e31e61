"""Growth of the catalogue with users and interactions, the parameters of its table of item vectors, the long tail.

SRT ("Scaling Sequential Recommendation Models with Transformers", SIGIR 2024), Sec. 2 with Figure 1
and Sec. 4.1 with Figure 3, for any store of histories. Users are added at random, each with all
events, in the order in which `fullrank.subset` takes them: the numbers at n of U users are those of
the subset of share n / U.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field

from fullrank.core.checks import check_type, check_whole, public
from fullrank.core.constraints import SeedNumber
from fullrank.core.errors import UserError
from fullrank.data.events.store import Store, opened_store
from fullrank.data.events.subset import draw_order, popularity_gini
from fullrank.data.manifest import is_store

Counts = Int[np.ndarray, "P"]
"""A count at each of the P numbers of users."""
LEAST = 3
"""Fewest points that a law is fitted to; two always lie on one."""


@dataclass(frozen=True)
class HeapsLaw:
    """items = coefficient * interactions^exponent, least squares in logarithms."""

    coefficient: float
    exponent: float
    r_squared: float
    """R2 of the logarithms; NaN where the number of items is the same at all points."""
    points: int

    def predict(self, interactions: Int[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
        """Items at numbers of interactions; beyond the fitted points nothing supports it."""
        return self.coefficient * interactions.astype(float) ** self.exponent


def fit_heaps(interactions: Counts, items: Counts) -> HeapsLaw | None:
    """Fit a line to the logarithms; None for fewer than `LEAST` distinct interactions."""
    if len(np.unique(interactions)) < LEAST:
        return None
    x, y = np.log(interactions), np.log(items)
    centred = x - x.mean()
    exponent = float(centred @ y / (centred @ centred))
    constant = float(y.mean() - exponent * x.mean())
    total = float(((y - y.mean()) ** 2).sum())
    unexplained = float(((y - constant - exponent * x) ** 2).sum())
    r_squared = 1 - unexplained / total if np.ptp(items) else math.nan
    return HeapsLaw(math.exp(constant), exponent, r_squared, len(x))


POINTS = 20
"""Numbers of users that are counted, at even distances in logarithms."""
OTHERS = (33_000, 4_000_000, 1_000_000_000)
"""Parameters beside the table: the sizes of SRT's Figure 1."""
RARE = 5
"""An item with fewer events is rare, and not in a 5-core."""
TOP = 0.01
"""Share of the items that are called the most popular."""


@dataclass(frozen=True)
class Growth:
    """Counts at P numbers of users, and events of the V items that have some."""

    source: str
    fingerprint: str
    seed: int
    dim: int
    """Width of an item's vector."""
    others: tuple[int, ...]
    """Parameters beside the table, of each of O models."""
    catalogue: int
    """Number of items of the store, with events or without."""
    users: Counts
    interactions: Counts
    items: Counts
    """Different items among the interactions."""
    per_item: Int[np.ndarray, "V"]
    """Events of every item that has some, ascending."""
    law: HeapsLaw | None
    """Law of all points; None where they are too few."""
    late: HeapsLaw | None
    """Law of the last tenfold of interactions: where its exponent is smaller, growth is slowing down."""

    @property
    def parameters(self) -> Int[np.ndarray, "P O"]:
        """Parameters of each model with a table of vectors, at each point."""
        return np.array(self.others, dtype=np.int64) + self.dim * self.items[:, None].astype(np.int64)

    @property
    def histogram(self) -> list[tuple[int, int, int]]:
        """(from, to, items) of bins of events, ends included, each twice as wide as the last."""
        bins = np.log2(self.per_item).astype(int)  # exact at powers of two up to 2^48
        return [(2**k, 2 ** (k + 1) - 1, int(n)) for k, n in enumerate(np.bincount(bins))]

    @property
    def gini(self) -> float:
        """Inequality of events among items: 0 all have as many, near 1 one has all."""
        return popularity_gini(self.per_item)

    @property
    def rare(self) -> tuple[float, float]:
        """Share of the items with fewer than `RARE` events, and their share of events."""
        few = self.per_item < RARE
        return float(few.mean()), float(self.per_item[few].sum() / self.per_item.sum())

    @property
    def top(self) -> tuple[int, float]:
        """Number of the most popular items (share `TOP`, rounded up), their share of events."""
        count = math.ceil(len(self.per_item) * TOP)
        return count, float(self.per_item[-count:].sum() / self.per_item.sum())

    def dump(self) -> dict[str, Any]:
        """The growth as JSON holds it; `of_text`: a model whose items are text has no table."""
        rare, rare_events = self.rare
        top, top_events = self.top
        keys = ("users", "interactions", "items")
        rows = np.stack([self.users, self.interactions, self.items], 1).tolist()
        return {
            "source": self.source,
            "fingerprint": self.fingerprint,
            "seed": self.seed,
            "catalogue": self.catalogue,
            **dict(zip(keys, rows[-1], strict=True)),
            "points": [dict(zip(keys, row, strict=True)) for row in rows],
            "law": self.law and asdict(self.law),
            "law_of_the_last_tenfold": self.late and asdict(self.late),
            "dim": self.dim,
            "parameters": [
                {
                    "other": other,
                    "with_table": self.parameters[:, number].tolist(),
                    "of_text": other,
                    "items_where_the_table_is_half": other / self.dim,
                }
                for number, other in enumerate(self.others)
            ],
            "events_per_item": {
                "histogram": [{"from": low, "to": high, "items": count} for low, high, count in self.histogram],
                "least": int(self.per_item[0]),
                "median": float(np.median(self.per_item)),
                "most": int(self.per_item[-1]),
                "gini": self.gini,
                "rare_below": RARE,
                "share_of_items_rare": rare,
                "share_of_events_of_rare": rare_events,
                "top_items": top,
                "share_of_events_of_top": top_events,
            },
        }


@public
def catalogue_growth(
    store: Store | str | Path,
    *,
    seed: SeedNumber = 0,
    dim: Annotated[int, Field(ge=1)] = 64,
    others: Sequence[int] = OTHERS,
) -> Growth:
    """Count the different items of users who join at random, and the parameters of models of such catalogues.

    All events count, those of validation and test too, as in the catalogue of a subset. `dim` is
    the width of a table of item vectors, `others` are the parameters beside it. Loads no torch.

    Raises `UserError` for a folder that is no store of histories, a store without events, and for
    `others` that are no whole numbers.
    """
    check_type("others", others, (list, tuple), "a list of numbers of parameters")
    for other in others:
        check_whole("others", other, 0)
    if not isinstance(store, Store) and is_store(Path(store), "ranking"):
        raise UserError(
            f"{str(store)!r} is a store of impressions, whose users have no histories; give a store of events "
            "(fullrank prepare makes one)",
            code="store-of-other-problem",
        )
    source = opened_store(store)
    if source.num_events == 0:
        raise UserError(
            f"{str(source.path)!r} has no events, so nothing grows; give a store with histories", code="no-events"
        )
    order = draw_order(source.num_users, seed)
    order = order[np.diff(source.offsets)[order] > 0]
    at = np.unique(np.geomspace(1, len(order), POINTS).round().astype(np.int64))
    items = np.asarray(source.items)
    interactions, distinct = distinct_items(items, np.asarray(source.offsets), order, at)
    per_item = np.bincount(items)
    late = interactions >= interactions[-1] / 10
    return Growth(
        str(source.path),
        source.fingerprint,
        seed,
        dim,
        tuple(others),
        source.num_items,
        at,
        interactions,
        distinct,
        np.sort(per_item[per_item > 0]),
        fit_heaps(interactions, distinct),
        fit_heaps(interactions[late], distinct[late]),
    )


def distinct_items(
    items: Int[np.ndarray, "E"], offsets: Int[np.ndarray, "U1"], order: Int[np.ndarray, "N"], at: Counts
) -> tuple[Counts, Counts]:
    """Number of interactions and of different items of the first at[p] users of an order, at least one each.

    An item counts from the first user in the order who has it; every event is read once.
    """
    lengths = np.diff(offsets)
    rank = np.full(len(lengths), len(order), dtype=np.int64)  # users beyond the order come last and do not count
    rank[order] = np.arange(len(order))
    first = np.full(items.max(initial=-1) + 1, len(order), dtype=np.int64)  # [V] rank of the first user of an item
    np.minimum.at(first, items, np.repeat(rank, lengths))
    new = np.bincount(first, minlength=len(order) + 1)[:-1]  # items that each user in the order brings
    return np.cumsum(lengths[order])[at - 1], np.cumsum(new)[at - 1]


def growth_sentences(grown: Growth) -> Iterator[str]:
    """The growth in sentences, with its limits."""
    if grown.law is None:
        yield f"No power law was fitted: {len(grown.users)} points are too few."
    else:
        yield (
            f"items = {grown.law.coefficient:.3g} x interactions^{grown.law.exponent:.3f} (R2 of the logarithms "
            f"{grown.law.r_squared:.3f}, {grown.law.points} points). It describes the points of this order of users "
            f"(seed {grown.seed}) and is no extrapolation."
        )
    if grown.late is not None and grown.law is not None and grown.late.points < grown.law.points:
        yield f"Over the last tenfold of interactions the exponent is {grown.late.exponent:.3f}."
    table = grown.dim * int(grown.items[-1])
    half = ", ".join(f"{short_number(other)} at {round(other / grown.dim):,} items" for other in grown.others)
    yield (
        f"A table of {grown.dim} numbers for each item has {table:,} parameters in the end. It weighs as much as the "
        f"rest of a model of {half}. A model of text items has the rest alone, whatever the catalogue."
    )
    rare, theirs = grown.rare
    count, most = grown.top
    yield (
        f"{rare:.1%} of the items have fewer than {RARE} events and hold {theirs:.1%} of all; the most popular "
        f"{TOP:.0%} of the items ({count:,}) hold {most:.1%}. Gini {grown.gini:.3f}."
    )
    if grown.per_item[0] > 1:
        yield (
            f"Every item has at least {grown.per_item[0]:,} events: rare items seem to have been filtered out, and "
            "with them the long tail and much of the growth."
        )


def short_number(number: int) -> str:
    """A number in thousands, millions or billions: 33K, 4M, 1B."""
    power, letter = next((p, s) for p, s in ((1e9, "B"), (1e6, "M"), (1e3, "K"), (1, "")) if number >= p or p == 1)
    return f"{number / power:g}{letter}"
