"""What a person sees of every verb: a word at once, tables that fit, no colour in pipes, time in plain words, help in
groups; and JSON that is JSON.
"""

import ast
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer.main

import fullrank.cli
from fullrank.cli import AT_ONCE, build, grouped_help, main
from fullrank.cli.components import needs_of
from fullrank.cli.output import Output, seconds, shown
from fullrank.core.log import CONTROLS, Reporter, logger
from fullrank.core.registry import component, kinds
from fullrank.run.experiment import find_experiment
from fullrank.training.log import TrainingProgress
from tests.cli.conftest import Ask, Call


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


SOURCE = str(Path(fullrank.__file__).parents[1])
HEAVY = "import sys; sys.modules.update({name: None for name in ('torch', 'lightning', 'numpy', 'polars', 'typer')})"
"""Python in which importing one of these fails."""


def first_word(line: str, rank: str = "0") -> str:
    """What a process says on stderr before it imports anything heavy."""
    call = "from fullrank.cli import main\ntry: main()\nexcept ImportError: pass"
    code = f"{HEAVY}; sys.argv = {['fullrank', *line.split()]!r}\n{call}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "PYTHONPATH": SOURCE, "RANK": rank},
    )  # fmt: skip
    return done.stderr


@pytest.mark.process
def test_a_word_before_anything_heavy_is_imported() -> None:
    assert first_word("train sasrec --data x --out y") == "fullrank train: starting\n"
    assert first_word("train", rank="1") == "", "of many processes one says it"


@pytest.mark.process
@pytest.mark.parametrize("line", ["--help", "train --help", "list recipes", "--version"])
def test_what_is_quick_needs_no_word(line: str) -> None:
    assert first_word(line) == ""


def test_sigterm_ends_a_verb_with_143_before_training_and_inside_it(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the door of all verbs: while it is read what was typed, while nothing is trained yet, and behind a step."""
    words = f"train gru4rec --data {shop}/data --out {tmp_path}/run --set model.dim=8"
    monkeypatch.setattr(sys, "argv", f"fullrank {words} --set training.checkpoint_minutes=0".split())
    places = {"fullrank.cli.build": (1, ""), "fullrank.api.train": (1, ""),
              "fullrank.training.log.TrainingProgress.advance": (4, "--resume")}  # fmt: skip
    for place, (nth, hint) in places.items():
        calls = []

        def end(*given: object, calls: list[object] = calls, nth: int = nth, **_: object) -> None:
            calls.append(given)
            if len(calls) == nth:
                os.kill(os.getpid(), signal.SIGTERM)

        with monkeypatch.context() as patched:
            patched.setattr(place, end)
            before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                assert fullrank.cli.main() == 143, place
            finally:
                signal.signal(signal.SIGTERM, before)
        said = capsys.readouterr().err
        assert hint in said and "Traceback" not in said and said.splitlines()[-1] == "interrupted", said


def test_sigterm_in_a_finaliser_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops what is raised in a `__del__`, so the signal comes again behind it."""
    monkeypatch.setattr(sys, "argv", ["fullrank", "list"])
    ended = []

    class Closing:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            ended.append("the finaliser is let go on")

    def build() -> Any:
        closing = Closing()
        del closing
        time.sleep(10)

    monkeypatch.setattr(fullrank.cli, "build", build)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        begun = time.monotonic()
        assert fullrank.cli.main() == 143 and time.monotonic() - begun < 5 and ended
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_pipe_gets_whole_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    Output(False).say("word " * 60)
    Output(False).table(("name", "what"), [("a", "word " * 60)])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3 and said[0].count("word") == said[2].count("word") == 60


def test_time_of_a_training(capsys: pytest.CaptureFixture[str]) -> None:
    progress = TrainingProgress(True, total=10, done=0)
    progress.epoch(5, "epoch 1")
    progress.close()
    assert capsys.readouterr().err.endswith("epoch 1  [elapsed 0:00, remaining at most 0:00]\n")


def test_every_verb_and_option_has_one_place_in_the_help(call: Call) -> None:
    app = typer.main.get_command(build())
    verbs = [verb for group in grouped_help.VERBS.values() for verb in group]
    assert sorted(verbs) == sorted(app.commands)  # type: ignore[attr-defined]
    assert set(AT_ONCE) <= set(verbs)
    told = call("--help").out
    assert [told.index(f"{title}:") for title in grouped_help.VERBS] == sorted(
        told.index(f"{title}:") for title in grouped_help.VERBS
    ) and "Others:" not in told
    flags: set[str] = set()
    for verb in verbs:
        command = app.commands[verb]  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            continue
        told = call(f"{verb} --help").out
        titles = [told.find(f"\n{title}:\n") for title in ("Options", *grouped_help.OPTIONS)]
        listed = told[min(place for place in titles if place >= 0) :]
        heads = [line.split()[0].rstrip(",") for line in listed.splitlines() if line.startswith("  -")]
        for parameter in command.params:
            if parameter.param_type_name == "option":
                flags |= set(parameter.opts)
                assert sum(head in parameter.opts for head in heads) == 1, (verb, parameter.opts)
        assert told.count(f"{grouped_help.EVERY}:") == 1, verb
    grouped = {option for group in grouped_help.OPTIONS.values() for option in group}
    assert grouped - flags == {"--help"}


def test_options_of_reasoners_stand_apart(call: Call) -> None:
    told = call("recommend --help").out
    own = told[told.index("Models that reason:") :]
    assert "--reasoning-steps" in own and "--history" not in own and "--reasoning-steps" not in told[: -len(own)]


def test_recommenders_and_rankers_are_listed_apart(ask: Ask, call: Call) -> None:
    lines = call("list recipes").out.splitlines()
    cut = next(n for n, line in enumerate(lines) if line.startswith("Rankers:"))
    named = [[line.split()[0] for line in part if line.strip()] for part in (lines[:cut], lines[cut:])]
    for recipe in kinds("recipes"):
        assert recipe in named[find_experiment(recipe).problem == "ranking"], recipe
    told = {line["kind"]: line["needs"] for line in ask("list recipes")["kinds"]}
    assert told["hstu"] == "events, times" and told["srt"] == "events, titles"


@pytest.mark.parametrize("recipe", kinds("recipes"))
def test_what_a_recipe_says_that_it_needs_is_what_it_needs(recipe: str) -> None:
    needs, spec = needs_of(recipe), find_experiment(recipe)
    assert component(recipe, "recipes").needs == needs
    assert needs.startswith("impressions" if spec.problem == "ranking" else "events")
    model = spec.model
    attention = getattr(getattr(model, "encoder", None), "attention", None)
    items = model.items.kind_of() if hasattr(model, "items") else ""
    times = getattr(attention, "rel_bias", None) == "times" or model.kind_of() == "recency"
    times = times or getattr(attention, "kind", None) == "mojito" or items == "tpab"
    assert ("times" in needs) == times
    assert ("codes" in needs, needs.endswith(", titles")) == (items == "semantic", items in ("text", "unisrec"))


def test_commands_that_are_printed_can_be_pasted(call: Call) -> None:
    """A command with a value in it is made by `command_line`, which quotes: one typed into an f-string would not."""
    verbs = "|".join(verb for group in grouped_help.VERBS.values() for verb in group)
    for file in Path(fullrank.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else []
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
            typed = re.search(rf"fullrank ({verbs}) [^`\n]*{{}}", text)
            assert typed is None or (file.name, typed[0]) in OWN_NAMES, f"{file}:{node.lineno}: {typed[0]}"
    said = call("train popularity --data @data --out", "it's a folder")
    (line,) = (line for line in said.out.splitlines() if line.startswith("evaluate it: fullrank "))
    assert call(line.removeprefix("evaluate it: fullrank ")).code == 0


OWN_NAMES = {
    ("demo.py", "fullrank train {}"), ("names.py", "fullrank evaluate A B --metric {}"),
    ("reczoo.py", "fullrank download {}"), ("doctor_serve.py", "fullrank doctor {} {}"),
    ("study.py", "fullrank study {}"),
}  # fmt: skip
"""Values that are words of the library, or no command at all."""
