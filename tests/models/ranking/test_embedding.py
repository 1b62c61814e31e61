"""The fused table equals a table per field, in values and gradients; its settings; and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from clicks import FIELDS, impressions
from fullrank.data.batch import Bag
from fullrank.data.impressions.fields import FieldInfo
from fullrank.models.ranking.embedding import Embedding, FieldEmbedding
from fullrank.models.ranking.fused import FusedTable, flattened
from fullrank.models.ranking.model import RankingModel
from refusals import refused
from tiny import close, shaken

BOTH = frozenset({"tokens", "linear"})


def made(*settings: str, reads: frozenset[str] = BOTH) -> FieldEmbedding:
    torch.manual_seed(0)
    module = Embedding(dim=6).override(*settings).build(FIELDS, reads)
    shaken(module)
    return module


def everything(found: list[tuple[list[int], Tensor]]) -> Tensor:
    return torch.cat([part for _, part in sorted(found, key=lambda one: one[0])], 1)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("mode", ["mean", "sum"])
@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("names", [{f.name for f in FIELDS}, {"item", "history"}, {"genres"}, {"user", "hour"}])
def test_one_table_equals_many(names: set[str], width: int, mode: str, sparse: bool) -> None:
    batch, grads = impressions(13), []
    for fast in (True, False):
        table = shaken(FusedTable(FIELDS, names, width, mode, sparse))
        found = table(batch) if fast else table.reference(batch)
        values = {place: part[:, n] for places, part in found for n, place in enumerate(places)}
        assert sorted(values) == [p for p, f in enumerate(FIELDS) if f.name in names and f.kind != "numeric"]
        out = torch.stack([values[place] for place in sorted(values)])
        out.pow(3).sum().backward()
        grads.append((out.detach(), table.table.grad.to_dense()))
    assert close(grads[0][0], grads[1][0]) and close(grads[0][1], grads[1][1])


def test_tokens_stand_in_the_order_of_the_schema() -> None:
    module, batch = made(), impressions()
    tokens = module(batch).tokens
    assert tokens.shape == (11, 7, 6)
    (table,) = module.tables
    assert close(tokens[:, 3], table.table[table.starts["item"] + batch.categorical[:, 1]])
    known = batch.numeric[:, :1] * module.numeric.weight[0]
    price = torch.where(batch.missing[:, :1], module.numeric.missing[0], known)
    assert close(tokens[:, 1], price)


def test_permuting_the_schema_permutes_the_tokens() -> None:
    order = [3, 0, 6, 1, 5, 2, 4]
    module, batch = made(), impressions()
    fields = [FIELDS[place] for place in order]
    other = Embedding(dim=6).build(fields, BOTH)
    with torch.no_grad():
        for mine, theirs in zip(module._all_tables(), other._all_tables(), strict=True):
            for field in FIELDS:
                if field.name in mine.starts and field.shares is None:
                    rows = mine.table[mine.starts[field.name] :][: field.size]
                    theirs.table[theirs.starts[field.name] :][: field.size] = rows
        for mine, theirs in ((module.numeric, other.numeric), (module.linear_numeric, other.linear_numeric)):
            theirs.weight.copy_(mine.weight.flip(0))  # age stands before price now? see the order of numeric columns
            theirs.missing.copy_(mine.missing.flip(0))
        other.bias.copy_(module.bias)
    numeric = [f.name for f in fields if f.kind == "numeric"]
    flip = numeric == ["age", "price"]
    cats = [["user", "item", "hour"].index(f.name) for f in fields if f.kind == "categorical"]
    bags = [["genres", "history"].index(f.name) for f in fields if f.kind in ("bag", "sequence")]
    moved = replace(
        batch, categorical=batch.categorical[:, cats], bags=tuple(batch.bags[b] for b in bags),
        numeric=batch.numeric.flip(1) if flip else batch.numeric,
        missing=batch.missing.flip(1) if flip else batch.missing,
    )  # fmt: skip
    if not flip:
        with torch.no_grad():
            for one in (other.numeric, other.linear_numeric):
                one.weight.copy_(one.weight.flip(0))
                one.missing.copy_(one.missing.flip(0))
    assert close(other(moved).tokens, module(batch).tokens[:, order])
    assert close(other(moved).linear, module(batch).linear)


def test_linear_is_bias_plus_one_weight_per_value() -> None:
    module, batch = made(), impressions()
    total = module.bias + everything(module.linear_table.reference(batch)).sum((1, 2))
    total = total + module.linear_numeric(batch.numeric, batch.missing).sum((1, 2))
    assert close(module(batch).linear, total)


def test_nothing_is_made_that_is_not_read() -> None:
    assert len(made(reads=frozenset({"linear"})).tables) == 0
    lean = made(reads=frozenset({"tokens"}))
    assert lean.linear_table is None and lean(impressions()).linear is None


def test_a_field_of_another_width_is_projected() -> None:
    module, batch = made("dims=[[user,3],[item,9]]"), impressions()
    assert sorted(table.table.shape[1] for table in module.tables) == [3, 6, 9]
    tokens = module(batch).tokens
    wide = next(table for table in module.tables if table.table.shape[1] == 9)
    assert tokens.shape == (11, 7, 6)
    row = wide.table[wide.starts["item"] + batch.categorical[:, 1]]
    assert close(tokens[:, 3], row @ module.projections["3"])
    assert "4" in module.projections, "the history shares the table of item, so its width too"


def test_the_penalty_counts_each_row_once() -> None:
    module, batch = made("l2=0.5", reads=frozenset({"tokens"})), impressions(50)
    (table,) = module.tables
    used = {int(i) + table.starts["user"] for i in batch.categorical[:, 0]}
    used |= {int(i) + table.starts["item"] for i in batch.categorical[:, 1]}
    used |= {int(i) + table.starts["hour"] for i in batch.categorical[:, 2]}
    for bag, field in zip(batch.bags, ("genres", "history"), strict=True):
        for ids, n in zip(bag.ids, bag.lengths, strict=True):
            used |= {int(i) + table.starts[field] for i in (ids[:n] if n else [0])}
    rows = table.table[sorted(used)].square().sum()
    numbers = sum(p.square().sum() for p in module.numeric.parameters())
    assert close(module.penalty(batch), 0.25 * (rows + numbers))
    whole = made("l2=0.5", "l2_on=table", reads=frozenset({"tokens"}))
    assert close(whole.penalty(batch), 0.25 * (whole.tables[0].table.square().sum() + numbers))


def test_an_empty_bag_has_the_missing_value() -> None:
    ids, offsets = flattened(Bag(torch.tensor([[5, 6], [3, 4]]), torch.tensor([0, 2])))
    assert ids.tolist() == [0, 3, 4] and offsets.tolist() == [0, 1]


def test_starting_values() -> None:
    torch.manual_seed(0)
    module = Embedding(dim=16).build([FieldInfo("a", "categorical", 5000)], frozenset({"tokens"}))
    assert module.tables[0].table.std().item() == pytest.approx(1e-4, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"l2_on": "rows"}, ("setting-without-effect", "l2_on=rows")),
        (
            {"l2": 0.1, "l2_on": "table", "update": "lazy_adam"},
            ("settings-conflict", "l2_on=table", "update=adamw", "lazy_adam"),
        ),
        ({"dims": (("a", 3), ("a", 4))}, ("repeated-field", "dims", "['a', 'a']")),
        ({"dims": (("a", 16),)}, ("invalid-width", "'a'", "dim=16")),
    ],
)
def test_idle_settings_are_refused(settings: dict, said: tuple[str, ...]) -> None:
    with refused(*said):
        Embedding.parse(settings)


def test_wrong_fields_are_refused() -> None:
    with refused("unknown-field", "embedding.dims", "'usr'", "'user'"):
        made("dims=[[usr,3]]")
    with refused("unknown-field", "'history'", "own"):
        made("dims=[[history,3]]")
    with refused("setting-without-effect", "embedding.dim", "lr"):
        RankingModel.parse({"ranker": "lr", "embedding": {"dim": 8}})
    with refused("too-few-fields", "fm", 1):
        RankingModel(ranker="fm").build(FIELDS[:1])
    with refused("too-few-fields", "no fields"):
        RankingModel(ranker="lr").build(())


def test_contexts_have_tables_of_their_own() -> None:
    torch.manual_seed(0)
    groups = (("item", "user"), (), ("genres",))
    module, batch = shaken(Embedding(dim=6, l2=0.5).build(FIELDS, frozenset({"tokens"}), groups)), impressions()
    found = module(batch).contexts
    assert [tuple(part.shape) for part in found] == [(11, 2, 6), (11, 0, 6), (11, 1, 6)]
    own = module.contexts["0"]
    assert close(found[0][:, 0], own.table[own.starts["user"] + batch.categorical[:, 0]]), "in the order of the schema"
    assert close(found[0][:, 1], own.table[own.starts["item"] + batch.categorical[:, 1]])
    plain = Embedding(dim=6, l2=0.5).build(FIELDS, frozenset({"tokens"}))
    assert module.looked_up() - plain.looked_up() == 6 * (12 + 9 + 7)
    assert len(module._all_tables()) == 3 and not plain(batch).contexts
    module.penalty(batch).backward()
    assert all(table.table.grad.any() for table in module.contexts.values())


@pytest.mark.parametrize("names", [("users",), ("price",), ("history",), ("user", "user")])
def test_a_context_that_cannot_be_looked_up_is_refused(names: tuple[str, ...]) -> None:
    code, said = ("repeated-field", "user") if len(names) > 1 else ("unknown-field", names[0])
    with refused(code, said):
        Embedding().build(FIELDS, frozenset({"tokens"}), (names,))
