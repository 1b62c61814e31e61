"""The engine spark: the store that one process makes, to the fingerprint. `make test MARK=cluster` runs these."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fullrank as fr
from fullrank.core.errors import UserError
from tests.data.test_features import FEATURES, SPLITS, people, same_features
from tests.data.test_features import table as events
from tests.data.test_impressions_parts import SCHEMAS, same_rows
from tests.data.test_impressions_parts import table as impressions
from tests.data.test_parts import SPECS, same_events, table

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("spark")]
__all__ = ["events", "impressions", "people", "table"]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="pyspark is not installed (pip install 'fullrank[spark]')")
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine, which Spark needs")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def files(table: pl.DataFrame, tmp_path: Path) -> Path:
    """The table in three files, the rows in order of their names."""
    folder = tmp_path / "events"
    folder.mkdir()
    for number, start in enumerate(range(0, len(table), 1500)):
        table[start : start + 1500].write_parquet(folder / f"{number}.parquet", row_group_size=400)
    return folder


@pytest.mark.parametrize("settings", SPECS.values(), ids=SPECS.keys())
def test_the_store_is_that_of_one_process(settings: list, files: Path, tmp_path: Path) -> None:
    here = fr.prepare(files, tmp_path / "here", parts=3, set=settings)
    there = fr.prepare(files, tmp_path / "there", parts=3, engine="spark", set=settings)
    assert here.fingerprint == there.fingerprint
    same_events(here, there)
    kept = ("filters", "split", "counts", "notes", "parts", "type_names")
    assert {key: here.manifest[key] for key in kept} == {key: there.manifest[key] for key in kept}


def test_a_spark_frame(table: pl.DataFrame, spark: Any, tmp_path: Path) -> None:
    distinct = table.unique(["user_id", "timestamp"], maintain_order=True)  # no ties: a frame promises no order of rows
    frame = spark.createDataFrame(distinct.to_pandas())
    there = fr.prepare(frame, tmp_path / "there", parts=4, engine="spark", set=["k_core=2"])
    same_events(fr.prepare(distinct, tmp_path / "here", parts=2, set=["k_core=2"]), there)


@pytest.mark.parametrize("settings", SPLITS.values(), ids=SPLITS.keys())
def test_features_are_those_of_one_process(
    settings: list, events: pl.DataFrame, people: pl.DataFrame, spark: Any, tmp_path: Path
) -> None:
    path, known = tmp_path / "events.parquet", tmp_path / "users.parquet"
    events.write_parquet(path, row_group_size=400)
    people.write_parquet(known)
    given: dict[str, Any] = {"users": known, "set": settings, **FEATURES}
    whole = fr.prepare(path, tmp_path / "whole", **given)
    there = fr.prepare(path, tmp_path / "there", parts=3, engine="spark", **given)
    same_events(whole, there)
    same_features(whole, there)
    frame = spark.createDataFrame(events.to_pandas())
    same_features(whole, fr.prepare(frame, tmp_path / "frame", parts=2, engine="spark", **given))


def test_missing_rows_are_dropped_and_counted(table: pl.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    table.with_columns(
        user_id=pl.when(pl.int_range(pl.len()) % 50 == 7).then(pl.lit(" ")).otherwise("user_id"),
        timestamp=pl.when(pl.int_range(pl.len()) % 70 == 3).then(float("nan")).otherwise("timestamp"),
    ).write_parquet(path)
    here = fr.prepare(path, tmp_path / "here", missing="drop", parts=2)
    same_events(here, fr.prepare(path, tmp_path / "there", missing="drop", parts=2, engine="spark"))


def test_mistakes_are_one_sentence(table: pl.DataFrame, files: Path, tmp_path: Path) -> None:
    def refused(match: str, events: Any = files, **named: Any) -> None:
        with pytest.raises(UserError, match=match):
            fr.prepare(events, tmp_path / "out", **{"parts": 2, "engine": "spark"} | named)
        assert not (tmp_path / "out").exists()

    refused("say parts=", parts=None)
    refused("a Spark session is there already", master="local[7]")
    refused("say engine='spark' too", engine="embedded", master="local[2]")
    broken = tmp_path / "broken.parquet"
    table.with_columns(item_id=pl.when(pl.int_range(pl.len()) == 2345).then(None).otherwise("item_id")).write_parquet(
        broken
    )
    refused("has 1 missing ids", broken)
    text = tmp_path / "events.csv"
    table.write_csv(text)
    refused("reads Parquet", text)


KILLED = """
import json, sys
import fullrank as fr
verb, table, out, how = sys.argv[1:]
getattr(fr, verb)(table, out, parts=6, engine="spark", master="local[2]", **json.loads(how))
"""


@pytest.mark.parametrize("verb", ["prepare", "prepare_impressions"])
def test_a_killed_preparation_goes_on(
    verb: str, table: pl.DataFrame, impressions: pl.DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, out, prepare = tmp_path / "table.parquet", tmp_path / "store", getattr(fr, verb)
    how: dict[str, Any] = {"set": ["k_core=3"]} if verb == "prepare" else {"schema": SCHEMAS["temporal, with ties"]}
    (table if verb == "prepare" else impressions).write_parquet(path)
    words = [sys.executable, "-c", KILLED, verb, str(path), str(out), json.dumps(how)]
    with subprocess.Popen(words, start_new_session=True) as process:
        while not (tmp_path / "store.preparing" / "state.json").exists():
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert not out.exists()
    with caplog.at_level("INFO"):
        there = prepare(path, out, parts=6, engine="spark", progress=True, **how)
    assert "go on with what was read before" in caplog.text
    assert there.fingerprint == prepare(path, tmp_path / "whole", parts=2, **how).fingerprint


IMPRESSIONS = {name: SCHEMAS[name] for name in ("temporal, with ties", "temporal by date", "random", "given, no group")}


@pytest.mark.parametrize("schema", IMPRESSIONS.values(), ids=IMPRESSIONS.keys())
def test_impressions_are_those_of_one_process(schema: dict, impressions: pl.DataFrame, tmp_path: Path) -> None:
    folder = tmp_path / "some impressions"
    folder.mkdir()
    for number, start in enumerate(range(0, len(impressions), 700)):
        impressions[start : start + 700].write_parquet(folder / f"{number}.parquet", row_group_size=200)
    here = fr.prepare_impressions(folder, tmp_path / "here", parts=2, schema=schema)
    there = fr.prepare_impressions(folder, tmp_path / "there", parts=4, engine="spark", schema=schema)
    assert here.fingerprint == there.fingerprint
    same_rows(here, there)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["here", "some impressions", "there"]


def test_a_spark_frame_of_impressions(impressions: pl.DataFrame, spark: Any, tmp_path: Path) -> None:
    flat = impressions.select("stars", "price", "user", "item", "age").with_columns(place=pl.int_range(pl.len()))
    frame = spark.createDataFrame(flat.to_pandas())
    fields = [{"kind": "numeric", "name": "age"}, "user", "item", {"kind": "numeric", "name": "place"}]
    schema = {"label": "stars", "label_threshold": 4, "fields": fields}
    there = fr.prepare_impressions(frame, tmp_path / "there", parts=3, engine="spark", schema=schema)
    here = fr.prepare_impressions(flat, tmp_path / "here", parts=1, schema=schema)
    assert here.fingerprint == there.fingerprint


def test_mistakes_in_impressions_are_one_sentence(impressions: pl.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "broken.parquet"
    impressions.with_columns(stars=pl.lit(None).cast(pl.Int64)).write_parquet(path)
    with pytest.raises(UserError, match="'stars'"):
        fr.prepare_impressions(path, tmp_path / "out", schema=SCHEMAS["random"], parts=2, engine="spark")
    assert not (tmp_path / "out").exists()
