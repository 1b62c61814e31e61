"""`encode` and `grow_codes` from a catalogue to a folder, its diagnostics and limits, and what `Codes` reads of it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from coded import Sentences, catalog, matrix, settings
from fullrank.data.events.catalog import Catalog
from fullrank.semantic_ids import measure
from fullrank.semantic_ids.collisions import colliding
from refusals import refused


@pytest.fixture
def codes(encode: Callable) -> fr.Codes:
    return encode()


def test_codes_of_a_catalogue(codes: fr.Codes) -> None:
    given = catalog()
    assert codes.sizes == (16,) * 4 and codes.levels == 4 and len(codes) == 200 and codes.policy == "list"
    assert codes.offsets.tolist() == [0, 16, 32, 48]
    assert codes.of(given).dtype == torch.int64 and codes.of(given).shape == (200, 4)
    assert codes.codebooks.shape == (4, 16, 3)
    assert torch.equal(codes.quantise(torch.from_numpy(matrix(200))), codes.codes)
    assert codes.manifest["counts"] == {"items": 200, "learned_from": 196, "without_vector": 0}
    assert fr.Codes.open(codes.path, verify=True).fingerprint == codes.fingerprint
    assert "200 items" in repr(codes)


def test_the_order_is_the_catalogues(codes: fr.Codes) -> None:
    order = np.random.default_rng(0).permutation(200)
    moved = Catalog(catalog().frame[order].with_columns(item=pl.Series(np.arange(200))))
    assert torch.equal(codes.of(moved), codes.codes[torch.from_numpy(order)])
    tuples = codes.tuples(moved)
    for item in (0, 57, 199):
        assert item in tuples.members(int(tuples.of_item[item])).tolist()
        assert torch.equal(tuples.tuples[tuples.of_item[item]], codes.of(moved)[item])


def test_items_without_codes_are_counted(codes: fr.Codes) -> None:
    with refused("items-without-codes", "7 of 50", 200):
        codes.of(catalog(50, first=157))
    named = Catalog(catalog().frame.with_columns(pl.col("item_id").cast(pl.String)))
    with refused("id-types-differ", "String"):
        codes.of(named)


def test_a_catalogue_takes_codes_along(codes: fr.Codes, tmp_path: Path) -> None:
    whole = codes.attach(catalog())
    whole.write(tmp_path / "items.parquet")
    back = Catalog.open(tmp_path / "items.parquet")
    assert np.array_equal(back.frame["codes"].to_numpy(), codes.codes.numpy())
    more = back.extended(pl.DataFrame({"item_id": [900], "codes": [[1, 2, 3, 4]]}))
    assert more.frame["codes"].to_list()[-1] == [1, 2, 3, 4]
    with refused("column-name-taken", "'codes'"):
        codes.attach(whole)


def test_the_report_is_what_the_codes_are(codes: fr.Codes) -> None:
    report, x = codes.report, torch.from_numpy(matrix(200))
    for level, found in enumerate(report["levels"]):
        used = codes.codes[:, level].unique()
        share = torch.bincount(codes.codes[:, level]).double() / 200
        share = share[share > 0]
        assert found["use"] == len(used) / 16 and found["learned"]
        assert found["perplexity"] == pytest.approx(float((-(share * share.log()).sum()).exp()))
    rows = [tuple(row) for row in codes.codes.tolist()]
    clash = report["collisions"]["before"]
    assert clash == report["collisions"]["after"] and clash["tuples"] == len(set(rows))
    assert clash["items"] == sum(rows.count(row) > 1 for row in rows) == round(clash["rate"] * 200)
    assert clash["largest"] == max(rows.count(row) for row in rows)
    differ = [any(rows[j] == rows[i] and not torch.equal(x[i], x[j]) for j in range(200)) for i in range(200)]
    assert clash["different"] == pytest.approx(np.mean(differ))
    error = (x - codes.decode(codes.codes)).pow(2).sum(1).mean() / measure.variance(x)
    assert report["reconstruction"]["error"] == pytest.approx(float(error), rel=1e-4)
    near = []
    for space in (x, codes.decode(codes.codes)):
        unit = torch.nn.functional.normalize(space, dim=1)
        scores = (unit @ unit.T).fill_diagonal_(-9)
        near.append([set(row) for row in scores.topk(10).indices.tolist()])
    recall = np.mean([len(a & b) / 10 for a, b in zip(*near, strict=True)])
    assert report["neighbours"] == {"k": 10, "items": 200, "recall": pytest.approx(recall, abs=0.01)}


@pytest.mark.parametrize("policy", ["extra_digit", "sinkhorn"])
@pytest.mark.parametrize("learner", ["opq", "rq_kmeans"])
def test_policies_leave_no_collision(policy: str, learner: str, vector_file: Path, encode: Callable) -> None:
    own = [s for s in settings(vector_file) if learner == "opq" or "rounds" not in s]
    made = encode(set=[f"learner={learner}", *own, f"collisions={policy}"])
    report = made.report["collisions"]
    assert report["policy"] == made.policy == policy and report["before"]["rate"] > report["after"]["rate"] == 0
    assert not colliding(made.codes).any() and made.levels == (5 if policy == "extra_digit" else 4)
    assert len(made.tuples(catalog())) == 200 and made.decode(made.codes).shape == (200, 12)
    errors = made.report["reconstruction"]
    assert (errors["error"] > errors["error_before_policy"]) == (policy == "sinkhorn")


def test_reduced_and_whitened(encode: Callable) -> None:
    made = encode("pca=8", "whiten=true")
    x = torch.from_numpy(matrix(200))
    assert made.reduction.matrix.shape == (12, 8) and made.codebooks.shape == (4, 16, 2)
    assert torch.equal(made.quantise(x), made.codes)
    assert (x - made.decode(made.codes)).pow(2).mean() < 0.5 * (x - x.mean(0)).pow(2).mean()


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        (("limits.perplexity=1",), "codebook-uneven", (16, "limits.perplexity=0")),
        (("limits.collisions=0",), "too-many-collisions", ("limits.collisions=1",)),
        (("limits.neighbours=1",), "neighbours-lost", ("limits.neighbours=0",)),
    ],
)
def test_bad_codes_are_refused(change: tuple, code: str, names: tuple, encode: Callable, tmp_path: Path) -> None:
    x = matrix(200)
    x[:, 6:] = 0  # half of the levels have nothing to say
    v = written(x, tmp_path / "v.parquet")
    whole = settings(v, "learner.rounds=0", "limits.use=0", "limits.neighbours=0")
    with refused(code, *names):
        encode(set=[*whole, *change])
    assert not (tmp_path / "codes").exists(), "nothing is written"
    encode(set=whole)


def test_a_collapsed_codebook_stops_by_default(encode: Callable, tmp_path: Path) -> None:
    v = written(np.repeat(matrix(2), 100, 0), tmp_path / "v.parquet")
    with refused("codebook-collapsed", "12.5%", 16, "limits.use=0"):
        encode(set=settings(v))


def test_text_end_to_end(model: Sentences, encode: Callable, tmp_path: Path) -> None:
    quick = ["learner=rq_kmeans", "learner.size=16", "limits.collisions=1", "vectors.columns=[title]"]
    made = encode(set=quick, cache=tmp_path / "cache")
    assert made.manifest["counts"]["without_vector"] == 5
    assert made.manifest["notes"] == [
        "5 of 200 items have no vector (nothing is known of them): they have the codes of the mean vector"
    ]
    blank = catalog().frame["title"].is_null().to_numpy()
    assert len(made.codes[torch.from_numpy(blank)].unique(dim=0)) == 1
    assert made.manifest["vectors"]["columns"] == ["title"] and made.manifest["data"] == {}


def test_the_seed_and_nothing_else_decides(encode: Callable) -> None:
    one, two, three = (encode(f"seed={seed}", name=name) for name, seed in zip("abc", (3, 3, 4), strict=True))
    assert one.fingerprint == two.fingerprint != three.fingerprint


def test_few_items(encode: Callable) -> None:
    with refused("too-few-vectors", 9, "learner.size=2"):
        encode(items=catalog(9))
    one = encode("learner.size=1", "learner.rounds=0", items=catalog(1), name="one")
    assert one.codes.tolist() == [[0, 0, 0, 0]] and one.report["neighbours"]["recall"] is None
    untrained = Catalog(catalog(30).frame.with_columns(train_count=pl.lit(0, pl.Int64)))
    with refused("nothing-to-learn-from", "fit_on=all"):
        encode(items=untrained)
    encode("fit_on=all", items=untrained)


@pytest.mark.parametrize("policy", ["list", "extra_digit", "sinkhorn"])
def test_new_items_get_codes_and_old_ones_keep_theirs(policy: str, encode: Callable, grow: Callable) -> None:
    old = encode(f"collisions={policy}")
    order = np.random.default_rng(1).permutation(230)
    more = Catalog(catalog(230).frame[order].with_columns(item=pl.Series(np.arange(230))))
    new = grow(old.path, more)
    assert torch.equal(new.of(catalog()), old.codes) and new.sizes == old.sizes
    assert torch.equal(new.codebooks, old.codebooks) and new.policy == policy
    if policy == "list":
        assert torch.equal(new.of(more)[:, :4], old.quantise(torch.from_numpy(matrix(230)[order])))
    else:
        assert not colliding(new.codes).any()
    grown = new.manifest["grown"]
    assert grown["items"] == grown["described"] == 30 and grown["from"] == old.fingerprint
    assert grown["ratio"] == pytest.approx(grown["error"] / grown["error_before"]) and 0.8 < grown["ratio"] < 1.5
    assert torch.equal(grow(new, 240, "newer").of(more), new.codes)


def written(rows: np.ndarray, path: Path) -> Path:
    pl.DataFrame({"item_id": np.arange(len(rows)), "vector": rows}).write_parquet(path)
    return path


def test_drift_is_said(codes: fr.Codes, grow: Callable, tmp_path: Path) -> None:
    far = matrix(230)
    far[200:] = 9 * np.random.default_rng(7).normal(size=(30, 12))
    new = grow(codes, vectors=written(far, tmp_path / "far.parquet"))
    assert new.manifest["grown"]["ratio"] > 3
    assert "times worse than those they were learned from" in new.manifest["notes"][-1]


def test_growing_refuses_what_makes_no_sense(
    codes: fr.Codes, model: Sentences, encode: Callable, grow: Callable, tmp_path: Path, vector_file: Path
) -> None:
    with refused("no-new-items", 150):
        grow(codes, 150)
    with refused("items-without-vectors", 20):
        frame = catalog(270).frame[[*range(10), *range(250, 270)]].with_columns(item=pl.Series(np.arange(30)))
        grow(codes, Catalog(frame))
    with refused("other-vectors", 5):
        grow(codes, vectors=written(matrix(230)[:, :5], tmp_path / "narrow.parquet"))
    cache = tmp_path / "cache"
    text = encode(set=["learner=rq_kmeans", "learner.size=16", "limits.collisions=1"], name="text", cache=cache)
    with refused("other-vectors", "text"):
        grow(text, vectors=vector_file, cache=cache)
    kept = grow(text, catalog(230, first=10), cache=cache)
    assert "10 items of text are not among these items" in kept.manifest["notes"][-1]


def test_collisions_tell_equal_vectors_from_others() -> None:
    x = torch.tensor([[1.0], [1.0], [2.0], [3.0], [3.0], [4.0]])
    codes = torch.tensor([[0], [0], [1], [2], [2], [2]])
    found = measure.collisions(codes, x)
    assert found == {"tuples": 3, "items": 5, "rate": 5 / 6, "different": 3 / 6, "largest": 3}


def test_neighbours_of_few_items() -> None:
    x = torch.from_numpy(matrix(5))
    assert measure.neighbour_recall(x, x, 0) == {"k": 4, "items": 5, "recall": 1.0}
    assert measure.neighbour_recall(x[:1], x[:1], 0)["recall"] is None
