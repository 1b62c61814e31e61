"""Permuting the fields of a schema permutes nothing but ids: the same weights, moved alike, give the same logits."""

from dataclasses import replace

import torch
from torch import Tensor

from clicks import FIELDS, impressions
from fullrank.core.spec import Spec
from fullrank.data.batch import Impressions
from fullrank.models.ranking.fused import FusedTable
from fullrank.models.ranking.model import RankingModel
from rankers_small import ALL, DIM, SYMMETRIC, small
from tiny import close, shaken

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
