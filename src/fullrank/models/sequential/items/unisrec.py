"""UniSRec: items made of text vectors by parametric whitening and a mixture of experts (Hou et al., KDD 2022).

An item's vector is v = sum_k g_k (x - b_k) W_k, with x the vector of its text, which is not
trained (Eqs. 2 to 4 of "Towards Universal Sequence Representation Learning for Recommender
Systems", arXiv:2206.05941). Each of the experts k whitens x by parameters of its own, and g =
softmax(x W_g + noise) with noise in training alone, of the standard deviation softplus(x W_n) +
0.01. `transductive` adds a vector of the item's own. Nothing else is per item: a run on another
catalogue starts from these weights (``fullrank train --from``) without a common id, and a new item
has a vector from its text.

Pre-training is the loss `in_batch` with the penalty `sequence_contrast`, which reads `augmented`
too.

A run keeps the vectors in its own item table, in the columns `item_vectors` and
`item_vectors_augmented`.

Differs: x is scaled to the length sqrt(width), so that its numbers are of size 1 whatever made
them; sentence encoders give vectors of length 1, of which maps that start at N(0, 0.02) make next
to nothing, and the authors take BERT's as they are. Dropout hides the same numbers of x from all
experts, so that their maps are one product; the authors have a mask for each. An item without a
vector is read as zeros. The authors freeze the encoder in the second stage; here it is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from fullrank.core.constraints import DropoutRate, Parts
from fullrank.core.errors import UserError
from fullrank.core.log import Progress, logger
from fullrank.data.events.catalog import Catalog, derived_column
from fullrank.models.sequential.items import ComputedItems, ItemsSpec, other_items, unit
from fullrank.ops.dropout import Dropout
from fullrank.ops.starting_values import small, start_small
from fullrank.semantic_ids.vectors import CACHE, VectorSource
from fullrank.semantic_ids.vectors.text import TextVectors

log = logger(__name__)
VECTORS, AUGMENTED = "item_vectors", "item_vectors_augmented"
"""Columns of a run's item table: arrays of float32, zeros where nothing is known of an item."""
LEAST_NOISE = 0.01
"""Standard deviation that the gate's noise has at least, as in the authors' code."""


class UniSRec(ItemsSpec):
    """Item vectors from text vectors, by whitening experts."""

    kind: Literal["unisrec"] = "unisrec"
    reads_new_items: ClassVar[bool] = True
    vectors: VectorSource = TextVectors()
    """Where an item's x comes from."""
    augmented: VectorSource | None = None
    """A second x of each item for `sequence_contrast` with words dropped, such as {kind: text, word_drop: 0.2}."""
    transductive: bool = False
    """Add a vector of the item's own, for a catalogue that stays."""
    experts: Parts = 8
    """Experts."""
    noise: bool = True
    """Noise on the gate in training."""
    dropout: DropoutRate = 0.2
    """Dropout on x."""

    def add_columns(self, catalog: Catalog) -> Catalog:
        """The catalogue with each item's x.

        Raises `UserError` where there is none, or the columns' names are taken.
        """
        catalog.require_free(VECTORS, AUGMENTED)
        return catalog.with_columns({name: _column(x) for name, x in self._read(catalog).items()})

    def add_new_columns(self, catalog: Catalog, old: int) -> Catalog:
        """The grown catalogue with the x of new items."""
        frame = catalog.frame
        new = frame[old:].drop(VECTORS, AUGMENTED, strict=False)
        vectors = self._read(Catalog(new.with_columns(item=pl.Series(np.arange(len(new))), map_version=pl.lit(0))))
        width = _matrix(Catalog(frame[:old]), VECTORS).shape[1]
        for x in vectors.values():
            _require_width("of the new items", x.shape[1], width)
        return catalog.with_columns({name: pl.concat([frame[name][:old], _column(x)]) for name, x in vectors.items()})

    def build(self, dim: int, catalog: Catalog) -> UniSRecItems:
        x = _matrix(catalog, VECTORS)
        other = _matrix(catalog, AUGMENTED) if self.augmented is not None else None
        if other is not None:
            _require_width("of model.items.augmented", other.shape[1], x.shape[1])
        return UniSRecItems(dim, catalog, x, other, self)

    def _read(self, catalog: Catalog) -> dict[str, Float[np.ndarray, "V W"]]:
        """The x of each item by the name of its column."""
        sources = {VECTORS: self.vectors} | ({AUGMENTED: self.augmented} if self.augmented is not None else {})
        return {name: source.read(catalog, CACHE, _announce).matrix.numpy() for name, source in sources.items()}


class UniSRecItems(ComputedItems):
    """Whitening experts and their gate."""

    at_once = 1 << 14
    x: Tensor
    other: Tensor | None

    def __init__(
        self, dim: int, catalog: Catalog, x: Float[Tensor, "V W"], other: Float[Tensor, "V W"] | None, spec: UniSRec
    ):
        super().__init__()
        self.dim, width = dim, x.shape[1]
        self.count_items(catalog.popularity)
        self.register_buffer("x", _scaled(x), persistent=False)
        self.register_buffer("other", None if other is None else _scaled(other), persistent=False)
        self.maps = small(spec.experts, width, dim)
        self.means = nn.Parameter(torch.zeros(spec.experts, width))
        self.gate = nn.Parameter(torch.zeros(width, spec.experts))
        self.gate_noise = nn.Parameter(torch.zeros(width, spec.experts)) if spec.noise else None
        self.drop = Dropout(spec.dropout)
        self.embedding = nn.Embedding(catalog.size, dim) if spec.transductive else None
        start_small(self)

    def flops(self, count: int) -> int:
        """FLOPs of so many vectors: the experts' maps and their means', the gate, the gated sum."""
        parts = -(-count // self.at_once) if count == self.size else 1
        experts, width, dim = self.maps.shape
        return 2 * experts * (count * (width * dim + width + dim) + parts * width * dim)

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        rows = ids.reshape(-1)
        return self._gated_sum(self.x[rows], rows).view(*ids.shape, self.dim)

    def embed_augmented(self, ids: Int[Tensor, "*n"], changed: Bool[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        """`embed`, with the second x where `changed` says so."""
        assert self.other is not None
        rows = ids.reshape(-1)
        x = torch.where(changed.reshape(-1, 1), self.other[rows], self.x[rows])
        return self._gated_sum(x, rows).view(*ids.shape, self.dim)

    def transferred(self, tensors: Mapping[str, Tensor], old: Catalog, new: Catalog) -> dict[str, Tensor]:
        """The experts and the gate as they are, for any catalogue whose vectors are as wide.

        Vectors of items, where both have some, go by external id like those of every table; a run
        without any leaves those of the new model where they start. Raises `UserError` where the
        run's items have other parts.
        """
        moved = {}
        for name, parameter in self.named_parameters():
            learned = tensors.get(name)
            if name == "embedding.weight":
                if learned is None:
                    moved[name] = parameter.detach().clone()
                continue
            if learned is None or learned.shape != parameter.shape:
                has = "none" if learned is None else f"one of shape {tuple(learned.shape)}"
                needed = f"{tuple(parameter.shape)}, of text vectors of the same model"
                raise other_items(f"{name} ({has}, needed {needed})")
            moved[name] = learned
        return moved

    def _gated_sum(self, x: Float[Tensor, "n W"], rows: Int[Tensor, "n"]) -> Float[Tensor, "n D"]:
        """v = sum_k g_k (x - b_k) W_k, and the vector of the item's own where there is one."""
        experts, width, _ = self.maps.shape
        logits = x @ self.gate
        if self.gate_noise is not None and self.training:
            spread = F.softplus(x @ self.gate_noise) + LEAST_NOISE
            logits = logits + spread * torch.randn_like(logits)
        # (x - b) W = x W - b W: the maps of all experts are one product, and no [n, K, W] is made
        whitened = (self.drop(x) @ self.maps.transpose(0, 1).reshape(width, -1)).unflatten(1, (experts, self.dim))
        whitened = whitened - torch.bmm(self.means[:, None], self.maps)[:, 0]
        vectors = torch.bmm(logits.softmax(1)[:, None], whitened)[:, 0]
        return vectors if self.embedding is None else vectors + self.embedding(rows)


def _column(x: Float[np.ndarray, "V W"]) -> pl.Series:
    """Vectors as a column of a run's item table."""
    return pl.Series(values=x, dtype=pl.Array(pl.Float32, x.shape[1]))


def _matrix(catalog: Catalog, name: str) -> Float[Tensor, "V W"]:
    """A column of vectors. Raises `UserError` where it is missing or holds none."""
    how = "vectors are read when a model is trained on a store (or: catalog = model.items.add_columns(catalog))"
    column = derived_column(catalog.frame, name, "vectors", pl.Array, pl.Float32, how)
    matrix = torch.from_numpy(column.to_numpy().reshape(catalog.size, -1).copy())
    if not bool(matrix.isfinite().all()):
        raise UserError(f"the column {name!r} holds numbers that are not finite", code="vectors-damaged")
    return matrix


def _require_width(source: str, width: int, expected: int) -> None:
    """Raise `UserError` for vectors of another width than those of `model.items.vectors`."""
    if width != expected:
        raise UserError(
            f"the vectors {source} are {width} wide, and those of model.items.vectors {expected}: make both by the "
            "same model",
            code="vectors-of-other-width",
        )


def _scaled(x: Float[Tensor, "V W"]) -> Float[Tensor, "V W"]:
    """Vectors scaled to the length sqrt(W); zeros stay."""
    return unit(x) * x.shape[1] ** 0.5


def _announce(task: str) -> Progress:
    """One line at the first tick that leaves something to do."""
    announced = False

    def tick(done: int, total: int) -> None:
        nonlocal announced
        if done < total and not announced:
            announced = True
            log.info(f"note: {task}: {total - done:,} of {total:,} are made now and kept in {str(CACHE)!r}")

    return tick
