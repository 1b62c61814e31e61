"""What a run leaves behind: rows, the best epoch's weights, loggers, callbacks, and errors before time is lost."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.core.errors import install_extra
from fullrank.core.tensor_files import read_tensors
from fullrank.data.events.store import Store
from fullrank.training import TrainState
from fullrank.training.fit import fit
from refusals import refused
from tests.training import clicks
from tests.training.conftest import Runs, column, epochs, tiny


def test_rows_tell_loss_pace_and_score(runs: Runs) -> None:
    rows = epochs(runs("run", "training.max_epochs=3"))
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]
    for row in rows:
        assert row["tokens_per_s"] > 0 and 0 <= row["padding_share"] < 0.3
        assert 0 < row["validation/ndcg@10"] < 1


def test_the_best_epoch_is_kept_not_the_last(market: Store, runs: Runs) -> None:
    class Ruin:
        def on_epoch(self, state: TrainState) -> dict[str, Any]:
            if state.epoch == 2:
                torch.nn.init.normal_(state.model.items.embedding.weight, std=5.0)
            return {}

    run = runs("run", "training.max_epochs=4", callbacks=(Ruin(),))
    scores = column(run, "validation/ndcg@10")
    assert max(scores[:2]) > max(scores[2:])
    found = fr.evaluate(run, "validation", data=market).metrics["ndcg@10"]
    assert found == pytest.approx(max(scores), abs=1e-6)


def test_patience_ends_a_run(market: Store, tmp_path: Path) -> None:
    spec = tiny("training.max_epochs=50", "training.lr=1e-12", "training.patience=2")
    rows = epochs(fit(spec, market, tmp_path / "run", progress=False))
    assert len(rows) <= 6


def test_evaluate_every_skips_epochs_but_never_the_last(runs: Runs) -> None:
    rows = epochs(runs("r", "training.max_epochs=5", "training.evaluate_every=2"))
    assert [row["epoch"] for row in rows if "validation/ndcg@10" in row] == [2, 4, 5]


def test_callbacks_add_figures(runs: Runs) -> None:
    class Norm:
        def on_epoch(self, state: TrainState) -> dict[str, Any]:
            return {"norm": float(state.model.items.all().norm()), "at": state.epoch}

    run = runs("run", "training.max_epochs=2", callbacks=(Norm(),))
    assert [row["at"] for row in epochs(run)] == [1, 2]
    assert all(row["norm"] > 0 for row in epochs(run))


def test_lightning_loggers_by_name(runs: Runs) -> None:
    run = runs("run", "training.max_epochs=1", loggers=("csv", "tensorboard"))
    for name in ("csv", "tensorboard"):
        assert any(p.stat().st_size > 0 for p in (run.path / "logs" / name).rglob("*") if p.is_file())


@pytest.mark.parametrize("clip", ["null", "1"])
def test_bf16_learns_about_as_well(clip: str, runs: Runs) -> None:
    settings = "training.clip_norm=" + clip
    full, half = (epochs(runs(p, f"training.precision={p}", settings, dropout=0.0)) for p in ("fp32", "bf16"))
    assert half[-1]["train/loss"] == pytest.approx(full[-1]["train/loss"], rel=0.03)
    assert half[-1]["train/loss"] != full[-1]["train/loss"]


def test_a_batch_larger_than_the_data_is_said_and_recorded(
    market: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop = clicks.shop(tmp_path / "shop")
    for made, store, size in ((tiny, market, "512"), (clicks.tiny, shop, "128")):
        one = "training.max_epochs=1"
        few = fit(made(one, f"training.batch_size={size}"), store, tmp_path / f"few {size}", progress=False)
        assert few.manifest["steps_per_epoch"] > 1 and "one step" not in caplog.text
        whole = fit(made(one, "training.batch_size=1000000000"), store, tmp_path / f"whole {size}", progress=False)
        assert whole.manifest["steps_per_epoch"] == 1
        assert "training.batch_size=1,000,000,000" in caplog.text and "each epoch is one step" in caplog.text
        caplog.clear()


def test_a_logger_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, runs: Runs) -> None:
    def absent(**_: Any) -> None:
        raise ModuleNotFoundError("Neither `tensorboard` nor `tensorboardX` is available. Try `pip install`ing either.")

    for name, told in (("TensorBoardLogger", install_extra("tensorboard")), ("WandbLogger", "pip install")):
        monkeypatch.setattr(f"lightning.pytorch.loggers.{name}", absent)
        with refused("missing-package", told):
            runs("run", loggers=(name.removesuffix("Logger").lower(),))


def test_without_validation_all_epochs_run_and_the_last_weights_stay(tmp_path: Path) -> None:
    """Two events a user are too few for leave-one-out: all of them are training events."""
    events = pl.DataFrame({"user_id": [u for u in range(40) for _ in "ab"], "item_id": [i % 7 for i in range(80)],
                           "timestamp": range(80)})  # fmt: skip
    data = fr.prepare(events, tmp_path / "store")
    run = fit(tiny("training.max_epochs=2"), data, tmp_path / "run", progress=False)
    assert "validation/ndcg@10" not in epochs(run)[-1]
    pointer = next((run.path / "checkpoints").glob("step-*"))
    a, b = read_tensors(run.path / "weights.safetensors"), read_tensors(pointer / "weights.safetensors")
    assert all(torch.equal(a[k], b[k]) for k in a)
    with refused("no-validation-targets", "training.patience"):
        fit(tiny("training.patience=2"), data, tmp_path / "other", progress=False)
