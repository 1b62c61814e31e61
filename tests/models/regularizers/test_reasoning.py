"""The penalties on a reasoner: values by hand, views, shards, and what they refuse."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fullrank.models import Step
from fullrank.models.sequential.regularizers.kl_diversity import KLDiversity
from fullrank.models.sequential.regularizers.progressive import Progressive
from fullrank.models.sequential.regularizers.stream_loss import StreamLoss
from fullrank.ops.pairwise_kl import pairwise_kl_reference
from parts import (
    PLR,
    LastItem,
    NextItem,
    ReaRec,
    ReasoningContrast,
    Recommender,
    RecommenderModel,
    Scoring,
    Sprint,
    Transformer,
    model_with,
)
from refusals import refused
from tests.models.regularizers.contrast import contrast
from tests.test_recommender_shards import check_shards
from tiny import catalog, close, histories, padded
from twins import same

ROWS = histories([5, 7, 2, 4])
ERL, PRL = ReaRec(), ReaRec(answer="last")


def build(*penalties, reasoner=PLR(), dropout=0.1, **more) -> RecommenderModel:
    parts = {"task": LastItem(), "reasoner": reasoner, "encoder": Transformer(dropout=dropout)}
    return model_with(*penalties, **parts | more)


def taken(model, batch=None) -> Step:
    torch.manual_seed(1)
    return model.step(padded(ROWS) if batch is None else batch)


def flat(step, *, start=False) -> Tensor:
    thoughts = step.states.reasoning
    steps = thoughts.steps.flatten(1, 2)
    return torch.cat([thoughts.start[:, None], steps], 1) if start else steps


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("cosine", [False, True])
def test_kl_over_all_items(start, cosine) -> None:
    spec = KLDiversity(items=None, start=start, sign=1, reference="attached")
    scoring = Scoring(similarity="cosine" if cosine else "dot", temperature=0.7)
    model = build(spec, scoring=scoring)
    step = taken(model)
    states, table = flat(step, start=start), model.items.all()
    if cosine:
        states, table = F.normalize(states, dim=-1), F.normalize(table, dim=-1)
    wanted = 0.1 * pairwise_kl_reference(states / 0.7, table, maximum=10.0, attached=True)
    torch.testing.assert_close(model.penalties["kl_diversity"](step), wanted)


def test_kl_over_drawn_items_is_a_function_of_its_place() -> None:
    model = build(KLDiversity(items=7))
    step, penalty = taken(model), model.penalties["kl_diversity"]
    drawn = [penalty._drawn(replace(step, batch=replace(step.batch, step=k)), 23) for k in (4, 4, 5)]  # type: ignore
    assert len(drawn[0].unique()) == 7 and torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    every = build(KLDiversity(items=23))
    torch.testing.assert_close(
        every.penalties["kl_diversity"](step), build(KLDiversity(items=None)).penalties["kl_diversity"](step)
    )


@pytest.mark.parametrize("items", [None, 1024])
def test_both_sides_of_a_pair_get_gradients_where_the_reference_is_attached(items) -> None:
    """The setting is that of the operation: with p_j cut off, KL(p_i || p_j) moves p_i alone."""
    for reference in ("attached", "detached"):
        model = build(KLDiversity(items=items, reference=reference, sign=1), reasoner=PLR(steps=1))
        step, table = taken(model), model.items.all().detach()
        states = step.states.reasoning.steps.detach().requires_grad_()
        moved = replace(step, states=replace(step.states, reasoning=replace(step.states.reasoning, steps=states)))
        found = model.penalties["kl_diversity"](moved)
        same(
            found,
            0.1 * pairwise_kl_reference(states[:, 0], table, maximum=10.0, attached=reference == "attached"),
            states,
        )


def test_a_run_is_told_that_the_term_gives_no_gradient(caplog: pytest.LogCaptureFixture) -> None:
    """Once, where nearly every row is above the maximum; a look waits for the device, so few steps look."""
    for maximum, said in ((0.1, ["maximum=0.1 nats"]), (100.0, [])):
        model = build(KLDiversity(maximum=maximum), reasoner=PLR(trigger_std=1.0), scoring=Scoring(temperature=0.01))
        penalty = model.train().penalties["kl_diversity"]
        caplog.clear()
        for step in (0, 48):
            penalty(taken(model, padded(ROWS, step=step)))
        assert not caplog.messages
        for step in (49, 99):
            penalty(taken(model, padded(ROWS, step=step)))
        assert [part for line in caplog.messages for part in said if part in line] == said
        assert len(caplog.messages) == len(said)


def test_one_state_has_none_to_differ_from() -> None:
    model = build(KLDiversity(), reasoner=PLR(steps=1, streams=1))
    assert model.penalties["kl_diversity"](taken(model)) == 0
    assert build(KLDiversity(start=True), reasoner=PLR(steps=1, streams=1))(padded(ROWS))["kl_diversity"] < 0


def test_contrast_by_hand() -> None:
    model = build(ReasoningContrast(temperature=0.5), dropout=0.4).train()
    users = [3, 8, 3, 4]
    step = taken(model, replace(padded(ROWS), users=torch.tensor(users)))
    first, second = F.normalize(flat(step), dim=-1).chunk(2)
    assert step.batch.views == 2 and not close(first, second)
    sides = [contrast(first[:, n], second[:, n], users, 0.5) + contrast(second[:, n], first[:, n], users, 0.5)
             for n in range(4)]  # fmt: skip
    torch.testing.assert_close(model.penalties["reasoning_contrast"](step), torch.stack(sides).mean())


@pytest.mark.parametrize("penalty", [ReasoningContrast(), Progressive(), KLDiversity()])
def test_one_row(penalty) -> None:
    terms = build(penalty).train()(padded([[3, 5]]))
    sum(terms.values()).backward()  # type: ignore[union-attr]
    assert all(term.isfinite() for term in terms.values())
    if not isinstance(penalty, KLDiversity):
        assert terms[penalty.kind] == 0


def test_the_loss_reads_both_views_or_the_first() -> None:
    plain = build(dropout=0.0).eval()(padded(ROWS))["last"]
    for views, rows in (("both", 8), ("first", 4)):
        model = build(ReasoningContrast(loss_views=views), KLDiversity(items=None), dropout=0.0)  # type: ignore
        step = taken(model)
        assert len(step.queries[0].vectors) == rows
        torch.testing.assert_close(model(padded(ROWS))["last"], plain)
        one = build(KLDiversity(items=None), dropout=0.0)(padded(ROWS))["kl_diversity"]
        torch.testing.assert_close(model(padded(ROWS))["kl_diversity"], one)
    noisy = build(ReasoningContrast(loss_views="first"), dropout=0.5).train()
    step = taken(noisy)
    assert close(step.queries[0].vectors, step.states.outputs["trained"][:4])


def test_progressive_by_hand() -> None:
    model = build(Progressive(sharpening=3.0, step_weight=0.5), reasoner=ReaRec(answer="last", steps=3)).train()
    batch = padded(ROWS)
    step = taken(model, batch)
    assert [q.name for q in step.queries] == ["last", "last_step_0", "last_step_1", "last_step_2"]
    thoughts = step.states.reasoning
    torch.manual_seed(1)
    terms = model(batch)
    targets = step.queries[0].targets
    for t in range(3):
        state = (thoughts.start if t == 0 else thoughts.steps[:, t - 1, 0])[:4]
        wanted = F.cross_entropy(state @ model.items.all().T / 3.0 ** (3 - t), targets) * 0.5 / 3
        torch.testing.assert_close(terms[f"last_step_{t}"], wanted)
    clean, noisy = flat(step).chunk(2)
    sides = [contrast(noisy[:, n], clean[:, n], [0, 1, 2, 3], 1.0) for n in range(3)]
    torch.testing.assert_close(terms["progressive"], torch.stack(sides).mean())


def test_the_contrast_of_progressive_has_the_temperature_of_the_scores() -> None:
    """Null is the scoring's, as the authors have it; a number is that number."""
    prl = ReaRec(answer="last")
    for given, wanted in ((None, 0.2), (0.7, 0.7)):
        model = build(Progressive(temperature=given), reasoner=prl, scoring=Scoring(temperature=0.2)).train()
        step = taken(model)
        clean, noisy = flat(step).chunk(2)
        sides = [contrast(noisy[:, n], clean[:, n], [0, 1, 2, 3], wanted) for n in range(2)]
        torch.testing.assert_close(model.penalties["progressive"](step), torch.stack(sides).mean())


def test_a_run_from_before_the_temperature_followed_the_scores_is_read() -> None:
    """It wrote the default of then, also where there is no contrast to divide."""
    assert Progressive.parse({"contrast_weight": 0, "temperature": 1.0}).temperature == 1.0
    with refused("setting-without-effect", "temperature", "contrast_weight=0"):
        Progressive.parse({"contrast_weight": 0, "temperature": 0.5})


def test_stream_loss_by_hand() -> None:
    """(weight / P) sum_m CE(z_m), with z_m the mean of a stream's steps; 0 is the model without it."""
    for cosine in (False, True):
        scoring = Scoring(similarity="cosine" if cosine else "dot", temperature=0.5)
        model = build(StreamLoss(weight=0.8), reasoner=PLR(steps=3, streams=2), dropout=0.0, scoring=scoring)
        step, terms = taken(model), model(padded(ROWS))
        assert [q.name for q in step.queries] == ["last", "last_stream_0", "last_stream_1"]
        assert step.states.reasoning is not None and terms["stream_loss"] == 0
        table = model.items.all()
        for m in range(2):
            z = step.states.reasoning.steps[:, :, m].mean(1)
            if cosine:
                z, table = F.normalize(z, dim=-1), F.normalize(table, dim=-1)
            wanted = F.cross_entropy(z @ table.T / 0.5, step.queries[0].targets) * 0.8 / 2
            torch.testing.assert_close(terms[f"last_stream_{m}"], wanted)
        plain = build(reasoner=PLR(steps=3, streams=2), dropout=0.0, scoring=scoring)(padded(ROWS))
        off = build(StreamLoss(weight=0), reasoner=PLR(steps=3, streams=2), dropout=0.0, scoring=scoring)(padded(ROWS))
        assert (
            list(off) == ["last", "stream_loss"] and off["stream_loss"] == 0 and torch.equal(off["last"], plain["last"])
        )
        torch.testing.assert_close(terms["last"], plain["last"])


def test_stream_loss_reads_both_views() -> None:
    model = build(StreamLoss(), ReasoningContrast(), dropout=0.0)
    alone = build(StreamLoss(), dropout=0.0)(padded(ROWS))
    torch.testing.assert_close(model(padded(ROWS))["last_stream_1"], alone["last_stream_1"])
    assert len(taken(model).queries[1].vectors) == 8


def test_stream_loss_of_one_stream_is_refused() -> None:
    with refused("setting-without-effect", "one stream"):
        build(StreamLoss(), reasoner=ReaRec())


def test_noise_waits() -> None:
    model = build(Progressive(after_steps=3), reasoner=PRL).train()
    assert [taken(model, padded(ROWS, step=k)).batch.views for k in (2, 3)] == [1, 2]
    assert model(padded(ROWS, step=2))["progressive"] == 0 and model(padded(ROWS, step=3))["progressive"] > 0
    assert model.reasoner is not None and model.reasoner.input_noise == 0.01  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "penalties",
    [(ReasoningContrast(),), (ReasoningContrast(loss_views="first"),), (Progressive(),), (KLDiversity(),),
     (StreamLoss(), ReasoningContrast())],
)  # fmt: skip
def test_shards_ask_as_much_as_the_whole(penalties) -> None:
    """Every loss is the same sum; only the penalties are the shards' own."""

    class Losses(RecommenderModel):
        def forward(self, batch):
            return {n: t for n, t in super().forward(batch).items() if n not in self.penalties}

    reasoner = PLR() if isinstance(penalties[0], StreamLoss) else PRL
    spec = Recommender(
        dim=8, max_length=6, task=LastItem(), reasoner=reasoner, penalties=penalties, encoder=Transformer(dropout=0.0)
    )
    torch.manual_seed(0)
    check_shards(Losses(catalog(12), spec).eval())


@pytest.mark.parametrize("penalty", [ReasoningContrast(), Progressive(), KLDiversity(), StreamLoss()])
def test_a_penalty_without_a_reasoner_is_refused(penalty) -> None:
    with refused("no-reasoner", "model.reasoner=plr"):
        build(penalty, reasoner=None)


def test_what_does_not_go_together_is_refused() -> None:
    with refused("task-ignores-reasoner", "model.task=last_item"):
        build(task=NextItem())
    with refused("penalties-disagree", "loss_views=first"):
        build(ReasoningContrast(), Progressive())
    build(ReasoningContrast(loss_views="first"), Progressive())
    with refused("setting-without-effect", "noise", "contrast_weight=0"):
        Progressive.parse({"contrast_weight": 0, "noise": 0.5})


def test_sprint_reads_a_reasoner() -> None:
    model = build(Sprint(), ReasoningContrast(), KLDiversity()).train()
    step = taken(model)
    assert step.captures is not None and [len(c.sums) for c in step.captures.columns or ()] == [8, 8]
    terms = model(padded(ROWS))
    sum(terms.values()).backward()  # type: ignore[union-attr]
    assert all(term.isfinite() for term in terms.values())
