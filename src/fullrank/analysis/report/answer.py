"""The sentences of a page: what some runs that recommend come to, and what the numbers of any page rest on.

First which run finds most and by how much, for whom, and at what cost. Collapse is told as what it costs and whom: a
share of variance along one direction is a property of a model, which may be the most accurate one all the same. Then
`run_facts`: data, protocol, date and cost, each in a line or two.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

from fullrank import __version__
from fullrank.analysis.diagnostics.recall_bands import band_recall, recall_name
from fullrank.analysis.diagnostics.shortcut import reached_share, verdict
from fullrank.analysis.report import duration, join_words, plural
from fullrank.analysis.report.results import (
    RunResult,
    Runs,
    is_baseline,
    most_accurate,
    not_comparable,
    p_words,
    readable,
)
from fullrank.core.files import JsonObject
from fullrank.evaluation.summary import feature_words
from fullrank.metrics.names import history_words

COLLAPSED = 0.8
"""Collapse share from which on the page speaks of it (the alarm of `analysis.watch.Watch`)."""
SOLVED = 0.9
"""Share of a model's accuracy that a graph reaches, from which on the page says so in words."""
CERTAIN = 0.05
"""p above which a difference is said to be possible by chance."""
COVERAGE = "coverage@10"


def retrieval_answer(results: Runs) -> Iterator[str]:
    """The sentences at the top of the page, the most important first."""
    why = not_comparable(results)
    if why is not None:
        yield f"The runs' metrics are shown but not compared: {why}."
        best = None
    else:
        best = most_accurate(results)
        yield accuracy_sentence(best, results)
    for note in dict.fromkeys(note for run in results for note in run.evaluation.notes):
        yield f"{note[0].upper()}{note[1:]}."
    if best is not None:
        yield from _for_whom(best, results)
    for run in results:
        yield from _collapse(run, results if why is None else [run])
    yield from _shortcuts(results)


def accuracy_sentence(best: RunResult, results: Runs) -> str:
    """Which run is the most accurate, and its paired difference from the reference (or from the next best)."""
    name = best.accuracy
    value = best.metric(name)
    if value is None:
        return f"No run has the metric {name}."
    said = f"{_called(best)} is the most accurate: {name} {value:.4f}"
    pair = best.interval(name)
    if len(results) < 2:
        between = "" if pair is None else f" ({pair[0]:.4f}–{pair[1]:.4f})"
        return f"{_called(best)} has {name} {value:.4f}{between}; another run on the page would say what that is worth."
    base = next((run for run in results if run.key == best.reference), None)
    if base is None:
        return f"{said}."
    if best is not base:
        rival, comparison, sign = base, best.against.get(name), 1
    else:
        rival = most_accurate([run for run in results if run is not best])
        comparison, sign = rival.against.get(name), -1
    if comparison is None:
        return f"{said}."
    ends = sorted(sign * end for end in comparison.interval)
    gap = sign * comparison.difference
    what = ", the best baseline" if is_baseline(rival) and rival is base else ""
    theirs = rival.metric(name)
    word = "below" if name == "logloss" else "above"
    if theirs and "@" in name:  # an AUC has no true zero that shares could be of
        word = f"{abs(gap / theirs):.0%} more than"
    level = best.evaluation.protocol["bootstrap"]["level"]
    numbers = f"difference {gap:+.4f}, {level:.0%} interval {ends[0]:+.4f} to {ends[1]:+.4f}, {p_words(comparison.p)}"
    said += f", {word} {_called(rival)}{what} ({numbers})"
    said += ". That may be chance." if comparison.p >= CERTAIN else "."
    if best is base and is_baseline(best) and any(not is_baseline(run) for run in results):
        said += " No trained run beats this baseline."
    return said


def _for_whom(best: RunResult, results: Runs) -> Iterator[str]:
    """Recall in the head and in the tail, and coverage, beside the best other run of each."""
    recalls, others = band_recall(best), [run for run in results if run is not best and band_recall(run)]
    if "tail" in recalls:
        name = recall_name(best)
        parts = [f"{recalls[band]:.1%} of {words}" for band, words in _BANDS.items() if band in recalls]
        said = f"For whom: {best.key} finds {join_words(parts)} ({name})"
        if others:
            rival = max(others, key=lambda run: band_recall(run).get("tail", 0.0))
            theirs = band_recall(rival).get("tail", 0.0)
            word = "best in the tail is" if theirs > recalls["tail"] else "next in the tail is"
            said += f"; {word} {_called(rival)} with {theirs:.1%}"
        yield f"{said}."
    shown = best.metric(COVERAGE)
    widest = [run for run in results if run is not best and run.metric(COVERAGE) is not None]
    if shown is not None:
        said = f"Variety: its lists of ten show {shown:.0%} of the catalogue to anybody"
        if widest:
            rival = max(widest, key=lambda run: run.metric(COVERAGE) or 0.0)
            said += f", those of {_called(rival)} {rival.metric(COVERAGE):.0%}"
        yield f"{said}."


_BANDS = {"head": "what people chose next where that is popular (head)", "tail": "it in the long tail"}


def _collapse(run: RunResult, among: Runs) -> Iterator[str]:
    """What it costs that most of a learned run's scores lie along one direction, and whom."""
    share = run.diagnosis.value("spectrum", "collapse_share")
    if share is None or share < COLLAPSED or is_baseline(run):  # of a popularity ranking it says nothing new
        return
    likeness = run.diagnosis.value("spectrum", "popularity_spearman")
    like = "" if likeness is None else f" (Spearman correlation with popularity {likeness:.2f})"
    said = f"Collapse: {share:.0%} of the variance of {run.key}'s scores lie along one direction{like}."
    bands = band_recall(run)
    others = [other for other in among if other is not run and "tail" in band_recall(other)]
    if "tail" not in bands:
        yield said
        return
    if not others:
        yield f"{said} Of people whose next item is in the long tail {bands['tail']:.1%} find it."
        return
    rival = max(others, key=lambda other: band_recall(other)["tail"])
    theirs = band_recall(rival)["tail"]
    if theirs > bands["tail"]:
        yield (
            f"{said} Who pays are people whose next item is in the long tail: {bands['tail']:.1%} of them find it with "
            f"{run.key}, {theirs:.1%} with {_called(rival)}."
        )
    else:
        yield f"{said} It costs nobody here: no run finds more of the long tail."


def _shortcuts(results: Runs) -> Iterator[str]:
    """The learned runs of which an untrained graph reaches most."""
    solved = [
        run
        for run in results
        if not is_baseline(run) and (share := reached_share(run.diagnosis)) is not None and share >= SOLVED
    ]
    for run in solved:
        yield f"Is training worth it: {verdict(run.diagnosis)} ({run.key}, {run.name})."


def _called(run: RunResult) -> str:
    return f"{run.key} ({run.name})"


Facts = tuple[tuple[str, str], ...]
DATED = 10**8
"""Times below this (1973) are places in an order, not seconds since 1970."""

SIZES = ("users", "items", "events", "rows")
"""Counts of the dataset that the manifest of a run may hold."""


def run_facts(results: Runs, split: str) -> Facts:
    """Data, protocol, date and cost of some runs of one problem."""
    protocol = _retrieval_protocol if results[0].run.spec.problem == "retrieval" else _ranking_protocol
    return (
        ("Data", _data(results)),
        ("Protocol", " ".join(dict.fromkeys(protocol(run, split) for run in results))),
        ("Date", f"Written on {date.today().isoformat()} by fullrank {__version__}."),
        ("Cost", _cost(results)),
    )


def _data(results: Runs) -> str:
    """Each prepared dataset once: its name, sizes and period."""
    datasets = []
    for run in results:
        data = run.run.manifest.get("data", {})
        name = readable(str(data.get("path", "")).rstrip("/").rpartition("/")[2]) or "unnamed"
        sizes = getattr(run.store, "sizes", None) or {w: data[w] for w in SIZES if isinstance(data.get(w), int)}
        counts = join_words([f"{count:,} {what}" for what, count in sizes.items()])
        datasets.append(f"{name}{': ' if counts else ''}{counts}{_period(run.store)}.")
    return " ".join(dict.fromkeys(datasets))


def _period(store: Any) -> str:
    times = getattr(store, "times", None)
    if times is None or not len(times) or int(times.max()) < DATED:
        return ""
    ends = [datetime.fromtimestamp(int(end), UTC).date().isoformat() for end in (times.min(), times.max())]
    return f", {ends[0]} to {ends[1]}"


def _retrieval_protocol(run: RunResult, split: str) -> str:
    """Split, users, candidates, history and intervals."""
    protocol = run.evaluation.protocol
    leak = " Training has events that lie after other users' test events." if _split(run).get("leak") else ""
    return (
        f"{_opening(run, split)}{plural(protocol['users'], 'user')}, each next item ranked against all "
        f"{protocol['items']:,} items, {history_words(protocol)}{feature_words(protocol)}; "
        f"{_level(protocol)} intervals over users.{leak}"
    )


def _ranking_protocol(run: RunResult, split: str) -> str:
    """Split, impressions, clicks and intervals."""
    protocol = run.evaluation.protocol
    rate = protocol["clicks"] / max(1, protocol["rows"])
    return (
        f"{_opening(run, split)}{plural(protocol['rows'], 'impression')}, {rate:.1%} of them clicked; "
        f"{_level(protocol)} intervals over {protocol['bootstrap']['unit']}s."
    )


def _opening(run: RunResult, split: str) -> str:
    kind = _split(run).get("kind")
    how = f"{split} split: " if not kind else f"{str(kind).replace('_', '-')}, {split} split: "
    return how[0].upper() + how[1:]


def _split(run: RunResult) -> JsonObject:
    split = getattr(run.store, "manifest", {}).get("split", {})
    return split if isinstance(split, dict) else {}


def _level(protocol: JsonObject) -> str:
    return f"{100 * protocol['bootstrap']['level']:g} %"


def _cost(results: Runs) -> str:
    """Time of training with its validation."""
    timed = [(run, run.seconds) for run in results if run.seconds is not None]
    if not timed:
        return "The logs of these runs hold no times."
    total = sum(seconds for _, seconds in timed)
    each = join_words([f"{run.key} {duration(seconds)}" for run, seconds in timed]) if len(timed) <= 8 else ""
    parts = f" ({each})" if len(timed) > 1 and each else ""
    return f"{duration(total)[0].upper()}{duration(total)[1:]} of training and validation{parts}."
