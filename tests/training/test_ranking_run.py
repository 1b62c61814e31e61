"""The run of a ranking model is whole without its store: it carries its encoder, which is read without trust."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.cli import main
from fullrank.data.impressions.encoding import FieldEncoder, transform
from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.manifest import sha256_file
from fullrank.run import Run, write_run
from fullrank.run.manifest import RUN_FILES
from refusals import refused
from seals import as_format_2, reseal
from tests.cascade.conftest import BEGIN, SCHEMA, log
from tests.training.clicks import as_format_1, tiny
from tests.training.conftest import change_json

FIELDS: list[Any] = [
    *SCHEMA["fields"],
    {"kind": "numeric", "name": "ratio", "transform": "linear"},
    {"kind": "bag", "name": "marks", "hash_buckets": 5},
    {"kind": "sequence", "name": "read", "shares": "town", "separator": "|"},
]
"""Every kind and transform: bags hashed and with a vocabulary, sequences on a vocabulary and on a hash."""


def shown(rows: int = 360) -> pl.DataFrame:
    place = pl.int_range(rows)
    towns = pl.format("t{}|t{}", place % 7, place % 5)
    return log(rows).with_columns(ratio=(place % 11) / 3, marks=pl.concat_list(place % 3, place % 4), read=towns)


def unseen() -> pl.DataFrame:
    """New impressions: among values that training saw, some that it did not, and missing ones."""
    frame, row = shown(120).drop("label"), pl.int_range(120)
    frame = frame.with_columns(
        user=pl.when(row < 40).then(pl.lit("nobody")).otherwise("user"),
        price=pl.when(row < 40).then(1e6).otherwise("price"),
    )
    names = [one if isinstance(one, str) else one["name"] for one in FIELDS]
    return frame.with_columns(
        pl.when(row % (9 + at) > 0).then(pl.col(name)).alias(name) for at, name in enumerate(names)
    )


@dataclass(frozen=True)
class Trained:
    """A run whose store is gone from where it was, and what it predicted before."""

    path: Path
    moved: Path
    encoder: FieldEncoder
    before: pl.DataFrame


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = tmp_path_factory.mktemp("ranking")
    store = fr.prepare_impressions(shown(), home / "store", schema=SCHEMA | {"fields": FIELDS})
    run = fr.train(tiny("training.max_epochs=2", "evaluation.selection=auc"), store, home / "run", progress=False)
    before = fr.predict(run, unseen())
    assert before["probability"].n_unique() > 60
    encoder = store.encoder
    del store
    shutil.move(home / "store", home / "moved")
    return Trained(run.path, home / "moved", encoder, before)


def copied(trained: Trained, folder: Path) -> Path:
    return Path(shutil.copytree(trained.path, folder / "run"))


def test_the_folder_holds_what_the_format_says(trained: Trained) -> None:
    names = {path.name for path in trained.path.iterdir()}
    assert {"encoder.json", "vocabulary.parquet"} < names <= set(RUN_FILES) and "fields.json" not in names
    run = Run.open(trained.path)
    assert run.manifest["format_version"] == 3 and not run.needs_store
    assert run.fields == trained.encoder.fields


def test_predictions_need_no_store(trained: Trained, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Bit for bit: from Python, to a file, and by the command line."""
    assert fr.predict(trained.path, unseen()).equals(trained.before)
    fr.predict_file(trained.path, unseen(), tmp_path / "file.parquet")
    assert pl.read_parquet(tmp_path / "file.parquet").equals(trained.before)
    unseen().write_parquet(tmp_path / "today.parquet")
    words = ["predict", trained.path, tmp_path / "today.parquet", "--out", tmp_path / "cli.parquet"]
    assert main([str(word) for word in words]) == 0, capfd.readouterr().err
    assert pl.read_parquet(tmp_path / "cli.parquet").equals(trained.before)


def test_every_field_is_encoded_as_by_the_store(trained: Trained) -> None:
    own = Run.open(trained.path).encoder()
    assert own.schema == trained.encoder.schema and own.fitted == trained.encoder.fitted
    found, wanted = (transform(one, unseen(), "impressions") for one in (own, trained.encoder))
    for name in ("categorical", "numeric", "missing"):
        assert torch.equal(getattr(found, name), getattr(wanted, name))
        assert (getattr(found, name)[:, 0] != getattr(found, name)[0, 0]).any()
    assert len(found.bags) == 5
    for one, two in zip(found.bags, wanted.bags, strict=True):
        assert torch.equal(one.ids, two.ids) and torch.equal(one.lengths, two.lengths) and one.ids.max() > 2


def test_the_store_may_be_named_and_is_compared_then(trained: Trained, tmp_path: Path) -> None:
    assert fr.predict(trained.path, unseen(), data=trained.moved).equals(trained.before)
    fr.prepare_impressions(shown(300), tmp_path / "other", schema=SCHEMA | {"fields": FIELDS[:-3]})
    with refused("store-differs"):
        fr.predict(trained.path, unseen(), data=tmp_path / "other")


def test_when_training_ended_is_kept(trained: Trained) -> None:
    until = Run.open(trained.path).trained_until()
    assert until == SCHEMA["split"]["validation_from"] - 1 == BEGIN + 239
    assert ImpressionStore.open(trained.moved).trained_until == until


def test_a_run_of_format_1_predicts_with_its_store(
    trained: Trained, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = as_format_1(copied(trained, tmp_path))
    assert run.needs_store and run.fields == trained.encoder.fields
    assert fr.predict(run, unseen(), data=trained.moved).equals(trained.before)
    assert run.trained_until(trained.moved) == BEGIN + 239
    with refused("missing-store", trained.path.parent / "store", run.path, "data="):
        fr.predict(run, unseen())
    unseen().write_parquet(tmp_path / "today.parquet")
    words = [str(word) for word in ("predict", run.path, tmp_path / "today.parquet", "--out", tmp_path / "p.parquet")]
    assert main(words) == 2
    assert "is missing: name it by --data" in " ".join(capfd.readouterr().err.split())
    assert main([*words, "--data", str(trained.moved)]) == 0
    assert pl.read_parquet(tmp_path / "p.parquet").equals(trained.before)


@pytest.mark.parametrize(
    "fields", [[{"name": "x"}], "x", *([change] for change in (
        {"size": -9}, {"size": "9"}, {"size": 1.5}, {"size": True}, {"name": 5}, {"name": None}, {"kind": 5},
        {"kind": []}, {"kind": "os.system"}, {"shares": 3},
    ))], ids=str,
)  # fmt: skip
def test_damaged_fields_of_format_1_are_refused(trained: Trained, tmp_path: Path, fields: Any) -> None:
    run = as_format_1(copied(trained, tmp_path))
    path = run.path / "fields.json"
    whole = json.loads(path.read_text())["fields"]
    if fields not in ([{"name": "x"}], "x"):
        fields = [whole[0] | fields[0], *whole[1:]]
    path.write_text(json.dumps({"fields": fields}))
    with refused("file-damaged", "fields.json"):
        run.model()


def test_what_is_written_again_is_of_this_format(market: fr.Store, tmp_path: Path) -> None:
    """A grown or filled run takes the manifest of an old one, and not its version."""
    data = {"path": str(market.path), "split_fingerprint": market.fingerprint}
    write_run(
        tmp_path / "run", fr.recipe("popularity"), market.catalog, {"format_version": 1, "parameters": 0, "data": data}
    )
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["format_version"] == 3 and next(iter(manifest)) == "format_version"
    with refused("not-a-ranking-model", tmp_path / "run"):
        Run.open(tmp_path / "run").encoder()


def _tree(change: Callable[[dict[str, Any]], Any], name: str = "encoder.json") -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tree = json.loads((folder / name).read_text())
        change(tree)
        (folder / name).write_text(json.dumps(tree))

    return apply


def _fitted(field: str, to: Any) -> Callable[[Path], None]:
    return _tree(lambda tree: tree["fitted"].update({field: to}))


def _field(name: str, **changes: Any) -> Callable[[Path], None]:
    return _tree(lambda tree: next(f for f in tree["schema"]["fields"] if f["name"] == name).update(changes))


def _values(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "vocabulary.parquet"
        change(pl.read_parquet(path)).write_parquet(path)

    return apply


def _more(field: str, value: str) -> Callable[[Path], None]:
    """Another row of the vocabulary."""
    return _values(lambda v: pl.concat([v, pl.DataFrame({"field": [field], "value": [value]})]))


@pytest.mark.parametrize("name", ["encoder.json", "vocabulary.parquet"])
def test_a_run_without_its_encoder_is_refused(name: str, trained: Trained, tmp_path: Path) -> None:
    folder = as_format_2(copied(trained, tmp_path))
    (folder / name).unlink()
    with refused("missing-file", name):
        fr.predict(folder, unseen())
    (folder / name).write_bytes(b"PAR1")
    with refused("table-unreadable" if "vocabulary" in name else "file-damaged", name):
        fr.predict(folder, unseen())


@pytest.mark.parametrize(
    ("text", "says"),
    [(b"{", "line 1 column 2"), (b"\xff\xfe", "not text"), (b"[" * 100_000, "100 deep"), (b"[]", "[]"), (b"{}", None)],
)
def test_an_encoder_that_is_no_tree_is_refused(text: bytes, says: Any, trained: Trained, tmp_path: Path) -> None:
    folder = as_format_2(copied(trained, tmp_path))
    (folder / "encoder.json").write_bytes(text)
    with refused("file-damaged", "encoder.json", says):
        fr.predict(folder, unseen())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("price", {"mean": mean, "scale": scale})
            for mean, scale in (("0", 1), (0.0, float("inf")), (float("nan"), 1), (10**400, 1))
        ),
        ("price", {"mean": 0.0}),
        *(
            ("income", {"edges": edges})
            for edges in ([1.0, 10**400], [False, True], 3.0, [1500.0, 700.0], [700.0, 700.0])
        ),
    ],
)
def test_fitted_numbers_that_are_none_are_refused(field: str, value: Any, trained: Trained, tmp_path: Path) -> None:
    folder = as_format_2(copied(trained, tmp_path))
    _fitted(field, value)(folder)
    with refused("file-damaged", field, *(str(number)[:9] for number in value.values())):
        fr.predict(folder, unseen())


DAMAGE: list[tuple[Callable[[Path], None], tuple[object, ...]]] = [
    (_tree(lambda tree: tree.pop("schema")), ("encoder.json", "'schema'", None)),
    (_tree(lambda tree: tree.update(schema="x")), ("encoder.json", "'schema'", "'x'")),
    (_tree(lambda tree: tree["schema"].update(fields=[7])), ("encoder.json", "fields.0", "given: 7")),
    (_field("item", kind="os.system"), ("encoder.json", "'os.system'")),
    (_field("town", hash_buckets=10**30), ("hash_buckets", 10**30)),
    (_field("town", hash_buckets=2**31 - 9), ("2,147,483,750",)),
    (_tree(lambda tree: tree.pop("fitted")), ("encoder.json", "'fitted'", None)),
    (_tree(lambda tree: tree.update(fitted=[])), ("encoder.json", "'fitted'", "[]")),
    (_fitted("price", {"mean": 0.0, "scale": 1.0}), ("encoder.json", "SHA-256")),
    (_tree(lambda tree: tree["fitted"].pop("price")), ("'price' is None",)),
    (_tree(lambda tree: tree.pop("encoder"), "manifest.json"), ("encoder.json", "SHA-256", None)),
    (_values(lambda v: v.rename({"value": "values"})), ("vocabulary.parquet", "'values': String")),
    (_values(lambda v: v.select("field", value=pl.lit(1))), ("vocabulary.parquet", "'value': Int32")),
    (_values(lambda v: v.with_columns(value=pl.when(pl.int_range(len(v)) > 0).then("value"))), ("'hour'", "null")),
    (_values(lambda v: v.reverse()), ("vocabulary.parquet", "SHA-256")),
    (_more("hour", "4"), ("vocabulary.parquet", "'4' of 'hour'")),
    (_more("town", "t0"), ("vocabulary.parquet", "'town'")),
]


@pytest.mark.parametrize(("change", "says"), DAMAGE)
def test_a_damaged_or_hostile_encoder_is_refused(
    change: Callable[[Path], None], says: tuple[object, ...], trained: Trained, tmp_path: Path
) -> None:
    """Of a run of format 2, so that each check stands for itself."""
    folder = as_format_2(copied(trained, tmp_path))
    change(folder)
    if says == ("2,147,483,750",):  # more ids than weights
        hashes = {name: sha256_file(folder / name) for name in ("encoder.json", "vocabulary.parquet")}
        change_json(folder / "manifest.json", encoder=hashes)
    with refused("file-damaged", *says):
        fr.predict(folder, unseen())


@pytest.mark.parametrize(
    "change",
    [
        _more("item", "another"),
        _values(lambda v: v.filter(pl.col("field") != "tags")),
        _field("town", hash_buckets=8),
        _tree(lambda tree: tree["schema"]["fields"].pop(0)),
    ],
)
def test_fields_that_do_not_fit_the_weights_are_refused(
    change: Callable[[Path], None], trained: Trained, tmp_path: Path
) -> None:
    """Whoever made the folder made the hashes, too."""
    folder = copied(trained, tmp_path)
    change(folder)
    if "hour" not in (folder / "encoder.json").read_text():
        _values(lambda v: v.filter(pl.col("field") != "hour"))(folder)
    reseal(folder, sizes=True)
    with refused("weights-differ-from-spec"):
        fr.predict(folder, unseen())


def test_a_time_that_is_none_is_refused(trained: Trained, tmp_path: Path) -> None:
    folder = copied(trained, tmp_path)
    change_json(folder / "manifest.json", data={**Run.open(folder).manifest["data"], "trained_until": "now"})
    reseal(folder)
    with refused("file-damaged", "trained_until", "now"):
        Run.open(folder).trained_until()
