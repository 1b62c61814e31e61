"""Ranks of single impressions, behind each layer of every ranker: against a slow twin, and where they are planted."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clicks import FIELDS, impressions
from fullrank.analysis.activations import RankingActivations, RankingContext
from fullrank.analysis.diagnostics.rank_theorems import RankTheorems
from fullrank.analysis.diagnostics.token_ranks import BIN, NO_LAYERS, NO_TOKENS, TokenRanks, ranks
from fullrank.core.registry import kinds
from fullrank.data.impressions.store import ImpressionStore
from fullrank.models.ranking import EVERY
from fullrank.models.ranking.model import RankingModel
from refusals import refused
from tests.analysis.conftest import values
from tiny import drawn, shaken

DRAW = torch.Generator().manual_seed(7)


def ranks_slowly(tokens) -> np.ndarray:
    """The definitions, one matrix after the other."""
    found = []
    for matrix in tokens.double().numpy():
        if not matrix.any():
            found.append((0.0, 0.0))
            continue
        stable = np.linalg.norm(matrix, "fro") ** 2 / np.linalg.norm(matrix, 2) ** 2
        sigma = np.linalg.svd(matrix, compute_uv=False)
        shares = [s / sigma.sum() for s in sigma if s > 0]
        found.append((stable, np.exp(-sum(p * np.log(p) for p in shares))))
    return np.array(found).T


@given(
    rows=st.integers(1, 4), tokens=st.integers(1, 6), width=st.integers(1, 6),
    size=st.sampled_from([1e-20, 1.0, 1e15]), seed=st.integers(0, 10_000),
)  # fmt: skip
def test_the_slow_twin(rows, tokens, width, size, seed) -> None:
    x = drawn(rows, tokens, width, seed=seed) * size
    x[0] = 0
    found = ranks(x)
    assert found.dtype == torch.float64 and found.numpy() == pytest.approx(ranks_slowly(x), rel=1e-6)
    assert found[:, 0].tolist() == [0, 0], "a zero matrix has no direction"


def test_bfloat16_is_read_exactly_and_nan_is_refused() -> None:
    x = torch.randn(3, 4, 5, generator=DRAW).bfloat16()
    assert torch.equal(ranks(x), ranks(x.double()))
    with refused("not-finite"):
        ranks(torch.full((1, 2, 2), float("nan")))


def of_model(model=None) -> RankingContext:
    """What the diagnostics are given: they read nothing of the store, so that it may be empty."""
    model = RankingModel().override("ranker=lr").build(FIELDS) if model is None else model
    return RankingContext(model, ImpressionStore.__new__(ImpressionStore), "test", np.arange(1))


def reading(*taps, fed=None) -> RankingActivations:
    return RankingActivations({f"tap_{n}": tap for n, tap in enumerate(taps)}, fed or {})


def test_rows_say_what_batches_held_together() -> None:
    one, two = torch.randn(30, 5, 4, generator=DRAW), torch.randn(30, 7, 4, generator=DRAW)
    one[3], two[4] = 0, 0
    observer, whole = TokenRanks(of_model()), TokenRanks(of_model())
    for part in (slice(0, 11), slice(11, 30)):
        observer.observe(reading(one[part], two[part]))
    whole.observe(reading(one, two))
    rows = observer.rows()
    for ours, theirs in zip(rows, whole.rows(), strict=True):
        assert ours["value"] == pytest.approx(theirs["value"]) and ours["label"] == theirs["label"]
    old, new = (ranks_slowly(x) for x in (one, two))
    for place, figure in enumerate(("stable_rank", "entropy_rank")):
        assert values(rows, figure, layer=1, label="tap_1") == [pytest.approx(new[place].mean())]
        assert values(rows, f"{figure}_quantile", layer=0, index=50) == [pytest.approx(np.median(old[place]))]
        assert values(rows, f"{figure}_change") == [pytest.approx((new - old)[place].mean())]
        assert values(rows, f"{figure}_rose") == [pytest.approx((new > old)[place].mean())]
        some = old[place] > 0
        assert values(rows, f"{figure}_ratio") == [pytest.approx((new[place][some] / old[place][some]).mean())]
        bars = [one for one in rows if one["name"] == f"{figure}_bin" and one["layer"] == 1]
        assert sum(one["value"] for one in bars) == pytest.approx(1)
        middle = sum((one["index"] + 0.5) * BIN * one["value"] for one in bars)
        assert middle == pytest.approx(new[place].mean(), abs=BIN / 2)
    assert values(rows, "tokens") == [5, 7] and values(rows, "width") == [4, 4]


def test_a_rank_on_an_edge_stands_right_of_it() -> None:
    """Rank 1, 2 and 3 to rounding: bars 10, 20 and 30, never 9, 19 or 29."""
    observer = TokenRanks(of_model())
    bases = [torch.linalg.qr(torch.randn(6, 6, generator=DRAW))[0] for _ in range(9)]
    observer.observe(
        reading(torch.stack([base * (torch.arange(6) < 1 + n % 3)[:, None] for n, base in enumerate(bases)]))
    )
    found = [one for one in observer.rows() if one["name"].endswith("_bin")]
    assert {one["index"] for one in found} == {10, 20, 30}


SMALL = {
    "rankmixer": ("ranker.tokens=4",), "rankelastor": ("ranker.tokens=4", "ranker.width=5"),
}  # fmt: skip


def observed(kind, *settings) -> tuple:
    spec = RankingModel().override(f"ranker={kind}", *SMALL.get(kind, ()), *settings)
    torch.manual_seed(0)
    model = shaken(spec.build(FIELDS)).eval()  # type: ignore[assignment]
    fed = {}
    for n, module in enumerate(getattr(model.ranker, "feed_forwards", ())):
        module.register_forward_pre_hook(lambda _, given, n=n: fed.update({f"ffn_{n}": given[0]}))
    with torch.inference_mode():
        taps = {name: tap for name, tap in model.output(impressions(20), EVERY).captures.items() if tap.shape[-1]}
    first, second = TokenRanks(of_model(model)), RankTheorems(of_model(model))
    for observer in (first, second):
        observer.observe(RankingActivations(taps, fed))
    return first.rows(), second.rows(), (taps, fed)


LAYERS = {
    "lr": [], "fm": ["embedding"], "dnn": ["embedding"], "dcnv2": ["embedding", "cross_0", "cross_1", "cross_2"],
    "xdeepfm": ["embedding", "cin_0", "cin_1"], "autoint": ["embedding", "attention_0", "attention_1", "attention_2"],
    "finalmlp": ["embedding", "selected_0", "selected_1"],
    "rankmixer": ["embedding", "tokens", "mixing_0", "ffn_0", "mixing_1", "ffn_1"],
    "rankelastor": ["embedding", "tokens", "mixing_0", "ffn_0", "mixing_1", "ffn_1"],
}  # fmt: skip


def test_every_ranker_is_listed() -> None:
    assert set(kinds("rankers")) == set(LAYERS)


@pytest.mark.parametrize("kind", LAYERS)
def test_every_ranker_has_rows_or_says_why_not(kind) -> None:
    rows, theorems, (taps, _) = observed(kind)
    assert list(dict.fromkeys(one["label"] for one in rows if one["name"] == "stable_rank")) == LAYERS[kind]
    why = [one["label"] for one in rows if one["name"] == "left_out"]
    assert why == ([NO_TOKENS] if not LAYERS[kind] else [NO_LAYERS] if len(LAYERS[kind]) == 1 else [])
    for tap, mean in zip(taps.values(), values(rows, "stable_rank"), strict=True):
        assert mean == pytest.approx(ranks_slowly(tap)[0].mean()) and mean <= min(tap.shape[1:]) + 1e-9
    mixes = "mixing_0" in LAYERS[kind]
    assert bool([one for one in theorems if one["name"] == "feed_forward_gain"]) == mixes
    assert bool([one for one in theorems if one["name"] == "left_out"]) == (kind != "rankmixer")


def test_theorems_are_of_the_modules_own_inputs() -> None:
    _, rows, (taps, fed) = observed("rankmixer")
    given, made = ranks_slowly(fed["ffn_1"])[0], ranks_slowly(taps["ffn_1"])[0]
    assert values(rows, "feed_forward_gain", layer=1) == [pytest.approx((made - given).mean())]
    assert values(rows, "feed_forward_ratio", layer=1) == [pytest.approx((made / given).mean())]
    assert values(rows, "transpose_rank", layer=1) == [
        pytest.approx(ranks_slowly(taps["mixing_1"])[0].mean(), rel=1e-5)
    ]
    assert values(rows, "transpose_before", layer=1) == [pytest.approx(ranks_slowly(taps["ffn_0"])[0].mean(), rel=1e-5)]
    _, full, _ = observed("rankmixer", "ranker.mixing=full")
    assert not [one for one in full if one["name"].startswith("transpose")]
    assert "Theorem 2.1" in [one["label"] for one in full if one["name"] == "left_out"][0]


def test_impressions_without_any_number_are_left_out_of_theorems() -> None:
    """Of a zero matrix a ratio does not exist."""
    model = RankingModel().override("ranker=rankmixer", "ranker.tokens=4").build(FIELDS)
    observer = RankTheorems(of_model(model))
    nothing, taps = torch.zeros(3, 4, 4), ("tokens", "mixing_0", "ffn_0", "mixing_1", "ffn_1")
    observer.observe(RankingActivations(dict.fromkeys(taps, nothing), {"ffn_0": nothing, "ffn_1": nothing}))
    assert all(one["value"] is None for one in observer.rows() if one["name"] != "left_out")
