"""Write a store: flat arrays, tables and the manifest, all or nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Int64

from fullrank.core.files import JsonObject, whole_folder, write_array
from fullrank.core.jagged import offsets_of, stable_order
from fullrank.core.tables import write_table
from fullrank.data import manifest as manifests
from fullrank.data.events import feature_files, parts, splits
from fullrank.data.events.feature_columns import FeatureColumns, add_columns, encode
from fullrank.data.events.feature_files import OF_EVENTS, StoredFeatures
from fullrank.data.events.features import FeatureEncoder, Features, encoder_of
from fullrank.data.events.filters import Prepare
from fullrank.data.events.store import ARRAYS, FORMS
from fullrank.data.events.table import Events, JoinedTable
from fullrank.data.histories import user_keys
from fullrank.data.impressions.fitting import FieldFit
from fullrank.data.values import hash_ids


def write_store(
    out: Path,
    events: Events,
    items: JoinedTable,
    users: JoinedTable,
    spec: Prepare,
    split: splits.Rule,
    facts: JsonObject,
    *,
    keys: Int64[np.ndarray, "U"] | None = None,
    encoder: FeatureEncoder | None = None,
) -> None:
    """Sort compacted events by user, split them, and write the store at `out`. `facts` go into the manifest.

    The rising `keys` of its users make it a part of a store in parts: it gets the hashes of its
    buckets. Its features are encoded by `encoder`, which was fitted on all parts.
    """
    if not (events.user[1:] >= events.user[:-1]).all():
        events = events.take(stable_order(events.user))  # they are chronological: users' histories stay so
    offsets = offsets_of(np.bincount(events.user, minlength=len(users.ids)))
    bounds, rule = split.bounds(offsets, events.time)
    features, stored = spec.features, None
    if features.all:
        encoder = encoder or fit_features(features, events, users, offsets, bounds).encoder()
        roles = (role for role in OF_EVENTS if getattr(features, role))
        stored = StoredFeatures(encoder, {role: encode(events.features, encoder_of(encoder, role)) for role in roles})
    if keys is not None:
        facts = facts | {"buckets": parts.bucket_hashes(keys, users.ids, events.item, offsets, bounds)}
    manifest = {
        "spec": spec.dump(),
        **facts,
        "item_table": items.facts,
        "user_table": users.facts,
        "split": {"kind": split.kind, **rule},
        "type_names": list(events.type_names),
        "notes": [*events.notes, *items.notes, *users.notes],
    }
    arrays = {
        "items": events.item,
        "offsets": offsets,
        "bounds": bounds,
        "times": events.time,
        "weights": events.weight,
        "types": events.type,
    }
    catalogue = whole_table(items, "item", {"train_count": np.zeros(len(items.ids), np.int64)})
    save_store(out, arrays, catalogue, whole_table(users, "user", {}), manifest, stored)


def fit_features(
    features: Features, events: Events, users: JoinedTable, offsets: splits.Offsets, bounds: splits.Bounds
) -> FieldFit[Features]:
    """The statistics of features on training events, and of features of users on those who have any.

    Events are in order of user. A row is named by its user's key and its place in the history, so
    that parts and the whole store take the same sample.
    """
    keys, fit = user_keys(users.ids), FieldFit(features, False, exact=True)
    rows = np.repeat(keys - offsets[:-1], np.diff(offsets)) + np.arange(len(events))
    add_columns(fit, events.features, splits.event_parts(offsets, bounds) == 0, rows)
    known = FeatureColumns.of(features.of("user").declared, users.frame.get_column, "the table of users")
    add_columns(fit, known, bounds[:, 0] > offsets[:-1], keys)
    return fit


def save_store(
    out: Path,
    arrays: Mapping[str, np.ndarray | None],
    items: pl.DataFrame,
    users: pl.DataFrame,
    facts: JsonObject,
    features: StoredFeatures | None = None,
) -> None:
    """Write the folder of a store: its arrays (`ARRAYS`; None is left out), its tables, and the manifest with `facts`.

    All counts, the training events of each item among them, are taken from the arrays.
    """
    stored = {name: np.ascontiguousarray(array, ARRAYS[name][0]) for name, array in arrays.items() if array is not None}
    events, offsets, bounds = stored["items"], stored["offsets"], stored["bounds"]
    counts = splits.split_counts(offsets, bounds, events, len(items))
    train = splits.event_parts(offsets, bounds) == 0  # counts of later events would leak what is to be predicted
    popularity = np.bincount(events[train], minlength=len(items)).astype(np.int64)
    manifest = facts | {
        "counts": {"users": len(users), "items": len(items), "events": len(events)},
        "split": facts["split"] | counts,
        "fingerprint": store_fingerprint(users["user_id"], items["item_id"], events, offsets, bounds),
        "notes": [*splits.split_notes(counts), *facts["notes"]],
    }
    with whole_folder(out) as folder:
        for name, array in stored.items():
            write_array(folder / f"{name}.npy", array)
        write_table(items.with_columns(train_count=popularity), folder / "items.parquet")
        write_table(users, folder / "users.parquet")
        if features is not None:
            manifest |= {feature_files.KEY: features.write(folder)}
        manifests.write_manifest(folder, FORMS[0], manifest, manifests.describe_files(folder))


def store_fingerprint(
    user_ids: pl.Series, item_ids: pl.Series, items: np.ndarray, offsets: np.ndarray, bounds: np.ndarray
) -> str:
    """SHA-256 of external ids, histories and bounds, with widths and encodings that no engine changes."""
    state = hashlib.sha256()
    for ids in (user_ids, item_ids):
        state.update(b"text" if ids.dtype == pl.String else b"whole")
        hash_ids(state, ids)
    for array in (items, offsets, bounds):
        state.update(np.int64(array.size).tobytes())
        state.update(np.ascontiguousarray(array, dtype="<i8").data)
    return state.hexdigest()


def whole_table(rows: JoinedTable, kind: str, extra: dict[str, np.ndarray]) -> pl.DataFrame:
    """A table of a store: internal and external ids, `extra` columns, and the columns of the user's table."""
    table = pl.DataFrame({kind: np.arange(len(rows.ids), dtype=np.int64), f"{kind}_id": rows.ids, **extra})
    return table.hstack(rows.frame.get_columns()) if rows.frame.width else table
