"""Amazon product reviews by category, in the editions of 2014, 2018 and 2023 (J. McAuley's group, UC San Diego).

2014: R. He and J. McAuley, WWW 2016; J. McAuley et al., SIGIR 2015. 2018: J. Ni, J. Li, J. McAuley,
EMNLP 2019. 2023: Y. Hou et al., "Bridging Language and Items for Retrieval and Recommendation",
arXiv:2403.03952. Published for research; the pages ask for a citation and state no other licence.

Formats: reviews are JSON lines (2014, 2018) or CSV with a header and milliseconds (2023);
ratings-only files have no header, with user, item, rating, seconds in 2014 and item, user, rating,
seconds in 2018. Metadata are lines of Python literals in 2014 (read with `ast.literal_eval`), JSON
lines later. Times of 2014 and 2018 are whole days. The publisher gives no checksums: a download is
checked against the server's Content-Length.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import model_validator

from fullrank.core.errors import command_line, no_such
from fullrank.core.spec import Spec
from fullrank.data.sources import RemoteFile, Tables
from fullrank.data.sources._parse import (
    REVIEWS,
    Record,
    Row,
    delimited,
    joined,
    number,
    records,
    require,
    rows_with_events,
    text,
)

BASES = {
    2014: "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles",
    2018: "https://mcauleylab.ucsd.edu/public_datasets/data/amazon_v2",
    2023: "https://mcauleylab.ucsd.edu/public_datasets/data/amazon_2023",
}
"""The editions' folders. The same group's other addresses (datarepo.eng.ucsd.edu,
jmcauley.ucsd.edu) also served them; an edition that moved is reached with `base_url`."""
_ITEMS = {**dict.fromkeys(("item_id", "title", "brand", "category", "categories"), pl.String), "price": pl.Float64}

_BOTH_OLD = (
    "Automotive Books CDs_and_Vinyl Cell_Phones_and_Accessories Clothing_Shoes_and_Jewelry Digital_Music Electronics "
    "Grocery_and_Gourmet_Food Home_and_Kitchen Kindle_Store Movies_and_TV Musical_Instruments Office_Products "
    "Patio_Lawn_and_Garden Pet_Supplies Sports_and_Outdoors Tools_and_Home_Improvement Toys_and_Games Video_Games"
)
CATEGORIES: dict[int, tuple[str, ...]] = {
    2014: tuple(f"{_BOTH_OLD} Amazon_Instant_Video Apps_for_Android Baby Beauty Health_and_Personal_Care".split()),
    2018: tuple(
        f"{_BOTH_OLD} AMAZON_FASHION All_Beauty Appliances Arts_Crafts_and_Sewing Gift_Cards "
        "Industrial_and_Scientific Luxury_Beauty Magazine_Subscriptions Prime_Pantry Software".split()
    ),
    2023: tuple(
        f"{_BOTH_OLD} All_Beauty Amazon_Fashion Appliances Arts_Crafts_and_Sewing Baby_Products "
        "Beauty_and_Personal_Care Gift_Cards Handmade_Products Health_and_Household Health_and_Personal_Care "
        "Industrial_and_Scientific Magazine_Subscriptions Software Subscription_Boxes Unknown".split()
    ),
}
"""Edition to category names: 24 in 2014, 29 in 2018, 34 in 2023."""


class Amazon(Spec):
    """One category of one edition. The default, 2014 Beauty 5-core, has 198,502 reviews."""

    kind: Literal["amazon"] = "amazon"
    year: Literal[2014, 2018, 2023] = 2014
    """Edition."""
    category: str = "Beauty"
    """The category as its files are named, e.g. `Sports_and_Outdoors`; the names differ between editions."""
    subset: Literal["5core", "ratings"] = "5core"
    """`5core`: users and items with at least five reviews. `ratings`: all of them, without their text."""
    metadata: bool = True
    """Whether the items' titles, brands, categories and prices are downloaded and read too (a larger file)."""
    base_url: str | None = None
    """Folder of the edition on the server; None is the publisher's."""

    @model_validator(mode="after")
    def _known_category(self) -> Amazon:
        if self.category not in CATEGORIES[self.year]:
            known = sorted(CATEGORIES[self.year])
            raise no_such(f"Amazon {self.year} has no category", self.category, known, code="unknown-category")
        return self

    def files(self) -> tuple[RemoteFile, ...]:
        """The reviews and, with `metadata`, the items."""
        base = self.base_url or BASES[self.year]
        paths = [self._events_path()] + ([self._items_path()] if self.metadata else [])
        return tuple(RemoteFile.below(base, path) for path in paths)

    def read(self, folder: Path) -> Tables:
        """Reviews in the file's order, and the items that have a review.

        Items have `category` (the most specific) and `categories` (the path, A|B|C). Brand is the
        store in 2023. Prices are US dollars.
        """
        files = [require(folder, file.name, hint=self._hint(folder)) for file in self.files()]
        events, notes = self._read_events(files[0])
        items = None
        if self.metadata:
            items, more = records(files[1], _ITEMS, self._item)
            items, notes = rows_with_events(items, events), notes + more
        return Tables(events, items, notes=(*notes, f"Amazon {self.year} {self.category}: for research"))

    def _events_path(self) -> str:
        name, full = self.category, self.subset == "ratings"
        return {
            2014: f"ratings_{name}.csv" if full else f"reviews_{name}_5.json.gz",
            2018: f"categoryFilesSmall/{name}.csv" if full else f"categoryFilesSmall/{name}_5.json.gz",
            2023: f"benchmark/{'0core' if full else '5core'}/rating_only/{name}.csv.gz",
        }[self.year]

    def _items_path(self) -> str:
        return {
            2014: f"meta_{self.category}.json.gz",
            2018: f"metaFiles2/meta_{self.category}.json.gz",
            2023: f"raw/meta_categories/meta_{self.category}.jsonl.gz",
        }[self.year]

    def _hint(self, folder: Path) -> str:
        tree = self.dump()
        settings = [word for name in ("year", "category", "subset") for word in ("--set", f"{name}={tree[name]}")]
        without = " (or set metadata=false to do without the items)" if self.metadata else ""
        return f"run: {command_line('download', 'amazon', *settings, '--out', folder)}{without}"

    def _read_events(self, path: Path) -> tuple[pl.DataFrame, tuple[str, ...]]:
        if self.year == 2023:
            columns = {"user_id": pl.String, "parent_asin": pl.String, "rating": pl.Float32, "timestamp": pl.Int64}
            frame = delimited(path, columns)
            frame = frame.rename({"parent_asin": "item_id"}).with_columns(timestamp=pl.col("timestamp") // 1000)
            return frame.select(*REVIEWS), ()
        if self.subset == "ratings":
            order = ("user_id", "item_id") if self.year == 2014 else ("item_id", "user_id")
            columns = {name: REVIEWS[name] for name in (*order, "rating", "timestamp")}
            return delimited(path, columns, header=False).select(*REVIEWS), ()
        return records(path, REVIEWS, _review)

    def _item(self, record: Record) -> Row:
        path = _category_path(record.get("categories") if self.year != 2018 else record.get("category"))
        return (
            str(record["parent_asin" if self.year == 2023 else "asin"]),
            text(record.get("title")),
            text(record.get("store" if self.year == 2023 else "brand")),
            text(path[-1]) if path else None,
            joined(path),
            number(record.get("price")),
        )


def _review(record: Record) -> Row:
    return str(record["reviewerID"]), str(record["asin"]), int(record["unixReviewTime"]), float(record["overall"])


def _category_path(path: Any) -> list[str]:
    """The first path: 2014 has a list of paths, the later editions a single path."""
    if isinstance(path, list) and path and isinstance(path[0], list):
        path = path[0]
    return [label for label in path if isinstance(label, str) and text(label)] if isinstance(path, list) else []
