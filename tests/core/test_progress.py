"""Progress: a bar on a terminal, a line now and then elsewhere, nothing where it is off."""

import io
import sys

import pytest

from folders import python
from fullrank.core import progress
from fullrank.core.progress import Reporter, clock, quiet, reporting, stages


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)


def test_lines(capsys: pytest.CaptureFixture, at_once: None) -> None:
    with reporting("read") as tick:
        tick(5, 10)
        tick(1234, 0)
    assert capsys.readouterr() == ("", "read: 5 of 10 (50%)\nread: 1,234\n")


def test_lines_are_seldom(capsys: pytest.CaptureFixture) -> None:
    with reporting("read") as tick:
        for done in range(1000):
            tick(done, 1000)
    assert capsys.readouterr() == ("", "")


def test_silence(capsys: pytest.CaptureFixture, at_once: None) -> None:
    with Reporter(False) as reporter, reporting("read", shown=False) as tick, stages(shown=False) as tell:
        reporter.say("x")
        reporter.at("a", 1, 2)
        tick(1, 2)
        tell("b")(1, 2)
    quiet("x")(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with Reporter() as reporter:
        reporter.at("a", 1, 4, "first [bold]")
        reporter.at("a", 2, 4)
        reporter.say("a line that stays")
        reporter.at("a", 4, 4)
    shown = screen.getvalue()
    assert "first [bold]" in shown and "100 %" in shown and shown.count("a line that stays") == 1
    with stages() as tell:
        tell("one")(1, 2)
        tell("two")(1, 2)
    assert "one" in screen.getvalue() and "two" in screen.getvalue()


def test_every_file_gets_a_line(capsys: pytest.CaptureFixture) -> None:
    with Reporter(sizes=True) as reporter:
        for done in (500, 1000):
            reporter.at("a.zip", done, 1000)
    assert capsys.readouterr().err == "a.zip: 1,000 of 1,000 bytes (100%)\n"


@pytest.mark.parametrize(("seconds", "text"), [(4.9, "0:04"), (245, "4:05"), (3723, "1:02:03")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.process
def test_core_is_light() -> None:
    """Importing core, or the package, loads neither rich nor polars nor torch."""
    code = """
import sys, fullrank, fullrank.core.files, fullrank.core.log, fullrank.core.progress, fullrank.core.tables
assert not {"rich", "polars", "torch"} & set(sys.modules), sorted({"rich", "polars", "torch"} & set(sys.modules))
"""
    python(code)
