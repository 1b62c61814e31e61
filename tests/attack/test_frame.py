"""The frame of the attack tells outcomes apart, and notices each fault that is planted here."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.attack import __main__ as report
from tests.attack import frame
from tests.attack.frame import RESULTS, Case, Outcome, Said, attacks, call, check, command, copied, digest, outcome_of


def said(code: int, out: str = "", err: str = "", words: tuple[str, ...] = ("train", "--json")) -> Said:
    return Said(words, code, out, err, 0.1)


ERROR = '{"error": "no", "code": "wrong"}'
LONG = "x" * 3000


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (said(0, "{}"), "ok"),
        (said(2, ERROR, "note\nError: no"), "refused"),
        (said(130, "", "interrupted"), "interrupted"),
        (said(1, ERROR, "Error: no"), "bug"),
        (said(-11), "native"),
        (Said(("train",), 0, "", "", 21.0, hung=True), "hang"),
        (said(0, "{}\n{}"), "noise"),
        (said(0, ""), "noise"),
        (said(2, ERROR, "Traceback (most recent call last)\nError: no"), "noise"),
        (said(2, ERROR, "Error: no\nError: no"), "noise"),
        (said(2, ERROR, "Error: yes"), "noise"),
        (said(2, "", "Error: no" + LONG, ("train",)), "noise"),
        (said(2, "", "Error: no " + LONG[:300], ("train", LONG)), "noise"),
        (said(2, "", "Error: no " + LONG[:200], ("train", LONG)), "refused"),
    ],
)
def test_kinds(given: Said, kind: str) -> None:
    assert outcome_of(given).kind == kind


def test_a_call_is_judged_by_what_it_left(tmp_path: Path) -> None:
    assert command("list", "--json").kind == "ok"
    outcome = command("recommend", tmp_path / "none", "--json")
    assert outcome.kind == "refused" and outcome.code


def test_a_changed_file_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_text("1")

    def faulty(words: list[str]) -> int:
        (tmp_path / "kept").write_text("22")
        return 0

    monkeypatch.setattr(frame, "main", faulty)
    assert command("list", keep=[tmp_path]).kind == "loss"


def test_a_call_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "main", lambda words: time.sleep(30))
    outcome = outcome_of(call("list", seconds=0.2))
    assert outcome.kind == "hang"


def test_what_main_raises_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(words: list[str]) -> int:
        os.write(2, b"from native code\n")
        raise TypeError("planted")

    monkeypatch.setattr(frame, "main", faulty)
    made = call("list")
    assert outcome_of(made).kind == "bug" and "from native code" in made.err and "planted" in made.err


def test_memory_is_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(words: list[str]) -> int:
        bytearray(64 << 30)
        return 0

    monkeypatch.setattr(frame, "main", hungry)
    assert "MemoryError" in call("list").err


def test_cases_are_counted_and_held_against_what_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESULTS, str(tmp_path))
    seen = []

    def run(place: Path) -> Outcome:
        seen.append(place)
        assert Path.cwd() == place and list(place.iterdir()) == [place / "tmp"]
        return Outcome("refused", "no", "wrong")

    here = Path.cwd()
    check(Case("options", "train", "fine", run))
    with pytest.raises(AssertionError, match="silent"):
        check(Case("options", "train", "wrong", lambda place: Outcome("silent", "5 for 7")))
    with pytest.raises(KeyError):
        check(Case("tables", "train", "broken", lambda place: Outcome({}["kind"])))
    assert Path.cwd() == here and not seen[0].exists()
    rows = report.read(tmp_path)
    assert report.counts(rows)["options"] == {
        "tried": 2, "survived": 1, "refused": 1, "failed": 1, "silent": 1,
    }  # fmt: skip
    assert report.figures(rows)["bug"] == 1 and "5 for 7" in report.table(rows)


def test_a_sample_does_not_depend_on_other_cases() -> None:
    cases = [Case("options", "train", f"case {n}", lambda place: Outcome("ok")) for n in range(200)]
    chosen = {case.id for case in cases if case.sampled(10)}
    assert 5 < len(chosen) < 40
    assert chosen & {case.id for case in cases[50:]} == {case.id for case in cases[50:] if case.sampled(10)}
    (_, params) = attacks(cases, one_in=10).args
    assert {p.id for p in params if "slow" not in {mark.name for mark in p.marks}} == chosen
    with pytest.raises(AssertionError, match="two cases"):
        attacks([cases[0], cases[0]], one_in=10)


def test_a_copy_leaves_its_source(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("1")
    before = digest(tmp_path / "source")
    copy = copied(tmp_path / "source", tmp_path / "copy")
    (copy / "file").unlink()
    assert digest(tmp_path / "source") == before
