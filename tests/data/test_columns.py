"""One vocabulary of columns: keywords of Python, separators of text files, rows without a value, kinds of DataFrame."""

import gzip
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fullrank as fr
from fullrank.data.frames import InputTable
from refusals import refused

DAY = 86_400
LOG = pl.DataFrame({
    "customer": ["a", "a", "a", "b", "b", "b"], "sku": [1, 2, 3, 1, 2, 3],
    "when": [1_600_000_000 + DAY * n for n in range(6)], "stars": [5, 1, 5, 5, 5, 1],
    "factor": [1.0, 2.0, 1.0, 1.0, 1.0, 3.0], "done": ["buy", "view", "buy", "buy", "buy", "view"],
})  # fmt: skip
NAMES = {"user_col": "customer", "item_col": "sku", "time_col": "when"}
CLICKS = pl.DataFrame({
    "liked": [0, 1, 1] * 100, "customer": [n % 5 for n in range(300)], "sku": [n % 7 for n in range(300)],
    "at": [1_600_000_000 + n for n in range(300)],
})  # fmt: skip


def test_keywords_say_what_the_spec_says(tmp_path: Path) -> None:
    settings = ["min_rating=2", "event_types=[buy]", "split=global_time", f"split.test_from={1_600_000_000 + 4 * DAY}"]
    settings += [f"split.validation_from={1_600_000_000 + 3 * DAY}"]
    more = {"rating_col": "stars", "weight_col": "factor", "type_col": "done", "time_unit": "s"}
    store = fr.prepare(LOG, tmp_path / "a", **NAMES, **more, set=settings)
    columns = {"user": "customer", "item": "sku", "time": "when", "rating": "stars", "weight": "factor", "type": "done"}
    spec = fr.Prepare(columns=columns, min_rating=2, event_types=("buy",)).override(*settings[2:])
    assert store.manifest["spec"] == spec.dump()
    assert store.fingerprint == fr.prepare(LOG, tmp_path / "b", spec=spec).fingerprint
    assert store.num_events == 4 and store.types is not None and store.weights is not None
    assert fr.prepare(LOG, tmp_path / "c", user_col="customer", item_col="sku", time_col=None).times is None
    thousands = LOG.with_columns(when=pl.col("when") * 1000)
    assert fr.prepare(thousands, tmp_path / "d", **NAMES, time_unit="ms").times.tolist()[0] == 1_600_000_000


@pytest.mark.parametrize(
    ("given", "code", "names"),
    [
        ({**NAMES, "spec": fr.Prepare(columns={"user": "x"})}, "given-twice", ("spec.columns", "user_col=")),
        ({**NAMES, "set": ["columns.item=x"]}, "given-twice", ("columns.item", "item_col=")),
        ({**NAMES, "missing": "drop", "spec": fr.Prepare(missing="drop")}, "given-twice", ("missing=",)),
        ({"user_col": "customer"}, "missing-column", ("'item_id'", "item_col=")),
        ({**NAMES, "time_col": "wann"}, "missing-column", ("'wann'", "when", "time_col=", "time_col=None")),
        ({**NAMES, "weight_col": "weigt"}, "missing-column", ("'weigt'", "weight_col=")),
        ({**NAMES, "separator": ";"}, "setting-without-effect", ("';'", "separator")),
        ({**NAMES, "time_col": None, "time_unit": "ms"}, "setting-without-effect", ("time_unit",)),
    ],
)
def test_mistakes(given: dict, code: str, names: tuple, tmp_path: Path) -> None:
    with refused(code, *names):
        fr.prepare(LOG, tmp_path / "s", **given)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("separator", [";", "\t", "|"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".tsv"])
def test_separators_are_found_in_the_first_line(separator: str, suffix: str, tmp_path: Path) -> None:
    text = LOG.write_csv(separator=separator).encode()
    file = tmp_path / f"log{suffix}"
    file.write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)
    found = fr.prepare(file, tmp_path / "found", **NAMES)
    assert found.fingerprint == fr.prepare(file, tmp_path / "told", **NAMES, separator=separator).fingerprint
    LOG.write_csv(tmp_path / "plain.csv")
    assert found.fingerprint == fr.prepare(tmp_path / "plain.csv", tmp_path / "plain", **NAMES).fingerprint


def test_a_comma_in_the_header_is_the_separator_of_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('customer,"a;b;c;d",sku\n1,2,3\n')
    assert InputTable(tmp_path / "t.csv", "events").columns == ["customer", "a;b;c;d", "sku"]
    (tmp_path / "q.csv").write_text('"a,b";c;d\n1;2;3\n')
    assert InputTable(tmp_path / "q.csv", "events").columns == ["a,b", "c", "d"], "what is quoted separates nothing"
    (tmp_path / "u.csv").write_text("customer;sku;when;size, packed\na;1;5;x\na;2;6;y\na;3;7;z\n")
    with refused("missing-column", "'customer'", "','", "separator="):
        fr.prepare(tmp_path / "u.csv", tmp_path / "s", **NAMES)
    assert fr.prepare(tmp_path / "u.csv", tmp_path / "s", **NAMES, separator=";").num_events == 3
    assert InputTable(tmp_path / "u.csv", "events", separator="tab").columns == ["customer;sku;when;size, packed"]
    for wrong in ("", ";;", "a", '"', "ü"):
        with refused("not-a-separator", repr(wrong)):
            InputTable(tmp_path / "u.csv", "events", separator=wrong)


@pytest.mark.parametrize("file", ["e.csv", "e.parquet", "e.jsonl"])
def test_rows_without_a_value_are_dropped_where_that_is_asked(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    holes = pl.DataFrame({
        "customer": [None, "a", "b", "b"], "sku": [9, None, 9, 9], "when": [1.0, 2.0, None, 3.0], "stars": [None] * 4,
    })  # fmt: skip
    table = pl.concat(
        [LOG.select("customer", "sku", pl.col("when").cast(float), "stars"), holes], how="vertical_relaxed"
    )
    write = {"e.csv": table.write_csv, "e.parquet": table.write_parquet, "e.jsonl": table.write_ndjson}[file]
    write(tmp_path / file)
    with refused("missing-ids", "customer", "1 missing ids", "missing='drop'"):
        fr.prepare(tmp_path / file, tmp_path / "s", **NAMES)
    store = fr.prepare(tmp_path / file, tmp_path / "s", **NAMES, missing="drop")
    assert store.num_events == 7, "a missing rating that nothing reads keeps its row"
    assert store.manifest["notes"][0] == "3 of 10 rows without a user, an item or a time were left out"
    assert "3 of 10 rows" in capsys.readouterr().err
    assert fr.prepare(LOG, tmp_path / "t", **NAMES, missing="drop").manifest["notes"] == []
    with refused("no-events-left", "4 rows"):
        fr.prepare(holes.with_columns(sku=None), tmp_path / "u", **NAMES, missing="drop")
    broken = LOG.with_columns(when=pl.Series(["2020-01-01", "soon", "", None, "2020-01-02", "2020-01-03"]))
    with refused("unreadable-times", "'soon'"):  # it is there, so it is not missing
        fr.prepare(broken, tmp_path / "v", **NAMES, missing="drop")


def test_numbers_that_are_no_times_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    columns = {"user_col": "customer", "item_col": "sku"}
    (note,) = fr.prepare(LOG, tmp_path / "a", **columns, time_col="stars").manifest["notes"]
    assert "'stars' are 1 to 5" in note and note in capsys.readouterr().err
    assert fr.prepare(LOG, tmp_path / "b", **columns, time_col="when").manifest["notes"] == []
    of_1970 = LOG.with_columns(when=pl.lit("1970-01-01"))
    assert (
        fr.prepare(of_1970.with_columns(pl.col("when").str.to_date()), tmp_path / "c", **NAMES).manifest["notes"] == []
    )


def test_impressions_by_keywords(tmp_path: Path) -> None:
    def schema_of(table: pl.DataFrame | Path, **how: Any) -> fr.Schema:
        return fr.prepare_impressions(table, tmp_path / "s", overwrite=True, **how).encoder.schema

    with refused("no-label-column", "liked", "label="):
        schema_of(CLICKS)
    schema = schema_of(CLICKS, label="liked", user_col="customer", time_col="at")
    assert (schema.label, schema.group, schema.time, schema.split.kind) == ("liked", "customer", "at", "temporal")
    assert [field.name for field in schema.fields] == ["customer", "sku"]
    assert schema_of(CLICKS, set=["label=liked"]).label == "liked"
    (tmp_path / "s.yaml").write_text("label: liked\n")
    said = schema_of(CLICKS, schema=tmp_path / "s.yaml", set=["split.shares=[0.5,0.3,0.2]"])
    assert said.label == "liked" and said.split.shares == (0.5, 0.3, 0.2)
    timed = CLICKS.rename({"at": "timestamp"})
    assert schema_of(timed, label="liked").time == "timestamp"
    bare = schema_of(timed, label="liked", time_col=None)
    assert bare.time is None and "timestamp" in [field.name for field in bare.fields]
    whole = {"label": "liked", "fields": ["sku"]}
    grouped = schema_of(CLICKS, schema=whole, user_col="customer")
    assert grouped.group == "customer" and [field.name for field in grouped.fields] == ["sku"]
    for given in ({"schema": whole}, {"schema": fr.Schema.parse(whole)}, {"set": ["label=liked"]}):
        with refused("given-twice", "label="):
            schema_of(CLICKS, label="liked", **given)
    with refused("missing-column", "'likd'", "'liked'", "label="):
        schema_of(CLICKS, label="likd")
    CLICKS.write_csv(tmp_path / "t.csv", separator=";")
    assert len(fr.prepare_impressions(tmp_path / "t.csv", tmp_path / "h", label="liked")) == 300


def test_a_package_that_is_not_there_is_named() -> None:
    """pandas and polars say it in a sentence of their own, with or without the package's name beside it."""
    source = InputTable(LOG, "events")
    for error in (ImportError("pyarrow is required for converting"), ModuleNotFoundError("no", name="pyarrow")):
        with refused("missing-package", "pip install pyarrow"):
            source.attempt(lambda error=error: (_ for _ in ()).throw(error))
