"""Generating semantic ids code by code (`tiger`'s model): the beam with caches against one that reads everything anew.

``beam_users_per_s`` and ``.._4_levels``: histories of 20 events to lists of 10, 64 users at once, 50 beams,
12 thousand items. ``cached_over_naive``: the same search whose scorer reads history and codes again for each beam
at each level (all beams of a batch in one batch) over the one that goes on from keys and values, 8 users.
``answer_1m_over_10k``: a batch's answer at 1 million items over that at 10 thousand. ``trie_mb_1m``: MiB of the trie of
a million items.
``invalid_rate``: of ids that do not exist, are refused or stand twice, and of places left empty although enough items
were open, the share of all places. Codes are drawn at random, 256 a level, no tuple twice; weights are untrained:
speed does not depend on their values.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from torch import Tensor

import fullrank as fr
from benchmarks.generated_lists import FILTERS, filters_of, invalid, of_run
from benchmarks.harness import Benchmark, Figures, Say, main, repeat, require, rounded
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.inference.exact import top_k
from fullrank.inference.trie_beam import TrieBeam
from fullrank.models import States, last
from fullrank.models.sequential.encoders import Cache, Encoder
from fullrank.models.sequential.items.semantic import SemanticItems
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.objectives.tasks.generate import GeneratedScorer

K, BEAMS, SIZE, LENGTH = 10, 50, 256, 20
USERS, NAIVE_USERS = 64, 8
FEW, SMALL, MANY = 12_000, 10_000, 1_000_000


def model_of(items: int, levels: int, size: int = SIZE, **changes: Any) -> RecommenderModel:
    """`tiger`'s model of items with different tuples of random codes; the same every time."""
    draw = torch.Generator().manual_seed(0)
    keys = torch.randint(0, size**levels, (items + items // 4 + 100,), generator=draw).unique()
    keys = keys[torch.randperm(len(keys), generator=draw)[:items]]
    require(len(keys) == items, f"{items} tuples of {levels} codes of {size} were not drawn")
    codes = torch.stack([keys // size**level % size for level in range(levels)], 1).numpy().astype(np.uint16)
    frame = pl.DataFrame({"item": range(items), "item_id": range(items), "train_count": [1] * items}).with_columns(
        codes=pl.Series(codes, dtype=pl.Array(pl.UInt16, levels)),
        code_sizes=pl.Series(np.full((items, levels), size, np.int32), dtype=pl.Array(pl.Int32, levels)),
    )
    torch.manual_seed(0)
    made = fr.recipe("tiger").model.model_copy(update=changes).build(Catalog(frame)).eval()
    assert isinstance(made, RecommenderModel)
    return made


def rows_of(users: int, items: int, *, ragged: bool = False) -> Batch:
    """Histories of random items: full, or of 1 to LENGTH events."""
    draw = torch.Generator().manual_seed(users)
    drawn = torch.randint(0, items, (users, LENGTH), generator=draw)
    lengths = torch.randint(1, LENGTH + 1, (users,), generator=draw) if ragged else torch.full((users,), LENGTH)
    return Batch(drawn, lengths, rows=torch.arange(users))


class Rereading(Encoder):
    """The twin: an encoder that keeps no keys and values. Its cache holds the vectors that it was given, and a step
    reads history and tokens of a stream again by the encoder's own forward pass, a row for each stream."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor, batch: Batch) -> States:
        states: States = self.encoder(x, batch)
        return states

    def start(self, x: Tensor, batch: Batch) -> tuple[States, Cache]:
        return self(x, batch), Cache(((x,),), batch)

    def step(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        history, *before = cache.layers[0]
        said = torch.cat([*before, x[:, :, None]], 2)
        users, beams, new, _ = said.shape
        row = F.pad(history, (0, 0, 0, new)).repeat_interleave(beams, 0)
        lengths = cache.batch.lengths.repeat_interleave(beams)
        at = lengths[:, None] + torch.arange(new)
        row[torch.arange(len(row))[:, None], at] = said.flatten(0, 1)
        wide = Batch(torch.zeros(row.shape[:2], dtype=torch.long), lengths + new)
        state = last(self(row, wide).tokens, wide).unflatten(0, (users, beams))
        return state, cache.grown(((history, said),))

    def branch(self, cache: Cache, parents: Tensor) -> Cache:
        history, said = cache.layers[0]
        kept = said.gather(1, parents[..., None, None].expand(-1, -1, *said.shape[2:]))
        return replace(cache, layers=((history, kept),))


def naive(
    answer: GeneratedScorer, model: RecommenderModel, batch: Batch, twin: type[Rereading] = Rereading
) -> GeneratedScorer:
    """The same answer without caches."""
    encoder = twin(answer.encoder)
    x, inputs = model.task.inference_inputs(model.items, batch)
    states, cache = encoder.start(x, inputs)
    return replace(answer, encoder=encoder, start=last(states.tokens, inputs), cache=cache)


def check(search: Callable[..., Any] = TrieBeam, twin: type[Rereading] = Rereading) -> None:
    """Caches change no list; a beam as wide as the catalogue gives the full sort's lists, under every filter; no id is
    invalid."""
    items, encoder = 60, fr.recipe("tiger").model.encoder.model_copy(update={"inner": 16, "layers": 2})
    for levels in (1, 3, 4):
        model = model_of(items, levels, 100 if levels == 1 else 8, dim=16, encoder=encoder)
        batch = rows_of(6, items, ragged=True)
        with torch.inference_mode():
            _shake(model)
            answer = _own(model.answer(batch))
            for kind in FILTERS:
                filters = filters_of(batch, items, kind)
                wanted = top_k(answer, K, filters=filters)
                whole = search(model.items, beams=items)(answer, K, filters)
                same = torch.equal(whole[1], wanted[1]) and _near(whole[0], wanted[0])
                require(same, f"a beam of the whole catalogue does not give the full sort's lists ({kind})")
                narrow = search(model.items, beams=K)
                found, anew = narrow(answer, K, filters), narrow(naive(answer, model, batch, twin), K, filters)
                same = torch.equal(found[1], anew[1]) and _near(found[0], anew[0])
                require(same, f"with caches the lists are others than without ({kind})")
                require(not invalid(found[1], items, filters), f"a list has invalid ids ({kind})")


@torch.inference_mode()
def measure(options: argparse.Namespace, say: Say) -> Figures:
    if options.run is not None:
        return of_run(options, say)
    models = {"3_levels": model_of(FEW, 3), "4_levels": model_of(FEW, 4), "10k": model_of(SMALL, 3)}
    beams = {name: TrieBeam(_items(model), beams=BEAMS) for name, model in models.items()}
    wrong = _invalid_rate(models, beams)
    say(f"a trie of {MANY:,} items")
    models["1m"] = model_of(MANY, 3)
    seconds = repeat(1, lambda: beams.update({"1m": TrieBeam(_items(models["1m"]), beams=BEAMS)}))[0]
    deeper = TrieBeam(_items(model_of(MANY, 4)), beams=BEAMS).trie.nbytes
    actions: dict[str, Callable[[], Any]] = {
        name: _answering(models[name], beams[name], rows_of(USERS, models[name].items.size)) for name in models
    }
    model, beam, batch = models["3_levels"], beams["3_levels"], rows_of(NAIVE_USERS, FEW)
    actions["cached"] = _answering(model, beam, batch)
    answer = _own(model.answer(batch))
    actions["naive"] = lambda: beam(naive(answer, model, batch), K, None)
    agreement = (actions["cached"]()[1] == actions["naive"]()[1]).float().mean()
    taken = _by_turns(actions, options.rounds, say)
    ratio = lambda a, b: median(x / y for x, y in zip(taken[a], taken[b], strict=True))  # noqa: E731
    return rounded({
        "beam_users_per_s": USERS / median(taken["3_levels"]),
        "beam_users_per_s_4_levels": USERS / median(taken["4_levels"]),
        "cached_over_naive": ratio("naive", "cached"),
        "cached_and_naive_same_places": float(agreement),
        "answer_1m_over_10k": ratio("1m", "10k"),
        "trie_mb_1m": beams["1m"].trie.nbytes / 2**20,
        "trie_mb_1m_4_levels": deeper / 2**20,
        "trie_seconds_1m": seconds,
        "invalid_rate": wrong,
        **{f"{name}_seconds": median(own) for name, own in taken.items()},
        "users": USERS, "naive_users": NAIVE_USERS, "beams": BEAMS, "rounds": options.rounds,
    })  # fmt: skip


def _invalid_rate(models: dict[str, RecommenderModel], beams: dict[str, TrieBeam]) -> float:
    """Over all filters, the share of places of the lists."""
    found = places = 0
    for name, model in models.items():
        items, batch = model.items.size, rows_of(USERS, model.items.size, ragged=True)
        for kind in FILTERS:
            filters = filters_of(batch, items, kind)
            ids = beams[name](_own(model.answer(batch)), K, filters)[1]
            found, places = found + invalid(ids, items, filters), places + ids.numel()
    return found / places


def _answering(model: RecommenderModel, beam: TrieBeam, batch: Batch) -> Callable[[], tuple[Tensor, Tensor]]:
    index = model.index_items()
    return lambda: beam(_own(model.answer(batch, index=index)), K, None)


def _by_turns(actions: dict[str, Callable[[], object]], rounds: int, say: Say) -> dict[str, list[float]]:
    """Seconds of each action in each round, in an order that changes from round to round; one round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    names = list(actions)
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds = repeat(1, actions[name])
            taken[name] += seconds if turn else []
        say(f"round {turn} of {rounds} (0 is the warm-up)")
    return taken


def _items(model: RecommenderModel) -> SemanticItems:
    assert isinstance(model.items, SemanticItems)
    return model.items


def _own(answer: object) -> GeneratedScorer:
    assert isinstance(answer, GeneratedScorer)
    return answer


def _near(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def _shake(model: RecommenderModel) -> None:
    """Weights so large that no difference hides behind small starting values."""
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.3)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds after the warm-up (default 5)")
    parser.add_argument("--run", help="a trained run: measure its lists instead (what is invalid, what a beam loses)")
    parser.add_argument("--data", help="of --run: its store, where that is not where it was trained on")
    parser.add_argument("--users", type=int, default=128, help="of --run: users of exhaustive lists (default 128)")


BENCHMARK = Benchmark("generate", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
