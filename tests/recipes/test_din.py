"""The recipe `din`, from training to prediction, and its published settings."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.cli import main
from fullrank.data.impressions.schema import FieldInfo
from fullrank.run.experiment import find_experiment
from refusals import refused
from tests.training.clicks import shop

PUBLIC = {
    "kuaivideo": (("user_id", "item_id"), {"pos_items": "item_id", "neg_items": "item_id"}),
    "taobaoad": (
        ("userid", "cate_id", "brand", "btag"), {"cate_his": "cate_id", "brand_his": "brand", "btag_his": "btag"},
    ),
    "amazonelectronics": (("item_id", "cate_id"), {"item_history": "item_id", "cate_history": "cate_id"}),
}  # fmt: skip
"""Fields with ids and sequences of the public sets, as far as attention reads them."""


@pytest.mark.parametrize("name", PUBLIC)
def test_published_settings_build(name: str) -> None:
    """By hand: the weights of the attention, (4 W) 512 + 512 x 256 + 256, W the width of its fields side by side."""
    made = find_experiment(f"fullrank.recipes.din:{name}")
    assert made.recipe == f"din-{name}"
    ids, sequences = PUBLIC[name]
    fields = [FieldInfo(one, "categorical", 9) for one in ids]
    fields += [FieldInfo(one, "sequence", 9, shares) for one, shares in sequences.items()]
    with torch.device("meta"):
        model: Any = made.model.build(fields)  # type: ignore[attr-defined]
    together = name != "kuaivideo"
    width = model.embedding.spec.dim * (len(sequences) if together else 1)
    unit = 4 * width * 512 + 512 * 256 + 256
    assert len(model.embedding.attended) == (1 if together else 2)
    assert model.size().flops["attention"] == 2 * 50 * unit * len(model.embedding.attended)
    others: Any = [*fields[: len(ids)], *([FieldInfo("other", "sequence", 9, ids[0])] if together else [])]
    with refused("unknown-field" if together else "no-sequences"):
        made.model.build(others)  # type: ignore[attr-defined]


def seen(rows: int = 1500, seed: int = 0) -> pl.DataFrame:
    """Clicks of those whose history holds the category of the item."""
    draw = np.random.default_rng(seed)
    item, many = draw.integers(0, 30, rows), draw.integers(0, 6, rows)
    history = [draw.integers(0, 30, n).tolist() for n in many]
    inside = [one % 6 in {i % 6 for i in items} for one, items in zip(item.tolist(), history, strict=True)]
    return pl.DataFrame({
        "user": draw.integers(0, 20, rows), "item": item, "category": item % 6, "history": history,
        "categories": [[i % 6 for i in items] for items in history],
        "label": (draw.random(rows) < np.where(inside, 0.8, 0.2)).astype(int),
    }, schema_overrides={"history": pl.List(pl.Int64), "categories": pl.List(pl.Int64)})  # fmt: skip


SCHEMA = {
    "fields": [
        "user", "item", "category", {"kind": "sequence", "name": "history", "shares": "item"},
        {"kind": "sequence", "name": "categories", "shares": "category"},
    ],
    "group": "user",
}  # fmt: skip
SETTINGS = (
    "model.sequences.together=[[history,categories]]", "model.sequences.search=[[categories,history]]",
    "model.embedding.dim=4", "model.ranker.deep.hidden=[16]", "training.max_epochs=2", "training.batch_size=256",
)  # fmt: skip


def test_from_training_to_prediction(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Evaluation, prediction, diagnosis, size and more training of a run with attention behind hard search."""
    store = fr.prepare_impressions(seen(), tmp_path / "store", schema=SCHEMA)
    run = fr.train("din", store, tmp_path / "run", set=SETTINGS, progress=False)
    found = fr.evaluate(run, "test")
    test = seen()[store.external(store.split("test"))["input_row"].to_list()]
    predicted = fr.predict(run, test)["probability"].to_numpy()
    assert found.metrics["logloss"] == pytest.approx(_logloss(predicted, test["label"].to_numpy()), rel=1e-5)
    assert fr.diagnose(run, impressions=300).of("token_ranks", "stable_rank")
    assert main(["show", str(run.path)]) == 0 and "attention" in capfd.readouterr().out
    more = fr.train("same", store, tmp_path / "more", init_from=run, set=["training.lr=1e-9"], progress=False)
    key = "embedding.attended.0.pooling.head.weight"
    before, after = (one.model().state_dict()[key] for one in (run, more))
    assert torch.allclose(before, after, atol=1e-5) and before.any()


def _logloss(probability: np.ndarray, label: np.ndarray) -> float:
    return float(-np.mean(np.where(label == 1, np.log(probability), np.log1p(-probability))))


def test_a_store_without_sequences_is_refused(tmp_path: Path) -> None:
    with refused("no-sequences", "pooled"):
        fr.train("din", shop(tmp_path / "store"), tmp_path / "run", progress=False)
