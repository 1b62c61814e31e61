"""Avazu click-through rates, `avazu_x4`: 40.4 million mobile ads with 24 categories.

The set of the Kaggle challenge (Avazu, 2014) as W. Song et al. (AutoInt, CIKM 2019) and BARS use it: `id` is dropped,
`hour` (YYMMDDHH) becomes hour, weekday (0 is Sunday) and weekend, values seen once are unknown, rows are split 8:1:1 at
random. BARS's own split is read with `split=given` from its train.csv, valid.csv and test.csv.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import polars as pl
from pydantic import Field

from fullrank.core.constraints import MOST_SEED, only_with
from fullrank.core.errors import command_line
from fullrank.core.spec import Spec
from fullrank.data.impressions.fields import Categorical, Schema
from fullrank.data.impressions.splits import GivenSplit, RandomSplit
from fullrank.data.sources import ImpressionTables, RemoteFile, _reczoo
from fullrank.data.sources._archive import unpacked
from fullrank.data.sources._parse import require, scanned

BASE = f"{_reczoo.HOST}/Avazu_x4/resolve/main"
PAGE = "https://www.kaggle.com/competitions/avazu-ctr-prediction/data"
ARCHIVE = "Avazu_x4.zip"
KEPT = (
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id",
    "device_ip", "device_model", "device_type", "device_conn_type", *(f"C{at}" for at in range(14, 22)),
)  # fmt: skip
TIMES = ("hour", "weekday", "weekend")


class Avazu(Spec):
    """40,428,967 impressions of ten days."""

    kind: Literal["avazu"] = "avazu"
    split: Literal["random", "given"] = "random"
    """random: Kaggle's train.csv, 8 : 1 : 1 by row; given: the three files of BARS."""
    seed: Annotated[int, only_with("split", "random")] = Field(0, ge=0, le=MOST_SEED)
    """Which of the random splits."""
    base_url: str = BASE
    """Folder of BARS's archive on the server (split=given)."""

    def files(self) -> tuple[RemoteFile, ...]:
        """Kaggle's train.csv, by hand, or BARS's archive."""
        if self.split == "given":
            return (_reczoo.remote_file(self.base_url, ARCHIVE, tuple(_reczoo.PARTS)),)
        if self.base_url != BASE:
            return (RemoteFile(f"{self.base_url.rstrip('/')}/train.csv", "train.csv", alternatives=("train.gz",)),)
        why = "Kaggle wants a login: accept the rules there, download train.gz and put it there"
        return (RemoteFile(PAGE, "train.csv", manual=why, alternatives=("train.gz",)),)

    def impressions(self, folder: Path) -> ImpressionTables:
        """The fields in the publisher's order, times behind them."""
        if self.split == "given":
            hint = f"run: {command_line('download', 'avazu', '--set', 'split=given', '--out', folder)}"
            paths = unpacked(folder, tuple(_reczoo.PARTS), ARCHIVE, hint=hint)
            parts = zip(paths.values(), _reczoo.PARTS.values(), strict=True)
            frame = pl.concat([_fields(path).with_columns(split=pl.lit(part)) for path, part in parts])
        else:
            hint = f"download it from {PAGE} and put it there"
            frame = _fields(require(folder, "train.csv", "train.gz", hint=hint))
        rule = GivenSplit() if self.split == "given" else RandomSplit(seed=self.seed)
        fields = tuple(Categorical(name=name, min_count=2) for name in (*KEPT, *TIMES))
        return ImpressionTables(frame, Schema(label="click", fields=fields, split=rule), ("Avazu x4: for research",))


def _fields(path: Path) -> pl.LazyFrame:
    frame = scanned(path, ("click", "hour", *KEPT))
    day = pl.col("hour").str.slice(0, 6).str.to_date("%y%m%d", strict=False).dt.weekday()  # 1 is Monday, 7 Sunday
    hour = pl.col("hour").str.slice(6, 2).cast(pl.Int64, strict=False)
    return frame.select("click", *KEPT, hour=hour, weekday=day.cast(pl.Int64) % 7, weekend=(day >= 6).cast(pl.Int64))
