"""Data as every ranker takes it: values unseen and missing, columns lacking or wrong, labels that are none, and fields
in another order, which moves ids and weights alike and gives the same logits.
"""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from clicks import FIELDS, impressions
from fullrank.core.spec import Spec
from fullrank.data.batch import Impressions
from fullrank.data.impressions.store import ImpressionStore
from fullrank.inference.predict import predict
from fullrank.models.ranking.fused import FusedTable
from fullrank.models.ranking.model import RankingModel, RankingModule
from rankers_small import ALL, DIM, SYMMETRIC, model, small
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


ORDER = [3, 0, 6, 1, 5, 2, 4]
"""Place of each field of the permuted schema in the old one."""
PERMUTED = tuple(FIELDS[place] for place in ORDER)


def whole_blocks(pair) -> Spec:
    """Small, with a tokeniser whose weights belong to single fields: one that cuts chunks across fields has none."""
    spec = small(pair)
    return spec.override("tokeniser={mode: vector, hidden: 5}") if "tokeniser" in type(spec).model_fields else spec


def swapped(label, value, order) -> Tensor:
    """A parameter for fields in another order: each dimension made of one block per field has its blocks moved."""
    at = torch.tensor(order)
    for dim, size in enumerate(value.shape):
        rest = 5 if label == "head.weight" and size == 7 * DIM + 5 else 0  # dcnv2: the perceptron's 5 come last
        if size - rest in (7 * DIM, 7 * 7, 7 * 3, 7 * 8):
            fields, others = value.split([size - rest, rest], dim)
            blocks = fields.unflatten(dim, (7, -1)).index_select(dim, at)
            if label == "cin.0.weight":  # pairs of fields
                blocks = blocks.index_select(dim + 1, at)
            value = torch.cat([blocks.flatten(dim, dim + 1), others], dim)
    return value


def permuted(batch) -> Impressions:
    """The columns of a batch in the order that a store of the permuted schema has them."""

    def moved(*kinds):
        old, new = ([f.name for f in fields if f.kind in kinds] for fields in (FIELDS, PERMUTED))
        return [old.index(name) for name in new]

    numbers = moved("numeric")
    return replace(
        batch, categorical=batch.categorical[:, moved("categorical")], numeric=batch.numeric[:, numbers],
        missing=batch.missing[:, numbers], bags=tuple(batch.bags[at] for at in moved("bag", "sequence")),
    )  # fmt: skip


def carried(one, two, symmetric) -> None:
    """The weights of a model into one of the permuted schema: a field's rows, numbers and blocks where it is now."""
    tables = [
        {f"{label}.table": m for label, m in made.named_modules() if isinstance(m, FusedTable)} for made in (one, two)
    ]
    old, new = one.state_dict(), two.state_dict()
    numeric = [[f.name for f in fields if f.kind == "numeric"] for fields in (FIELDS, PERMUTED)]
    for label, value in new.items():
        if label in tables[0]:
            for field in FIELDS:
                if field.name in tables[0][label].starts:
                    owner = next(f for f in FIELDS if f.name == (field.shares or field.name))
                    here, there = (side[label].starts[field.name] for side in (tables[1], tables[0]))
                    value[here : here + owner.size] = old[label][there : there + owner.size]
        elif "numeric" in label:
            value.copy_(old[label][[numeric[0].index(name) for name in numeric[1]]])
        else:
            own = label.removeprefix("ranker.")
            value.copy_(old[label] if symmetric or own == label else swapped(own, old[label], ORDER))


@ALL
def test_the_order_of_the_schema_is_a_convention(pair) -> None:
    """The same of the whole model, from ids to logits."""
    spec = whole_blocks(pair)
    dim = {"dim": DIM} if "tokens" in spec.reads else {}
    click = RankingModel(ranker=spec, embedding=dim)
    one, two = (shaken(click.build(fields), seed=seed).eval() for seed, fields in ((1, FIELDS), (2, PERMUTED)))
    batch = impressions(40)
    carried(one, two, pair[1] in SYMMETRIC)
    assert close(two.output(permuted(batch)).logits, one.output(batch).logits, 1e-4)
    with torch.no_grad():
        next(p for p in two.embedding.parameters() if p.ndim == 2).add_(0.3)
    assert not close(two.output(permuted(batch)).logits, one.output(batch).logits, 1e-4)
