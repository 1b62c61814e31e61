"""UniSRec: its vectors written out, where the text vectors come from, transfer, new items, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.items.unisrec import AUGMENTED, VECTORS, UniSRec
from fullrank.run.experiment import Experiment, Training, find_experiment
from fullrank.semantic_ids.vectors.file import FileVectors
from fullrank.semantic_ids.vectors.text import TextVectors, without_words
from parts import Recommender
from refusals import refused
from tests.training.test_warm_start import events
from tiny import ITEMS, catalog, close, shaken
from twins import same

WIDTH, DIM = 5, 6
FROZEN = ("training.lr=1e-30", "training.max_epochs=1")


def made(**settings) -> Any:
    return shaken(UniSRec(**settings).build(DIM, catalog())).eval()


@pytest.mark.parametrize("transductive", [False, True])
def test_vectors_as_they_are_written(transductive) -> None:
    """Item by item and expert by expert, in values and gradients."""
    items = made(experts=3, transductive=transductive)
    x = torch.tensor(catalog().frame[VECTORS].to_numpy())
    x = x * 5**0.5 / x.norm(dim=1, keepdim=True).clamp_min(1e-9)
    assert not x[-1].any()
    rows = []
    for i in range(ITEMS):
        gate = torch.exp(x[i] @ items.gate)
        experts = [(x[i] - items.means[k]) @ items.maps[k] for k in range(3)]
        v = sum(g * e for g, e in zip(gate / gate.sum(), experts, strict=True))
        rows.append(v + items.embedding.weight[i] if transductive else v)
    same(items.all(), torch.stack(rows), *items.parameters())


def test_noise_and_dropout_are_of_training_alone() -> None:
    for settings in ({"dropout": 0.0}, {"noise": False}):
        items = made(**settings)
        assert torch.equal(items.all(), items.all())
        assert not torch.equal(items.train().all(), items.all())
    still = made(noise=False, dropout=0.0)
    assert torch.equal(still.train().all(), still.all()) and still.gate_noise is None


def test_starts_as_published() -> None:
    """A gate without an opinion, means at zero, maps N(0, .02)."""
    torch.manual_seed(0)
    items = UniSRec(experts=64).build(64, catalog())
    assert not items.gate.any() and not items.means.any() and not items.gate_noise.any()  # type: ignore[union-attr]
    assert items.maps.detach().std() == pytest.approx(0.02, rel=0.05)


def test_the_second_vectors_where_they_are_asked_for() -> None:
    items = made(augmented=TextVectors(word_drop=0.2))
    ids = torch.tensor([[3, 1], [4, 4]])
    changed = torch.tensor([[False, True], [True, False]])
    swapped = catalog().frame.select(pl.exclude(VECTORS, AUGMENTED), pl.col(AUGMENTED).alias(VECTORS))
    other = shaken(UniSRec().build(DIM, Catalog(swapped))).eval()
    wanted = torch.where(changed[..., None], other.embed(ids), items.embed(ids))
    assert close(items.embed_augmented(ids, changed), wanted) and not close(wanted, items.embed(ids))


def test_words_are_dropped_by_the_text_itself() -> None:
    text = "one two three four five six seven eight nine ten"
    assert without_words(text, 0.0) == text
    fewer = without_words(text, 0.4)
    assert fewer == without_words(text, 0.4) and 1 < len(fewer.split()) < 10
    assert set(fewer.split()) < set(text.split()) and fewer != without_words(text + " x", 0.4).removesuffix(" x")
    assert without_words("word", 0.99) == "word"
    share = np.mean([len(without_words(f"{text} {i}", 0.2).split()) / 11 for i in range(300)])
    assert share == pytest.approx(0.8, abs=0.02)


def vector_file(place, ids, *, seed=0, width=WIDTH) -> Path:
    drawn = np.random.default_rng(seed).standard_normal((len(ids), width))
    pl.DataFrame({"item_id": ids, "vector": drawn.tolist()}).write_parquet(place)
    return place


def experiment(path, *changes) -> Experiment:
    made = Experiment(
        recipe="tiny", model=Recommender(dim=8, items=UniSRec(vectors=FileVectors(path=str(path)), experts=2)),
        training=Training(max_epochs=1, batch_size=256),
    )  # fmt: skip
    return made.override(*changes)


def test_a_run_on_another_catalogue_starts_from_its_weights(tmp_path) -> None:
    """No id in common, other text, another number of items; then a vector for each item joins."""
    first = fr.prepare(events([f"a{i}" for i in range(30)]), tmp_path / "first")
    second = fr.prepare(events([f"b{i}" for i in range(17)]), tmp_path / "second")
    one = vector_file(tmp_path / "one.parquet", first.catalog.ids.to_list())
    two = vector_file(tmp_path / "two.parquet", second.catalog.ids.to_list(), seed=1)
    source = fr.train(experiment(one), first, tmp_path / "source", progress=False)
    for name in ("false", "true"):
        spec = experiment(two, *FROZEN, f"model.items.transductive={name}")
        run = fr.train(spec, second, tmp_path / name, init_from=source, progress=False)
        before, after = source.tensors(), run.tensors()
        for key in set(before) - {"items.popularity"}:
            torch.testing.assert_close(after[key], before[key])
        assert ("items.embedding.weight" in after) == (name == "true")
        assert run.catalog.frame[VECTORS].dtype == pl.Array(pl.Float32, WIDTH)
        assert len(fr.recommend(run, histories={"me": ["b1", "b2"]}, k=5)) == 5  # without store and without file
    wide = vector_file(tmp_path / "wide.parquet", second.catalog.ids.to_list(), width=WIDTH + 1)
    with refused("other-model-spec", "maps", "text vectors of the same model"):
        fr.train(experiment(wide), second, tmp_path / "wide", init_from=source, progress=False)


def test_new_items_have_vectors_at_once(tmp_path) -> None:
    ids = [f"a{i}" for i in range(30)]
    store = fr.prepare(events(ids), tmp_path / "store")
    path = vector_file(tmp_path / "vectors.parquet", [*ids, "new1", "new2"])
    run = fr.train(experiment(path), store, tmp_path / "run", progress=False)
    grown = fr.grow_catalog(run, pl.DataFrame({"item_id": ["new1", "new2"]}), tmp_path / "grown")
    whole, part = (one.model().items for one in (grown, run))
    assert close(whole.all()[:30], part.all()) and whole.size == 32
    x = torch.tensor(pl.read_parquet(path)["vector"].to_list(), dtype=torch.float32)
    assert close(whole.x[30:], x[30:] * 5**0.5 / x[30:].norm(dim=1, keepdim=True))
    with refused("items-without-vectors"):
        fr.grow_catalog(run, pl.DataFrame({"item_id": ["stranger"]}), tmp_path / "none")
    vector_file(tmp_path / "vectors.parquet", [*ids, "new1"], width=WIDTH + 2)
    with refused("vectors-of-other-width", WIDTH, WIDTH + 2):
        fr.grow_catalog(run, pl.DataFrame({"item_id": ["new1"]}), tmp_path / "other")


def test_refusals() -> None:
    bare = Catalog(catalog().frame.drop(VECTORS, AUGMENTED))
    with refused("items-without-vectors", VECTORS):
        UniSRec().build(DIM, bare)
    with refused("column-name-taken", VECTORS):
        UniSRec().add_columns(catalog())
    infinite = pl.Series([[float("inf")]] * ITEMS, dtype=pl.Array(pl.Float32, 1))
    for column in (pl.Series([1.0] * ITEMS), infinite):
        with refused("vectors-damaged", VECTORS):
            UniSRec().build(DIM, Catalog(bare.frame.with_columns(column.alias(VECTORS))))
    narrow = pl.Series([[1.0]] * ITEMS, dtype=pl.Array(pl.Float32, 1)).alias(AUGMENTED)
    with refused("vectors-of-other-width", "augmented"):
        UniSRec(augmented=TextVectors()).build(DIM, Catalog(catalog().frame.with_columns(narrow)))


@pytest.mark.parametrize("name", ["inductive", "transductive", "pretrain", "paper"])
def test_every_recipe_round_trips_and_builds(name) -> None:
    found = find_experiment(f"fullrank.recipes.unisrec:{name}")
    assert Experiment.from_text(found.to_yaml()) == found
    found.model.build(catalog())
