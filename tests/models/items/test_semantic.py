"""Items made of codes: vectors by hand, noise by its twin, what a run keeps, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import coded
from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.items import ItemIndex, ItemsSpec, unit
from fullrank.models.sequential.items.perturb import Noise, perturb
from fullrank.models.sequential.items.semantic import Semantic, levels_of, read_codes, score_by_codes
from fullrank.models.sequential.model import Recommender
from fullrank.ops.code_scores import code_scores, code_scores_reference
from fullrank.semantic_ids.encode import encode
from fullrank.semantic_ids.reader import CODES, SIZES
from refusals import refused
from tiny import ITEMS, catalog, close, shaken

SIZES_OF_TINY = (5, 5, 3)


def bare() -> Catalog:
    return Catalog(catalog().frame.drop(CODES, SIZES))


@pytest.mark.parametrize("parts", ["mean", "sum", "concat"])
def test_vectors_by_hand(parts: str) -> None:
    items = shaken(Semantic(parts=parts).build(6, catalog()))
    codes, sizes = read_codes(catalog())
    assert sizes == SIZES_OF_TINY and items.table.shape == (13, 2 if parts == "concat" else 6)
    for i in range(ITEMS):
        own = [items.table[offset + codes[i, k]] for k, offset in enumerate((0, 5, 10))]
        wanted = torch.cat(own) if parts == "concat" else torch.stack(own).sum(0) / (3 if parts == "mean" else 1)
        assert close(items.embed(torch.tensor(i)), wanted)


@pytest.mark.parametrize("parts", ["mean", "sum", "concat"])
def test_noise_falls_on_digits(parts: str) -> None:
    """A masked digit is a zero vector that still counts, a replaced one is another item's."""
    items = shaken(Semantic(parts=parts).build(6, catalog()))
    ids = torch.arange(20).view(4, 5)
    noise = Noise(0.3, 0.3, torch.arange(4), seed=1, step=2)
    digits, kept = perturb(items.codes[ids], SIZES_OF_TINY, noise)
    assert not kept.all() and (digits != items.codes[ids]).any()
    vectors = items.table[digits + items.offsets] * kept[..., None]
    wanted = vectors.flatten(2) if parts == "concat" else vectors.sum(2) / (3 if parts == "mean" else 1)
    assert close(items.perturbed(ids, noise), wanted)
    pad = torch.linspace(-1, 1, items.part_width())
    vectors = torch.where(kept[..., None], items.table[digits + items.offsets], pad)
    wanted = vectors.flatten(2) if parts == "concat" else vectors.sum(2) / (3 if parts == "mean" else 1)
    assert close(items.perturbed(ids, replace(noise, pad=pad)), wanted)
    assert close(items.perturbed(ids, Noise(0.0, 0.0, torch.arange(4))), items.embed(ids))


@pytest.mark.parametrize("cosine", [False, True])
def test_levels_search_their_own_codes(cosine: bool) -> None:
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
def test_code_scores_and_their_twin(shape: tuple[int, int, int, int], kind: torch.dtype) -> None:
    n, users, items, levels = shape
    table, rows = torch.randn(n, users), torch.randint(0, n, (items, levels), dtype=kind)
    assert close(code_scores(table, rows), code_scores_reference(table, rows))


def test_a_run_keeps_the_codes_it_read(tmp_path: Path, vector_file: Path) -> None:
    plain = coded.catalog()
    codes = encode(plain, tmp_path / "codes", set=coded.settings(vector_file))
    items = Semantic(codes=str(codes.path))
    assert isinstance(items, ItemsSpec)
    known = items.add_columns(plain)
    assert read_codes(known)[1] == codes.sizes and torch.equal(read_codes(known)[0], codes.of(plain))
    known.write(tmp_path / "items.parquet")
    again = Catalog.open(tmp_path / "items.parquet")
    whole = [shaken(spec.build(6, kept)).all() for spec, kept in ((items, again), (Semantic(), codes.attach(plain)))]
    assert torch.equal(*whole), "the folder is not needed any more"
    with refused("column-name-taken", "codes"):
        items.add_columns(known)


def test_refusals() -> None:
    with refused("items-without-codes", "fullrank encode STORE --out FOLDER"):
        Semantic().add_columns(bare())
    with refused("items-without-codes", "codes"):
        Semantic().build(6, bare())
    with refused("width-not-divisible", 7, "multiple of 3"):
        Semantic(parts="concat").build(7, catalog())
    with refused("missing-folder", "nowhere"):
        Semantic(codes="nowhere").add_columns(bare())
    wrong = pl.Series(SIZES, [[5, 5, 2]] * ITEMS, dtype=pl.Array(pl.Int32, 3))
    with refused("codes-damaged", "code_sizes"):
        Semantic().build(6, Catalog(catalog().frame.with_columns(wrong)))
    with refused("codes-damaged", "codes", "code_sizes"):
        Semantic().build(6, Catalog(catalog().frame.with_columns(codes=pl.lit(1))))
    for items in ({}, {"items": {"kind": "semantic", "parts": "concat"}}):
        spec = Recommender.parse({"dim": 6, "task": {"kind": "semantic_tokens"}} | items)
        with refused("items-not-codes", "model.items.kind=semantic"):
            spec.build(catalog())


@pytest.mark.parametrize("kind", ["logdet", "resn"])
def test_penalties_on_item_vectors_are_refused_where_codes_are_searched(kind: str) -> None:
    parts = {"dim": 6, "items": {"kind": "semantic"}, "penalties": [{"kind": kind}]}
    Recommender.parse(parts).build(catalog())
    with refused("penalty-needs-item-vectors", kind):
        Recommender.parse(parts | {"task": {"kind": "semantic_tokens"}}).build(catalog())
