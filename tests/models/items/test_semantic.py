"""Items made of codes: vectors by hand, noise by its twin, what a run keeps, and refusals."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import coded
from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.items import ItemIndex, unit
from fullrank.models.sequential.items.perturb import Noise, perturb
from fullrank.models.sequential.items.semantic import levels_of, read_codes, score_by_codes
from fullrank.models.sequential.regularizers.logdet import LogDet
from fullrank.models.sequential.regularizers.resn import ReSN
from fullrank.ops.picked_rows import code_scores, code_scores_reference
from fullrank.semantic_ids.encode import encode
from fullrank.semantic_ids.reader import CODES, SIZES
from parts import Semantic, SemanticTokens, model_with
from refusals import refused
from tiny import ITEMS, catalog, close, shaken

SIZES_OF_TINY = (5, 5, 3)

PARTS = pytest.mark.parametrize("parts", ["mean", "sum", "concat"])


def bare() -> Catalog:
    return Catalog(catalog().frame.drop(CODES, SIZES))


@PARTS
def test_vectors_by_hand(parts) -> None:
    items = shaken(Semantic(parts=parts).build(6, catalog()))
    codes, sizes = read_codes(catalog())
    assert sizes == SIZES_OF_TINY and items.table.shape == (13, 2 if parts == "concat" else 6)
    for i in range(ITEMS):
        own = [items.table[offset + codes[i, k]] for k, offset in enumerate((0, 5, 10))]
        wanted = torch.cat(own) if parts == "concat" else torch.stack(own).sum(0) / (3 if parts == "mean" else 1)
        assert close(items.embed(torch.tensor(i)), wanted)


@PARTS
def test_noise_falls_on_digits(parts) -> None:
    """A masked digit is a zero vector that still counts, a replaced one is another item's."""
    items = shaken(Semantic(parts=parts).build(6, catalog()))
    ids = torch.arange(20).view(4, 5)
    noise = Noise(0.3, 0.3, torch.arange(4), seed=1, step=2)
    digits, kept = perturb(items.codes[ids], SIZES_OF_TINY, noise)
    assert not kept.all() and (digits != items.codes[ids]).any()
    for pad in (None, torch.linspace(-1, 1, items.part_width())):
        vectors = torch.where(kept[..., None], items.table[digits + items.offsets], 0.0 if pad is None else pad)
        wanted = vectors.flatten(2) if parts == "concat" else vectors.sum(2) / (3 if parts == "mean" else 1)
        assert close(items.perturbed(ids, replace(noise, pad=pad)), wanted)
    assert close(items.perturbed(ids, Noise(0.0, 0.0, torch.arange(4))), items.embed(ids))


@pytest.mark.parametrize("cosine", [False, True])
def test_levels_search_their_own_codes(cosine) -> None:
    items = shaken(Semantic().build(6, catalog()))
    levels = levels_of(ItemIndex(items, normalise=cosine))
    assert [level.size for level in levels] == list(SIZES_OF_TINY)
    table = unit(items.table) if cosine else items.table
    assert close(torch.cat([level.all() for level in levels]), table)
    assert close(levels[1].embed(torch.tensor([4, 0])), table[[9, 5]])
    counts = np.bincount(items.codes[:, 2].numpy(), catalog().popularity, minlength=3)
    assert close(levels[2].log_q(torch.arange(3)).exp(), torch.as_tensor(counts / counts.sum()).float())


def test_scores_are_the_mean_log_probability_of_an_items_codes() -> None:
    items = shaken(Semantic().build(6, catalog()))
    vectors = torch.randn(4, 3, 6)
    answer = score_by_codes(vectors, ItemIndex(items, normalise=False))
    each = [(vectors[:, k] @ part.T).log_softmax(-1) for k, part in enumerate(items.table.split(SIZES_OF_TINY))]
    wanted = torch.stack([each[k][:, items.codes[:, k]] for k in range(3)]).mean(0)
    assert answer.size == ITEMS
    assert close(answer.block(0, ITEMS), wanted) and close(answer.block(3, 9), wanted[:, 3:9])


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (13, 4, 23, 3), (64, 65, 1000, 16)])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_code_scores_and_their_twin(shape, kind) -> None:
    n, users, items, levels = shape
    table, rows = torch.randn(n, users), torch.randint(0, n, (items, levels), dtype=kind)
    assert close(code_scores(table, rows), code_scores_reference(table, rows))


def test_a_run_keeps_the_codes_it_read(tmp_path, vector_file) -> None:
    plain = coded.catalog()
    codes = encode(plain, tmp_path / "codes", set=coded.settings(vector_file))
    items = Semantic(codes=str(codes.path))
    known = items.add_columns(plain)
    assert read_codes(known)[1] == codes.sizes and torch.equal(read_codes(known)[0], codes.of(plain))
    known.write(tmp_path / "items.parquet")
    again = Catalog.open(tmp_path / "items.parquet")
    whole = [shaken(spec.build(6, kept)).all() for spec, kept in ((items, again), (Semantic(), codes.attach(plain)))]
    assert torch.equal(*whole), "the folder is not needed any more"
    with refused("column-name-taken", "codes"):
        items.add_columns(known)


def test_refusals() -> None:
    with refused("items-without-codes", "codes", "fullrank encode STORE --out FOLDER"):
        Semantic().build(6, Semantic().add_columns(bare()))
    with refused("width-not-divisible", 7, "multiple of 3"):
        Semantic(parts="concat").build(7, catalog())
    with refused("missing-folder", "nowhere"):
        Semantic(codes="nowhere").add_columns(bare())
    wrong = pl.Series(SIZES, [[5, 5, 2]] * ITEMS, dtype=pl.Array(pl.Int32, 3))
    with refused("codes-damaged", "code_sizes"):
        Semantic().build(6, Catalog(catalog().frame.with_columns(wrong)))
    with refused("codes-damaged", "'codes'", "Array of UInt16"):
        Semantic().build(6, Catalog(catalog().frame.with_columns(codes=pl.lit(1))))
    for items in ({}, {"items": Semantic(parts="concat")}):
        with refused("items-not-codes", "model.items.kind=semantic"):
            model_with(task=SemanticTokens(), **items)


@pytest.mark.parametrize("penalty", [LogDet(), ReSN()], ids=str)
def test_penalties_on_item_vectors_are_refused_where_codes_are_searched(penalty) -> None:
    model_with(penalty, items=Semantic())
    with refused("penalty-needs-item-vectors", penalty.kind):
        model_with(penalty, items=Semantic(), task=SemanticTokens())
