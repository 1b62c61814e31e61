"""Worth of each feature that a model reads: the accuracy that lists lose where its values are shuffled.

The vectors of one feature at a time are shuffled, and all else stays; nothing is trained anew. So
two features that say the same may each lose little. A feature of the user is shuffled among the
users of a batch, who have histories of like length. A feature of events or of requests at the last
position of a history is shuffled among last positions, at an earlier position among earlier ones;
of a request, both where it is past and where it is present. Of features made of times (hour, gap,
age) the ids are shuffled, not the moments, of which the others are made.
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fullrank.analysis.diagnostics import Claim, Diagnostic, Figure, Row, Runs, bars
from fullrank.evaluation import evaluate
from fullrank.evaluation.compare import compare
from fullrank.models.sequential.model.reading import changed_feature

USERS = 2048
"""Most users that are measured for each feature: the first of the sample."""
METRICS = ("ndcg@10", "recall@10")
ENDS = ("lost", "low", "high")
"""Ends of the names of rows: the paired difference, and the ends of its interval over users."""


class FeatureWorth(Diagnostic):
    """Accuracy lost without each feature (`label` user.country), the most valuable first."""

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
        context = self.context
        features = [(role, name) for role, names in (context.model.reads_features or {}).items() for name in names]
        if not features:
            return []
        spec = context.evaluation.selection_alone().model_copy(update={"metrics": METRICS})
        measure = partial(evaluate, context.model, context.first(USERS), context.split, spec)
        whole, worth = measure(), {}
        for number, (role, name) in enumerate(features):
            with changed_feature(context.model, role, name, _Shuffle()):
                without = measure()
            worth[f"{role}.{name}"] = [compare(without, whole, metric) for metric in METRICS]
            self.progress(number + 1, len(features))
        rows = self.rows_of({metric: whole.metrics[metric] for metric in METRICS})
        for label, gaps in sorted(worth.items(), key=lambda entry: -entry[1][0].difference):
            for gap in gaps:
                for end, value in zip(ENDS, (gap.difference, *gap.interval), strict=True):
                    rows.append(self.row(f"{gap.metric}_{end}", value, label=label))
        return rows

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure:
        headers, rows = ["run", "feature"], []
        for metric in METRICS:
            headers += [f"{metric} lost", "from", "to"]
        for run in there:
            columns = [run.diagnosis.values(cls.name, f"{m}_{end}", "label") for m in METRICS for end in ENDS]
            rows += [(run.label, label, *(column.get(label) for column in columns)) for label in columns[0]]
        return claim.figure(headers, rows)


class _Shuffle:
    """Shuffle the vectors of a feature by one generator for all batches; of several vectors none stays where it was.

    Within a group the vectors in a random order move on by one: vector order[i] <- vector order[i -
    1].
    """

    def __init__(self) -> None:
        self.draw = torch.Generator().manual_seed(0)

    def __call__(
        self, vectors: Float[Tensor, "*n D"], missing: Float[Tensor, "D"], lengths: Int[Tensor, "B"]
    ) -> Float[Tensor, "*n D"]:
        position, last = torch.arange(vectors.shape[1] if vectors.ndim > 2 else 1), lengths.cpu()[:, None] - 1
        if vectors.ndim == 2:  # of users: a single position
            last = torch.zeros_like(last)
        flat = vectors.flatten(0, -2).clone()
        for group in (position == last, position < last):
            rows = group.flatten().nonzero()[:, 0]
            order = rows[torch.randperm(len(rows), generator=self.draw)].to(flat.device)
            flat[order] = flat[order.roll(1)]
        return flat.view_as(vectors)
