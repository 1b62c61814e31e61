"""RetailRocket: views, additions to the cart and transactions of an e-commerce site, May to September 2015.

Published on Kaggle under CC BY-NC-SA 4.0, behind a login: the archive is fetched by hand and laid
into the folder, as `archive.zip` or unpacked. Events are CSV with milliseconds; item properties are
hashed, except `categoryid`. No size or checksum is published.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from fullrank.core.spec import Spec
from fullrank.data.sources import RemoteFile, Tables
from fullrank.data.sources._archive import unpacked
from fullrank.data.sources._parse import delimited, rows_with_events

PAGE = "https://www.kaggle.com/datasets/retailrocket/ecommerce-dataset"
_EVENTS, _TREE = "events.csv", "category_tree.csv"
_PROPERTIES = ("item_properties_part1.csv", "item_properties_part2.csv")
_ZIP = "archive.zip"


class RetailRocket(Spec):
    """2,756,101 events of 1,407,580 visitors on 235,061 items; the types are view, addtocart and transaction."""

    kind: Literal["retailrocket"] = "retailrocket"
    properties: bool = True
    """Whether the items' categories are read too (20 million rows of properties)."""
    base_url: str | None = None
    """A mirror of your own that holds the CSV files; None asks for them by hand."""

    def files(self) -> tuple[RemoteFile, ...]:
        """The CSV files: manual unless `base_url` is set."""
        if self.base_url is not None:
            base = self.base_url
            return tuple(RemoteFile.below(base, name, alternatives=(_ZIP,)) for name in self._names())
        why = "Kaggle asks you to log in: download the archive from that page and put it there as archive.zip"
        return tuple(RemoteFile(PAGE, name, manual=why, alternatives=(_ZIP,)) for name in self._names())

    def read(self, folder: Path) -> Tables:
        """Events in the file's order with `type`; items with `category` and its parent `department`.

        These are numbers as text, from the last known property of each item: later
        than some of its events.
        """
        hint = f"log in at {PAGE}, download the archive and put it there"
        paths = unpacked(folder, self._names(), _ZIP, hint=hint)
        i64, string = pl.Int64, pl.String
        events = delimited(paths[_EVENTS], {"timestamp": i64, "visitorid": i64, "event": string, "itemid": i64}).select(
            pl.col("visitorid").alias("user_id"),
            pl.col("itemid").alias("item_id"),
            pl.col("timestamp") // 1000,
            pl.col("event").alias("type"),
        )
        items = rows_with_events(_items(paths), events) if self.properties else None
        return Tables(events, items, notes=("RetailRocket: CC BY-NC-SA 4.0",))

    def _names(self) -> tuple[str, ...]:
        return (_EVENTS, *_PROPERTIES, _TREE) if self.properties else (_EVENTS,)


def _items(paths: dict[str, Path]) -> pl.DataFrame:
    """`item_id`, `category`, `department`: the latest category of each item
    and that category's parent."""
    columns = {"timestamp": pl.Int64, "itemid": pl.Int64, "property": pl.String, "value": pl.String}
    # One part at a time: both together would hold 20 million rows of text.
    parts = [delimited(paths[n], columns).filter(pl.col("property") == "categoryid") for n in _PROPERTIES]
    latest = pl.concat(parts).sort("timestamp", maintain_order=True).unique("itemid", keep="last", maintain_order=True)
    tree = delimited(paths[_TREE], {"categoryid": pl.String, "parentid": pl.String})
    items = latest.select(pl.col("itemid").alias("item_id"), pl.col("value").alias("category"))
    return items.join(
        tree.unique("categoryid", keep="first"), left_on="category", right_on="categoryid", how="left"
    ).select("item_id", "category", pl.col("parentid").alias("department"))
