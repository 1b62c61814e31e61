"""Ablation: each block is made the identity, and collapse, accuracy and fairness are measured again.

Claim (SPRINT, KDD 2026, Figure 6): without attention blocks, or without feed-forward blocks, the
score matrix collapses less. A sublayer's output becomes zero, so that its residual passes the input
on. Rows without a layer leave out all attentions, or all feed-forwards, at once; the row `whole` is
the model as it is. In the row `mixing` (ours) every event attends to itself alone, A = I, and the
projections go on: what is lost is what events learn from each other.

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
from fullrank.models.sequential.model.reading import attention_of, blocks_of, decoder_blocks_of
from fullrank.ops.singular_values import collapse_share

USERS = 2048
"""Most users that are measured for each part: the first of the sample, whose order is random."""


class Ablation(Diagnostic):
    """Collapse share, likeness to popularity, accuracy and fairness without each part."""

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
        rows: list[Row] = []
        for number, part in enumerate([Part("whole", None, ()), *parts]):
            with self_attending(part.modules) if part.label == "mixing" else silenced(part.modules):
                figures = self._figures(self.context.sample.first(USERS))
            rows += self.rows_of(figures, layer=part.layer, label=part.label)
            self.progress(number + 1, len(parts) + 1)
        return rows

    def _figures(self, sample: Sample) -> dict[str, Any]:
        """Collapse share, likeness to popularity and metrics of the model as it is now."""
        model, split, spec = self.context.model, self.context.split, self.context.evaluation
        scores = ScoreMatrix(sample)
        for batch in activations(model, sample):
            scores.observe(batch)
        spectrum = scores.spectrum()
        store = SampleStore(self.context.store, sample.users)
        if spectrum is None:
            return dict(evaluate(model, store, split, spec).metrics)
        # `scores` has every user's vector: ranking these runs no layer a second time
        exact = spec.model_copy(update={"decoding": Decoding()})
        measured = evaluate(RecordedScores(model, scores, sample.users), store, split, exact)
        figures = {
            "collapse_share": collapse_share(spectrum.sigma),
            "popularity_spearman": popularity_likeness(spectrum, sample.popularity).spearman,
        }
        return figures | measured.metrics

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        """A table of every figure; charts of collapse, fairness and accuracy."""
        values = result.diagnosis.values(cls.name, None, "label", "layer", "name")
        words = {name: name.replace("_", " ") for *_, name in values}
        parts = dict.fromkeys((label, layer) for label, layer, _ in values)
        rows = [(_word(*part), *(values.get((*part, name)) for name in words)) for part in parts]
        charts = [
            bars("part", words[name], by="", across=True, level={"": values["whole", None, name]})
            for name in ("collapse_share", FAIRNESS, result.accuracy)
            if ("whole", None, name) in values
        ]
        return claim.figure(("part", *words.values()), rows, *charts)


@dataclass(frozen=True)
class Part:
    """Modules that are made the identity together."""

    label: str
    layer: int | None
    modules: tuple[nn.Module, ...]


def parts_of(model: Model) -> list[Part]:
    """The parts of a model: single sublayers, all of a kind, and those of a decoder."""
    blocks, parts = blocks_of(model), []
    attentions = [attention_of(block) for block in blocks]
    feeds = [getattr(block, "feed_forward", None) for block in blocks]
    for label, modules in (("attention", attentions), ("feed_forward", feeds)):
        present = {layer: module for layer, module in enumerate(modules) if isinstance(module, nn.Module)}
        parts += [Part(label, layer, (module,)) for layer, module in present.items()]
        if len(present) > 1:
            parts.append(Part(label, None, tuple(present.values())))
    for label, name in DECODER_PARTS.items():
        of_blocks = (getattr(block, name, None) for block in decoder_blocks_of(model))
        together = tuple(module for module in of_blocks if isinstance(module, nn.Module))
        if together:
            parts.append(Part(label, None, together))
    mixers = tuple(module for module in attentions if isinstance(module, Attention))
    if mixers and all(mixer.rows_sum_to_one for mixer in mixers):  # otherwise their weights cannot be the identity
        parts.append(Part("mixing", None, mixers))
    return parts


DECODER_PARTS = {
    "decoder_attention": "attention",
    "cross_attention": "cross",
    "decoder_feed_forward": "feed_forward",
}
"""Label of a part of the decoder -> attribute of its blocks."""


@contextmanager
def silenced(modules: tuple[nn.Module, ...]) -> Iterator[None]:
    """Make the outputs of these modules zero inside the block."""

    def zero(module: nn.Module, arguments: tuple[Any, ...], out: Tensor) -> Tensor:
        return torch.zeros_like(out)

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(zero).remove)
            if isinstance(module, Attention):  # reasoning tokens and a decoder's queries do not pass forward()
                for name in ("attend_latent", "across"):
                    vars(module)[name] = _zeros_like(getattr(module, name))
                    stack.callback(delattr, module, name)
        yield


@contextmanager
def self_attending(modules: tuple[nn.Module, ...]) -> Iterator[None]:
    """Make every event (and latent token) attend to itself alone, in this context."""
    with ExitStack() as stack:
        for module in modules:
            assert isinstance(module, Attention)
            for name, function in (("forward", _attend_to_self), ("attend_latent", _latent_to_self)):
                vars(module)[name] = partial(function, module)
                stack.callback(delattr, module, name)
        yield


def _attend_to_self(module: Attention, x: Tensor, batch: Batch) -> Tensor:
    rows, length = x.shape[:2]
    identity = torch.eye(length, dtype=x.dtype, device=x.device).expand(rows, module.heads, -1, -1)
    if batch.captures is not None and batch.captures.memory is not None:
        batch.captures.memory[module] = module.project(x, batch.positions(from_end=False))[1:]
    return module.apply_weights(identity, x)


def _latent_to_self(module: Attention, q: Tensor, prefix: Any, latent: Any, batch: Batch) -> Tensor:
    return module.close(latent[1][:, :, :, -1], q)


def _zeros_like(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *arguments: torch.zeros_like(function(*arguments))


class RecordedScores(Model):
    """A model that answers with user vectors that were recorded before."""

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
