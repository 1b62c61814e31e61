"""Targets of chosen types: whom an evaluation asks, for what, and after what; and its metrics by type."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from featured import SHOP_FEATURES, shop_events, shop_people, shop_predictor
from fullrank.core.jagged import Jagged
from fullrank.data.features import HistoryFeatures
from fullrank.data.histories import EvalSet, Histories
from fullrank.evaluation import Evaluation, EvaluationResult, evaluate
from fullrank.evaluation.later_events import evaluate_later, later_events
from fullrank.evaluation.targets import Targets, evaluated_users
from fullrank.inference.recommend import rank
from refusals import refused
from tests.training.conftest import tiny

LISTS = Evaluation(ks=(5,), metrics=("ndcg", "recall"), bootstrap=10, seen="keep")
PERIODS = "split={kind: global_time, validation_from: 0.5, test_from: 0.75}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> fr.Store:
    return fr.prepare(shop_events(), tmp_path_factory.mktemp("shop") / "store", users=shop_people(), **SHOP_FEATURES)


@pytest.fixture(scope="module")
def periods(tmp_path_factory: pytest.TempPathFactory) -> fr.Store:
    """A store whose users have several targets each."""
    return fr.prepare(shop_events(), tmp_path_factory.mktemp("periods") / "store", users=shop_people(), set=[PERIODS],
                      **SHOP_FEATURES)  # fmt: skip


def types_of(store: fr.Store) -> list[str]:
    """The rating of each event of a store, as the vocabulary has it."""
    assert store.features is not None and store.event_features is not None
    values = ["missing", "unknown", *store.features.lookups["rating"].values]  # type: ignore[union-attr]
    return [values[code] for code in np.asarray(store.event_features.categorical)[:, 0]]


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("values", [("4", "5"), ("1",), ()])
def test_users_of_several_targets_event_by_event(periods: fr.Store, split: str, values: tuple[str, ...]) -> None:
    """Against a loop over users: what is asked, all events before the first of it, and its request."""
    whole, types = periods.eval_set(split, without_history=True), types_of(periods)
    found = Targets(feature="rating", values=values).of_users(whole, periods.features)
    rows = {int(user): row for row, user in enumerate(found.users)}
    assert (np.diff(found.users) > 0).all() and len({len(one) for one in found.targets}) > 1
    labels = Targets(feature="rating").known(periods.features)[1]
    known = found.histories.features
    assert known is not None and known.asked is not None and known.user is not None and found.types is not None
    for user, start, end in zip(whole.users, whole.targets.starts, whole.targets.ends, strict=True):
        places = [place for place in range(start, end) if not values or types[place] in values]
        if not places:
            assert int(user) not in rows
            continue
        row = rows.pop(int(user))
        assert [*found.targets][row].tolist() == [periods.items[place] for place in places]
        history = found.histories.items
        assert (history.starts[row], history.ends[row]) == (periods.offsets[user], places[0])
        assert known.asked.rows[row] == places[0] and known.user.rows[row] == user
        assert known.asked_at is not None and known.asked_at[row] == periods.times[places[0]]  # type: ignore[index]
        there = {types[place] for place in places}
        assert labels[found.types[row]] == (there.pop() if len(there) == 1 else "(several)")
    assert not rows


def test_an_evaluation_of_chosen_types(store: fr.Store) -> None:
    """Of one target each the numbers are those of its users, who have the same lists; the others are counted."""
    model: Any = shop_predictor(store, tiny("model.features=auto")).model
    whole = evaluate(model, store, "test", LISTS)
    chosen = LISTS.override("targets={feature: rating, values: [4, 5]}")
    found = evaluate(model, store, "test", chosen)
    last = [types_of(store)[place] for place in store.eval_set("test").targets.starts]
    kept = np.isin(last, ["4", "5"])
    assert 0 < kept.sum() < len(kept) and np.array_equal(found.per_user.users, whole.per_user.users[kept])
    assert np.array_equal(found.per_user.lists, whole.per_user.lists[kept])  # type: ignore[index]
    assert found.metrics["ndcg@5"] == pytest.approx(whole.per_user.values["ndcg@5"][kept].mean())
    assert found.protocol["target_types"] == {
        "feature": "rating", "values": ["4", "5"], "users_without": int((~kept).sum())
    }  # fmt: skip
    assert f"targets of rating 4, 5 ({(~kept).sum()} users have none)" in str(found)
    with refused("protocols-differ", "target_types"):
        fr.compare(whole, found, "ndcg@5")
    told = evaluate(model, store, "test", LISTS.override("targets={feature: rating}"))
    assert told.metrics == whole.metrics and "target_types" not in told.protocol
    assert fr.compare(whole, told, "ndcg@5").difference == 0
    for name in ("1", "2", "3", "4", "5"):
        some = np.array(last) == name
        assert told.slices["type"][name]["count"] == some.sum()
        assert told.slices["type"][name]["recall@5"] == pytest.approx(whole.per_user.values["recall@5"][some].mean())
    assert set(found.slices["type"]) == {"4", "5"} and "type" not in whole.slices
    assert "target_types" not in whole.protocol and "slices" not in whole.protocol


@pytest.mark.parametrize("split", ["validation", "test"])
def test_no_list_knows_the_type_of_its_target(periods: fr.Store, split: str) -> None:
    """Planted: other features of the events that are asked for, and of all behind them; and of the one before."""
    model: Any = shop_predictor(periods, tiny("model.features={request: [], user: []}")).model
    targets = Targets(feature="rating", values=("4", "5"))
    found = targets.of_users(periods.eval_set(split), periods.features)
    before = rank(model, found.histories, k=5)
    known = found.histories.features
    assert known is not None and known.event is not None
    first = found.histories.items.ends
    for starts, same in ((first, True), (first - 1, False)):
        ids = np.array(known.event.categorical)
        places = Jagged(periods.items, starts, periods.offsets[found.users + 1]).places()
        ids[places] = np.where(ids[places] == 2, 3, 2)
        event = replace(known.event, categorical=ids.astype(np.int32))
        histories = replace(found.histories, features=replace(known, event=event))
        assert np.array_equal(before.scores, rank(model, histories, k=5).scores) == same


def test_a_user_whose_first_event_is_of_another_type_is_not_new() -> None:
    """The type of event that is asked for comes behind what is known of a user that training never saw."""
    encoder = shop_encoder()
    table = Histories(Jagged.from_lists([[], [7]]))
    items = np.array([5, 6, 7, 8])
    users = EvalSet(
        replace(table, items=Jagged(items, np.array([0, 3]), np.array([0, 3])), users=np.arange(2),
                features=HistoryFeatures(encoder[1])),
        Jagged(items, np.array([0, 3]), np.array([3, 4])),
    )  # fmt: skip
    found = Targets(feature="type", values=("buy",)).of_users(users, encoder[0])
    assert found.users.tolist() == [0] and [one.tolist() for one in found.histories.items] == [[5, 6]]
    assert [one.tolist() for one in found.targets] == [[7]]


def shop_encoder() -> Any:
    from featured import fitted, table_of

    events = pl.DataFrame({"type": ["view", "cart", "buy", "view"]})
    encoder = fitted({"event": events})
    return encoder, table_of(encoder, "event", events)


def test_later_events_and_lists_are_told_by_type(store: fr.Store, tmp_path: Path) -> None:
    later = shop_events().with_columns(pl.col("timestamp") + 10**7)
    predictor = shop_predictor(store, tiny("model.features=auto"))
    some = LISTS.override("targets={feature: rating, values: 5}")
    found = evaluate_later(predictor.model, later_events(later, predictor.catalog, store), some)
    users = later.filter(pl.col("rating") == 5)["user_id"].n_unique()
    assert found.protocol["users"] == users and set(found.slices["type"]) == {"5"}
    with refused("no-users-in-split", "rating"):
        unrated = later_events(later.drop("rating"), predictor.catalog, store)
        evaluate_later(predictor.model, unrated, some)
    found.save(tmp_path / "saved")
    assert EvaluationResult.load(tmp_path / "saved").dump() == found.dump()
    lists = pl.DataFrame({"user_id": store.user_ids, "item_id": store.catalog.ids[0], "rank": 1})
    measured = fr.evaluate_lists(lists, store, set=["targets={feature: rating, values: [5]}", "seen=keep"])
    assert measured.slices["type"]["5"]["count"] == types_of_targets(store).count("5")


def types_of_targets(store: fr.Store) -> list[str]:
    return [types_of(store)[place] for place in store.eval_set("test", without_history=True).targets.starts]


@pytest.mark.parametrize(("given", "said"), [
    ("{feature: ratings}", ("unknown-feature", "'ratings'", "did you mean 'rating'", "(allowed: rating)")),
    ("{feature: dwell}", ("unknown-feature", "(allowed: rating)")),
    ("{feature: rating, values: [6]}", ("unknown-type", "'6'", "1, ")),
    ("{values: [5]}", ("invalid-setting", "feature")),
])  # fmt: skip
def test_what_is_not_there_is_told(store: fr.Store, given: str, said: tuple[str, ...]) -> None:
    model: Any = shop_predictor(store, tiny()).model
    with refused(*said):
        evaluate(model, store, "test", LISTS.override(f"targets={given}"))


def test_a_store_without_features_is_told(tmp_path: Path) -> None:
    bare = fr.prepare(shop_events(), tmp_path / "bare")
    model: Any = shop_predictor(bare, tiny()).model
    with refused("unknown-feature", "none"):
        evaluate(model, bare, "test", LISTS.override("targets={feature: rating}"))


def test_the_users_of_a_saved_evaluation_are_found_again(periods: fr.Store) -> None:
    model: Any = shop_predictor(periods, tiny()).model
    found = evaluate(model, periods, "test", LISTS.override("targets={feature: rating, values: [2]}", "empty=answer"))
    again = evaluated_users(periods, found.protocol)
    assert np.array_equal(np.sort(again.users), found.per_user.users)
    assert int(again.truth.lengths.sum()) == found.protocol["targets"]
