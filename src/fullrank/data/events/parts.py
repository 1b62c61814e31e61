"""Stores in parts: users by the hash of their id, each part a whole store, one manifest and one fingerprint for all.

A user's key is a number made of the id alone (`data/histories.py`); its highest bits say which of
`BUCKETS` buckets the user is in, and a part holds neighbouring buckets. Users stand in order of
key, then id. So the parts behind each other are the same users in the same order whatever the
number of parts, and batches, evaluation and shares of users see one store. The fingerprint is made
of a hash for each bucket, which the writer of a part computes alone.

    manifest.json, items.parquet      of all parts; the table of items with the user's columns
    part-00000/ ...                   a store of its own each: all items by their ids, its users, their events
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import polars as pl
from jaxtyping import Int32, Int64
from pydantic import BaseModel, Field

from fullrank.core.files import JsonObject, foreign_files, require_replaceable
from fullrank.core.jagged import offsets_of
from fullrank.data import manifest as manifests
from fullrank.data.events.splits import Bounds, Offsets
from fullrank.data.values import hash_ids, joined

BUCKETS = 4096
_KEY_BITS = 62
_SHIFT = np.int64(_KEY_BITS - (BUCKETS - 1).bit_length())
MOST_PARTS = BUCKETS
T = TypeVar("T")


def user_buckets(keys: Int64[np.ndarray, "U"]) -> Int64[np.ndarray, "U"]:
    """The bucket of each user by `user_keys`: 0 .. BUCKETS - 1, rising with the key."""
    return np.asarray(keys >> _SHIFT)


def part_of(buckets: Int64[np.ndarray, "n"], parts: int) -> Int64[np.ndarray, "n"]:
    """The part of each bucket, where there are `parts` of them: 0 .. parts - 1, rising with the bucket."""
    return np.asarray(buckets * parts // BUCKETS)


def part_folder(number: int) -> str:
    return f"part-{number:05}"


def require_replaceable_store(
    out: Path, forms: Sequence[manifests.FolderFormat], is_file: Callable[[str], bool], *, overwrite: bool
) -> None:
    """Raise `UserError` unless a store of one of these forms may be written at `out`.

    It may where there is nothing or an empty folder, or, with `overwrite`, such a store, but not
    inside another store. `is_file` says whether a name is that of a file of a store or of a part.
    """
    manifests.require_outside_stores(out)
    names = [form.name for form in forms]

    def is_own(name: str) -> bool:
        part = re.fullmatch(r"part-\d{5}", name)
        return is_file(name) or (part is not None and not foreign_files(out / name, is_file))

    require_replaceable(
        out, forms[0].what, lambda folder: manifests.format_of(folder) in names, is_own, overwrite=overwrite
    )


def bucket_hashes(
    keys: Int64[np.ndarray, "U"],
    user_ids: pl.Series,
    items: Int32[np.ndarray, "E"],
    offsets: Offsets,
    bounds: Bounds,
) -> dict[int, str]:
    """SHA-256 of the histories of each bucket that has users: ids, numbers of events, of training
    and of validation, items.

    Users stand in order of key and id. Item ids are those of the whole catalogue.
    """
    buckets, starts = user_buckets(keys), offsets[:-1]
    text = user_ids.cast(pl.String)
    sizes, letters = text.str.len_bytes().to_numpy().astype("<i8"), joined(text)
    ends = offsets_of(sizes).tolist()
    numbers = np.column_stack([np.diff(offsets), bounds - starts[:, None]]).astype("<i8")
    items = np.ascontiguousarray(items, dtype="<i4")
    hashes = {}
    edges = np.searchsorted(buckets, np.arange(BUCKETS + 1))  # keys rise, and so do buckets
    for bucket in np.flatnonzero(np.diff(edges)).tolist():
        low, high = int(edges[bucket]), int(edges[bucket + 1])
        state = hashlib.sha256(sizes[low:high].data)
        state.update(letters[ends[low] : ends[high]])
        state.update(numbers[low:high].data)
        state.update(items[offsets[low] : offsets[high]].data)
        hashes[bucket] = state.hexdigest()
    return hashes


def whole_fingerprint(user_type: Any, item_ids: pl.Series, hashes: Mapping[int, str]) -> str:
    """The fingerprint of a store in parts: of the item ids, and of the buckets in order."""
    state = hashlib.sha256()
    for kind in (user_type, item_ids.dtype):
        state.update(b"text" if kind == pl.String else b"whole")
    hash_ids(state, item_ids)
    state.update(bucket_lines(hashes).encode())
    return state.hexdigest()


def bucket_lines(hashes: Mapping[int, str]) -> str:
    """Buckets (or blocks of rows) in order with their hashes, a line each."""
    return "".join(f"{bucket}:{hashes[bucket]}\n" for bucket in sorted(hashes))


def is_parts(manifest: JsonObject) -> bool:
    """Whether a manifest is that of a store in parts, of events or of impressions."""
    return manifest.get("format") in (manifests.PARTS, manifests.IMPRESSION_PARTS)


class _Part(BaseModel):
    folder: str
    content: str
    counts: dict[str, Any]


_Parts = Annotated[list[_Part], Field(min_length=1, max_length=MOST_PARTS)]


def part_folders(folder: Path, manifest: JsonObject) -> list[Path]:
    """The folders of the parts, in order. Raises `UserError` where the manifest
    does not name them as they are."""
    manifests.require_keys(folder, manifest, {"parts": _Parts})
    names = [part["folder"] for part in manifest["parts"]]
    if names != [part_folder(number) for number in range(len(names))]:
        raise manifests.incomplete_manifest(folder, "names folders that are not those of parts")
    return [folder / name for name in names]


def written_parts(folder: Path, count: int, hashed: str) -> tuple[list[JsonObject], dict[int, str]]:
    """The manifests of `count` parts in a folder, in order, and the hashes that they
    hold under the key `hashed`."""
    manifest_of = [manifests.load_manifest(folder / part_folder(number)) for number in range(count)]
    return manifest_of, {int(bucket): digest for part in manifest_of for bucket, digest in part[hashed].items()}


def described(written: Iterable[JsonObject]) -> list[JsonObject]:
    """The entry of a whole store's manifest for its parts, from their manifests in order."""
    return [
        {"folder": part_folder(number), "content": part["content"], "counts": part["counts"]}
        for number, part in enumerate(written)
    ]


def opened_parts(
    folder: Path, manifest: JsonObject, read: Callable[[Path], tuple[JsonObject, T]]
) -> dict[Path, tuple[JsonObject, T]]:
    """Folder -> manifest and content of each part, as `read` returns them, in order.

    Raises `UserError` for a part that is in parts itself, as in a loop of links, and for one that
    is not the part which the manifest of all was written for.
    """
    opened = {}
    for path, entry in zip(part_folders(folder, manifest), manifest["parts"], strict=True):
        if is_parts({"format": manifests.format_of(path)}):
            raise manifests.damaged_file(path, "it is a part of a store and in parts itself")
        opened[path] = read(path)
        part, _ = opened[path]
        if entry["content"] != part["content"] or entry["counts"] != part["counts"]:
            reason = f"it is not the part that {manifests.NAME} of {str(folder)!r} was written for"
            raise manifests.damaged_file(path, reason)
    return opened
