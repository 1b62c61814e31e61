"""Metric names are read exactly, written back canonically, and refused with help."""

from pathlib import Path

import numpy as np
import pytest

from folders import distribution
from fullrank.metrics import MetricInputs, lists
from fullrank.metrics.names import ACCURACY, DEFAULT, EXPOSURE, accuracy_among, expand_metrics, parse_metric
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


def test_the_longest_list_has_a_million_places() -> None:
    assert parse_metric("ndcg@1000000").k == 1_000_000


def test_the_accuracy_metrics_among_others_keep_their_order() -> None:
    names = expand_metrics(["arp", "recall", "ndcg"], [5])
    assert accuracy_among(names, "this") == ("recall@5", "ndcg@5")
    with refused("no-accuracy-metric", "this needs", "ndcg"):
        accuracy_among(names[:1], "this")


def test_metrics_of_a_package_stand_behind_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_metrics.py").write_text("def first(table, k):\n    return table.hits[:, 0] * 1.0\n")
    at = "their_metrics:first"
    groups = {"fullrank.metrics.accuracy": {"first": at, "mrr": at}, "fullrank.metrics.exposure": {"last": at}}
    distribution(tmp_path, "theirs", groups)
    ours = len(ACCURACY)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [*ACCURACY][-1] == "first" and len(ACCURACY) == ours + 1 and [*EXPOSURE][-1] == "last"
    assert ACCURACY["mrr"] is lists.mrr, "a name of ours is ours"
    table = MetricInputs(np.array([[True, False], [False, True]]), np.array([1, 1]))
    for text, needs_lists in (("first@2", False), ("last@2", True)):
        assert parse_metric(text)(table).tolist() == [1, 0] and parse_metric(text).needs_lists == needs_lists
    with refused("unknown-metric", "'furst'", "did you mean 'first'"):
        parse_metric("furst@2")
