"""What every ranker makes of data: values unseen and missing, columns lacking or wrong, labels that are none."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from clicks import impressions
from fullrank.data.impressions.store import ImpressionStore
from fullrank.inference.predict import predict
from fullrank.models.ranking.model import RankingModel, RankingModule
from rankers_small import ALL, DIM, model, small
from refusals import refused
from tests.training.clicks import shop, table
from tiny import close, shaken

FM = ("rankers", "fm")
"""Where every ranker is alike: the check is not its own."""


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> ImpressionStore:
    return shop(tmp_path_factory.mktemp("laws") / "store")


def untrained(pair, store) -> RankingModule:
    """On the fields of a store; 0.924 and the like are no matter here."""
    spec = small(pair)
    if "tokens" in type(spec).model_fields:
        spec = spec.override("tokens=2", "width=6")
    torch.manual_seed(0)
    click = RankingModel(ranker=spec, embedding={"dim": DIM} if "tokens" in spec.reads else {})
    return shaken(click.build(store.fields)).eval()  # type: ignore[return-value]


@ALL
def test_unknown_and_missing_values_have_vectors_of_their_own(pair) -> None:
    """The logit of id 1 is that of the row of unknown values, whatever value it stands for; so is that of id 0."""
    made, batch = model(pair).eval(), impressions()
    for special in (0, 1):
        ids = batch.categorical.clone()
        ids[:, 1] = special
        before = made.output(replace(batch, categorical=ids)).logits
        with torch.no_grad():
            for table in [one for one in made.embedding._all_tables() if "item" in one.starts]:
                table.table[table.starts["item"] + 2 :][: 9 - 2].add_(0.0)
                table.table[table.starts["item"] + special] += 0.5
        after = made.output(replace(batch, categorical=ids)).logits
        assert not close(before, after)


@pytest.mark.parametrize("wrong", [2.0, -1.0, 0.5, float("nan")])
def test_labels_are_0_or_1(wrong) -> None:
    batch = impressions()
    batch.labels[3] = wrong
    with refused("invalid-label", "0 and 1"):
        model(FM)(batch)


@ALL
@pytest.mark.parametrize("update", ["adamw", "lazy_adam"])
def test_every_parameter_of_the_whole_model_learns(pair, update) -> None:
    made = model(pair, f"update={update}", "l2=0.1").train()
    sum(made(impressions(64)).values()).backward()
    for label, parameter in made.named_parameters():
        assert parameter.grad is not None, label
        grad = parameter.grad.to_dense()
        assert grad.isfinite().all() and grad.any(), f"{label} does not learn"


@ALL
def test_an_unseen_category_is_the_unknown_one(pair, store) -> None:
    """Whatever it is; a null is another thing, and every other column still counts."""
    made, given = untrained(pair, store), table(40).drop("label")
    new = [given.with_columns(user=pl.lit(value)) for value in (777, -5, None)]
    a, b, c = (predict(made, store.encoder, frame)["probability"].to_numpy() for frame in new)
    assert np.array_equal(a, b) and not np.allclose(a, c) and len(np.unique(a)) > 20
    assert np.isfinite(a).all() and not np.allclose(a, predict(made, store.encoder, given)["probability"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"item": None}, ("missing-column", "'item'")),
        ({"age": None}, ("missing-column", "'age'")),
        ({"user": pl.col("age").fill_null(0.5) + 0.25}, ("not-whole-numbers", "'user'", 20)),
        ({"user": pl.lit(0).cast(pl.Datetime)}, ("wrong-column-type", "'user'", "Datetime")),
        ({"age": pl.lit("old")}, ("unreadable-numbers", "'age'", 20, "'old'")),
        ({"age": pl.lit(float("inf"))}, ("unreadable-numbers", "'age'", 20, "inf")),
        ({"tags": pl.lit(3)}, ("wrong-column-type", "'tags'", "Int32")),
        ({"tags": pl.lit("a")}, ("missing-separator", "'tags'", "separator: '|'")),
    ],
)
def test_a_column_that_is_lacking_or_wrong(store, change, says) -> None:
    lost = [name for name, value in change.items() if value is None]
    given = table(20).drop(lost).with_columns(**{name: v for name, v in change.items() if v is not None})
    with refused(*says):
        predict(untrained(FM, store), store.encoder, given)
