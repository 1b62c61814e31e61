"""The recipes of PLR: what they share and where they differ, and that reasoning around other encoders learns."""

from pathlib import Path
from typing import Any

import pytest

import fullrank as fr
from fullrank.data.events.store import Store
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.items.unisrec import UniSRec
from fullrank.models.sequential.model import Recommender
from fullrank.models.sequential.reasoning.plr import PLR
from fullrank.recipes import plr
from fullrank.run.experiment import find_experiment
from tests.recipes.conftest import beats_popularity, model
from tiny import catalog

SMALL = (plr.base, plr.erl, plr.prl, plr.plr, plr.no_gate, plr.no_contrast, plr.no_kl)
COSINE = (plr.cosine, plr.cosine_base)
TEXTS = (plr.unisrec_base, plr.unisrec, plr.unisrec_erl, plr.unisrec_prl)
VARIANTS = (*COSINE, *TEXTS, plr.bidirectional, plr.hstu, plr.features, plr.cds, plr.movies, plr.games)


@pytest.mark.parametrize("recipe", [*SMALL, *VARIANTS])
def test_every_function_builds(recipe: Any) -> None:
    made = model(recipe())
    if made.items.kind in ("table", "unisrec"):
        made.build(catalog())


def test_the_small_ones_differ_in_reasoner_and_penalties_alone() -> None:
    base = model(plr.base())
    assert base.reasoner is None and not base.penalties
    for recipe in SMALL:
        plainer = model(recipe()).model_copy(update={"reasoner": None, "penalties": ()})
        assert plainer == base and recipe().training == plr.base().training
    kinds = {recipe.__name__: [p.kind for p in model(recipe()).penalties] for recipe in SMALL}
    assert kinds["plr"] == kinds["no_gate"] == ["reasoning_contrast", "kl_diversity"]
    assert (kinds["no_contrast"], kinds["no_kl"]) == (["kl_diversity"], ["reasoning_contrast"])
    assert model(plr.no_gate()).reasoner == PLR(gate="uniform") and model(plr.plr()).reasoner == PLR()
    apart = ("model.reasoner.trigger_std=1.0", "model.reasoner.residual=true")
    assert find_experiment("plr") == plr.cosine().override("recipe=plr", *apart)


def test_the_cosine_ones_differ_in_scoring_alone() -> None:
    for recipe, plain in ((plr.cosine, plr.plr), (plr.cosine_base, plr.base)):
        scoring = model(recipe()).scoring
        assert model(recipe()) == model(plain()).model_copy(update={"scoring": scoring})
        assert scoring == model("sasrec").scoring != model(plain()).scoring


def test_the_ones_on_text_differ_in_reasoner_and_penalties_alone() -> None:
    base = model(plr.unisrec_base())
    assert base.items == UniSRec() and base.encoder == model(plr.base()).encoder and base.reasoner is None
    for recipe, like in zip(TEXTS[1:], (find_experiment("plr"), plr.erl(), plr.prl()), strict=True):
        assert model(recipe()).model_copy(update={"reasoner": None, "penalties": ()}) == base
        assert (model(recipe()).reasoner, model(recipe()).penalties) == (model(like).reasoner, model(like).penalties)


@pytest.mark.parametrize("recipe", [plr.base, plr.plr, *COSINE])
def test_one_dropout_is_that_of_states_and_of_attention(recipe: Any) -> None:
    """p_rep = p_attn, as the paper searches them (Sec. 6.1.4)."""
    for wanted in (0.3, 0.5):
        encoder = model(recipe(dropout=wanted)).encoder
        assert encoder.dropout == encoder.attention.dropout == wanted
    assert recipe(dropout=plr.DROPOUT) == recipe()


def test_the_paper_s_size() -> None:
    made = plr.cds()
    whole = model(made)
    assert (whole.dim, whole.encoder.inner, whole.max_length, made.training.batch_size) == (256, 300, 50, 2048)
    assert made.training.batch_by == "rows" and made.training.patience == 10
    assert not model(plr.games(reasoning=False)).penalties


def test_a_run_from_before_reasoners_is_read() -> None:
    tree = Recommender().dump()
    del tree["reasoner"]
    assert Recommender.parse(tree) == Recommender()


APART = (
    "model.reasoner.trigger_std=1", "model.reasoner.residual=true",
    "model.penalties=[{kind: kl_diversity, reference: attached, items: null}, {kind: stream_loss}]",
)  # fmt: skip
"""What may keep streams apart, all at once."""


@pytest.mark.slow
def test_what_keeps_streams_apart_is_diagnosed_stopped_early_and_exported(market: Store, tmp_path: Path) -> None:
    """A few epochs and then `diagnose` say whether the streams are one; every way to answer takes the same steps."""
    small = ["model.dim=16", "model.max_length=16", "model.encoder.inner=16", "training.max_epochs=1"]
    found = {}
    for name, more in (("plain", ()), ("apart", APART)):
        run = fr.train("fullrank.recipes.plr:cosine", market, tmp_path / name, set=[*small, *more], progress=False)
        rows = {(row["diagnostic"], row["name"], row["index"]): row["value"] for row in fr.diagnose(run).rows}
        found[name] = rows["diversity", "distance", 2], rows["streams", "mean_kl", None]
        assert 0 < rows["streams", "gate_entropy", None] <= 1
    assert all(apart > 10 * plain for apart, plain in zip(found["apart"], found["plain"], strict=True)), found
    predictor, ids = fr.load(run), market.catalog.ids.to_list()
    whole = predictor.recommend([ids[:3], ids[7:8]], k=100, budget={"steps": 2})
    never = predictor.recommend([ids[:3], ids[7:8]], k=100, budget={"adaptive": 100, "patience": 2})
    assert whole["item"].equals(never["item"]), "step by step"
    assert fr.export(run, tmp_path / "graph", to="torch").manifest["parity"]["same_places"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["plr", "bidirectional", "hstu", "prl"])
def test_it_beats_popularity(recipe: str, market: Store, tmp_path: Path) -> None:
    """Around softmax from one side and from both, and around HSTU; also with fewer steps than it was trained with."""
    settings = ("training.max_epochs=12", "training.batch_size=1024", "evaluation.seen=exclude")
    beats_popularity(f"fullrank.recipes.plr:{recipe}", "train/last", 0.97, market, tmp_path, *settings)


def test_hstu_is_around_hstu() -> None:
    assert isinstance(model(plr.hstu()).encoder.attention, HSTU)
