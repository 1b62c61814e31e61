"""Tables fit their terminal, colour stays out of pipes, JSON is JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fullrank.cli.output import Output, seconds, shown
from fullrank.core.files import jsonable


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


def test_json_has_no_nan_and_knows_paths_and_numpy() -> None:
    tree = {"a": math.nan, "b": np.float32(0.5), "c": np.int64(3), "d": Path("x/y"), "e": (1, math.inf), "f": True}
    assert jsonable(tree) == {"a": None, "b": 0.5, "c": 3, "d": "x/y", "e": [1, None], "f": True}
    json.dumps(jsonable(tree), allow_nan=False)


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


@pytest.mark.parametrize(("value", "text"), [(4.21, "4.2 s"), (42.0, "42 s"), (130.0, "2 min 10 s")])
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, ""), (math.nan, "-"), (12345, "12,345"), (0.12345, "0.1235")])
def test_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_progress_without_a_terminal_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fullrank.core.progress.QUIET_SECONDS", 0.0)
    with Output(False).progress("evaluate x") as tick:
        tick(5, 10)
    out, err = capsys.readouterr()
    assert out == "" and err == "evaluate x: 5 of 10 (50%)\n"
