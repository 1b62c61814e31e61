"""Training click models: against bare matrix products, against the same models written plainly, and among themselves.

``epoch_over_gemm_floor``: an epoch of DCNv2 (embedding 16, 3 crosses, perceptron 3 x 400, batches of 4,096 of 800
thousand impressions; batches, embedding, L2, forward, backward, clipping, AdamW) over the products of its layers.
``dcnv2_over_plain``, ``rankelastor_over_plain``: speed of ours over the plain twin's (`twins/rankers.py`; no L2 in
either). ``rankelastor_over_rankmixer_step``: a step of one over a step of the other at equally many dense parameters.
``prepare_1m_seconds``: a million generated rows from a data frame to a store.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Benchmark, Figures, Say, main, require, rounded
from benchmarks.impressions import prepared, schema, table
from benchmarks.twins.linear_layers import LinearLayers, shapes_of
from benchmarks.twins.rankers import PlainLoop, plain_of
from fullrank.data.batch import Impressions
from fullrank.data.impressions.prepare import prepare_impressions
from fullrank.data.impressions.store import ImpressionStore
from fullrank.models.ranking.model import RankingModel, RankingModule
from fullrank.run.experiment import Experiment, find_experiment
from fullrank.training.data_module import ImpressionLoader, data_module_of
from fullrank.training.fit import fit
from fullrank.training.optim import clip_gradients, make_optimizer

ROWS = 1_000_000
"""Impressions generated, of which eight tenths train."""
MATCHED = {name: f"fullrank.recipes.rankelastor:matched_{name}" for name in ("rankelastor", "rankmixer")}
HEAD = ("model.ranker.head=mlp", "model.ranker.tokeniser.hidden_norm=null")
EQUATION_4 = ("model.ranker.feed_forward=glu", *HEAD)
PAPER = {"rankelastor": EQUATION_4, "rankmixer": HEAD}
"""Settings of the recipes: Eq. 4 and one head. RankMixer's width is 32, the next that 16 tokens divide."""
PLAIN: dict[str, tuple[str, ...]] = {"dcnv2": (), "rankelastor": EQUATION_4}
"""Recipes that have a plain twin, with the settings that it has."""
TOLERANCE = 1e-3
"""Largest difference between the twins' losses in training; before the first step it is a thousandth of that."""

PlainOf = Callable[[Any, Any], nn.Module]


class Trainee:
    """A recipe on a store: its model with its optimizer and its batches, the same every time it is made."""

    def __init__(self, recipe: str, store: ImpressionStore, *settings: str):
        self.spec: Experiment = find_experiment(recipe).override(*settings)
        assert isinstance(self.spec.model, RankingModel)
        torch.manual_seed(self.spec.seed)
        self.model: RankingModule = self.spec.model.build(store.fields).train()
        self.batches: ImpressionLoader = data_module_of(self.spec, store).loader(self.model)  # type: ignore[assignment]
        self.optimizer = make_optimizer(self.model, self.spec.training)

    @property
    def dense(self) -> int:
        return sum(p.numel() for p in self.model.ranker.parameters())

    def step(self, k: int) -> float:
        """Optimizer step k as the training loop takes it; the loss."""
        return self.learn(self.batches.batch(k))

    def learn(self, batch: Impressions) -> float:
        loss = torch.stack(list(self.model(batch).values())).sum()
        self.optimizer.zero_grad()
        loss.backward()
        if self.spec.training.clip_norm is not None:
            clip_gradients(self.model.parameters(), self.spec.training.clip_norm)
        self.optimizer.step()
        return loss.item()


def plain_loop(ours: Trainee, store: ImpressionStore, plain: PlainOf = plain_of) -> PlainLoop:
    """The plain twin of a trainee, from its weights, with all training rows in memory."""
    training = ours.spec.training
    assert training.clip_norm is not None
    rows = store.batch(store.split("train"))
    return PlainLoop(
        plain(ours.model, store.fields), rows, size=training.batch_size, lr=training.lr, clip=training.clip_norm
    )


def check(plain: PlainOf = plain_of, products: type[LinearLayers] = LinearLayers) -> None:
    """An epoch holds every training row; twins learn alike; the floor's products are those; the pair is matched."""
    with tempfile.TemporaryDirectory() as folder:
        store = prepared(3000, Path(folder) / "store")
        for recipe, form in PLAIN.items():
            settings = ("model.embedding.l2=0", "model.embedding.std=0.3", "training.batch_size=500")
            ours = Trainee(recipe, store, *form, *settings)  # vectors so large that no part hides behind small values
            epoch = [ours.batches.batch(k) for k in range(ours.batches.steps_per_epoch)]
            rows = torch.cat([b.rows for b in epoch if b.rows is not None])
            require(sorted(rows.tolist()) == list(store.split("train")), "an epoch does not hold every row once")
            twin = plain_loop(ours, store, plain)
            gaps = [abs(ours.learn(batch) - twin.learn(batch)) for batch in epoch]
            require(gaps[0] < 1e-3 * TOLERANCE, f"the losses of {recipe} and its plain twin differ by {gaps[0]:.2g}")
            require(max(gaps) < TOLERANCE, f"those of {recipe} and its plain twin come to differ by {max(gaps):.2g}")
            require(min(ours.learn(epoch[0]) for _ in range(20)) < 0.6, f"{recipe} does not learn")
        pair = {name: Trainee(recipe, store).dense for name, recipe in MATCHED.items()}
    apart = max(pair.values()) / min(pair.values()) - 1
    require(apart <= 0.05, f"the pair's dense parameters differ by {apart:.1%}: {pair}")
    floor = products(30, [(7, 5), (5, 1)])
    for (dx, dw), x, w in zip(zip(*floor.run(), strict=True), floor.x, floor.w, strict=True):
        y = x @ w.T
        exact = torch.allclose(dx, y @ w, atol=1e-4) and torch.allclose(dw, y.T @ x, atol=1e-4)
        require(exact, "the floor's products are wrong")


def measure(options: argparse.Namespace, say: Say) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        figures = preparing(options.rows, place / "store", say)
        store = ImpressionStore.open(place / "store")
        taken, trainees = stepping(store, options, say)
        figures |= compared(taken, trainees)
        figures |= through_lightning(store, place / "run", median(taken["dcnv2"]), say)
    return rounded({**figures, "rows": options.rows, "rounds": options.rounds, "steps_a_round": options.steps})


def preparing(rows: int, out: Path, say: Say) -> Figures:
    frame = table(rows)
    begun = time.perf_counter()
    prepare_impressions(frame, out, schema=schema())
    seconds = time.perf_counter() - begun
    say(f"prepared {rows:,} rows in {seconds:.1f} s")
    return {"prepare_1m_seconds": seconds * 1e6 / rows}


def stepping(
    store: ImpressionStore, options: argparse.Namespace, say: Say
) -> tuple[dict[str, list[float]], dict[str, Trainee]]:
    """Seconds of a step of each, in each round."""
    trainees = {"dcnv2": Trainee("dcnv2", store)}
    for recipe, form in PLAIN.items():
        trainees[f"{recipe} without l2"] = Trainee(recipe, store, *form, "model.embedding.l2=0")
    trainees |= {f"matched {name}": Trainee(recipe, store) for name, recipe in MATCHED.items()}
    trainees |= {f"paper {name}": Trainee(name, store, *settings) for name, settings in PAPER.items()}
    actions: dict[str, Callable[[int], object]] = {name: one.step for name, one in trainees.items()}
    for recipe in PLAIN:
        actions[f"plain {recipe}"] = plain_loop(trainees[f"{recipe} without l2"], store).step
    ours = trainees["dcnv2"]
    floor = LinearLayers(len(ours.batches.batch(0)), shapes_of(ours.model))
    actions["products"] = lambda _: floor.run()
    return by_turns(actions, options.rounds, options.steps, say), trainees


def by_turns(actions: dict[str, Callable[[int], object]], rounds: int, steps: int, say: Say) -> dict[str, list[float]]:
    """Seconds of a step (the mean of `steps`), in an order that changes from round to round; one round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    names = list(actions)
    for turn in range(rounds + 1):
        at = turn * 3 % len(names)
        for name in names[at:] + names[:at]:
            begun = time.perf_counter()
            for step in range(steps):
                actions[name](turn * steps + step)
            if turn:
                taken[name].append((time.perf_counter() - begun) / steps)
        say(f"round {turn} of {rounds}")
    return taken


def compared(taken: dict[str, list[float]], trainees: dict[str, Trainee]) -> Figures:
    """Ratios of steps: medians over rounds, and best over best."""
    pairs = {
        "epoch_over_gemm_floor": ("dcnv2", "products"),
        "dcnv2_over_plain": ("plain dcnv2", "dcnv2 without l2"),
        "rankelastor_over_plain": ("plain rankelastor", "rankelastor without l2"),
        "rankelastor_over_rankmixer_step": ("matched rankelastor", "matched rankmixer"),
        "rankelastor_over_rankmixer_step_paper": ("paper rankelastor", "paper rankmixer"),
    }
    ratios = {key: median(x / y for x, y in zip(taken[a], taken[b], strict=True)) for key, (a, b) in pairs.items()}
    best = {f"{key}_best": min(taken[a]) / min(taken[b]) for key, (a, b) in pairs.items()}
    steps = trainees["dcnv2"].batches.steps_per_epoch
    return {
        **ratios,
        **best,
        "epoch_seconds": steps * median(taken["dcnv2"]),
        "gemm_floor_seconds": steps * median(taken["products"]),
        "steps": steps,
        **{f"step_{name.replace(' ', '_')}_seconds": median(seconds) for name, seconds in taken.items()},
        **{f"dense_{name.replace(' ', '_')}": one.dense for name, one in trainees.items() if " " not in name},
        **{
            f"dense_{name.replace(' ', '_')}": trainees[name].dense
            for name in trainees
            if name[:5] in ("match", "paper")
        },
    }


def through_lightning(store: ImpressionStore, out: Path, step: float, say: Say) -> Figures:
    """One epoch of `fullrank train`, validation apart."""
    say("the same epoch through Lightning")
    run = fit(find_experiment("dcnv2").override("training.max_epochs=1"), store, out, progress=False)
    seconds = next(row["seconds"] for row in run.rows() if row["event"] == "epoch")
    steps = run.rows()[-1]["step"]
    return {"lightning_epoch_seconds": seconds, "lightning_over_epoch": seconds / (steps * step)}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=ROWS, help=f"impressions to generate (default {ROWS:,})")
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds (default 15)")
    parser.add_argument("--steps", type=int, default=5, help="steps of each in a round (default 5)")


BENCHMARK = Benchmark("train_ranker", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
