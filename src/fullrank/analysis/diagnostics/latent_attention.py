"""Latent attention: where each stream and step of a reasoner attends in the history (PLR, Sec. 6.5.4, Figure 5).

Claim: streams attend to different parts, one to recent events, another to old ones. A latent
token's query meets the keys of the history and of its stream's own tokens; its softmax weights are
computed here explicitly, mean over heads, and added up by how far back an event lies. `even` is the
mass under equal weights over the history.

This is slow: queries are recorded as the model projects them, keys are read from its
cache, on a small sample.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fullrank.analysis.diagnostics import Claim, Figure, Row, RunResult, lines, row
from fullrank.analysis.diagnostics.diversity import ReasoningFigure
from fullrank.data.batch import Batch
from fullrank.inference.batches import batches
from fullrank.models.sequential.attention.softmax import SoftmaxAttention
from fullrank.models.sequential.model.reading import attention_of, blocks_of
from fullrank.models.sequential.reasoning import StepwiseReasoner

USERS = 512
"""Most users that are measured: the first of the sample."""
EDGES = (1, 3, 6, 11, 21)
"""Positions from the end at which the next band begins."""
LABELS = ("last", "2-3", "4-6", "7-11", "12-21", "older")
OWN = "own steps"
PLACES = 20
"""Positions from the end that have a row each."""


@dataclass(frozen=True)
class LatentWeights:
    """Attention weights of one reasoning step in one layer."""

    layer: int
    step: int
    """Number of the step, from 1."""
    weights: Float[Tensor, "B H M n"]
    """Weights of M streams over the history's T keys, then over the stream's tokens."""


class LatentAttention(ReasoningFigure):
    """Attention by recency band and position, for each layer, stream and step."""

    name = "latent_attention"
    runs_model = True
    claim_of = Claim(
        "Attention of the reasoning steps of {}",
        "At each step a stream reads the history again. Lines say how much it reads of the most recent "
        "event, of the two before it, and so on back to the oldest; colours are streams, dashes are steps, the "
        "grey line is reading everything alike. Streams with different lines look at different parts of the "
        f"past. '{OWN}' is what a stream reads of its own steps.",
        name="looks",
    )

    def rows(self) -> list[Row]:
        model = self.context.model
        if model.reasoner is None:
            return []
        if not isinstance(model.reasoner, StepwiseReasoner):
            return self.left_out("its steps refine the states of all events and put no token behind them")
        mixers = [attention_of(block) for block in blocks_of(model)]
        attentions = [attention for attention in mixers if isinstance(attention, SoftmaxAttention)]
        if not attentions or len(attentions) < len(mixers):
            return self.left_out("its attention has no softmax weights to show for latent tokens")
        sums = _Sums()
        for _, batch in batches(model, self.context.sample.first(USERS).histories):
            with torch.no_grad():
                for step in latent_weights(model, attentions, batch):
                    sums.add(step, batch)
        return list(sums.rows())

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        """Attention over the history, by how far back events lie; a chart a layer."""
        even = result.diagnosis.values(cls.name, "even", "label")
        mass = result.diagnosis.values(cls.name, "mass", "layer", "head", "index", "label")
        labels = (*even, OWN)
        rows = [("even attention", *even.values(), None)]
        drawn: dict[int, list[Any]] = {}
        for layer, stream, step in dict.fromkeys(key[:3] for key in mass):
            shares = [mass[layer, stream, step, label] for label in labels]
            rows.append((f"layer {layer + 1}, stream {stream + 1}, step {step}", *shares))
            of_layer = drawn.setdefault(layer, [])
            of_layer += [
                (f"stream {stream + 1}", f"step {step}", *measured) for measured in zip(labels, shares, strict=True)
            ]
        even_rows = [("even attention", "step 1", label, share) for label, share in even.items()]
        charts = [
            lines(
                f"place from the end of the history (layer {layer + 1})",
                "attention",
                by="stream",
                dash="step",
                beside="even attention",
                percent=True,
                rows=of_layer + even_rows,
            )
            for layer, of_layer in drawn.items()
        ]
        return claim.figure(("", *labels), rows, *charts)


def latent_weights(model: Any, attentions: Sequence[SoftmaxAttention], batch: Batch) -> Iterator[LatentWeights]:
    """The weights of every layer at every step of one batch."""
    reasoner = model.reasoner
    x, inputs = model.task.inference_inputs(model.items, batch)
    state = reasoner.begin(x, inputs)
    for step in range(1, reasoner.steps + 1):
        with _projected(attentions) as queries:
            state = reasoner.advance(state)
        for layer, (q, cache) in enumerate(zip(queries, state.cache.layers, strict=True)):
            yield LatentWeights(layer, step, weights(q, cache[0], cache[2], inputs).detach())


def weights(
    q: Float[Tensor, "B H M e"], keys: Float[Tensor, "B H T e"], latent: Float[Tensor, "B H M S e"], batch: Batch
) -> Float[Tensor, "B H M n"]:
    """Softmax weights of a token of each stream over the history and the stream's tokens."""
    history = (q @ keys.mT).masked_fill(~batch.valid[:, None, None], float("-inf"))
    scores = torch.cat([history, (q[:, :, :, None] * latent).sum(-1)], -1)
    return (scores / q.shape[-1] ** 0.5).softmax(-1)


@contextmanager
def _projected(attentions: Sequence[SoftmaxAttention]) -> Iterator[list[Tensor]]:
    """Record the queries that the attentions project, in order, while the context lasts."""
    queries: list[Tensor] = []

    def record(project: Callable[..., Any], *arguments: Any) -> Any:
        projected = project(*arguments)
        queries.append(projected[0])
        return projected

    for module in attentions:
        vars(module)["project"] = partial(record, module.project)
    try:
        yield queries
    finally:
        for module in attentions:
            del module.project


class _Sums:
    """Sums over users of the attention of each (layer, stream, step)."""

    def __init__(self) -> None:
        self.bands: defaultdict[tuple[int, int, int], Any] = defaultdict(float)
        """Attention to each band of `LABELS`, then to the stream's tokens."""
        self.positions: defaultdict[tuple[int, int, int], Any] = defaultdict(float)
        """Attention to each position from the end."""
        self.even = torch.zeros(len(LABELS), dtype=torch.float64)
        """Attention to each band under equal weights."""
        self.reached = torch.zeros(PLACES, dtype=torch.float64)
        """Number of users whose history has each position from the end."""
        self.users = 0

    def add(self, step: LatentWeights, batch: Batch) -> None:
        valid, back = batch.valid[..., None], batch.positions(from_end=True)
        band = torch.bucketize(back, torch.tensor(EDGES, device=back.device), right=True)
        in_band = F.one_hot(band, len(LABELS)).double() * valid  # [B, T, bands]
        at_position = F.one_hot(back.clamp_max(PLACES), PLACES + 1)[..., :PLACES].double() * valid
        if step.layer == 0 and step.step == 1:
            self.users += len(batch.lengths)
            self.even += (in_band.sum(1) / batch.lengths.clamp_min(1)[:, None]).sum(0).cpu()
            self.reached += at_position.sum((0, 1)).cpu()
        width = batch.items.shape[1]
        mean = step.weights.mean(1).double()
        for stream in range(mean.shape[1]):
            key = step.layer, stream, step.step
            history = mean[:, stream, :width, None]
            latent = mean[:, stream, width:].sum()[None]
            self.bands[key] += torch.cat([(history * in_band).sum((0, 1)), latent]).cpu()
            self.positions[key] += (history * at_position).sum((0, 1)).cpu()

    def rows(self) -> Iterator[Row]:
        name = LatentAttention.name
        bands = [(band, label) for band, label in enumerate(LABELS) if self.even[band] > 0]
        for band, label in bands:
            yield row(name, "even", self.even[band] / self.users, label=label)
        for key, mass in sorted(self.bands.items()):
            layer, stream, step = key
            measured = partial(row, name, layer=layer, head=stream, index=step)
            for band, label in [*bands, (len(LABELS), OWN)]:
                yield measured("mass", mass[band] / self.users, label=label)
            for position, users in enumerate(self.reached.tolist()):
                if users:
                    yield measured("place", self.positions[key][position] / users, label=str(position))
