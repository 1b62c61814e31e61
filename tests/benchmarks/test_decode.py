"""The check of `benchmarks.decode`: green as it is, red where scores or a search are wrong."""

from typing import Any

import pytest
from torch import Tensor

from benchmarks import decode
from benchmarks.harness import Wrong
from fullrank.inference.code_search import GraphSearch
from fullrank.models.sequential.items import ItemIndex
from fullrank.models.sequential.items.semantic import CodeScorer, score_by_codes


class Misplaced(CodeScorer):
    """Planted: every item has the score of the one before it."""

    def block(self, low: int, high: int) -> Tensor:
        return super().block(low, high).roll(1, 1)


def misplaced(vectors: Tensor, catalogue: ItemIndex) -> CodeScorer:
    answer = score_by_codes(vectors, catalogue)
    return Misplaced(answer.levels, answer.sizes, answer.rows)


class Narrow(GraphSearch):
    """Planted: knows the items that it starts from and no others, whatever is asked for."""

    def __init__(self, items: Any, **settings: int):
        super().__init__(items, **settings | {"edges": 1, "beams": 12})


def test_planted_faults_are_noticed() -> None:
    with pytest.raises(Wrong, match="not the sums"):
        decode.check(scored=misplaced)
    with pytest.raises(Wrong, match="graph search"):
        decode.check(sought=Narrow)


def test_small_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MANY": 3000, "FEW": 400, "LEVELS": 4, "SIZE": 16, "DENSE": 32, "DIM": 16}.items():
        monkeypatch.setattr(decode, name, value)
    options = decode.argparse.Namespace(rounds=1)
    found = decode.measure(options, lambda text: None)
    assert found["top10_identical_1m"] == 1 and found["exact_agreement"] == 1
    assert 0 < found["graph_agreement"] <= 1 and found["codes_over_dense_1m"] > 0
