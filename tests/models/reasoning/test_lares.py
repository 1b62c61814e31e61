"""LARES: its recurrence written out, the depths that training draws, and where the thoughts begin."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from fullrank.models import Budget
from fullrank.models.sequential.reasoning.lares import LARES, drawn_depth
from fullrank.testing.inputs import LENGTHS, padded, sequences
from fullrank.testing.reasoning import DIM, ENCODERS, LONGEST, build_reasoner, steps_of
from parts import Seq2Seq, Softmax, Transformer
from refusals import refused
from twins import same


def by_hand(reasoner, spec, x, batch) -> Tensor:
    """[B, S, D]: row by row without padding, the recurrence as it is written."""
    rows = []
    for row, length in enumerate(LENGTHS):
        alone = padded([batch.items[row, :length].tolist()])
        hidden = reasoner.encoder(x[row : row + 1, :length], alone).tokens
        thought, found = torch.zeros_like(hidden), []
        if spec.start_at_inference == "drawn":
            thought = thought + reasoner.start_draw[:length]
        for _ in range(spec.steps):
            if spec.join == "mean":
                both = (thought + hidden) / 2
            elif spec.join == "concat":
                both = torch.cat([thought, hidden], -1) @ reasoner.both.weight.T + reasoner.both.bias
            else:
                share = 1 / (1 + torch.exp(-reasoner.share))
                both = share * thought + (1 - share) * hidden
            centred = both - both.mean(-1, keepdim=True)
            normal = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-12).sqrt()
            thought = reasoner.core(normal * reasoner.norm.weight + reasoner.norm.bias, alone).tokens
            found.append(thought[0, -1])
        rows.append(torch.stack(found))
    return torch.stack(rows)


@pytest.mark.parametrize("join", ["mean", "concat", "gate"])
@pytest.mark.parametrize("start", ["zero", "drawn"])
@pytest.mark.parametrize("encoder", ["causal", "gru"])
def test_the_recurrence_in_values_and_gradients(join, start, encoder) -> None:
    spec = LARES(steps=3, join=join, start_at_inference=start)
    reasoner = build_reasoner(spec, encoder)
    x, batch = sequences(DIM, extra=2)
    fast, slow = steps_of(reasoner(x, batch)).steps[:, :, 0], by_hand(reasoner, spec, x, batch)
    same(fast, slow, *reasoner.parameters(), tolerance=1e-3)


def test_all_events_are_refined_not_the_last_alone() -> None:
    """What the core reads of an earlier event differs from step to step."""
    reasoner, (x, batch) = build_reasoner(LARES(steps=2)), sequences(DIM)
    zero = reasoner.begin(x, batch)
    one = reasoner.advance(zero)
    (_, before), (_, after) = zero.cache.layers[0], one.cache.layers[0]
    assert not before.any() and (after[batch.valid].abs().sum(-1) > 0).all()


def test_depths_of_training_are_a_function_of_their_place() -> None:
    reasoner, (x, batch) = build_reasoner(LARES(steps=4)).train(), sequences(DIM)
    depths = [reasoner.steps_in_training(replace(batch, step=k)) for k in range(200)]
    assert depths == [reasoner.steps_in_training(replace(batch, step=k)) for k in range(200)]
    assert depths != [reasoner.steps_in_training(replace(batch, step=k, seed=9)) for k in range(200)]
    assert {1, 12} <= {min(depths), max(depths)} | set(depths) and len(set(depths)) > 5
    for step in (0, 1, 2):
        at = replace(batch, step=step)
        assert steps_of(reasoner(x, at)).steps.shape[1] == reasoner.steps_in_training(at)
    assert steps_of(reasoner(x, batch, Budget(steps=2))).steps.shape[1] == 2
    assert steps_of(reasoner.eval()(x, batch)).steps.shape[1] == 4
    assert {build_reasoner(LARES(depth="fixed")).steps_in_training(replace(batch, step=k)) for k in range(9)} == {4}
    reasoner = build_reasoner(LARES(depth="uniform"))
    uniform = Counter(reasoner.steps_in_training(replace(batch, step=k)) for k in range(800))
    assert set(uniform) == set(range(1, 9)) and min(uniform.values()) > 60


def test_depths_follow_their_distribution() -> None:
    """On an even grid of both numbers, against scipy: 1 + Poisson(LogNormal(log m - s^2 / 2, s)), cut at 3 m."""
    grid = (np.arange(300) + 0.5) / 300
    rates = scipy.stats.lognorm.ppf(grid, s=0.5, scale=4 * np.exp(-0.125))
    assert rates.mean() == pytest.approx(4, rel=0.01)
    counts = np.bincount([drawn_depth(4, a, b) for a in grid for b in grid], minlength=13) / 300**2
    for depth in range(1, 12):
        assert counts[depth] == pytest.approx(scipy.stats.poisson.pmf(depth - 1, rates).mean(), abs=1e-3)
    assert counts[12] == pytest.approx(scipy.stats.poisson.sf(10, rates).mean(), abs=1e-3) and len(counts) == 13
    assert drawn_depth(4, 0.0, 0.0) == 1 and drawn_depth(4, 1.0, 1.0) == 12


def test_the_thoughts_begin_at_noise_in_training_and_at_the_same_place_to_answer() -> None:
    x, batch = sequences(DIM, extra=2)
    for spec, zero in ((LARES(), True), (LARES(start_at_inference="drawn"), False), (LARES(start_std=0.0), True)):
        reasoner = build_reasoner(spec)
        first = reasoner.begin(x, batch).cache.layers[0][1]
        assert (first == 0).all() == zero and torch.equal(first[0], first[1])
        assert torch.equal(first, reasoner.begin(x, batch).cache.layers[0][1])
        noise = reasoner.train().begin(x, batch).cache.layers[0][1]
        assert (noise.abs().max() <= 3 * 3.0) and noise.any() == (spec.start_std > 0)


def test_a_core_that_sees_both_sides_makes_a_model_that_does() -> None:
    core = Transformer(layers=1, positions="none", attention=Softmax(causal=False))
    inner = ENCODERS["causal"].build(DIM, LONGEST)
    assert not LARES(core=core).build(inner, DIM, LONGEST).causal and LARES().build(inner, DIM, LONGEST).causal


def test_refusals() -> None:
    with refused("setting-without-effect", "start_at_inference"):
        LARES.parse({"start_std": 0, "start_at_inference": "drawn"})
    for core, encoder in ((Seq2Seq(), Transformer()), (LARES().core, Seq2Seq())):
        with refused("encoder-answers-once", "lares"):
            LARES(core=core).build(encoder.build(DIM, LONGEST), DIM, LONGEST)
