"""The store, a prepared dataset of events: flat arrays with one offset per user, memory-mapped and read-only."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, cast

import numpy as np
import polars as pl
from jaxtyping import Float32, Float64, Int32, Int64
from pydantic import BaseModel, Field

from fullrank.core.checks import check_path
from fullrank.core.errors import unknown
from fullrank.core.files import JsonObject
from fullrank.core.jagged import Jagged
from fullrank.core.parquet import read_parquet
from fullrank.core.parted import Flat, PartedArray, stretches
from fullrank.data import manifest as manifests
from fullrank.data.events import feature_files, parts, splits
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.feature_files import OfEvents, StoredFeatures
from fullrank.data.events.features import FeatureEncoder, encoder_of
from fullrank.data.features import FeatureRows, FeatureTable, HistoryFeatures
from fullrank.data.histories import EvalSet, Histories, UserKeys, user_keys
from fullrank.data.impressions.encoder_files import VOCABULARY
from fullrank.data.values import IdIndex

MAKE = "make one with fullrank prepare"
FORMS = [manifests.FolderFormat("store", MAKE, name, 1) for name in manifests.FORMATS["retrieval"]]
"""The formats of a store in one, and of a store in parts."""
ARRAYS: Mapping[str, tuple[str, bool]] = {
    "items": ("<i4", True),
    "offsets": ("<i8", True),
    "bounds": ("<i8", True),
    "times": ("<i8", False),
    "weights": ("<f4", False),
    "types": ("<i4", False),
}
"""Name -> (dtype, whether every store has it); the file is ``NAME.npy``."""
TABLES = ("items.parquet", "users.parquet")
MOST_WEIGHT = 1000.0
"""Highest weight of the rows of a store that was joined, in an epoch."""


Users = Int64[np.ndarray, "u"]
"""A number for each of some users."""


class Store:
    """Prepared events of U users on V items. Open one with `Store.open`; `fullrank.data.events.prepare` makes it.

    User u's events are ``items[offsets[u]:offsets[u+1]]``, oldest first (equal times in input
    order): those before ``bounds[u, 0]`` are trained on, those before ``bounds[u, 1]`` are
    validation targets, the rest test targets. Of a store in parts (`data/events/parts.py`) the
    arrays of events lie in several files and are read as one.
    """

    problem: ClassVar[Literal["retrieval"]] = "retrieval"

    path: Path
    manifest: JsonObject
    items: Int32[np.ndarray, "E"]
    offsets: splits.Offsets
    bounds: splits.Bounds
    times: splits.Times | None
    """Seconds since 1970; None where the input had only an order."""
    weights: Float32[np.ndarray, "E"] | None
    types: Int32[np.ndarray, "E"] | None
    """The type of each event, a position in `type_names`."""
    catalog: Catalog
    event_features: FeatureTable | None
    """The features of each event; None where there are none."""
    request_features: FeatureTable | None
    """The features of the request of each event, likewise."""

    def __init__(
        self,
        path: Path,
        manifest: JsonObject,
        arrays: Mapping[str, Flat | None],
        catalog: Catalog,
        features: Mapping[OfEvents, FeatureTable] = MappingProxyType({}),
    ):
        self.path, self.manifest, self.catalog = path, manifest, catalog
        self.event_features, self.request_features = features.get("event"), features.get("request")
        items, offsets, bounds = arrays["items"], arrays["offsets"], arrays["bounds"]
        assert items is not None and offsets is not None and bounds is not None
        self.items, self.offsets, self.bounds = items, offsets, bounds
        self.times, self.weights, self.types = arrays["times"], arrays["weights"], arrays["types"]

    @classmethod
    def open(cls, path: str | Path, *, verify: bool | None = None) -> Store:
        """Map a store into memory and check that it is whole.

        `verify` says whose hashes are compared: True for all files, read anew, False for none, None
        for files up to 1 GiB, once in a process.

        Raises `UserError` for a folder that is no store, is of another format version, or is
        damaged.
        """
        folder = check_path("the store", path)
        manifest, (arrays, encoder) = _opened(folder, verify)
        counts = manifest["counts"]
        catalog, tables = Catalog.open(folder / "items.parquet", items=counts["items"]), {}
        if encoder is not None:
            tables = feature_files.read_tables(_folders(folder, manifest), arrays, encoder, counts["events"])
            catalog.features = encoder
        store = cls(folder, manifest, arrays, catalog, tables)
        store._check()
        return store

    @property
    def folders(self) -> list[Path]:
        """The folders of its arrays and users: its own, or those of its parts in order."""
        return _folders(self.path, self.manifest)

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers of users, items and events, as manifests and tables of results show them."""
        return {"users": self.num_users, "items": self.num_items, "events": self.num_events}

    @property
    def num_users(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_items(self) -> int:
        return self.catalog.size

    @property
    def num_events(self) -> int:
        return len(self.items)

    @property
    def fingerprint(self) -> str:
        """Hash of all histories and of their split into training, validation and test.

        External ids and order alone decide it: not the engine, the file format or the integer
        width.
        """
        return str(self.manifest["fingerprint"])

    @property
    def part_of(self) -> str | None:
        """The fingerprint of the store that this one is a part of, with the same items (`subset`, keep_items)."""
        match self.manifest.get("subset"):
            case {"keep_items": True, "source": {"fingerprint": str(fingerprint)}}:
                return fingerprint
        return None

    @cached_property
    def row_weights(self) -> Float64[np.ndarray, "U"] | None:
        """How often each user's rows count in an epoch, in a store joined of
        several; None where all count once."""
        joined = self.manifest.get("joined")
        if joined is None:
            return None
        return np.repeat([float(store["weight"]) for store in joined], [store["counts"]["users"] for store in joined])

    @property
    def type_names(self) -> tuple[str, ...]:
        """Event types; empty where no type column was named."""
        return tuple(self.manifest.get("type_names", ()))

    @cached_property
    def users(self) -> pl.DataFrame:
        """users.parquet: `user` (0 .. U-1), `user_id` (external), then the columns of the user table."""
        entries = self.manifest["parts"] if parts.is_parts(self.manifest) else [self.manifest]
        tables = []
        for folder, entry in zip(self.folders, entries, strict=True):
            path = folder / "users.parquet"
            tables.append(read_parquet(path, "the user table", rows=entry["counts"]["users"]))
            if not {"user", "user_id"} <= set(tables[-1].columns):
                raise manifests.damaged_file(path, "it needs the columns user and user_id")
        if len(tables) == 1:
            return tables[0]
        whole = pl.concat(tables)
        return whole.with_columns(user=pl.Series(np.arange(len(whole))))

    @property
    def user_ids(self) -> pl.Series:
        """External user ids, row u."""
        return self.users["user_id"]

    @cached_property
    def user_keys(self) -> Int64[np.ndarray, "U"]:
        """A number for each user made of the id alone (`fullrank.data.histories`)."""
        return user_keys(self.user_ids)

    @property
    def features(self) -> FeatureEncoder | None:
        """The fitted features of events, requests and users; None where none were declared."""
        return self.catalog.features

    @cached_property
    def user_features(self) -> FeatureTable | None:
        """The features of each user, row u; None where there are none. Raises
        `UserError` where a column is missing."""
        if self.features is None or not self.features.schema.user:
            return None
        encoder = encoder_of(self.features, "user")
        for field in encoder.schema.user:
            if field.name not in self.users.columns:
                reason = f"it lacks the feature {field.name!r}"
                raise manifests.damaged_file(self.folders[0] / "users.parquet", reason)
        return FeatureTable.of(encoder.encode(self.users, "the table of users"))

    @property
    def stored_features(self) -> StoredFeatures | None:
        """The fitted features with those beside the events; None where none were declared."""
        if self.features is None:
            return None
        tables: dict[OfEvents, FeatureTable | None] = {"event": self.event_features, "request": self.request_features}
        return StoredFeatures(self.features, {role: table for role, table in tables.items() if table is not None})

    def history_features(self, users: Users, asked: Users) -> HistoryFeatures | None:
        """The features beside the histories of these users, whose next events stand at the positions `asked`.

        None where there are no features and no times.
        """
        of_user = None if self.user_features is None else FeatureRows(self.user_features, users)
        return HistoryFeatures.of(self.event_features, self.request_features, of_user, self.times, asked)

    def rows_of(self, users: pl.Series) -> Int64[np.ndarray, "n"]:
        """Rows of users by their external ids, of the type of `user_ids`; -1 where the store has none."""
        return self._user_index.find(users)

    @property
    def events(self) -> Histories:
        """All events of all users: row u is user u."""
        keys = UserKeys(partial(getattr, self, "user_keys"))
        return Histories(Jagged.from_offsets(self.items, self.offsets), self.times, keys=keys)

    def eval_set(self, split: str, *, without_history: bool = False) -> EvalSet:
        """The users that have a target in a split, in order of user: their histories, and their targets.

        `split` is train, validation or test. A test history includes the validation events. Of
        `train` the target is the last training event and the history what precedes it. Users whose
        history is empty (global time: they are new) are left out unless `without_history`; the
        manifest counts them. Raises `UserError` for another split.
        """
        starts, stops, bounds = self.offsets[:-1], self.offsets[1:], self.bounds
        targets_of = {
            "train": (np.maximum(bounds[:, 0] - 1, starts), bounds[:, 0]),
            "validation": (bounds[:, 0], bounds[:, 1]),
            "test": (bounds[:, 1], stops),
        }
        if split not in targets_of:
            raise unknown("split", split, targets_of)
        ends, target_ends = targets_of[split]
        users = np.flatnonzero((target_ends > ends) & (without_history | (ends > starts)))
        known, targets = Jagged(self.items, starts, ends).take(users), Jagged(self.items, ends, target_ends).take(users)
        keys = UserKeys(partial(getattr, self, "user_keys"), users)
        return EvalSet(Histories(known, self.times, users, keys, self.history_features(users, ends[users])), targets)

    def repeated_share(self, split: str) -> float:
        """The share of a split's targets (validation, test) that stand in their own user's history."""
        counts = self.manifest.get("split", {}).get(split, {})
        if "repeated_targets" not in counts:  # a store of version 0.2 or earlier
            users = self.eval_set(split, without_history=True)
            counts = {"targets": len(users.truth.flat()), "repeated_targets": users.repeated_targets()}
        return splits.repeated_share(counts)

    def histories(self, split: str, *, without_history: bool = False) -> tuple[Users, Users, Users, Users]:
        """`eval_set` as (users, starts, ends, target_ends): ``items[starts:ends]`` and
        ``items[ends:target_ends]``."""
        warnings.warn(
            "Store.histories is deprecated: Store.eval_set(split) gives the same users with histories and targets",
            DeprecationWarning,
            stacklevel=2,
        )
        users = self.eval_set(split, without_history=without_history)
        known = users.histories.items
        return users.users, known.starts, known.ends, users.targets.ends

    def trained(
        self,
    ) -> tuple[Int64[np.ndarray, "n"], Int32[np.ndarray, "n"], Int64[np.ndarray, "n"] | None]:
        """(users, items, times) of the events that are trained on, by user, oldest
        first; times None as in `times`."""
        events = Jagged(self.items, self.offsets[:-1], self.bounds[:, 0])
        return events.row_of(), events.flat(), None if self.times is None else events.over(self.times).flat()

    def __repr__(self) -> str:
        return (
            f"Store({str(self.path)!r}: {self.num_users:,} users, {self.num_items:,} items, {self.num_events:,} events)"
        )

    @cached_property
    def _user_index(self) -> IdIndex:
        """The index of the external ids, made once."""
        return IdIndex(self.user_ids)

    def _check(self) -> None:
        """Check all that an index into the arrays relies on. Raises `UserError`."""
        starts, stops = self.offsets[:-1], self.offsets[1:]
        if self.offsets[0] != 0 or self.offsets[-1] != self.num_events or (stops < starts).any():
            raise manifests.damaged_file(self.path / "offsets.npy", "offsets must rise from 0 to the number of events")
        low, high = self.bounds[:, 0], self.bounds[:, 1]
        if ((low < starts) | (high < low) | (stops < high)).any():
            raise manifests.damaged_file(self.path / "bounds.npy", "bounds must lie in order inside each user's events")
        _in_range(self.items, self.num_items, self.path / "items.npy")
        if self.types is not None:
            _in_range(self.types, len(self.type_names), self.path / "types.npy")


def opened_store(store: Store | str | Path) -> Store:
    """A store as it is, or the store in a folder."""
    return store if isinstance(store, Store) else Store.open(store)


def _folders(folder: Path, manifest: JsonObject) -> list[Path]:
    return parts.part_folders(folder, manifest) if parts.is_parts(manifest) else [folder]


def _in_range(codes: Flat, size: int, path: Path) -> None:
    for block in stretches(codes):
        if int(block.min()) < 0 or int(block.max()) >= size:
            raise manifests.damaged_file(path, f"it holds {block.min()} .. {block.max()}, allowed are 0 .. {size - 1}")


Arrays = tuple[dict[str, Flat | None], FeatureEncoder | None]


def _opened(folder: Path, verify: bool | None, encoder: FeatureEncoder | None = None) -> tuple[JsonObject, Arrays]:
    """The manifest of a store, its arrays (those of parts behind each other), and the encoder of its features.

    A part has the `encoder` of the whole store.
    """
    manifest = _read_manifest(folder)
    manifests.verify_hashes(folder, manifest, verify=verify)
    state = manifest.get(feature_files.KEY)
    if state is not None and encoder is None:
        encoder = feature_files.read_encoder(folder / manifests.NAME, state)
    if not parts.is_parts(manifest):
        users, events = manifest["counts"]["users"], manifest["counts"]["events"]
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(ARRAYS, (events,))
        shapes |= {"offsets": (users + 1,), "bounds": (users, 2)}
        widths = {} if encoder is None else feature_files.array_widths(encoder)
        shapes |= {name: (events, width) for name, width in widths.items()}
        return manifest, ({name: _array(folder, manifest, name, shape) for name, shape in shapes.items()}, encoder)
    opened = parts.opened_parts(folder, manifest, partial(_opened, verify=verify, encoder=encoder))
    for path, (part, _) in opened.items():
        if part.get(feature_files.KEY) != state:
            raise manifests.damaged_file(path / manifests.NAME, "its features are not those of the whole store")
    arrays_of_parts = [arrays for _, (arrays, _) in opened.values()]
    joined: dict[str, Flat | None] = {}
    for name in arrays_of_parts[0]:
        arrays = [array for part_arrays in arrays_of_parts if (array := part_arrays[name]) is not None]
        if 0 < len(arrays) < len(opened):
            raise manifests.incomplete_manifest(folder, f"has parts with and without {name}")
        joined[name] = cast(Flat, PartedArray(arrays)) if arrays else None
    # events stay in their files, offsets and bounds are copied and move up
    sizes, offsets, bounds = (
        [np.asarray(arrays[name]) for arrays in arrays_of_parts] for name in ("items", "offsets", "bounds")
    )
    joined["offsets"], joined["bounds"] = moved_up(list(map(len, sizes)), offsets, bounds)
    return manifest, (joined, encoder)


def moved_up(
    events: Sequence[int], offsets: Sequence[np.ndarray], bounds: Sequence[np.ndarray]
) -> tuple[splits.Offsets, splits.Bounds]:
    """The offsets and bounds of several stores behind each other, each moved up by the
    `events` of those before it."""
    before = np.cumsum([0, *events[:-1]])
    moved = [positions[1:] + start for positions, start in zip(offsets, before, strict=True)]
    whole = np.concatenate([np.zeros(1, np.int64), *moved])
    return whole, np.concatenate([positions + start for positions, start in zip(bounds, before, strict=True)])


def require_replaceable_store(out: Path, *, overwrite: bool) -> None:
    """Raise `UserError` unless a store of events may be written at `out` (`parts.require_replaceable_store`)."""
    files = {manifests.NAME, *TABLES, *(f"{name}.npy" for name in ARRAYS), *feature_files.FILES}
    parts.require_replaceable_store(out, FORMS, files.__contains__, overwrite=overwrite)


class _Split(BaseModel):
    kind: str


class _Users(BaseModel):
    users: manifests.Count


class _Counts(_Users):
    items: manifests.Count
    events: manifests.Count


class _JoinedStore(BaseModel):
    counts: _Users
    weight: Annotated[float, Field(gt=0, le=MOST_WEIGHT, strict=True)]


def _read_manifest(folder: Path) -> JsonObject:
    """The manifest, its structure checked. Raises `UserError` for a folder that
    is no store, or a newer one."""
    manifest = manifests.read_header(folder, *FORMS)
    in_parts = parts.is_parts(manifest)
    kinds = {
        "fingerprint": str,
        "content": str,
        "spec": dict,
        "files": dict,
        "split": _Split,
        "type_names": list[str],
        "counts": _Counts,
        "joined": list[_JoinedStore],
        feature_files.KEY: dict,
    }
    manifests.require_keys(folder, {"joined": [], feature_files.KEY: {}, **manifest}, kinds)
    joined = sum(store["counts"]["users"] for store in manifest.get("joined", ()))
    if "joined" in manifest and joined != manifest["counts"]["users"]:
        raise manifests.incomplete_manifest(folder, "was not 'joined' of so many users")
    tables = {"items.parquet"} if in_parts else set(TABLES)
    arrays = set() if in_parts else {f"{name}.npy" for name in ARRAYS}
    if feature_files.KEY in manifest:
        tables |= {VOCABULARY, *(() if in_parts else (feature_files.LISTS,))}
        arrays |= set() if in_parts else set(feature_files.FILES)
    manifests.check_files(folder, manifest["files"], tables | arrays, tables)
    return manifest


def _array(folder: Path, manifest: JsonObject, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """An array mapped read-only, or None where the store has none. Its header
    must agree with the manifest."""
    dtype, needed = ARRAYS[name] if name in ARRAYS else (feature_files.ARRAYS[name], True)
    path = folder / f"{name}.npy"
    if path.name not in manifest["files"]:
        if needed:
            raise manifests.incomplete_manifest(folder, f"does not list {path.name}")
        return None
    return manifests.map_array(path, dtype, shape)
