"""Criteo display advertising, `criteo_x1`: 45.8 million ads with 13 numbers and 26 categories, given split 7 : 2 : 1.

The set of the Kaggle challenge (Criteo Labs, 2014) as W. Cheng et al. (AFN, AAAI 2020) split and scaled it and BARS
(J. Zhu et al., SIGIR 2022) distributes it: train.csv, valid.csv and test.csv with the header label, I1..I13, C1..C26.
Numbers are scaled already and enter linearly, missing ones as 0; every category keeps an id.
Checksums are those that BARS publishes for the CSV files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from fullrank.core.errors import command_line
from fullrank.core.spec import Spec
from fullrank.data.impressions.fields import AnyField, Categorical, Numeric, Schema
from fullrank.data.impressions.splits import GivenSplit
from fullrank.data.sources import ImpressionTables, RemoteFile, _reczoo
from fullrank.data.sources._archive import unpacked
from fullrank.data.sources._parse import scanned

BASE = f"{_reczoo.HOST}/Criteo_x1/resolve/main"
ARCHIVE = "Criteo_x1.zip"
NUMBERS = tuple(f"I{at}" for at in range(1, 14))
CATEGORIES = tuple(f"C{at}" for at in range(1, 27))


class Criteo(Spec):
    """45,840,617 impressions: 33,003,326 to train on, 8,250,124 and 4,587,167 to validate and test."""

    kind: Literal["criteo"] = "criteo"
    base_url: str = BASE
    """Folder of the archive on the server."""

    def files(self) -> tuple[RemoteFile, ...]:
        """One zip archive of three CSV files."""
        return (_reczoo.remote_file(self.base_url, ARCHIVE, tuple(_reczoo.PARTS)),)

    def impressions(self, folder: Path) -> ImpressionTables:
        """The three files behind each other, unpacked into `folder` where they lie there as an archive."""
        hint = f"run: {command_line('download', 'criteo', '--out', folder)}"
        paths = unpacked(folder, tuple(_reczoo.PARTS), ARCHIVE, hint=hint)
        columns = ("label", *NUMBERS, *CATEGORIES)
        frames = [
            scanned(path, columns).select(*columns, split=pl.lit(part))
            for path, part in zip(paths.values(), _reczoo.PARTS.values(), strict=True)
        ]
        fields: list[AnyField] = [Numeric(name=name, transform="linear") for name in NUMBERS]
        fields += [Categorical(name=name) for name in CATEGORIES]
        note = "Criteo x1: the split and the scaling of AFN, as BARS distributes them; for research"
        return ImpressionTables(pl.concat(frames), Schema(fields=tuple(fields), split=GivenSplit()), (note,))
