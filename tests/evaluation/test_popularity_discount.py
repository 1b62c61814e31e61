"""Popularity discount: lists against loops over discounted scores, and what it cannot be combined with."""

import numpy as np
import pytest

from fakes import Kept, Whole, listed
from fullrank.evaluation import Evaluation, evaluate
from fullrank.evaluation.compare import compare
from refusals import refused

STORE = Kept.random(80, 40, longest=20)
SMALL = Evaluation(bootstrap=0, ks=(5,))


@pytest.mark.parametrize("weight", [0.3, 5.0])
@pytest.mark.parametrize("block", [7, None])
def test_lists_are_those_of_the_discounted_scores(weight: float, block: int | None) -> None:
    model, counts = Whole(40, max_length=4), STORE.catalog.popularity
    spec = SMALL.override(f"popularity_discount={weight}", f"block={block or 'null'}")
    found, plain = evaluate(model, STORE, "test", spec), evaluate(model, STORE, "test", SMALL)
    assert found.per_user.lists is not None and plain.per_user.lists is not None
    asked = STORE.eval_set("test")
    for history, ids in zip(asked.histories.items, found.per_user.lists, strict=True):
        scores = model.scores(history[-4:]) - weight * np.log1p(counts)
        assert ids.tolist() == listed(scores, 5, set(history.tolist()))
    assert (found.per_user.lists != plain.per_user.lists).any()
    assert counts[found.per_user.lists].mean() < counts[plain.per_user.lists].mean()
    assert found.protocol["popularity_discount"] == weight and "popularity_discount" not in plain.protocol


def test_lists_with_and_without_it_are_compared() -> None:
    """Among the ways to answer, as a budget of reasoning is: the same users, the same candidates."""
    model = Whole(40, max_length=4)
    plain, discounted = (evaluate(model, STORE, "test", SMALL.override(f"popularity_discount={w}")) for w in (0, 5))
    found = compare(plain, discounted, "arp@5")
    assert found.difference < 0


@pytest.mark.parametrize(
    "setting", ["protocol=sampled", "sampled=10", "decoding={kind: pruned}", "reasoning.adaptive=5"]
)
def test_what_does_not_score_every_item_is_refused(setting: str) -> None:
    with refused("discount-needs-all-scores", "popularity_discount"):
        Evaluation().override("popularity_discount=1", setting)
