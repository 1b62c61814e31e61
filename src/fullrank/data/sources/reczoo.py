"""Sets that reczoo distributes for BARS (J. Zhu et al., SIGIR 2022): one zip archive of CSV files, one for each part.

    criteo, avazu                                fields of an ad, in three files: train, valid and test
    amazonelectronics, kuaivideo, taobaoad       fields and behaviour sequences, in train and test

The sets with behaviour sequences have no validation rows: BARS stops training and
selects settings on the test rows. Here a tenth of the training rows is held out, or the
test rows validate too, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import polars as pl

from fullrank.core.constraints import SeedNumber, only_with
from fullrank.core.errors import UserError, command_line
from fullrank.core.random import uniform_of_rows
from fullrank.core.spec import Spec
from fullrank.data.impressions.schema import (
    AnyField,
    Categorical,
    GivenSplit,
    Numeric,
    RandomSplit,
    Schema,
    SequenceOf,
)
from fullrank.data.sources import ImpressionTables, RemoteFile
from fullrank.data.sources._archive import unpacked
from fullrank.data.sources._parse import reading, require, scanned

HOST = "https://huggingface.co/datasets/reczoo"
TRAIN, TEST = "train.csv", "test.csv"
PARTS = {TRAIN: "train", "valid.csv": "validation", TEST: "test"}
"""File -> its part of the split, of the sets that have three files."""


class Criteo(Spec):
    """Criteo display advertising, `criteo_x1`: 45.8 million ads, 13 numbers and 26 categories, given split 7 : 2 : 1.

    45,840,617 impressions: 33,003,326 to train on, 8,250,124 and 4,587,167 to validate and test.
    The set of the Kaggle challenge (Criteo Labs, 2014) as W. Cheng et al. (AFN, AAAI 2020) split
    and scaled it: train.csv, valid.csv and test.csv with the header label, I1..I13, C1..C26.
    Numbers are scaled already and enter linearly, missing ones as 0; every category keeps an id.
    Checksums are those that BARS publishes for the CSV files.
    """

    kind: Literal["criteo"] = "criteo"
    base_url: str = f"{HOST}/Criteo_x1/resolve/main"
    """Folder of the archive on the server."""
    archive: ClassVar[str] = "Criteo_x1.zip"
    numbers: ClassVar[tuple[str, ...]] = tuple(f"I{at}" for at in range(1, 14))
    categories: ClassVar[tuple[str, ...]] = tuple(f"C{at}" for at in range(1, 27))

    def files(self) -> tuple[RemoteFile, ...]:
        """One zip archive of three CSV files."""
        return (RemoteFile.below(self.base_url, self.archive, alternatives=tuple(PARTS)),)

    def impressions(self, folder: Path) -> ImpressionTables:
        """The three files behind each other, unpacked into `folder` where they lie there as an archive."""
        columns = ("label", *self.numbers, *self.categories)
        hint = f"run: {command_line('download', 'criteo', '--out', folder)}"
        table = _three_files(folder, self.archive, hint, lambda path: scanned(path, columns).select(*columns))
        fields: list[AnyField] = [Numeric(name=name, transform="linear") for name in self.numbers]
        fields += [Categorical(name=name) for name in self.categories]
        note = "Criteo x1: the split and the scaling of AFN, as BARS distributes them; for research"
        return ImpressionTables(table, Schema(fields=tuple(fields), split=GivenSplit()), (note,))


class Avazu(Spec):
    """Avazu click-through rates, `avazu_x4`: 40.4 million mobile ads with 24 categories.

    40,428,967 impressions of ten days. The set of the Kaggle challenge (Avazu, 2014) as W. Song et
    al. (AutoInt, CIKM 2019) and BARS use it: `id` is dropped, `hour` (YYMMDDHH) becomes hour,
    weekday (0 is Sunday) and weekend, values seen once are unknown, rows are split 8:1:1 at random.
    BARS's own split is read with `split=given` from its train.csv, valid.csv and test.csv.
    """

    kind: Literal["avazu"] = "avazu"
    split: Literal["random", "given"] = "random"
    """random: Kaggle's train.csv, 8 : 1 : 1 by row; given: the three files of BARS."""
    seed: Annotated[SeedNumber, only_with("split", "random")] = 0
    """Which of the random splits."""
    base_url: str = f"{HOST}/Avazu_x4/resolve/main"
    """Folder of BARS's archive on the server (split=given)."""
    page: ClassVar[str] = "https://www.kaggle.com/competitions/avazu-ctr-prediction/data"
    archive: ClassVar[str] = "Avazu_x4.zip"
    categories: ClassVar[tuple[str, ...]] = (
        "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category",
        "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
        *(f"C{at}" for at in range(14, 22)),
    )  # fmt: skip
    times: ClassVar[tuple[str, ...]] = ("hour", "weekday", "weekend")

    def files(self) -> tuple[RemoteFile, ...]:
        """Kaggle's train.csv, by hand, or BARS's archive."""
        if self.split == "given":
            return (RemoteFile.below(self.base_url, self.archive, alternatives=tuple(PARTS)),)
        if self.base_url != type(self).model_fields["base_url"].default:
            return (RemoteFile.below(self.base_url, "train.csv", alternatives=("train.gz",)),)
        why = "Kaggle wants a login: accept the rules there, download train.gz and put it there"
        return (RemoteFile(self.page, "train.csv", manual=why, alternatives=("train.gz",)),)

    def impressions(self, folder: Path) -> ImpressionTables:
        """The fields in the publisher's order, times behind them."""
        if self.split == "given":
            hint = f"run: {command_line('download', 'avazu', '--set', 'split=given', '--out', folder)}"
            frame = _three_files(folder, self.archive, hint, self._columns)
        else:
            hint = f"download it from {self.page} and put it there"
            frame = self._columns(require(folder, "train.csv", "train.gz", hint=hint))
        rule = GivenSplit() if self.split == "given" else RandomSplit(seed=self.seed)
        fields = tuple(Categorical(name=name, min_count=2) for name in (*self.categories, *self.times))
        return ImpressionTables(frame, Schema(label="click", fields=fields, split=rule), ("Avazu x4: for research",))

    def _columns(self, path: Path) -> pl.LazyFrame:
        day = pl.col("hour").str.slice(0, 6).str.to_date("%y%m%d", strict=False).dt.weekday()  # 1 is Monday, 7 Sunday
        hour = pl.col("hour").str.slice(6, 2).cast(pl.Int64, strict=False)
        return scanned(path, ("click", "hour", *self.categories)).select(
            "click", *self.categories, hour=hour, weekday=day.cast(pl.Int64) % 7, weekend=(day >= 6).cast(pl.Int64)
        )


def _three_files(folder: Path, archive: str, hint: str, read: Callable[[Path], pl.LazyFrame]) -> pl.LazyFrame:
    """The tables that `read` makes of the files of `PARTS`, behind each other, with
    their part as column `split`."""
    paths = unpacked(folder, tuple(PARTS), archive, hint=hint)
    parts = zip(paths.values(), PARTS.values(), strict=True)
    return pl.concat([read(path).with_columns(split=pl.lit(part)) for path, part in parts])


HELD_OUT = 0.1
"""Share of train.csv that validates where the test rows do not."""
SEPARATOR = "^"
"""Between the values of a sequence."""
LOOK = 1_000
"""Rows whose sequences are checked for their separator."""
Validation = Literal["train", "test"]


def _history(name: str, shares: str, max_length: int = 100) -> SequenceOf:
    """A behaviour sequence of values of another field; all of its values have ids."""
    return SequenceOf(name=name, shares=shares, extends=True, separator=SEPARATOR, max_length=max_length)


class SequenceSet(Spec):
    """A set of train.csv and test.csv with behaviour sequences, and without validation rows."""

    kind: str
    validation: Validation = "train"
    """train: a tenth of train.csv, drawn by row; test: the test rows, on which BARS selects too."""
    base_url: str
    """Folder of the archive on the server."""
    archive: ClassVar[str]
    columns: ClassVar[Schema]
    note: ClassVar[str]

    def files(self) -> tuple[RemoteFile, ...]:
        """One zip archive of the two CSV files."""
        return (RemoteFile.below(self.base_url, self.archive, alternatives=(TRAIN, TEST)),)

    def impressions(self, folder: Path) -> ImpressionTables:
        """Both files behind each other, unpacked into `folder` where they lie there as an archive.

        The column `split` holds the part of each row.
        """
        hint = f"run: {command_line('download', self.kind, '--out', folder)}"
        paths = unpacked(folder, (TRAIN, TEST), self.archive, hint=hint).values()
        columns = [name for name in self.columns.columns if name != "split"]
        train, test = (scanned(path, columns).select(*columns) for path in paths)
        for path, frame in zip(paths, (train, test), strict=True):
            _require_separator(path, frame, [field.name for field in self.columns.several()])
        if self.validation == "train":
            # by a hash of the row number: a rule such as every tenth row would meet the order
            # positive, negative, ...
            held_out = pl.col("row").map_batches(_held_out, return_dtype=pl.Boolean, is_elementwise=True)
            split = pl.when(held_out).then(pl.lit("validation")).otherwise(pl.lit("train"))
            parts = [train.with_row_index("row").with_columns(split=split).drop("row")]
        else:
            parts = [train.with_columns(split=pl.lit("train")), test.with_columns(split=pl.lit("validation"))]
        table = pl.concat([*parts, test.with_columns(split=pl.lit("test"))])
        return ImpressionTables(table, self.columns, (self.note,))


class AmazonElectronics(SequenceSet):
    """Amazon Electronics as DIN uses it, `amazonelectronics_x1`: which product does a user review next?

    2,993,570 impressions, half of them positive: 2,608,764 to train on, 384,806 to test. The set of
    G. Zhou et al. (DIN, KDD 2018, arXiv:1706.06978): for each review a drawn negative, the products
    reviewed before and their categories. The last review of a user is tested. Columns: label,
    user_id, item_id, cate_id, item_history, cate_history. As in BARS, every value keeps an id,
    those of histories too, the last 100 events of a history are read, and the user is the group of
    gAUC and no field.

    Differs: rows to validate are held out of train.csv; `validation=test` is BARS's own choice.
    """

    kind: Literal["amazonelectronics"] = "amazonelectronics"
    base_url: str = f"{HOST}/AmazonElectronics_x1/resolve/main"
    """Folder of the archive on the server."""
    archive: ClassVar[str] = "AmazonElectronics_x1.zip"
    columns: ClassVar[Schema] = Schema(
        fields=(
            Categorical(name="item_id"),
            Categorical(name="cate_id"),
            _history("item_history", "item_id"),
            _history("cate_history", "cate_id"),
        ),
        group="user_id",
        split=GivenSplit(),
    )
    note: ClassVar[str] = "Amazon Electronics x1: as BARS distributes it; for research"


class KuaiVideo(SequenceSet):
    """KuaiVideo, `kuaivideo_x1`: 13.7 million thumbnails of short videos that 10,000 users clicked or passed over.

    13,661,383 impressions: 10,931,092 to train on, 2,730,291 to test. Kuaishou's set of the
    China MM 2018 challenge in the split of ALPINE (Y. Li et al., MM 2019): with each impression
    the videos that the user clicked before and those passed over, each list cut by the publisher
    to its first 100. As in BARS, values below 10 occurrences are unknown, those of histories
    have ids too, and the user is a field and the group of gAUC. The columns timestamp, is_like
    and is_follow are not read.

    Differs: the images' 64 numbers per video (`item_visual_emb_dim64.h5`), which BARS feeds
    through a linear map beside each id, are left out, because a store of impressions holds
    no vectors (effect unknown). Rows to validate are held out of train.csv;
    `validation=test` is BARS's own choice.
    """

    kind: Literal["kuaivideo"] = "kuaivideo"
    base_url: str = f"{HOST}/KuaiVideo_x1/resolve/main"
    """Folder of the archive on the server."""
    archive: ClassVar[str] = "KuaiVideo_x1.zip"
    columns: ClassVar[Schema] = Schema(
        label="is_click",
        fields=(
            Categorical(name="user_id", min_count=10),
            Categorical(name="item_id", min_count=10),
            _history("pos_items", "item_id"),
            _history("neg_items", "item_id"),
        ),
        group="user_id",
        split=GivenSplit(),
    )
    note: ClassVar[str] = "KuaiVideo x1: as BARS distributes it; for research"


class TaobaoAd(SequenceSet):
    """Taobao display advertising, `taobaoad_x1`: 25 million ads of eight days, with what users did in the shop before.

    25,029,426 impressions: 21,929,911 to train on, 3,099,515 to test. Alibaba's log (Tianchi 56) as
    DMR (Z. Lyu et al., AAAI 2020) and BARS prepare it: seven days to train on, the eighth is
    tested; of a user's last 50 behaviours category, brand and kind (`btag`: a page, a cart, a
    favourite or a purchase). An ad has the `btag` 1 throughout, so that DIN has a target for that
    history. As in BARS, values below 10 occurrences are unknown, those of histories have ids too,
    the price enters as it is, and the user is a field and the group of gAUC.

    The publisher left what is missing out of each history by itself: the three of a row
    may differ in length. Differs: rows to validate are held out of train.csv;
    `validation=test` is BARS's own choice.
    """

    kind: Literal["taobaoad"] = "taobaoad"
    base_url: str = f"{HOST}/TaobaoAd_x1/resolve/main"
    """Folder of the archive on the server."""
    archive: ClassVar[str] = "TaobaoAd_x1.zip"
    categories: ClassVar[tuple[str, ...]] = (
        "userid", "cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level", "shopping_level",
        "occupation", "new_user_class_level", "adgroup_id", "cate_id", "campaign_id", "customer", "brand", "pid",
        "btag",
    )  # fmt: skip
    columns: ClassVar[Schema] = Schema(
        label="clk",
        fields=(
            *(Categorical(name=name, min_count=10) for name in categories),
            Numeric(name="price", transform="linear"),
            _history("cate_his", "cate_id", 50),
            _history("brand_his", "brand", 50),
            _history("btag_his", "btag", 50),
        ),
        group="userid",
        split=GivenSplit(),
    )
    note: ClassVar[str] = "Taobao ads x1: as BARS distributes them; for research"


def _held_out(rows: pl.Series) -> pl.Series:
    return pl.Series(uniform_of_rows(0, rows.to_numpy().astype(np.int64)) < HELD_OUT)


def _require_separator(path: Path, frame: pl.LazyFrame, names: Sequence[str]) -> None:
    """Refuse other separators: a whole history would be read as one value that nothing knows."""
    with reading(path):
        head = frame.select(names).head(LOOK).collect()
    for name in names:
        other = head[name].drop_nulls().str.extract(r"([\s,;|\[\]])", 1).drop_nulls()
        if len(other):
            raise UserError(
                f"{path} is not in the publisher's format: the values of {name!r} have {other[0]!r} between them "
                f"and not {SEPARATOR!r}; convert the column, or download the file again",
                code="wrong-separator",
            )
