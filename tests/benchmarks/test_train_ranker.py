"""The benchmark of rankers compares equal things, and notices when they are not."""

import argparse
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import train_ranker as benchmark
from benchmarks.harness import Wrong
from benchmarks.impressions import table
from benchmarks.twins.linear_layers import LinearLayers
from benchmarks.twins.rankers import plain_of


def without_a_cross(ours: Any, fields: Any) -> nn.Module:
    made: Any = plain_of(ours, fields)
    if hasattr(made, "crosses"):
        del made.crosses[2]
    return made


def other_ungated(ours: Any, fields: Any) -> nn.Module:
    made: Any = plain_of(ours, fields)
    for block in getattr(made, "blocks", ()):
        block.tokens[3].residual.weight.data.zero_()
    return made


class OneProduct(LinearLayers):
    def run(self) -> tuple[list[Tensor], list[Tensor]]:
        dx, dw = super().run()
        return dx, [torch.zeros_like(one) for one in dw]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [without_a_cross, other_ungated])
def test_a_wrong_twin_is_caught(fault: Any) -> None:
    with pytest.raises(Wrong, match="plain twin"):
        benchmark.check(plain=fault)


@pytest.mark.slow
def test_a_floor_that_computes_something_else_is_caught() -> None:
    with pytest.raises(Wrong, match="floor"):
        benchmark.check(products=OneProduct)


@pytest.mark.slow
def test_a_pair_that_is_not_matched_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(benchmark.MATCHED, "rankmixer", "rankmixer")
    with pytest.raises(Wrong, match="dense parameters"):
        benchmark.check()


def test_the_table_is_shaped_like_movielens() -> None:
    made = table(20_000)
    assert made["user"].n_unique() > 4000 and made["genre"].n_unique() == 18 and made["zip"].n_unique() > 1500
    assert (made["genres"].str.split("|").list.first() == made["genre"]).all()
    assert 0.4 < made["label"].mean() < 0.6  # type: ignore[operator]
    assert made.group_by("user").n_unique()["gender"].max() == 1 and made.group_by("item").n_unique()["year"].max() == 1


@pytest.mark.slow
def test_the_figures_at_a_tiny_size() -> None:
    options = argparse.Namespace(rows=6000, rounds=1, steps=1)
    figures = benchmark.measure(options, lambda text: None)
    step = figures["step_dcnv2_seconds"]
    assert figures["epoch_over_gemm_floor"] == pytest.approx(step / figures["step_products_seconds"], rel=1e-2)
    assert figures["epoch_seconds"] == pytest.approx(figures["steps"] * step, rel=1e-2)
    plain, ours = figures["step_plain_rankelastor_seconds"], figures["step_rankelastor_without_l2_seconds"]
    assert figures["rankelastor_over_plain"] == pytest.approx(plain / ours, rel=1e-2)
    assert figures["dense_matched_rankmixer"] / figures["dense_matched_rankelastor"] == pytest.approx(1, abs=0.05)
    assert figures["prepare_1m_seconds"] > 0 and figures["lightning_over_epoch"] > 0
