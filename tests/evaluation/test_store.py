"""Evaluation on a store that `prepare` wrote, with a model that anybody can recompute."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fakes import listed
from fullrank.data.events.prepare import Prepare, prepare
from fullrank.evaluation import Evaluation, evaluate
from fullrank.models.sequential.baselines.popularity import Popularity


def events(users: int = 40, items: int = 25) -> pl.DataFrame:
    """Users come one after another in time, so that a cut in time leaves the last ones without training events."""
    rng = np.random.default_rng(0)
    chances = np.arange(items, 0, -1) / (items * (items + 1) / 2)
    drawn = [rng.choice(items, rng.integers(3, 8), replace=False, p=chances).tolist() for _ in range(users)]
    rows = [(u, item, 1000 * u + place) for u, row in enumerate(drawn) for place, item in enumerate(row)]
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


@pytest.mark.parametrize("split", ["leave_one_out", "global_time"])
def test_popularity_on_a_prepared_store(split: str, tmp_path: Path) -> None:
    store = prepare(events(), tmp_path / "store", spec=Prepare().override(f"split={split}"))
    model = Popularity().build(store.catalog)
    model.fit(store)
    found = evaluate(model, store, "test", Evaluation(ks=(5,), bootstrap=20, empty="answer"))
    values = []
    asked = store.eval_set("test", without_history=True)
    for history, targets in zip(asked.histories.items, asked.targets, strict=True):
        ranked = listed(store.catalog.popularity.astype(float), 5, set(history.tolist()))
        wanted = set(targets.tolist())
        values.append(len(wanted & set(ranked)) / len(wanted))
    assert found.per_user.values["recall@5"].tolist() == pytest.approx(values)
    assert found.protocol["fingerprint"] == store.fingerprint
