"""Metric names are read exactly, written back canonically, and refused with help."""

import numpy as np
import pytest

from fullrank.metrics import MetricInputs
from fullrank.metrics.names import DEFAULT, expand_metrics, parse_metric
from refusals import refused


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
    ("text", "code", "name"),
    [
        ("ndgc@10", "unknown-metric", "did you mean 'ndcg'"),
        ("ndcg", "metric-without-length", "ndcg@10"),
        ("ndcg@0", "invalid-list-length", "'0'"),
        ("ndcg@1000001", "invalid-list-length", "'1000001'"),
        ("ndcg@" + "9" * 5001, "invalid-list-length", "1,000,000"),
        ("ndcg@ten", "invalid-list-length", "'ten'"),
        ("ndcg@-1", "invalid-list-length", "'-1'"),
        ("ndcg@1.5", "invalid-list-length", "'1.5'"),
        ("fair@1", "metric-without-share", "fair0.8@1"),
        ("fair1.5@1", "share-out-of-range", "fair1.5"),
        ("fair0@1", "share-out-of-range", "fair0"),
        ("bqs_like@5", "metric-of-two-runs", "bqs_like@10"),
        ("@5", "unknown-metric", "''"),
        ("accuracy@5", "unknown-metric", "allowed: arp, coverage"),
    ],
)
def test_refused_with_help(text: str, code: str, name: str) -> None:
    with refused(code, name):
        parse_metric(text)


def test_a_name_computes_its_metric() -> None:
    ids = np.array([[2, 0], [1, 2]])
    table = MetricInputs(ids == 2, np.array([1, 1]), ids, np.array([5, 3, 1]))
    assert parse_metric("mrr@2")(table).tolist() == [1, 0.5]
    assert parse_metric("fair0.4@1")(table).tolist() == [1, 0]
    assert parse_metric("arp@1")(table).tolist() == [1, 3]
