"""Metric names are read exactly, written back canonically, and refused with help."""

from __future__ import annotations

import numpy as np
import pytest

from fullrank.core.errors import UserError
from fullrank.metrics import MetricInputs
from fullrank.metrics.names import DEFAULT, expand_metrics, parse_metric


@pytest.mark.parametrize("text", [f"{base}@{k}" for base in DEFAULT for k in (1, 20)] + ["fair0.95@1"])
def test_round_trip(text: str) -> None:
    assert str(parse_metric(text)) == text


def test_equal_metrics_have_one_name() -> None:
    assert str(parse_metric(" fair.80@05 ")) == "fair0.8@5"
    assert [str(n) for n in expand_metrics(["ndcg", "ndcg@5", "fair0.8@1"], [5, 10])] == [
        "ndcg@5",
        "ndcg@10",
        "fair0.8@1",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ndgc@10", "did you mean 'ndcg'"),
        ("ndcg", "write it as ndcg@10"),
        ("ndcg@0", "at least 1"),
        ("ndcg@ten", "whole number"),
        ("ndcg@-1", "whole number"),
        ("ndcg@1.5", "whole number"),
        ("fair@1", "fair0.8@1"),
        ("fair1.5@1", "between 0 and 1"),
        ("fair0@1", "between 0 and 1"),
        ("bqs_like@5", "compares two runs"),
        ("@5", "unknown metric ''"),
        ("precision@5", "allowed: arp, coverage"),
    ],
)
def test_refused_with_help(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said.replace(".", r"\.")):
        parse_metric(text)


def test_a_name_computes_its_metric() -> None:
    ids = np.array([[2, 0], [1, 2]])
    table = MetricInputs(ids == 2, np.array([1, 1]), ids, np.array([5, 3, 1]))
    assert parse_metric("mrr@2")(table).tolist() == [1, 0.5]
    assert parse_metric("fair0.4@1")(table).tolist() == [1, 0]
    assert parse_metric("arp@1")(table).tolist() == [1, 3]
