"""A new item, known by its title alone, is recommended to those who like its kind; nothing is retrained (planted data).

Eight kinds of items, users who stay with one kind, and vectors of titles in which the kind's word and the item's show.
"""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.run import Run
from fullrank.semantic_ids.vectors import text as text_vectors
from refusals import refused

KINDS, EACH, USERS = 8, 12, 400
CODES = ["vectors.kind=text", "learner.levels=4", "learner.size=8", "learner.rounds=5", "limits.collisions=1"]


def words(texts: Sequence[str]) -> np.ndarray:
    """A vector for each text: the sum of one for each word, drawn from the word."""
    drawn = lambda word: np.random.default_rng(zlib.crc32(word.encode())).normal(size=24)  # noqa: E731
    return np.stack([sum(drawn(word) for word in text.split()) for text in texts]).astype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def model() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_vectors, "load_encoder", lambda name, **options: words)
        patch.setattr(text_vectors, "model_identity", lambda name: name)
        yield


def title(kind: int, item: str) -> str:
    return f"kind{kind} kind{kind}s sort{kind} {item}"


NEW = pl.DataFrame({"item_id": [1003], "title": [title(3, "novelty")]})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("grown")


@pytest.fixture(scope="module")
def store(place: Path) -> fr.Store:
    rng = np.random.default_rng(0)
    kinds = np.arange(USERS) % KINDS
    items = np.concatenate([kind * EACH + rng.permutation(EACH)[:8] for kind in kinds])
    events = pl.DataFrame(
        {"user_id": np.repeat(np.arange(USERS), 8), "item_id": items, "timestamp": np.tile(np.arange(8), USERS)}
    )
    table = pl.DataFrame(
        {"item_id": range(KINDS * EACH), "title": [title(i // EACH, f"item{i}") for i in range(KINDS * EACH)]}
    )
    made = fr.prepare(events, place / "store", items=table)
    fr.encode(made, place / "codes", set=CODES, cache=place / "cache")
    return made


@pytest.fixture(scope="module", params=["rpg", "tiger"])
def run(store: fr.Store, place: Path, request: pytest.FixtureRequest) -> Run:
    """All codes at once, and code by code."""
    settings = [
        f"model.items.codes={place / 'codes'}", "model.dim=16", "model.encoder.inner=16",
        "model.encoder.attention.heads=2", "training.max_epochs=15", "training.batch_size=256",
        "training.patience=null",
    ]  # fmt: skip
    if request.param == "tiger":
        settings += ["model.encoder.layers=1", "training.lr=0.01", "training.evaluate_every=15"]
    return fr.train(fr.recipe(request.param, *settings), store, place / request.param, progress=False)


def test_by_its_text_alone(run: Run, place: Path, tmp_path: Path) -> None:
    more = fr.grow_codes(place / "codes", run.catalog.extended(NEW), tmp_path / "codes", cache=place / "cache")
    grown = fr.grow_catalog(run, NEW, tmp_path / "grown", codes=more)
    asked = {kind: [kind * EACH + i for i in range(3)] for kind in range(KINDS)}
    places = fr.recommend(grown, asked, k=EACH - 2).filter(pl.col("item") == 1003)
    assert places["user"].to_list() == [3], "the new item is for those who like its kind, and for nobody else"
    before, after = (fr.recommend(one, asked, k=5).filter(pl.col("item") != 1003) for one in (run, grown))
    kept = before.join(after, on=["user", "item"])
    assert kept.height >= before.height - 1 and np.allclose(kept["score"], kept["score_right"], atol=1e-5)
    assert torch.equal(grown.model().items.table, run.model().items.table), "nothing was learned"
    trained, read = run.catalog.frame, grown.catalog.frame
    assert read["codes"][: len(trained)].to_list() == trained["codes"].to_list() and read["codes"].null_count() == 0


def test_refusals(run: Run, place: Path, tmp_path: Path) -> None:
    with refused("wrong-codes-given", "codes="):
        fr.grow_catalog(run, NEW, tmp_path / "grown")
    with refused("items-without-codes", "1 of 97", 1003):
        fr.grow_catalog(run, NEW, tmp_path / "grown", codes=place / "codes")
    whole = run.catalog.extended(NEW)
    other = fr.encode(whole, tmp_path / "other", set=[*CODES, "seed=5"], cache=place / "cache")
    with refused("other-codes"):
        fr.grow_catalog(run, NEW, tmp_path / "grown", codes=other)
