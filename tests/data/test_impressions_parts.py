"""Stores of impressions in parts: row for row what one store holds, whatever their number and the form of the table."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from folders import python
from fullrank.data.impressions import part_work
from fullrank.data.impressions.arrays import BLOCKS, block_edges, part_edges
from fullrank.data.impressions.numeric import ExactMoments
from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.manifest import sealed
from refusals import refused
from tests.data.test_impressions_twin import SCHEMA, frame_of, prepared
from tests.data.test_impressions_twin import table as rows_of

SCHEMAS = {
    "temporal, with ties": SCHEMA,
    "temporal by fractions": SCHEMA | {"time": "clock"},
    "temporal by date": SCHEMA | {"time": "when"},
    "temporal by moments": SCHEMA | {"split": {"kind": "temporal", "validation_from": 400, "test_from": 600}},
    "random": SCHEMA | {"split": {"kind": "random", "seed": 3}, "time": None},
    "given, no group": SCHEMA | {"split": {"kind": "given", "column": "share"}, "group": None},
    "all trained on": SCHEMA | {"split": {"kind": "temporal", "shares": [1, 0, 0]}},
}


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    whole = frame_of(rows_of(2000, 1))
    return whole.with_columns(
        clock=(pl.col("time") - 300) / 7,
        when=pl.from_epoch("time"),
        share=pl.Series(np.random.default_rng(0).choice(["train", "val", "test"], len(whole))),
    )


def same_rows(one: ImpressionStore, other: ImpressionStore) -> None:
    """The same rows in the same order: what a ranker reads, labels, groups, times, counts."""
    assert len(one) == len(other) and one.fields == other.fields and one.manifest["counts"] == other.manifest["counts"]
    draw = np.random.default_rng(0)
    for rows in (np.arange(len(one)), draw.permutation(len(one))[:300], np.empty(0, np.int64)):
        a, b = one.batch(rows), other.batch(rows)
        for name in ("categorical", "missing", "labels", "groups", "rows"):
            left, right = getattr(a, name), getattr(b, name)
            assert (left is None and right is None) or bool((left == right).all()), name
        assert np.allclose(a.numeric, b.numeric, rtol=1e-6, atol=1e-6)  # moments of a store in one are rounded by chunk
        for left, right in zip(a.bags, b.bags, strict=True):
            assert left.ids.equal(right.ids) and left.lengths.equal(right.lengths)
        assert one.external(rows).equals(other.external(rows))
    for split in ("train", "validation", "test"):
        assert one.split(split) == other.split(split) and (one.labels(split) == other.labels(split)).all()
    assert one.trained_until == other.trained_until
    assert all(one.vocabulary(name).equals(other.vocabulary(name)) for name in ("user", "item"))


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(schema, id=name, marks=[pytest.mark.slow] * (n > 1))
        for n, (name, schema) in enumerate(SCHEMAS.items())
    ],
)
def test_parts_hold_what_one_store_holds(schema: dict, table: pl.DataFrame, tmp_path: Path) -> None:
    whole = prepared(table, tmp_path / "whole", schema)
    prints = set()
    for count in (1, 3, 70):
        store = prepared(table, tmp_path / f"{count}", schema, parts=count)
        same_rows(whole, store)
        prints.add(store.fingerprint)
        assert len(store.folders) == count
    assert len(prints) == 1 and not list(tmp_path.glob("*.preparing"))


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_files_are_read_in_pieces(
    suffix: str, table: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = table.drop("history", "colours", "when")
    schema = SCHEMA | {
        "fields": [f for f in SCHEMA["fields"] if f == "user" or f["name"] not in ("history", "colours")]
    }
    path = tmp_path / f"impressions.{suffix}"
    {"csv": flat.write_csv, "parquet": flat.write_parquet, "jsonl": flat.write_ndjson}[suffix](path)
    whole = prepared(path, tmp_path / "whole", schema)
    one = prepared(path, tmp_path / "one", schema, parts=1)
    monkeypatch.setattr("fullrank.data.frames.CHUNK", 333)
    store = prepared(path, tmp_path / "parts", schema, parts=4)
    same_rows(whole, store)
    assert one.fingerprint == store.fingerprint, "neither parts nor chunks enter the fingerprint"


@pytest.mark.slow
def test_more_parts_than_rows(table: pl.DataFrame, tmp_path: Path) -> None:
    schema = SCHEMA | {"split": {"kind": "temporal", "shares": [1, 0, 0]}}
    few = table.head(20)
    store = prepared(few, tmp_path / "parts", schema, parts=50)
    same_rows(prepared(few, tmp_path / "whole", schema), store)
    assert 0 in [len(ImpressionStore.open(folder)) for folder in store.folders]


def test_a_part_is_a_store(table: pl.DataFrame, tmp_path: Path) -> None:
    whole = prepared(table, tmp_path / "whole", parts=3)
    own = [ImpressionStore.open(folder, verify=True) for folder in whole.folders]
    assert sum(map(len, own)) == len(whole) and {one.fields for one in own} == {whole.fields}
    places = np.concatenate([one.external(range(len(one)))["input_row"].to_numpy() for one in own])
    assert sorted(places.tolist()) == list(range(len(table)))
    assert fr.verify(whole.path).ok and fr.verify(own[0].path).ok


def test_training_and_evaluation_do_not_depend_on_the_number_of_parts(table: pl.DataFrame, tmp_path: Path) -> None:
    results = []
    for count in (1, 4):
        store = prepared(table, tmp_path / f"data {count}", parts=count)
        settings = ["training.max_epochs=1", "training.batch_size=256", "model.embedding.dim=4"]
        run = fr.train("dcnv2", store, tmp_path / f"run {count}", set=settings)
        results.append((fr.evaluate(run, data=store.path), fr.predict(run, table.head(50))))
    assert results[0][0].metrics == results[1][0].metrics
    assert results[0][1]["probability"].equals(results[1][1]["probability"])


def test_sums_are_exact_in_any_order() -> None:
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=4000) * 10.0 ** draw.integers(-300, 150, 4000)
    numbers[:5] = [np.nan, 5e-324, -5e-324, 0.0, -0.0]

    def summed(*parts: np.ndarray) -> ExactMoments:
        found = ExactMoments()
        for part in parts:
            one = ExactMoments()
            one.add(part, np.arange(len(part)))
            found = found + one
        return found

    from fractions import Fraction

    found = summed(*np.array_split(draw.permutation(numbers), 7))
    exact = [Fraction(one) for one in numbers.tolist() if one == one]
    assert Fraction(found.total, 1 << 1126) == sum(exact)
    assert Fraction(found.squares, 1 << 2252) == sum(one * one for one in exact) and found.count == 3999
    plain = draw.normal(3.0, 2.0, 5000)
    fitted = summed(plain[:17], plain[17:]).fitted()
    assert fitted["mean"] == pytest.approx(plain.mean(), rel=1e-14)
    assert fitted["scale"] == pytest.approx(1 / plain.std(), rel=1e-14)
    assert summed(np.full(9, 0.1)).fitted()["scale"] == 0.0 and summed(np.empty(0)).fitted() == {"mean": 0, "scale": 0}


@pytest.mark.parametrize("rows", [0, 1, 5, 4096, 100_003, 10**12])
def test_parts_are_blocks_in_a_row(rows: int) -> None:
    edges = block_edges(rows)
    assert edges[0] == 0 and edges[-1] == rows and (np.diff(edges) >= 0).all() and len(edges) == BLOCKS + 1
    for count in (1, 3, 7, BLOCKS):
        cut = part_edges(rows, count)
        assert len(cut) == count + 1 and cut[0] == 0 and cut[-1] == rows and np.isin(cut, edges).all()


@pytest.mark.parametrize("values", [[5, 1, 5, 5, -2, 9, 5], [0.5, -0.0, 0.0, 1e300, -1e300, 2.5, 2.5]])
@pytest.mark.parametrize("shares", [(0.5, 0.2, 0.3), (1.0, 0.0, 0.0), (0.01, 0.0, 0.99)])
def test_borders_are_found_by_counting(values: list, shares: Any) -> None:
    """They are those of a stable sort."""
    times, size = np.array(values * 13), 13 * len(values)
    parts = np.array_split(times, 4)
    spans = [part_work.TimeSpan.of(part) for part in parts]
    span = spans[0] + spans[1] + part_work.TimeSpan() + spans[2] + spans[3]
    borders = part_work.find_borders(
        size, 4, shares, span,
        lambda moments: np.array([np.count_nonzero(times < one) for one in moments]),
        lambda moments: np.array([[np.count_nonzero(part == one) for part in parts] for one in moments]),
    )  # fmt: skip
    found = np.concatenate([borders.of_part(number).parts(part) for number, part in enumerate(parts)])
    rank = np.empty(size, np.int64)
    rank[np.argsort(times, kind="stable")] = np.arange(size)
    first, second = (int(size * share + 1e-6) for share in (shares[0], shares[0] + shares[1]))
    assert found.tolist() == ((rank >= first).astype(int) + (rank >= second)).tolist()


def test_mistakes_name_the_rows(table: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullrank.data.frames.CHUNK", 300)

    def fails(*says: object, frame: pl.DataFrame = table, **named: Any) -> None:
        with refused(*says):
            prepared(frame, tmp_path / "out", **{"parts": 4} | named)
        assert not (tmp_path / "out").exists()

    broken = table.with_columns(user=pl.when(pl.int_range(pl.len()) == 1234).then(None).otherwise("user"))
    fails("missing-groups", "rows 1,000 to 1,299", "in row 234", frame=broken)
    fails("missing-column", "'stars'", frame=table.drop("stars"))
    fails("empty-table", frame=table.clear())
    fails("missing-setting", "parts=", parts=None, engine="spark")
    fails("setting-without-effect", "engine='spark'", master="local[1]")


def test_stores_are_replaced_only_where_that_is_asked(table: pl.DataFrame, tmp_path: Path) -> None:
    out = tmp_path / "store"
    prepared(table, out, parts=2)
    with refused("already-there"):
        prepared(table, out, parts=2)
    assert prepared(table, out, overwrite=True).folders == [out]
    (prepared(table, out, parts=3, overwrite=True).folders[1] / "mine").touch()
    with refused("foreign-files", "part-00001"):
        prepared(table, out, overwrite=True)


def test_hostile_manifests_and_exchanged_parts_are_refused(table: pl.DataFrame, tmp_path: Path) -> None:
    store = prepared(table, tmp_path / "store", parts=2)
    tree = json.loads((store.path / "manifest.json").read_text())

    def fails(*says: object, **changes: Any) -> None:
        (store.path / "manifest.json").write_text(json.dumps(sealed(tree | changes)))
        with refused(*says):
            ImpressionStore.open(store.path)

    one, other = tree["parts"]
    fails("file-damaged", "is not the part", parts=[one, {**other, "counts": one["counts"]}])
    fails("manifest-incomplete", "not those of its parts", parts=[one])
    fails("missing-folder", parts=[one, other, {**other, "folder": "part-00002"}])
    fails("foreign-files", files=tree["files"] | {"labels.npy": tree["files"]["groups.parquet"]})
    (store.path / "manifest.json").write_text(json.dumps(tree))
    labels = store.folders[1] / "labels.npy"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x01\x00"[labels.read_bytes()[-1] :][:1])
    with refused("file-damaged", "part-00001"):
        ImpressionStore.open(store.path)
    assert not fr.verify(store.path).ok


def test_ids_out_of_range_are_told_of_the_part(table: pl.DataFrame, tmp_path: Path) -> None:
    store = prepared(table, tmp_path / "store", parts=3)
    for name, value in (("categorical", 10**6), ("bag0_ids", -1), ("bag1_offsets", 10**6)):
        file = shutil.copytree(store.path, tmp_path / name) / "part-00001" / f"{name}.npy"
        np.save(file, np.full_like(np.load(file), value))
        with refused("file-damaged", f"part-00001/{name}.npy"):
            ImpressionStore.open(tmp_path / name, verify=False).batch(range(len(store)))


KILLED = """
import os, sys
import fullrank as fr
from fullrank.data.impressions import part_work

sys.path.insert(0, sys.argv[1])
from tests.data.test_impressions_twin import SCHEMA
left, done = int(sys.argv[4]), part_work.write_store_manifest
def dying(*given):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), 9)
    done(*given)
part_work.write_store_manifest = dying
fr.prepare_impressions(sys.argv[2], sys.argv[3], schema=SCHEMA, parts=5)
"""


def killed(path: Path, out: Path, left: int) -> None:
    python(KILLED, Path(__file__).parents[2], path, out, left, ends=-signal.SIGKILL)
    assert not out.exists()


@pytest.mark.process
def test_a_killed_preparation_goes_on(
    table: pl.DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "impressions.jsonl", tmp_path / "store"
    table.drop("when").write_ndjson(path)  # which is put into Parquet first
    killed(path, out, 0)
    killed(path, out, 2)
    fitted, read = [], []
    monkeypatch.setattr(part_work.PartTasks, "fit", lambda *given: fitted.append(given))
    monkeypatch.setattr("fullrank.data.frames.Chunks._spooled", lambda *given: read.append(given))
    with caplog.at_level("INFO"):
        store = prepared(path, out, parts=5, progress=True)
    assert "go on with what was read before" in caplog.text and not fitted and not read
    monkeypatch.undo()
    same_rows(prepared(path, tmp_path / "whole"), store)
    again = prepared(path, tmp_path / "again", parts=2)
    assert again.fingerprint == store.fingerprint
    assert sorted(one.name for one in tmp_path.iterdir()) == ["again", path.name, "store", "whole"]


@pytest.mark.process
def test_a_preparation_of_another_table_begins_anew(table: pl.DataFrame, tmp_path: Path) -> None:
    path, out = tmp_path / "impressions.parquet", tmp_path / "store"
    table.write_parquet(path)
    killed(path, out, 1)
    table.head(1500).write_parquet(path)
    same_rows(
        prepared(path, tmp_path / "whole"),
        prepared(path, out, parts=5),
    )
