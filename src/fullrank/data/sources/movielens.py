"""MovieLens (GroupLens, University of Minnesota): star ratings of movies with titles and genres.

F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015. Research use;
no redistribution without permission (README of each archive).
Formats: 1m has `::` between fields, Latin-1 text and a user table; 20m and 32m are CSV with a header.
Checksums are those that GroupLens publishes beside each archive (.md5).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from fullrank.core.errors import command_line
from fullrank.core.spec import Spec
from fullrank.data.sources import RemoteFile, Tables
from fullrank.data.sources._archive import extract
from fullrank.data.sources._parse import REVIEWS, Schema, delimited, require, rows_with_events

BASE = "https://files.grouplens.org/datasets/movielens"
_MD5 = {
    "1m": "c4d9eecfca2ab87c1945afe126590906",
    "20m": "cd245b17a1ae2cc31bb14903e1204af3",
    "32m": "d472be332d4daa821edc399621853b57",
}
# Bytes; that of 1m was not verified, its checksum was.
_SIZE = {"20m": 198_702_078, "32m": 238_950_008}


class MovieLens(Spec):
    """1,000,209 ratings of 6,040 users (1m); 20,000,263 of 138,493 (20m); 32,000,204 of 200,948 (32m)."""

    kind: Literal["movielens"] = "movielens"
    variant: Literal["1m", "20m", "32m"] = "1m"
    """Which release."""
    base_url: str = BASE
    """Folder of the archives on the server."""

    def files(self) -> tuple[RemoteFile, ...]:
        """One zip archive: 6 MB (1m), 199 MB (20m), 239 MB (32m)."""
        name = f"ml-{self.variant}.zip"
        url = f"{self.base_url.rstrip('/')}/{name}"
        return (RemoteFile(url, name, _SIZE.get(self.variant), _MD5[self.variant]),)

    def read(self, folder: Path) -> Tables:
        """Ratings in the file's order; items with `title`, `genres` (A|B) and `year`; users for 1m.

        The archive's tables are unpacked into `folder`.
        """
        name = f"ml-{self.variant}.zip"
        hint = f"run: {command_line('download', 'movielens', '--set', f'variant={self.variant}', '--out', folder)}"
        archive = require(folder, name, hint=hint)
        events, items, users = self._old(archive) if self.variant == "1m" else self._new(archive)
        items = rows_with_events(items, events).with_columns(
            year=pl.col("title").str.extract(r"\((\d{4})\)\s*$").cast(pl.Int32)
        )
        note = f"MovieLens {self.variant}: for research; see the README in {name}"
        return Tables(events.select(*REVIEWS), items, users, notes=(note,))

    def _old(self, archive: Path) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        paths = extract(archive, ("ratings.dat", "movies.dat", "users.dat"), archive.parent)
        i64, string = pl.Int64, pl.String
        events = _double_colon(
            paths["ratings.dat"], {"user_id": i64, "item_id": i64, "rating": pl.Float32, "timestamp": i64}
        )
        movies = _double_colon(paths["movies.dat"], {"item_id": i64, "title": string, "genres": string})
        users = _double_colon(
            paths["users.dat"], {"user_id": i64, "gender": string, "age": i64, "occupation": i64, "zip": string}
        )
        return events, movies, rows_with_events(users, events, "user_id")

    def _new(self, archive: Path) -> tuple[pl.DataFrame, pl.DataFrame, None]:
        paths = extract(archive, ("ratings.csv", "movies.csv"), archive.parent)
        i64, string = pl.Int64, pl.String
        events = delimited(
            paths["ratings.csv"], {"userId": i64, "movieId": i64, "rating": pl.Float32, "timestamp": i64}
        )
        movies = delimited(paths["movies.csv"], {"movieId": i64, "title": string, "genres": string})
        missing = pl.col("genres") == "(no genres listed)"
        movies = movies.with_columns(genres=pl.when(missing).then(None).otherwise("genres"))
        events = events.rename({"userId": "user_id", "movieId": "item_id"})
        return events, movies.rename({"movieId": "item_id"}), None


def _double_colon(path: Path, columns: Schema) -> pl.DataFrame:
    """A table with :: between the fields, in Latin-1; no field of these files holds a tab."""
    data = path.read_bytes().decode("latin-1").replace("::", "\t").encode("utf-8")
    return delimited(path, columns, separator="\t", header=False, quoted=False, data=data)
