"""Reading an evaluation: a table with a row for each metric and a column for each list length, and notes beside it.

The table has five rows at most, unless all are asked for. With one target for each user several
metrics are the same number, and are said once: hit is recall, average precision is reciprocal rank,
and precision is recall / k. Notes are sentences on what has to be known beside it: what was left
out, and what may have leaked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fullrank.data.histories import MANY_REPEATS
from fullrank.data.values import with_date
from fullrank.evaluation.spec import history_words

MAIN = ("ndcg", "recall", "mrr", "coverage", "fair0.8")
"""Rows where there is room for no more: how early and whether targets come, how wide and how unpopular lists are."""
SAME = {"hit": "recall", "map": "mrr"}
"""Metrics that are another one where each user has one target."""


@dataclass(frozen=True)
class MetricTable:
    headers: list[str]
    rows: list[list[Any]]
    note: str
    """Metrics without a row since another one says the same; empty where each has its own."""
    main: str
    """The metric that is read first, at the length nearest to 10."""

    def __str__(self) -> str:
        cells = [self.headers, *([row[0], *("" if v is None else f"{v:.4f}" for v in row[1:])] for row in self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.headers))]
        return "\n".join(
            "  ".join(
                [row[0].ljust(widths[0]), *(v.rjust(w) for v, w in zip(row[1:], widths[1:], strict=True))]
            ).rstrip()
            for row in cells
        )


def metric_table(
    metrics: Mapping[str, float], values: Mapping[str, np.ndarray], *, whole: bool = False, selection: str | None = None
) -> MetricTable:
    """The rows of an evaluation of lists: the metric `selection`, those of `MAIN` and what else is there, five at most.

    `values` are those of each user, by metric. `whole` shows every metric, also
    those that are the same.
    """
    ks = sorted({int(name.split("@")[1]) for name in metrics})
    bases = list(dict.fromkeys(name.split("@")[0] for name in metrics))
    same = _same(values)
    first = selection.split("@")[0] if selection is not None and selection in metrics else None
    shown = bases
    if not whole:
        different = [base for base in bases if base not in same or base == first]
        shown = sorted(
            sorted(different, key=lambda base: 0 if base == first else _place(base))[: len(MAIN)], key=bases.index
        )
    left = [f"{base} = {other}" for base, other in same.items()]
    note = "with one target a user " + ", ".join(left) if left else ""
    main = first or next((base for base in MAIN if base in bases), bases[0])
    nearest = min((k for k in ks if f"{main}@{k}" in metrics), key=lambda k: abs(k - 10))
    rows = [[base, *(metrics.get(f"{base}@{k}") for k in ks)] for base in shown]
    at = selection if selection is not None and first is not None else f"{main}@{nearest}"
    return MetricTable(["metric", *(f"@{k}" for k in ks)], rows, note, at)


def population(protocol: Mapping[str, Any]) -> str:
    """Whom an evaluation of lists was made on, in one line."""
    split = protocol["split"]
    source = f"of the {split} split" if "events" not in protocol else f"of {split}"
    return (
        f"{protocol['users']:,} users {source}, {protocol['items']:,} items, "
        f"candidates {protocol['candidates']}, {history_words(protocol)}{target_words(protocol)}"
        f"{feature_words(protocol)}"
    )


def target_words(protocol: Mapping[str, Any]) -> str:
    """Words on the types of events that are targets, and on users without any; empty without types."""
    if (types := protocol.get("target_types")) is None:
        return ""
    return f", targets of {types['feature']} {', '.join(types['values'])} ({types['users_without']:,} users have none)"


UNREAD = "unread"
"""The `request_time` of a protocol whose model reads nothing of a target's request; a missing key means the same."""


def feature_words(protocol: Mapping[str, Any]) -> str:
    """Words on the features that a model reads and the request that it answers; empty where it reads none."""
    if not (features := protocol.get("features")):
        return ""
    names = "; ".join(f"{', '.join(names)} ({role})" for role, names in features.items())
    return f", features {names}, the target's request {protocol['request_time']}"


def _place(base: str) -> int:
    return 1 + (MAIN.index(base) if base in MAIN else len(MAIN))


def _same(values: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Metrics that another row of the table gives too where each user has one target: name -> that
    row, as a note says it."""
    same: dict[str, str] = {}
    shares = [values[name] for name in values if name.startswith("recall@")]
    single = all(bool(np.isin(column, (0, 1)).all()) for column in shares) and any(column.any() for column in shares)
    if not single:  # with several targets recall lies between 0 and 1 for some user
        return {}
    for base, other in SAME.items():
        pairs = [(values[f"{base}@{k}"], values[f"{other}@{k}"]) for k in _lengths(base, other, values)]
        if pairs and all(np.array_equal(a, b) for a, b in pairs):
            same[base] = other
    ks = _lengths("precision", "recall", values)
    if ks and all(np.allclose(values[f"precision@{k}"] * k, values[f"recall@{k}"]) for k in ks):
        same["precision"] = "recall / k"
    return same


def _lengths(base: str, other: str, values: Mapping[str, Any]) -> list[int]:
    """List lengths at which both are there; none where one of them has a
    length that the other has not."""
    ours, theirs = ({int(n.split("@")[1]) for n in values if n.split("@")[0] == b} for b in (base, other))
    return sorted(ours) if ours == theirs else []


def protocol_notes(protocol: Mapping[str, Any]) -> Iterator[str]:
    """The notes that a protocol of retrieval calls for; none for a run on a plain split."""
    if (longest := max(protocol["ks"])) > protocol["items"]:
        yield f"a list ends with the catalogue, so k = {longest:,} is read from lists of {protocol['items']:,} items"
    unreachable, targets = protocol.get("unreachable", 0), protocol.get("targets", 0)  # older results have no targets
    if unreachable > MANY_REPEATS * targets > 0 and not protocol.get("lists", {}).get("seen_items"):
        yield (
            f"{unreachable / targets:.1%} of the targets ({unreachable:,} of {targets:,}) stand in their own user's "
            "history, which is excluded, so no list can hit them; --set seen=keep ranks them"
        )
    if "events" in protocol:
        yield from _of_events(protocol)
    if "lists" in protocol:
        yield from _of_lists(protocol)


def _of_events(protocol: Mapping[str, Any]) -> Iterator[str]:
    """Notes on an evaluation of later events."""
    facts = protocol["events"]
    if left := facts["of_unknown_items"]:
        lost = facts["users_without_known_item"]
        yield (
            f"{left:,} of {facts['events']:,} events ({left / facts['events']:.1%}) are of items that the model does "
            f"not know and were left out" + (f", and with them {lost:,} users" if lost else "")
        )
    skipped = protocol["users_without_history"]
    if skipped and skipped != "answered":
        yield f"{skipped:,} users of whom nothing was known before were left out; empty=answer ranks for them"
    if early := facts["no_later_than_training"]:
        share = early / (facts["events"] - facts["of_unknown_items"])
        yield (
            f"{share:.1%} of the events lie before the end of the training ({with_date(facts['trained_until'])}), so "
            "the run may have been trained on them: such a number is too good"
        )


def _of_lists(protocol: Mapping[str, Any]) -> Iterator[str]:
    """Notes on an evaluation of lists made elsewhere."""
    facts, users = protocol["lists"], protocol["users"]
    if none := facts["users_without_list"]:
        yield f"{none:,} of {users:,} users have no list, which counts as an empty one"
    if others := facts["users_not_in_store"]:
        yield f"{others:,} users of the lists are not in the store, and their lists were left out"
    if short := facts["shorter"]:
        yield f"{short:,} lists are shorter than {facts['length']} items, whose empty places count as no hit"
    if unknown := facts["unknown_items"]:
        yield f"{unknown:,} places hold an item that the store does not have, which counts as no hit"
    if facts["seen_items"] and protocol["seen"] == "exclude":
        yield (
            f"{facts['seen_items']:,} places hold an item of the user's own history, which a run's lists leave out: "
            "compare with a run by seen=keep, or take such items out"
        )
