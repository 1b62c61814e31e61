"""Gowalla check-ins at places (SNAP; E. Cho, S. A. Myers, J. Leskovec, KDD 2011). No titles; places have coordinates.

One tab-separated file, newest check-in of a user first: user, time (ISO 8601, UTC),
latitude, longitude, place. The size is what several public loaders of the file check;
SNAP publishes no checksum.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from fullrank.core.errors import command_line
from fullrank.core.spec import Spec
from fullrank.data.sources import RemoteFile, Tables
from fullrank.data.sources._parse import delimited, reading, require, rows_with_events

BASE = "https://snap.stanford.edu/data"
_NAME = "loc-gowalla_totalCheckins.txt.gz"


class Gowalla(Spec):
    """6,442,892 check-ins of 107,092 users at 1,280,969 places, February 2009 to October 2010."""

    kind: Literal["gowalla"] = "gowalla"
    base_url: str = BASE
    """Folder of the file on the server."""

    def files(self) -> tuple[RemoteFile, ...]:
        """One file of 105 MB."""
        return (RemoteFile.below(self.base_url, _NAME, 105_470_044),)

    def read(self, folder: Path) -> Tables:
        """Check-ins, oldest first within a user; items with `latitude` and `longitude` in degrees.

        The file's order is reversed, so that ties keep their true order.
        """
        path = require(folder, _NAME, hint=f"run: {command_line('download', 'gowalla', '--out', folder)}")
        columns = {
            "user_id": pl.Int64,
            "time": pl.String,
            "latitude": pl.Float64,
            "longitude": pl.Float64,
            "item_id": pl.Int64,
        }
        frame = delimited(path, columns, separator="\t", header=False, quoted=False).reverse()
        time = pl.col("time").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="us").dt.epoch("s")
        with reading(path):
            frame = frame.with_columns(timestamp=time)
        events = frame.select("user_id", "item_id", "timestamp")
        items = rows_with_events(frame.select("item_id", "latitude", "longitude"), events)
        return Tables(events, items, notes=("Gowalla: published by SNAP, cite Cho et al. 2011",))
