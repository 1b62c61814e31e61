"""The benchmark of two trees: who is whose, whichever goes first, and a worker that answers round by round."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import pairs
from benchmarks.harness import ROOT, Wrong


def mixed_up(here: Callable[[], float], there: Callable[[], float], count: int) -> list[tuple[float, float]]:
    return [(here(), there()) if k % 2 else (there(), here()) for k in range(count)]


def test_pairs_that_are_mixed_up_are_noticed() -> None:
    with pytest.raises(Wrong):
        pairs.check(mixed_up)


def test_a_summary_is_of_pairs_and_not_of_sums() -> None:
    """The machine was three times slower in the last pair, which says nothing about the trees."""
    found = pairs.summary("x", [(1.0, 2.0), (1.0, 2.0), (6.0, 6.0)])
    assert found["x_over_baseline"] == 0.5
    assert (found["x_over_baseline_low"], found["x_over_baseline_high"]) == (0.5, 1.0)


@pytest.mark.process
def test_a_worker_that_fails_ends_the_run(tmp_path: Path) -> None:
    """A tree without benchmarks."""
    (tmp_path / "src").mkdir()
    with pytest.raises(RuntimeError, match="the worker of train_ranker"):
        with pairs.worker(tmp_path, "train_ranker", 1):
            pass


@pytest.mark.slow
def test_a_worker_answers_round_by_round() -> None:
    with pairs.worker(ROOT, "train_ranker", 1, steps=1) as once:
        assert once() > 0 and once() > 0
