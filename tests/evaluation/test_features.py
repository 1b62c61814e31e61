"""What a protocol says of the features that a model reads, and of the request of its targets."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fullrank as fr
from featured import SHOP_FEATURES, shop_events, shop_people, shop_predictor
from fullrank.evaluation import Evaluation, evaluate
from fullrank.evaluation.later_events import evaluate_later, later_events
from fullrank.serving.messages import RecommendRequest
from fullrank.serving.model import ServedModel
from fullrank.serving.settings import ServeSettings
from refusals import refused
from tests.training.conftest import tiny

SPEC = Evaluation(ks=(5,), metrics=("ndcg",), bootstrap=10)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> fr.Store:
    return fr.prepare(shop_events(), tmp_path_factory.mktemp("shop") / "store", users=shop_people(), **SHOP_FEATURES)


def result(store: fr.Store, features: str | None) -> Any:
    settings = () if features is None else (f"model.features={features}",)
    return evaluate(shop_predictor(store, tiny(*settings)).model, store, "test", SPEC)


READ = {
    "auto": "known", "{request: [], user: []}": "unread", "{event: [], request: [gap], user: []}": "known",
    "{event: [], request: [device], user: []}": "known", "{event: [], request: []}": "unread",
}  # fmt: skip


@pytest.mark.parametrize("features", READ)
def test_the_protocol_says_what_is_read(store: fr.Store, features: str) -> None:
    found, plain = result(store, features), result(store, None)
    assert found.protocol["request_time"] == READ[features] and f"request {READ[features]}" in str(found)
    assert "request_time" not in plain.protocol and "features" not in plain.protocol
    if READ[features] == "unread":
        assert fr.compare(plain, found, "ndcg@5").users == found.protocol["users"]
    else:
        with refused("protocols-differ", "request_time ('unread' and 'known')"):
            fr.compare(plain, found, "ndcg@5")
    assert fr.compare(found, found, "ndcg@5").difference == 0


def test_the_features_may_differ(store: fr.Store) -> None:
    one, other = result(store, "{request: []}"), result(store, "{event: [rating], request: [], user: []}")
    assert one.protocol["features"] == {"event": ["rating", "dwell", "tags"], "user": ["country", "born", "likes"]}
    assert other.protocol["features"] == {"event": ["rating"]}
    fr.compare(one, other, "ndcg@5")


def test_of_later_events(store: fr.Store, tmp_path: Path) -> None:
    """Events without the columns tell nothing of the request, unless the model reads its time."""
    later = shop_events().with_columns(pl.col("timestamp") + 10**7)
    both = "user_id", "item_id", "timestamp"
    for features, table, told in (
        ("auto", later, "known"), ("auto", later.select(both), "unknown"),
        ("{request: [auto, hour]}", later.select(both), "known"), ("{request: []}", later.select(both), "unread"),
    ):  # fmt: skip
        predictor = shop_predictor(store, tiny(f"model.features={features}"))
        found = evaluate_later(predictor.model, later_events(table, predictor.catalog, store), SPEC)
        assert found.protocol["request_time"] == told


def test_the_store_of_an_evaluation_has_the_features(store: fr.Store, tmp_path: Path) -> None:
    """One with the same events and without features, or with others, has the same fingerprint and is refused."""
    run = fr.train(tiny("model.features=auto", "training.max_epochs=1"), store, tmp_path / "run", progress=False)
    bare = fr.prepare(shop_events(), tmp_path / "bare")
    other = fr.prepare(shop_events(), tmp_path / "other", event_features=["rating"])
    assert bare.fingerprint == store.fingerprint == other.fingerprint
    assert fr.evaluate(run, data=store).protocol["request_time"] == "known"
    for one in (bare, other):
        with refused("other-features"):
            fr.evaluate(run, data=one)
    timed = fr.train(tiny("model.features={request: [hour]}", "training.max_epochs=1"), bare, tmp_path / "timed",
                     progress=False)  # fmt: skip
    assert fr.evaluate(timed, data=bare).protocol["features"] == {"request": ["hour"]}
    dropped = fr.evaluate(run, set=["drop=0.3"])
    assert dropped.protocol["dropped"]["share"] == 0.3
    parts, whole = fr.evaluate(run, parts=3), fr.evaluate(run)
    assert parts.protocol == whole.protocol and parts.metrics["ndcg@10"] == pytest.approx(whole.metrics["ndcg@10"])
    served = ServedModel.open(run.path, ServeSettings.parse({"run": str(run.path)}), {})
    assert "rating" in served.read(RecommendRequest(history=[1]), [(1, 10.0, None)]).features.missing
    assert fr.diagnose(run).rows
    fr.explain(run)
