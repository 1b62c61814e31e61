"""Subsets of a store: a share of its users with all of their events, without given users, or with items hidden.

A ladder of data sizes (SRT, SIGIR 2024, Sec. 4.1): users are drawn at random and bring their
histories along, so the smaller sets have the distribution of the large one, and fewer items. The
seed puts all users in one order, so a smaller share is inside every larger one. Items that are
hidden keep their rows in the catalogue and their events in validation and test. They are no
training targets and in no history; a loss that scores the whole catalogue, or draws from it, still
meets them as negatives, which an item that is truly new is spared (`grow_catalog`). Users of
another store are left out by their external ids, so that what is trained here has seen none of them
(SRT, Sec. 4.5).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Int64
from pydantic import Field

from fullrank.core.checks import public
from fullrank.core.constraints import PositiveShare, SeedNumber
from fullrank.core.errors import UserError
from fullrank.core.files import without_dots
from fullrank.core.jagged import offsets_of
from fullrank.core.locks import folder_lock
from fullrank.core.random import uniform_at
from fullrank.data.events import splits
from fullrank.data.events.store import Store, opened_store, require_replaceable_store
from fullrank.data.events.write import save_store
from fullrank.data.manifest import require_elsewhere


@public
def subset(
    store: Store | str | Path,
    out: str | Path,
    *,
    share: PositiveShare = 1.0,
    seed: SeedNumber = 0,
    hide_items: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    keep_items: bool = False,
    without: Store | str | Path | None = None,
    overwrite: bool = False,
) -> Store:
    """Write a store at `out` with a share of the users of `store`, and return it; `overwrite` replaces an older one.

    Users keep their events, times and split; the catalogue is that of the items that these users
    have events with, in the order of the large one, under their own external ids. With `keep_items`
    it is the whole of the large one, so that models of several shares rank the same items, and a
    model of a share can be evaluated on the whole store.

    `without` is a store whose users are left out: whoever has an external id that it has too.
    `hide_items` is the share of the large catalogue's items whose training events are taken out;
    which ones depends on the seed alone, not on `share`. Users without any event that is left are
    left out. The manifest says where the store is from and how its distributions differ (`subset`).

    Raises `UserError` for shares that are none, and where no users or training events would be
    left.
    """
    source = opened_store(store)
    folder = without_dots(out)
    if share == 1 and hide_items == 0 and without is None:
        raise UserError(
            "a share of 1 without hidden items is the whole store: give a smaller share, hide_items, or without",
            code="nothing-left-out",
        )
    require_elsewhere(folder, source.path)
    other = None if without is None else opened_store(without)
    with folder_lock(folder, "subset"):
        require_replaceable_store(folder, overwrite=overwrite)
        chosen = _first(source.num_users, share, seed)
        drawn = int(chosen.sum())
        if other is not None:  # a whole number and its text are the same id
            ids, excluded = (of_store.user_ids.cast(pl.String) for of_store in (source, other))
            chosen &= ~ids.is_in(excluded.implode()).to_numpy()
        if not chosen.any():
            reason = "so none would be left; give a larger one"
            if drawn:
                reason = "all of them users of the store in without= too; are the ids of both those of the same people?"
            raise UserError(
                f"a share of {share:g} is {drawn:,} of {source.num_users:,} users, {reason}",
                code="no-users-left",
            )
        hidden = _first(source.num_items, hide_items, seed, kind=1)
        owner = source.events.items.row_of()
        items, part = np.asarray(source.items), splits.event_parts(source.offsets, source.bounds)
        mine = chosen[owner]
        # Hidden items lose their training events alone: in validation and test they are
        # what a model has to find.
        remains = mine & ~((part == 0) & hidden[items])
        if not (remains & (part == 0)).any():
            raise UserError(
                f"share={share:g} and hide_items={hide_items:g} leave no training events; loosen them",
                code="no-events-left",
            )
        alive = np.full(source.num_items, keep_items)
        alive[items[mine]] = True
        facts = {
            "source": {
                "store": source.path.name,
                "fingerprint": source.fingerprint,
                "counts": dict(source.manifest["counts"]),
            },
            "share": share,
            "seed": seed,
            "keep_items": keep_items,
            "hide_items": hide_items,
            "hidden_items": int((hidden & alive).sum()),
            "hidden_events": int((mine & ~remains).sum()),
        }
        if other is not None:
            left_out = drawn - int(chosen.sum())
            facts["without"] = {"store": other.path.name, "fingerprint": other.fingerprint, "users": left_out}
        _write(folder, source, owner, part, remains, alive, facts)
        return Store.open(folder, verify=False)  # the hashes were taken just now


def _write(
    out: Path,
    source: Store,
    owner: Int64[np.ndarray, "E"],
    part: np.ndarray,
    remains: Bool[np.ndarray, "E"],
    alive: Bool[np.ndarray, "V"],
    facts: dict[str, Any],
) -> None:
    # [U, 3] events that remain of each user in training, validation and test
    counts = np.bincount((3 * owner + part)[remains], minlength=3 * source.num_users).reshape(-1, 3)
    present = counts.sum(1) > 0
    offsets = offsets_of(counts[present].sum(1))
    bounds = offsets[:-1, None] + np.cumsum(counts[present, :2], axis=1)
    items = (np.cumsum(alive) - 1)[np.asarray(source.items)[remains]]
    arrays = {"items": items, "offsets": offsets, "bounds": bounds}
    for name in ("times", "weights", "types"):
        array = getattr(source, name)
        if array is not None:
            arrays[name] = np.asarray(array)[remains]
    catalogue = source.catalog.frame.filter(alive).with_columns(item=np.arange(alive.sum()))
    people = source.users.filter(present).with_columns(user=np.arange(present.sum()))
    before = event_distribution(np.diff(source.offsets), np.bincount(source.items, minlength=source.num_items))
    after = event_distribution(np.diff(offsets), np.bincount(items, minlength=len(catalogue)))
    drift = {
        "before": before,
        "after": after,
        "events_per_user_gap": ks_statistic(np.diff(source.offsets), np.diff(offsets)),
    }
    of_source = splits.split_notes(source.manifest["split"])
    notes = [note for note in source.manifest.get("notes", []) if note not in of_source]
    manifest = {
        "spec": source.manifest["spec"],
        "subset": {**facts, "drift": drift},
        "item_table": source.manifest.get("item_table"),
        "user_table": source.manifest.get("user_table"),
        "split": splits.rule_of(source.manifest["split"]),
        "type_names": list(source.type_names),
        "notes": notes,
    }
    features = source.stored_features
    save_store(out, arrays, catalogue, people, manifest, None if features is None else features.take(remains))


def event_distribution(per_user: Int64[np.ndarray, "U"], per_item: Int64[np.ndarray, "V"]) -> dict[str, float]:
    """Statistics that a sample should preserve: events of a user (mean, median, ninth decile), and
    the items' Gini index."""
    return {
        "events_per_user_mean": round(float(per_user.mean()), 4),
        "events_per_user_median": float(np.median(per_user)),
        "events_per_user_p90": float(np.quantile(per_user, 0.9)),
        "popularity_gini": round(popularity_gini(per_item[per_item > 0]), 4),
    }


def popularity_gini(counts: Int64[np.ndarray, "V"]) -> float:
    """The Gini index of counts: 0 where all are equal, near 1 where one item has all events."""
    ranked, size = np.sort(counts).astype(np.float64), len(counts)
    return float((2 * np.arange(1, size + 1) - size - 1) @ ranked / (size * ranked.sum()))


def ks_statistic(a: Int64[np.ndarray, "A"], b: Int64[np.ndarray, "B"]) -> float:
    """The Kolmogorov-Smirnov statistic: the largest difference of two cumulative distributions."""
    at = np.union1d(a, b)
    below = [np.searchsorted(np.sort(x), at, side="right") / len(x) for x in (a, b)]
    return round(float(np.abs(below[0] - below[1]).max()), 4)


def draw_order(size: int, seed: int, kind: int = 0) -> Int64[np.ndarray, "n"]:
    """A permutation of 0 .. size - 1, the order in which the seed takes users (kind 0), or items to hide (kind 1).

    A share of the users is the first round(share * size) of it.
    """
    return np.argsort(uniform_at(seed, np.arange(size), np.uint64(kind)), kind="stable")


def _first(size: int, share: float, seed: int, kind: int = 0) -> Bool[np.ndarray, "n"]:
    """A mask of the first `share` of `draw_order`."""
    chosen = np.zeros(size, dtype=bool)
    chosen[draw_order(size, seed, kind)[: round(share * size)]] = True
    return chosen
