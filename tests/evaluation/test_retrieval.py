"""Evaluating a model on a split: equal to plain loops, with everything that it depends on in the protocol."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fakes import Kept, Whole, listed
from fullrank.core.jagged import Jagged
from fullrank.data.events.prepare import Prepare, prepare
from fullrank.data.histories import EvalSet, Histories
from fullrank.evaluation import Evaluation, EvaluationResult, evaluate
from fullrank.models.sequential.baselines.popularity import Popularity
from refusals import refused

STORE = Kept.random(60, 40)
SMALL = Evaluation(bootstrap=0)


def evaluated(spec: Evaluation = SMALL) -> EvaluationResult:
    return evaluate(Whole(40), STORE, "test", spec)


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("seen", ["exclude", "keep"])
def test_equals_plain_loops(split: str, seen: str) -> None:
    model = Whole(40, max_length=5)
    found = evaluate(model, STORE, split, Evaluation(seen=seen, bootstrap=0, ks=(1, 7)))
    hits, gains, shown = [], [], set()
    asked = STORE.eval_set(split)
    for history, target in zip(asked.histories.items, asked.next_items, strict=True):
        ranked = listed(model.scores(history), 7, set(history.tolist()) if seen == "exclude" else set())
        shown |= set(ranked) - {-1}
        hits.append(target in ranked)
        gains.append(1 / np.log2(ranked.index(target) + 2) if target in ranked else 0)
    assert found.metrics["hit@7"] == pytest.approx(np.mean(hits))
    assert found.metrics["ndcg@7"] == pytest.approx(np.mean(gains))
    assert found.metrics["coverage@7"] == len(shown) / 40
    assert found.protocol["seen"] == seen and found.protocol["split"] == split and found.protocol["users"] == 60


def test_popularity_is_counted_on_training_events_unless_asked() -> None:
    """The planted fault is the published one: counting validation and test events as well."""
    trained, everything = (evaluated(Evaluation(popularity=p, bootstrap=0, ks=(5,))) for p in ("train", "all"))
    counts = STORE.catalog.popularity
    lists = trained.per_user.lists
    assert lists is not None
    assert trained.metrics["arp@5"] == pytest.approx(counts[lists].mean())
    assert everything.metrics["arp@5"] == pytest.approx(np.bincount(STORE.items, minlength=40)[lists].mean())
    assert everything.metrics["arp@5"] != trained.metrics["arp@5"]
    assert trained.protocol["popularity"] == "train events"


@pytest.mark.parametrize("source", ["train", "all"])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_lift_reads_the_whole_history(split: str, source: str) -> None:
    """Not only the part that the model reads; counted from the same source as the lists."""
    found = evaluate(
        Whole(40, max_length=2), STORE, split, Evaluation(bootstrap=0, metrics=("lift@5",), popularity=source)
    )
    counts = STORE.catalog.popularity if source == "train" else np.bincount(STORE.items, minlength=40)
    lists = found.per_user.lists
    assert lists is not None
    for row, history in enumerate(STORE.eval_set(split).histories.items):
        chosen = counts[history].mean()
        wanted = counts[lists[row]].mean() / chosen if chosen else 1.0
        assert found.per_user.values["lift@5"][row] == pytest.approx(wanted)


def test_a_list_ends_with_the_catalogue() -> None:
    """A k beyond it costs nothing and says what k = all items says; what divides by k does so still."""
    names = ("ndcg", "recall", "hit", "mrr", "map", "gini", "coverage", "arp", "lift", "novelty", "precision")
    found = evaluated(Evaluation(bootstrap=5, ks=(40, 99_999), metrics=names))
    assert found.per_user.lists is not None and found.per_user.lists.shape == (60, 40)
    for name in names[:-1]:
        assert found.metrics[f"{name}@99999"] == found.metrics[f"{name}@40"], name
    assert found.metrics["precision@99999"] == pytest.approx(found.metrics["precision@40"] * 40 / 99_999)
    (note,) = found.notes
    assert "99,999" in note and "40 items" in note
    assert not evaluated().notes
    drawn = evaluated(Evaluation(bootstrap=0, ks=(99_999,), protocol="sampled", negatives=9))
    assert drawn.metrics["recall@99999"] == 1.0


def test_users_without_a_history_have_a_lift_of_one() -> None:
    store = Kept.of([[0, 1], [1, 2, 3]], 8)
    spec = Evaluation(bootstrap=0, metrics=("lift@2",), empty="answer")
    assert evaluate(Whole(8, allows_empty=True), store, "validation", spec).per_user.values["lift@2"][0] == 1.0


def test_targets_that_exclusion_makes_impossible_are_counted() -> None:
    store = Kept.of([[0, 1, 0, 1], [2, 3, 4], [5, 5, 5]], 8)
    found = evaluate(Whole(8), store, "test", SMALL)
    assert found.protocol["unreachable"] == 2
    assert found.per_user.values["hit@20"].tolist() == [0, 1, 0]
    assert evaluate(Whole(8), store, "test", SMALL.override("seen=keep")).protocol["unreachable"] == 0


def test_users_without_a_history_are_left_out_and_counted() -> None:
    store = Kept.of([[0, 1], [1, 2, 3], [3, 4, 5, 6]], 8)
    found = evaluate(Whole(8), store, "validation", SMALL)
    assert found.per_user.users.tolist() == [1, 2]
    assert (found.protocol["users"], found.protocol["users_without_history"]) == (2, 1)
    answered = evaluate(Whole(8, allows_empty=True), store, "validation", SMALL.override("empty=answer"))
    assert answered.per_user.users.tolist() == [0, 1, 2]
    with refused("empty-history"):
        evaluate(Whole(8), store, "validation", SMALL.override("empty=answer"))


def asks(chosen: EvalSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores give these users for any split."""
    monkeypatch.setattr(Kept, "eval_set", lambda *_, **__: chosen)


def test_several_targets_of_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A global-time split: two events after the cut, one of them twice."""
    events = np.array([0, 1, 2, 3, 3])
    known, targets = (Jagged(events, np.array([low]), np.array([high])) for low, high in ((0, 2), (2, 5)))
    asks(EvalSet(Histories(known, users=np.array([0])), targets), monkeypatch)
    found = evaluate(Whole(6), Kept.of([events.tolist()], 6), "test", SMALL.override("ks=[4]"))
    assert found.metrics["recall@4"] == 1.0


def test_other_splits_and_catalogues_are_refused() -> None:
    for items, split, *said in (
        (40, "train", "unknown-split", "train"),
        (40, "tset", "unknown-split", "test"),
        (41, "test", "catalogue-size-differs", "41", "40"),
    ):
        with refused(*said):
            evaluate(Whole(items), STORE, split, SMALL)


def test_a_split_without_users_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("no-users-with-history", "2"):
        evaluate(Whole(5), Kept.of([[0, 1], [2, 3]], 5), "validation", SMALL)
    asks(STORE.eval_set("test").take(slice(0, 0)), monkeypatch)
    with refused("no-users-in-split"):
        evaluated()


def test_users_come_back_in_their_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = evaluated()
    asks(STORE.eval_set("test").take(np.random.default_rng(0).permutation(60)), monkeypatch)
    shuffled = evaluated()
    assert np.array_equal(plain.per_user.users, shuffled.per_user.users)
    assert plain.to_json() == shuffled.to_json()


def test_models_see_user_rows_and_times() -> None:
    model = Whole(40, reads_times=True)
    evaluate(model, replace(STORE, times=np.arange(len(STORE.items))), "test", SMALL)
    rows = [row for batch in model.asked if batch.rows is not None for row in batch.rows.tolist()]
    assert sorted(rows) == list(range(60)) and model.asked[0].times is not None
    other = Whole(40)
    evaluate(other, replace(STORE, times=np.arange(len(STORE.items))), "test", SMALL)
    assert other.asked[0].times is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"protocol": "sampled", "metrics": ["gini"]}, ("metric-needs-lists", "'gini'", "'sampled'")),
        ({"metrics": []}, ("invalid-setting", "metrics", "at least 1")),
        ({"selection": "arp@10"}, ("selection-not-accuracy", "'arp@10'", "ndcg, recall, hit, mrr, map")),
        ({"selection": "ndcg"}, ("metric-without-length", "selection", "'ndcg'", "ndcg@10")),
        ({"ks": []}, ("invalid-setting", "ks", "at least 1")),
        ({"ks": [0]}, ("invalid-setting", "ks", "given: 0")),
    ],
)
def test_settings_without_effect_or_sense_are_refused(settings: dict, said: tuple[str, ...]) -> None:
    with refused(*said):
        Evaluation.parse(settings)


def test_settings_round_trip_and_the_selection_is_cheap() -> None:
    spec = Evaluation(protocol="sampled", negatives=7, ks=(3,), selection="recall@3")
    assert Evaluation.from_text(spec.to_yaml()) == spec
    assert list(evaluated(spec.for_selection()).metrics) == ["recall@3"]
    assert Evaluation(selection=" ndcg@05").selection == "ndcg@5"


def test_default_metrics() -> None:
    names = list(evaluated(Evaluation()).metrics)
    wanted = ["ndcg", "recall", "hit", "mrr", "map", "fair0.8", "gini", "arp", "lift", "coverage", "novelty"]
    assert names == [f"{base}@{k}" for base in wanted for k in (1, 5, 10, 20)]


@pytest.mark.parametrize(
    ("spec", "free"),
    [
        (Evaluation(ks=(10**6,)), 10_000),
        (Evaluation(protocol="sampled", negatives=10**6), 40_000_000),
        (Evaluation(sampled=10**6, metrics=("ndcg@5",)), 40_000_000),
    ],
)
def test_what_no_memory_holds_is_refused_before_it_is_made(
    spec: Evaluation, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fullrank.core.memory.available_bytes", lambda: free)
    monkeypatch.setattr("fullrank.core.memory.SMALL", free // 4)
    with refused("too-large-for-memory", "GiB"):
        evaluated(spec)


def events(users: int = 40, items: int = 25) -> pl.DataFrame:
    """Users come one after another in time, so that a cut in time leaves the last ones without training events."""
    rng = np.random.default_rng(0)
    chances = np.arange(items, 0, -1) / (items * (items + 1) / 2)
    drawn = [rng.choice(items, rng.integers(3, 8), replace=False, p=chances).tolist() for _ in range(users)]
    rows = [(u, item, 1000 * u + place) for u, row in enumerate(drawn) for place, item in enumerate(row)]
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


@pytest.mark.parametrize("split", ["leave_one_out", "global_time"])
def test_popularity_on_a_prepared_store(split: str, tmp_path: Path) -> None:
    store = prepare(events(), tmp_path / "store", spec=Prepare().override(f"split={split}"))
    model = Popularity().build(store.catalog)
    model.fit(store)
    found = evaluate(model, store, "test", Evaluation(ks=(5,), bootstrap=20, empty="answer"))
    values = []
    asked = store.eval_set("test", without_history=True)
    for history, targets in zip(asked.histories.items, asked.targets, strict=True):
        ranked = listed(store.catalog.popularity.astype(float), 5, set(history.tolist()))
        wanted = set(targets.tolist())
        values.append(len(wanted & set(ranked)) / len(wanted))
    assert found.per_user.values["recall@5"].tolist() == pytest.approx(values)
    assert found.protocol["fingerprint"] == store.fingerprint
