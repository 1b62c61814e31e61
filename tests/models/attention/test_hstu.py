"""HSTU against its formulas, its time buckets by hand, column sums of long histories, and what its spec refuses."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fullrank.data.batch import Captures
from fullrank.models.sequential.attention import Places, rotate
from fullrank.models.sequential.attention.hstu import buckets
from parts import HSTU, Softmax, Transformer
from refusals import refused
from tiny import close, drawn, histories, padded, shaken
from twins import same

LONGEST = 9
SETTINGS = [
    {},
    {"causal": False, "norm": "rms"},
    {"rel_bias": "positions", "qk_width": 5, "value_width": 3},
    {"gate": False, "rel_bias": "none", "rope": True, "bias": False},
    {"gate": False, "causal": False},
]


def silu(x) -> Tensor:
    return x / (1 + (-x).exp())


def by_hand(attention, spec, x, times) -> Tensor:
    """The output for one row, query by query and key by key."""
    n, heads = len(x), spec.heads
    e, f = spec.qk_width or x.shape[1] // heads, spec.value_width or x.shape[1] // heads
    sizes = [heads * f * spec.gate, heads * f, heads * e, heads * e]
    u, v, q, k = silu(x @ attention.uvqk.weight.T).split(sizes, -1)
    out = []
    for i in range(n):
        seen = range(i + 1) if spec.causal else range(n)
        mixed = []
        for h in range(heads):
            q_i, rows = q[i, h * e : (h + 1) * e], k[:, h * e : (h + 1) * e]
            if spec.rope:
                q_i = rotate(q_i[None, None, None], torch.tensor([[i]]))[0, 0, 0]
                rows = rotate(rows[None, None], torch.arange(n)[None])[0, 0]
            total = torch.zeros(f)
            for j in seen:
                score = q_i @ rows[j]
                if spec.rel_bias != "none":
                    score = score + attention.by_distance[i - j if spec.causal else i - j + LONGEST - 1]
                if spec.rel_bias == "times":
                    gap = abs(times[min(i + 1, n - 1)] - times[j])
                    score = score + attention.by_time[min(128, int(math.log(max(gap, 1)) / 0.301))]
                total = total + silu(score) / LONGEST * v[j, h * f : (h + 1) * f]
            mixed.append(total)
        y = torch.cat(mixed)
        if spec.gate and spec.norm == "rms":
            y = u[i] * attention.norm.weight * y / (y.pow(2).mean() + 1e-6).sqrt()
        elif spec.gate:
            y = u[i] * (y - y.mean()) / (y.var(unbiased=False) + 1e-6).sqrt()
        out.append(y @ attention.output.weight.T + (attention.output.bias if spec.bias else 0))
    return torch.stack(out)


@pytest.mark.parametrize("settings", SETTINGS)
def test_equals_its_formula(settings) -> None:
    spec = HSTU.parse(settings)
    attention = shaken(spec.build(8, LONGEST), 0.7).eval()
    batch = padded(histories([7, 4, 1]))
    x = drawn(3, 7, 8)
    y = attention(x, batch)
    for b, n in enumerate(batch.lengths.tolist()):
        assert close(y[b, :n], by_hand(attention, spec, x[b, :n], batch.times[b, :n].tolist()), 1e-4)


def test_buckets() -> None:
    """floor(ln(seconds) / 0.301) of the absolute difference, from 0 for a second or none up to 128."""
    days = 86_400
    found = buckets(torch.tensor([0, 1, -1, 2, 60, -60, days, 365 * days, 2**62]))
    assert found.tolist() == [0, 0, 0, 2, 13, 13, 37, 57, 128]


def test_what_a_query_asks_about() -> None:
    """The time of the next event of its row; the last repeats its own, and so do latent tokens behind it."""
    batch = replace(padded([[1, 2, 3], [4]], extra=1), times=torch.tensor([[10, 20, 40, 0], [7, 0, 0, 0]]))
    places = Places.of(batch)
    assert places.query_times is not None and places.query_times.tolist()[0][:3] == [20, 40, 40]
    assert places.query_times.tolist()[1][0] == 7
    latent = Places.behind(batch, 1, 2)
    assert latent.queries.tolist() == [[4, 5], [2, 3]]
    assert latent.keys.tolist() == [[0, 1, 2, 3, 3, 4, 5], [0, 1, 2, 3, 1, 2, 3]]
    assert latent.query_times is not None and latent.query_times.tolist() == [[40, 40], [7, 7]]
    assert latent.times is not None and latent.times[:, 4:].tolist() == [[40] * 3, [7] * 3]


def test_no_batch_without_times() -> None:
    batch, x = replace(padded(histories([5])), times=None), torch.randn(1, 5, 8)
    with refused("missing-times", "rel_bias=positions"):
        HSTU().build(8, LONGEST)(x, batch)
    attention = HSTU(rel_bias="positions").build(8, LONGEST).eval()
    assert not attention.reads_times and HSTU().build(8, LONGEST).reads_times
    rows = attention.attend(*attention.project(x, batch.positions(from_end=False)), None)
    assert close(rows, attention(x, batch)), "without places the tokens are those of whole rows"


def test_starting_values() -> None:
    """N(0, 0.02) for the projections and tables, Xavier-uniform for the output, zero bias."""
    torch.manual_seed(0)
    attention = HSTU().build(64, 500)
    for table in (attention.uvqk.weight, attention.by_distance, attention.by_time):
        assert 0.015 < table.detach().std() < 0.025
    bound = math.sqrt(6 / 128)
    assert 0.95 * bound < attention.output.weight.detach().abs().max() <= bound
    assert not attention.output.bias.any() and len(attention.by_time) == 129
    assert len(attention.by_distance) == 500 and len(HSTU(causal=False).build(64, 500).by_distance) == 999


def test_positions_beyond_the_longest_history_share_the_last_entry() -> None:
    """A latent token behind a full history is further from its beginning than any event was from another."""
    attention = shaken(HSTU(rel_bias="positions").build(8, 3), 1.0).eval()
    batch, x = padded(histories([5])), torch.randn(1, 5, 8)
    with torch.no_grad():
        before = attention(x, batch)
        attention.by_distance[2] += 1
    after = attention(x, batch)
    assert close(before[0, :2], after[0, :2]) and not close(before[0, 4], after[0, 4])


@pytest.mark.parametrize("settings", [*SETTINGS, {"rel_bias": "none"}])
@pytest.mark.parametrize("length", [126, 131, 257])
def test_column_sums_of_long_histories(settings, length) -> None:
    """Made in blocks, they equal those of the full weights in value and gradient, and the output is the same."""
    attention = shaken(HSTU.parse(settings).build(8, 260), 0.3).eval()
    batch = padded(histories([length, length - 60, 2]), extra=2)
    x = drawn(3, length + 2, 8, seed=1).requires_grad_()
    kept = []
    y = attention(x, replace(batch, captures=Captures(columns=kept)))
    noted = kept[0].sums
    weights = attention.weights(x, batch)
    slow = (weights.abs() * batch.valid[:, None, :, None]).sum(2)
    assert not noted.masked_select(~batch.valid[:, None]).any()
    assert close(y[batch.valid], attention.apply_weights(weights, x)[batch.valid], 1e-4)
    tables = [table for table in (attention.by_distance, attention.by_time) if table is not None]
    same(noted, slow, x, attention.uvqk.weight, *tables, tolerance=2e-3)


def test_column_sums_under_autocast() -> None:
    """In fp32, as the log-sum-exp over them wants, and close to those of fp32 arithmetic."""
    attention = shaken(HSTU().build(8, 200), 0.3)
    batch, x = padded(histories([150])), torch.randn(1, 150, 8)
    sums = []
    for cast in (False, True):
        kept = []
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            attention(x, replace(batch, captures=Captures(columns=kept)))
        sums.append(kept[0].sums)
    assert sums[1].dtype == torch.float32 and (sums[0] - sums[1]).abs().max() < 0.05 * sums[0].abs().max()
    sums[1].sum().backward()
    assert attention.uvqk.weight.grad is not None and attention.uvqk.weight.grad.isfinite().all()


def test_a_row_without_events_is_finite() -> None:
    for causal, gate in itertools.product((True, False), (True, False)):
        attention = shaken(HSTU(causal=causal, gate=gate).build(8, LONGEST)).eval()
        assert attention(torch.randn(2, 3, 8), padded([[], [1, 2, 3]])).isfinite().all()


def test_it_is_placed_and_softmax_is_not() -> None:
    """The encoder tells places to those attentions alone that ask for them."""
    assert HSTU().build(8, LONGEST).positional and not Softmax().build(8, LONGEST).positional
    assert Transformer(attention=HSTU()).build(8, 9).reads_times
    assert not Transformer(attention=HSTU(rel_bias="none")).build(8, 9).reads_times
    assert not Transformer().build(8, 9).reads_times


@pytest.mark.parametrize(
    ("settings", "code", "named"),
    [
        ({"gate": False, "norm": "rms"}, "setting-without-effect", ("norm", "gate=false")),
        ({"rope": True}, "settings-contradict", ("rope", "rel_bias=none")),
        ({"rope": True, "rel_bias": "positions"}, "settings-contradict", ("rope", "which is positions")),
        ({"dropout": 1.0}, "invalid-setting", ("dropout", 1.0)),
    ],
)
def test_refusals(settings, code, named) -> None:
    with refused(code, *named):
        HSTU.parse(settings)


def test_a_setting_that_is_gone_is_told_so() -> None:
    with refused("removed-setting", "hstu.divide_by='visible'", "0.1.0"):
        HSTU().override("divide_by=visible")


def test_refused_widths() -> None:
    with refused("width-not-divisible", 10, 3, "qk_width", "value_width"):
        HSTU(heads=3).build(10, 5)
    with refused("width-not-even", "hstu", 5):
        HSTU(rel_bias="none", rope=True).build(10, 5)
