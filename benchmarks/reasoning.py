"""What latent reasoning costs: answering and training with PLR and ReaRec against the encoder alone.

``plr_over_base_latency``, ``plr_over_rearec_latency``: median over rounds of the seconds of one batch, histories to
lists of 20 (128 full histories of 50 events, 88,000 items, width 256, inner 300, 2 layers, 2 heads; ReaRec takes 2
steps, PLR 2 steps in 2 streams). The base computes every position of its last layer, as the reasoners' prefix does.
``flops_*``: products of one history's answer, counted on paper (see `flops`). ``plr_train_step_over_base``: forward,
backward and AdamW of 128 full histories at 12 thousand items; PLR reads them twice and compares its states on 1,024
items, or on all (``plr_train_step_full_over_base``). Freed memory is kept, as in any process that runs a model on the
CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from benchmarks.harness import Benchmark, Figures, Say, main, require, rounded
from fullrank.core.device import resolve_device
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.inference.exact import top_k
from fullrank.models import Budget
from fullrank.models.sequential.items.table import Table
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.models.sequential.reasoning.rearec import ReaRec
from fullrank.models.sequential.regularizers.kl_diversity import KLDiversity
from fullrank.models.sequential.regularizers.reasoning_contrast import ReasoningContrast
from fullrank.ops import model_cost
from fullrank.recipes.plr import cds
from fullrank.run.experiment import Training
from fullrank.training.optim import make_optimizer

K, ROWS, LENGTH = 20, 128, 50
DIM, INNER, LAYERS = 256, 300, 2
ITEMS, TRAINED_ITEMS = 88_000, 12_000
PAPER = {"base": 1.3448e8, "rearec": 1.3810e8, "plr": 1.4150e8}
"""FLOPs per sample of PLR's Table 4: SASRec on CDs and Vinyl."""
PAPER_ITEMS = 87_969
SHAPES = {"base": (0, 0), "rearec": (2, 1), "plr": (2, 2)}
"""Steps and streams."""

Scorer = Callable[[RecommenderModel, Batch], Tensor]


def spec_of(kind: str, kl_items: int | None = 1024) -> Recommender:
    """The paper's encoder on items by id: alone, with ReaRec, or with PLR and its penalties."""
    made = cds(reasoning=kind == "plr").model
    assert isinstance(made, Recommender)
    changes: dict[str, Any] = {"items": Table()}
    if kind == "rearec":
        changes["reasoner"] = ReaRec()
    if kind == "plr":
        changes["penalties"] = (ReasoningContrast(), KLDiversity(items=kl_items))
    return made.model_copy(update=changes)


def model_of(kind: str, items: int, *, dim: int = DIM, kl_items: int | None = 1024) -> RecommenderModel:
    """Untrained, the same every time: speed does not depend on the weights' values."""
    torch.manual_seed(0)
    frame = pl.DataFrame({"item": np.arange(items), "item_id": np.arange(items), "train_count": np.ones(items, int)})
    return spec_of(kind, kl_items).model_copy(update={"dim": dim}).build(Catalog(frame)).eval()


def rows_of(rows: int, items: int, length: int = LENGTH) -> Batch:
    """Full rows of random items."""
    drawn = torch.randint(0, items, (rows, length), generator=torch.Generator().manual_seed(rows))
    return Batch(drawn, torch.full((rows,), length), rows=torch.arange(rows))


def flops(steps: int, streams: int, *, items: int = PAPER_ITEMS) -> float:
    """Products of one history's answer: two operations for each multiplication with its addition.

    Counted are the matrix products of the full row of 50 tokens (queries, keys, values, output, two of the
    feed-forward), attention over the whole square (what a causal kernel could skip is not skipped), the same of every
    latent token against the 50 keys of the history and its stream's own, the gate, and the scores of all items. Norms,
    biases, activations and softmax are not. So counted, the paper's Table 4 is met within 1 %: the base is not trimmed
    to its last position there either, and one latent token costs 1.8e6.
    """
    token = LAYERS * (4 * DIM * DIM + 2 * DIM * INNER)
    prefix = LENGTH * token + LAYERS * 2 * LENGTH * LENGTH * DIM
    latent = sum(token + LAYERS * 2 * (LENGTH + step) * DIM for step in range(1, steps + 1))
    gate = streams * DIM if streams > 1 else 0
    return 2.0 * (prefix + streams * latent + gate + items * DIM)


def counted(model: RecommenderModel, batch: Batch) -> float:
    """Products of one row's answer as torch counts them while they run."""

    index = model.index_items()

    def run() -> None:
        answer = model.answer(batch, index=index)
        answer.block(0, answer.size)

    with torch.inference_mode():
        return model_cost.counted(run) / len(batch.lengths)


def fast(model: RecommenderModel, batch: Batch, budget: Budget | None = None) -> Tensor:
    """What the model answers."""
    return model.answer(batch, budget=budget).vectors


def slow(model: RecommenderModel, batch: Batch) -> Tensor:
    """The twin of a causal reasoner on full rows: every step reads history and thoughts anew, stream by stream."""
    reasoner: Any = model.reasoner
    encoder = reasoner.encoder
    states = encoder(*model.task.inference_inputs(model.items, batch))
    start = states.tokens[:, -1]
    weights = reasoner.weigh(start, reasoner.streams)
    means = []
    for stream in range(reasoner.streams):
        before, row, said = reasoner.openings(start)[:, stream], states.layers[0], []
        for step in range(reasoner.steps):
            token = encoder.norm_input(before + reasoner.step_vectors[step])
            row = torch.cat([row, token[:, None]], 1)
            wider = Batch(torch.zeros(row.shape[:2], dtype=torch.long), torch.full((len(row),), row.shape[1]))
            x = row
            for block in encoder.blocks:
                x = block(x, wider)
            before = encoder.norm_output(x)[:, -1] + (before if reasoner.residual else 0.0)
            said.append(before)
        means.append(said)
    if reasoner.streams == 1:
        return (start + sum(means[0])) / (1 + reasoner.steps)
    pooled = torch.stack([torch.stack(said).mean(0) for said in means], 1)
    return start + (weights[..., None] * pooled).sum(1)


def check(answer: Scorer = fast) -> None:
    """Cached steps equal full recomputation; no steps equal the base; lists are a full sort's; products are counted."""
    batch = rows_of(5, 200)
    with torch.inference_mode():
        for kind in ("rearec", "plr"):
            model = model_of(kind, 200, dim=16)
            _shake(model)
            found, wanted = answer(model, batch), slow(model, batch)
            require(
                torch.allclose(found, wanted, rtol=1e-4, atol=1e-5), f"{kind}: cached steps are not recomputed ones"
            )
            base = model_of("base", 200, dim=16)
            base.items.load_state_dict(model.items.state_dict())
            base.encoder.load_state_dict(model.encoder.encoder.state_dict())
            none = answer(model, batch, Budget(steps=0))
            require(torch.allclose(none, fast(base, batch), rtol=1e-4, atol=1e-5), f"{kind}: no step is not the base")
            whole = model.answer(batch)
            best = whole.block(0, 200).sort(dim=1, descending=True, stable=True).values[:, :K]
            require(torch.allclose(top_k(whole, K, block=64)[0], best), f"{kind}: a list is not that of a full sort")
    for kind, shape in SHAPES.items():
        real = counted(model_of(kind, 1000), rows_of(2, 1000))
        require(abs(real / flops(*shape, items=1000) - 1) < 2e-3, f"{kind}: torch counts {real:.4g} products")


def _shake(model: RecommenderModel) -> None:
    """Weights so large that no difference hides behind small starting values."""
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.3)


def measure(options: argparse.Namespace, say: Say) -> Figures:
    figures: Figures = {f"flops_{kind}": flops(*shape) for kind, shape in SHAPES.items()}
    figures |= {f"flops_{kind}_over_paper": figures[f"flops_{kind}"] / PAPER[kind] for kind in SHAPES}
    figures |= latency(options, say)
    figures |= training(options, say)
    return rounded({
        **figures, "items": options.items, "train_items": options.train_items, "rows": ROWS, "length": LENGTH,
        "rounds": options.rounds,
    }, digits=5)  # fmt: skip


def latency(options: argparse.Namespace, say: Say) -> Figures:
    """Seconds of one batch, histories to lists; the three take turns."""
    resolve_device("cpu")
    batch = rows_of(ROWS, options.items)
    answering = {kind: _answering(model_of(kind, options.items), batch) for kind in SHAPES}
    taken = _by_turns(answering, options.rounds, say, "answer")
    ratio = lambda a, b: median(x / y for x, y in zip(taken[a], taken[b], strict=True))  # noqa: E731
    return {
        "plr_over_base_latency": ratio("plr", "base"),
        "rearec_over_base_latency": ratio("rearec", "base"),
        "plr_over_rearec_latency": ratio("plr", "rearec"),
        **{f"{kind}_batch_seconds": median(seconds) for kind, seconds in taken.items()},
    }


def training(options: argparse.Namespace, say: Say) -> Figures:
    """Seconds of one optimizer step on the same rows."""
    kinds: dict[str, tuple[str, int | None]] = {"base": ("base", None), "plr": ("plr", 1024), "plr_full": ("plr", None)}
    batch = rows_of(ROWS, options.train_items, LENGTH + 1)
    stepping = {
        name: _stepping(model_of(kind, options.train_items, kl_items=items), batch)
        for name, (kind, items) in kinds.items()
    }
    taken = _by_turns(stepping, options.train_rounds, say, "training step")
    ratio = lambda a: median(x / y for x, y in zip(taken[a], taken["base"], strict=True))  # noqa: E731
    return {
        "plr_train_step_over_base": ratio("plr"),
        "plr_train_step_full_over_base": ratio("plr_full"),
        **{f"{name}_train_step_seconds": median(seconds) for name, seconds in taken.items()},
    }


def _answering(model: RecommenderModel, batch: Batch) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():  # an index for each run, as one call of many histories makes it
            return top_k(model.answer(batch, index=model.index_items()), K)

    return run


def _stepping(model: RecommenderModel, batch: Batch) -> Callable[[], object]:
    optimizer = make_optimizer(model.train(), Training())

    def run() -> None:
        loss = torch.stack(list(model(batch).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def _by_turns(actions: dict[str, Callable[[], object]], rounds: int, say: Say, what: str) -> dict[str, list[float]]:
    """Seconds of each action in each round, in an order that changes from round to round; two rounds warm up."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    names = list(actions)
    for turn in range(rounds + 2):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begun = time.perf_counter()
            actions[name]()
            if turn >= 2:
                taken[name].append(time.perf_counter() - begun)
    say(f"{what}: " + ", ".join(f"{name} {median(seconds):.4f} s" for name, seconds in taken.items()))
    return taken


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=40, help="timed batches of each model (default 40)")
    parser.add_argument("--train-rounds", type=int, default=15, help="timed training steps of each (default 15)")
    parser.add_argument("--items", type=int, default=ITEMS, help=f"items to rank (default {ITEMS:,})")
    parser.add_argument("--train-items", type=int, default=TRAINED_ITEMS, help=f"when training ({TRAINED_ITEMS:,})")


BENCHMARK = Benchmark("reasoning", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
