"""Results on disk, in JSON, and put together from shards; an evaluation is two files, never where a store breaks."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fakes import Kept, Whole
from fullrank.core import files
from fullrank.data.events.store import Store
from fullrank.evaluation import Evaluation, EvaluationResult, evaluate, measure, merge
from markets import planted_store
from refusals import refused
from seals import reseal

STORE = Kept.random(50, 40)
PLAIN = Evaluation(bootstrap=0)


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
    for name, codes in found.per_user.groups.items():
        assert np.array_equal(back.per_user.groups[name], codes)


def test_json_is_what_readers_expect() -> None:
    tree = json.loads(evaluate(Whole(40), STORE, "test", Evaluation(bootstrap=10)).to_json())
    assert list(tree) == ["metrics", "stderr", "interval", "slices", "protocol"]
    assert tree["metrics"]["ndcg@10"] >= 0 and len(tree["interval"]["gini@1"]) == 2
    for key in ("split", "fingerprint", "users", "items", "seen", "candidates", "history", "popularity", "ties"):
        assert tree["protocol"][key] is not None
    assert tree["protocol"]["bootstrap"] == {"samples": 10, "level": 0.95, "seed": 0, "unit": "user"}


def test_numbers_that_do_not_exist_are_null() -> None:
    text = evaluate(Whole(40), STORE, "test", PLAIN).to_json()
    tree = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert tree["interval"]["ndcg@1"] == [None, None]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The text of an evaluation on disk."""
    evaluate(Whole(40), STORE, "test", PLAIN).save(tmp_path)
    return tmp_path / "evaluation.json"


@pytest.mark.parametrize(
    ("file", "content", "names"),
    [
        ("evaluation.json", "{", ["line 1 column 2"]),
        ("evaluation.json", '{"metrics": {}}', ["stderr: Field required"]),
        ("evaluation.json", "[]", ["holds []"]),
        ("evaluation.json", "3", ["holds 3"]),
        ("evaluation.json", "[" * 100_000, ["100 deep"]),
        ("evaluation.json", '{"protocol": {"metrics": [3]}}', ["metrics: Field required"]),
        ("per_user.parquet", "no", []),
    ],
)
def test_a_broken_folder_is_refused(file: str, content: str, names: list[str], saved: Path) -> None:
    (saved.parent / file).write_text(content)
    with refused("not-an-evaluation", saved.parent, file, *names):
        EvaluationResult.load(saved.parent)


def test_a_missing_folder_or_column_is_refused(saved: Path) -> None:
    with refused("not-an-evaluation", "elsewhere/evaluation.json"):
        EvaluationResult.load(saved.parent / "elsewhere")
    saved.write_text(saved.read_text().replace('"ndcg@1"', '"ndcg@2"'))
    reseal(saved)
    with refused("not-an-evaluation", "per_user.parquet", "ndcg@2"):
        EvaluationResult.load(saved.parent)


PARTS = itertools.product(
    ["metrics", "stderr", "interval", "slices", "protocol"], [[], None, 3, "text", [["ndcg@1", 0.5]]]
)


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        *PARTS, ("metrics.ndcg@1", "much"), ("metrics.ndcg@1", 10**400), ("interval.ndcg@1", [1]), ("slices.users", 1),
        ("slices.users.known", []), ("slices.users.known.ndcg@1", {"kind": "os:system"}), ("protocol.bootstrap", 3),
        ("protocol.bootstrap.samples", -1), ("protocol.bootstrap.level", 1), ("protocol.bootstrap.unit", None),
        ("protocol.items", "40"), ("protocol.metrics", "ndcg@1"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(place: str, wrong: object, saved: Path) -> None:
    tree = inner = json.loads(saved.read_text())
    *above, last = place.split(".")
    for key in above:
        inner = inner[key]
    assert last in inner
    inner[last] = wrong
    saved.write_text(json.dumps(tree))
    reseal(saved)
    with refused("not-an-evaluation", last, *([] if above else [f"given: {wrong!r}"])):
        EvaluationResult.load(saved.parent)


@pytest.mark.parametrize("column", ["user", "ndcg@1"])
def test_rows_of_another_type_are_refused(column: str, saved: Path) -> None:
    rows = saved.with_name("per_user.parquet")
    pl.read_parquet(rows).with_columns(pl.struct(column).alias(column)).write_parquet(rows)
    with refused("not-an-evaluation", "per_user.parquet"):
        EvaluationResult.load(saved.parent)


def shards(world: int, spec: Evaluation) -> list:
    return [measure(Whole(40), STORE, "test", spec, shard=(rank, world)) for rank in range(world)]


def test_shards_may_come_in_any_order() -> None:
    parts = shards(3, Evaluation(bootstrap=10))
    assert merge(parts).to_json() == merge(parts[::-1]).to_json()


def test_more_ranks_than_users() -> None:
    spec = Evaluation(bootstrap=10)
    assert merge(shards(64, spec)).to_json() == evaluate(Whole(40), STORE, "test", spec).to_json()


def test_missing_doubled_or_foreign_shards_are_refused() -> None:
    first, _ = shards(2, PLAIN)
    other = measure(Whole(40), STORE, "test", PLAIN.override("seen=keep"), shard=(1, 2))
    for parts, *said in (
        ([], "no-shards"),
        ([first], "shards-incomplete", "25", "50"),
        ([first, first], "shards-incomplete", "50 of 50"),
        ([first, other], "protocols-differ", "'exclude'", "'keep'"),
    ):
        with refused(*said):
            merge(parts)


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 0)])
def test_an_impossible_shard_is_refused(shard: tuple[int, int]) -> None:
    with refused("invalid-shard"):
        measure(Whole(40), STORE, "test", PLAIN, shard=shard)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return planted_store(tmp_path_factory.mktemp("s") / "shop")


@pytest.fixture(scope="module")
def found(store: Store, tmp_path_factory: pytest.TempPathFactory) -> list[EvaluationResult]:
    runs = [fr.train(n, store, tmp_path_factory.mktemp(n) / n, progress=False) for n in ("popularity", "item_to_item")]
    return [fr.evaluate(run, data=store) for run in runs]


def test_a_save_that_stops_half_way_is_told(
    found: list[EvaluationResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = found
    old.save(tmp_path)
    assert EvaluationResult.load(tmp_path).metrics == old.metrics
    replace = files.os.replace

    def full(source: Path, target: Path) -> None:
        if Path(target).name == "evaluation.json":
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patched, refused("not-written", "evaluation.json"):
        patched.setattr(files.os, "replace", full)
        new.save(tmp_path)
    with refused("not-an-evaluation", tmp_path, "per_user.parquet"):
        EvaluationResult.load(tmp_path)
    new.save(tmp_path)
    assert EvaluationResult.load(tmp_path).metrics == new.metrics


def test_the_history_ranked_is_not_written_over_the_history_excluded(
    found: list[EvaluationResult], store: Store, tmp_path: Path
) -> None:
    """Both are called evaluation.json, and what reads one (a report, a model's card) would take it for the other."""
    run = fr.train("popularity", store, tmp_path / "run", progress=False)
    excluded, ranked = fr.evaluate(run, data=store), fr.evaluate(run, data=store, set=["seen=keep"])
    assert not (run.path / "evaluation.json").exists(), "evaluating writes nothing"
    excluded.save(run.path)
    with refused("other-evaluation-there", run.path, "history excluded", "history ranked"):
        ranked.save(run.path)
    assert EvaluationResult.load(run.path).metrics == excluded.metrics
    ranked.save(tmp_path / "ranked")
    assert EvaluationResult.load(tmp_path / "ranked").metrics == ranked.metrics != excluded.metrics
    fr.evaluate(run, "validation", data=store).save(run.path)  # of the same policy: replaced, as ever
    (run.path / "evaluation.json").write_text("{}")
    ranked.save(run.path)
    assert EvaluationResult.load(run.path).protocol["seen"] == "keep", "what is damaged is replaced"


def test_one_of_an_earlier_version_is_read(found: list[EvaluationResult], tmp_path: Path) -> None:
    found[0].save(tmp_path)
    tree = json.loads((tmp_path / "evaluation.json").read_text())
    assert len(tree.pop("rows_sha256")) == len(tree.pop("seal")) == 64
    (tmp_path / "evaluation.json").write_text(json.dumps(tree))
    assert EvaluationResult.load(tmp_path).metrics == found[0].metrics


def test_no_evaluation_is_put_into_a_store(found: list[EvaluationResult], store: Store, tmp_path: Path) -> None:
    """Point 20 of the review: prepare refused to replace the store after that."""
    shutil.copytree(store.path, tmp_path / "shop")
    before = sorted(path.name for path in (tmp_path / "shop").iterdir())
    with refused("folder-of-others", tmp_path / "shop"):
        found[0].save(tmp_path / "shop")
    with refused("inside-a-store", tmp_path / "shop"):
        found[0].save(tmp_path / "shop" / "test")
    assert before == sorted(path.name for path in (tmp_path / "shop").iterdir())
