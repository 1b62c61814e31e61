"""A cascade equals its slow reference: candidates joined with every table, predicted row by row, and sorted.

And what it refuses.
"""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from featured import shop_predictor
from fullrank.cascade import Cascade, RankingStage, RetrievalStage, rerank
from fullrank.evaluation import Evaluation
from fullrank.inference.predict import predict
from fullrank.inference.predictor import Predictor
from fullrank.inference.search import Decoding
from fullrank.models.sequential.model import Recommender
from refusals import refused
from tests.cascade.conftest import (
    BEGIN,
    HISTORIES,
    ITEMS,
    SCHEMA,
    USERS,
    Both,
    goods,
    log,
    made,
    people,
    ranker,
    retriever,
)
from tests.training.conftest import tiny
from tiny import shaken, with_codes


def reference(
    cascade: Cascade, histories: Any, candidates: int, context: dict[str, Any], users: Any, items: Any
) -> Any:
    """Every candidate with its probability, in the ranker's order; equal ones in the retriever's."""
    stage = cascade.retriever
    found = Predictor(stage.model, stage.catalog).recommend(histories, k=candidates)
    pairs = found.join(users, on="user", how="left", maintain_order="left")
    pairs = pairs.join(items, on="item", how="left", maintain_order="left")
    pairs = pairs.with_columns(**{name: pl.lit(value) for name, value in context.items()})
    scored = predict(cascade.ranker.model, cascade.ranker.encoder, pairs)
    return scored.sort(["user", "probability", "rank"], descending=[False, True, False], maintain_order=True)


@pytest.mark.parametrize("context", [{"hour": 3}, {"hour": None}, {"hour": 3, "price": 7.5, "tags": "a|zebra"}])
def test_it_equals_the_joined_table(cascade: Cascade, context: dict[str, Any]) -> None:
    items = goods().drop([name for name in context if name != "hour"])
    expected = reference(cascade, HISTORIES, 12, context, people(), items)
    found = cascade.recommend(HISTORIES, k=12, candidates=12, context=context).sort("user", maintain_order=True)
    assert found.select("user", "item").equals(expected.select("user", "item"))
    assert np.allclose(found["score"], expected["probability"], rtol=1e-6)
    assert found["score"].n_unique() > 200 and found.columns == ["user", "item", "score", "rank", "source"]
    top = cascade.recommend(HISTORIES, k=3, candidates=12, context=context).sort("user", maintain_order=True)
    assert top.equals(found.filter(pl.col("rank") <= 3))


def test_a_retriever_may_generate_semantic_ids(both: Both) -> None:
    codes = np.stack([np.arange(ITEMS) // 4, np.arange(ITEMS) % 4], 1)
    catalog = with_codes(both[0].catalog, codes, (10, 4))
    rotary = "encoder={kind: transformer, layers: 1, positions: none, attention: {kind: softmax, heads: 2, rope: true}}"
    spec = Recommender(dim=8, max_length=5).override("items=semantic", "task=generate", rotary)
    beam = Evaluation(decoding=Decoding(kind="beam", beams=ITEMS))
    stage = RetrievalStage(shaken(spec.build(catalog)).eval(), catalog, both[0], beam)
    cascade = Cascade(stage, ranker(both[1]), users=people(), items=goods())
    expected = reference(cascade, HISTORIES, 12, {"hour": 3}, people(), goods())
    found = cascade.recommend(HISTORIES, k=12, candidates=12, context={"hour": 3}).sort("user", maintain_order=True)
    assert found["item"].to_list() == expected["item"].to_list()


def test_blocks_and_batches_change_nothing(cascade: Cascade, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no block holds more pairs than it may: memory does not grow with the number of users."""
    whole = cascade.recommend(HISTORIES, k=5, candidates=11, context={"hour": 1})
    counted = Mock(side_effect=rerank.probabilities)
    monkeypatch.setattr(rerank, "PAIRS", 40)
    monkeypatch.setattr(rerank, "BATCH", 7)
    monkeypatch.setattr(rerank, "probabilities", counted)
    told: list[tuple[int, int]] = []
    parts = cascade.recommend(
        HISTORIES, k=5, candidates=11, context={"hour": 1}, progress=lambda *done: told.append(done)
    )
    assert parts["item"].equals(whole["item"]) and np.allclose(parts["score"], whole["score"], rtol=1e-6)
    assert max(call.args[2].size for call in counted.call_args_list) <= 40
    assert counted.call_count == -(-USERS // 3) and told[-1] == (USERS, USERS)


def test_unknown_users_and_nobody(cascade: Cascade, both: Both) -> None:
    """A user whom nobody knows is unknown (id 1) with missing features (id 0); in a bare list all of it is missing."""
    asked = {"u1": [3, 4], "stranger": [3, 4], "u24": [3, 4]}
    users = people().filter(pl.col("user") != "stranger")
    expected = reference(cascade, asked, 9, {"hour": 2}, users, goods())
    found = cascade.recommend(asked, k=9, candidates=9, context={"hour": 2}).sort("user", maintain_order=True)
    assert found["item"].to_list() == expected["item"].to_list()
    nobody = cascade.recommend([[3, 4]], k=9, candidates=9, context={"hour": 2})
    assert nobody["user"].to_list() == [0] * 9
    nulls = pl.DataFrame({"user": [0]}).join(people().with_columns(user=pl.lit(-1)), on="user", how="left")
    expected = reference(cascade, [[3, 4]], 9, {"hour": 2}, nulls, goods()).drop("probability")
    again = predict(cascade.ranker.model, both[1].encoder, expected.with_columns(user=pl.lit(None)))
    assert np.allclose(np.sort(nobody["score"]), np.sort(again["probability"]), rtol=1e-6)


def test_a_context_for_each_user(cascade: Cascade, tmp_path: Path) -> None:
    hours = pl.DataFrame({"user": [f"u{u}" for u in range(USERS)], "hour": [u % 24 for u in range(USERS)], "x": 1})
    found = cascade.recommend(HISTORIES, k=4, candidates=9, context=hours)
    for user in ("u3", "u17"):
        alone = cascade.recommend({user: HISTORIES[user]}, k=4, candidates=9, context={"hour": int(user[1:]) % 24})
        part = found.filter(pl.col("user") == user)
        assert part["item"].equals(alone["item"]) and np.allclose(part["score"], alone["score"], rtol=1e-6)
    hours.write_csv(tmp_path / "hours.csv")
    assert cascade.recommend(HISTORIES, k=4, candidates=9, context=tmp_path / "hours.csv")["item"].equals(found["item"])


def test_features_are_fields_of_the_ranker_too(cascade: Cascade, both: Both, tmp_path: Path) -> None:
    """Over the context and the table of users, of those of whom they say something; in any of their forms."""
    said: dict[str, Any] = {
        "u3": {"hour": 5, "age": 61, "town": "t2"}, "u4": {}, "u8": {"town": None, "income": 3.5}, "u9": {"hour": None},
    }  # fmt: skip
    asked = {user: HISTORIES[user] for user in said}
    known = people().filter(pl.col("user").is_in(list(said))).sort("user").with_columns(
        age=pl.Series([61, 24, 28, 29]), town=pl.Series(["t2", "t4", None, "t4"]),
        income=pl.Series([300.0, 400.0, 3.5, 900.0]),
    )  # fmt: skip
    hours = pl.DataFrame({"user": list(said), "hour": [5, 7, 7, None]})
    how: dict[str, Any] = {"k": 9, "candidates": 9}
    expected = made(*both, users=known).recommend(asked, context=hours, **how)
    found = cascade.recommend(asked, features=said, context={"hour": 7}, **how)
    assert found.equals(expected) and not found.equals(cascade.recommend(asked, context={"hour": 7}, **how))
    rows = [said[user] for user in asked]
    bare = cascade.recommend(list(asked.values()), features=rows, context={"hour": 7}, **how)
    alone = cascade.recommend(list(asked.values()), features=[rows[0]] * 4, context=None, **how)
    assert bare["user"].unique().to_list() == [0, 1, 2, 3] and alone.filter(pl.col("user") == 0)["score"].equals(
        bare.filter(pl.col("user") == 0)["score"]
    )
    hours.write_csv(tmp_path / "hours.csv")
    one = cascade.recommend(asked, features=tmp_path / "hours.csv", user_col="user", **how)
    assert one.equals(cascade.recommend(asked, context=hours, **how))
    with refused("unknown-feature", "price", "hour, income, town, age"):
        cascade.recommend(asked, features={"u3": {"price": 3}}, context={"hour": 7}, **how)
    with refused("missing-column", "hour"):
        cascade.recommend(asked, features={"u3": {"age": 3}}, **how)


def test_tables_of_the_store_are_the_default(both: Both, tmp_path: Path) -> None:
    """Columns that were prepared with the events need no tables; ids of the store need no histories."""
    everything = [("u0", item, BEGIN) for item in range(ITEMS)] + [(user, 1, BEGIN + 9) for user in HISTORIES]
    store = fr.prepare(
        pl.DataFrame(everything, schema=["user_id", "item_id", "timestamp"], orient="row"),
        tmp_path / "store", items=goods().rename({"item": "item_id"}), users=people().rename({"user": "user_id"}),
    )  # fmt: skip
    bare = Cascade(retriever(store), ranker(both[1]))
    told = made(store, both[1])
    how: dict[str, Any] = {"k": 5, "candidates": 9, "context": {"hour": 4}}
    one, two = (c.recommend(users=["u3", "u0"], bare="skip", **how) for c in (bare, told))
    assert one.equals(two) and one["user"].unique().to_list() == ["u3"], "u0 has seen everything"
    three = told.recommend({"u3": [1]}, **how)
    assert three["item"].equals(one["item"])


def test_equal_scores_keep_the_retrievers_order(both: Both) -> None:
    flat = made(both[0], ranker(both[1], scale=0.0))
    found = flat.recommend(HISTORIES, k=7, candidates=20, context={"hour": 4})
    own = flat.predictor.recommend(HISTORIES, k=7)
    assert found.drop("score", "source").equals(own.drop("score", "source"))
    assert set(found["source"]) == {"ranker"} and set(own["source"]) == {"model"}


def test_a_blend_goes_from_one_order_to_the_other(cascade: Cascade) -> None:
    how: dict[str, Any] = {"k": 8, "candidates": 8, "context": {"hour": 4}}
    own = cascade.predictor.recommend(HISTORIES, k=8)
    lists = {blend: cascade.recommend(HISTORIES, blend=blend, **how) for blend in (0.0, 1e-9, 0.5, 1.0)}
    assert lists[1.0]["item"].equals(own["item"]) and lists[1e-9]["item"].equals(lists[0.0]["item"])
    assert not lists[0.5]["item"].equals(own["item"]) and not lists[0.5]["item"].equals(lists[0.0]["item"])
    mixed = lists[0.5].group_by("user").agg(pl.col("score").mean())
    assert np.allclose(mixed["score"], 0, atol=1e-6), "standardised over each user's candidates"


def test_the_callers_type_of_frame_comes_back(cascade: Cascade) -> None:
    import pandas as pd

    frame = pd.DataFrame({"user_id": ["u1", "u1", "u2"], "item_id": [1, 2, 3]})
    found = cascade.recommend(frame, k=2, candidates=5, context={"hour": 4})
    assert isinstance(found, pd.DataFrame) and list(found["user"]) == ["u1", "u1", "u2", "u2"]


ASK: dict[str, Any] = {"k": 2, "candidates": 5, "context": {"hour": 1}}


@pytest.mark.parametrize(
    ("settings", "ask", "says"),
    [
        ({"item": "itm"}, {}, ("unknown-item-column", "itm", "item")),
        ({"user": "price"}, {}, ("id-not-categorical", "price")),
        ({"user": "item"}, {}, ("repeated-column", "user='item'", "item='item'")),
        ({"items": goods().rename({"item": "sku"})}, {}, ("missing-id-column", "item", "item_id")),
        (
            {"items": goods().drop("price")},
            {},
            ("missing-column", "reads 'price'", "income, liked, town, age", "tags, colours", "'price': VALUE"),
        ),
        (
            {"users": people().drop("age", "town")},
            {},
            ("missing-column", "'town', 'age'", "income, liked", "tags, price, colours"),
        ),
        ({}, {"context": None}, ("missing-column", "reads 'hour'", "context={'hour': VALUE}")),
        ({"users": people().with_columns(price=1.0)}, {}, ("column-in-both-tables", "'price'")),
        ({"users": pl.concat([people(), people().head(2)])}, {}, ("repeated-ids", "'user'", 4, "'u0'")),
        ({"users": people().with_columns(user=pl.lit(None))}, {}, ("missing-ids", "'user'", 25)),
        ({"users": people().with_columns(user=pl.col("user") + "x")}, {}, ("no-known-ids", "users", 1, "'user'")),
        ({"items": goods().with_columns(item=pl.col("item") + 1000)}, {}, ("no-known-ids", "items", 40, "'item'")),
        (
            {"items": goods().with_columns(price=pl.lit("cheap"))},
            {},
            ("unreadable-numbers", "'price' of the items", 40, "'cheap'"),
        ),
        ({}, {"context": {"hour": 1, "hours": 2}}, ("unknown-context-field", "'hours'", "'hour'")),
        ({}, {"context": {"hour": 1, "user": "me"}}, ("context-has-id", "'user'")),
        ({}, {"context": pl.DataFrame({"hour": [1]})}, ("missing-id-column", "context", "'user'", "'user_id'")),
        (
            {},
            {"context": pl.DataFrame({"user": ["u1"], "hr": [1]})},
            ("no-column-read", "context", "columns: hr", "user"),
        ),
        ({}, {"context": pl.DataFrame({"user": ["v1"], "hour": [1]})}, ("no-known-ids", "context", 1, "'user'")),
        ({}, {"k": 6}, ("too-few-candidates", "k=6", "candidates=5")),
        ({}, {"blend": 1.5}, ("share-out-of-range", "blend=1.5")),
        ({}, {"seen": "hide"}, ("unknown-seen-policy", "'hide'", "exclude, keep")),
        ({}, {"bare": "leave"}, ("unknown-choice", "bare='leave'", "error, skip")),
        ({}, {"histories": None, "users": ["u1", "zed"]}, ("unknown-user", "1 of 2", "'zed'")),
        ({}, {"histories": {"u1": list(range(ITEMS))}}, ("no-candidates", 1, "'u1'", "bare='skip'")),
    ],
)
def test_questions(both: Both, settings: dict[str, Any], ask: dict[str, Any], says: tuple[object, ...]) -> None:
    with refused(*says):
        made(*both, **settings).recommend(**({"histories": {"u1": [1, 2]}} | ASK | ask))


def test_schemas_without_users_or_items(both: Both, tmp_path: Path) -> None:
    def cascade(*fields: str, group: str | None = None, **more: str) -> Cascade:
        schema = SCHEMA | {"fields": fields, "group": group}
        in_town = log().with_columns(town=pl.lit("x"))
        store = fr.prepare_impressions(in_town, tmp_path / "store", schema=schema, overwrite=True)
        return Cascade(retriever(both[0]), ranker(store), **more)

    with refused("missing-id-column", "item, hour", "user=NAME"):
        cascade("item", "hour")
    with refused("missing-id-column", "user, hour", "item=NAME"):
        cascade("user", "hour")
    assert cascade("user", "item", group="town", user="user").user == "user"


def test_items_of_another_kind(both: Both, tmp_path: Path) -> None:
    other = log().with_columns(item=pl.col("item") + 5000)
    store = fr.prepare_impressions(other, tmp_path / "store", schema=SCHEMA)
    with refused("no-known-ids", "40"):
        made(both[0], store).recommend({"u1": [1, 2]}, **ASK)


def test_stages_the_wrong_way_round(both: Both, tmp_path: Path) -> None:
    store, shown = both
    found = fr.train("popularity", store, tmp_path / "popularity", progress=False)
    small = ["training.max_epochs=1", "evaluation.bootstrap=0", "model.embedding.l2=0"]
    ctr = fr.train("lr", shown, tmp_path / "lr", set=small, progress=False)
    with refused("not-a-recommender", ctr.path):
        Cascade(ctr, ctr)
    with refused("not-a-ranking-model", found.path):
        Cascade(found, found)
    with refused("store-differs", shown.path, found.path):
        Cascade(found, ctr, store=shown)
    cascade = Cascade(RetrievalStage(found.model(), found.catalog), RankingStage.of(ctr), users=people(), items=goods())
    with refused("missing-store", "store=FOLDER"):
        cascade.recommend(users=["u1"], **ASK)
    assert len(cascade.recommend({"u1": [1]}, **ASK)) == 2


def test_the_retriever_is_told_features(both: Both, tmp_path: Path) -> None:
    """Its candidates are those of its own lists with the same features, in every block."""
    events = log().select(user_id="user", item_id="item", timestamp="when", rating="label", device=pl.col("hour") % 3)
    store = fr.prepare(events, tmp_path / "rich", event_features=["rating"], request_features=["device"])
    alone = shop_predictor(store, tiny("model.features=auto"))
    stage = RetrievalStage(alone.model, alone.catalog, store)
    cascade = Cascade(stage, ranker(both[1]), users=people(), items=goods())
    users = store.user_ids.to_list()
    context, told = {"hour": 3}, {user: {"device": n % 3} for n, user in enumerate(users)}

    def candidates(features: Any) -> set[tuple[Any, ...]]:
        found = cascade.recommend(users=users, features=features, k=7, candidates=7, context=context)
        return set(found.select("user", "item").rows())

    expected = alone.recommend(users=users, features=told, data=store, k=7)
    assert candidates(told) == set(expected.select("user", "item").rows())
    assert candidates({user: {"device": 9} for user in users}) != candidates(told)
    both_lists = cascade.evaluate("test", context=context, candidates=20)
    assert both_lists.before.protocol["request_time"] == both_lists.after.protocol["request_time"] == "known"
