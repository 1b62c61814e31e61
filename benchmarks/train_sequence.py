"""One epoch of a sequence recommender with an exact softmax: against the padded twin, and against the bare products.

``speedup_over_padded``: seconds of the padded twin's epoch over ours. ``epoch_over_gemm_floor``: our whole epoch
(batches, embedding, encoder, loss, backward, AdamW) over the three catalogue products of its queries.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from benchmarks import machine
from benchmarks.data import beauty, tiny
from benchmarks.harness import Benchmark, Figures, Say, main, repeat, require, rounded
from benchmarks.twins.padded import bytes_needed, padded_loss
from benchmarks.twins.products import Products
from fullrank.core.errors import UserError
from fullrank.data.batch import Batch
from fullrank.data.events.loader import Loader
from fullrank.data.events.store import Store
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.run.experiment import Experiment, Training
from fullrank.training import TrainState
from fullrank.training.optim import make_optimizer

PARTS = ("batches", "forward", "backward", "step")
CHUNKS = (256, 1024, 4096)
TOLERANCE = 1e-3
"""Largest difference between the twins' losses on any batch."""

LossOf = Callable[[RecommenderModel, Batch], Tensor]


@dataclass
class Epoch:
    """What an epoch took, in seconds, and its loss on each batch."""

    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)


def experiment(dim: int = 64, layers: int = 2) -> Experiment:
    """Two layers of width 64 without dropout, histories of up to 50, exact softmax, 4,096 events a batch."""
    model = Recommender(dim=dim, max_length=50, encoder=Transformer(layers=layers, dropout=0.0))
    return Experiment(recipe="benchmark", model=model, training=Training(max_epochs=1))


class Trainee:
    """A model with its optimizer, at the same starting weights every time it is made."""

    def __init__(self, spec: Experiment, store: Store, loss: LossOf):
        torch.manual_seed(spec.seed)
        assert isinstance(spec.model, Recommender)
        self.model, self.loss = spec.model.build(store.catalog), loss
        self.half = spec.training.precision == "bf16"
        self.optimizer = make_optimizer(self.model, spec.training)

    def epoch(self, loader: Loader, steps: Iterable[int]) -> Epoch:
        """Trains on these steps of the loader, as the training loop does."""
        made, begun = Epoch(), time.perf_counter()
        for k in steps:
            marks = [time.perf_counter()]
            batch = loader.batch(k)
            marks.append(time.perf_counter())
            with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
                loss = self.loss(self.model, batch)
            marks.append(time.perf_counter())
            self.optimizer.zero_grad()
            loss.backward()
            marks.append(time.perf_counter())
            self.optimizer.step()
            marks.append(time.perf_counter())
            for name, seconds in zip(made.parts, np.diff(marks), strict=True):
                made.parts[name] += float(seconds)
            made.losses.append(loss.item())
        made.seconds = time.perf_counter() - begun
        return made


def our_loss(model: RecommenderModel, batch: Batch) -> Tensor:
    return torch.stack(list(model(batch).values())).sum()


def loader_of(spec: Experiment, store: Store, model: RecommenderModel) -> Loader:
    return Loader(
        store, model.task.segments, by=spec.training.batch_by, size=spec.training.batch_size, seed=spec.seed
    )  # fmt: skip


def check(padded: LossOf = padded_loss, products: type[Products] = Products) -> None:
    """Both twins: equal losses, gradients and steps; every trained event once; and the floor's products are those."""
    store = tiny()
    spec = experiment(dim=16).override("training.batch_size=300", "training.lr=0.01")
    ours, twin = Trainee(spec, store, our_loss), Trainee(spec, store, padded)
    loader = loader_of(spec, store, ours.model)
    batches = [loader.batch(k) for k in range(loader.steps_per_epoch)]
    lengths = np.minimum(store.bounds[:, 0] - store.offsets[:-1], 51)
    wanted = int(lengths[lengths >= 2].sum())
    held = sum(int(b.lengths.sum()) for b in batches)
    require(held == wanted, f"an epoch holds {held} of the {wanted} training events")
    for batch in batches:
        a, b = our_loss(ours.model, batch), padded(ours.model, batch)
        require(abs(a.item() - b.item()) < 1e-5, f"the loss is {a.item():.6f}, that of the padded twin {b.item():.6f}")
        parameters = list(ours.model.parameters())
        pairs = zip(torch.autograd.grad(a, parameters), torch.autograd.grad(b, parameters), strict=True)
        require(all(torch.allclose(p, q, rtol=1e-3, atol=1e-6) for p, q in pairs), "the twins' gradients differ")
    steps = range(loader.steps_per_epoch)
    gap = largest_gap(ours.epoch(loader, steps).losses, twin.epoch(loader, steps).losses)
    require(gap < TOLERANCE, f"the twins' losses come to differ by {gap:.2g} in training")
    floor = products(100, 70, 8, 30)
    dx, dw = floor.run()
    scores = floor.x @ floor.w.T
    exact = torch.allclose(dx, scores @ floor.w, rtol=1e-4, atol=1e-3)
    require(exact and torch.allclose(dw, scores.T @ floor.x, rtol=1e-4, atol=1e-3), "the floor's products are wrong")


def largest_gap(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def measure(options: argparse.Namespace, say: Say) -> Figures:
    store = beauty(options.data, say)
    spec = experiment().override(*options.set)
    ours = Trainee(spec, store, our_loss)
    loader = loader_of(spec, store, ours.model)
    batches = [loader.batch(k) for k in range(loader.steps_per_epoch)]
    queries = sum(int(b.lengths.sum()) - len(b.lengths) for b in batches)
    events, places = sum(int(b.lengths.sum()) for b in batches), sum(b.items.numel() for b in batches)
    epochs, floors = interleaved(ours, loader, queries, store.num_items, options.rounds, say)
    best = min(epochs, key=lambda e: e.seconds)
    typical = median(e.seconds for e in epochs)
    floor, chunk = min((min(seconds), chunk) for chunk, seconds in floors.items())
    twin = against_padded(spec, store, loader, batches, options.padded_seconds, say)
    return rounded({
        "speedup_over_padded": twin["padded_epoch_seconds"] / typical,
        "epoch_over_gemm_floor": best.seconds / floor,
        "epoch_seconds": typical,
        "epoch_seconds_best": best.seconds,
        "epochs_timed": len(epochs),
        **{f"part_{name}_seconds": seconds for name, seconds in best.parts.items()},
        "queries_per_s": queries / typical,
        "events_per_s": events / typical,
        "padding_share": 1 - events / places,
        "queries": queries,
        "steps": loader.steps_per_epoch,
        "gemm_floor_seconds": floor,
        "gemm_floor_chunk": chunk,
        **{f"gemm_chunk_{c}_seconds": min(seconds) for c, seconds in floors.items()},
        **twin,
        **fitted_epochs(spec, store, lambda: ours.epoch(loader, range(loader.steps_per_epoch)), say),
        "note": "speedup: padded twin (once) over our median epoch; floor: best over best; Lightning: median over its "
        "epochs, each over the mean of the bare ones just before and after",
    })  # fmt: skip


def interleaved(
    ours: Trainee, loader: Loader, queries: int, items: int, rounds: int, say: Say
) -> tuple[list[Epoch], dict[int, list[float]]]:
    """Our epochs and the products by turns, after a warm-up of each, so that a disturbance meets both."""
    n, epochs = loader.steps_per_epoch, []
    floors: dict[int, list[float]] = {chunk: [] for chunk in CHUNKS}
    ours.epoch(loader, range(n))
    for done in range(rounds):
        epochs.append(ours.epoch(loader, range((done + 1) * n, (done + 2) * n)))
        say(f"round {done + 1} of {rounds}: epoch {epochs[-1].seconds:.2f} s")
        for chunk, seconds in floors.items():
            products = Products(queries, items, ours.model.items.all().shape[1], chunk)
            Products(4 * chunk, items, products.x.shape[1], chunk).run()
            seconds += repeat(1, products.run)
    return epochs, floors


def against_padded(
    spec: Experiment, store: Store, loader: Loader, batches: list[Batch], budget: float, say: Say
) -> Figures:
    """The padded twin on batches spread evenly over the epoch's, until the budget is spent; ours on the same ones."""
    twin, ours = Trainee(spec, store, padded_loss), Trainee(spec, store, our_loss)
    order = spread(batches)
    needed = bytes_needed(max(len(b.lengths) for b in batches), twin.model.max_length, store.num_items)
    if (free := machine.free_bytes()) is not None and free < needed:
        raise UserError(
            f"the padded twin needs {needed:,.0f} bytes of memory and {free:,.0f} are free", code="too-little-memory"
        )
    padded_loss(twin.model, batches[order[0]]).backward()  # warm-up
    seconds = 0.0
    losses: list[float] = []
    for done, k in enumerate(order):
        if seconds > budget:
            order = order[:done]
            break
        made = twin.epoch(loader, [k])
        seconds, losses = seconds + made.seconds, losses + made.losses
        say(f"padded twin: batch {done + 1} of {len(batches)}, {seconds:.0f} s")
    gap = largest_gap(losses, ours.epoch(loader, order).losses)
    require(gap < TOLERANCE, f"the twins' losses come to differ by {gap:.2g} in training")
    share = sum(len(batches[k].lengths) for k in order) / sum(len(b.lengths) for b in batches)
    return {
        "padded_epoch_seconds": seconds / share,
        "padded_share_timed": share,
        "padded_extrapolated": share < 1,
        "largest_loss_gap": gap,
    }


def spread(batches: list[Batch]) -> list[int]:
    """All batches in an order whose beginnings are even samples of the batches by number of rows."""
    by_rows = np.argsort([len(b.lengths) for b in batches], kind="stable")
    places = np.arange(len(batches)) * 0.6180339887498949 % 1  # golden-ratio sequence: any beginning is evenly spread
    return by_rows[np.argsort(np.argsort(places))].tolist()


class Beside:
    """A training callback: what each epoch took, and a bare one that it runs behind it (seconds, CPU seconds, page
    faults)."""

    def __init__(self, bare: Callable[[], object]):
        self.bare, self.marks = bare, list[tuple[float, float, int]]()

    def on_epoch(self, state: TrainState) -> dict[str, float]:
        self._mark()
        self.bare()
        self._mark()
        return {}

    def _mark(self) -> None:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self.marks.append((time.perf_counter(), time.process_time(), faults))

    def figures(self) -> Figures:
        """Of all epochs but the first and the last, in which training starts and validation is."""
        spent = np.diff(np.array(self.marks), axis=0)[:-2]
        bare, fitted = spent[::2], spent[1::2]
        over, cpu_over = np.median(2 * fitted[:, :2] / (bare[:-1, :2] + bare[1:, :2]), axis=0)
        return {
            "lightning_epoch_seconds": float(np.median(fitted[:, 0])),
            "lightning_over_epoch": float(over),
            "lightning_cpu_over_epoch": float(cpu_over),
            "lightning_page_faults": int(np.median(fitted[:, 2])),
            "epoch_page_faults": int(np.median(bare[:, 2])),
        }


def fitted_epochs(spec: Experiment, store: Store, bare: Callable[[], object], say: Say, epochs: int = 5) -> Figures:
    """Epochs of `training.fit` (with one checkpoint in each) and bare ones by turns, since a machine's speed drifts."""
    from fullrank.training.fit import fit

    say("the same epochs through Lightning")
    beside, long = Beside(bare), spec.override(f"training.max_epochs={epochs}", f"training.evaluate_every={epochs}")
    with tempfile.TemporaryDirectory() as folder:
        fit(long, store, Path(folder) / "run", callbacks=(beside,), progress=False)
    return beside.figures()


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="a prepared store (default: amazon-beauty from FULLRANK_DATA)")
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="A.B=C",
        help="change the experiment, such as model.loss.chunk_elements=3000000",
    )
    parser.add_argument("--rounds", type=int, default=5, help="epochs of ours, and runs of the products (default 5)")
    parser.add_argument(
        "--padded-seconds", type=float, default=120.0, help="time for the padded twin; its epoch is extrapolated beyond"
    )


BENCHMARK = Benchmark("train_sequence", __doc__ or "", arguments, check, measure)

if __name__ == "__main__":
    sys.exit(main(BENCHMARK))
