"""What each block does to collapse, accuracy and fairness: it is made the identity, and everything is measured again.

Claim (SPRINT, KDD 2026, Figure 6): without attention blocks, or without feed-forward blocks, the score matrix collapses
less. A sublayer's output becomes zero, so that its residual passes the input on. Rows without a layer leave out all
attentions, or all feed-forwards, at once; the row `whole` is the model as it is.

Differs: in post-norm blocks the norm behind the residual stays. Nothing is trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from fullrank.analysis import Row, left_out, row
from fullrank.analysis.effective_rank import collapse_share
from fullrank.analysis.reading import Sample, attention_of, blocks_of, device_of, readings
from fullrank.analysis.spectrum import Scores, likeness
from fullrank.core.progress import Progress
from fullrank.data.batch import Batch, DenseScorer, Model
from fullrank.data.events.store import Store
from fullrank.data.histories import EvalSet
from fullrank.evaluation import Evaluation, evaluate
from fullrank.evaluation.retrieval import Split
from fullrank.models.sequential.attention import Attention

FAIRNESS = "fair0.8@1"
USERS = 2048
"""Most users measured for each part: the first of the sample, whose order is random."""


@dataclass(frozen=True)
class Part:
    """Modules that are made the identity together."""

    label: str
    layer: int | None
    modules: tuple[nn.Module, ...]


def parts(model: Model) -> list[Part]:
    """Each attention, each feed-forward, then all of each kind where there are several."""
    found: list[Part] = []
    for label in ("attention", "feed_forward"):
        ones = []
        for layer, block in enumerate(blocks_of(model)):
            module = attention_of(block) if label == "attention" else getattr(block, label, None)
            if isinstance(module, nn.Module):
                ones.append(Part(label, layer, (module,)))
        found += ones
        if len(ones) > 1:
            found.append(Part(label, None, tuple(module for one in ones for module in one.modules)))
    return found


@contextmanager
def without(modules: tuple[nn.Module, ...]) -> Iterator[None]:
    """While this lasts, the outputs of these modules are zero."""

    def silent(module: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor:
        return torch.zeros_like(out)

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(silent).remove)
            if isinstance(module, Attention):  # a reasoner's own tokens do not pass through forward
                vars(module)["attend_latent"] = _zeros_of(module.attend_latent)
                stack.callback(delattr, module, "attend_latent")
        yield


def _zeros_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *given: torch.zeros_like(function(*given))


class Answered:
    """A model that gives the answers taken down before (`batch.Model`): ranking them runs no layer again."""

    def __init__(self, model: Model, scores: Scores, users: Int[np.ndarray, "U"]):
        assert scores.vectors is not None and scores.table is not None
        self.num_items, self.max_length = model.num_items, model.max_length
        self.vectors, self.table = scores.vectors, scores.table.cpu()
        self.order = np.argsort(users)
        self.users = users[self.order]

    def answer(self, batch: Batch) -> DenseScorer:
        assert batch.rows is not None
        return DenseScorer(self.vectors[self.order[np.searchsorted(self.users, batch.rows.numpy())]], self.table)


@dataclass(frozen=True)
class Chosen:
    """A store of which some users are asked alone (`evaluation.measure.EvalStore`)."""

    store: Store
    users: Int[np.ndarray, "U"]

    @property
    def items(self) -> Int[np.ndarray, "E"]:
        return self.store.items

    @property
    def bounds(self) -> Int[np.ndarray, "users 2"]:
        return self.store.bounds

    @property
    def catalog(self) -> Any:
        return self.store.catalog

    @property
    def fingerprint(self) -> str:
        return self.store.fingerprint

    def eval_set(self, split: Split, *, without_history: bool = False) -> EvalSet:
        whole = self.store.eval_set(split, without_history=without_history)
        return whole.take(np.isin(whole.users, self.users))


def accuracy_of(spec: Evaluation) -> Evaluation:
    """The run's own protocol over the full catalogue, with its selection metric and `FAIRNESS` alone."""
    names = (spec.selection, FAIRNESS)
    return Evaluation(
        metrics=names, selection=spec.selection, seen=spec.seen, popularity=spec.popularity, slices=False, bootstrap=0
    )


def protocol_of(spec: Evaluation) -> dict[str, str]:
    """What decides the accuracy and fairness of these rows, by name."""
    return {"accuracy": spec.selection, "seen": spec.seen, "popularity": spec.popularity}


def ablation_rows(
    model: Model,
    store: Store,
    sample: Sample,
    split: Split,
    spec: Evaluation,
    progress: Progress | None = None,
) -> list[Row]:
    """Collapse share, likeness to popularity, accuracy and fairness of the sample, whole and without each part."""
    chosen = parts(model)
    if not chosen:
        return [left_out("ablation", "it has no blocks to leave out")]
    sample = sample.first(USERS)
    found: list[Row] = []
    for place, part in enumerate([Part("whole", None, ()), *chosen]):
        with without(part.modules):
            figures = _figures(model, store, sample, split, spec)
        found += [row("ablation", name, value, layer=part.layer, label=part.label) for name, value in figures.items()]
        if progress is not None:
            progress(place + 1, len(chosen) + 1)
    return found


def _figures(model: Model, store: Store, sample: Sample, split: Split, spec: Evaluation) -> dict[str, float | None]:
    scores = Scores(len(sample), sample.popularity)
    for reading in readings(model, sample):
        scores.see(reading)
    spectrum = scores.spectrum()
    asked = Chosen(store, sample.users)
    if spectrum is None:
        return dict(evaluate(model, asked, split, spec, device=device_of(model)).metrics)
    measured = evaluate(Answered(model, scores, sample.users), asked, split, spec)
    figures = {
        "collapse_share": float(collapse_share(spectrum.sigma)),
        "popularity_spearman": likeness(spectrum, sample.popularity).spearman,
    }
    return figures | measured.metrics
