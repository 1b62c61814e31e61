"""Behaviour sequences in the whole model: packed equals padded, search keeps what it should, attention is needed."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from fullrank.data.batch import Bag, Impressions
from fullrank.metrics.ctr import auc
from fullrank.models.ranking import EVERY
from fullrank.models.ranking.embedding import EVENTS
from fullrank.models.ranking.model import RankingModel, RankingModule
from fullrank.models.ranking.sequences.reader import in_parallel, matching, matching_reference
from fullrank.ops.model_cost import counted
from refusals import refused
from sequences import FIELDS, PLANTED, RATED, SEARCH, TOGETHER, impressions, planted, planted_ratings
from tests.models.ranking.test_embedding import looked_up
from tiny import close, shaken

ATTENTION = "sequences=target_attention"
SETTINGS = {
    "pooled": (),
    "sum": ("embedding.bags=sum",),
    "searched": (f"sequences.{SEARCH}", "sequences.most=2"),
    "attention": (ATTENTION, "sequences.unit.hidden=[5]"),
    "softmax": (ATTENTION, "sequences.softmax=true", "sequences.unit.activation=prelu"),
    "together": (ATTENTION, f"sequences.{TOGETHER}", "sequences.unit.hidden=[]", "sequences.unit.activation=relu"),
    "together searched": (ATTENTION, f"sequences.{TOGETHER}", f"sequences.{SEARCH}", "sequences.most=3"),
    "of events": (ATTENTION, "sequences.together=[[history,words,kinds]]", "sequences.uneven=newest"),
    "widths": (ATTENTION, f"sequences.{TOGETHER}", "embedding.dims=[[item,3],[kind,6]]"),
}
"""Ways to read sequences."""
EACH = pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
SEVERAL = pytest.mark.parametrize("settings", [(ATTENTION, f"sequences.{TOGETHER}"), (f"sequences.{SEARCH}",)])
"""Ways to read several sequences side by side."""
RANKERS = {
    "dnn": ("ranker=dnn", "ranker.deep.hidden=[5]"),
    "fm": ("ranker=fm",),
    "rankmixer": ("ranker=rankmixer", "ranker.tokens=4", "ranker.event_tokens=2"),
}


def model(*settings, ranker="dnn") -> RankingModule:
    torch.manual_seed(0)
    spec = RankingModel().override("embedding.dim=4", *RANKERS[ranker], *settings)
    return shaken(spec.build(FIELDS)).eval()


def gradients(made, batch) -> dict:
    made.zero_grad()
    out = made.output(batch, EVERY)
    sum(x.pow(2).sum() for x in (out.logits, *out.captures.values())).backward()
    return {"logits": out.logits.detach()} | {
        label: p.grad.to_dense() for label, p in made.named_parameters() if p.grad is not None
    }


def alike(one, other) -> bool:
    """The same within what rounding does to the largest number of each tensor."""
    sizes = {key: value.abs().max().clamp_min(1) for key, value in one.items()}
    return one.keys() == other.keys() and all(close(one[key] / n, other[key] / n) for key, n in sizes.items())


@EACH
@pytest.mark.parametrize("ranker", RANKERS)
def test_packed_equals_padded(settings, ranker) -> None:
    """Value and gradients, whatever stands in the padding, with dense and sparse updates, and rows one by one."""
    made, batch = model(*settings, ranker=ranker), impressions(40)
    found = gradients(made, batch)
    assert alike(found, gradients(made, impressions(40, extra=3)))
    sparse = model(*settings, "embedding.update=lazy_adam", ranker=ranker)
    assert alike(found, gradients(sparse, batch))
    alone = [made.output(taken(batch, [row])).logits for row in range(6)]
    assert close(torch.cat(alone), found["logits"][:6])
    made.embedding.padded = True
    assert alike(found, gradients(made, batch))


def taken(batch, rows) -> Impressions:
    at = torch.tensor(rows)
    moved = {k: v[at] for k, v in vars(batch).items() if isinstance(v, Tensor)}
    return replace(batch, bags=tuple(Bag(bag.ids[at], bag.lengths[at]) for bag in batch.bags), **moved)


@pytest.mark.parametrize("activation", ["relu", "dice"])
def test_attention_by_hand(activation) -> None:
    made, batch = model(ATTENTION, f"sequences.{TOGETHER}", f"sequences.unit.activation={activation}"), impressions(7)
    (table,), (group,) = made.embedding.tables, made.embedding.attended
    tokens = made.embedding(batch).tokens
    for row in range(7):
        n = max(1, int(batch.bags[0].lengths[row]))
        empty = not batch.bags[0].lengths[row]
        q = torch.cat([tokens[row, 4], tokens[row, 7]])
        total = torch.zeros(8)
        for j in range(n):
            item, kind = (0 if empty else int(batch.bags[b].ids[row, j]) for b in (0, 3))
            k = torch.cat([table.table[table.starts["item"] + item], table.table[table.starts["kind"] + kind]])
            hidden = group.pooling.hidden(torch.cat([q, k, q - k, q * k])[None])
            total = total + (group.pooling.head(hidden)[0, 0] * k).detach()
        assert close(torch.cat([tokens[row, 1], tokens[row, 6]]), total)
    assert close(tokens[:, 5], model().embedding(batch).tokens[:, 5]), "a sequence without a target is pooled"


def test_what_is_known_of_events_alone_by_hand() -> None:
    """The target has no word: zeros in the query, so that a word weighs by itself and by what else the event is."""
    together = ("sequences.together=[[history,words]]", "sequences.unit.activation=relu")
    made, batch = model(ATTENTION, *together), impressions(7)
    history, genres, _, kinds = batch.bags
    draw = torch.Generator().manual_seed(1)
    words = Bag(torch.randint(6, history.ids.shape, generator=draw), history.lengths)
    batch = replace(batch, bags=(history, genres, words, kinds))
    (table,), group = made.embedding.tables, made.embedding.attended[0]
    tokens = made.embedding(batch).tokens
    for row, n in enumerate(history.lengths.tolist()):
        q, total = torch.cat([tokens[row, 4], torch.zeros(4)]), torch.zeros(8)
        for j in range(max(1, n)):
            at = [(name, int(bag.ids[row, j]) if n else 0) for name, bag in (("item", history), ("words", words))]
            k = torch.cat([table.table[table.starts[name] + one] for name, one in at])
            hidden = group.pooling.hidden(torch.cat([q, k, q - k, q * k])[None])
            total = total + (group.pooling.head(hidden)[0, 0] * k).detach()
        assert close(torch.cat([tokens[row, 1], tokens[row, 5]]), total)


@pytest.mark.parametrize("most", [None, 1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_search_equals_its_reference(most, seed) -> None:
    batch = impressions(60, seed, extra=seed % 3)
    bags, target = [batch.bags[3], batch.bags[0]], batch.categorical[:, 2]
    found = matching(bags, target, most)
    for bag, rows in zip(found, matching_reference(bags, target, most), strict=True):
        assert [ids[:n].tolist() for ids, n in zip(bag.ids, bag.lengths, strict=True)] == rows
    assert all(not rows for rows, t in zip(matching_reference(bags, target, most)[0], target, strict=True) if t < 2)
    again = matching(found, target, most)
    assert all(
        torch.equal(a.ids, b.ids) and torch.equal(a.lengths, b.lengths) for a, b in zip(found, again, strict=True)
    )


def test_search_comes_before_all_else() -> None:
    """Rows that it does not keep are not looked up, nor penalised, nor updated."""
    made, batch = model(*SETTINGS["together searched"], "embedding.l2=0.5"), impressions(30)
    kept = made.embedding.reader(batch)
    assert 0 < kept.bags[0].lengths.sum() < batch.bags[0].lengths.sum()
    assert torch.equal(kept.bags[0].lengths, kept.bags[3].lengths) and kept.bags[1] is batch.bags[1]
    plain = model(ATTENTION, f"sequences.{TOGETHER}", "embedding.l2=0.5")
    assert close(made.output(batch).logits, plain.output(kept).logits)
    assert not close(made.output(batch).logits, plain.output(batch).logits)
    assert close(made.embedding.penalty(batch), plain.embedding.penalty(kept))
    other = Bag(torch.full_like(batch.bags[3].ids, 3), batch.bags[3].lengths)
    nothing = replace(batch, categorical=torch.full_like(batch.categorical, 2), bags=(*batch.bags[:3], other))
    assert not made.embedding.reader(nothing).bags[0].lengths.any()
    table = made.embedding.tables[0]
    touched = gradients(made, nothing)["embedding.tables.0.table"].any(1).nonzero()[:, 0]
    items = [int(row) - table.starts["item"] for row in touched if 0 <= int(row) - table.starts["item"] < 9]
    assert items == [0, 2], "the missing event and the target"


def test_the_penalty_counts_the_rows_of_histories() -> None:
    made, batch = model(*SETTINGS["together"], "embedding.l2=0.5"), impressions(5)
    (table,) = made.embedding.tables
    rows = looked_up(batch, table.starts, ("history", "genres", "words", "kinds"), ("user", "item", "kind"))
    numbers = sum(p.square().sum() for p in made.embedding.numeric.parameters())
    assert close(made.embedding.penalty(batch), 0.25 * (table.table[rows].square().sum() + numbers))


def test_the_newest_events_are_tokens() -> None:
    made, batch = model(ranker="rankmixer"), impressions(9)
    found = made.embedding(batch).events
    assert found.shape == (9, 3 * 2, 4), "three sequences"
    (table,) = made.embedding.tables
    for row in range(9):
        n = int(batch.bags[0].lengths[row])
        for back in range(2):
            here = back < n
            id_ = int(batch.bags[0].ids[row, n - 1 - back]) if here else 0
            expected = table.table[table.starts["item"] + id_] if here else torch.zeros(4)
            assert close(found[row, back], expected)
    captures = made.output(batch, EVERY).captures
    assert (
        captures["tokens"].shape[1] == 4 + 6 and model("ranker.event_tokens=0", ranker="rankmixer").ranker.events == 0
    )


@pytest.mark.parametrize("ranker", RANKERS)
@EACH
def test_cost(settings, ranker) -> None:
    """FLOPs are those of a pass over histories of 50 events, or of as many as search keeps; every parameter counts."""
    made = model(*settings, ranker=ranker)
    batch = impressions(6, length=4)
    size, flops = made.size(), made.embedding.flops(4)
    assert size.dense + size.embedding == sum(p.numel() for p in made.parameters())
    full = tuple(Bag(bag.ids, torch.full_like(bag.lengths, min(4, bag.ids.shape[1]))) for bag in batch.bags)
    plain = [one for one in settings if "search" not in one and "most" not in one]
    whole = model(*plain, ranker=ranker)
    ranking = sum(v or 0 for v in whole.ranker.flops(len(FIELDS), 4).values())
    assert counted(lambda: whole.output(replace(batch, bags=full))) == 6 * (sum(flops.values()) + ranking)
    if "attention" in flops:
        events = 3 if "sequences.most=3" in settings else EVENTS
        assert size.flops["attention"] * 4 == flops["attention"] * events


def auc_after(spec, fields, data, fresh, steps) -> float:
    """AUC on fresh impressions after some steps on others."""
    torch.manual_seed(0)
    made = spec.build(fields)
    optimizer = torch.optim.Adam(made.parameters(), lr=1e-2)
    for step in range(steps):
        rows = torch.randint(len(data.labels), (256,), generator=torch.Generator().manual_seed(step)).tolist()
        optimizer.zero_grad()
        sum(made(taken(data, rows)).values()).backward()
        optimizer.step()
    with torch.inference_mode():
        return auc(made.eval().probabilities(fresh).numpy(), fresh.labels.numpy())


def solved(sequences) -> float:
    """On planted impressions; .920 is the truth's."""
    spec = RankingModel(
        ranker={"kind": "dnn", "deep": {"hidden": [32]}}, embedding={"std": 0.1, "dim": 8}, sequences=sequences
    )
    return auc_after(spec, PLANTED, planted(20_000, 1), planted(4000, 2), 200)


@pytest.mark.slow
def test_attention_and_search_find_what_pooling_hides() -> None:
    assert solved("pooled") < 0.75
    assert solved({"kind": "target_attention", "unit": {"hidden": [32], "activation": "relu"}}) > 0.88
    assert solved({"kind": "target_attention", "softmax": True}) > 0.88
    assert solved({"kind": "pooled", "search": [["kinds"]]}) > 0.88


@pytest.mark.slow
def test_the_rating_of_the_event_that_is_like_the_target_is_found() -> None:
    """Of ratings beside the events they are of; not of ratings of other events, nor where each has its own weights."""
    rated = partial(planted_ratings, 20_000, 1), partial(planted_ratings, 4000, 2)
    unit = {"kind": "target_attention", "unit": {"hidden": [32], "activation": "relu"}}

    def found(shuffled=False, **how) -> float:
        spec = RankingModel(
            ranker={"kind": "dnn", "deep": {"hidden": [32]}}, embedding={"std": 0.1, "dim": 8}, sequences=unit | how
        )
        return auc_after(spec, RATED, *(draw(shuffled)[0] for draw in rated), 300)

    fresh, odds = rated[1]()
    together = {"together": [["kinds", "ratings"]]}
    best = auc(odds.numpy(), fresh.labels.numpy())
    assert found(**together) > 0.5 + 0.95 * (best - 0.5)
    assert found(shuffled=True, **together) < 0.6 and found() < 0.7


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("sequences.most=3",), ("setting-without-effect", "most=3", "search")),
        (
            (f"sequences.{SEARCH}", "sequences.search=[[kinds],[kinds]]"),
            ("repeated-field", "'kinds'", "search"),
        ),
        (("sequences.search=[[]]",), ("invalid-setting", "search.0", "at least 1")),
        ((ATTENTION, "sequences.together=[[history]]"), ("setting-without-effect", "together", "history")),
        ((ATTENTION, "sequences.together=[[history,kinds,history]]"), ("repeated-field", "'history'")),
        (("ranker=lr", ATTENTION), ("setting-without-effect", "target_attention", "lr")),
        ((ATTENTION, "sequences.unit.hidden=[]"), ("setting-without-effect", "activation")),
        ((ATTENTION, "sequences.together=[[history,kind]]"), ("unknown-field", "'kind'", "'kinds'")),
        ((ATTENTION, "sequences.together=[[words,history]]"), ("unknown-field", "'words'", "history, kinds")),
        (("sequences.search=[[words,history]]",), ("unknown-field", "'words'", "history, kinds")),
        (("sequences.search=[[genres,history]]",), ("unknown-field", "'genres'")),
    ],
)
def test_wrong_settings_are_refused(settings, said) -> None:
    with refused(*said):
        RankingModel().override(*settings).build(FIELDS)


def test_stores_without_sequences_are_refused() -> None:
    plain = [field for field in FIELDS if field.kind != "sequence"]
    with refused("no-sequences", "target_attention", "shares"):
        RankingModel().override(ATTENTION).build(plain)
    with refused("no-sequences", "event_tokens=2"):
        RankingModel().override("ranker=rankelastor", "ranker.event_tokens=2").build(plain)


@SEVERAL
def test_sequences_that_do_not_run_in_parallel_are_refused(settings) -> None:
    batch = impressions()
    bags = list(batch.bags)
    bags[3] = Bag(bags[3].ids, (bags[3].lengths - 1).clamp_min(0))
    with refused("lengths-differ", "'history'", "'kinds'", "max_length"):
        model(*settings).output(replace(batch, bags=tuple(bags)))
    model(ATTENTION).output(replace(batch, bags=tuple(bags)))  # each by itself


@SEVERAL
def test_uneven_sequences_are_aligned_at_the_newest(settings) -> None:
    """The first says how many events there are; older ones of the others are cut off, and what they lack is missing."""
    batch, made = impressions(40), model(*settings, "sequences.uneven=newest", "embedding.l2=0.5")
    draw = torch.Generator().manual_seed(5)
    history, kinds = batch.bags[0], Bag(batch.bags[3].ids, torch.randint(7, (40,), generator=draw))
    given = replace(batch, bags=(*batch.bags[:3], kinds))
    first, other = (kinds, history) if "search" in settings[0] else (history, kinds)
    ids = torch.zeros_like(other.ids)
    for row in range(40):
        n, m = int(first.lengths[row]), int(other.lengths[row])
        newest = other.ids[row, max(0, m - n) : m]
        ids[row, n - len(newest) : n] = newest
    moved = Bag(ids, first.lengths)
    even = (first, moved) if first is history else (moved, first)
    whole = replace(batch, bags=(even[0], *batch.bags[1:3], even[1]))
    strict = model(*settings, "embedding.l2=0.5")
    assert alike(gradients(made, given), gradients(strict, whole)), "equal to what is aligned by hand"
    assert close(made.embedding.penalty(given), strict.embedding.penalty(whole))
    assert close(made.output(batch).logits, strict.output(batch).logits), "nothing changes where they are even"
    made.embedding.padded = True
    assert alike(gradients(made, given), gradients(strict, whole))
    empty = replace(given, bags=(*batch.bags[:3], Bag(torch.zeros(40, 0, dtype=torch.long), torch.zeros(40).long())))
    assert made.output(empty).logits.isfinite().all()


def test_groups_with_a_common_member_run_in_parallel() -> None:
    assert in_parallel([[0, 3], [5, 6], [3, 4], [8, 5]]) == [[0, 3, 4], [5, 6, 8]] and in_parallel([]) == []
