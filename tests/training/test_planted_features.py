"""Planted in a column of users, of events or of requests, in the hour alone, or in a column of users and the hour at
once, the next item is found; and the diagnostic says which feature it was. So is the next purchase, which only what was
bought before tells, among views that are noise.
"""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from featured import FeaturedStore
from fullrank.analysis.activations import RetrievalContext, sample_protocol, sample_users
from fullrank.analysis.diagnosis import Diagnosis
from fullrank.analysis.diagnostics.feature_worth import ENDS, FeatureWorth
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.evaluation import Evaluation, evaluate
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.run.experiment import Experiment
from fullrank.training.data_module import RetrievalData

VALUES, USERS, TESTED, NOISE = 8, 1500, 500, 0.1
CEILING = 1 - NOISE + NOISE / VALUES
"""Share of targets that the planted value gives away, and those of the others that it names by chance."""


def world(role: str, *, shuffled: bool = False, noise: bool = False) -> FeaturedStore:
    """Users of two events (a user says no more than one, or history would show the column), with a value in each; the
    second item is that of the value but for noise, and the first is any. The last users are tested on.

    Role `both`: the hour, one of two, says which of two items is that of a user's value. `noise`: there is a column of
    it too."""
    draw, more = np.random.default_rng(7), np.random.default_rng(8)
    first, value = draw.integers(0, VALUES, USERS), draw.integers(0, VALUES, USERS)
    chance, other_item = draw.random(USERS), draw.integers(0, VALUES, USERS)
    half = more.integers(0, 2, USERS) * (role == "both")
    named = np.stack([draw.permutation(VALUES), more.permutation(VALUES)])[half, value]
    second = np.where(chance < NOISE, other_item, named)
    items = np.stack([first, second], 1).ravel().astype(np.int32)
    given, said = (draw.permutation(value), more.permutation(half)) if shuffled else (value, half)
    hour = 12 * said if role == "both" else given
    hours = np.where(np.arange(2 * USERS) % 2, np.repeat(hour, 2), 12)  # of the second event alone
    times = 1_700_006_400 + 86_400 * np.arange(2 * USERS) + 3600 * hours + draw.integers(0, 3600, 2 * USERS)
    offsets = np.arange(USERS + 1) * 2
    ends = offsets[1:] - (np.arange(USERS) >= USERS - TESTED)
    arrays = {"items": items, "offsets": offsets, "bounds": np.stack([ends, ends], 1), "times": times, "weights": None,
              "types": None}  # fmt: skip
    counts = np.bincount(items, minlength=VALUES)
    columns = {"item": range(VALUES), "item_id": range(VALUES), "train_count": counts}
    plain = Store(Path("in memory"), {"fingerprint": role}, arrays, Catalog(pl.DataFrame(columns)))
    other = draw.integers(0, VALUES, USERS)
    rows = {
        "user": given,
        "both": given,
        "event": np.stack([given, other], 1).ravel(),
        "request": np.stack([other, given], 1).ravel(),
    }
    if role not in rows:
        return FeaturedStore.of(plain)
    table = pl.DataFrame({"planted": rows[role]})
    if noise:
        table = table.with_columns(noise=more.integers(0, VALUES, len(table)))
    return FeaturedStore.of(plain, **{role.replace("both", "user"): table})


def planned(*settings: str, features: str) -> Experiment:
    return Experiment(model=Recommender(dim=16, max_length=4)).override(
        "model.encoder.layers=1", "training.batch_size=512", "training.batch_by=rows", f"model.features={features}",
        *settings,
    )  # fmt: skip


def trained(store: Store, *settings: str, features: str) -> RecommenderModel:
    """A small model behind sixty steps."""
    spec = planned(*settings, features=features)
    torch.manual_seed(0)
    data = RetrievalData.of(spec, store)
    model = spec.model.build(data.known)  # type: ignore[attr-defined]
    loader, optimizer = data.loader(model), torch.optim.Adam(model.parameters(), lr=0.02)
    for k in range(60):
        optimizer.zero_grad()
        sum(model(loader.batch(k)).values()).backward()
        optimizer.step()
    return model.eval()


def found(store: Store, *settings: str, features: str) -> float:
    """The share of the tested users whose target is first in their list."""
    model, lists = trained(store, *settings, features=features), planned(*settings, features=features).lists
    lists = lists.override("ks=[1]", "metrics=[recall]", "bootstrap=0", "seen=keep", "selection=recall@1")
    return evaluate(model, store, "test", lists).metrics["recall@1"]


ALONE = {
    "user": "{event: [], request: []}", "event": "{request: [], user: []}", "request": "{event: [], user: []}",
    "hour": "{event: [], request: [hour], user: []}", "both": "{event: [], request: [hour]}",
}  # fmt: skip


@pytest.mark.parametrize("role", ALONE)
def test_what_is_planted_is_found(role: str) -> None:
    assert found(world(role), features=ALONE[role]) > 0.95 * CEILING
    assert found(world(role, shuffled=True), features=ALONE[role]) < 0.3


@pytest.mark.parametrize("features", ["{event: [], request: []}", "{event: [], request: [hour], user: []}"])
def test_one_of_two_is_not_enough(features: str) -> None:
    assert found(world("both"), features=features) < 0.7


@pytest.mark.parametrize("role", ["user", "event", "request", "both"])
def test_the_diagnostic_names_what_was_planted(role: str) -> None:
    """It comes first, with nearly all of the accuracy; of noise the interval holds 0."""
    store = world(role, noise=True)
    features = "{request: [auto, hour]}" if role == "both" else "auto"
    model = trained(store, features=features)
    lists = sample_protocol(Evaluation(seen="keep"))
    rows = FeatureWorth(RetrievalContext(model, store, "test", sample_users(store, "test", TESTED), lists)).rows()
    diagnosis = Diagnosis(tuple(rows))
    lost, low, high = (diagnosis.values("feature_worth", f"ndcg@10_{end}", "label") for end in ENDS)
    planted, *rest = lost
    of = "user" if role == "both" else role
    assert {planted, *rest} == {f"{of}.planted", f"{of}.noise", *(["request.hour"] if role == "both" else [])}
    assert rest[-1] == f"{of}.noise" and low[rest[-1]] <= 0 <= high[rest[-1]]
    for name in lost.keys() - {rest[-1]}:
        assert low[name] > 0.15 and low[name] < lost[name] < high[name]


@pytest.mark.parametrize("fuse", ["concat", "gate"])
def test_other_ways_of_fusing_find_it_too(fuse: str) -> None:
    assert found(world("request"), features=f"{{fuse: {fuse}}}") > 0.95 * CEILING


@pytest.mark.parametrize("encoder", ["gru", "fmlp", "{kind: transformer, layers: 1, attention: {kind: hstu}}"])
def test_a_token_of_the_user_is_found_too(encoder: str) -> None:
    features = "{user_at: prefix}"
    spec = f"model.encoder={encoder}"
    assert found(world("user"), spec, features=features) > 0.95 * CEILING


def purchases(*, shuffled: bool = False) -> FeaturedStore:
    """Users of four events, one of them a purchase at any place, and what they buy then: the item that belongs to the
    first purchase, but for noise. Every second of those who are tested views something instead."""
    draw = np.random.default_rng(3)
    items = draw.integers(0, VALUES, (USERS, 5))
    bought = draw.integers(0, 4, USERS)
    paired = draw.permutation(VALUES)[items[np.arange(USERS), bought]]
    items[:, 4] = np.where(draw.random(USERS) < NOISE, draw.integers(0, VALUES, USERS), paired)
    types = np.full((USERS, 5), "view", dtype=object)
    types[np.arange(USERS), bought] = types[:, 4] = "purchase"
    tested = np.arange(USERS) >= USERS - TESTED
    looks = tested & (np.arange(USERS) % 2 == 0)
    items[looks, 4], types[looks, 4] = draw.integers(0, VALUES, looks.sum()), "view"
    ends = np.arange(1, USERS + 1) * 5 - tested
    arrays = {"items": items.ravel().astype(np.int32), "offsets": np.arange(USERS + 1) * 5,
              "bounds": np.stack([ends, ends], 1), "times": None, "weights": None, "types": None}  # fmt: skip
    columns = {"item": range(VALUES), "item_id": range(VALUES), "train_count": np.bincount(items.ravel())}
    plain = Store(Path("in memory"), {"fingerprint": "purchases"}, arrays, Catalog(pl.DataFrame(columns)))
    given = types.ravel()
    return FeaturedStore.of(plain, event=pl.DataFrame({"type": draw.permutation(given) if shuffled else given}))


BOUGHT = "evaluation.targets={feature: type, values: [purchase]}"


@pytest.mark.parametrize("task", ["next_item", "{kind: last_item, per_user: null}"])
def test_the_next_purchase_is_found(task: str) -> None:
    settings = BOUGHT, f"model.task={task}", "model.max_length=8"
    assert found(purchases(), *settings, features="auto") > 0.95 * CEILING
    assert found(purchases(shuffled=True), *settings, features="auto") < 0.3
