"""The index benchmark checks what it times, and its vectors are what they are said to be."""

import argparse

import numpy as np
import pytest

from benchmarks import vector_index as benchmark
from benchmarks.clustered import clustered_vectors
from benchmarks.harness import Wrong

pytest.importorskip("faiss")


def test_a_low_recall_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "recall", lambda *given: 0.9)
    with pytest.raises(Wrong, match="too little"):
        benchmark.check()


def test_the_figures_at_a_tiny_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "MEASURED", 40)
    monkeypatch.setattr(benchmark, "EXACT_ROUNDS", 3)
    found = benchmark.measure(argparse.Namespace(sizes=[1000], rounds=3), lambda sentence: None)
    assert found["recall_1k"] > 0.9 and found["recall_1k_tenth"] == 1
    assert all(found[f"{kind}_ms_1k_b{batch}"] > 0 for kind in ("exact", "index") for batch in (1, 8))


def test_clustered_vectors() -> None:
    items, users = clustered_vectors(5000, 10, width=8, clusters=4, spread=0.01)
    again = clustered_vectors(5000, 10, width=8, clusters=4, spread=0.01)
    assert np.array_equal(items, again[0]) and np.array_equal(users, again[1])
    assert len(np.unique(items.round(), axis=0)) < 60, "items do not lie around four centres"
    assert np.abs(users[:, None] - items[None]).max(2).min(1).max() < 0.1, "a user is far from all items"
