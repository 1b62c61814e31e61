"""The sentences of a page: the answer about some recommenders, and the facts behind the numbers of any page.

The answer says which run finds most and by how much, for whom, and at what cost. Collapse is
described by its cost and by the users who bear it: a share of variance along one direction is a
property of a model, which may be the most accurate one all the same. `run_facts` has data,
protocol, date and cost, each in a line or two.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from operator import itemgetter
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
from fullrank.evaluation.spec import history_words
from fullrank.evaluation.summary import feature_words

COLLAPSED = 0.8
"""Least collapse share that the page mentions (the alarm of `analysis.watch.Watch`)."""
SOLVED = 0.9
"""Least share of a model's accuracy, reached by a graph, that the page mentions."""
CERTAIN = 0.05
"""Least p of a difference that the page calls possible by chance."""
COVERAGE = "coverage@10"


def retrieval_answer(results: Runs) -> Iterator[str]:
    """The sentences at the top of the page, the most important first."""
    why, best = not_comparable(results), most_accurate(results)
    if why is None:
        yield accuracy_sentence(best, results)
    else:
        yield f"The runs' metrics are shown but not compared: {why}."
    for note in dict.fromkeys(note for run in results for note in run.evaluation.notes):
        yield f"{note[0].upper()}{note[1:]}."
    if why is None:
        yield from _for_whom(best, results)
    for run in results:
        yield from _collapse(run, results if why is None else [run])
    for run in results:
        if not is_baseline(run) and (reached_share(run.diagnosis) or 0.0) >= SOLVED:
            yield f"Is training worth it: {verdict(run.diagnosis)} ({run.key}, {run.name})."


def accuracy_sentence(best: RunResult, results: Runs) -> str:
    """Name the most accurate run, with its paired difference from the reference or the next."""
    name = best.accuracy
    value = best.metric(name)
    if value is None:
        return f"No run has the metric {name}."
    pair = best.interval(name)
    if len(results) < 2:
        between = "" if pair is None else f" ({pair[0]:.4f}–{pair[1]:.4f})"
        return f"{_named(best)} has {name} {value:.4f}{between}; another run on the page would say what that is worth."
    sentence = f"{_named(best)} is the most accurate: {name} {value:.4f}"
    base = next((run for run in results if run.key == best.reference), None)
    if base is None:
        return f"{sentence}."
    rival, comparison, sign = base, best.against.get(name), 1
    if best is base:
        rival = most_accurate([run for run in results if run is not best])
        comparison, sign = rival.against.get(name), -1
    if comparison is None:
        return f"{sentence}."
    low, high = sorted(sign * end for end in comparison.interval)
    gap = sign * comparison.difference
    kind = ", the best baseline" if is_baseline(rival) and rival is base else ""
    theirs = rival.metric(name)
    word = "below" if name == "logloss" else "above"
    if theirs and "@" in name:  # an AUC has no true zero that shares could be of
        word = f"{abs(gap / theirs):.0%} more than"
    level = best.evaluation.protocol["bootstrap"]["level"]
    numbers = f"difference {gap:+.4f}, {level:.0%} interval {low:+.4f} to {high:+.4f}, {p_words(comparison.p)}"
    sentence += f", {word} {_named(rival)}{kind} ({numbers})."
    if comparison.p >= CERTAIN:
        sentence += " That may be chance."
    if best is base and is_baseline(best) and any(not is_baseline(run) for run in results):
        sentence += " No trained run beats this baseline."
    return sentence


def _for_whom(best: RunResult, results: Runs) -> Iterator[str]:
    """Recall in the head and in the tail, and coverage, beside the best other run of each."""
    recalls, others = band_recall(best), [run for run in results if run is not best]
    if "tail" in recalls:
        parts = [f"{recalls[band]:.1%} of {words}" for band, words in _BANDS.items() if band in recalls]
        sentence = f"For whom: {best.key} finds {join_words(parts)} ({recall_name(best)})"
        rivals = [(band_recall(run).get("tail", 0.0), run) for run in others if band_recall(run)]
        if rivals:
            theirs, rival = max(rivals, key=itemgetter(0))
            word = "best in the tail is" if theirs > recalls["tail"] else "next in the tail is"
            sentence += f"; {word} {_named(rival)} with {theirs:.1%}"
        yield f"{sentence}."
    shown = best.metric(COVERAGE)
    if shown is not None:
        sentence = f"Variety: its lists of ten show {shown:.0%} of the catalogue to anybody"
        rivals = [(share, run) for run in others if (share := run.metric(COVERAGE)) is not None]
        if rivals:
            theirs, rival = max(rivals, key=itemgetter(0))
            sentence += f", those of {_named(rival)} {theirs:.0%}"
        yield f"{sentence}."


_BANDS = {"head": "what people chose next where that is popular (head)", "tail": "it in the long tail"}


def _collapse(run: RunResult, among: Runs) -> Iterator[str]:
    """The collapse of a trained run's scores along one direction, and its cost in the long tail."""
    share = run.diagnosis.value("spectrum", "collapse_share")
    if share is None or share < COLLAPSED or is_baseline(run):  # of a popularity ranking it says nothing new
        return
    likeness = run.diagnosis.value("spectrum", "popularity_spearman")
    like = "" if likeness is None else f" (Spearman correlation with popularity {likeness:.2f})"
    sentence = f"Collapse: {share:.0%} of the variance of {run.key}'s scores lie along one direction{like}."
    tail = band_recall(run).get("tail")
    if tail is None:
        yield sentence
        return
    rivals = [(band_recall(other).get("tail", -1.0), other) for other in among if other is not run]
    theirs, rival = max(rivals, key=itemgetter(0), default=(-1.0, run))
    if theirs < 0:
        yield f"{sentence} Of people whose next item is in the long tail {tail:.1%} find it."
    elif theirs > tail:
        yield (
            f"{sentence} Who pays are people whose next item is in the long tail: {tail:.1%} of them find it with "
            f"{run.key}, {theirs:.1%} with {_named(rival)}."
        )
    else:
        yield f"{sentence} It costs nobody here: no run finds more of the long tail."


def _named(run: RunResult) -> str:
    return f"{run.key} ({run.name})"


Facts = tuple[tuple[str, str], ...]
DATED = 10**8
"""Times below this (1973) are positions in an order, not seconds since 1970."""

SIZES = ("users", "items", "events", "rows")
"""Counts of the dataset that the manifest of a run may hold."""


def run_facts(results: Runs, split: str) -> Facts:
    """Data, protocol, date and cost of some runs of one problem."""
    return (
        ("Data", _data(results)),
        ("Protocol", " ".join(dict.fromkeys(_protocol(run, split) for run in results))),
        ("Date", f"Written on {date.today().isoformat()} by fullrank {__version__}."),
        ("Cost", _cost(results)),
    )


def _data(results: Runs) -> str:
    """Name, sizes and period of each prepared dataset, once."""
    datasets = []
    for run in results:
        data = run.manifest.get("data", {})
        name = readable(str(data.get("path", "")).rstrip("/").rpartition("/")[2]) or "unnamed"
        sizes = getattr(run.store, "sizes", None) or {w: data[w] for w in SIZES if isinstance(data.get(w), int)}
        counts = join_words([f"{count:,} {unit}" for unit, count in sizes.items()])
        datasets.append(f"{name}{': ' if counts else ''}{counts}{_period(run.store)}.")
    return " ".join(dict.fromkeys(datasets))


def _period(store: Any) -> str:
    times = getattr(store, "times", None)
    if times is None or not len(times) or int(times.max()) < DATED:
        return ""
    ends = [datetime.fromtimestamp(int(end), UTC).date().isoformat() for end in (times.min(), times.max())]
    return f", {ends[0]} to {ends[1]}"


def _protocol(run: RunResult, split: str) -> str:
    """A sentence of the split, the users or impressions, and the intervals."""
    protocol = run.evaluation.protocol
    settings = getattr(run.store, "manifest", {}).get("split", {})
    kind = leak = None
    if isinstance(settings, dict):
        kind, leak = settings.get("kind"), settings.get("leak")
    opening = f"{str(kind).replace('_', '-')}, {split} split: " if kind else f"{split} split: "
    opening = opening[0].upper() + opening[1:]
    level = f"{100 * protocol['bootstrap']['level']:g} %"
    if run.spec.problem == "ranking":
        rate = protocol["clicks"] / max(1, protocol["rows"])
        return (
            f"{opening}{plural(protocol['rows'], 'impression')}, {rate:.1%} of them clicked; "
            f"{level} intervals over {protocol['bootstrap']['unit']}s."
        )
    after = " Training has events that lie after other users' test events." if leak else ""
    return (
        f"{opening}{plural(protocol['users'], 'user')}, each next item ranked against all "
        f"{protocol['items']:,} items, {history_words(protocol)}{feature_words(protocol)}; "
        f"{level} intervals over users.{after}"
    )


def _cost(results: Runs) -> str:
    """A sentence of the time of training with its validation: in all, and of up to eight runs."""
    timed = {run.key: run.seconds for run in results if run.seconds is not None}
    if not timed:
        return "The logs of these runs hold no times."
    total = duration(sum(timed.values()))
    times = join_words([f"{key} {duration(seconds)}" for key, seconds in timed.items()])
    parts = f" ({times})" if 1 < len(timed) <= 8 else ""
    return f"{total[0].upper()}{total[1:]} of training and validation{parts}."
