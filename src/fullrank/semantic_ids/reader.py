"""Codes on disk, opened: what models, retrieval and diagnostics read of semantic ids.

`Codes` goes from items to codes, `Tuples` from codes to items. `Trie` says which codes may
follow which, level by level, of the tuples that exist, without tables of pairs: nodes of a
level are the distinct beginnings of tuples, in lexical order, so that the children of a node,
and the items below it, are one stretch of the next level's nodes, and of all items. A level of
N nodes takes four numbers for each: a million items with four codes take some 40 MB, whatever
the size of the codebooks.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from fullrank.core.errors import UserError, in_context
from fullrank.core.files import JsonObject
from fullrank.core.jagged import offsets_of
from fullrank.core.tensor_files import read_tensors
from fullrank.data import manifest as manifests
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.data.values import IdIndex
from fullrank.semantic_ids import Quantiser, folder
from fullrank.semantic_ids.collisions import Policy, group_by_codes
from fullrank.semantic_ids.spec import Encode
from fullrank.semantic_ids.vectors.reduce import Reduction

CODES, SIZES = "codes", "code_sizes"
"""Columns of an item table that holds codes."""


@dataclass(eq=False, repr=False)
class Codes:
    """Semantic ids of V items, K codes each. Open them with `Codes.open`; `encode` makes them.

    Level k's codes are 0 .. ``sizes[k]`` - 1; nothing is reserved for padding or an end. Rows are
    in the order in which the items were encoded: ask `of` for the order of a store or of a run.
    """

    path: Path
    manifest: JsonObject
    spec: Encode
    item_ids: pl.Series
    """External ids, row by row."""
    codes: Int64[Tensor, "V K"]

    @classmethod
    def open(cls, path: str | Path, *, verify: bool | None = None) -> Codes:
        """Open a folder of codes. The hashes of its files are compared as `verify` says (`Store.open`).

        Raises `UserError` for a folder that holds no codes, is of another format version, or is
        damaged.
        """
        path = Path(path)
        manifest, ids, codes = folder.read_folder(path, verify)
        with in_context(f"the spec in {manifests.NAME} of {str(path)!r}: ", code="manifest-invalid-spec"):
            spec = Encode.parse(manifest["spec"])
        return cls(path, manifest, spec, ids, codes)

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        return f"Codes({str(self.path)!r}: {len(self):,} items, sizes {self.sizes}, collisions: {self.policy})"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each level; one level more than was learned where the policy is `extra_digit`."""
        return tuple(self.manifest["sizes"])

    @property
    def levels(self) -> int:
        """K, codes of an item."""
        return len(self.sizes)

    @property
    def offsets(self) -> Int64[Tensor, "K"]:
        """First row of each level in one table of sum(sizes) rows: code c of level
        k is row ``offsets[k] + c``."""
        return torch.tensor([0, *self.sizes]).cumsum(0)[:-1]

    @property
    def policy(self) -> Policy:
        """The policy about items with the same codes."""
        return self.spec.collisions

    @property
    def report(self) -> JsonObject:
        """The diagnostics that were taken when the codes were made."""
        return dict(self.manifest["report"])

    @property
    def fingerprint(self) -> str:
        """Hash of the files: equal codes of equal items from equal codebooks."""
        return str(self.manifest["content"])

    def of(self, items: Catalog | Store) -> Int64[Tensor, "V K"]:
        """Codes in the order of a catalogue (or of a store's).

        Raises `UserError`, with counts, where some of its items have no codes. Codes of
        further items are no fault.
        """
        catalog = _catalog(items)
        rows = self.rows(catalog)
        lacking = int((rows < 0).sum())
        if lacking:
            example = catalog.ids[int((rows < 0).nonzero()[0])]
            raise UserError(
                f"{lacking:,} of {catalog.size:,} items have no codes in {str(self.path)!r} (such as {example!r}); "
                "give them codes with fullrank encode STORE --grow, or encode this store",
                code="items-without-codes",
            )
        return self.codes[rows]

    def tuples(self, items: Catalog | Store) -> Tuples:
        """The items of each tuple of codes, by their numbers in that catalogue, and the look-up by codes."""
        catalog = _catalog(items)
        return Tuples(self.of(catalog), catalog.popularity)

    def attach(self, catalog: Catalog) -> Catalog:
        """The catalogue with two more columns, arrays of K numbers: so a run keeps what its model read.

        `codes` are each item's own, `code_sizes` say how many codes each level has, alike in all
        rows. Raises `UserError` where items have no codes or the columns are there already.
        """
        catalog.require_free(CODES, SIZES)
        sizes = pl.Series(SIZES, [list(self.sizes)], dtype=pl.Array(pl.Int32, self.levels))
        codes = folder.codes_column(self.of(catalog)).alias(CODES)
        return catalog.with_columns({CODES: codes, SIZES: sizes.new_from_index(0, catalog.size).alias(SIZES)})

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Everything in codebooks.safetensors."""
        return read_tensors(self.path / folder.BOOKS)

    @cached_property
    def quantiser(self) -> Quantiser:
        """The codebooks, able to encode and decode (an extra digit is none of them).
        Raises `UserError` if damaged."""
        try:
            quantiser = self.spec.learner.restore(self.tensors)
        except UserError as error:
            raise self._damaged(str(error)) from None
        sizes = quantiser.sizes
        if tuple(sizes) != self.sizes[: len(sizes)] or self.levels - len(sizes) not in (0, 1):
            raise self._damaged(f"it has levels of {sizes} codes")
        return quantiser

    def _damaged(self, why: str) -> UserError:
        """The error of codebooks that are not what was written."""
        return manifests.damaged_file(self.path / folder.BOOKS, why, folder.AGAIN)

    @property
    def codebooks(self) -> Float[Tensor, "K C d"]:
        """Codewords of the learned levels; d is the width that the learner saw, its K-th part (`opq`), or the width
        behind an encoder (`rqvae`, `letter`)."""
        return self.quantiser.codebooks

    @cached_property
    def reduction(self) -> Reduction | None:
        """From vectors as they were read to those that the learner saw; None where these are the same."""
        try:
            return Reduction.load(self.tensors, self.quantiser.dim)
        except UserError as error:
            raise self._damaged(str(error)) from None

    def decode(self, codes: Int64[Tensor, "n K"]) -> Float[Tensor, "n D"]:
        """The vectors that codes describe, in the space of the vectors that were read (text)."""
        vectors = self.quantiser.decode(codes[:, : len(self.quantiser.sizes)])
        return vectors if self.reduction is None else self.reduction.inverse(vectors)

    def quantise(self, vectors: Float[Tensor, "n D"]) -> Int64[Tensor, "n K"]:
        """Codes of vectors as they were read, before any policy about collisions: no extra digit."""
        return self.quantiser.encode(vectors if self.reduction is None else self.reduction.apply(vectors))

    def rows(self, items: Catalog | Store) -> Int64[Tensor, "V"]:
        """The row of each item of a catalogue; -1 where it has no codes."""
        catalog = _catalog(items)
        if (self.item_ids.dtype == pl.String) != (catalog.ids.dtype == pl.String):
            raise UserError(
                f"the items' ids are {catalog.ids.dtype} (such as {catalog.ids[0]!r}), those of {str(self.path)!r} are "
                f"{self.item_ids.dtype} (such as {self.item_ids[0]!r}); encode the items of this store",
                code="id-types-differ",
            )
        return torch.from_numpy(IdIndex(self.item_ids).find(catalog.ids))


def _catalog(items: Catalog | Store) -> Catalog:
    """The catalogue itself, or the store's."""
    return items.catalog if isinstance(items, Store) else items


class Tuples:
    """The tuples of codes that exist, and their items.

    Tuple t is ``tuples[t]`` (in lexical order), its items are ``items[offsets[t]:offsets[t+1]]``:
    the more popular first, then the smaller id. ``of_item[i]`` is the tuple of item i.
    """

    tuples: Int64[Tensor, "T K"]
    offsets: Int64[Tensor, "T1"]
    items: Int64[Tensor, "V"]
    of_item: Int64[Tensor, "V"]

    def __init__(self, codes: Int64[Tensor, "V K"], popularity: Int64[np.ndarray, "V"]):
        """`popularity`: training events of each item, in the order of the rows of `codes`."""
        tuples, group = group_by_codes(codes)
        order = np.lexsort((np.arange(len(group)), -np.asarray(popularity), group))
        self.tuples, self.of_item = torch.from_numpy(tuples), torch.from_numpy(group.astype(np.int64))
        self.items = torch.from_numpy(order.astype(np.int64))
        self.offsets = torch.from_numpy(offsets_of(np.bincount(group)))
        self._keys()

    def __len__(self) -> int:
        return len(self.tuples)

    def find(self, codes: Int64[Tensor, "M K"]) -> Int64[Tensor, "M"]:
        """The tuple of each row of codes; -1 where no item has these codes."""
        keys = (codes * self._factors).sum(1)
        nearest = self._order[torch.searchsorted(self._sorted, keys).clamp_max(len(self) - 1)]
        return torch.where((self.tuples[nearest] == codes).all(1), nearest, -1)

    def members(self, tuple_: int) -> Int64[Tensor, "n"]:
        """The items of one tuple."""
        return self.items[self.offsets[tuple_] : self.offsets[tuple_ + 1]]

    def _keys(self) -> None:
        """One number for each tuple, different for all of them: sums of codes
        times odd numbers, modulo 2^64."""
        for seed in range(100):
            generator = torch.Generator().manual_seed(seed)
            self._factors = torch.randint(-(2**62), 2**62, (self.tuples.shape[1],), generator=generator) * 2 + 1
            self._sorted, self._order = (self.tuples * self._factors).sum(1).sort()
            if not (self._sorted[1:] == self._sorted[:-1]).any():
                return
        raise AssertionError("a hundred hashes of distinct tuples collided")


@dataclass(frozen=True)
class TrieLevel:
    """The nodes of one level."""

    codes: Int[Tensor, "N"]
    """The last code of each node's beginning."""
    parents: Int[Tensor, "N"]
    """Parent of each node on the level before; 0, the root, on the first level."""
    children: Int[Tensor, "n"]
    """Node j of the level before has the nodes children[j] .. children[j + 1] - 1 of this one."""
    below: Int[Tensor, "m"]
    """Below node j are the items at the places below[j] .. below[j + 1] - 1 of `Trie.items`."""

    @property
    def size(self) -> int:
        return len(self.codes)


class Trie:
    """All levels, and what lies below each node. Node t of the last level is tuple t."""

    def __init__(self, tuples: Tuples):
        codes, offsets = tuples.tuples, tuples.offsets
        self.levels: list[TrieLevel] = []
        new = torch.zeros(len(codes), dtype=torch.bool)
        new[:1] = True
        # node of the level before, for each tuple below it
        before = torch.zeros(len(codes), dtype=torch.long)
        for level in range(codes.shape[1]):
            # a node begins where this code, or one before it, is another than in the tuple above
            new[1:] |= codes[1:, level] != codes[:-1, level]
            first = new.nonzero()[:, 0]
            parents = before[first]
            children = torch.bincount(parents, minlength=self.levels[-1].size if self.levels else 1)
            tensors = (
                codes[first, level],
                parents,
                torch.nn.functional.pad(children.cumsum(0), (1, 0)),  # where each parent's children begin and end
                torch.cat([offsets[first], offsets[-1:]]),
            )
            self.levels.append(TrieLevel(*(tensor.to(torch.int32) for tensor in tensors)))
            before = new.long().cumsum(0) - 1
        self.items = tuples.items.to(torch.int32)
        """Items, tuple after tuple."""
        self.place = torch.empty_like(self.items)
        """Place of each item among `items`."""
        self.place[tuples.items] = torch.arange(len(self.items), dtype=torch.int32)

    def __len__(self) -> int:
        return self.levels[-1].size

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        of_levels = [x for level in self.levels for x in vars(level).values()]
        return sum(x.nbytes for x in (self.items, self.place, *of_levels))

    def to(self, device: torch.device) -> Trie:
        """A copy on a device."""
        moved = copy.copy(self)
        moved.items, moved.place = self.items.to(device), self.place.to(device)
        moved.levels = [TrieLevel(*(x.to(device) for x in vars(level).values())) for level in self.levels]
        return moved

    def nodes_of(self, places: Int[Tensor, "p"], level: int) -> Int[Tensor, "p"]:
        """The node of a level that the item at each place lies below."""
        return torch.searchsorted(self.levels[level].below, places.to(torch.int32), right=True) - 1

    def kept_before(self, counted: Bool[Tensor, "V"]) -> Int[Tensor, "V1"]:
        """Number of items before each place, and of all, that count: below node j
        x[below[j + 1]] - x[below[j]]."""
        return torch.nn.functional.pad(counted[self.items.long()].cumsum(0, dtype=torch.int32), (1, 0))
