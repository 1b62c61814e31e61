"""ItemGrowth: first vectors of items that come while a version serves, and the model and predictor that know them.

Sources of the vector of an item that the run does not have:

- `like`: the mean of the vectors of the items that it is said to be like (a run's own, or others
  that were added).
- `features`: the vector that the run's own item module makes of its columns or text, for items made
  of those. A part of an item's own starts where `like` says, else at the mean of all items, as in
  `fr.grow_catalog`.
- `title`: the mean of the vectors of the items with the most similar titles (`titles.py`), the more
  similar ones more.
- `none`: a model that counts has counted nothing of it. It is in the catalogue, and ranked last.

Items made of semantic ids, and items made of text that come without any, take the codes or the text
of the one item that their neighbours' mean is nearest to: the two then have the same vector.
Nothing is trained, and items of the run keep their numbers, their vectors and their scores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fullrank.core.errors import UserError, brief
from fullrank.core.spec import Spec
from fullrank.data.events.catalog import Catalog
from fullrank.evaluation.statistics import popularity_bands
from fullrank.inference.predictor import Predictor
from fullrank.models.sequential.baselines.blend import Blend
from fullrank.models.sequential.items import ItemIndex, ItemsSpec, unit
from fullrank.models.sequential.items.features import Features
from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.items.table import ItemTable
from fullrank.models.sequential.items.text import Text
from fullrank.models.sequential.items.tokeniser import TOKENISER, TOKENISER_SIZE
from fullrank.models.sequential.items.tpab import COUNTS, STARTS
from fullrank.models.sequential.items.unisrec import AUGMENTED, VECTORS, UniSRec
from fullrank.run.grow import grown_model
from fullrank.semantic_ids.reader import CODES, SIZES
from fullrank.serving.card import BANDS
from fullrank.serving.item_documents import TITLE, Newcomer
from fullrank.serving.recent import Recent
from fullrank.serving.requests import ItemNumbers
from fullrank.serving.titles import SimilarTitles, TitleSearch

NEIGHBOURS = 10
"""Similar titles that a vector is the mean of."""
_INDEX = "index"
MOST_TEXTS = 20_000
"""Texts whose neighbours are remembered."""
SPARE = 1024
"""Rows that a table has room for, at least."""
Rule = Literal["like", "features", "title", "none"]
Near = tuple[tuple[int, ...], tuple[float, ...]]
"""Items of the run, by their numbers, and their shares in a mean."""


@dataclass(frozen=True)
class Origin:
    """The source of a new item's vector; two that are equal give equal vectors."""

    item: int | str
    rule: Rule
    neighbours: tuple[int, ...] = ()
    """Items of the run, by their numbers."""
    weights: tuple[float, ...] = ()
    """Their shares, which add up to 1."""
    read: tuple[tuple[str, Any], ...] = ()
    """Columns of the item that the item module reads, with their values."""
    copied: int | None = None
    """The item of the run whose codes or text it takes."""


class ItemGrowth:
    """The items of one run, and how others join them. Safe from many threads."""

    def __init__(self, spec: Spec, predictor: Predictor):
        """`spec` is the model's, `predictor` has the run's items alone."""
        self.spec, self.predictor = spec, predictor
        self.items = getattr(spec, "items", None)
        self.catalog = _widened(predictor.catalog)
        self.numbers = ItemNumbers(self.catalog.ids.to_list())
        self.values = {name: self.catalog.frame[name] for name in self.catalog.columns if name not in self.own_columns}
        self.types: dict[str, Any] = {name: column.dtype for name, column in self.values.items()}
        self.types.setdefault(TITLE, pl.String())
        self.titles = self.catalog.titles
        self.bands: list[str] = np.array(BANDS, object)[popularity_bands(self.catalog.popularity)].tolist()
        self.popular_order = np.argsort(-self.catalog.popularity, kind="stable")
        self._texts: Recent[Near] = Recent(MOST_TEXTS)
        self._tables = GrowingTables(self.catalog.size)
        self._lock = threading.Lock()

    @cached_property
    def own_columns(self) -> frozenset[str]:
        """Columns of the item table that the library filled in for its own use (codes, tokens, vectors)."""
        of_text = [field.tokens_column for field in self.items.fields] if isinstance(self.items, Text) else []
        columns = [CODES, SIZES, TOKENISER, TOKENISER_SIZE, VECTORS, AUGMENTED, COUNTS, STARTS, *of_text]
        return frozenset(columns) & set(self.catalog.columns)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The columns that the run's items are made of."""
        if isinstance(self.items, Features):
            return (*self.items.categorical, *self.items.numeric)
        return tuple(dict.fromkeys(field.column for field in self.items.fields)) if isinstance(self.items, Text) else ()

    @cached_property
    def search(self) -> TitleSearch:
        """The titles of the run's items, indexed once for a search box."""
        assert self.titles is not None
        return TitleSearch(self.titles, self.popular_order)

    @cached_property
    def similar(self) -> SimilarTitles | None:
        """The titles by likeness, indexed for the first new item with a title
        alone; None where there are none."""
        return None if self.titles is None else SimilarTitles(self.titles)

    def warm(self) -> None:
        """Index the titles now, where new items may be compared with them."""
        if isinstance(self.items, ItemsSpec):
            with self._lock:
                _ = self.similar

    def origins(self, newcomers: Mapping[Any, Newcomer], known: Mapping[Any, Origin]) -> dict[Any, Origin | UserError]:
        """Item id -> the source of its vector, or the error for it.

        `known` are the sources of items whose documents are as they were.
        """
        outcomes: dict[Any, Origin | UserError] = dict(known)
        for start in newcomers:
            # depth first, without recursion: an item may be like one that is like another
            waiting = [start]
            while waiting:
                newcomer = newcomers[waiting[-1]]
                like = () if newcomer.id in outcomes else newcomer.like
                others = [other for other in like if other in newcomers and other not in outcomes]
                circle = [other for other in others if other in waiting]
                if circle:
                    for other in waiting[waiting.index(circle[0]) :]:
                        outcomes[other] = UserError(
                            f"item {other!r} is like {circle[0]!r}, which is like it in turn: name items that were "
                            "there before",
                            code="like-cycle",
                            public=True,
                        )
                elif others:
                    waiting.append(others[0])
                    continue
                elif newcomer.id not in outcomes:
                    try:
                        outcomes[newcomer.id] = self._origin(newcomer, outcomes)
                    except UserError as error:
                        outcomes[newcomer.id] = error
                waiting.pop()
        return outcomes

    def grown(self, origins: tuple[Origin, ...]) -> Predictor:
        """A predictor that knows the run's items and, behind them, these; the run's
        own one where there are none."""
        if not origins:
            return self.predictor
        old, catalog = self.predictor, self._catalog(origins)
        index = old.index  # outside the lock: it may have to be made
        with self._lock:
            model = grown_model(
                self.spec,
                old.model,
                catalog,
                lambda name, table: self._tables.behind(name, table, origins, lambda at: _means(origins[at:], table)),
            )
            index = self._index(model, index, origins)
        if hasattr(old.model, "encoder"):
            model.encoder = old.model.encoder  # the same weights: what was compiled of the one serves the other
        budget, decoding = old.budget, old.decoding
        return Predictor(
            model, catalog, device=old.device, budget=budget, decoding=decoding, name=old.name, index=index
        )

    def _origin(self, newcomer: Newcomer, outcomes: Mapping[Any, Origin | UserError]) -> Origin:
        """The source of a new item's vector. Raises `UserError` where
        there is nothing to make one of."""
        if isinstance(self.spec, Blend):
            raise UserError(
                f"item {newcomer.id!r} is new, and a blend takes in none: put it to the service of a member, or blend "
                "runs that know it",
                code="blend-takes-no-items",
                public=True,
            )
        if not isinstance(self.items, ItemsSpec):
            return Origin(newcomer.id, "none")
        read = self._read(newcomer)
        if isinstance(self.items, Text) and read:
            return Origin(newcomer.id, "features", read=read)
        if isinstance(self.items, Features) and (read or not self.items.ids):
            if not read:
                raise UserError(
                    f"item {newcomer.id!r}: this model's items are made of {', '.join(map(repr, self.reads))}, and "
                    "features gives none of them",
                    code="no-item-features",
                    public=True,
                )
            near = _like(newcomer, outcomes, self.numbers) if newcomer.like and self.items.ids else ((), ())
            return Origin(newcomer.id, "features", *near, read=read)
        rule: Rule = "like" if newcomer.like else "title"
        near = _like(newcomer, outcomes, self.numbers) if newcomer.like else self._similar(newcomer)
        if isinstance(self.items, Semantic | Text | UniSRec):
            return Origin(newcomer.id, rule, *near, copied=self._nearest(*near))
        return Origin(newcomer.id, rule, *near)

    def _read(self, newcomer: Newcomer) -> tuple[tuple[str, Any], ...]:
        """The columns that the item module reads of this item; empty where none is known."""
        cells = {name: newcomer.cells.get(name) for name in self.reads}
        if "title" in cells and cells["title"] is None:
            cells["title"] = newcomer.title
        if isinstance(self.items, Text) and newcomer.text:
            first = self.reads[0]
            before = cells[first]
            listed = isinstance(self.catalog.frame[first].dtype, pl.List | pl.Array)
            cells[first] = [*(before or []), newcomer.text] if listed else f"{before or ''} {newcomer.text}".strip()
        known = {name: value for name, value in cells.items() if value is not None and value != []}
        return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in known.items())

    def _similar(self, newcomer: Newcomer) -> Near:
        """The items whose titles are most like those of a new item. Raises
        `UserError` where there are none."""
        text = " ".join(part for part in (newcomer.title, newcomer.text) if part)
        with self._lock:
            titles = self.similar if text else None
        if not text or titles is None:
            lacks = "it has no title" if not text else "the run's items have no titles to compare with"
            raise UserError(
                f"item {newcomer.id!r} is new and has nothing to make a vector of, since {lacks}: "
                f"{'give a title, or ' if not text else ''}name items that it is like (like)",
                code="nothing-to-start-from",
                public=True,
            )
        near = self._texts.get(text, partial(_neighbours, titles, text))
        if not near[0]:
            raise UserError(
                f"item {newcomer.id!r}: no title of the catalogue is like {brief(text, 80)}; name items that it is "
                "like (like)",
                code="no-similar-title",
                public=True,
            )
        return near

    def _nearest(self, neighbours: tuple[int, ...], weights: tuple[float, ...]) -> int:
        """The neighbour whose vector is nearest to the mean of them all."""
        items = self.predictor.model.items
        with torch.no_grad():
            vectors = items.embed(torch.tensor(neighbours, device=items.popularity.device)).float().cpu()
        mean = torch.tensor(weights) @ vectors
        return neighbours[int(F.cosine_similarity(vectors, mean[None], dim=1).argmax())]

    def _index(self, model: Any, old: Any, origins: tuple[Origin, ...]) -> Any:
        """The vectors that answers search: those of the run's items as they were, and
        behind them those of new ones."""
        if not isinstance(old, ItemIndex):
            return None
        if model.task.generates or (isinstance(model.items, ItemTable) and not model.cosine):
            return model.index_items()  # codes, or the table itself: nothing is computed

        def vectors(first: int) -> Tensor:
            numbers = torch.arange(self.catalog.size + first, model.num_items, device=model.items.popularity.device)
            new = model.items.embed(numbers)
            return unit(new) if model.cosine else new

        index = ItemIndex(model.items, normalise=model.cosine)
        with torch.no_grad():
            table = self._tables.behind(_INDEX, old.all(), origins, vectors)
            index.once("all", lambda: table)
        return index

    def _catalog(self, origins: Sequence[Origin]) -> Catalog:
        """The run's items and, behind them, these, with all that the model's items are made of."""
        old = self.catalog
        cells = {
            name: pl.Series(
                name, [dict(origin.read).get(name) for origin in origins], dtype=old.frame.schema[name], strict=True
            )
            for name in self.reads
        }
        ids = pl.Series("item_id", [origin.item for origin in origins], dtype=old.ids.dtype)
        grown = old.extended(pl.DataFrame({"item_id": ids, **cells}))
        if isinstance(self.items, Text):
            if any(origin.copied is None for origin in origins):  # it refuses new items that all have no text
                grown = self.items.add_new_columns(grown, old.size)
            copied = [*(field.tokens_column for field in self.items.fields), TOKENISER_SIZE]
        else:
            copied = [CODES, SIZES] if isinstance(self.items, Semantic) else []
            if isinstance(self.items, UniSRec):  # no sentence encoder is loaded while it serves
                copied = [name for name in (VECTORS, AUGMENTED) if name in grown.frame.columns]
        rows = np.arange(grown.size)
        source = np.array([-1 if origin.copied is None else origin.copied for origin in origins])
        rows[old.size :][source >= 0] = source[source >= 0]
        if not (source >= 0).any():
            return grown
        return grown.with_columns({name: grown.frame[name].gather(rows) for name in copied})


def _neighbours(titles: SimilarTitles, text: str) -> Near:
    """The items whose titles are most like a text."""
    ((items, similarities),) = titles.find([text], NEIGHBOURS)
    return tuple(items.tolist()), tuple((similarities / max(similarities.sum(), 1e-12)).tolist())


def _like(newcomer: Newcomer, outcomes: Mapping[Any, Origin | UserError], numbers: ItemNumbers) -> Near:
    """The run's items that an item is like, with their shares; one that was added
    stands for its own neighbours."""
    shares: dict[int, float] = {}
    for other in newcomer.like:
        number = numbers.get(other)
        origin = outcomes.get(other)
        near: Near
        if number >= 0:
            near = ((number,), (1.0,))
        elif isinstance(origin, Origin) and origin.neighbours:
            near = (origin.neighbours, origin.weights)
        else:
            reason = "is not known" if origin is None else "has no vector that others could start from"
            raise UserError(
                f"item {newcomer.id!r}: like names {brief(other, 80)}, which {reason}: name items of the catalogue",
                code="unknown-item",
                public=True,
            )
        for item, weight in zip(*near, strict=True):
            shares[item] = shares.get(item, 0.0) + weight / len(newcomer.like)
    return tuple(shares), tuple(shares.values())


def _widened(catalog: Catalog) -> Catalog:
    """A catalogue with whole ids of 64 bits: a new item's may be larger than those of the run."""
    if catalog.ids.dtype in (pl.String, pl.Int64, pl.UInt64):
        return catalog
    return Catalog(catalog.frame.with_columns(pl.col("item_id").cast(pl.Int64)), catalog.features)


class GrowingTables:
    """Tables of the V items of a run with room behind them.

    Items that come later are written behind the others, in the same memory, where no older table
    looks: a million items are copied when the first new one comes, and not for each. Not safe from
    several threads at once.
    """

    def __init__(self, base: int):
        self.base = base
        self._filled: dict[str, tuple[Tensor, tuple[Origin, ...]]] = {}

    def behind(
        self,
        name: str,
        table: Float[Tensor, "V *D"],
        origins: tuple[Origin, ...],
        make: Callable[[int], Float[Tensor, "n *D"]],
    ) -> Float[Tensor, "W *D"]:
        """A table, and behind it the rows that `make` gives for new items from a number on (0 is the first)."""
        whole, before = self._filled.get(name, (None, ()))
        if whole is None or origins[: len(before)] != before or len(whole) < self.base + len(origins):
            whole, before = table.new_empty(self.base + 2 * len(origins) + SPARE, *table.shape[1:]), ()
            whole[: self.base] = table
        low, high = self.base + len(before), self.base + len(origins)
        if low < high:
            whole[low:high] = make(len(before))
        self._filled[name] = whole, origins
        return whole[:high]


def _means(origins: Sequence[Origin], table: Float[Tensor, "V *D"]) -> Float[Tensor, "n *D"]:
    """Weighted means of the neighbours' rows of a learned table, of
    all rows where there are none."""
    rows = torch.tensor([row for row, origin in enumerate(origins) for _ in origin.neighbours], dtype=torch.long)
    items = torch.tensor([item for origin in origins for item in origin.neighbours], dtype=torch.long)
    weights = torch.tensor([weight for origin in origins for weight in origin.weights], dtype=torch.float64)
    parts = table.flatten(1)[items.to(table.device)] if table.ndim > 1 else table[items.to(table.device), None]
    means = torch.zeros(len(origins), parts.shape[1], dtype=torch.float64).index_add_(
        0, rows, parts.double().cpu() * weights[:, None]
    )
    alone = torch.tensor([not origin.neighbours for origin in origins])
    if bool(alone.any()):
        means[alone] = table.double().mean(0).cpu().flatten()
    return means.to(table).view(len(origins), *table.shape[1:])
