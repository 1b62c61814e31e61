"""Ranking models diagnosed and watched: the sample, the file, what is refused, and not a bit of the weights changed."""

from typing import Any

import numpy as np
import pytest

import fullrank as fr
from fullrank.analysis.diagnose import diagnose_ranking
from fullrank.analysis.diagnosis import NAME, Diagnosis
from fullrank.analysis.ranking_activations import ranking_activations, sample_impressions
from fullrank.core.tensor_files import read_tensors
from fullrank.data.impressions.store import ImpressionStore
from fullrank.run import Run, weights_hash
from fullrank.training import Callback
from markets import planted_store
from refusals import refused
from tests.training.clicks import SCHEMA, shop, table, tiny
from tests.training.conftest import tiny as tiny_of_lists

SMALL = ("training.max_epochs=2", "training.batch_size=300", "model.ranker.tokens=4", "model.ranker.width=6")


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> ImpressionStore:
    return shop(tmp_path_factory.mktemp("clicks") / "data")


def mixing(*settings) -> Any:
    return tiny().override("model.ranker=rankelastor", *SMALL, *settings)


@pytest.fixture(scope="module")
def run(store, tmp_path_factory) -> Run:
    return fr.train(mixing(), store, tmp_path_factory.mktemp("run") / "bare", progress=False)


def test_a_sample_is_a_function_of_seed_and_split(store) -> None:
    test = store.split("test")
    some = sample_impressions(store, "test", 50)
    assert len(set(some)) == 50 and all(row in test for row in some) and (np.diff(some) > 0).all()
    assert np.array_equal(some, sample_impressions(store, "test", 50)) and not np.array_equal(
        some, sample_impressions(store, "test", 50, seed=1)
    )
    assert list(sample_impressions(store, "test", 10**6)) == list(test)
    for words, hint in ((("tset", 5), "unknown-split"), (("test", 0), "setting-out-of-range")):
        with refused(hint, words[0] if hint == "unknown-split" else words[1]):
            sample_impressions(store, *words)


def test_rows_are_those_of_the_whole_split_in_any_batches(run, store, tmp_path, monkeypatch) -> None:
    found = fr.diagnose(run, impressions=10**6)
    about = found.about()
    assert about["impressions"] == len(store.split("test")) and about["split"] == "test" and about["seed"] == 0
    assert about["weights"] == weights_hash(run.path) and about["fingerprint"] == store.fingerprint
    found.save(tmp_path / NAME)
    assert Diagnosis.load(tmp_path / NAME) == found
    monkeypatch.setattr("fullrank.analysis.ranking_activations.ROWS", 7)
    again = fr.diagnose(run, impressions=10**6)
    for ours, theirs in zip(_smooth(again), _smooth(found), strict=True):
        assert ours["value"] == pytest.approx(theirs["value"], rel=1e-4, abs=1e-4), ours


def _smooth(found) -> list:
    """The figures that rounding moves a little, and does not make jump."""
    return [one for one in found.rows if one["value"] is not None and not one["name"].endswith(("_bin", "_rose"))]


def test_reading_leaves_the_model_as_it_was(run, store) -> None:
    model = run.model().train()
    hooks = [module._forward_pre_hooks for module in model.modules()]
    for one in ranking_activations(model, store, sample_impressions(store, "test", 9)):
        assert list(one.feed_forward_inputs) == ["ffn_0", "ffn_1"] and not any(
            tap.requires_grad for tap in one.layers.values()
        )
    assert model.training and not any(hooks)


def test_what_is_refused(run, store, tmp_path) -> None:
    with refused("sample-of-other-problem", run.path, "impressions"):
        fr.diagnose(run, users=5)
    other = fr.prepare_impressions(table(200), tmp_path / "other", schema=SCHEMA | {"fields": ["user", "item"]})
    with refused("store-differs", tmp_path / "other", run.path):
        fr.diagnose(run, data=other)
    with refused("other-fields", other.path):
        diagnose_ranking(run.model(), other)


def test_watching_logs_every_tap_and_changes_no_weight(run, store, tmp_path) -> None:
    watched = fr.train(mixing(), store, tmp_path / "watched", callbacks=[fr.Watch()], progress=False)
    epochs = [row for row in watched.rows() if row["event"] == "epoch"]
    assert len(epochs) == 2 and not [row for row in watched.rows() if row["event"] == "watch"]
    taps = ("embedding", "tokens", "mixing_0", "ffn_0", "mixing_1", "ffn_1")
    for row in epochs:
        for name in ("stable_rank", "entropy_rank"):
            assert all(1 <= row[f"watch/{name}/{tap}"] <= 6 for tap in taps)
            assert row[f"watch/last_layer_{name}"] == row[f"watch/{name}/ffn_1"]
    one, two = (read_tensors(path / "weights.safetensors") for path in (run.path, watched.path))
    assert one.keys() == two.keys() and all(one[key].equal(two[key]) for key in one)


def test_watching_inside_an_epoch_is_what_a_diagnosis_says(store, tmp_path) -> None:
    watch = fr.WatchRanks(impressions=100, every=3)
    made = fr.train(mixing("training.max_epochs=1"), store, tmp_path / "r", callbacks=[watch], progress=False)
    rows = [row for row in made.rows() if row["event"] == "watch"]
    assert [row["step"] for row in rows] == [3, 6] and all(0 < row["epoch"] < 1 for row in rows)
    (epoch,) = (row for row in made.rows() if row["event"] == "epoch")
    found = fr.diagnose(made, "validation", impressions=100)
    assert found.of("token_ranks", "stable_rank")[-1]["value"] == pytest.approx(epoch["watch/last_layer_stable_rank"])


def test_what_cannot_be_watched_is_said_before_anything_is_written(store, tmp_path) -> None:
    assert isinstance(fr.WatchRanks(), Callback)
    lr = tiny().override("model={kind: click, ranker: lr}")
    for spec, watch, hint in (
        (lr, fr.Watch(), "nothing-to-watch"),
        (lr, fr.WatchRanks(), "nothing-to-watch"),
        (mixing(), fr.Watch(users=30), "setting-without-effect"),
    ):
        with refused(hint):
            fr.train(spec, store, tmp_path / "no", callbacks=[watch], progress=False)
    market = planted_store(tmp_path / "market")
    with refused("watch-of-other-problem", "fullrank.Watch"):
        fr.train(tiny_of_lists(), market, tmp_path / "no", callbacks=[fr.WatchRanks()], progress=False)
    assert not (tmp_path / "no").exists()
    for settings in ({"impressions": 0}, {"every": 0}):
        with refused("setting-out-of-range", 0):
            fr.WatchRanks(**settings)


def test_without_validation_training_impressions_are_read(tmp_path) -> None:
    schema = SCHEMA | {"split": {"kind": "random", "shares": [0.9, 0.0, 0.1]}}
    store = fr.prepare_impressions(table(400), tmp_path / "data", schema=schema)
    made = fr.train(mixing("training.max_epochs=1"), store, tmp_path / "r", callbacks=[fr.Watch()], progress=False)
    assert [row for row in made.rows() if row["event"] == "epoch"][0]["watch/last_layer_stable_rank"] >= 1
