"""What a cascade cannot do is said in one sentence, before any work."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fullrank as fr
from fullrank.cascade import Cascade, RankingStage, RetrievalStage
from refusals import refused
from tests.cascade.pieces import ITEMS, SCHEMA, Both, goods, log, made, people, ranker, retriever

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
