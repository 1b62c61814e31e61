"""Diagnostics of reasoners against loops over users, streams and steps; planted streams; and who has nothing to say."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fullrank.analysis.activations import activations
from fullrank.analysis.diagnose import diagnose_retrieval
from fullrank.analysis.diagnosis import LEFT_OUT
from fullrank.analysis.diagnostics.diversity import Diversity, contraction, mean_distance
from fullrank.analysis.diagnostics.latent_attention import EDGES, LABELS, OWN, LatentAttention, latent_weights
from fullrank.analysis.diagnostics.reasoning_steps import GateGain, OracleStep, StepCurve, equal_weights
from fullrank.analysis.diagnostics.robustness import Robustness
from fullrank.analysis.diagnostics.streams import Ensemble, Streams
from fullrank.evaluation import Evaluation, evaluate
from fullrank.inference.batches import batches
from fullrank.models.sequential.model.reading import attention_of, blocks_of
from parts import HSTU, Transformer
from tests.analysis.conftest import EVERYONE, STORE, context_of, expect, model_of, observed, recommender, values

SPEC = Evaluation(bootstrap=0, ks=(10,), metrics=("ndcg@10",))


def thinker(*settings, reasoner="plr", scale=0.3) -> Any:
    given = (f"reasoner={reasoner}", "task=last_item", *settings)
    return model_of(recommender(None, *given), scale=scale)


PLR = thinker("reasoner.steps=3", "reasoner.streams=3")


def read(model) -> Any:
    """What a pass over everyone shows, and the thoughts in it."""
    (only,) = activations(model, EVERYONE)
    return only, only.states.reasoning


def figures(rows) -> dict:
    return {one["name"]: one["value"] for one in rows if one["index"] is None}


def test_distances_are_means_over_pairs_and_users() -> None:
    _, thoughts = read(PLR)
    (rows,) = observed(PLR, Diversity)
    opened = thoughts.start[:, None] + PLR.reasoner.triggers
    for t in range(4):
        h = (opened if t == 0 else thoughts.steps[:, t - 1]).detach().double().numpy()
        pairs = [
            np.square(h[u, a] - h[u, b]).sum() for u in range(len(h)) for a in range(3) for b in range(3) if a != b
        ]
        expect(rows, "distance", np.mean(pairs), index=t)
    distances = values(rows, "distance")
    slope = np.polyfit(range(4), np.log(distances), 1)[0]
    expect(rows, "gamma", -slope / 2)
    expect(rows, "lipschitz", math.exp(slope / 2))


@pytest.mark.parametrize("gamma", [0.4, 0.0, -0.2])
def test_a_planted_contraction_is_found(gamma) -> None:
    line = contraction([3 * math.exp(-2 * gamma * t) for t in range(5)])
    assert line is not None and line.gamma == pytest.approx(gamma, abs=1e-12)
    assert line.intercept == pytest.approx(math.log(3)) and line.residual < 1e-12
    assert contraction([1.0]) is None and contraction([1.0, 0.0]) is None
    assert mean_distance(torch.tensor([[0.0, 0.0], [3.0, 4.0]])) == 25


def test_streams_that_part_are_noted_as_not_decaying() -> None:
    model = thinker("reasoner.streams=2", scale=2.0)
    with torch.no_grad():
        model.reasoner.triggers.mul_(1e-2)  # so near at first that large weights drive them apart
    (rows,) = observed(model, Diversity)
    (one,) = [row for row in rows if row["name"] == "gamma"]
    assert one["value"] < 0 and "not decaying" in one["label"]


@torch.no_grad()
def log_shares(vector, model) -> np.ndarray:
    table = model.items.all()
    if model.cosine:
        vector, table = (torch.nn.functional.normalize(x, dim=-1) for x in (vector, table))
    return (vector @ table.T / model.temperature).detach().double().log_softmax(-1).numpy()


@pytest.mark.parametrize("settings", [(), ("scoring.similarity=cosine", "scoring.temperature=0.2")])
def test_divergences_and_the_gate_equal_loops(settings) -> None:
    model = thinker("reasoner.streams=3", *settings)
    _, thoughts = read(model)
    (rows,) = observed(model, Streams)
    kl = np.zeros((3, 3))
    for u in range(len(thoughts.start)):
        p = [log_shares(thoughts.steps[u, :, m].mean(0), model) for m in range(3)]
        kl += [[np.sum(np.exp(p[a]) * (p[a] - p[b])) for b in range(3)] for a in range(3)]
    kl /= len(thoughts.start)
    for a in range(3):
        for b in range(3):
            expect(rows, "kl", kl[a, b], head=a, index=b, rel=1e-4, abs=1e-7)
    expect(rows, "mean_kl", kl.sum() / 6, rel=1e-4)
    gate = thoughts.gate.detach().double().numpy()
    expect(rows, "gate_entropy", np.mean([-(g @ np.log(g)) / math.log(3) for g in gate]))
    for m in range(3):
        expect(rows, "gate_weight", gate[:, m].mean(), head=m)
        expect(rows, "gate_use", np.mean(gate.argmax(1) == m), head=m)


def test_the_mixture_equals_loops_and_the_benefit_is_never_negative() -> None:
    reading, thoughts = read(PLR)
    (rows,) = observed(PLR, Ensemble)
    found = figures(rows)
    alone, mixed, gated, apart = [], [], [], []
    for u, place in enumerate(reading.users):
        item = EVERYONE.next_items[place]
        z = thoughts.steps[u].mean(0)
        p = np.array([log_shares(z[m], PLR)[item] for m in range(3)])
        gate = thoughts.gate[u].detach().double().numpy()
        alone.append(-p.mean())
        mixed.append(-np.log(np.exp(p).mean()))
        gated.append(-np.log(gate @ np.exp(p)))
        apart.append(float(mean_distance(z.detach())))
    benefit, apart = np.array(alone) - np.array(mixed), np.array(apart)
    assert found["loss_streams"] == pytest.approx(np.mean(alone), rel=1e-5)
    assert found["loss_mixture"] == pytest.approx(np.mean(mixed), rel=1e-5)
    assert found["loss_gated"] == pytest.approx(np.mean(gated), rel=1e-5)
    assert found["benefit"] == pytest.approx(found["loss_streams"] - found["loss_mixture"]), "Theorem 4.1 is exact"
    assert found["least_benefit"] >= -1e-9 and found["users"] == len(EVERYONE)
    assert found["constant"] == pytest.approx(benefit @ apart / (apart @ apart), rel=1e-3)
    assert found["largest_constant"] == pytest.approx((benefit / apart).min(), rel=1e-2, abs=1e-6)
    assert found["correlation"] == pytest.approx(np.corrcoef(benefit, apart)[0, 1], rel=1e-3)
    answers = log_shares(reading.states.outputs["answer"], PLR)
    items = EVERYONE.next_items[reading.users]
    assert found["loss_answer"] == pytest.approx(-answers[range(len(items)), items].mean(), rel=1e-5)


def test_the_corollary_is_checked_step_by_step() -> None:
    (rows, apart) = observed(PLR, Ensemble, Diversity)
    gamma, start = values(apart, "gamma")[0], values(apart, "distance", index=0)[0]
    for t in (1, 2, 3):
        step = {name: values(rows, f"step_{name}", index=t)[0] for name in ("loss_streams", "loss_mixture", "bound")}
        assert values(rows, "step_distance", index=t) == pytest.approx(values(apart, "distance", index=t))
        limit = step["loss_streams"] - figures(rows)["constant"] * math.exp(-2 * gamma * t) * start
        assert step["bound"] == pytest.approx(limit)
        assert values(rows, "step_bound_holds", index=t)[0] == float(step["loss_mixture"] <= limit)


def test_equal_streams_have_no_benefit_and_no_constant() -> None:
    model = thinker()
    with torch.no_grad():
        model.reasoner.triggers.copy_(model.reasoner.triggers[:1].expand(2, -1))
    ensemble, streams, apart = observed(model, Ensemble, Streams, Diversity)
    assert abs(figures(ensemble)["benefit"]) < 1e-6 and values(streams, "mean_kl")[0] < 1e-6
    (one,) = [row for row in apart if row["name"] == "gamma"]
    assert values(apart, "distance", index=0) == [0.0] and one["value"] is None and "the same" in one["label"]
    assert figures(ensemble)["constant"] is None


def test_weights_of_latent_tokens_reproduce_the_attention() -> None:
    """Mixing the values by the weights that are shown gives what the attention returned."""
    attentions = [attention_of(block) for block in blocks_of(PLR)]
    seen = []

    def spy(attention):
        attend_latent = attention.attend_latent

        def noted(q, prefix, own, batch):
            found = attend_latent(q, prefix, own, batch)
            seen.append((prefix[1], own[1], found))
            return found

        attention.attend_latent = noted

    for attention in attentions:
        spy(attention)
    try:
        for _, batch in batches(PLR, EVERYONE.histories):
            for place, looked in enumerate(latent_weights(PLR, attentions, batch)):
                prefix, own, out = seen[place]
                width = batch.items.shape[1]
                mixed = looked.weights[..., :width] @ prefix
                mixed = mixed + (looked.weights[..., width:, None] * own).sum(3)
                again = attentions[looked.layer].output(mixed.transpose(1, 2).flatten(2))  # type: ignore[union-attr]
                torch.testing.assert_close(again, out, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(looked.weights.sum(-1), torch.ones(looked.weights.shape[:-1]))
                assert looked.weights.shape[-1] == width + looked.step
    finally:
        for attention in attentions:
            del attention.attend_latent  # type: ignore[union-attr]
    assert all("project" not in vars(attention) for attention in attentions)


def test_attention_by_band_and_place_equals_loops() -> None:
    rows = LatentAttention(context_of(PLR)).rows()
    attentions = [attention_of(block) for block in blocks_of(PLR)]
    mass = np.zeros((2, 3, 3, len(LABELS) + 1))
    places, reached, even, users = np.zeros((2, 3, 3, 20)), np.zeros(20), np.zeros(len(LABELS)), 0
    for _, batch in batches(PLR, EVERYONE.histories):
        width = batch.items.shape[1]
        for looked in latent_weights(PLR, attentions, batch):
            first = (looked.layer, looked.step) == (0, 1)
            for u, length in enumerate(batch.lengths.tolist()):
                users += first
                w = looked.weights[u].double().mean(0).numpy()
                mass[looked.layer, :, looked.step - 1, -1] += w[:, width:].sum(1)
                for j in range(length):
                    back = length - 1 - j
                    band = sum(back >= edge for edge in EDGES)
                    mass[looked.layer, :, looked.step - 1, band] += w[:, j]
                    places[looked.layer, :, looked.step - 1, back] += w[:, j]
                    if first:
                        even[band] += 1 / length
                        reached[back] += 1
    for layer in range(2):
        for stream in range(3):
            for step in (1, 2, 3):
                where = {"layer": layer, "head": stream, "index": step}
                for band, label in enumerate((*LABELS, OWN)):
                    if label == OWN or even[band]:
                        found = values(rows, "mass", **where, label=label)[0]
                        assert found == pytest.approx(mass[layer, stream, step - 1, band] / users, abs=1e-6)
                found = values(rows, "place", **where, label="1")[0]
                assert found == pytest.approx(places[layer, stream, step - 1, 1] / reached[1], abs=1e-6)
                whole = sum(values(rows, "mass", **where))
                assert whole == pytest.approx(1, abs=1e-6)
    expect(rows, "even", even[0] / users, label="last")


def test_steps_gate_and_ceiling_are_evaluations() -> None:
    curve, ceiling, gate = (kind(context_of(PLR, evaluation=SPEC)).rows() for kind in (StepCurve, OracleStep, GateGain))

    def at(*settings):
        return pytest.approx(evaluate(PLR, STORE, "test", SPEC.override(*settings)).metrics["ndcg@10"])

    for step in range(6):
        assert values(curve, "ndcg@10", index=step, label="fixed")[0] == at(f"reasoning.steps={step}"), step
    assert 1 <= values(curve, "steps", label="adaptive")[0] <= 5 and values(curve, "trained") == [3]
    assert values(curve, "ndcg@10", label="adaptive")[0] == at("reasoning.steps=5", "reasoning.adaptive=10")
    fixed = values(ceiling, "fixed")[0]
    assert fixed == at() and values(ceiling, "best")[0] >= fixed
    with equal_weights(PLR.reasoner):
        assert values(gate, "even")[0] == at() != fixed
    assert values(gate, "learned")[0] == at() and "weigh" not in vars(PLR.reasoner)
    expect(gate, "gain", fixed - values(gate, "even")[0])


def test_hidden_events_are_measured_for_any_model() -> None:
    for model in (PLR, model_of()):
        rows = Robustness(context_of(model, evaluation=SPEC)).rows()
        assert [one["index"] for one in rows] == [0, 10, 20, 30]
        wanted = evaluate(model, STORE, "test", SPEC.override("drop=0.3")).metrics["ndcg@10"]
        assert rows[-1]["value"] == pytest.approx(wanted)


REASONING = {"diversity", "streams", "ensemble", "latent_attention", "step_curve", "oracle_step", "gate_gain"}


def test_a_plain_model_says_nothing_of_reasoning() -> None:
    plain = diagnose_retrieval(model_of(), STORE, users=20)
    assert not REASONING & {one["diagnostic"] for one in plain.rows} and plain.left_out() == {}


def test_one_stream_has_no_others() -> None:
    model = thinker(reasoner="rearec")
    found = diagnose_retrieval(model, STORE, users=20)
    assert set(found.left_out()) == {"bound", "diversity", "streams", "ensemble", "gate_gain"}
    assert found.of("step_curve") and found.of("oracle_step") and found.of("latent_attention")


def test_a_reasoner_has_a_whole_diagnosis() -> None:
    found = diagnose_retrieval(PLR, STORE, users=20)
    assert set(found.left_out()) == {"bound"}, "Theorem 4.1 of SPRINT is about the last layer's states"
    assert {one["diagnostic"] for one in found.rows} >= REASONING
    trained = diagnose_retrieval(PLR, STORE, split="train", users=20)
    assert "ensemble" in trained.left_out() and not trained.of("step_curve") and trained.of("diversity")


@pytest.mark.parametrize(
    "reasoner", ["lares", "{kind: rearec, answer: mean}", "{kind: rearec, answer: last}"], ids=["lares", "erl", "prl"]
)
def test_one_stream_has_a_ceiling_and_a_curve_in_its_diagnosis(reasoner) -> None:
    model = thinker(reasoner=reasoner)
    found = diagnose_retrieval(model, STORE, users=40, evaluation=SPEC)
    rows = found.of("oracle_step", "best")
    assert [one["label"] for one in rows] == ["ndcg@10"]
    assert rows[0]["value"] >= found.of("oracle_step", "fixed")[0]["value"]
    assert len(found.of("oracle_step", "step")) == model.reasoner.steps + 1
    assert len(found.of("step_curve", "seconds")) == model.reasoner.steps + 4
    looked = bool(found.of("latent_attention", "mass"))
    assert looked == (reasoner != "lares")
    assert looked or "refine the states of all events" in found.left_out()["latent_attention"]


def test_an_attention_without_softmax_says_so() -> None:
    encoder = Transformer(layers=1, attention=HSTU(heads=2))
    model = model_of(recommender(encoder, "reasoner=plr", "task=last_item"))
    (only,) = LatentAttention(context_of(model)).rows()
    assert only["name"] == LEFT_OUT and "no softmax weights" in only["label"]


def test_without_attention_steps_do_not_read_the_history_either() -> None:
    """The ablation silences latent tokens too: the history enters by its last state alone."""
    from fullrank.analysis.diagnostics.ablation import silenced

    attentions = [attention_of(block) for block in blocks_of(PLR)]
    batch = next(iter(batches(PLR, EVERYONE.histories)))[1]
    with silenced(tuple(attentions)), torch.no_grad():  # type: ignore[arg-type]
        thinking = PLR.reasoner.begin(*PLR.task.inference_inputs(PLR.items, batch))
        other = replace(thinking, cache=replace(thinking.cache, layers=tuple(
            (k + 1, v + 1) for k, v in thinking.cache.layers
        )))  # fmt: skip
        a, b = PLR.reasoner.advance(thinking), PLR.reasoner.advance(other)
    torch.testing.assert_close(a.states.steps, b.states.steps)
    assert all("attend_latent" not in vars(attention) for attention in attentions)
