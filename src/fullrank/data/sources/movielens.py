"""MovieLens (GroupLens, University of Minnesota): star ratings of movies, and the same as click prediction.

F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015.
Research use; no redistribution without permission (README of each archive). Formats: 1m has `::`
between fields, Latin-1 text and a user table; 20m and 32m are CSV with a header. Checksums are
those that GroupLens publishes beside each archive (.md5).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import Field

from fullrank.core.errors import UserError, command_line
from fullrank.core.spec import Spec
from fullrank.data.impressions.schema import AnyField, BagOf, Categorical, Schema, TemporalSplit
from fullrank.data.sources import ImpressionTables, RemoteFile, Tables
from fullrank.data.sources._archive import extract
from fullrank.data.sources._parse import REVIEWS, ColumnTypes, delimited, reading, require, rows_with_events

BASE = "https://files.grouplens.org/datasets/movielens"
_MD5 = {
    "1m": "c4d9eecfca2ab87c1945afe126590906",
    "20m": "cd245b17a1ae2cc31bb14903e1204af3",
    "32m": "d472be332d4daa821edc399621853b57",
}
# Bytes; that of 1m was not verified, its checksum was.
_SIZE = {"20m": 198_702_078, "32m": 238_950_008}
YEAR = pl.col("title").str.extract(r"\((\d{4})\)\s*$")
"""A movie's title ends in it."""


class MovieLens(Spec):
    """MovieLens (GroupLens, University of Minnesota): star ratings of movies with titles and genres.

    1,000,209 ratings of 6,040 users (1m); 20,000,263 of 138,493 (20m); 32,000,204 of 200,948 (32m).
    """

    kind: Literal["movielens"] = "movielens"
    variant: Literal["1m", "20m", "32m"] = "1m"
    """Which release."""
    base_url: str = BASE
    """Folder of the archives on the server."""

    def files(self) -> tuple[RemoteFile, ...]:
        """One zip archive: 6 MB (1m), 199 MB (20m), 239 MB (32m)."""
        name = f"ml-{self.variant}.zip"
        return (RemoteFile.below(self.base_url, name, _SIZE.get(self.variant), _MD5[self.variant]),)

    def read(self, folder: Path) -> Tables:
        """Ratings in the file's order; items with `title`, `genres` (A|B) and `year`; users for 1m.

        The archive's tables are unpacked into `folder`.
        """
        name = f"ml-{self.variant}.zip"
        hint = f"run: {command_line('download', 'movielens', '--set', f'variant={self.variant}', '--out', folder)}"
        archive = require(folder, name, hint=hint)
        users, i64, string = None, pl.Int64, pl.String
        if self.variant == "1m":
            paths = extract(archive, ("ratings.dat", "movies.dat", "users.dat"), archive.parent)
            events = _double_colon(
                paths["ratings.dat"], {"user_id": i64, "item_id": i64, "rating": pl.Float32, "timestamp": i64}
            )
            items = _double_colon(paths["movies.dat"], {"item_id": i64, "title": string, "genres": string})
            users = _double_colon(
                paths["users.dat"], {"user_id": i64, "gender": string, "age": i64, "occupation": i64, "zip": string}
            )
            users = rows_with_events(users, events, "user_id")
        else:
            paths = extract(archive, ("ratings.csv", "movies.csv"), archive.parent)
            columns = {"userId": i64, "movieId": i64, "rating": pl.Float32, "timestamp": i64}
            events = delimited(paths["ratings.csv"], columns)
            events = events.rename({"userId": "user_id", "movieId": "item_id"})
            items = delimited(paths["movies.csv"], {"movieId": i64, "title": string, "genres": string})
            missing = pl.col("genres") == "(no genres listed)"
            items = items.with_columns(genres=pl.when(missing).then(None).otherwise("genres"))
            items = items.rename({"movieId": "item_id"})
        items = rows_with_events(items, events).with_columns(year=YEAR.cast(pl.Int32))
        note = f"MovieLens {self.variant}: for research; see the README in {name}"
        return Tables(events.select(*REVIEWS), items, users, notes=(note,))


def _double_colon(path: Path, columns: ColumnTypes) -> pl.DataFrame:
    """A table with :: between the fields, in Latin-1; no field of these files holds a tab."""
    content = path.read_bytes().decode("latin-1").replace("::", "\t").encode("utf-8")
    return delimited(path, columns, separator="\t", header=False, quoted=False, content=content)


PARQUET = ("ratings.parquet", "users.parquet", "movies.parquet")
ONE = ("user", "item", "gender", "age", "occupation", "zip", "year", "genre", "hour", "weekday")


class MovieLensCTR(Spec):
    """MovieLens-1M as click prediction: is a rating 4 or more? Eleven fields, temporal split 80 : 10 : 10.

    A million ratings of 6,040 users, of which 58 % are 4 or 5, joined with what is known of users
    and movies. The hour (UTC) and the weekday are those of the rating; the year stands in the
    title. The group is the user.
    """

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
            tables = []
            for name in PARQUET:
                with reading(folder / name):
                    tables.append(pl.read_parquet(folder / name, glob=False))
            ratings, users, movies = tables
            notes: tuple[str, ...] = ("MovieLens 1m: for research",)
        else:
            try:
                source = MovieLens(base_url=self.base_url).read(folder)
            except UserError as error:
                hint = str(error).replace("download movielens --set variant=1m", "download movielens_ctr")
                raise UserError(hint, code=error.code) from None
            assert source.items is not None and source.users is not None
            ratings, users, movies, notes = source.events, source.users, source.items, source.notes
        table = _joined(ratings, users, movies)
        fields: list[AnyField] = [Categorical(name=name) for name in ONE]
        fields.insert(8, BagOf(name="genres", separator="|", max_length=8))
        schema = Schema(
            label="rating",
            label_threshold=self.threshold,
            fields=tuple(fields),
            group="user",
            time="timestamp",
            split=TemporalSplit(),
        )
        return ImpressionTables(table, schema, notes)


def _joined(ratings: pl.DataFrame, users: pl.DataFrame, movies: pl.DataFrame) -> pl.DataFrame:
    movies = movies.select(
        pl.col("item_id").cast(pl.Int64),
        "genres",
        year=YEAR.cast(pl.Int64),
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
