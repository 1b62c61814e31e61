"""Tables fit their terminal, colour stays out of pipes, JSON is JSON."""

import json
import math
from pathlib import Path

import pytest

from fullrank.cli import main
from fullrank.cli.output import Output, seconds, shown
from fullrank.core.log import CONTROLS, Reporter, logger


def test_a_table_fits_80_columns_and_keeps_every_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = [f"word{place}" for place in range(40)]
    Output(False).table(("name", "value", "text"), [["a_long_identifier_that_stays_whole", 0.5, " ".join(words)]])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert set(words) <= set(out.split()) and "a_long_identifier_that_stays_whole" in out and "0.5000" in out


@pytest.mark.parametrize("force", [None, "NO_COLOR"])
def test_no_colour_without_a_terminal(
    force: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if force:
        monkeypatch.setenv(force, "1")
    Output(False).table(("[bold]a",), [["[red]x[/red]"]], title="t")
    out = capsys.readouterr().out
    assert "\x1b" not in out and "[red]x[/red]" in out and "[bold]a" in out


def test_with_json_people_read_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(True)
    output.say("hello")
    output.finish({"a": 1})
    out, err = capsys.readouterr()
    assert out == '{"a": 1}\n' and err == "hello\n"


def test_paragraphs_wrap_and_commands_do_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    Output(False).say("word " * 40)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60
    Output(False).say("fullrank train " + "x " * 60, wrap=False)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_seconds_and_values_as_they_are_shown() -> None:
    assert [seconds(value) for value in (4.21, 42.0, 130.0)] == ["4.2 s", "42 s", "2 min 10 s"]
    assert [shown(value) for value in (None, math.nan, 12345, 0.12345)] == ["", "-", "12,345", "0.1235"]


HOSTILE = "a\x1b[31mb\x07c\x9b2Jd\r\u202ee\x1b]0;title\x07"
"""What would colour, clear, overwrite, turn and rename a terminal."""


def test_nothing_that_is_printed_moves_a_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each way to a terminal: sentences, tables, progress, messages, errors, and JSON, which stays exact."""
    for terminal in (False, True):
        output = Output(terminal)
        output.say(f"{HOSTILE}\nsecond line")
        output.table((HOSTILE, "x"), [(f"{HOSTILE}\nforged line", 1.0)], title=HOSTILE)
        output.finish({HOSTILE: HOSTILE})
        said = "".join(capsys.readouterr())
        assert not CONTROLS.search(said) and "\\x1b[31m" in said and "\nforged line" not in said, said
    assert json.loads(said.splitlines()[0]) == {HOSTILE: HOSTILE}
    logger("fullrank.test").warning(HOSTILE)
    reporter = Reporter()
    reporter.say(HOSTILE)
    reporter.sizes = True
    reporter.at(HOSTILE, 1, 1)
    assert main(["verify", f"{tmp_path}/{HOSTILE}"]) == 2
    assert main(["verify", f"{tmp_path}/{HOSTILE}", "--debug"]) == 2
    said = "".join(capsys.readouterr())
    assert not CONTROLS.search(said) and said.count("\\x1b[31m") >= 5, said


def test_progress_on_a_terminal_shows_names_as_they_are_written() -> None:
    from rich.progress import Progress

    reporter = Reporter(transient=True)
    reporter._bar = bar = Progress()
    reporter.at(HOSTILE, 1, 2)
    reporter.at(HOSTILE, 2, 2, text=HOSTILE)
    assert not CONTROLS.search(bar.tasks[0].description) and "\\x1b" in bar.tasks[0].description
