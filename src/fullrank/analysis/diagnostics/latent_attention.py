"""Where a reasoner attends: the attention of each stream and step over the history (PLR, Sec. 6.5.4 and Figure 5).

Claim: streams attend to different parts, one to recent events, another to old ones. A latent token's query meets the
keys of the history and of its stream's own tokens; its softmax weights are made here explicitly, mean over heads, and
added up by how far back an event lies. `even` is what equal weights over the history would give.

The slow path: queries are taken down as the model projects them, keys are read from its cache, on a small sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fullrank.analysis.diagnostics import Claim, Figure, Row, RunResult, lines, row
from fullrank.analysis.diagnostics.diversity import ReasoningFigure
from fullrank.data.batch import Batch
from fullrank.inference.batches import batches
from fullrank.models.sequential.attention.softmax import SoftmaxAttention
from fullrank.models.sequential.reading import attention_of, blocks_of
from fullrank.models.sequential.reasoning import StepwiseReasoner

USERS = 512
"""Most users looked at: the first of the sample."""
EDGES = (1, 3, 6, 11, 21)
"""Places from the end at which the next band begins."""
LABELS = ("last", "2-3", "4-6", "7-11", "12-21", "older")
OWN = "own steps"
PLACES = 20
"""Places from the end that are shown one by one."""


@dataclass(frozen=True)
class LatentWeights:
    """One layer's attention weights of one reasoning step."""

    layer: int
    step: int
    """From 1."""
    weights: Float[Tensor, "B H M n"]
    """Over the history's T keys, then the stream's own tokens up to this one."""


class LatentAttention(ReasoningFigure):
    """Mass by recency band and by place from the end, for each layer, stream and step; nothing without a reasoner."""

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
        found = [attention_of(block) for block in blocks_of(model)]
        attentions = [one for one in found if isinstance(one, SoftmaxAttention)]
        if not attentions or len(attentions) < len(found):
            return self.left_out("its attention has no softmax weights to show for latent tokens")
        sums = _Sums()
        for _, batch in batches(model, self.context.sample.first(USERS).histories):
            with torch.no_grad():
                for one in latent_weights(model, attentions, batch):
                    sums.add(one, batch)
        return sums.rows()

    @classmethod
    def draw_of(cls, claim: Claim, result: RunResult) -> Figure:
        """Attention of every stream and step over the history, by how far back events lie; a chart a layer."""
        even = result.diagnosis.values(cls.name, "even", "label")
        mass = result.diagnosis.values(cls.name, "mass", "layer", "head", "index", "label")
        places, labels = list(dict.fromkeys(key[:3] for key in mass)), (*even, OWN)
        rows = [("even attention", *even.values(), None)]
        rows += [
            (f"layer {layer + 1}, stream {stream + 1}, step {step}",
             *(mass[layer, stream, step, label] for label in labels))
            for layer, stream, step in places
        ]  # fmt: skip
        alike = [("even attention", "step 1", label, share) for label, share in even.items()]
        charts = []
        for layer in dict.fromkeys(layer for layer, *_ in places):
            place, attention = f"place from the end of the history (layer {layer + 1})", "attention"
            drawn = [
                (f"stream {stream + 1}", f"step {step}", label, share)
                for (other, stream, step, label), share in mass.items() if other == layer
            ]  # fmt: skip
            chart = lines(
                place, attention, by="stream", dash="step", beside="even attention", percent=True, rows=drawn + alike
            )
            charts.append(chart)
        return claim.figure(("", *labels), tuple(rows), *charts)


def latent_weights(model: Any, attentions: Sequence[SoftmaxAttention], batch: Batch) -> Iterator[LatentWeights]:
    """The weights of every layer at every step of one batch."""
    reasoner = model.reasoner
    x, inputs = model.task.inference_inputs(model.items, batch)
    state = reasoner.begin(x, inputs)
    for step in range(1, reasoner.steps + 1):
        with _projected(attentions) as queries:
            state = reasoner.advance(state)
        for layer, (q, kept) in enumerate(zip(queries, state.cache.layers, strict=True)):
            yield LatentWeights(layer, step, weights(q, kept[0], kept[2], inputs).detach())


def weights(
    q: Float[Tensor, "B H M e"], keys: Float[Tensor, "B H T e"], own: Float[Tensor, "B H M S e"], batch: Batch
) -> Float[Tensor, "B H M n"]:
    """Softmax weights of one token in each stream over the history and the stream's own tokens."""
    history = (q @ keys.mT).masked_fill(~batch.valid[:, None, None], float("-inf"))
    scores = torch.cat([history, (q[:, :, :, None] * own).sum(-1)], -1)
    return (scores / q.shape[-1] ** 0.5).softmax(-1)


@contextmanager
def _projected(attentions: Sequence[SoftmaxAttention]) -> Iterator[list[Tensor]]:
    """While this lasts, the queries that the attentions project are taken down, in order."""
    queries: list[Tensor] = []

    def recording(project: Any) -> Any:
        def record(*given: Any) -> Any:
            found = project(*given)
            queries.append(found[0])
            return found

        return record

    for module in attentions:
        module.project = recording(module.project)  # type: ignore[method-assign]
    try:
        yield queries
    finally:
        for module in attentions:
            del module.project


class _Sums:
    """Masses by (layer, stream, step), added up over users."""

    def __init__(self) -> None:
        self.bands: dict[tuple[int, int, int], Tensor] = {}
        self.places: dict[tuple[int, int, int], Tensor] = {}
        self.even = torch.zeros(len(LABELS), dtype=torch.float64)
        self.reached = torch.zeros(PLACES, dtype=torch.float64)
        """Users whose history goes so far back."""
        self.users = 0

    def add(self, one: LatentWeights, batch: Batch) -> None:
        back = batch.positions(from_end=True)
        band = torch.bucketize(back, torch.tensor(EDGES, device=back.device), right=True)
        inside = torch.nn.functional.one_hot(band, len(LABELS)).double() * batch.valid[..., None]
        at = torch.nn.functional.one_hot(back.clamp_max(PLACES), PLACES + 1)[..., :PLACES].double()
        at = at * batch.valid[..., None]
        if one.layer == 0 and one.step == 1:
            self.users += len(batch.lengths)
            self.even += (inside.sum(1) / batch.lengths.clamp_min(1)[:, None]).sum(0).cpu()
            self.reached += at.sum((0, 1)).cpu()
        width = batch.items.shape[1]
        mean = one.weights.mean(1).double()
        for stream in range(mean.shape[1]):
            history = mean[:, stream, :width, None]
            own = mean[:, stream, width:].sum()[None]
            key = one.layer, stream, one.step
            mass = torch.cat([(history * inside).sum((0, 1)), own]).cpu()
            self.bands[key] = self.bands.get(key, torch.zeros_like(mass)) + mass
            seen = (history * at).sum((0, 1)).cpu()
            self.places[key] = self.places.get(key, torch.zeros_like(seen)) + seen

    def rows(self) -> list[Row]:
        name, found = "latent_attention", []
        there = self.even > 0
        for band, label in enumerate(LABELS):
            if there[band]:
                found.append(row(name, "even", float(self.even[band] / self.users), label=label))
        for (layer, stream, step), mass in sorted(self.bands.items()):
            where: dict[str, Any] = {"layer": layer, "head": stream, "index": step}
            shares = mass / self.users
            for band, label in enumerate((*LABELS, OWN)):
                if label == OWN or there[band]:
                    found.append(row(name, "mass", float(shares[band]), **where, label=label))
            for place, users in enumerate(self.reached.tolist()):
                if users:
                    share = float(self.places[layer, stream, step][place]) / users
                    found.append(row(name, "place", share, **where, label=str(place)))
        return found
