"""The law that the planted marketplace follows: who buys what next, with exact probabilities.

An item stands on a shelf (topic) at a price tier, with a power-law attractiveness. A shopper has
interests that rotate slowly between two latent vectors, a preferred tier, and shops in sessions.
One purchase is drawn so:

- with probability `follow`, inside a session, an accessory of the last item (a short list of each item's own);
- else a topic k with logit: log attractiveness + interest . topic_k, and inside a session additionally
  lead[last topic, k] + echo[previous topic, k], both low-rank and asymmetric, so that order matters;
  then the shopper's tier (or, sometimes, another), then an item of that topic and tier by attractiveness.

The best prediction thus needs the last two items (session), the older ones (interests) and all
prices (tier). Arrays only: U users, V items, D latent dimensions; topics, tiers and accessories
stand in words.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fullrank.core.files import open_whole
from fullrank.data.manifest import damaged_file

TIERS = 4
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Market:
    """Ground truth of a planted marketplace: every latent quantity. Items and users are rows, not external ids."""

    topic: Ints
    """[V] shelf of each item."""
    tier: Ints
    """[V] price tier of each item, 0 .. 3."""
    weight: Floats
    """[V] attractiveness, a power law."""
    topic_vectors: Floats
    """[topics, D] latent vector of each shelf."""
    lead: Floats
    """[topics, topics] logit that the last topic adds to each next topic."""
    echo: Floats
    """[topics, topics] logit that the topic before the last adds."""
    accessories: Ints
    """[V, accessories] items that follow an item, the likeliest first."""
    accessory_share: Floats
    """[accessories] probability of each position in that list."""
    interests: Floats
    """[U, 2, D] where a shopper's interests start, and where they drift."""
    user_tier: Ints
    """[U] preferred price tier."""
    drift: float
    """Radians that interests rotate per event."""
    follow: float
    loyalty: float
    """Probability that an item of the preferred tier is chosen; the other tiers share the rest."""
    restart: float
    """Probability that an event opens a new session: one over the mean session length."""

    def topic_logits(self, users: Ints, step: Ints | int, last: Ints, previous: Ints) -> Floats:
        """Logits [n, topics] of the next topic for `users` [n] at event number `step`.

        `last` and `previous` [n] are items of the running session, -1 where it has none.
        """
        angle = self.drift * np.broadcast_to(np.asarray(step, dtype=np.float64), users.shape)
        mix = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        interest = np.einsum("nc,ncd->nd", mix, self.interests[users])
        logits = self.log_topic_weight() + interest @ self.topic_vectors.T
        for table, items in ((self.lead, last), (self.echo, previous)):
            # A further row of zeros: index -1 (no such item) adds nothing.
            padded = np.vstack([table, np.zeros(len(table))])
            logits += padded[np.where(items >= 0, self.topic[items], -1)]
        return logits

    def log_topic_weight(self) -> Floats:
        """[topics] log of the attractiveness on each shelf, damped: shelves differ less than items."""
        return 0.5 * np.log(np.bincount(self.topic, weights=self.weight, minlength=len(self.topic_vectors)))

    def tier_shares(self, users: Ints) -> Floats:
        """[n, tiers] probability of each price tier."""
        shares = np.full((len(users), TIERS), (1.0 - self.loyalty) / (TIERS - 1))
        shares[np.arange(len(users)), self.user_tier[users]] = self.loyalty
        return shares

    def next_item(self, users: Ints, step: Ints, last: Ints, previous: Ints) -> Floats:
        """The true probability [n, V] of each next item, not knowing whether a new session starts.

        Dense: for tests and for the ceiling of a benchmark, on some hundred users at a time.
        `previous` is -1 where the last item opened its session. An item that the user already has
        is redrawn, which keeps the order.
        """
        none = np.full_like(last, -1)
        opening = self._shelf_draw(users, step, none, none)
        going_on = self._shelf_draw(users, step, last, previous)
        accessory = np.zeros_like(going_on)
        np.add.at(accessory, (np.arange(len(users))[:, None], self.accessories[last]), self.accessory_share)
        inside = self.follow * accessory + (1.0 - self.follow) * going_on
        return self.restart * opening + (1.0 - self.restart) * inside

    def _shelf_draw(self, users: Ints, step: Ints, last: Ints, previous: Ints) -> Floats:
        logits = self.topic_logits(users, step, last, previous)
        topics = np.exp(logits - logits.max(axis=1, keepdims=True))
        topics /= topics.sum(axis=1, keepdims=True)
        cell = self.topic * TIERS + self.tier
        within = self.weight / np.bincount(cell, weights=self.weight)[cell]
        return topics[:, self.topic] * self.tier_shares(users)[:, self.tier] * within

    def save(self, path: Path | str) -> None:
        """Write every array to one .npz file; all are numbers, so nothing is pickled."""
        with open_whole(path) as file:
            np.savez_compressed(file, **{f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def load(cls, path: Path | str) -> Market:
        """The inverse of `save`. Raises `UserError` for a file that is none."""
        try:
            with np.load(Path(path), allow_pickle=False) as stored:
                arrays: dict[str, Any] = {f.name: stored[f.name] for f in fields(cls)}
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            reason = f"it holds no planted ground truth ({error})"
            raise damaged_file(Path(path), reason, "write it with Market.save") from None
        arrays |= {name: float(array) for name, array in arrays.items() if not array.ndim}
        return cls(**arrays)


def draw_accessories(topic: Ints, lead: Floats, count: int, rng: np.random.Generator) -> Ints:
    """[V, accessories] distinct items that follow each item: of its topic's three favourite next topics, not itself.

    Items are walked in a random cyclic order, so each item is an accessory about as often as any
    other.
    """
    items, by_topic = len(topic), np.argsort(topic, kind="stable")
    starts = np.searchsorted(topic[by_topic], np.arange(len(lead) + 1))
    favourite = np.argsort(-lead, axis=1)[:, : min(3, len(lead))]
    chosen = np.empty((items, count), dtype=np.int64)
    first = rng.integers(0, 1 << 30, size=items)  # a random start for each item
    for slot in range(count):
        shelf = favourite[topic, slot % favourite.shape[1]]
        size = starts[shelf + 1] - starts[shelf]
        # Different slots of one shelf step by one, so they never coincide (a shelf
        # holds at least 4 items).
        offset = first + slot // favourite.shape[1]
        pick = by_topic[starts[shelf] + offset % size]
        chosen[:, slot] = np.where(pick == np.arange(items), by_topic[starts[shelf] + (offset + 2) % size], pick)
    return chosen
