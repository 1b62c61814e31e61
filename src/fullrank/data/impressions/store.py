"""The store of impressions, a prepared dataset for rankers: fields as flat arrays, memory-mapped and read-only.

Rows stand in the order train, validation, test. A store in parts (`prepare_impressions(...,
parts=)`) is a folder of such stores, each of some input rows in a row, and is read as if their rows
lay behind each other:

    manifest.json, vocabulary.parquet, groups.parquet      of all
    part-00000/ ...                                        a store of its own each, with all ids and groups

`fullrank.data.impressions.prepare` makes one. Sizes, headers and hashes are checked when it is
opened, ids and offsets when a batch reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import polars as pl
from jaxtyping import Int64, Integer
from pydantic import BaseModel

from fullrank.core.checks import check_path, check_that
from fullrank.core.errors import UserError, brief, in_context, unknown
from fullrank.core.files import JsonObject
from fullrank.core.jagged import Jagged
from fullrank.core.parted import BLOCK, Flat
from fullrank.data import manifest as manifests
from fullrank.data.events import parts
from fullrank.data.events.store import Store
from fullrank.data.frames import InputTable
from fullrank.data.impressions import encoder_files
from fullrank.data.impressions.arrays import TABLES, StoreArrays, array_shapes
from fullrank.data.impressions.encoding import (
    FieldEncoder,
    known_groups,
    known_labels,
    require_fields,
    to_tensors,
    transform,
)
from fullrank.data.impressions.schema import PARTS, FieldInfo, Numeric, Schema
from fullrank.data.impressions.vocabulary import Vocabulary
from fullrank.data.manifest import damaged_file

if TYPE_CHECKING:
    from fullrank.data.batch import Impressions

MAKE = "make one with fullrank prepare-impressions"
FORMS = [manifests.FolderFormat("store of impressions", MAKE, name, 1) for name in manifests.FORMATS["ranking"]]
"""The formats of a store in one, and of a store in parts."""


class ImpressionStore:
    """Prepared impressions. Open one with `ImpressionStore.open`."""

    problem: ClassVar[Literal["ranking"]] = "ranking"

    path: Path
    manifest: JsonObject
    schema: Schema
    arrays: Mapping[str, Flat]
    """The mapped files by name (`array_shapes`); those of parts are joined, without offsets."""

    def __init__(
        self,
        path: Path,
        manifest: JsonObject,
        schema: Schema,
        encoder: FieldEncoder[Schema],
        parts: Mapping[Path, JsonObject] | None = None,
    ):
        """`parts`: the manifest of each part by its folder, of a store in parts."""
        self.path, self.manifest, self.schema, self.encoder = path, manifest, schema, encoder
        arrays = [self._mapped(*part) for part in ({path: manifest} if parts is None else parts).items()]
        if parts is None:
            self._stored = arrays[0]
        else:
            splits = [[part["counts"]["parts"][split]["rows"] for split in PARTS] for part in parts.values()]
            self._stored = StoreArrays.behind_each_other(arrays, np.array(splits, np.int64))
        self.arrays = self._stored.files
        self._sizes = np.array([field.size for field in encoder.fields if field.kind == "categorical"], np.int64)

    @classmethod
    def open(cls, path: str | Path, *, verify: bool | None = None) -> ImpressionStore:
        """Map a store into memory; `verify` says which hashes are compared (`Store.open`).

        Raises `UserError` for a folder that is no store of impressions, is of
        another version, or is damaged.
        """
        folder = Path(path)
        manifest, schema = _read_manifest(folder)
        manifests.verify_hashes(folder, manifest, verify=verify)
        encoder = encoder_files.restore_encoder(folder / manifests.NAME, manifest)
        fitted, written = [asdict(field) for field in encoder.fields], manifest["fields"]
        if fitted != written:
            pairs = zip(fitted, written, strict=True) if len(fitted) == len(written) else [(len(fitted), written)]
            ours, theirs = next((a, b) for a, b in pairs if a != b)
            reason = f"its fields say {brief(theirs, 80)}, the schema and the vocabularies {brief(ours, 80)}"
            raise damaged_file(folder / manifests.NAME, reason)
        if not parts.is_parts(manifest):
            return cls(folder, manifest, schema, encoder)
        opened = {part: tree for part, (tree, _) in parts.opened_parts(folder, manifest, _read_manifest).items()}
        whole, counts = manifest["counts"], [tree["counts"] for tree in opened.values()]
        bag_values = [sum(column) for column in zip(*(part["bag_values"] for part in counts), strict=True)]
        sums = {split: sum(part["parts"][split]["rows"] for part in counts) for split in PARTS}
        if bag_values != whole["bag_values"] or sums != {split: whole["parts"][split]["rows"] for split in PARTS}:
            raise manifests.incomplete_manifest(folder, "has counts that are not those of its parts")
        for part, tree in opened.items():
            manifests.verify_hashes(part, tree, verify=verify)
        return cls(folder, manifest, schema, encoder, opened)

    def _mapped(self, folder: Path, manifest: JsonObject) -> StoreArrays:
        counts, encoder = manifest["counts"], self.encoder
        sizes = counts["rows"], len(encoder.categorical), len(encoder.numeric)
        shapes = array_shapes(*sizes, self.schema, counts["bag_values"])
        return StoreArrays.of_folder(folder, shapes, manifest["files"])

    @property
    def folders(self) -> list[Path]:
        """The folders of its arrays: its own, or those of its parts in order."""
        return list(self._stored.folders)

    def __len__(self) -> int:
        return int(self.manifest["counts"]["rows"])

    @property
    def sizes(self) -> dict[str, int]:
        """How large it is, as manifests and tables of results say it."""
        return {"impressions": len(self), "fields": len(self.fields)}

    @property
    def fields(self) -> tuple[FieldInfo, ...]:
        """The fields in the schema's order, which a batch's columns of each kind follow."""
        return self.encoder.fields

    @property
    def fingerprint(self) -> str:
        """Hash of schema, vocabularies, rows and split, whatever the engine or file format."""
        return str(self.manifest["fingerprint"])

    @property
    def num_groups(self) -> int:
        """Number of groups; 0 without a group column."""
        return int(self.manifest["counts"]["groups"] or 0)

    def split(self, name: str) -> range:
        """The rows of train, validation or test."""
        parts = self.manifest["counts"]["parts"]
        if name not in parts:
            raise unknown("split", name, parts)
        start = sum(parts[part]["rows"] for part in list(parts)[: list(parts).index(name)])
        return range(start, start + parts[name]["rows"])

    @property
    def trained_until(self) -> int | None:
        """Seconds since 1970 of the last training impression; None without times."""
        rows = self.split("train")
        if "times" not in self.arrays or not len(rows):
            return None
        times, stop = self.arrays["times"], rows.stop
        return max(int(times[at : min(at + BLOCK, stop)].max()) for at in range(rows.start, stop, BLOCK))

    def labels(self, name: str) -> np.ndarray:
        """The labels of a split: uint8, mapped; those of parts are put together in memory."""
        rows = self.split(name)
        return self.arrays["labels"][rows.start : rows.stop]

    def batch(self, rows: np.ndarray | slice | range) -> Impressions:
        """Some rows as tensors, in this order. Raises `UserError` for missing rows."""
        at, arrays = self._rows(rows), self.arrays
        ids = arrays["categorical"][at] if len(self._sizes) else np.zeros((len(at), 0), np.int32)
        self._check_ids(ids, self._sizes, at, "categorical")
        numbers = arrays["numeric"][at] if "numeric" in arrays else np.zeros((len(at), 0), np.float32)
        bags = [self.bag(number, at) for number in range(len(self.encoder.multivalued))]
        groups = arrays["groups"][at] if "groups" in arrays else None
        batch = to_tensors(ids, numbers, bags, labels=arrays["labels"][at], groups=groups, rows=at)
        for number, (field, bag) in enumerate(zip(self.encoder.multivalued, batch.bags, strict=True)):
            size = self.encoder.lookup(field).size  # padding is 0, which is allowed
            self._check_ids(bag.ids.numpy(), np.array(size), at, f"bag{number}_ids")
        return batch

    def bag(self, number: int, rows: Int64[np.ndarray, "n"]) -> Jagged:
        """The ids of rows of the bag or sequence with this number (`StoreArrays.bag`)."""
        return self._stored.bag(number, rows)

    def external(self, rows: np.ndarray | slice | range) -> pl.DataFrame:
        """`input_row` (from 0, in the prepared table), with `group` and `time` where known."""
        at = self._rows(rows)
        columns: dict[str, Any] = {"input_row": self.arrays["inputs"][at]}
        if "groups" in self.arrays:
            columns["group"] = self.group_values.gather(self.arrays["groups"][at].astype(np.int64))
        if "times" in self.arrays:
            columns["time"] = self.arrays["times"][at]
        return pl.DataFrame(columns)

    def vocabulary(self, field: str) -> pl.Series:
        """A field's values as text; value i has the id i + 2. Raises `UserError` without any."""
        fields = {declared.name: declared for declared in self.schema.fields}
        if field not in fields:
            raise unknown("field", field, fields)
        lookup = None if isinstance(spec := fields[field], Numeric) else self.encoder.lookup(spec)
        if not isinstance(lookup, Vocabulary):
            why = "is a number" if lookup is None else "is hashed"
            raise UserError(f"the field {field!r} has no vocabulary, it {why}", code="no-vocabulary")
        return lookup.values

    @cached_property
    def group_values(self) -> pl.Series:
        """Groups as they came, whole numbers or text; group i of a batch is row i."""
        path = self.path / "groups.parquet"
        allowed = {"value": pl.String}, {"value": pl.Int64}
        groups = encoder_files.read_columns(path, *allowed, rows=self.num_groups)["value"]
        if groups.null_count():
            raise damaged_file(path, "it holds a group that is null")
        return groups

    def encode(self, impressions: Any) -> Impressions:
        """New impressions (a path or a DataFrame) as tensors, in their order, by the fitted encoder.

        A value that training did not see becomes 1, a missing one 0. Labels and groups are there
        where the table has their columns without gaps; a new group gets a number behind the known
        ones. Raises `UserError` for a missing column and for values that the schema does not allow.
        """
        source, schema = InputTable(impressions, "impressions"), self.schema
        require_fields(source, schema)
        extra = [name for name in (schema.label, schema.group) if name is not None and name in source.columns]
        frame = source.read([*(field.name for field in schema.fields), *extra])
        groups = None
        if schema.group is not None and schema.group in frame.columns:
            groups = known_groups(frame[schema.group], self.group_values)
        labels = known_labels(schema, frame, source.name)
        return transform(self.encoder, frame, source.name, labels=labels, groups=groups)

    def __repr__(self) -> str:
        return f"ImpressionStore({str(self.path)!r}: {len(self):,} rows, {len(self.fields)} fields)"

    def _check_ids(
        self,
        ids: Integer[np.ndarray, "n m"],
        sizes: Int64[np.ndarray, "*fields"],
        rows: Int64[np.ndarray, "n"],
        name: str,
    ) -> None:
        """Raise `UserError` for ids outside of 0 .. size - 1; `name` is their array."""
        wrong = (ids < 0) | (ids >= sizes)
        if wrong.any():
            row, column = np.unravel_index(int(wrong.argmax()), ids.shape)
            size = np.broadcast_to(sizes, ids.shape)[row, column]
            reason = f"it holds the id {ids[row, column]} of a field of 0 .. {size - 1}"
            raise damaged_file(self._stored.folder_of(int(rows[row])) / f"{name}.npy", reason)

    def _rows(self, rows: np.ndarray | slice | range) -> np.ndarray:
        if isinstance(rows, slice):
            rows = range(len(self))[rows]
        at = np.asarray(rows, np.int64)
        if len(at) and not 0 <= int(at.min()) <= int(at.max()) < len(self):
            raise UserError(
                f"rows {at.min()} .. {at.max()} were asked for; the store has 0 .. {len(self) - 1}",
                code="row-out-of-range",
            )
        return at


class _Rows(BaseModel):
    rows: manifests.Count


class _Counts(_Rows):
    parts: dict[str, _Rows]
    bag_values: list[manifests.Count]


def _read_manifest(folder: Path) -> tuple[JsonObject, Schema]:
    """The checked manifest, and its schema. Raises `UserError` for anything but such a store."""
    tree = manifests.read_header(folder, *FORMS)
    kinds = {
        "fingerprint": str,
        "content": str,
        "schema": dict,
        "files": dict,
        "fitted": dict,
        "fields": list,
        "counts": _Counts,
    }
    manifests.require_keys(folder, tree, kinds)
    with in_context(f"the schema in {manifests.NAME} of {str(folder)!r}: "):
        schema = Schema.parse(tree["schema"])
    counts, bags = tree["counts"], len(list(schema.several()))
    rows = {split: part["rows"] for split, part in counts["parts"].items()}
    if tuple(rows) != PARTS or sum(rows.values()) != counts["rows"] or len(counts["bag_values"]) != bags:
        raise manifests.incomplete_manifest(folder, "has counts that do not fit together")
    arrays = array_shapes(0, 1, 1, schema, [0] * bags)
    allowed = {*TABLES, *(f"{name}.npy" for name in arrays if not parts.is_parts(tree))}
    needed = {"vocabulary.parquet"} | ({"groups.parquet"} if schema.group is not None else set())
    manifests.check_files(folder, tree["files"], allowed, needed)
    return tree, schema


def is_file_name(name: str) -> bool:
    """Whether a file name is one that some store of impressions has."""
    arrays = r"(labels|inputs|categorical|numeric|groups|times|bag\d+_(ids|offsets))\.npy"
    return name in (manifests.NAME, *TABLES) or re.fullmatch(arrays, name) is not None


AnyStore = Store | ImpressionStore
"""A prepared dataset of either problem."""


def check_store(name: str, argument: Any) -> AnyStore:
    """An opened store, as it is. Raises `UserError` for whatever else is not a path."""
    demand = ": give a store or the path of its folder (fr.prepare makes one of a table)"
    check_that(isinstance(argument, ImpressionStore | Store), name, argument, demand, code="not-a-store")
    return argument


def open_store(path: str | Path) -> AnyStore:
    """Open a store of either kind, by its manifest. Raises `UserError` for other folders."""
    folder = check_path("the store", path)
    return ImpressionStore.open(folder) if manifests.is_store(folder, "ranking") else Store.open(folder)
