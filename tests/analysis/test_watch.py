"""Watching a training: figures each epoch, one alarm per crossing, and not a bit of the weights changed."""

import pytest

import fullrank as fr
from fullrank.analysis.watch import Watch
from fullrank.core.tensor_files import read_tensors
from fullrank.data.events.store import Store
from fullrank.training import Callback
from markets import planted_store
from refusals import refused
from tests.training.conftest import tiny


@pytest.fixture(scope="module")
def market(tmp_path_factory) -> Store:
    return planted_store(tmp_path_factory.mktemp("market") / "store", users=120)


def test_it_is_a_callback_of_training() -> None:
    assert isinstance(Watch(), Callback)
    assert fr.Watch is Watch


def test_figures_are_those_of_a_diagnosis_and_the_weights_the_same(market, tmp_path) -> None:
    spec = tiny("training.max_epochs=1")
    bare = fr.train(spec, market, tmp_path / "bare", progress=False)
    watched = fr.train(spec, market, tmp_path / "watched", callbacks=[Watch(users=30)], progress=False)
    (epoch,) = (row for row in watched.rows() if row["event"] == "epoch")
    for layer in ("", "last_layer_"):
        assert 0 < epoch[f"watch/{layer}collapse_share"] <= 1 <= epoch[f"watch/{layer}entropy_rank"] <= 16
    assert 0 <= epoch["watch/popularity_spearman"] <= 1 and epoch["watch_seconds"] >= 0
    share = fr.diagnose(watched, "validation", users=30).value("spectrum", "collapse_share")
    assert share == pytest.approx(epoch["watch/collapse_share"], rel=1e-4)
    one, two = (read_tensors(run.path / "weights.safetensors") for run in (bare, watched))
    assert one.keys() == two.keys() and all(one[key].equal(two[key]) for key in one)


def test_one_alarm_per_crossing(market, tmp_path, capsys) -> None:
    watch = Watch(users=30, alarm=1e-6)
    run = fr.train(tiny("training.max_epochs=3"), market, tmp_path / "run", callbacks=[watch], progress=False)
    assert [row["epoch"] for row in run.rows() if "watch/collapse_share" in row and row["event"] == "epoch"] == [
        1,
        2,
        3,
    ]
    (alarm,) = (row for row in run.rows() if row["event"] == "alarm")
    assert alarm["epoch"] == 1 and alarm["threshold"] == 1e-6 and alarm["watch/collapse_share"] > 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Alarm: ")]
    assert len(said) == 1 and "after epoch 1" in said[0]
    quiet = fr.train(
        tiny("training.max_epochs=1"), market, tmp_path / "q", callbacks=[Watch(alarm=1.0)], progress=False
    )
    assert not [row for row in quiet.rows() if row["event"] == "alarm"]


def test_without_validation_users_training_histories_are_read(market, tmp_path) -> None:
    bounds = market.bounds.copy()
    bounds[:, 1] = bounds[:, 0]
    arrays = {"items": market.items, "offsets": market.offsets, "bounds": bounds, "times": None, "weights": None}
    store = Store(market.path, market.manifest, arrays | {"types": None}, market.catalog)
    run = fr.train(tiny("training.max_epochs=1"), store, tmp_path / "run", callbacks=[Watch()], progress=False)
    assert [row for row in run.rows() if row["event"] == "epoch"][0]["watch/collapse_share"] > 0


def test_settings_that_cannot_be() -> None:
    with refused("alarm-out-of-range", 1.5):
        Watch(alarm=1.5)
    with refused("setting-out-of-range", 1):
        Watch(users=1)


def test_a_baseline_has_no_epochs_to_watch(market, tmp_path) -> None:
    with refused("baseline-without-training", "callbacks"):
        fr.train("popularity", market, tmp_path / "run", callbacks=[Watch()])
    assert not (tmp_path / "run").exists()
