"""Ids in a shell: `2,3,5` as items of a catalogue, and `--users` as users of a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.core.errors import UserError
from fullrank.core.tables import SUFFIXES

if TYPE_CHECKING:
    import polars as pl

    from fullrank.data.events.catalog import Catalog
    from fullrank.data.events.store import Store


def words_of(text: str) -> list[str]:
    """`2,3,5` as words."""
    return [word.strip() for word in text.split(",") if word.strip()]


def known_ids(flag: str, text: str | None, catalog: Catalog) -> pl.Series | None:
    """External ids from `2,3,5`, each of which the model has to know: a misspelt one would be without effect."""
    if text is None:
        return None
    ids = catalog.parse(words_of(text))
    strange = unknown_ids([ids.to_list()], "", catalog)
    if strange:
        raise UserError(
            f"{flag} names items that the model does not know: {', '.join(map(str, strange[:5]))}", code="unknown-item"
        )
    return ids


def unknown_ids(asked: Any, item: str, catalog: Catalog) -> list[Any]:
    """The distinct items that the catalogue does not have, at most 100."""
    import polars as pl

    flat = asked[item] if isinstance(asked, pl.DataFrame) else pl.Series([i for some in asked for i in some])
    if not len(flat):
        return []
    return flat.filter(pl.Series(catalog.lookup(flat) < 0)).unique(maintain_order=True).head(100).to_list()


def user_ids(text: str, store: Store, column: str = "user_id") -> pl.Series:
    """Users from `ann,bo`, or from a column of a file, of the type that the store has. Each user of a file once."""
    import polars as pl

    from fullrank.data import values
    from fullrank.data.frames import InputTable

    if Path(text).suffix in SUFFIXES:
        source = InputTable(Path(text), "users")
        source.require(column, "name it with --user-col")
        source.require_one_kind(column)
        ids = values.without_fractions(source.read([column])[column]).drop_nulls().unique(maintain_order=True)
        if source.typed:
            return ids.alias("user")
        words = ids.cast(pl.String)
    else:
        words = pl.Series(words_of(text), dtype=pl.String)
    words = words.str.strip_chars().alias("user")
    if store.user_ids.dtype == pl.String:
        return words
    whole = values.parse_whole(words, store.user_ids.dtype)
    if whole.null_count():
        raise UserError(
            f"--users: {words.filter(whole.is_null())[0]!r} is not a user id; those of {str(store.path)!r} are whole "
            f"numbers (such as {store.user_ids[0]!r})",
            code="not-a-user-id",
        )
    return whole
