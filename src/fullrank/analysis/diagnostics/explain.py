"""One user: how much attention each of the last events gets, and which of them matter (FAIR, Figure 1 and Table 4).

For any model with attention weights, so that two can be read side by side. Of each layer, the mean over its heads of
the share that the last place gives to each event (`focus.last_shares`, signed). Without a user, `example_user` picks
one in whose history relevant events and noise are both plenty; that choice depends on the data alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int

from fullrank.analysis.activations import Sample, activations, sample_users
from fullrank.analysis.diagnosis import Row, not_measured, row, rows_of
from fullrank.analysis.diagnostics import Diagnostic
from fullrank.analysis.diagnostics.focus import recent_events
from fullrank.analysis.relevance import LAST, Relevance
from fullrank.analysis.report import Figure, Missing, Shown
from fullrank.analysis.report.draw import GREY, legend, look, panel
from fullrank.analysis.report.results import RunResult, Runs, item_title, legend_label, measured, readable
from fullrank.core.errors import UserError
from fullrank.data.events.store import Store
from fullrank.models.contracts import Model
from fullrank.models.sequential.reading import last_shares, tokens_per_event, weights_of

WIDE = 30
"""Characters of a title in the picture; the table has all of it."""
TRIED = 256
"""Users of the sample among whom `example_user` chooses."""


@dataclass(frozen=True)
class Explanation:
    """What one model's attention did with one history."""

    user: int
    """Row of the store's users."""
    target: int
    """Item id of what was chosen next."""
    items: Int[np.ndarray, "n"]
    """Item ids of the last events, oldest first."""
    relevant: Bool[np.ndarray, "n"]
    """Which of them are relevant to the target; the others are noise."""
    shares: Float[np.ndarray, "L n"]
    """Of each layer, mean over heads; a negative share is subtracted."""
    name: str | None = None
    """The user's external id, where it was looked up."""


def explain_user(
    model: Model, store: Store, user: int, *, split: str = "test", relevance: Relevance | None = None
) -> Explanation:
    """One model's attention in one history.

    Raises `UserError` where the user has no target in the split, or the model shows no weights.
    """
    whole = store.eval_set(split)
    one = whole.take(whole.users == user)
    if not len(one):
        raise UserError(
            f"user number {user} of {store.path} has no history with a target in the split {split!r}",
            code="no-target",
        )
    target, tokens = int(one.next_items[0]), tokens_per_event(model)
    for batch in activations(model, Sample(one, store.catalog.popularity)):
        if not batch.attentions:
            break
        window = recent_events(model, batch.attentions[0].batch)
        items = batch.attentions[0].batch.items[window].cpu().numpy().astype(np.int64)[::tokens]
        layers = []
        with torch.no_grad():
            for given in batch.attentions:
                ((_, part, weights),) = weights_of(given)
                shown = window[:, : weights.shape[-1]]
                shares = last_shares(weights, part, shown).mean(1)[shown].cpu().numpy()
                layers.append(shares.reshape(-1, tokens).sum(1))
        marks = (relevance or Relevance(store))(items, np.full(len(items), target))
        return Explanation(user, target, items, marks, np.stack(layers).astype(np.float64))
    raise UserError(
        "the model has no attention that shows its weights; give one with a transformer encoder",
        code="no-attention-weights",
    )


def explain(
    model: Model, store: Store, user: Any = None, *, split: str = "test", vectors: np.ndarray | None = None
) -> Explanation:
    """The explanation of a user by external id, or of `example_user`. Raises `UserError` for a user not there."""
    relevance = Relevance(store, vectors)
    if user is None:
        place = example_user(store, sample_users(store, split, TRIED), relevance)
    else:
        (found,) = np.nonzero((store.user_ids.cast(pl.String) == str(user)).to_numpy())
        if not len(found):
            raise UserError(
                f"{store.path} has no user {str(user)!r}; give an id as it stands in the events", code="unknown-user"
            )
        place = int(found[0])
    return replace(explain_user(model, store, place, split=split, relevance=relevance), name=str(store.user_ids[place]))


def example_user(store: Store, some: Sample, relevance: Relevance) -> int:
    """Row of the user, among the first of the sample, whose last events have most of both kinds."""
    tried = some.first(TRIED)

    def of_fewer_kind(case: tuple[Any, Any, Any]) -> int:
        _, items, target = case
        marks = relevance(items, np.full(len(items), target))
        return int(min(marks.sum(), (~marks).sum()))

    cases = zip(tried.users, tried.histories.items.last(LAST), tried.next_items, strict=True)
    return int(max(cases, key=of_fewer_kind)[0])


class ExampleUser(Diagnostic):
    """The explanation of the example user. `index` counts events from the end, 1 the last."""

    name = "case"
    internal = True
    runs_model = True

    def rows(self) -> list[Row]:
        name, context = self.name, self.context
        store, relevance = context.store, context.relevance
        try:
            user = example_user(store, context.sample, relevance)
            found = explain_user(context.model, store, user, split=context.split, relevance=relevance)
        except UserError as error:
            return [not_measured(name, str(error).partition(";")[0].replace("the model has", "it has"))]
        rows = rows_of(name, {"user": found.user, "target": found.target})
        for place, (item, mark) in enumerate(zip(found.items[::-1].tolist(), found.relevant[::-1], strict=True), 1):
            rows.append(row(name, "item", item, index=place, label="relevant" if mark else "noise"))
        for layer, shares in enumerate(found.shares):
            rows += [row(name, "share", float(s), layer=layer, index=n) for n, s in enumerate(shares[::-1], 1)]
        return rows

    @classmethod
    def figure(cls, results: Runs) -> Shown:
        """One user's last events with their titles, and the attention that each run gives them."""
        name, title = "case", "Attention of the runs in one history"
        there, absent = measured(results, name)
        if not there:
            return Missing(name, title, " ".join(absent))
        history = {one.key: _history(one) for one in there}
        longest = max(there, key=lambda one: len(history[one.key]))
        events, about = history[longest.key], _about(longest)
        alike = [one for one in there if _about(one) == about and events[: len(history[one.key])] == history[one.key]]
        absent += tuple(
            f"Run {one.key} ({one.name}) is not shown: its case is of other data." for one in there if one not in alike
        )
        if any(not 0 <= item < longest.run.catalog.size for item in (*(item for item, _ in events), about[1])):
            return Missing(name, title, f"{longest.name}: its diagnosis names items that are not in its catalogue.")
        titles = [item_title(longest, item) for item, _ in events]
        shares = {one.key: _shares(one) for one in alike}

        def paint(axes: Any) -> None:
            thick = 0.8 / len(alike)
            for place, one in enumerate(alike):
                values = [100 * float(np.mean(share)) for share in shares[one.key]]
                at = np.arange(len(values)) + (place - (len(alike) - 1) / 2) * thick
                axes.barh(at, values, thick, color=look(results.index(one))["color"], label=legend_label(one, results))
            marks = ["✓" if label == "relevant" else "" for _, label in events]
            axes.set_yticks(range(len(titles)), [f"{_short(t)} {m}" for t, m in zip(titles, marks, strict=True)])
            for text, mark in zip(axes.get_yticklabels(), marks, strict=True):
                text.set_color("black" if mark else GREY)
            axes.axvline(0, color=GREY, lw=1)
            axes.invert_yaxis()
            axes.grid(axis="y", visible=False)
            legend(axes)

        chosen = item_title(longest, about[1])
        caption = (
            f"One person's last events, the most recent first, before they chose '{chosen}'. Those with a tick are "
            "related to it: people who had the one had the other more often than chance. Bars are the share of "
            "attention that each run gives to an event, mean over its layers and heads; a bar to the left of 0 is "
            "subtracted."
        )
        marked = "; ".join(f"{one.key} {_relevant(shares[one.key], events):.2f}" for one in alike)
        alt = (
            f"Attention to each of {len(events)} events of one person. Sum of the sizes over related events: {marked}."
        )
        height = 1.3 + 0.14 * len(events) * (1 + len(alike))
        drawn = panel(name, paint, alt, x="percent of attention", y="", height=height)
        layers = [(one, layer) for one in alike for layer in range(len(shares[one.key][0]))]
        headers = ("event", "item", "title", "related", *(f"{one.key} layer {layer + 1}" for one, layer in layers))
        rows = tuple(
            (n + 1, readable(str(longest.run.catalog.ids[item])), titles[n], "yes" if label == "relevant" else "no",
             *(shares[one.key][n][layer] if n < len(shares[one.key]) else None for one, layer in layers))
            for n, (item, label) in enumerate(events)
        )  # fmt: skip
        return Figure(name, title, caption, (drawn,), headers, rows, absent)


def _about(one: RunResult) -> tuple[int, int, str]:
    """User, target and data of a case."""
    user, target = (int(one.diagnosis.value("case", name) or 0) for name in ("user", "target"))
    return user, target, str(one.diagnosis.about().get("fingerprint"))


def _history(one: RunResult) -> list[tuple[int, str]]:
    """(item, relevant or noise) of the events, the last first."""
    items = one.diagnosis.values("case", "item", "index", "label")
    return [(int(item), label) for (_, label), item in sorted(items.items())]


def _shares(one: RunResult) -> list[list[float]]:
    """By event (the last first), one for each layer."""
    events: dict[int, list[float]] = {}
    for (event, _), share in sorted(one.diagnosis.values("case", "share", "index", "layer").items()):
        events.setdefault(event, []).append(share)
    return list(events.values())


def _relevant(shares: list[list[float]], events: list[tuple[int, str]]) -> float:
    """Sizes of the mean shares of the relevant events, added up."""
    means = [abs(float(np.mean(share))) for share in shares]
    return sum(mean for mean, (_, label) in zip(means, events, strict=False) if label == "relevant")


def _short(text: str) -> str:
    return text if len(text) <= WIDE else text[: WIDE - 3] + "..."
