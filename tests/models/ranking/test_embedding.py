"""The fused table equals a table per field, in values and gradients; its settings; and what is refused."""

import pytest
import torch
from torch import Tensor

from clicks import FIELDS, impressions
from fullrank.data.batch import Bag
from fullrank.data.impressions.schema import FieldInfo
from fullrank.models.ranking.embedding import Embedding, FieldEmbedding
from fullrank.models.ranking.fused import FusedTable, flattened
from fullrank.models.ranking.model import RankingModel
from refusals import refused
from tiny import close, shaken

BOTH = frozenset({"tokens", "linear"})


def made(*settings, reads=BOTH) -> FieldEmbedding:
    torch.manual_seed(0)
    module = FieldEmbedding(FIELDS, Embedding(dim=6).override(*settings), reads)
    shaken(module)
    return module


def everything(found) -> Tensor:
    return torch.cat([part for _, part in sorted(found, key=lambda one: one[0])], 1)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("mode", ["mean", "sum"])
@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("names", [{f.name for f in FIELDS}, {"item", "history"}, {"genres"}, {"user", "hour"}])
def test_one_table_equals_many(names, width, mode, sparse) -> None:
    batch, table = impressions(13), shaken(FusedTable(FIELDS, names, width, mode, sparse))
    found = []
    for tokens in (table(batch), table.reference(batch)):
        values = {place: part[:, n] for places, part in tokens for n, place in enumerate(places)}
        assert sorted(values) == [p for p, f in enumerate(FIELDS) if f.name in names and f.kind != "numeric"]
        out = torch.stack([values[place] for place in sorted(values)])
        table.zero_grad()
        out.pow(3).sum().backward()
        found.append((out, table.table.grad.to_dense()))
    assert all(close(a, b) for a, b in zip(*found, strict=True))


def test_tokens_stand_in_the_order_of_the_schema() -> None:
    module, batch = made(), impressions()
    tokens = module(batch).tokens
    assert tokens.shape == (11, 7, 6)
    (table,) = module.tables
    assert close(tokens[:, 3], table.table[table.starts["item"] + batch.categorical[:, 1]])
    known = batch.numeric[:, :1] * module.numeric.weight[0]
    price = torch.where(batch.missing[:, :1], module.numeric.missing[0], known)
    assert close(tokens[:, 1], price)


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


def looked_up(batch, starts, bags, columns) -> list:
    """The rows of a table that a batch reads; an empty bag reads the missing value."""
    rows = {int(i) + starts[name] for place, name in enumerate(columns) for i in batch.categorical[:, place]}
    for bag, name in zip(batch.bags, bags, strict=True):
        for ids, n in zip(bag.ids, bag.lengths, strict=True):
            rows |= {int(i) + starts[name] for i in (ids[:n] if n else [0])}
    return sorted(rows)


def test_the_penalty_counts_each_row_once() -> None:
    module, batch = made("l2=0.5", reads=frozenset({"tokens"})), impressions(50)
    (table,) = module.tables
    rows = looked_up(batch, table.starts, ("genres", "history"), ("user", "item", "hour"))
    numbers = sum(p.square().sum() for p in module.numeric.parameters())
    assert close(module.penalty(batch), 0.25 * (table.table[rows].square().sum() + numbers))
    whole = made("l2=0.5", "l2_on=table", reads=frozenset({"tokens"}))
    assert close(whole.penalty(batch), 0.25 * (whole.tables[0].table.square().sum() + numbers))


def test_an_empty_bag_has_the_missing_value() -> None:
    ids, offsets = flattened(Bag(torch.tensor([[5, 6], [3, 4]]), torch.tensor([0, 2])))
    assert ids.tolist() == [0, 3, 4] and offsets.tolist() == [0, 1]


def test_starting_values() -> None:
    torch.manual_seed(0)
    module = FieldEmbedding([FieldInfo("a", "categorical", 5000)], Embedding(dim=16), frozenset({"tokens"}))
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
def test_idle_settings_are_refused(settings, said) -> None:
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
    spec, reads, batch = Embedding(dim=6, l2=0.5), frozenset({"tokens"}), impressions()
    module = shaken(FieldEmbedding(FIELDS, spec, reads, groups))
    found = module(batch).contexts
    assert [tuple(part.shape) for part in found] == [(11, 2, 6), (11, 0, 6), (11, 1, 6)]
    own = module.contexts["0"]
    assert close(found[0][:, 0], own.table[own.starts["user"] + batch.categorical[:, 0]]), "in the order of the schema"
    assert close(found[0][:, 1], own.table[own.starts["item"] + batch.categorical[:, 1]])
    plain = FieldEmbedding(FIELDS, spec, reads)
    assert module.looked_up() - plain.looked_up() == 6 * (12 + 9 + 7)
    assert len(module._all_tables()) == 3 and not plain(batch).contexts
    module.penalty(batch).backward()
    assert all(table.table.grad.any() for table in module.contexts.values())


@pytest.mark.parametrize("names", [("users",), ("price",), ("history",), ("user", "user")])
def test_a_context_that_cannot_be_looked_up_is_refused(names) -> None:
    with refused("repeated-field" if len(names) > 1 else "unknown-field", names[0]):
        FieldEmbedding(FIELDS, Embedding(), frozenset({"tokens"}), (names,))
