"""The recipes of SRT: what they share and where they differ, the paper's shapes and schedule, and that text learns."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fullrank as fr
from fullrank.data.events.catalog import Catalog
from fullrank.recipes import srt
from fullrank.run.experiment import find_experiment
from fullrank.training.optim import lr_factor
from tests.recipes.conftest import model
from tiny import catalog

DRAWN = {srt.srt_10: 10, srt.srt_100: 100, srt.srt_300: 300, srt.srt_1k: 1000}
SHAPES = {
    srt.paper: (24, 4, 256), srt.l16_d256: (16, 4, 256), srt.l8_d256: (8, 4, 256), srt.l8_d128_h4: (8, 4, 128),
    srt.l8_d128: (8, 2, 128), srt.l4_d128: (4, 2, 128), srt.l2_d128: (2, 2, 128), srt.l4_d64: (4, 2, 64),
}  # fmt: skip


def test_the_small_ones_differ_in_the_loss_alone() -> None:
    base = find_experiment("srt")
    assert model(base).loss.negatives.share == "batch" and model(srt.full()).loss.kind == "cross_entropy"
    for recipe, count in DRAWN.items():
        loss = model(recipe()).loss
        assert (loss.negatives.count, loss.negatives.share, loss.log_q) == (count, "query", "all")
        assert (loss.negatives.popularity, loss.negatives.uniform, loss.negatives.exclude) == (1, 0, "target")
        assert model(recipe()).model_copy(update={"loss": model(base).loss}) == model(base)


def test_the_paper_s_shapes() -> None:
    for recipe, shape in SHAPES.items():
        made = model(recipe())
        encoder = made.encoder
        assert (encoder.layers, encoder.attention.heads, made.dim) == shape
        assert (encoder.inner, encoder.norm_at, encoder.norm_eps) == (made.dim, "post", 1e-12)
        assert encoder.activation == "gelu"
        assert encoder.dropout == encoder.attention.dropout == 0.5 and made.scoring.similarity == "dot"


def test_the_paper_s_schedule() -> None:
    """From a 25th up to the peak at three tenths, then down to a tenth."""
    training = srt.paper().training
    assert training.lr == 1e-4 and training.max_epochs == 50
    rates = [lr_factor(training, step, 1000) for step in (0, 300, 999)]
    assert rates == pytest.approx([1 / 25, 1.0, 0.1], rel=1e-3)
    assert lr_factor(training, 150, 1000) == pytest.approx((1 + 1 / 25) / 2)


@pytest.mark.parametrize(
    ("recipe", "wanted"), [(srt.l4_d64, 112_448), (srt.l2_d128, 238_720), (srt.l8_d256, 3_310_848)]
)
def test_parameters_are_those_of_the_authors_runs(recipe: Any, wanted: int) -> None:
    """All but the token tables, as their published runs count them."""
    frame = catalog().frame.rename({"brand_tokens": "attributes_first_tokens"})
    built = recipe().model.build(Catalog(frame))
    own = [p.numel() for name, p in built.named_parameters() if not name.startswith("items.tables")]
    assert sum(own) == wanted


def test_text_learns(tmp_path: Path) -> None:
    """Who read one colour reads it again, and the colour stands in the title alone."""
    colours = ("red", "green", "blue", "black")
    items = pl.DataFrame({"item_id": range(40), "title": [f"{colours[i % 4]} thing {i}" for i in range(40)]})
    events = [(u, (u % 4 + 4 * ((u * 7 + t * 3) % 10)), t) for u in range(120) for t in range(6)]
    table = pl.DataFrame(events, schema=["user_id", "item_id", "timestamp"], orient="row")
    store = fr.prepare(table, tmp_path / "store", items=items)
    how = ["training.max_epochs=6", "training.patience=null", "training.lr=0.01", "model.dim=16", "seed=1",
           "model.encoder.inner=16", "model.items.fields=[{column: title}]", "model.items.vocabulary=60"]  # fmt: skip
    run = fr.train(fr.recipe("srt", *how), store, tmp_path / "run", progress=False)
    found = [row["validation/ndcg@5"] for row in run.rows() if "validation/ndcg@5" in row]
    assert max(found) > 2 * 0.07, "chance is about 0.07"
