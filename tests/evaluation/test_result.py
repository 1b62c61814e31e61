"""Results on disk, in JSON, and put together from shards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fakes import Kept, Whole
from fullrank.evaluation import Evaluation, EvaluationResult, evaluate, measure, merge
from refusals import refused
from seals import reseal

STORE = Kept.random(50, 40)


@pytest.mark.parametrize("spec", [Evaluation(bootstrap=20), Evaluation(protocol="sampled", bootstrap=0, slices=False)])
def test_saved_and_loaded(spec: Evaluation, tmp_path: Path) -> None:
    found = evaluate(Whole(40), STORE, "test", spec)
    found.save(tmp_path / "evaluation")
    back = EvaluationResult.load(tmp_path / "evaluation")
    assert back.to_json() == found.to_json()
    assert np.array_equal(back.per_user.users, found.per_user.users)
    for name, column in found.per_user.values.items():
        assert np.array_equal(back.per_user.values[name], column)
    assert (back.per_user.lists is None) == (found.per_user.lists is None)
    if found.per_user.lists is not None:
        assert np.array_equal(back.per_user.lists, found.per_user.lists)
    assert {n: c.tolist() for n, c in back.per_user.groups.items()} == {
        n: c.tolist() for n, c in found.per_user.groups.items()
    }


def test_json_is_what_readers_expect() -> None:
    tree = json.loads(evaluate(Whole(40), STORE, "test", Evaluation(bootstrap=10)).to_json())
    assert list(tree) == ["metrics", "stderr", "interval", "slices", "protocol"]
    assert tree["metrics"]["ndcg@10"] >= 0 and len(tree["interval"]["gini@1"]) == 2
    for key in ("split", "fingerprint", "users", "items", "seen", "candidates", "history", "popularity", "ties"):
        assert tree["protocol"][key] is not None
    assert tree["protocol"]["bootstrap"] == {"samples": 10, "level": 0.95, "seed": 0, "unit": "user"}


def test_numbers_that_do_not_exist_are_null() -> None:
    text = evaluate(Whole(40), STORE, "test", Evaluation(bootstrap=0)).to_json()
    tree = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert tree["interval"]["ndcg@1"] == [None, None]


@pytest.mark.parametrize(
    ("broken", "names"),
    [
        ("nothing", ("elsewhere/evaluation.json",)),
        ("json", ("evaluation.json", "line 1 column 2")),
        ("parquet", ("per_user.parquet",)),
        ("column", ("per_user.parquet", "ndcg@2")),
        ("key", ("evaluation.json", "'stderr'")),
    ],
)
def test_a_broken_folder_is_refused(broken: str, names: tuple[str, ...], tmp_path: Path) -> None:
    evaluate(Whole(40), STORE, "test", Evaluation(bootstrap=0)).save(tmp_path)
    text = tmp_path / "evaluation.json"
    if broken == "nothing":
        tmp_path = tmp_path / "elsewhere"
    elif broken == "json":
        text.write_text("{")
    elif broken == "parquet":
        (tmp_path / "per_user.parquet").write_bytes(b"no")
    elif broken == "column":
        text.write_text(text.read_text().replace('"ndcg@1"', '"ndcg@2"'))
        reseal(text)
    else:
        text.write_text(json.dumps({"metrics": {}}))
    with refused("not-an-evaluation", tmp_path, *names):
        EvaluationResult.load(tmp_path)


@pytest.mark.parametrize("key", ["metrics", "stderr", "interval", "slices", "protocol"])
@pytest.mark.parametrize("wrong", [[], None, 3, "text", [["ndcg@1", 0.5]]])
def test_a_part_of_the_wrong_kind_is_refused(key: str, wrong: object, tmp_path: Path) -> None:
    evaluate(Whole(40), STORE, "test", Evaluation(bootstrap=0)).save(tmp_path)
    text = tmp_path / "evaluation.json"
    text.write_text(json.dumps(json.loads(text.read_text()) | {key: wrong}))
    reseal(text)
    with refused("not-an-evaluation", f"{key!r} is {wrong!r}"):
        EvaluationResult.load(tmp_path)


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        ("metrics.ndcg@1", "much"), ("metrics.ndcg@1", 10**400), ("interval.ndcg@1", [1]), ("slices.users", 1),
        ("slices.users.known", []), ("slices.users.known.ndcg@1", {"kind": "os:system"}), ("protocol.bootstrap", 3),
        ("protocol.bootstrap.samples", -1), ("protocol.bootstrap.level", 1), ("protocol.bootstrap.unit", None),
        ("protocol.items", "40"), ("protocol.metrics", "ndcg@1"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(place: str, wrong: object, tmp_path: Path) -> None:
    evaluate(Whole(40), STORE, "test", Evaluation(bootstrap=0)).save(tmp_path)
    text = tmp_path / "evaluation.json"
    tree = inner = json.loads(text.read_text())
    *above, last = place.split(".")
    for key in above:
        inner = inner[key]
    assert last in inner
    inner[last] = wrong
    text.write_text(json.dumps(tree))
    reseal(text)
    with refused("not-an-evaluation", last):
        EvaluationResult.load(tmp_path)


@pytest.mark.parametrize("column", ["user", "ndcg@1"])
def test_rows_of_another_type_are_refused(column: str, tmp_path: Path) -> None:
    evaluate(Whole(40), STORE, "test", Evaluation(bootstrap=0)).save(tmp_path)
    rows = tmp_path / "per_user.parquet"
    frame = pl.read_parquet(rows)
    frame.with_columns(pl.struct(pl.col(column)).alias(column)).write_parquet(rows)
    with refused("not-an-evaluation", "per_user.parquet"):
        EvaluationResult.load(tmp_path)


@pytest.mark.parametrize(
    ("whole", "named"),
    [
        ("[]", "holds []"),
        ("3", "holds 3"),
        ("[" * 100_000, "100 deep"),
        ('{"protocol": {"metrics": [3]}}', "'metrics'"),
    ],
)
def test_json_of_another_shape_is_refused(whole: str, named: str, tmp_path: Path) -> None:
    evaluate(Whole(40), STORE, "test", Evaluation(bootstrap=0)).save(tmp_path)
    (tmp_path / "evaluation.json").write_text(whole)
    with refused("not-an-evaluation", "evaluation.json", named):
        EvaluationResult.load(tmp_path)


def test_a_save_that_fails_leaves_the_old_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluate(Whole(40), STORE, "test", Evaluation(bootstrap=0))
    found.save(tmp_path)
    before = (tmp_path / "evaluation.json").read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with refused("not-written", tmp_path, "No space left"):
        found.save(tmp_path)
    assert (tmp_path / "evaluation.json").read_text() == before
    assert {file.name for file in tmp_path.iterdir()} == {"evaluation.json", "per_user.parquet"}


def shards(world: int, spec: Evaluation) -> list:
    return [measure(Whole(40), STORE, "test", spec, shard=(rank, world)) for rank in range(world)]


def test_shards_may_come_in_any_order() -> None:
    parts = shards(3, Evaluation(bootstrap=10))
    assert merge(parts).to_json() == merge(parts[::-1]).to_json()


def test_more_ranks_than_users() -> None:
    spec = Evaluation(bootstrap=10)
    assert merge(shards(64, spec)).to_json() == evaluate(Whole(40), STORE, "test", spec).to_json()


def test_missing_doubled_or_foreign_shards_are_refused() -> None:
    first, second = shards(2, Evaluation(bootstrap=0))
    with refused("no-shards"):
        merge([])
    with refused("shards-incomplete", "25", "50"):
        merge([first])
    with refused("shards-incomplete", "50 of 50"):
        merge([first, first])
    with refused("protocols-differ", "'exclude'", "'keep'"):
        merge([first, measure(Whole(40), STORE, "test", Evaluation(bootstrap=0, seen="keep"), shard=(1, 2))])


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 0)])
def test_an_impossible_shard_is_refused(shard: tuple[int, int]) -> None:
    with refused("invalid-shard"):
        measure(Whole(40), STORE, "test", Evaluation(bootstrap=0), shard=shard)
