"""What each feature that a model reads is worth: what the lists lose where its values are those of others.

Of one feature at a time the vectors are shuffled, and all else stays; nothing is trained anew. So two features that say
the same may each lose little. A feature of the user is shuffled among the users of a batch, who have histories of like
length. Of events and requests, what stands at the last place of a history is shuffled among last places, what stands
before among the places before; of a request, both where it is past and where it is asked. Of what times tell (hour,
gap, age) the ids made of them are shuffled, not the moments, which the others are made of.
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.analysis.diagnostics import Claim, Diagnostic, Figure, Row, Runs, bars
from fullrank.evaluation import evaluate
from fullrank.evaluation.compare import compare
from fullrank.models.sequential.reading import changed_feature

USERS = 2048
"""Most users measured for each feature: the first of the sample."""
METRICS = ("ndcg@10", "recall@10")
ENDS = ("lost", "low", "high")
"""The paired difference, and the ends of its interval over users."""


class FeatureWorth(Diagnostic):
    """What the lists lose without each feature (`label` user.country), paired by user; the most valuable first."""

    name = "feature_worth"
    silent = True
    runs_model = True
    claim = Claim(
        "What each feature is worth",
        "One feature at a time has the values of other people, or of other events, and the lists of a sample of people "
        "are made again. A bar is the accuracy that is lost by it, paired by person; the line on it is the 95 % "
        "interval. A feature whose interval holds 0 tells the run nothing that can be seen here.",
        (bars("feature", "ndcg@10 lost", interval="y"),),
    )

    def rows(self) -> list[Row]:
        context, read = self.context, self.context.model.reads_features or {}
        spec = context.evaluation.selection_alone().model_copy(update={"metrics": METRICS})
        measured = partial(evaluate, context.model, context.first(USERS), context.split, spec)
        features = [(role, name) for role, names in read.items() for name in names]
        if not features:
            return []
        whole, worth = measured(), {}
        for place, (role, name) in enumerate(features):
            with changed_feature(context.model, role, name, _Shuffle()):
                less = measured()
            worth[f"{role}.{name}"] = [compare(less, whole, metric) for metric in METRICS]
            self.progress(place + 1, len(features))
        found = self.rows_of({metric: whole.metrics[metric] for metric in METRICS})
        for label, gaps in sorted(worth.items(), key=lambda one: -one[1][0].difference):
            for gap in gaps:
                values = zip(ENDS, (gap.difference, *gap.interval), strict=True)
                found += self.rows_of({f"{gap.metric}_{end}": value for end, value in values}, label=label)
        return found

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        headers, rows = ["run", "feature"], []
        for metric in METRICS:
            headers += [f"{metric} lost", "from", "to"]
        for one in there:
            columns = [one.diagnosis.values(cls.name, f"{m}_{end}", "label") for m in METRICS for end in ENDS]
            rows += [(one.label, label, *(column.get(label) for column in columns)) for label in columns[0]]
        return claim.figure(headers, rows)


class _Shuffle:
    """Vectors of a feature in another order, by one generator for all batches; none of several stays where it was."""

    def __init__(self) -> None:
        self.draw = torch.Generator().manual_seed(0)

    def __call__(
        self, vectors: Float[Tensor, "*n D"], missing: Float[Tensor, "D"], lengths: Int[Tensor, "B"]
    ) -> Float[Tensor, "*n D"]:
        at, last = torch.arange(vectors.shape[1] if vectors.ndim > 2 else 1), lengths.cpu()[:, None] - 1
        if vectors.ndim == 2:
            last = torch.zeros_like(last)
        flat = vectors.flatten(0, -2).clone()
        for group in (at == last, at < last):
            places = group.flatten().nonzero()[:, 0]
            order = places[torch.randperm(len(places), generator=self.draw)].to(flat.device)
            flat[order] = flat[order.roll(1)]
        return flat.view_as(vectors)
