"""The check of `benchmarks.generate`: green as it is, red where caches, the trie or filters are wrong."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import generate, generated_lists
from benchmarks.harness import Wrong
from fullrank.core.jagged import Jagged
from fullrank.data.histories import Histories
from fullrank.inference.trie_beam import TrieBeam
from fullrank.models.sequential.encoders import Cache


class Mixed(generate.Rereading):
    """Planted: a beam goes on with another one's codes."""

    def branch(self, cache: Cache, parents: Tensor) -> Cache:
        return super().branch(cache, parents.flip(1))


class Unfiltered(TrieBeam):
    """Planted: forgets what users may not be shown."""

    def __call__(self, scorer: Any, k: int, filters: Any) -> tuple[Tensor, Tensor]:
        return super().__call__(scorer, k, None)


def test_planted_faults_are_noticed() -> None:
    with pytest.raises(Wrong, match="with caches"):
        generate.check(twin=Mixed)
    with pytest.raises(Wrong, match=r"whole catalogue .*\(seen\)"):
        generate.check(search=Unfiltered)


def test_what_counts_as_invalid() -> None:
    batch = generate.rows_of(1, 30)
    filters = generate.filters_of(batch, 30, "seen")
    assert filters is not None
    seen = set(batch.items[0].tolist())
    left = [item for item in range(30) if item not in seen]
    assert generate.invalid(torch.tensor([left[:3]]), 30, filters) == 0
    assert generate.invalid(torch.tensor([[left[0], left[0], -1]]), 30, filters) == 2, "one twice, one missing"
    assert generate.invalid(torch.tensor([[left[0], -1, -1]]), 2, None) >= 1
    assert generate.invalid(torch.tensor([[0, 1, -1]]), 2, None) == 0, "there are no more"
    assert generate.invalid(torch.tensor([[left[0], min(seen), left[1]]]), 30, filters) > 0
    assert generate.invalid(torch.tensor([[0, 1, 7]]), 2, None) > 0


def test_small_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"USERS": 4, "NAIVE_USERS": 2, "FEW": 400, "SMALL": 300, "MANY": 900, "SIZE": 16, "BEAMS": 12}
    for name, value in small.items():
        monkeypatch.setattr(generate, name, value)
    monkeypatch.setattr(generate.model_of, "__defaults__", (16,))
    found = generate.measure(generate.argparse.Namespace(rounds=1, run=None), lambda text: None)
    assert found["invalid_rate"] == 0 and found["cached_and_naive_same_places"] > 0.9
    assert found["cached_over_naive"] > 0 and found["trie_mb_1m_4_levels"] > found["trie_mb_1m"] > 0


def test_lists_of_a_run() -> None:
    """A beam as wide as the catalogue keeps everything, and nothing is invalid."""
    model = generate.model_of(40, 3, 8, dim=16)
    rng = np.random.default_rng(0)
    users = Histories(Jagged.from_lists([rng.integers(0, 40, n).tolist() for n in (1, 5, 20, 3, 9)]))
    found = generated_lists.lists_of(model, users, 3, lambda _: None)
    assert found["invalid_rate"] == 0 and found["places"] == 50 and found["kept_users"] == 3
    assert found["kept_of_exhaustive_50"] == found["kept_of_exhaustive_100"] == 1.0
