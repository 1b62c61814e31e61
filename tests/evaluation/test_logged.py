"""Logged answers joined with what users did: equal to a plain loop, and clear where nothing can be said."""

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fullrank.core.tables import write_table
from fullrank.evaluation.logged import COLUMNS, evaluate_log
from fullrank.serving.answers import SCHEMA, AnswerLog, LoggedAnswer, _frame
from refusals import refused
from tests.data.test_splits import events as table

HOUR = 3600.0


def answer(at: float, user: str | None, version: str, items: list[Any], k: int = 3) -> LoggedAnswer:
    return LoggedAnswer(at, "r", user, version, "model", k, items, [0.0] * len(items), 2, False, False)


def written(folder: Path, answers: list[LoggedAnswer]) -> Path:
    folder.mkdir(exist_ok=True)
    for n in range(2):
        write_table(_frame(answers[n::2]), folder / f"answers-{n}.parquet")
    return folder


def test_columns_are_those_that_the_service_writes() -> None:
    assert {name: SCHEMA[name] for name in COLUMNS} == COLUMNS


def test_a_small_log_by_hand(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [
        answer(1000.5, "ada", "may", [7, 8, 9]),
        answer(2000.5, "ada", "may", [1, 2, 3]),
        answer(1000.5, "bob", "may", [5, 6]),
        answer(1000.5, None, "may", [5, 6, 7]),
        answer(1000.5, "eve", "may", [5, 6, 7]),
    ])  # fmt: skip
    events = table(("ada", 8, 900), ("ada", 8, 1500), ("ada", 3, 2600), ("bob", 9, 1000), ("bob", 6, 1200))
    found = evaluate_log(log, events, within=2 * 500 / HOUR, samples=50)
    one = found.versions["may"]
    # ada: 8 in second place of the first answer, 3 in third of the second; bob: 6 in second place, 9 was before
    assert found.counts["scored"] == 3 and one.users == 2 and one.answers == 5
    assert (found.counts["without_user"], found.counts["user_without_events"]) == (1, 1)
    assert one.metrics["hit@3"] == pytest.approx(1.0)
    assert one.metrics["mrr@3"] == pytest.approx(((1 / 2 + 1 / 3) / 2 + 1 / 2) / 2)
    later = evaluate_log(log, events, within=None, samples=0)
    assert later.rows.sort("user", "time")["targets"].to_list() == [2, 1, 1]
    assert later.versions["may"].interval["hit@3"][0] != later.versions["may"].interval["hit@3"][0]
    assert later.dump()["versions"]["may"]["interval"]["hit@3"] == [None, None]


def test_equal_to_a_loop_over_answers_and_events(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    answers = [answer(float(t), f"u{rng.integers(20)}", "ab"[n % 2], rng.choice(30, 5, replace=False).tolist(), 5)
               for n, t in enumerate(rng.uniform(0, 1e5, 200))]  # fmt: skip
    rows = [(f"u{rng.integers(25)}", int(rng.integers(40)), float(t)) for t in rng.integers(0, 130_000, 400)]
    found = evaluate_log(
        written(tmp_path / "log", answers), table(*rows), within=5, metrics=["hit", "recall@3"], samples=0
    )
    for version in "ab":
        hits, recalls = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        for one in answers:
            after = {str(i) for u, i, t in rows if u == one.user and one.time < t <= one.time + 5 * HOUR}
            if after and one.version == version and one.user is not None:
                hits[one.user].append(float(bool(after & set(map(str, one.items)))))
                recalls[one.user].append(len(after & set(map(str, one.items[:3]))) / len(after))
        metrics = found.versions[version].metrics
        assert metrics["hit@5"] == pytest.approx(np.mean([np.mean(v) for v in hits.values()]))
        assert metrics["recall@3"] == pytest.approx(np.mean([np.mean(v) for v in recalls.values()]))
        assert found.versions[version].scored == sum(map(len, hits.values()))


def test_differences_of_two_versions(tmp_path: Path) -> None:
    """b finds what users take, a does not; users of a split have one version each, after a swap both."""
    rng = np.random.default_rng(1)
    answers, rows = [], []
    for n in range(120):
        for version, day in (("a", 0), ("b", 1)):
            took = int(rng.integers(50))
            good = rng.random() < (0.2 if version == "a" else 0.8)
            answers.append(answer(day * 1e5 + n, f"u{n}", version, [took if good else 99, 77], 2))
            rows.append((f"u{n}", took, day * 1e5 + n + 60))
    found = evaluate_log(written(tmp_path / "swap", answers), table(*rows), metrics=["hit"])
    whole, paired = (one.comparison for one in found.differences)
    assert [one.paired for one in found.differences] == [False, True]
    assert whole.difference == pytest.approx(paired.difference) and paired.p < 0.001 and whole.p < 0.01
    assert paired.interval[0] < paired.difference < paired.interval[1] and paired.interval[0] > 0.3
    split = [one for one in answers if (one.user in {f"u{n}" for n in range(60)}) == (one.version == "a")]
    found = evaluate_log(written(tmp_path / "split", split), table(*rows), metrics=["hit"])
    assert [one.paired for one in found.differences] == [False] and found.differences[0].comparison.interval[0] > 0.2


def test_ks_are_the_logged_ones(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [answer(1.0, "u", "a", [5], 1), answer(1.0, "u", "a", [4, 5], 2)])
    found = evaluate_log(log, table(("u", 5, 60)), metrics=["hit"], samples=10)
    assert found.versions["a"].metrics == {"hit@1": 0.5, "hit@2": 1.0}
    for metric, code in (("hit@3", "lists-too-short"), ("gini@1", "metric-needs-catalogue")):
        with refused(code, metric):
            evaluate_log(log, table(("u", 5, 60)), metrics=[metric])


def test_what_cannot_be_joined_is_refused(tmp_path: Path) -> None:
    log = written(tmp_path / "log", [answer(1e9, "u1", "a", [1]), answer(1e9, None, "a", [1])])
    (tmp_path / "other").mkdir()
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other" / "x.parquet")
    later = table(("u1", 1, 2e9))
    for answers, events, *said in (
        (tmp_path / "nowhere", later, "no-logged-answers"),
        (log, later.drop("timestamp"), "missing-column", "timestamp"),
        (log, table(("v1", 1, 2e9)), "no-common-users", "u1", "v1"),
        (log, table(("u1", 1, 1e9 - 5)), "no-event-after-answers"),
        (log, table(("u1", 1, 1e9 + 90_000)), "no-event-after-answers", "within 24 hours"),
        (tmp_path / "other", later, "not-an-answer-log", "time"),
    ):
        with refused(*said):
            evaluate_log(answers, events)


def test_saved_and_read_from_a_real_log(tmp_path: Path) -> None:
    with AnswerLog(tmp_path / "log") as log:
        log.add([answer(time.time(), "3", "a", [1, 2, 3])])
    events = tmp_path / "events.csv"
    events.write_text(f"user_id,item_id,timestamp\n3,2,{int(time.time()) + 60}\n")
    found = evaluate_log(tmp_path / "log", events)
    assert found.versions["a"].metrics["mrr@3"] == 0.5
    found.save(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"logged_evaluation.json", "per_answer.parquet"}
