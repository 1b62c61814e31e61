"""Diagnostics of semantic ids against loops: codes by level, popularity of codes, what a beam loses, and cold items."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.analysis.activations import activations
from fullrank.analysis.diagnosis import LEFT_OUT
from fullrank.analysis.diagnostics import beam_loss as room
from fullrank.analysis.diagnostics.beam_loss import BeamLoss
from fullrank.analysis.diagnostics.codes import CodeLevels, CodePopularity
from fullrank.analysis.diagnostics.explain import explain_user
from fullrank.analysis.diagnostics.focus import Focus
from fullrank.analysis.diagnostics.recall_bands import ColdItems, target_groups
from fullrank.analysis.report.collect import collect
from fullrank.data.events.catalog import Catalog
from fullrank.evaluation import Evaluation
from fullrank.inference.search import Decoding
from parts import Generate, Recommender, Semantic, SemanticTokens, Softmax, Transformer
from tests.analysis.conftest import EVERYONE, ITEMS, STORE, context_of, model_of, observed, values
from tiny import shaken

SIZES = (3, 4, 5)
ROTARY = Transformer(layers=2, attention=Softmax(heads=2, rope=True), positions="none", feed_forward="mlp")
TASKS = {"generate": Generate(), "semantic_tokens": SemanticTokens(), "with_users": Generate(user_tokens=3)}


def generator(task="generate") -> Any:
    """Thirty items with three codes drawn at random; two of them share all three."""
    codes = np.stack([np.random.default_rng(k).integers(0, size, ITEMS) for k, size in enumerate(SIZES)], 1)
    codes[7] = codes[3]
    frame = STORE.catalog.frame.with_columns(
        codes=pl.Series(codes.astype(np.uint16), dtype=pl.Array(pl.UInt16, 3)),
        code_sizes=pl.Series([list(SIZES)] * ITEMS, dtype=pl.Array(pl.Int32, 3)),
    )
    torch.manual_seed(0)
    spec = Recommender(dim=8, max_length=10, items=Semantic(), encoder=ROTARY, task=TASKS[task])
    return shaken(spec.build(Catalog(frame)), 0.5).eval()


def scores(batch, prefix, size, row) -> torch.Tensor:
    """log p of each code behind a prefix, from scores of whole beginnings."""
    tuples = torch.tensor([[*prefix, code] for code in range(size)])
    whole = batch.scorer.score_tuples(tuples)[row]  # type: ignore[attr-defined]
    before = batch.scorer.score_tuples(torch.tensor([prefix]))[row, 0] if prefix else 0.0  # type: ignore[attr-defined]
    return whole - before


def events_of(model, prefix) -> int:
    """Training events of the items whose codes begin so."""
    codes = model.items.codes.tolist()
    return sum(int(e) for e, one in zip(STORE.catalog.popularity, codes, strict=True) if one[: len(prefix)] == prefix)


def each(model) -> Iterator:
    """(batch, row of the batch, target, its codes) of each user."""
    for batch in activations(model, EVERYONE):
        for row, place in enumerate(batch.users):
            target = int(EVERYONE.next_items[place])
            yield batch, row, target, model.items.codes[target].tolist()


def mean_score(model) -> float:
    """Of the targets, by the model's own scorer."""
    return float(np.mean([float(batch.scorer.block(0, ITEMS)[row, target]) for batch, row, target, _ in each(model)]))


@torch.inference_mode()
def test_codes_by_level_are_those_of_loops() -> None:
    model = generator()
    (rows,) = observed(model, CodeLevels)
    codes, total = model.items.codes.tolist(), 0.0
    for level, size in enumerate(SIZES):
        found = {}
        for batch, row, _, own in each(model):
            log_p = scores(batch, own[:level], size, row)
            there = sorted({one[level] for one in codes if one[:level] == own[:level]})
            figures = {
                "log_p": log_p[own[level]], "top_1": int(log_p.argmax()) == own[level], "open": len(there),
                "top_1_open": there[int(log_p[there].argmax())] == own[level], "open_mass": log_p[there].exp().sum(),
                "log_p_counts": np.log(
                    (events_of(model, own[: level + 1]) + 1) / (events_of(model, own[:level]) + len(there))
                ),
            }  # fmt: skip
            for name, value in figures.items():
                found.setdefault(name, []).append(float(value))
        for name, some in found.items():
            assert values(rows, name, index=level + 1) == [pytest.approx(np.mean(some), abs=1e-5)], name
        total += np.mean(found["log_p"])
    assert total == pytest.approx(mean_score(model), abs=1e-5), "log p of an item is the sum over its codes"


@torch.inference_mode()
def test_codes_that_are_predicted_at_once() -> None:
    model = generator("semantic_tokens")
    levels, popular = observed(model, CodeLevels, CodePopularity)
    mean = np.mean(values(levels, "log_p"))
    assert mean == pytest.approx(mean_score(model), abs=1e-5), "a score is the mean over levels"
    assert not values(popular, "collapse_share", label="scores") and len(values(popular, "spearman")) == 3
    assert BeamLoss(context_of(model)).rows() == [], "it searches no trie"


@torch.inference_mode()
def test_popularity_of_codes_is_that_of_loops() -> None:
    model = generator()
    (rows,) = observed(model, CodePopularity)
    for level, size in enumerate(SIZES):
        counts = np.zeros(size)
        np.add.at(counts, model.items.codes[:, level].numpy(), STORE.catalog.popularity)
        head = set(np.argsort(-counts, kind="stable")[: int(np.ceil(0.2 * size))].tolist())
        log_p = [(scores(batch, own[:level], size, row), own[level]) for batch, row, _, own in each(model)]
        mean = torch.stack([one.exp() for one, _ in log_p]).mean(0)
        expected = {
            "head_predicted": np.mean([int(one.argmax()) in head for one, _ in log_p]),
            "head_targets": np.mean([own in head for _, own in log_p]),
            "head_mass": float(mean[sorted(head)].sum()),
            "effective": float((-(mean * mean.log()).sum()).exp()),
        }
        for name, value in expected.items():
            assert values(rows, name, index=level + 1) == [pytest.approx(value, abs=1e-5)], name
        low = sum(SIZES[:level])
        sigma = np.linalg.svd(model.items.table[low : low + size].double().numpy())[1]
        share = values(rows, "collapse_share", index=level + 1, label="table")
        assert share == [pytest.approx(float(sigma[0] ** 2 / (sigma**2).sum()))]
    assert 1 / 3 <= values(rows, "collapse_share", label="scores")[0] <= 1


def kept_by_loops(model, width, *, lossless=False) -> np.ndarray:
    """[U, K]: whether each target's beginning is kept, level by level, one user at a time; or would be if all were."""
    found = []
    hidden = {int(user): set(row.tolist()) for user, row in enumerate(EVERYONE.histories.items)}
    tuples = model.items.codes.tolist()
    for batch in activations(model, EVERYONE):
        for row, place in enumerate(batch.users):
            own = tuples[int(EVERYONE.next_items[place])]
            if int(EVERYONE.next_items[place]) in hidden[int(place)]:
                continue
            shown = [one for item, one in enumerate(tuples) if item not in hidden[int(place)]]
            kept = [[]]
            here = []
            for level in range(len(SIZES)):
                open_ = sorted({tuple(one[: level + 1]) for one in shown if one[:level] in kept})
                best = batch.scorer.score_tuples(torch.tensor(open_))[row].argsort(descending=True)  # type: ignore[attr-defined]
                chosen = [list(open_[at]) for at in best[:width].tolist()]
                here.append(own[: level + 1] in chosen)
                kept = [list(one) for one in open_] if lossless else chosen
            found.append(here)
    return np.array(found)


@torch.inference_mode()
def test_what_a_beam_loses_is_that_of_loops(monkeypatch) -> None:
    model, spec = (
        generator(),
        Evaluation(decoding=Decoding(kind="beam", beams=2), metrics=("ndcg@2",), selection="ndcg@2"),
    )
    rows = BeamLoss(context_of(model, evaluation=spec)).rows()
    for width in (1, 2, 8):
        expected = kept_by_loops(model, width)
        assert values(rows, "kept", label=f"{width} beams") == pytest.approx(expected.mean(0)), width
    assert values(rows, "users") == [len(expected)] and values(rows, "beams") == [2]
    whole = kept_by_loops(model, 2, lossless=True)
    assert values(rows, "kept", label="exhaustive") == pytest.approx(whole.mean(0))
    monkeypatch.setattr(room, "EXHAUSTIVE", 10)
    large = BeamLoss(context_of(model, evaluation=spec)).rows()
    assert not values(large, "kept", label="exhaustive") and values(large, "kept", label="2 beams")


def test_other_models_have_no_rows_and_training_has_no_targets() -> None:
    for section in (CodeLevels, CodePopularity):
        assert observed(model_of(), section) == [[]]
        (rows,) = observed(generator(), section, split="train")
        assert [one["name"] for one in rows] == [LEFT_OUT]
    assert BeamLoss(context_of(model_of())).rows() == []


def test_attention_to_an_event_is_that_to_all_its_tokens() -> None:
    """The same events, whatever they are made of; the user's token is no event."""
    plain, *others = (observed(model, Focus)[0] for model in (model_of(), generator(), generator("with_users")))
    for rows in others:
        assert values(rows, "even") == pytest.approx(values(plain, "even"))
        assert values(rows, "users") == values(plain, "users")


@pytest.mark.parametrize("task", ["generate", "with_users"])
def test_the_example_user_s_events_are_those_of_the_history(task) -> None:
    for user, history in zip(EVERYONE.users[:3], EVERYONE.histories.items, strict=False):
        found = explain_user(generator(task), STORE, int(user))
        assert found.items.tolist() == history[-10:].tolist() and found.shares.shape == (2, len(found.items))


def test_cold_items(tmp_path) -> None:
    """Item 90 is chosen last by one user alone, item 91 by two, once in training."""
    rng = np.random.default_rng(0)
    rows = [(user, int(item), 100 * user + n) for user in range(20) for n, item in enumerate(rng.permutation(12)[:6])]
    rows += [(0, 90, 50), (1, 91, 150), (2, 91, 201)]
    events = pl.DataFrame(rows, ["user_id", "item_id", "timestamp"], orient="row").sort("user_id", "timestamp")
    store = fr.prepare(events, tmp_path / "store")
    run = fr.train("popularity", store, tmp_path / "run", progress=False)
    (result,) = collect([run], data=store, sample=10)
    groups = target_groups(result)
    truth = store.eval_set("test", without_history=True)
    by_user = {int(u): int(t) for u, t in zip(truth.users, truth.next_items, strict=True)}
    for user, group in zip(result.evaluation.per_user.users, groups, strict=True):
        n = int(store.catalog.popularity[by_user[int(user)]])
        assert group == (0 if n == 0 else 1 if n < 5 else 2)
    table = ColdItems.figure([result])
    (_, none, _, many, places, people, best) = table.rows[0]
    recall = result.evaluation.per_user.values["recall@10"]
    assert none == recall[groups == 0].mean() and many == recall[groups == 2].mean()
    lists, cold = result.evaluation.per_user.lists, set(np.flatnonzero(store.catalog.popularity == 0).tolist())
    assert lists is not None and cold
    at = [[place for place, item in enumerate(row.tolist()) if item in cold] for row in lists]
    assert people == np.mean([bool(one) for one in at]) and best == min(
        (min(one) + 1 for one in at if one), default=None
    )
    assert places == sum(map(len, at)) / (lists >= 0).sum()
