"""encode.py of an export: what it makes of raw columns is what the library makes of them, and it needs no library."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.core.errors import UserError
from fullrank.data.impressions.store import ImpressionStore
from fullrank.models.ranking.calibration import Calibration
from fullrank.run import Run
from fullrank.serving.export.encode import Encoder
from fullrank.serving.export.folder import write_export
from tests.serving.export.exporting import sealed_run
from tests.training.clicks import tiny
from tiny import shaken

FIELDS = [
    {"name": "user", "hash_buckets": 11}, {"name": "item", "min_count": 2}, "country", "member", "shop",
    {"kind": "numeric", "name": "age"}, {"kind": "numeric", "name": "price", "transform": "log"},
    {"kind": "numeric", "name": "shown", "transform": "linear"},
    {"kind": "numeric", "name": "year", "transform": "bucket", "buckets": 5},
    {"kind": "bag", "name": "genres", "separator": "|", "max_length": 2}, {"kind": "bag", "name": "tags"},
    {"kind": "bag", "name": "friends", "shares": "user"},
    {"kind": "sequence", "name": "history", "shares": "item", "max_length": 3},
]  # fmt: skip


def table(rows: int, seed: int = 0) -> pl.DataFrame:
    """Every kind of column; missing values, values on the edges of buckets, and (with another seed) unknown ones."""
    rng = np.random.default_rng(seed)

    def some(values: list) -> list:
        return [values[at] for at in rng.integers(len(values), size=rows)]

    def lists(values: list) -> list:
        return [None if n == 5 else [values[at] for at in rng.integers(len(values), size=n)]
                for n in rng.integers(0, 6, rows)]  # fmt: skip

    few = seed + 12
    return pl.DataFrame(
        {
            "label": rng.integers(0, 2, rows), "user": some(["ann", "Bo", "ü 漢", "", None, f"new {seed}"]),
            "item": pl.Series(some([*range(few), None]), dtype=pl.Int64),
            "country": some(["de", "FR", "", None, "042"]),
            "member": some([True, False, None]), "shop": pl.Series(some([1.0, 2.0, float("nan"), None, -0.0])),
            "age": some([30.5, 41, None, float("nan"), 18]), "price": some([-3.0, 0.0, 12.5, 1e30, None]),
            "shown": pl.Series(some([1, 2, 3, None])), "year": pl.Series(some([*range(1990, 2000), None])),
            "genres": some(["Drama|Comedy", " Drama | War|Noir", "", "|", None, f"genre {seed}"]),
            "tags": lists(["a", "b", "", None, f"t{seed}"]), "friends": lists(["ann", "Bo", "nobody"]),
            "history": pl.Series(lists([*range(few), None]), dtype=pl.List(pl.Int64)),
        },
        strict=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImpressionStore:
    return fr.prepare_impressions(table(600), tmp_path_factory.mktemp("raw") / "store", schema={"fields": FIELDS})


def made_run(store: ImpressionStore, folder: Path, calibration: Calibration | None = None) -> Run:
    """A ranking model's run with drawn weights, sealed."""
    spec = tiny("model.sequences=target_attention")
    torch.manual_seed(0)
    model = spec.model.build(store.fields)
    shaken(model, 0.3)
    return sealed_run(folder, spec, store.encoder, model, store, calibration)


def test_it_encodes_as_the_library_does(store: ImpressionStore, tmp_path: Path) -> None:
    """Bit for bit, of lists, of polars and of pandas, with missing and unknown values, and of no rows at all."""
    run = made_run(store, tmp_path / "run")
    made = write_export(tmp_path / "out", run, store.encoder, "onnx", lambda folder: {})
    encode = Encoder(made.path)
    for frame in (table(300), table(300, seed=3), table(1), table(0)):
        own = store.encoder.encode(frame, "t")
        texts = frame.with_columns(pl.col("age", "year").cast(pl.String))  # as a CSV file has numbers
        given = [frame, frame.to_dict(as_series=False), frame.to_pandas(), texts]
        for columns in given if len(frame) else given[:2]:
            found = encode(columns)
            assert np.array_equal(found["categorical"], own.categorical)
            assert np.array_equal(found["numeric"], own.numeric, equal_nan=True)
            for number, bag in enumerate(own.bags):
                assert np.array_equal(found[f"bag_lengths_{number}"], bag.lengths), number
                wide = bag.padded()
                assert np.array_equal(found[f"bag_{number}"][:, : wide.shape[1]], wide), number


def test_it_refuses_what_the_library_refuses(store: ImpressionStore, tmp_path: Path) -> None:
    run = made_run(store, tmp_path / "run")
    encode = Encoder(write_export(tmp_path / "out", run, store.encoder, "onnx", lambda folder: {}).path)
    plain = {name: [value] for name, value in table(1).row(0, named=True).items()}
    for name, value in {"item": 1.5, "age": "old", "price": float("inf"), "tags": "a,b", "shown": 1e39}.items():
        with pytest.raises(ValueError):
            encode(plain | {name: [value]})
        with pytest.raises(UserError):
            store.encoder.encode(pl.DataFrame(plain | {name: [value]}, strict=False), "t")
    with pytest.raises(KeyError, match="country"):
        encode({name: value for name, value in plain.items() if name != "country"})


@pytest.mark.slow
def test_the_guide_scores_raw_columns_without_the_library(store: ImpressionStore, tmp_path: Path) -> None:
    """In a process that cannot import fullrank, within 1e-5 of `predict`, with a calibration and without."""
    page = (Path(__file__).parents[3] / "docs" / "guide" / "export.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "encode = Encoder" in block)
    definitions = code.partition("print(")[0]
    frame = table(400, seed=3)
    (tmp_path / "columns.json").write_text(json.dumps(frame.fill_nan(None).to_dict(as_series=False)))
    blocked = "import sys\nsys.modules['fullrank'] = sys.modules['polars'] = None\n"
    score = (
        "import json\nfound = predict(json.load(open('columns.json')))\n"
        "assert not any(name.startswith('fullrank.') for name in sys.modules)\n"
        "json.dump([float(one) for one in found], open('found.json', 'w'))\n"
    )
    curve = Calibration(method="isotonic", knots=((-3.0, -1.5), (0.0, -0.5), (0.5, 0.4), (2.0, 1.5)), slope=0.6, rows=9)
    for name, calibration in {"plain": None, "calibrated": curve}.items():
        run = made_run(store, tmp_path / name, calibration)
        made = fr.export(run, tmp_path / "exports" / "ranker")
        assert made.manifest["calibration"] == (None if calibration is None else "isotonic")
        subprocess.run([sys.executable, "-I", "-c", blocked + definitions + score], cwd=tmp_path, check=True)
        found = np.array(json.loads((tmp_path / "found.json").read_text()))
        own = fr.predict(run, frame.drop("label"), device="cpu")["probability"].to_numpy()
        assert np.abs(found - own).max() < 1e-5, name
        assert own.std() > 0.05
