"""`fullrank evaluate-log`: the answers of a service, by version."""

from pathlib import Path

import polars as pl
import pytest

from tests.cli.conftest import Ask, Call, Refuses


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """40 answers of two versions, and events of which the second version has found more."""
    rows, events = [], []
    for n in range(40):
        version = "ab"[n % 2]
        rows.append((1000.0 + n, f"u{n}", version, "model", 2, ["7", "8" if version == "b" else "9"]))
        events.append((f"u{n}", 8 if n % 3 else 1, 1500 + n))
    folder = tmp_path / "log"
    folder.mkdir()
    frame = pl.DataFrame(rows, schema=["time", "user", "version", "source", "k", "items"], orient="row")
    frame.write_parquet(folder / "answers-1.parquet")
    pl.DataFrame(events, schema=["who", "what", "when"], orient="row").write_csv(tmp_path / "events.csv")
    return folder


def test_versions_are_measured_and_saved(log: Path, ask: Ask, call: Call, tmp_path: Path) -> None:
    words = "evaluate-log log --events events.csv --columns who,what,when"
    found = ask(f"{words} --out out --metric hit")
    assert found["versions"]["a"]["metrics"] == {"hit@2": 0.0} and found["versions"]["b"]["metrics"]["hit@2"] > 0.5
    assert found["differences"][0]["difference"] > 0.5 and found["counts"]["scored"] == 40
    assert found["protocol"]["within_hours"] == 24
    assert (tmp_path / "out" / "per_answer.parquet").is_file()
    shown = call(words)
    assert shown.code == 0 and "b - a" in shown.out + shown.err


def test_what_does_not_go_together_is_refused(log: Path, refuses: Refuses) -> None:
    refuses("unknown-option", "evaluate @sasrec --log log --events events.csv", "--log", "fullrank evaluate-log DIR")
    refuses("unknown-option", "evaluate @sasrec --within 5", "--within", "fullrank evaluate-log DIR")
    words = "evaluate-log log --events events.csv"
    refuses("given-twice", f"{words} --columns a,b,c --user-col who", "--columns", "--user-col")
    refuses("unknown-option", f"{words} --set seen=keep", "--set")
    refuses("usage", "evaluate", "RUN")
    refuses("usage", "evaluate-log log", "--events")
    refuses("missing-column", words, "user_id")
    refuses("setting-out-of-range", f"{words} --within -1", "-1")
    refuses("no-logged-answers", "evaluate-log @ --events events.csv")
