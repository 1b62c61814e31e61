"""Reviews of games on Steam, with hours played (W.-C. Kang and J. McAuley, SASRec, ICDM 2018; version 2 of the set).

The files are lines of Python literals: 7.8 million reviews, about 1.3 GB, which take some minutes
to parse. A user is the reviewer's name, as in the SASRec paper. The publisher gives no checksums: a
download is checked against Content-Length. The same files are at
https://mcauleylab.ucsd.edu/public_datasets/data/steam (`base_url`).
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Literal

import polars as pl

from fullrank.core.errors import command_line
from fullrank.core.spec import Spec
from fullrank.data.sources import RemoteFile, Tables
from fullrank.data.sources._parse import (
    Record,
    Row,
    joined,
    number,
    records,
    require,
    rows_with_events,
    text,
)

BASE = "https://cseweb.ucsd.edu/~wckang"
_REVIEWS, _GAMES = "steam_reviews.json.gz", "steam_games.json.gz"
_EVENTS = {"user_id": pl.String, "item_id": pl.String, "timestamp": pl.Int64, "hours": pl.Float64}
_ITEMS = {
    **dict.fromkeys(("item_id", "title", "genres", "tags", "developer", "publisher"), pl.String),
    "price": pl.Float64,
    "released": pl.String,
}
_EPOCH = date(1970, 1, 1).toordinal()


class Steam(Spec):
    """7,793,069 reviews of 15,474 games by 2,567,538 users, 2010 to 2018; times are whole days."""

    kind: Literal["steam"] = "steam"
    base_url: str = BASE
    """Folder of the two files on the server."""

    def files(self) -> tuple[RemoteFile, ...]:
        """The reviews (about 1.3 GB) and the games (a few MB)."""
        return tuple(RemoteFile.below(self.base_url, name) for name in (_REVIEWS, _GAMES))

    def read(self, folder: Path) -> Tables:
        """Reviews in the file's order with `hours` played (missing for some); games that have a review."""
        hint = f"run: {command_line('download', 'steam', '--out', folder)}"
        reviews, games = (require(folder, name, hint=hint) for name in (_REVIEWS, _GAMES))
        events, notes = records(reviews, _EVENTS, _review)
        items, more = records(games, _ITEMS, _game)
        notes = (*notes, *more, "Steam reviews: for research")
        return Tables(events, rows_with_events(items, events), notes=notes)


def _review(record: Record) -> Row:
    day = date.fromisoformat(record["date"]).toordinal() - _EPOCH
    return str(record["username"]), str(record["product_id"]), day * 86_400, number(record.get("hours"))


def _game(record: Record) -> Row | None:
    if "id" not in record:
        return None
    return (
        str(record["id"]),
        text(record.get("title")) or text(record.get("app_name")),
        joined(record.get("genres")),
        joined(record.get("tags")),
        text(record.get("developer")),
        text(record.get("publisher")),
        number(record.get("price")),
        text(record.get("release_date")),
    )
