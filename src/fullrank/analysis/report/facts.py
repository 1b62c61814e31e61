"""What the numbers of a page rest on: data, protocol, date and cost, each in a line or two."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from fullrank import __version__
from fullrank.analysis.report import duration, join_words, plural
from fullrank.analysis.report.results import RunResult, Runs, readable
from fullrank.metrics.names import history_words

Facts = tuple[tuple[str, str], ...]
DATED = 10**8
"""Times below this (1973) are places in an order, not seconds since 1970."""

SIZES = ("users", "items", "events", "rows")
"""Counts of the dataset that the manifest of a run may hold."""


def run_facts(results: Runs, split: str) -> Facts:
    """Data, protocol, date and cost of some runs of one problem."""
    protocol = _retrieval_protocol if results[0].run.spec.problem == "retrieval" else _ranking_protocol
    return (
        ("Data", _data(results)), ("Protocol", " ".join(dict.fromkeys(protocol(one, split) for one in results))),
        ("Date", f"Written on {date.today().isoformat()} by fullrank {__version__}."), ("Cost", _cost(results)),
    )  # fmt: skip


def _data(results: Runs) -> str:
    """Each prepared dataset once: its name, sizes and period."""
    found = []
    for one in results:
        data = one.run.manifest.get("data", {})
        name = readable(str(data.get("path", "")).rstrip("/").rpartition("/")[2]) or "unnamed"
        sizes = getattr(one.store, "sizes", None) or {w: data[w] for w in SIZES if isinstance(data.get(w), int)}
        counts = join_words([f"{count:,} {what}" for what, count in sizes.items()])
        found.append(f"{name}{': ' if counts else ''}{counts}{_period(one.store)}.")
    return " ".join(dict.fromkeys(found))


def _period(store: Any) -> str:
    times = getattr(store, "times", None)
    if times is None or not len(times) or int(times.max()) < DATED:
        return ""
    ends = [datetime.fromtimestamp(int(end), UTC).date().isoformat() for end in (times.min(), times.max())]
    return f", {ends[0]} to {ends[1]}"


def _retrieval_protocol(one: RunResult, split: str) -> str:
    """Split, users, candidates, history and intervals."""
    protocol = one.evaluation.protocol
    leak = " Training has events that lie after other users' test events." if _split(one).get("leak") else ""
    return (
        f"{_opening(one, split)}{plural(protocol['users'], 'user')}, each next item ranked against all "
        f"{protocol['items']:,} items, {history_words(protocol)}; {_level(protocol)} intervals over users.{leak}"
    )


def _ranking_protocol(one: RunResult, split: str) -> str:
    """Split, impressions, clicks and intervals."""
    protocol = one.evaluation.protocol
    rate = protocol["clicks"] / max(1, protocol["rows"])
    return (
        f"{_opening(one, split)}{plural(protocol['rows'], 'impression')}, {rate:.1%} of them clicked; "
        f"{_level(protocol)} intervals over {protocol['bootstrap']['unit']}s."
    )


def _opening(one: RunResult, split: str) -> str:
    kind = _split(one).get("kind")
    how = f"{split} split: " if not kind else f"{str(kind).replace('_', '-')}, {split} split: "
    return how[0].upper() + how[1:]


def _split(one: RunResult) -> dict[str, Any]:
    found = getattr(one.store, "manifest", {}).get("split", {})
    return found if isinstance(found, dict) else {}


def _level(protocol: dict[str, Any]) -> str:
    return f"{100 * protocol['bootstrap']['level']:g} %"


def _cost(results: Runs) -> str:
    """Time of training with its validation."""
    timed = [(one, one.seconds) for one in results if one.seconds is not None]
    if not timed:
        return "The logs of these runs hold no times."
    total = sum(seconds for _, seconds in timed)
    each = join_words([f"{one.key} {duration(seconds)}" for one, seconds in timed]) if len(timed) <= 8 else ""
    parts = f" ({each})" if len(timed) > 1 and each else ""
    return f"{duration(total)[0].upper()}{duration(total)[1:]} of training and validation{parts}."
