"""Frappe (Baltrunas et al. 2015, arXiv:1505.03014): which app was used in which context; 96,203 records of 957 users.

The publisher's frappe.csv holds what was used. As X. He and T.-S. Chua (NFM, SIGIR 2017) do, each
record becomes a positive impression and two negatives: the same user and context with apps that the
user never used, 7:2:1 at random. Negatives are drawn here, so numbers compare only with others on
the same draw; a folder with impressions.parquet (label, fields, split) is taken as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from pydantic import Field

from fullrank.core.constraints import SeedNumber
from fullrank.core.errors import UserError, no_effect
from fullrank.core.spec import Spec
from fullrank.data.impressions.schema import Categorical, GivenSplit, RandomSplit, Schema
from fullrank.data.sources import ImpressionTables, RemoteFile
from fullrank.data.sources._parse import delimited, require

PAGE = "https://www.baltrunas.info/context-aware/frappe"
FIELDS = ("user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")


class Frappe(Spec):
    """288,609 impressions, a third of them positive; ten fields of context."""

    kind: Literal["frappe"] = "frappe"
    negatives: int = Field(2, ge=1, le=1000)
    """Negatives drawn for each record of frappe.csv."""
    seed: SeedNumber = 0
    """Seed of the negatives and of the split."""
    base_url: str = ""
    """A mirror that serves frappe.csv."""

    def files(self) -> tuple[RemoteFile, ...]:
        """One archive, by hand."""
        if self.base_url:
            return (RemoteFile.below(self.base_url, "frappe.csv"),)
        why = "the publisher asks to cite the paper: download the archive, take frappe.csv out of it and put it there"
        return (RemoteFile(PAGE, "frappe.csv", manual=why, alternatives=("impressions.parquet",)),)

    def impressions(self, folder: Path) -> ImpressionTables:
        """Impressions with their split, or the publisher's records with negatives drawn."""
        fields = tuple(Categorical(name=name) for name in FIELDS)
        ready = folder / "impressions.parquet"
        if ready.is_file():
            if self != Frappe(base_url=self.base_url):
                raise no_effect("negatives or seed", f"since {ready} has its negatives and its split")
            note = "Frappe: negatives and split as found in impressions.parquet"
            return ImpressionTables(
                pl.scan_parquet(ready, glob=False), Schema(fields=fields, group="user", split=GivenSplit()), (note,)
            )
        path = require(folder, "frappe.csv", hint=f"download it from {PAGE} and put it there")
        records = delimited(
            path, {**dict.fromkeys(FIELDS, pl.String), "user": pl.Int64, "item": pl.Int64}, separator="\t"
        )
        table = _with_negatives(records, self.negatives, self.seed)
        rule = RandomSplit(shares=(0.7, 0.2, 0.1), seed=self.seed)
        note = f"Frappe: {self.negatives} negatives per record, drawn with seed {self.seed}"
        return ImpressionTables(table, Schema(fields=fields, group="user", split=rule), (note,))


def _with_negatives(records: pl.DataFrame, negatives: int, seed: int) -> pl.DataFrame:
    """Each record as a positive, followed by copies with items that the user never used."""
    user = records["user"].rank("dense").to_numpy().astype(np.int64) - 1
    items = records["item"].unique().sort()
    item = records["item"].rank("dense").to_numpy().astype(np.int64) - 1
    used = np.unique(user * len(items) + item)
    if (np.bincount(used // len(items)) == len(items)).any():
        raise UserError("a user of frappe.csv used every item: no negative can be drawn", code="no-negatives-left")
    drawn = np.repeat(user, negatives)
    other, undrawn = np.empty(len(drawn), np.int64), np.arange(len(drawn))
    random = np.random.default_rng([seed, 7])
    while len(undrawn):
        other[undrawn] = random.integers(0, len(items), len(undrawn))
        undrawn = undrawn[np.isin(drawn[undrawn] * len(items) + other[undrawn], used)]
    order = np.repeat(np.arange(len(records)), negatives + 1)
    first = np.arange(len(order)) % (negatives + 1) == 0
    shown = np.empty(len(order), np.int64)
    shown[first], shown[~first] = item, other
    return records[order].with_columns(label=pl.Series(first.astype(np.int64)), item=items.gather(shown))
