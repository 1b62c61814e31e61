"""The trie of existing tuples, against the tuples themselves."""

import numpy as np
import pytest
import torch

from fullrank.semantic_ids.reader import Trie, Tuples


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
