"""The frame of the attack tells outcomes apart, and each kind of attack finds a fault that is planted here."""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import Phase
from hypothesis import strategies as st

from fullrank.cli import main
from tests.attack import __main__ as report
from tests.attack import frame
from tests.attack.bases import changed, parameter_of
from tests.attack.frame import (
    SURVIVED,
    TALLY,
    Outcome,
    Said,
    attack,
    call,
    command,
    limited,
    outcome_of,
)
from tests.attack.test_options import spoken
from tests.attack.test_options import test_options as options
from tests.attack.test_options import test_words_alone as words_alone
from tests.attack.test_settings import test_words_behind_set as settings
from tests.attack.worlds import world

ERROR, LONG = '{"error": "no", "code": "wrong"}', "x" * 3000


def said(code: int, out: str = "", err: str = "", *words: str, hung: bool = False) -> Said:
    return Said(words or ("train", "--json"), code, out, err, 0.1, hung)


def test_kinds() -> None:
    for kind, given in (
        ("ok", said(0, "{}")), ("refused", said(2, ERROR, "note\nError: no")), ("interrupted", said(130)),
        ("bug", said(1, ERROR, "Error: no")), ("native", said(-11)), ("hang", said(0, hung=True)),
        ("noise", said(0, "{}\n{}")), ("noise", said(0)), ("noise", said(2, ERROR, "Error: no\nError: no")),
        ("noise", said(2, ERROR, "Traceback (most recent call last)\nError: no")),
        ("noise", said(2, ERROR, "Error: yes")), ("noise", said(2, "", f"Error: no{LONG}", "train")),
        ("noise", said(2, "", f"Error: no {LONG[:300]}", "train", LONG)),
        ("refused", said(2, "", f"Error: no {LONG[:200]}", "train", LONG)),
    ):  # fmt: skip
        assert outcome_of(given).kind == kind, given


Main = Callable[[list[str]], int]


def raises(words: list[str]) -> int:
    os.write(2, b"from native code\n")
    return {}["k"] if "--k" in words else main(words)


def overwrites(words: list[str]) -> int:
    Path(world("keys.json")).write_text("{}")
    return main(words)


def takes_nan(words: list[str]) -> int:
    return print('{"k": NaN}') or 0 if "nan" in words else main(words)


def leaves_half_a_folder(words: list[str]) -> int:
    (Path(world("store")) / "half.part").write_text("half")
    return main(words)


def exits_1(words: list[str]) -> int:
    return 1 if any(len(word) > 40 for word in words) else main(words)


def number_of_items() -> None:
    """The attack on one option."""
    values = st.sampled_from(["5", "nan"]).map(partial(changed, "similar", parameter_of("similar", "--k")))
    attack("options", "similar", values, spoken, 2)


def takes_everything(words: list[str]) -> int:
    return print("{}") or 0


def hangs(words: list[str]) -> int:
    time.sleep(30)
    return 0


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No shrinking, and a world that a planted fault may damage."""
    monkeypatch.setattr(frame, "PHASES", [Phase.generate])
    kept = Path(world("keys.json")).read_text()
    yield
    Path(world("keys.json")).write_text(kept)
    (Path(world("store")) / "half.part").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("planted", "attacked", "kind"),
    [
        (raises, number_of_items, "bug"), (overwrites, partial(options, "keys list"), "loss"),
        (leaves_half_a_folder, partial(options, "scale growth"), "loss"), (takes_nan, number_of_items, "noise"),
        (exits_1, partial(settings, "show"), "bug"), (takes_everything, words_alone, "silent"),
        (hangs, partial(options, "list"), "hang"),
    ],
    ids=lambda value: getattr(value, "__name__", "of"),
)  # fmt: skip
def test_a_planted_fault_is_found(
    planted: Main, attacked: Callable[[], None], kind: str, monkeypatch: pytest.MonkeyPatch, short: None
) -> None:
    monkeypatch.setattr(frame, "main", planted)
    if planted is hangs:
        monkeypatch.setattr(frame, "limited", lambda seconds, *rest: limited(0.02, *rest))
    with pytest.raises(AssertionError, match=f": {kind} "):
        attacked()
    assert any(key[2] == kind for key in TALLY)


def test_a_failure_is_shrunk() -> None:
    def run(value: int, folder: Path) -> Outcome:
        return Outcome("silent" if value >= 17 else "ok", f"{value}")

    with pytest.raises(AssertionError, match=r"silent .* from 17: "):
        attack("options", "train", st.integers(0, 1000), run, 50)


def test_draws_are_counted_and_made_in_a_folder_of_their_own() -> None:
    seen, here = [], Path.cwd()

    def run(value: int, folder: Path) -> Outcome:
        seen.append((value, folder))
        assert Path.cwd() == folder and list(folder.iterdir()) == [folder / "tmp"]
        return Outcome(SURVIVED[value % 2])

    attack("options", "train", st.integers(0, 7), run, 20)
    assert sorted(value for value, _ in seen) == [*range(8)], "a small pool is drawn whole"
    assert Path.cwd() == here and not seen[0][1].exists()
    assert TALLY == {("options", "train", "ok"): 4, ("options", "train", "refused"): 4}
    first = [value for value, _ in seen]
    attack("options", "train", st.integers(0, 7), run, 20)
    assert [value for value, _ in seen[8:]] == first, "draws are the same in every run"
    with pytest.raises(KeyError):
        attack("tables", "train", st.none(), lambda value, folder: Outcome({}["kind"]), 1)
    assert TALLY["tables", "train", "bug"]


def test_a_call_is_judged_by_what_it_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("list", "--json").kind == "ok"
    outcome = command("recommend", tmp_path / "none", "--json")
    assert outcome.kind == "refused" and outcome.code
    monkeypatch.setattr(frame, "main", lambda words: len(bytearray(64 << 30)))
    assert "MemoryError" in call("list").err, "memory is bounded, and given back"
    monkeypatch.setattr(frame, "main", raises)
    made = call("list", "--k")
    assert outcome_of(made).kind == "bug" and "from native code" in made.err and "KeyError" in made.err


def test_a_report_becomes_a_table(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(
        '<testsuites><testsuite><testcase classname="tests.attack.test_options" name="test_options[train]" time="2.5">'
        '<properties><property name="options/train/ok" value="3"/><property name="options/train/bug" value="1"/>'
        '</properties><failure message="AssertionError: train: bug (exit 1): no"/></testcase>'
        '<testcase classname="tests.attack.test_review" name="test_01" time="1"/></testsuite></testsuites>'
    )
    rows = report.read(tmp_path / "report.xml")
    assert report.counts(rows)["options"] == {"tried": 4, "survived": 3, "refused": 0, "failed": 1, "train": 4}
    assert report.counts(rows)["review"]["survived"] == 1 and "train: bug (exit 1)" in report.table(rows)
