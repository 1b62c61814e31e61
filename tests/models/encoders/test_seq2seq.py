"""Encoder and decoder in a whole model: generation, penalties on both, and what is refused."""

from dataclasses import replace

import polars as pl
import pytest
import torch

from fullrank.data.histories import user_keys
from fullrank.inference.batches import WrappedModel, batches
from fullrank.inference.exact import top_k
from fullrank.inference.requests import read_histories
from fullrank.inference.trie_beam import TrieBeam
from fullrank.models.sequential.attention import Attention
from fullrank.models.sequential.regularizers.noise_robustness import NoiseRobustness
from fullrank.models.sequential.regularizers.sprint import _received
from fullrank.testing.inputs import ITEMS
from parts import (
    HSTU,
    PLR,
    Cloze,
    Focused,
    Generate,
    LastItem,
    MutualInformation,
    NextItem,
    RecommenderModel,
    Semantic,
    Seq2Seq,
    Softmax,
    Sprint,
    Table,
    Transformer,
    model_with,
)
from refusals import refused
from tiny import catalog, close, histories, padded

LAST = Generate(targets="last")
ROTARY = Transformer(attention=Softmax(rope=True), positions="none")
SEEING_BOTH_SIDES = Transformer(attention=Softmax(rope=True, causal=False), positions="none")
DECODER_ALONE = Seq2Seq().stack(1, causal=True).override("attention=softmax", "attention.rope=true")
TIMED = Transformer(attention=HSTU(), positions="none")
ATTENTIONS = [
    pytest.param(Seq2Seq(layers=2, decoder_layers=1), id="relative"),
    pytest.param(Seq2Seq(layers=1, attention=Focused(norm="softmax", rope=True)), id="focused"),
    pytest.param(Seq2Seq(layers=1, attention=Softmax(rope=True), feed_forward="swiglu"), id="rotary"),
]


def model(*penalties, **settings) -> RecommenderModel:
    parts = {"dim": 8, "max_length": 9, "items": Semantic(), "encoder": Seq2Seq(dropout=0.0), "task": LAST}
    return model_with(*penalties, **parts | settings).eval()


@pytest.mark.parametrize("encoder", ATTENTIONS)
def test_what_is_generated_is_what_was_trained(encoder) -> None:
    """An item's score is what training says of it behind the same history, and a wide beam finds the best."""
    made, rows = model(encoder=encoder), histories([3, 1, 5])
    with torch.inference_mode():
        answer = made.answer(padded(rows))
        scores = answer.block(0, ITEMS)
        for item in (0, 7, ITEMS - 1):
            records = made.step(padded([[*row, item] for row in rows])).records
            assert close(scores[:, item], -sum(record.losses for record in records.values()))
        found = TrieBeam(made.items, beams=ITEMS)(answer, 7, None)  # type: ignore[arg-type]
        wanted = top_k(answer, 7, filters=None)
    assert torch.equal(found[1], wanted[1]) and close(found[0], wanted[0])


def test_it_ranks_items_too() -> None:
    """Its decoder's first token answers a task that asks once for each row."""
    made, rows = model(items=Table(), task=LastItem()), histories([3, 1, 5])
    with torch.inference_mode():
        scores, alone = (made.answer(padded(some)).block(0, ITEMS) for some in (rows, rows[:1]))
    assert scores.isfinite().all() and close(scores[:1], alone)


def test_penalties_of_fair_and_sprint() -> None:
    """All of them reach encoder and decoder."""
    penalties = (NoiseRobustness(), MutualInformation(weight=0.1), Sprint(between=True))
    made = model(encoder=Seq2Seq(layers=1, attention=Focused(norm="softmax", rope=True)), penalties=penalties).train()
    terms = made(padded(histories([3, 4, 5, 6])))
    assert set(terms) == {"code_1", "code_2", "code_3", "noise_robustness", "mutual_information", "sprint"}
    sum(value for name, value in terms.items() if "code" not in name).backward()
    encoder = made.encoder
    reached = {name.split(".")[0] for name, p in encoder.named_parameters() if p.grad is not None and p.grad.any()}
    assert {"source", "decoder", "first"} <= reached
    cross = [p.grad for name, p in encoder.named_parameters() if ".cross.qkv" in name]
    assert cross and all(grad is not None and grad.any() for grad in cross)


def test_sprint_leaves_out_what_looks_at_the_history_unless_told() -> None:
    encoder = Seq2Seq(layers=2, decoder_layers=1)
    terms = []
    for penalty in (Sprint(feed_forward=0.0), Sprint(feed_forward=0.0, between=True)):
        made = model(encoder=encoder, penalties=(penalty,)).train()
        terms.append(made(padded(histories([3, 4, 5])))["sprint"])
        terms[-1].backward()
        cross = next(p.grad for name, p in made.named_parameters() if "cross.qkv" in name)
        assert (cross is not None and cross.any()) == penalty.between
    assert terms[0] != terms[1]


def test_sprint_s_mean_of_columns_counts_the_queries_of_the_decoder() -> None:
    """Each of the three codes of an answer is a query, so a mean is a third of the sum, however long the history."""
    made = model(encoder=Seq2Seq(layers=1, dropout=0.0), penalties=(Sprint(between=True),)).train()
    columns = made.step(padded(histories([3, 7]))).captures.columns  # type: ignore[union-attr]
    (between,) = [one for one in columns or () if getattr(one.module, "between", False)]
    assert between.valid.sum(1).tolist() == [6, 18], "the tokens of all items but the last"
    assert close(between.sums.sum(2), torch.full_like(between.sums[..., 0], 3)), "each query gives one to all keys"
    assert close(_received(between, mean=True) * 3, between.sums)


def test_around_a_reasoner_sprint_reads_the_decoder_too() -> None:
    made = model(items=Table(), task=LastItem(), reasoner=PLR(steps=1, streams=2), penalties=(Sprint(between=True),))
    step = made.train().step(padded(histories([3, 4])))
    noted = {one.module for one in step.captures.columns or ()}  # type: ignore[union-attr]
    assert noted == {module for module in made.encoder.modules() if isinstance(module, Attention)}


def test_mutual_information_does_not_see_the_target() -> None:
    """The contrast reads the history's states; those of the decoder behind its first token are made of the target."""
    made = model(penalties=(MutualInformation(source="mean"),))
    (penalty,) = made.penalties.values()
    rows = histories([4, 5, 6])
    sources = []
    for last in (3, 8):
        step = made.step(padded([[*row, last + i] for i, row in enumerate(rows)]))
        sources.append(penalty._sources(step))  # type: ignore[operator]
    assert close(*sources)


@pytest.mark.parametrize("settings", [{"task": Generate(targets="last", user_tokens=7)},
                                      {"task": Generate(user_tokens=7), "encoder": ROTARY}])  # fmt: skip
def test_user_tokens(settings) -> None:
    """Users of one row of the table are answered alike, others not; a request's users are known by their ids."""
    made, rows = model(**settings), histories([3, 3, 3, 3])
    rows[1:] = [rows[0]] * 3
    with torch.inference_mode():
        scores = made.answer(replace(padded(rows), user_keys=torch.tensor([5, 12, 6, -1]))).block(0, ITEMS)
        nobody = made.answer(padded(rows)).block(0, ITEMS)
        assert close(scores[0], scores[1]) and close(scores[3], nobody[3]) and close(nobody[0], nobody[1])
        assert not close(scores[0], scores[2]) and not close(scores[0], scores[3])
        named = read_histories({"me": ["i1", "i2"], "you": ["i1", "i2"]}, catalog())
        listed = read_histories([["i1", "i2"]], catalog())
        (_, asked), (_, unnamed) = (next(batches(made, one.histories)) for one in (named, listed))
        ((_, inside),) = batches(WrappedModel(made), named.histories)
    assert unnamed.user_keys is None and asked.user_keys is not None and inside.user_keys is not None
    assert inside.user_keys.tolist() == asked.user_keys.tolist(), "an evaluation that changes histories knows them too"
    assert asked.user_keys.tolist() == user_keys(pl.Series(["me", "you"])).tolist()


@pytest.mark.parametrize(
    ("settings", "code", "to_do"),
    [
        ({"task": Generate()}, "encoder-answers-once", "targets=last"),
        ({"items": Table(), "task": NextItem()}, "encoder-answers-once", "last_item"),
        ({"items": Table(), "task": Cloze()}, "encoder-answers-once", "last_item"),
        ({"encoder": Seq2Seq(attention=HSTU())}, "generated-codes-have-no-times", "rel_bias=positions"),
        ({"encoder": SEEING_BOTH_SIDES}, "encoder-does-not-continue", "attention.causal=true"),
        ({"encoder": TIMED}, "encoder-does-not-continue", "rel_bias=positions"),
        ({"encoder": DECODER_ALONE, "penalties": (Sprint(between=True),)}, "setting-without-effect", "between"),
    ],
)
def test_refusals(settings, code, to_do) -> None:
    with refused(code, to_do):
        model(**settings)


def test_settings_without_effect_are_refused() -> None:
    for spec, settings, named in (
        (Seq2Seq(), ["feed_forward=swiglu", "activation=relu"], "activation"),
        (Seq2Seq(), ["attention.causal=false"], "attention.causal"),
        (Generate(), ["per_user=2"], "per_user"),
        (Generate(), ["targets=last", "window=random"], "window"),
    ):
        with refused("setting-without-effect", named):
            spec.override(*settings)
    with refused("columns-not-captured", "exact_bound"):
        Sprint(between=True).override("exact_bound=true")
