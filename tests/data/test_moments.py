"""The temporal split of impressions at two moments: the same moments by which events are split."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.data.impressions.schema import Schema
from refusals import refused

BEGIN = 1_600_000_000
FRAME = pl.DataFrame({
    "label": [0, 1] * 30,
    "user": [row % 7 for row in range(60)],
    "item": [row % 11 for row in range(60)],
    "when": [BEGIN + (row * 37) % 60 // 2 for row in range(60)],  # every second twice, in a jumbled order
})  # fmt: skip
SPLIT = {"kind": "temporal", "validation_from": BEGIN + 20, "test_from": BEGIN + 25}


def prepared(folder: Path, frame: Any = FRAME, split: Any = SPLIT, **schema: Any) -> fr.ImpressionStore:
    return fr.prepare_impressions(
        frame, folder, schema={"fields": ["user", "item"], "time": "when", "split": split} | schema
    )


def test_parts_begin_at_their_moments(tmp_path: Path) -> None:
    store = prepared(tmp_path / "store")
    for part, low, high in (("train", 0, 20), ("validation", 20, 25), ("test", 25, 30)):
        rows = store.external(store.split(part))
        expected = np.flatnonzero(FRAME["when"].is_between(BEGIN + low, BEGIN + high, closed="left").to_numpy())
        assert rows["input_row"].to_list() == expected.tolist()


@pytest.mark.parametrize(
    ("when", "unit"),
    [
        (pl.from_epoch("when", time_unit="s"), "s"),
        (pl.col("when") * 1000 + 999, "ms"),
        (pl.col("when") + 0.5, "s"),
        (pl.from_epoch("when", time_unit="s").dt.to_string("iso"), "s"),
    ],
)
def test_every_form_of_time_gives_the_same_rows(tmp_path: Path, when: pl.Expr, unit: str) -> None:
    one = prepared(tmp_path / "one")
    two = prepared(tmp_path / "two", FRAME.with_columns(when=when), time_unit=unit)
    assert one.external(slice(None))["input_row"].equals(two.external(slice(None))["input_row"])


def test_the_moments_are_those_of_a_store_of_events(tmp_path: Path) -> None:
    """Both stores prepared from one table: no row that the ranker trains on is a target of the retriever."""
    events = FRAME.rename({"user": "user_id", "item": "item_id", "when": "timestamp"})
    moments = {key: SPLIT[key] for key in ("validation_from", "test_from")}
    spec = fr.Prepare.parse({"split": {"kind": "global_time", **moments}})
    store, shown = fr.prepare(events, tmp_path / "events", spec=spec), prepared(tmp_path / "store")
    counts = store.manifest["split"]
    for part in ("train", "validation", "test"):
        assert counts[part]["events"] == len(shown.split(part)) > 0


def test_iso_dates_count_as_their_seconds() -> None:
    text = {"kind": "temporal", "validation_from": "2020-09-13T12:27:00Z", "test_from": "2020-09-14"}
    found = Schema.parse({"fields": ["a"], "time": "t", "split": text}).split
    assert found.moments == (1_600_000_020, 1_600_041_600)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("split", "says"),
    [
        ({"validation_from": 5}, ("missing-setting", "validation_from", "test_from")),
        ({"validation_from": 9, "test_from": 5}, ("moments-out-of-order", "validation_from=9", "test_from=5")),
        ({"validation_from": 5, "test_from": 9, "shares": (0.5, 0.25, 0.25)}, ("setting-without-effect", "shares")),
        ({"validation_from": "soon", "test_from": 9}, ("not-a-date", "'soon'", "ISO 8601")),
    ],
)
def test_moments_that_cannot_be_meant(split: dict, says: str) -> None:
    with refused(*says):
        Schema.parse({"fields": ["a"], "time": "t", "split": {"kind": "temporal", **split}})


def test_numbers_that_cannot_be_squared_are_refused(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    fields = [{"name": "price", "kind": "numeric"}]
    frame = FRAME.with_columns(price=pl.Series([1.0, 1e300] * 30))
    for parts in (None, 2):
        with refused("numbers-too-large", "'price'", "row 1", "1e+300", "transform=standard"):
            fr.prepare_impressions(frame, tmp_path / "s", schema={"fields": fields, "time": "when"}, parts=parts)
    log = [{**fields[0], "transform": "log"}]
    assert len(fr.prepare_impressions(pl.concat([frame] * 5), tmp_path / "s", schema={"fields": log})) == 300
    assert not [warning for warning in recwarn if "overflow" in str(warning.message)]
