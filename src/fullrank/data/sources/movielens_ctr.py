"""MovieLens-1M as click prediction: is a rating 4 or more? Eleven fields, temporal split 80 : 10 : 10.

The ratings of `movielens` (variant 1m) joined with what is known of users and movies. The hour (UTC) and the weekday
are those of the rating; the year stands in the title. The group is the user.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import Field

from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.impressions.fields import AnyField, BagOf, Categorical, Schema
from fullrank.data.impressions.splits import TemporalSplit
from fullrank.data.sources import ImpressionTables, RemoteFile
from fullrank.data.sources._parse import reading
from fullrank.data.sources.movielens import BASE, MovieLens

PARQUET = ("ratings.parquet", "users.parquet", "movies.parquet")
ONE = ("user", "item", "gender", "age", "occupation", "zip", "year", "genre", "hour", "weekday")


class MovieLensCTR(Spec):
    """A million ratings of 6,040 users; 58 % are 4 or 5."""

    kind: Literal["movielens_ctr"] = "movielens_ctr"
    threshold: float = Field(4.0, ge=0, le=5)
    """Ratings of at least this are positive."""
    base_url: str = BASE
    """Folder of the archive on the server."""

    def files(self) -> tuple[RemoteFile, ...]:
        """ml-1m.zip, 6 MB."""
        return MovieLens(base_url=self.base_url).files()

    def impressions(self, folder: Path) -> ImpressionTables:
        """From ml-1m.zip, the unpacked .dat files beside it, or ratings, users and movies as Parquet."""
        if all((folder / name).is_file() for name in PARQUET):
            ratings, users, movies = (_parquet(folder / name) for name in PARQUET)
            notes: tuple[str, ...] = ("MovieLens 1m: for research",)
        else:
            try:
                tables = MovieLens(base_url=self.base_url).read(folder)
            except UserError as error:
                hint = str(error).replace("download movielens --set variant=1m", "download movielens_ctr")
                raise UserError(hint, code=error.code) from None
            assert tables.items is not None and tables.users is not None
            ratings, users, movies, notes = tables.events, tables.users, tables.items, tables.notes
        table = _joined(ratings, users, movies)
        fields: list[AnyField] = [Categorical(name=name) for name in ONE]
        fields.insert(8, BagOf(name="genres", separator="|", max_length=8))
        schema = Schema(
            label="rating", label_threshold=self.threshold, fields=tuple(fields), group="user", time="timestamp",
            split=TemporalSplit(),
        )  # fmt: skip
        return ImpressionTables(table, schema, notes)


def _joined(ratings: pl.DataFrame, users: pl.DataFrame, movies: pl.DataFrame) -> pl.DataFrame:
    movies = movies.select(
        pl.col("item_id").cast(pl.Int64),
        "genres",
        year=pl.col("title").str.extract(r"\((\d{4})\)\s*$").cast(pl.Int64),
        genre=pl.col("genres").str.split("|").list.first(),
    )
    users = users.select(pl.col("user_id").cast(pl.Int64), "gender", "age", "occupation", "zip")
    moment = pl.from_epoch("timestamp", time_unit="s")
    return (
        ratings.with_columns(pl.col("user_id", "item_id").cast(pl.Int64))
        .join(users, on="user_id", how="left", maintain_order="left")
        .join(movies, on="item_id", how="left", maintain_order="left")
        .with_columns(hour=moment.dt.hour().cast(pl.Int64), weekday=moment.dt.weekday().cast(pl.Int64))
        .rename({"user_id": "user", "item_id": "item"})
        .select("rating", "timestamp", *ONE, "genres")
    )


def _parquet(path: Path) -> pl.DataFrame:
    with reading(path):
        return pl.read_parquet(path, glob=False)
