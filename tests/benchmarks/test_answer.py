"""The check of `benchmarks.answer`: green as it is, red where a call gives other items than the model's best."""

from typing import Any

import polars as pl
import pytest

from benchmarks import answer as benchmark
from benchmarks.harness import Wrong
from fullrank.inference.predictor import Predictor


def keeps_seen(predictor: Predictor, histories: Any, *, k: int) -> Any:
    found = predictor.recommend(histories, k=k)
    return found.with_columns(item=pl.Series([histories[0][0], *found["item"].to_list()[1:]]))


def forgets_the_last_event(predictor: Predictor, histories: Any, *, k: int) -> Any:
    return predictor.recommend([histories[0][:-1]], k=k)


def shuffles(predictor: Predictor, histories: Any, *, k: int) -> Any:
    return predictor.recommend(histories, k=k).with_columns(pl.col("item").reverse())


@pytest.mark.parametrize("fault", [keeps_seen, forgets_the_last_event, shuffles])
def test_a_wrong_call_is_caught(fault: benchmark.Recommend) -> None:
    with pytest.raises(Wrong):
        benchmark.check(fault)


def test_the_figures_at_a_tiny_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "ITEMS", 200)
    monkeypatch.setattr(benchmark, "OPENED", 2)
    parser = benchmark.argparse.ArgumentParser()
    benchmark.BENCHMARK.arguments(parser)
    found = benchmark.measure(parser.parse_args(["--calls", "4", "--rounds", "1"]), lambda text: None)
    assert found["calls"] == 4 and found["items"] == 200
    assert found["p50_over_parts"] > 0 and found["opened_each_time_ms"] > found["p50_ms"] > 0
