"""Finding items from semantic ids: exact scores from codes against a dense product, and the other searches.

``codes_over_dense_1m``: seconds of a float32 product of 64 users with 1 million vectors of width 512, over those of
scoring the same items from 32 codes of 256 each (from the users' vectors to all scores, block by block; no top-k in
either). ``exact_users_per_s`` and so on: lists of 10 at 12 thousand items from the same answers, and the share of the
exact list that a search finds. Users are drawn near items, so that their answers have a shape, as a trained model's do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from statistics import median

import numpy as np
import polars as pl
import torch
from torch import Tensor

from benchmarks.harness import Benchmark, Figures, Say, main, repeat, require, rounded
from fullrank.data.events.catalog import Catalog
from fullrank.inference.batches import BLOCK
from fullrank.inference.code_search import BeamSearch, GraphSearch, PrunedSearch
from fullrank.inference.exact import top_k
from fullrank.models.sequential.items import ItemIndex
from fullrank.models.sequential.items.semantic import CodeScorer, Semantic, SemanticItems, score_by_codes
from fullrank.ops.picked_rows import code_scores_reference

USERS, LEVELS, SIZE, DIM, DENSE = 64, 32, 256, 128, 512
MANY, FEW, K = 1_000_000, 12_000, 10
TEMPERATURE = 0.03
KINDS = 200
"""Kinds of items: those of one kind share most of their codes, as items of like text do."""


def items_of(count: int, levels: int, size: int, dim: int, seed: int = 0) -> SemanticItems:
    """Items in kinds, each code its kind's with chance 0.6."""
    draw = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, size, (KINDS, levels), generator=draw)
    own = torch.randint(0, size, (count, levels), generator=draw)
    kept = torch.rand(count, levels, generator=draw) < 0.6
    codes = torch.where(kept, kinds[torch.randint(0, KINDS, (count,), generator=draw)], own)
    frame = pl.DataFrame({"item": range(count), "item_id": range(count), "train_count": [1] * count})
    columns = {"codes": codes.numpy().astype("uint16"), "code_sizes": np.full((count, levels), size, np.int32)}
    torch.manual_seed(seed)
    return Semantic().build(dim, Catalog(frame.with_columns(**{k: pl.Series(v) for k, v in columns.items()})))


def answers_of(items: SemanticItems, users: int, seed: int = 1) -> tuple[ItemIndex, Tensor]:
    """The catalogue, and the vectors [B, K, D] of users who look for something like an item, over the temperature."""
    draw = torch.Generator().manual_seed(seed)
    catalogue = ItemIndex(items, normalise=True)
    table = torch.nn.functional.normalize(items.table.detach(), dim=-1)
    wanted = torch.randint(0, items.size, (users,), generator=draw)
    vectors = table[items.codes[wanted] + items.offsets]
    noise = torch.randn(vectors.shape, generator=draw) / vectors.shape[-1] ** 0.5
    return catalogue, torch.nn.functional.normalize(vectors + 2 * noise, dim=-1) / TEMPERATURE


@torch.inference_mode()
def check(
    scored: Callable[[Tensor, ItemIndex], CodeScorer] = score_by_codes, sought: type[GraphSearch] = GraphSearch
) -> None:
    """Scores from codes are those of the slow twin, and every search at full width gives the exact list."""
    items = items_of(60, 4, 8, 16)
    catalogue, vectors = answers_of(items, 5)
    answer = scored(vectors, catalogue)
    whole = code_scores_reference(answer.levels, answer.rows).T
    require(torch.allclose(answer.block(0, 60), whole, atol=1e-5), "scores from codes are not the sums of the codes'")
    wanted = _sorted(whole, K)
    searches = {
        "exact": top_k(answer, K, block=7),
        "graph": sought(items, beams=60, edges=60, steps=1)(answer, K, None),
        "beam": BeamSearch(items, beams=8**4)(answer, K, None),
        "pruned": PrunedSearch(items, codes=2)(answer, K, None),
    }
    for name, (_, ids) in searches.items():
        best = whole.gather(1, ids.clamp_min(0)).masked_fill(ids < 0, -torch.inf)
        same = torch.allclose(best, whole.gather(1, wanted), atol=1e-5)
        require(same, f"the {name} search at full width does not give the exact list")


@torch.inference_mode()
def measure(options: argparse.Namespace, say: Say) -> Figures:
    say(f"{MANY:,} items of {LEVELS} codes")
    items = items_of(MANY, LEVELS, SIZE, DENSE)
    catalogue, vectors = answers_of(items, USERS)
    score_by_codes(vectors, catalogue)  # what is made once for a catalogue
    table = torch.randn(MANY, DENSE, generator=torch.Generator().manual_seed(2))
    one, buffer = torch.randn(USERS, DENSE), torch.empty(USERS * BLOCK)

    def dense() -> None:
        for low in range(0, MANY, BLOCK):
            block = table[low : low + BLOCK]
            torch.mm(one, block.T, out=buffer[: USERS * len(block)].view(USERS, -1))

    def codes() -> None:
        answer = score_by_codes(vectors, catalogue)
        for low in range(0, MANY, BLOCK):
            answer.block(low, min(low + BLOCK, MANY))

    taken: dict[str, list[float]] = {"dense": [], "codes": []}
    for done in range(options.rounds + 1):
        for name, action in (("dense", dense), ("codes", codes)):
            taken[name] += repeat(1, action)
        say(f"round {done} of {options.rounds} (0 is the warm-up)")
    answer = score_by_codes(vectors, catalogue)
    found, exact = top_k(answer, K)[1], _brute(answer, K)
    typical = {name: median(seconds[1:]) for name, seconds in taken.items()}
    del table, items, catalogue, answer
    return rounded({
        "codes_over_dense_1m": typical["dense"] / typical["codes"],
        "codes_over_dense_1m_best": min(taken["dense"][1:]) / min(taken["codes"][1:]),
        "top10_identical_1m": float((found == exact).all(1).float().mean()),
        "dense_seconds": typical["dense"],
        "codes_seconds": typical["codes"],
        **searches(options, say),
        "rounds": options.rounds,
    })  # fmt: skip


def searches(options: argparse.Namespace, say: Say) -> Figures:
    """Users a second of each search at 12 thousand items, and how much of the exact list it finds."""
    items = items_of(FEW, LEVELS, SIZE, DIM)
    catalogue, vectors = answers_of(items, USERS)
    answer = score_by_codes(vectors, catalogue)
    graph_seconds = repeat(1, lambda: GraphSearch(items, beams=20, edges=200, steps=3))[0]
    graph, beam, pruned = (
        GraphSearch(items, beams=20, edges=200, steps=3),
        BeamSearch(items, beams=200),
        PrunedSearch(items, codes=8),
    )
    ways: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
        "exact": lambda: top_k(score_by_codes(vectors, catalogue), K),
        "graph": lambda: graph(score_by_codes(vectors, catalogue), K, None),
        "beam": lambda: beam(score_by_codes(vectors, catalogue), K, None),
        "pruned": lambda: pruned(score_by_codes(vectors, catalogue), K, None),
    }
    exact = top_k(answer, K)[1]
    found: Figures = {"graph_build_seconds": graph_seconds, "searched_items": FEW}
    for name, way in ways.items():
        beam.padded = pruned.scored = 0
        ids = way()[1]
        found[f"{name}_agreement"] = float((ids[:, :, None] == exact[:, None]).any(2).float().mean())
        if name == "beam":
            found["beam_padded"] = beam.padded / USERS
        if name == "pruned":
            found["pruned_scored"] = pruned.scored / (USERS * FEW)
        found[f"{name}_users_per_s"] = USERS / median(repeat(options.rounds + 1, way)[1:])
        say(f"{name}: {found[f'{name}_users_per_s']:,.0f} users/s, {found[f'{name}_agreement']:.3f} of the exact list")
    return found


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds after the warm-up (default 5)")


def _brute(answer: CodeScorer, k: int) -> Tensor:
    """The twin's list over all items, in pieces of the catalogue."""
    pieces = [code_scores_reference(answer.levels, rows).T for rows in answer.rows.split(100_000)]
    return _sorted(torch.cat(pieces, 1), k)


def _sorted(scores: Tensor, k: int) -> Tensor:
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :k]


BENCHMARK = Benchmark("decode", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
