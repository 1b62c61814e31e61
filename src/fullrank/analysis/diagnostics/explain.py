"""Explanation of one user: how much attention each of the last events gets, and which of them are relevant.

FAIR, Figure 1 and Table 4, for any model with attention weights, so that two can be read side by
side: for each layer, the mean over its heads of the share that the last position gives to each
event (`models.sequential.reading.last_shares`, signed). Without a user, `example_user` picks one in
whose history relevant events and noise are both plenty; that choice depends on the data alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int

from fullrank.analysis.activations import Sample, activations, sample_users
from fullrank.analysis.diagnostics import Claim, Diagnostic, Figure, Missing, Row, RunResult, Runs, bars, readable
from fullrank.analysis.diagnostics.focus import recent_events
from fullrank.analysis.relevance import LAST, Relevance
from fullrank.analysis.report.results import item_title
from fullrank.core.errors import UserError
from fullrank.data.events.store import Store
from fullrank.models import Model
from fullrank.models.sequential.model.reading import last_shares, tokens_per_event, weights_of

WIDE = 30
"""Characters of a title in the picture; the table has the whole title."""
TRIED = 256
"""Users of the sample among whom `example_user` chooses."""


@dataclass(frozen=True)
class Explanation:
    """Attention of one model in one history."""

    user: int
    """Row of the store's users."""
    target: int
    """Id of the item chosen next."""
    items: Int[np.ndarray, "n"]
    """Item ids of the last events, oldest first."""
    relevant: Bool[np.ndarray, "n"]
    """Whether each event is relevant to the target; the others are noise."""
    shares: Float[np.ndarray, "L n"]
    """Share of attention in each layer, mean over heads; a negative share is subtracted."""
    name: str | None = None
    """The user's external id, where it was looked up."""


def explain_user(
    model: Model, store: Store, user: int, *, split: str = "test", relevance: Relevance | None = None
) -> Explanation:
    """Explain the attention of a model in the history of a user (a row of the store's users).

    Raises `UserError` where the user has no target in the split, or the model shows no weights.
    """
    eval_set = store.eval_set(split)
    evaluated = eval_set.take(eval_set.users == user)
    if not len(evaluated):
        raise UserError(
            f"user number {user} of {store.path} has no history with a target in the split {split!r}",
            code="no-target",
        )
    target, tokens = int(evaluated.next_items[0]), tokens_per_event(model)
    (batch,) = activations(model, Sample(evaluated, store.catalog.popularity))
    if not batch.attentions:
        raise UserError(
            "the model has no attention that shows its weights; give one with a transformer encoder",
            code="no-attention-weights",
        )
    inputs = batch.attentions[0].batch
    window = recent_events(model, inputs)
    items = inputs.items[window].cpu().numpy().astype(np.int64)[::tokens]
    layers = []
    with torch.no_grad():
        for attention in batch.attentions:
            ((_, part, weights),) = weights_of(attention)
            shown = window[:, : weights.shape[-1]]
            shares = last_shares(weights, part, shown).mean(1)[shown].cpu().numpy()
            layers.append(shares.reshape(-1, tokens).sum(1))  # of an event: all of its tokens
    marks = (relevance or Relevance(store))(items, np.full(len(items), target))
    return Explanation(user, target, items, marks, np.stack(layers).astype(np.float64))


def explain(
    model: Model, store: Store, user: Any = None, *, split: str = "test", vectors: np.ndarray | None = None
) -> Explanation:
    """Explain a user by external id, or `example_user`. Raises `UserError` for an unknown user."""
    relevance = Relevance(store, vectors)
    if user is None:
        row = example_user(store, sample_users(store, split, TRIED), relevance)
    else:
        (matches,) = np.nonzero((store.user_ids.cast(pl.String) == str(user)).to_numpy())
        if not len(matches):
            raise UserError(
                f"{store.path} has no user {str(user)!r}; give an id as it stands in the events", code="unknown-user"
            )
        row = int(matches[0])
    return replace(explain_user(model, store, row, split=split, relevance=relevance), name=str(store.user_ids[row]))


def example_user(store: Store, sample: Sample, relevance: Relevance) -> int:
    """Row of the user with the most events of the rarer kind (relevant, noise)."""
    tried = sample.first(TRIED)
    rarer = []
    for items, target in zip(tried.histories.items.last(LAST), tried.next_items, strict=True):
        marks = relevance(items, np.full(len(items), target))
        rarer.append(min(marks.sum(), (~marks).sum()))
    return int(tried.users[np.argmax(rarer)])


class ExampleUser(Diagnostic):
    """Attention to the events of the example user; `index` counts from the end, from 1."""

    name = "case"
    internal = True
    claim = Claim(
        "Attention of the runs in one history",
        "One person's last events, the most recent first, and the share of attention that each run gives to an event, "
        "mean over its layers and heads; a bar to the left of 0 is subtracted. Events with a tick are related to what "
        "the person chose next: people who had the one had the other more often than chance.",
    )
    runs_model = True

    def rows(self) -> list[Row]:
        context = self.context
        store, relevance = context.store, context.relevance
        try:
            user = example_user(store, context.sample, relevance)
            explanation = explain_user(context.model, store, user, split=context.split, relevance=relevance)
        except UserError as error:
            return self.left_out(str(error).partition(";")[0].replace("the model has", "it has"))
        rows = self.rows_of({"user": explanation.user, "target": explanation.target})
        events = zip(explanation.items[::-1].tolist(), explanation.relevant[::-1], strict=True)
        for position, (item, mark) in enumerate(events, 1):
            rows.append(self.row("item", item, index=position, label="relevant" if mark else "noise"))
        for layer, shares in enumerate(explanation.shares):
            rows += [self.row("share", share, layer=layer, index=n) for n, share in enumerate(shares[::-1], 1)]
        return rows

    @classmethod
    def draw(cls, claim: Claim, there: Runs) -> Figure | Missing:
        longest = max(there, key=lambda run: len(_history(run)))
        events, about, catalog = _history(longest), _about(longest), longest.catalog
        if any(not 0 <= item < catalog.size for item in (*(item for item, _ in events), about[1])):
            return claim.missing(f"{longest.name}: its diagnosis names items that are not in its catalogue.")
        same_example = [run for run in there if _about(run) == about and events[: len(_history(run))] == _history(run)]
        absent = tuple(
            f"Run {run.key} ({run.name}) is not shown: its case is of other data."
            for run in there
            if run not in same_example
        )
        # of each run and layer: event -> share
        shares = {
            (run.key, layer): run.diagnosis.values(cls.name, "share", "index", layer=layer)
            for run in same_example
            for layer in dict.fromkeys(run.diagnosis.values(cls.name, "share", "layer"))
        }
        rows, drawn = [], []
        for event, (item, label) in enumerate(events, 1):
            title, tick = item_title(longest, item), "✓" if label == "relevant" else ""
            layers = (share.get(event) for share in shares.values())
            rows.append((event, readable(str(catalog.ids[item])), title, "yes" if tick else "no", *layers))
            short = f"{event}. {title if len(title) <= WIDE else f'{title[: WIDE - 3]}...'} {tick}"
            for run in same_example:
                of_run = [share[event] for (key, _), share in shares.items() if key == run.key and event in share]
                drawn += [(run.label, short, float(np.mean(of_run)))] if of_run else []
        chart = bars("event", "attention", percent=True, across=True, level={"": 0}, rows=drawn)
        headers = ("event", "item", "title", "related", *(f"{key} layer {layer + 1}" for key, layer in shares))
        figure = claim.figure(headers, rows, chart, more=f" Here that was '{item_title(longest, about[1])}'.")
        return replace(figure, absent=absent)


def _about(run: RunResult) -> tuple[int, int, str]:
    """The user and the target of a run's example, and the fingerprint of its data."""
    user, target = (int(run.diagnosis.value("case", name) or 0) for name in ("user", "target"))
    return user, target, str(run.diagnosis.about().get("fingerprint"))


def _history(run: RunResult) -> list[tuple[int, str]]:
    """(item, `relevant` or `noise`) of the events, the last first."""
    items = run.diagnosis.values("case", "item", "index", "label")
    return [(int(item), label) for (_, label), item in sorted(items.items())]
