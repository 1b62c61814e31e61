"""Items made of their text: sums of token vectors, one table for each field, joined by a linear map.

SRT (Text-Based Recommender, SIGIR 2024, Sec. 3): an item has no vector of its own; title and
brand become tokens (`tokeniser.py`), each field's token vectors are summed, the sums stand one
behind the other, and a linear map with a bias gives the item's vector. Parameters do not grow
with the catalogue; an item that comes later has a vector from its text alone, and one without
text has the bias of the map.

A run keeps the tokens and the tokeniser in its own item table (`add_columns`): columns NAME_tokens,
`tokeniser` and `tokeniser_size`. In a model they lie packed and are no part of the weights.

Differs: both tables have a row for each token of the tokeniser (the code: for those that occur).
Unknown text is left out before the mean is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from fullrank.core.constraints import Length, once, only_with
from fullrank.core.errors import UserError, no_effect, no_such
from fullrank.core.log import logger
from fullrank.core.spec import Spec
from fullrank.data.events.catalog import Catalog, derived_column, is_text
from fullrank.models.sequential.items import ComputedItems, ItemsSpec, other_items
from fullrank.models.sequential.items.tokeniser import (
    MOST_TOKENS,
    TOKENISER,
    TOKENISER_SIZE,
    TextTokeniser,
    train_tokeniser,
    words,
)
from fullrank.ops.picked_rows import packed_bags
from fullrank.ops.starting_values import start_small

log = logger(__name__)


class TextField(Spec):
    """One field of an item's text."""

    column: str
    """Column of the item table: text, or lists of text, which are read one after the other."""
    tokens: Length = 40
    """Most tokens read; what comes later in the text is left out."""
    first: bool = False
    """Read the first element of each list alone (a list of attributes that begins with the brand)."""
    empty: str | None = None
    """Text of an item that has none, and of all where the items have no such column; null leaves it empty, and refuses
    items without the column."""

    @property
    def name(self) -> str:
        return f"{self.column}_first" if self.first else self.column

    @property
    def tokens_column(self) -> str:
        """Column of a run's item table with the tokens."""
        return f"{self.name}_tokens"


MADE = "items become tokens when a model is trained on a store (or: catalog = model.items.add_columns(catalog))"
"""What an error says of items without tokens."""


def _field(column: Any) -> Any:
    """The bare name of a column as the settings of a field."""
    return {"column": column} if isinstance(column, str) else column


ATextField = Annotated[TextField, BeforeValidator(_field)]
"""A field of text: a spec, a mapping, or the bare name of its column."""


class Packed(NamedTuple):
    """Tokens of V items: those of item i are ``flat[offsets[i]:offsets[i + 1]]``, none of them 0."""

    flat: Int[Tensor, "E"]
    offsets: Int[Tensor, "V1"]


def text_of(field: TextField, catalog: Catalog, *, may_be_empty: bool = False) -> pl.Series:
    """Words of each item.

    Raises `UserError` for a column that is missing or not of text, and, unless `may_be_empty`,
    for one without any word.
    """
    if field.column not in catalog.columns and field.empty is not None:
        if not may_be_empty:
            log.info(
                f"note: the items have no column {field.column!r}, so {field.empty!r} is read for all; "
                f"model.items.fields names what is read{_text_columns(catalog)}"
            )
        return pl.Series([_words_of_none(field)] * catalog.size, dtype=pl.String)
    text = words(_strings(field, catalog))
    if not may_be_empty and not (text.str.len_bytes() > 0).any():
        raise UserError(
            f"the column {field.column!r} has no words for any of {catalog.size:,} items; "
            f"name other columns with model.items.fields{_text_columns(catalog)}",
            code="no-text",
        )
    return text if field.empty is None else text.replace("", _words_of_none(field))


def _words_of_none(field: TextField) -> str:
    """The words of an item that has none of its own."""
    return str(words(pl.Series([field.empty or ""]))[0])


def packed(frame: pl.DataFrame, size: int, name: str) -> Packed:
    """Lists of tokens as a run keeps them. Raises `UserError` where there is no such column."""
    column = derived_column(frame, name, "tokens", pl.List, pl.Int32, MADE)
    counts = column.list.len().to_numpy().astype(np.int64)
    flat = column.filter(pl.Series(counts > 0)).explode()
    if flat.null_count() or not flat.is_between(1, size - 1).all():
        raise UserError(f"the column {name!r} is damaged: its tokens must be 1 to {size - 1:,}", code="tokens-damaged")
    offsets = np.concatenate([[0], counts.cumsum()])
    return Packed(torch.tensor(flat.to_numpy(), dtype=torch.int32), torch.from_numpy(offsets))


def _strings(field: TextField, catalog: Catalog) -> pl.Series:
    """A field's column as one string for each item."""
    if field.column not in catalog.columns:
        remedy = f": set model.items.fields=[NAME]{_text_columns(catalog)}"
        raise no_such(
            "the items have no column", field.column, catalog.columns, "columns", remedy, code="unknown-column"
        )
    column = catalog.frame[field.column]
    if column.dtype == pl.Null:
        return column.cast(pl.String)
    if isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    if not is_text(column):
        raise UserError(
            f"the column {field.column!r} is {column.dtype}, not text or lists of text{_text_columns(catalog)}",
            code="column-not-text",
        )
    if not isinstance(column.dtype, pl.List):
        if field.first:
            raise UserError(
                f"the column {field.column!r} holds no lists: leave out first=true", code="column-not-lists"
            )
        return column.cast(pl.String)
    column = column.cast(pl.List(pl.String))
    return column.list.first() if field.first else column.list.join(" ", ignore_nulls=True)


def _text_columns(catalog: Catalog) -> str:
    """The columns that hold text, as an error names them."""
    return f" (columns of text: {', '.join(catalog.text_columns) or 'none'})"


LINES = 1_000_000
"""Most texts of a field that a tokeniser is trained on; of more, evenly spaced ones."""


OWN = "own"
"""As `tokeniser`: one of these items, also where training starts from a run that has another."""


class Text(ItemsSpec):
    """Item vectors from text."""

    kind: Literal["text"] = "text"
    reads_new_items: ClassVar[bool] = True
    fields: Annotated[
        tuple[ATextField, ...], Field(min_length=1), once("column", lambda fields: [field.name for field in fields])
    ] = (
        TextField(column="title", tokens=40),
        TextField(column="brand", tokens=8, empty="unknown"),
    )
    """What is read of an item, columns or their specs; each field has a table of token vectors of its own."""
    pooling: Literal["sum", "mean"] = "sum"
    """How a field's token vectors become one; a sum grows with the length of the text."""
    vocabulary: Annotated[int, only_with("tokeniser", None, OWN)] = Field(30_000, ge=2, le=MOST_TOKENS)
    """Most tokens of the tokeniser that is trained on the items' text; a small catalogue has fewer."""
    tokeniser: str | None = None
    """A run's folder or a SentencePiece model file whose tokeniser is taken; null takes that of the run that training
    starts from, or trains one on the items' text; `own` trains one in either case."""

    def add_columns(self, catalog: Catalog) -> Catalog:
        """The catalogue with each item's tokens, and the tokeniser.

        Raises `UserError` where there is no text.
        """
        if self._has_tokens(catalog):
            return catalog
        texts = self._texts(catalog)
        path = None if self.tokeniser == OWN else self.tokeniser
        if path is None:
            lines = (line for text in texts.values() for line in text[:: -(-len(text) // LINES)])
            tokeniser = TextTokeniser(train_tokeniser(lines, self.vocabulary))
        else:
            tokeniser = TextTokeniser.open(path)
        tokens = {field: tokeniser.tokens(text, field.tokens) for field, text in texts.items()}
        if path is not None:
            _require_known(tokeniser, texts, tokens, f"the tokeniser {self.tokeniser!r} knows")
        return _with_tokens(catalog, tokeniser, tokens)

    def add_columns_of_run(self, catalog: Catalog, earlier: Catalog) -> Catalog:
        """The catalogue with tokens of the run's tokeniser, unless another one is named; no item needs to be known.

        A token that no item of the run has in a field is left out, since its vector was never
        trained (the authors' code of SRT puts 0 in its place when it goes on from pre-training); a
        tokeniser of one's own (`own`) keeps them all, and those that the run has too start from its
        vectors. Where the run's items are no such text the columns are those of a fresh model.
        """
        if self._has_tokens(catalog) or not self._has_tokens(earlier) or self.tokeniser == OWN:
            return self.add_columns(catalog)
        tokeniser = TextTokeniser.of(earlier)
        if self.tokeniser is not None and TextTokeniser.open(self.tokeniser).model != tokeniser.model:
            return self.add_columns(catalog)
        if self.tokeniser is None and tokeniser.size > self.vocabulary:
            why = f"where training starts from a run, whose tokeniser of {tokeniser.size:,} tokens is taken"
            remedy = "leave it as it is in that run, or name another model.items.tokeniser"
            raise no_effect(f"model.items.vocabulary={self.vocabulary}", why, remedy)
        texts = self._texts(catalog)
        tokens = {field: _known_tokens(tokeniser, field, text, earlier.frame) for field, text in texts.items()}
        _require_known(tokeniser, texts, tokens, "the run that training starts from has learned")
        return _with_tokens(catalog, tokeniser, tokens)

    def add_new_columns(self, catalog: Catalog, old: int) -> Catalog:
        """The grown catalogue with the tokens of new items; a token that no old item
        has in a field is left out."""
        tokeniser, frame = TextTokeniser.of(catalog), catalog.frame
        grown = {TOKENISER_SIZE: pl.repeat(tokeniser.size, len(frame), dtype=pl.Int32, eager=True)}
        new = Catalog(frame[old:].with_columns(item=pl.Series(np.arange(len(frame) - old)), map_version=pl.lit(0)))
        if all(frame[name][old:].is_null().all() for name in self._present(catalog)):
            names = ", ".join(dict.fromkeys(repr(field.column) for field in self.fields))
            raise UserError(
                f"the new items have no text: give them the columns that this run reads ({names})",
                code="no-text",
                public=True,
            )
        for field in self.fields:
            text = text_of(field, new, may_be_empty=True)
            tokens = _known_tokens(tokeniser, field, text, frame[:old])
            grown[field.tokens_column] = pl.concat([frame[field.tokens_column][:old], tokens])
        return catalog.with_columns(grown)

    def build(self, dim: int, catalog: Catalog) -> TextItems:
        size = derived_column(catalog.frame, TOKENISER_SIZE, "tokens", pl.Int32, None, MADE)[0]
        if not 0 < size <= MOST_TOKENS:
            raise UserError(
                f"the column {TOKENISER_SIZE!r} must hold a number of tokens up to {MOST_TOKENS:,}",
                code="tokens-damaged",
            )
        tokens = [packed(catalog.frame, size, field.tokens_column) for field in self.fields]
        return TextItems(dim, size, tokens, catalog.popularity, self)

    def _has_tokens(self, catalog: Catalog) -> bool:
        """Whether these are the items of a run with such items."""
        return set(self._columns) <= set(catalog.frame.columns) and catalog.frame[TOKENISER].dtype == pl.Binary

    @property
    def _columns(self) -> tuple[str, ...]:
        """Columns of the item table that a run with such items has."""
        return TOKENISER, TOKENISER_SIZE, *(field.tokens_column for field in self.fields)

    def _texts(self, catalog: Catalog) -> dict[TextField, pl.Series]:
        """Words of each field of each item.

        Raises `UserError` for names that are taken, and where there is no text.
        """
        catalog.require_free(*self._columns)
        if not self._present(catalog):  # else every item would be read as one that has no text
            _strings(self.fields[0], catalog)
        return {field: text_of(field, catalog) for field in self.fields}

    def _present(self, catalog: Catalog) -> list[str]:
        """The fields' columns that the items have."""
        return [field.column for field in self.fields if field.column in catalog.columns]


def _known_tokens(tokeniser: TextTokeniser, field: TextField, text: pl.Series, before: pl.DataFrame) -> pl.Series:
    """Tokens of a field's words, without those that no item of `before` has in it: their
    vectors were never trained."""
    seen = np.zeros(tokeniser.size, dtype=bool)
    seen[packed(before, tokeniser.size, field.tokens_column).flat.numpy()] = True
    tokens = tokeniser.tokens(text, field.tokens)
    return tokens.list.eval(pl.element().filter(pl.element().is_in(np.flatnonzero(seen).tolist())))


def _require_known(
    tokeniser: TextTokeniser, texts: Mapping[TextField, pl.Series], tokens: Mapping[TextField, pl.Series], subject: str
) -> None:
    """Raise `UserError` where nothing of any item's own words is known."""
    if any(
        tokeniser.know_words(tokens[field]).filter(~text.is_in(["", _words_of_none(field)])).any()
        for field, text in texts.items()
    ):
        return
    raise UserError(
        f"{subject} no token of any of {len(next(iter(texts.values()))):,} items (columns "
        f"{', '.join(field.column for field in texts)}), so all would be alike: train a tokeniser on these items "
        "(model.items.tokeniser left out, and no earlier run), or take one that was trained on such text",
        code="tokeniser-knows-nothing",
    )


def _with_tokens(catalog: Catalog, tokeniser: TextTokeniser, tokens: Mapping[TextField, pl.Series]) -> Catalog:
    """The catalogue with the columns that a run keeps: tokens, the tokeniser and its size."""
    rest = pl.repeat(None, catalog.size - 1, dtype=pl.Binary, eager=True)
    columns = {field.tokens_column: series for field, series in tokens.items()}
    columns[TOKENISER] = pl.concat([pl.Series([tokeniser.model], dtype=pl.Binary), rest])
    columns[TOKENISER_SIZE] = pl.repeat(tokeniser.size, catalog.size, dtype=pl.Int32, eager=True)
    return catalog.with_columns(columns)


class TextItems(ComputedItems):
    """Sums of token vectors by field, joined by a linear map."""

    at_once = 1 << 16

    def __init__(
        self,
        dim: int,
        tokens: int,
        fields: list[Packed],
        popularity: Int[np.ndarray, "V"] | Float[Tensor, "V"],
        spec: Text,
    ):
        super().__init__()
        self.dim, self.mean = dim, spec.pooling == "mean"
        self.count_items(popularity)
        for i, field in enumerate(fields):
            self.register_buffer(f"flat_{i}", field.flat, persistent=False)
            self.register_buffer(f"offsets_{i}", field.offsets, persistent=False)
        self.tables = nn.ModuleList(nn.Embedding(tokens, dim) for _ in fields)
        self.adapter = nn.Linear(len(fields) * dim, dim)
        start_small(self)
        start_small(self.tables)

    def flops(self, count: int) -> int:
        return 2 * count * self.adapter.weight.numel()

    def embed(self, ids: Int[Tensor, "*n"]) -> Float[Tensor, "*n D"]:
        rows, parts = ids.reshape(-1), []
        for i, table in enumerate(self.tables):
            flat, offsets = getattr(self, f"flat_{i}"), getattr(self, f"offsets_{i}")
            assert isinstance(table, nn.Embedding)
            parts.append(packed_bags(table.weight, flat, offsets, rows, mean=self.mean))
        return self.adapter(torch.cat(parts, 1)).view(*ids.shape, self.dim)

    def transferred(self, tensors: Mapping[str, Tensor], old: Catalog, new: Catalog) -> dict[str, Tensor]:
        """Move an earlier run's vectors of tokens by the tokens' text: the new tokeniser may number them otherwise.

        Tokens that the run did not have start as in a fresh model.
        """
        moved, fresh = {}, self.state_dict()
        before, after = (TextTokeniser.of(catalog).pieces for catalog in (old, new))
        numbers = {piece: number for number, piece in enumerate(before)}
        both = [(row, numbers[piece]) for row, piece in enumerate(after) if piece in numbers]
        rows, sources = torch.tensor(both, dtype=torch.long).reshape(-1, 2).T
        for name, _ in self.named_parameters():
            table, learned = fresh[name].clone(), tensors.get(name)
            of_tokens = name.startswith("tables.")
            shape = (len(before), *table.shape[1:]) if of_tokens else table.shape
            if learned is None or learned.shape != shape:
                raise other_items(name)
            if of_tokens:
                table[rows] = learned[sources]
            moved[name] = table if of_tokens else learned
        return moved
