"""Parts of a learner of codes beside their slow twins; vectors that are few, alike or enormous; tuples and tries."""

import sys

import numpy as np
import pytest
import torch

from coded import matrix, silent
from folders import python
from fullrank.core.registry import kinds
from fullrank.semantic_ids import kmeans as km
from fullrank.semantic_ids.opq import Opq, initial_rotation
from fullrank.semantic_ids.quantisers import Product, nearest_codeword, nearest_codeword_reference
from fullrank.semantic_ids.reader import Trie, Tuples
from fullrank.semantic_ids.rq_kmeans import RqKmeans
from refusals import refused


@pytest.mark.parametrize(("rows", "codes", "width"), [(1, 1, 1), (7, 3, 5), (301, 17, 6), (33, 256, 3)])
def test_nearest_equals_its_twin(rows: int, codes: int, width: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, words = torch.randn(rows, width, generator=generator) + 3, torch.randn(codes, width, generator=generator) + 3
    assert torch.equal(nearest_codeword(x, words), nearest_codeword_reference(x, words))
    assert torch.equal(nearest_codeword(x, words, rows=2), nearest_codeword_reference(x, words))


def test_equal_codewords_go_to_the_smaller_index() -> None:
    words = torch.tensor([[5.0, 5.0], [1.0, 1.0], [9.0, 9.0], [1.0, 1.0]])
    assert nearest_codeword(torch.full((5, 2), 1.2), words, rows=2).tolist() == [1] * 5


def test_near_ties_are_decided_by_the_distance() -> None:
    """Far from the origin a float32 product cannot tell these apart; the distances can."""
    words = torch.tensor([[4096.0, 0.5], [4096.0, 0.25], [4096.0, 0.0]])
    x = torch.tensor([[4096.0, 0.3], [4096.0, 0.45], [4096.0, 0.01]])
    assert nearest_codeword(x, words)[:2].tolist() == nearest_codeword_reference(x, words)[:2].tolist()


def test_kmeans_equals_the_plain_loop() -> None:
    x = torch.from_numpy(matrix(90))[None]
    first = x[:, 10:15].clone()
    expected = first[0].double()
    for _ in range(4):
        code = (x[0].double()[:, None] - expected).pow(2).sum(-1).argmin(1)
        expected = torch.stack([x[0].double()[code == c].mean(0) for c in range(5)])
    torch.testing.assert_close(km.lloyd(x, first, 4)[0].double(), expected, atol=1e-4, rtol=1e-4)


def test_groups_of_kmeans_are_separate() -> None:
    x = torch.from_numpy(np.stack([matrix(90), matrix(90, seed=5)]))
    words = km.plus_plus(x, 6, torch.Generator().manual_seed(0))
    both = km.lloyd(x, words.clone(), 3)
    for group in range(2):
        alone = km.lloyd(x[group : group + 1], words[group : group + 1].clone(), 3)
        torch.testing.assert_close(both[group], alone[0])


def test_a_code_without_vectors_is_revived() -> None:
    x = torch.from_numpy(matrix(90))[None]
    words = km.lloyd(x, torch.full((1, 12, 12), 50.0), 6)
    assert len(km.assign(x, words)[0].unique()) == 12


def test_more_codes_than_distinct_vectors_do_not_fail() -> None:
    x = torch.from_numpy(matrix(3)).repeat(8, 1)[None]
    words = km.kmeans(x, 6, 5, torch.Generator().manual_seed(0))
    code, _ = km.assign(x, words)
    torch.testing.assert_close(words[0][code[0]], x[0])


def test_opq_starts_from_balanced_principal_components() -> None:
    x = torch.from_numpy(matrix(400)) @ torch.diag(torch.linspace(4, 0.5, 12))
    x = x - x.mean(0)
    turn = initial_rotation(x, 3)
    torch.testing.assert_close(turn.T @ turn, torch.eye(12), atol=1e-5, rtol=1e-5)
    covariance = (x @ turn).T.cov(correction=0)
    torch.testing.assert_close(covariance, torch.diag(covariance.diagonal()), atol=1e-2, rtol=1e-2)
    products = covariance.diagonal().view(3, 4).log().sum(1)
    assert float(products.max() - products.min()) < 2.5, "parts have like products of variances"


def correlated(rows: int = 600) -> torch.Tensor:
    """Every pair of neighbouring dimensions moves together: cutting into parts of 4 loses what a rotation keeps."""
    generator = torch.Generator().manual_seed(3)
    mix = torch.randn(12, 12, generator=generator)
    return torch.from_numpy(matrix(rows)) @ mix


def test_the_learned_rotation_pays_by_either_engine() -> None:
    pytest.importorskip("faiss", reason="this engine needs the extra `codes`")
    x = correlated()
    parts = (x - x.mean(0)).unflatten(1, (3, 4)).transpose(0, 1).contiguous()
    plain = Product(km.kmeans(parts, 16, 25, torch.Generator()), torch.eye(12), x.mean(0))
    engines = [Opq(levels=3, size=16, engine=engine, rounds=15).fit(x, 0, silent) for engine in ("faiss", "torch")]
    for learned in engines:
        torch.testing.assert_close(learned.rotation.T @ learned.rotation, torch.eye(12), atol=1e-4, rtol=1e-4)
    unturned, one, two = (float((x - q.decode(q.encode(x))).pow(2).sum(1).mean()) for q in (plain, *engines))
    assert max(one, two) < 0.9 * unturned and one == pytest.approx(two, rel=0.12)


def test_opq_refuses_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.from_numpy(matrix(60))
    with refused("width-not-divisible", 12, "pca=10"):
        Opq(levels=5, size=8).fit(x, 0, silent)
    with refused("size-not-power-of-two", 6, "engine=torch"):
        Opq(levels=3, size=6, engine="faiss").fit(x, 0, silent)
    assert Opq(levels=3, size=6).chosen(100, 8) == "torch"
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert Opq(size=8).chosen(100, 8) == "torch"
    with refused("missing-package", "[codes]"):
        Opq(size=8, engine="faiss").chosen(100, 8)


def test_learning_from_a_sample_is_said_by_points() -> None:
    x = torch.from_numpy(matrix(300))
    few = RqKmeans(levels=2, size=8, points=40).fit(x, 0, silent)
    every = RqKmeans(levels=2, size=8).fit(x, 0, silent)
    assert not torch.equal(few.codebooks, every.codebooks)


def test_levels_of_residual_codes_go_from_coarse_to_fine() -> None:
    x = torch.from_numpy(matrix(300))
    found = RqKmeans(levels=4, size=8).fit(x, 0, silent)
    codes = found.encode(x)
    words = found.codebooks[torch.arange(4), codes].cumsum(1) + found.mean
    errors = (x[:, None] - words).pow(2).sum(-1).mean(0).tolist()
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.5 * errors[0]


def test_tuples_find_their_items() -> None:
    generator = np.random.default_rng(0)
    codes = torch.from_numpy(generator.integers(0, 3, (200, 4)))
    popularity = generator.integers(0, 5, 200)
    found = Tuples(codes, popularity)
    assert len(found) == len(codes.unique(dim=0)) and int(found.offsets[-1]) == 200
    for number, row in enumerate(found.tuples):
        items = (codes == row).all(1).nonzero().squeeze(1).tolist()
        assert found.members(number).tolist() == sorted(items, key=lambda i: (-popularity[i], i))
    assert torch.equal(found.tuples[found.of_item], codes)
    asked = torch.cat([codes[:50], torch.tensor([[9, 0, 0, 0], [0, 0, 0, 7]])])
    assert found.find(asked).tolist() == [*found.of_item[:50].tolist(), -1, -1]
    assert Tuples(codes[:1], popularity[:1]).find(codes[:1]).tolist() == [0]


def tuples(items: int, sizes: tuple, seed: int = 0) -> Tuples:
    rng = np.random.default_rng(seed)
    codes = torch.from_numpy(np.stack([rng.integers(0, size, items) for size in sizes], 1))
    return Tuples(codes, rng.integers(0, 9, items))


@pytest.mark.parametrize("sizes", [(4, 3, 5), (7,), (2, 2, 2, 2), (1, 9)])
@pytest.mark.parametrize("items", [1, 40])
def test_nodes_are_the_beginnings_of_tuples(items: int, sizes: tuple) -> None:
    found = tuples(items, sizes)
    trie = Trie(found)
    every = [tuple(row) for row in found.tuples.tolist()]
    assert every == sorted(every) and len(trie) == len(every)
    before = [()]
    for k, level in enumerate(trie.levels):
        nodes = sorted({row[: k + 1] for row in every})
        assert [node[-1] for node in nodes] == level.codes.tolist()
        assert [before.index(node[:-1]) for node in nodes] == level.parents.tolist()
        for j, parent in enumerate(before):
            children = nodes[int(level.children[j]) : int(level.children[j + 1])]
            assert children == [node for node in nodes if node[:-1] == parent]
        kept = torch.arange(items) % 3 == 0
        running = trie.kept_before(kept)
        for j, node in enumerate(nodes):
            below = [i for i in range(items) if every[int(found.of_item[i])][: k + 1] == node]
            low, high = level.below[j : j + 2].tolist()
            assert sorted(trie.items[low:high].tolist()) == below
            assert int(running[high] - running[low]) == sum(i % 3 == 0 for i in below)
            places = trie.place[torch.tensor(below)]
            assert set(trie.nodes_of(places, k).tolist()) == {j}
            assert trie.items[places.long()].tolist() == below
        before = nodes


def test_size_grows_with_tuples_and_not_with_codebooks() -> None:
    small, wide = Trie(tuples(200, (8, 8, 8))), Trie(tuples(200, (4096, 4096, 4096)))
    assert wide.nbytes < 200 * 4 * (2 + 3 * 4) + 3 * 2 * 4 + 1 and small.nbytes < wide.nbytes


LEARN = """
import sys
import torch
from fullrank.core.registry import find, kinds
from fullrank.semantic_ids.opq import Opq

NETWORK = {"epochs": 2, "hidden": (16,), "width": 8}
QUICK = {"opq": {"rounds": 3}, "rqvae": NETWORK, "letter": {**NETWORK, "alignment": 0}}
SHAPES = [(1, 8), (2, 8), (7, 8), (8, 8), (9, 8), (40, 64), (63, 64), (64, 64), (120, 384), (383, 384), (384, 384)]
torch.manual_seed(0)
cases = [(torch.randn(n, d), size) for n, d in SHAPES for size in (1, 2, 8) if size <= n]
dull = torch.randn(50, 8)
dull[:, 3] = 0
cases += [(torch.ones(50, 8), 8), (torch.ones(4, 8), 4), (torch.zeros(50, 8), 8), (dull, 8)]
cases += [(torch.randn(16, 8), 16), (torch.randn(50, 8) * 1e12 / 8, 8), (torch.randn(50, 8) * 1e-40, 8)]
for x, size in cases:
    for kind in kinds("items.codes"):
        learner = find(kind, "items.codes")(levels=4, size=size, **QUICK.get(kind, {}))
        learned = learner.fit(x, 0, lambda done, total: None)
        codes = learned.encode(x)
        assert codes.shape == (len(x), 4) and 0 <= int(codes.min()) and int(codes.max()) < size, (kind, x.shape, size)
        assert bool(learned.decode(codes).isfinite().all()), (kind, x.shape, size)
print(len(cases), "cases")
"""


@pytest.mark.process
def test_learners_survive_every_shape() -> None:
    """Fewer vectors than dimensions ended the process: SIGSEGV, or `free(): invalid size`."""
    assert "cases" in python(LEARN, MALLOC_CHECK_="3", MALLOC_PERTURB_="165").stdout


def test_faiss_is_chosen_where_it_can_learn() -> None:
    pytest.importorskip("faiss")
    assert Opq().chosen(384, 384) == "faiss"
    assert Opq().chosen(383, 384) == "torch"
    with refused("too-few-vectors-for-faiss", 384, 383, "engine=torch"):
        Opq(engine="faiss").chosen(383, 384)


@pytest.mark.parametrize("value", [1e13, float("inf"), float("nan")])
def test_values_that_do_not_add_up_are_refused(value: float) -> None:
    """faiss ends the process on them."""
    assert {"opq", "rq_kmeans"} <= set(kinds("items.codes"))
    x = torch.randn(50, 8)
    x[3, 4] = value
    with refused("vectors-too-large", f"{value:g}"):
        Opq(levels=4, size=8).fit(x, 0, lambda done, total: None)
