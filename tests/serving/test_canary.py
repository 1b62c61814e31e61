"""The check of a new version: each thing that may be wrong is found, and a version that is as good is let through."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fullrank.data.events.catalog import Catalog
from fullrank.serving.requests import Answer, ItemNumbers
from fullrank.serving.stores import Event, open_history_store
from fullrank.serving.version_checks import (
    Canary,
    CanarySettings,
    Check,
    Verdict,
    check_model,
    read_body,
    read_canaries,
    sample_canaries,
)
from fullrank.testing.settings import check_bounds
from refusals import refused
from tests.serving.served import Version, here, items_of

V, K = 60, 5


def table(ids: Sequence, **columns) -> Catalog:
    frame = pl.DataFrame({"item_id": ids, "train_count": [3] * len(ids), **columns})
    return Catalog(frame.with_row_index("item").with_columns(pl.col("item").cast(pl.Int64)))


class Model(Version):
    """Knows what each canary's target is (it follows the last item of the history), in a share of the cases."""

    def __init__(self, share: float, catalog: Catalog | None = None, seed: int = 0, **more):
        known = catalog or table(range(V))
        self.items = items_of(known)
        self.share, self.seed = share, seed
        self.__dict__.update(more)

    def answer(self, asks: Sequence) -> list:
        size = self.items.catalog.size
        found = []
        for ask in asks:
            rng = np.random.default_rng([self.seed, *ask.items.tolist()])
            free = rng.permutation(np.setdiff1d(np.arange(size), np.concatenate([ask.items, ask.excluded])))[: ask.k]
            if len(ask.items) and rng.random() < self.share and (target := (int(ask.items[-1]) + 1) % size) not in free:
                free[0] = target
            found.append(Answer(free.tolist(), [1.0] * len(free)))
        return found


CANARIES = [Canary((n % V, (7 * n + 3) % V), (1.0, 2.0), ((7 * n + 3) % V + 1) % V) for n in range(200)]
CANARIES = [one for one in CANARIES if one.target not in one.items]
SETTINGS = CanarySettings(k=K)


def verdict(new: Model, old: Model | None, canaries: Sequence = tuple(CANARIES), **more) -> dict:
    return {check.name: check for check in check_model(new, old, canaries, CanarySettings(k=K, **more), here)}


def test_as_good_and_better_pass_and_worse_does_not() -> None:
    good = Model(0.6)
    assert all(check.ok for check in verdict(Model(0.6, seed=1), good).values())
    assert all(check.ok for check in verdict(Model(0.9, seed=1), good).values())
    worse = verdict(Model(0.35, seed=1), good)
    assert (
        not worse["loss of hit@5"].ok
        and worse["loss of hit@5"].figure is not None
        and worse["loss of hit@5"].figure > 0.2
    )
    assert verdict(Model(0.35, seed=1), good, tolerance=0.9)["loss of hit@5"].ok, "a loss that is allowed"
    assert not verdict(Model(0.0, seed=1), good, tolerance=1.0)["loss of hit@5"].ok, "a catastrophe never is"


def test_a_difference_within_chance_is_no_refusal() -> None:
    few = CANARIES[:24]
    assert verdict(Model(0.5, seed=1), Model(0.6), few)["loss of hit@5"].ok
    assert "not judged" in verdict(Model(0.0), Model(0.9), few[:10])["quality"].detail


def test_without_canaries_it_is_asked_all_the_same() -> None:
    assert verdict(Model(0.5), Model(0.5), [])["answers"].ok
    assert verdict(Model(0.5), None, [])["answers"].ok
    broken = Model(0.5)
    broken.answer = lambda asks: [Answer([0] * ask.k, [0.0] * ask.k) for ask in asks]
    assert not verdict(broken, None, [])["answers"].ok, "one item many times"


def test_barred_items_are_found_in_lists_and_a_list_may_be_short_of_them() -> None:
    barred = np.arange(V) >= 8
    model = Model(0.0)
    model.items.barred = barred
    assert not verdict(model, None)["answers"].ok
    model.answer = lambda asks: [
        Answer(ids := [n for n in range(8) if n not in {*ask.items, *ask.excluded}][:K], [0.0] * len(ids))
        for ask in asks
    ]
    assert verdict(model, None)["answers"].ok


def test_drift_of_the_catalogue() -> None:
    old = Model(0.5, table(range(V)))
    fewer = verdict(Model(0.5, table(range(40))), old)
    assert not fewer["catalogue"].ok and fewer["catalogue"].figure == pytest.approx(40 / V)
    assert not fewer["histories"].ok and "answers" not in fewer
    assert verdict(Model(0.5, table(range(V + 30))), old)["catalogue"].ok
    text = verdict(Model(0.5, table([str(n) for n in range(V)])), old)
    assert not text["ids"].ok


def test_columns_that_filters_name() -> None:
    old = Model(0.5, table(range(V), price=np.arange(V), kind=["a"] * V), ranker_fields=("hour", "price"))
    gone = verdict(Model(0.5, table(range(V), kind=[1] * V), ranker_fields=("hour",)), old)
    assert not gone["columns"].ok and "price" in gone["columns"].detail and "kind" in gone["columns"].detail
    assert not gone["ranker fields"].ok and "price" in gone["ranker fields"].detail


def test_recall_of_an_index() -> None:
    assert not verdict(Model(0.5, recall=0.9), None)["recall"].ok
    assert verdict(Model(0.5, recall=0.99), None)["recall"].ok


def test_ids_of_either_type() -> None:
    assert [ItemNumbers([5, 6]).get(item) for item in ("6", 5, "x", "07")] == [1, 0, -1, -1]
    assert [ItemNumbers(["5", "x"]).get(item) for item in (5, "x", 7)] == [0, 1, -1]


def test_canaries_of_a_table_and_of_the_store(tmp_path: Path) -> None:
    rows = [("u", 1, 30), ("u", 2, 10), ("v", 4, 5), ("w", 1, 1), ("w", 2, 2), ("w", 1, 3)]
    pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row").write_csv(tmp_path / "canaries.csv")
    assert read_canaries(tmp_path / "canaries.csv", SETTINGS) == [Canary((2,), (10.0,), 1, time=30.0)]
    pl.DataFrame({"user_id": [1]}).write_csv(tmp_path / "other.csv")
    with refused("missing-column", "item_id"):
        read_canaries(tmp_path / "other.csv", SETTINGS)

    async def sampled() -> list:
        store = open_history_store("memory:")
        await store.open()
        await store.add_events([Event(f"{n}", f"u{n // 3}", n, float(n)) for n in range(12)])
        return await sample_canaries(store, CanarySettings(requests=3, history=1))

    found = asyncio.run(sampled())
    assert len(found) == 3 and all(len(one.items) == 1 and one.items[0] + 1 == one.target for one in found)


def test_a_verdict_is_plain_data_and_comes_back() -> None:
    one = Verdict("june", "may", "m", "i", (Check("recall", False, 0.5, 0.98, "low"),), 1.0, 2.0)
    assert read_body(Verdict, one.dump()) == one and not one.ok and "recall 0.5 (bound 0.98): low" in one.reason
    assert read_body(Verdict, {"version": "june"}) is None


def test_every_number_has_bounds() -> None:
    check_bounds(CanarySettings())
