"""What each block does to collapse, accuracy and fairness: it is made the identity, and everything is measured again.

Claim (SPRINT, KDD 2026, Figure 6): without attention blocks, or without feed-forward blocks, the score matrix collapses
less. A sublayer's output becomes zero, so that its residual passes the input on. Rows without a layer leave out all
attentions, or all feed-forwards, at once; the row `whole` is the model as it is. In the row `mixing` (ours) every event
attends to itself alone, A = I, and projections go on: what is lost is what events learn from each other.

Differs: in post-norm blocks the norm behind the residual stays. Nothing is trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from fullrank.analysis.diagnostics import (
    FAIRNESS,
    Claim,
    Diagnostic,
    Figure,
    Row,
    RunResult,
    Sample,
    SampleStore,
    activations,
    bars,
)
from fullrank.analysis.diagnostics.spectrum import ScoreMatrix, popularity_likeness
from fullrank.data.batch import Batch
from fullrank.evaluation import evaluate
from fullrank.inference.search import Decoding
from fullrank.models import DenseScorer, Model
from fullrank.models.sequential.attention import Attention
from fullrank.models.sequential.reading import attention_of, blocks_of, decoder_blocks_of
from fullrank.ops.singular_values import collapse_share

USERS = 2048
"""Most users measured for each part: the first of the sample, whose order is random."""


class Ablation(Diagnostic):
    """Collapse share, likeness to popularity, accuracy and fairness of the sample, whole and without each part."""

    name = "ablation"
    runs_model = True
    claim_of = Claim(
        "Ablation of {}",
        "One part at a time is switched off, so that it passes its input on, or every event attends to itself "
        "alone, and everything is measured again on a sample of users; nothing is trained anew. A part without "
        "which the collapse share falls and the long-tail share rises is one that amplifies popularity. The dashed "
        "line is the whole model.",
    )

    def rows(self) -> list[Row]:
        parts = parts_of(self.context.model)
        if not parts:
            return self.left_out("it has no blocks to leave out")
        found: list[Row] = []
        for place, part in enumerate([Part("whole", None, ()), *parts]):
            with self_attending(part.modules) if part.label == "mixing" else silenced(part.modules):
                figures = self._figures(self.context.sample.first(USERS))
            found += self.rows_of(figures, layer=part.layer, label=part.label)
            self.progress(place + 1, len(parts) + 1)
        return found

    def _figures(self, sample: Sample) -> dict[str, float | None]:
        model, split, spec = self.context.model, self.context.split, self.context.evaluation
        scores = ScoreMatrix(sample)
        for batch in activations(model, sample):
            scores.observe(batch)
        spectrum = scores.spectrum()
        store = SampleStore(self.context.store, sample.users)
        if spectrum is None:
            return dict(evaluate(model, store, split, spec).metrics)
        # The spectrum has every user's vector: ranking these runs no layer a second time.
        exact = spec.model_copy(update={"decoding": Decoding()})
        measured = evaluate(RecordedScores(model, scores, sample.users), store, split, exact)
        figures = {
            "collapse_share": float(collapse_share(spectrum.sigma)),
            "popularity_spearman": popularity_likeness(spectrum, sample.popularity).spearman,
        }
        return figures | measured.metrics

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        """Every figure of the whole model and without each part; collapse, fairness and accuracy are drawn."""
        values = result.diagnosis.values(cls.name, None, "label", "layer", "name")
        names = list(dict.fromkeys(name for *_, name in values))
        parts = list(dict.fromkeys((label, layer) for label, layer, _ in values))
        words = [name.replace("_", " ") for name in names]
        rows = tuple((_word(*part), *(values.get((*part, name)) for name in names)) for part in parts)
        charts = [
            bars("part", name.replace("_", " "), by="", across=True, level={"": values["whole", None, name]})
            for name in ("collapse_share", FAIRNESS, result.accuracy)
            if ("whole", None, name) in values
        ]
        return claim.figure(("part", *words), rows, *charts)


@dataclass(frozen=True)
class Part:
    """Modules that are made the identity together."""

    label: str
    layer: int | None
    modules: tuple[nn.Module, ...]


def parts_of(model: Model) -> list[Part]:
    """Each attention, each feed-forward, then all of each kind where there are several; of a decoder all at once."""
    found: list[Part] = []
    for label in ("attention", "feed_forward"):
        of_kind = []
        for layer, block in enumerate(blocks_of(model)):
            module = attention_of(block) if label == "attention" else getattr(block, label, None)
            if isinstance(module, nn.Module):
                of_kind.append(Part(label, layer, (module,)))
        found += of_kind
        if len(of_kind) > 1:
            found.append(Part(label, None, tuple(module for part in of_kind for module in part.modules)))
    answering = decoder_blocks_of(model)
    for label, name in (
        ("decoder_attention", "attention"),
        ("cross_attention", "cross"),
        ("decoder_feed_forward", "feed_forward"),
    ):
        parts = [getattr(block, name, None) for block in answering]
        modules = tuple(module for module in parts if isinstance(module, nn.Module))
        if modules:
            found.append(Part(label, None, modules))
    mixers = [m for block in blocks_of(model) if isinstance(m := attention_of(block), Attention)]
    if mixers and all(m.rows_sum_to_one for m in mixers):  # else the identity is no weights of theirs
        found.append(Part("mixing", None, tuple(mixers)))
    return found


@contextmanager
def silenced(modules: tuple[nn.Module, ...]) -> Iterator[None]:
    """While this lasts, the outputs of these modules are zero."""

    def zero(module: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor:
        return torch.zeros_like(out)

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(zero).remove)
            if isinstance(module, Attention):  # a reasoner's tokens, and a decoder's look, do not pass through forward
                for name in ("attend_latent", "across"):
                    vars(module)[name] = _zeros_of(getattr(module, name))
                    stack.callback(delattr, module, name)
        yield


@contextmanager
def self_attending(modules: tuple[nn.Module, ...]) -> Iterator[None]:
    """While this lasts, every event, and every latent token of a reasoner, attends to itself alone."""
    with ExitStack() as stack:
        for module in modules:
            assert isinstance(module, Attention)
            for name, function in (("forward", _own_value), ("attend_latent", _own_latent_value)):
                vars(module)[name] = partial(function, module)
                stack.callback(delattr, module, name)
        yield


def _own_value(module: Attention, x: Tensor, batch: Batch) -> Tensor:
    rows, length = x.shape[:2]
    identity = torch.eye(length, dtype=x.dtype, device=x.device).expand(rows, module.heads, -1, -1)
    if batch.captures is not None and batch.captures.memory is not None:
        batch.captures.memory[module] = module.project(x, batch.positions(from_end=False))[1:]
    return module.apply_weights(identity, x)


def _own_latent_value(module: Attention, q: Tensor, prefix: Any, own: Any, batch: Batch) -> Tensor:
    return module.close(own[1][:, :, :, -1], q)


def _zeros_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *given: torch.zeros_like(function(*given))


class RecordedScores(Model):
    """A model that gives the user vectors recorded before."""

    def __init__(self, model: Model, scores: ScoreMatrix, users: Int[np.ndarray, "U"]):
        assert scores.vectors is not None and scores.table is not None
        self.num_items, self.max_length = model.num_items, model.max_length
        self.vectors, self.table = scores.vectors, scores.table.cpu()
        self.order = np.argsort(users)
        self.users = users[self.order]

    def answer(self, batch: Batch) -> DenseScorer:
        assert batch.rows is not None
        return DenseScorer(self.vectors[self.order[np.searchsorted(self.users, batch.rows.numpy())]], self.table)


def _word(label: str, layer: int | None) -> str:
    if label == "mixing":
        return "every event alone"
    kind = label.replace("_", "-")
    return "whole model" if label == "whole" else f"no {kind}" if layer is None else f"no {kind} {layer + 1}"
