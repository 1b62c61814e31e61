"""What holds for every verb: help, --json, and the way mistakes, bugs and interruptions end."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pytest
import torch
import typer

from fullrank.cli import VERBS, build
from fullrank.cli.options import shortcuts
from fullrank.core.errors import UserError
from fullrank.core.spec import read_setting
from tests.cli.conftest import Call


def commands(group: Any, prefix: str = "") -> dict[str, Any]:
    """Every verb, and those of groups as `scale fit`."""
    found = {}
    for name, command in group.commands.items():
        found[prefix + name] = command
        found |= commands(command, f"{prefix}{name} ") if hasattr(command, "commands") else {}
    return found


COMMANDS = commands(typer.main.get_command(build()))


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_help_of_every_verb_explains_it(verb: str, call: Call) -> None:
    said = call(f"{verb} --help")
    assert said.code == 0 and said.err == ""
    assert "--json" in said.out, "every verb takes --json"
    assert f"  fullrank {verb}" in said.out, "every verb shows an example"
    assert all(len(line) <= 80 for line in said.out.splitlines() if not line.startswith("  fullrank "))
    assert not any(word in said.out for word in ("list[", "Path]", "None", " <")), "a type of Python"
    for parameter in COMMANDS[verb].params:
        assert parameter.help, f"{verb} {parameter.name} has no help"


def test_without_a_verb_the_help_is_printed(call: Call) -> None:
    said = call("")
    assert said.code == 0 and "Begin:" in said.out and "..." not in said.out.split("Begin:")[1]


def test_every_verb_module_is_listed() -> None:
    folder = Path(importlib.import_module("fullrank.cli").__file__ or "").parent
    assert set(VERBS) == {file.stem for file in folder.glob("*.py") if file.read_text().startswith('"""`fullrank ')}


def test_version(call: Call) -> None:
    assert call("--version").out.startswith("fullrank 0.")


@pytest.mark.parametrize(
    ("line", "code", "hint"),
    [
        ("scale fti", "unknown-verb", "did you mean 'fit'"),
        ("prepare x.csv --kcore 5", "unknown-option", "did you mean '--k-core'"),
        ("encode x --out y --pca 0", "usage", "'--pca'"),
        ("evaluate x --reasoning-steps -1", "usage", "'--reasoning-steps'"),
        ("list recipes more", "usage", "unexpected extra argument"),
    ],
)
def test_usage_mistakes_are_one_sentence_and_exit_code_2(line: str, code: str, hint: str, call: Call) -> None:
    said = call(line)
    assert said.code == 2 and said.out == ""
    assert hint in said.err and said.err.startswith("Error: ") and len(said.err.splitlines()) == 1
    told = call(f"{line} --json").json
    assert told["error"] in said.err and told["code"] == code


@pytest.mark.parametrize("line", ["--debug show nope", "show nope --debug", "show --debug nope"])
def test_debug_shows_the_traceback_wherever_it_stands(line: str, call: Call) -> None:
    said = call(line)
    assert said.code == 2 and "Traceback" in said.err
    assert "Traceback" not in call("show nope").err


SIGNALLED = UserError("it is damaged", code="table-unreadable")
"""A signal arrived inside polars, which then panicked."""
SIGNALLED.__context__ = pl.exceptions.PanicException("called `Result::unwrap()`: <class 'KeyboardInterrupt'>")


@pytest.mark.parametrize(
    ("error", "status", "code", "sentence"),
    [
        (UserError("no such thing", code="no-such-thing"), 2, "no-such-thing", "no such thing"),
        (KeyboardInterrupt(), 130, "interrupted", "interrupted"),
        (SIGNALLED, 130, "interrupted", "interrupted"),
        (FileNotFoundError(2, "No such file", "a/b"), 2, "file-error", "a/b: No such file"),
        (ModuleNotFoundError("faiss", name="faiss"), 2, "missing-package", "[codes]"),
        (MemoryError(), 2, "out-of-memory", "memory"),
        (RuntimeError("[x] DefaultCPUAllocator: can't allocate memory: 8 bytes"), 2, "out-of-memory", "memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), 2, "out-of-memory", "memory"),
        (ZeroDivisionError("oh"), 1, "bug", "unexpected ZeroDivisionError: oh"),
    ],
)
def test_how_an_error_inside_a_verb_ends(
    error: BaseException, status: int, code: str, sentence: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fullrank.core.registry.kinds", Mock(side_effect=error))
    said = call("list recipes")
    assert said.code == status and sentence in said.err and "Traceback" not in said.err
    told = call("list recipes --json").json
    assert sentence in told["error"] and told["code"] == code


@pytest.mark.process
def test_a_title_that_the_terminal_cannot_print_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "caf\u00e9.yaml").write_text("seed: -1")
    env = {"PYTHONPATH": str(Path("src").resolve()), "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "fullrank", "show", str(tmp_path / "caf\u00e9.yaml"), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2, done.stderr
    assert "caf\u00e9" in json.loads(done.stdout)["error"] and "UnicodeEncodeError" not in done.stderr


def test_a_reader_that_leaves_early_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m fullrank list recipes | head -c 1", shell=True, capture_output=True, text=True,
        env={"PYTHONPATH": str(Path("src").resolve()), "PATH": "/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


@pytest.mark.process
@pytest.mark.parametrize("line", ["--help", "train --help", "list", "list recipes", "list sources --json"])
def test_what_only_talks_loads_no_torch(line: str) -> None:
    assert not {"torch", "lightning", "polars", "pandas"} & _loaded(line)


@pytest.mark.process
def test_prepare_and_growth_load_neither_torch_nor_lightning(tmp_path: Path) -> None:
    loaded = _loaded(f"prepare planted --set source.users=50 --out {tmp_path}/data")
    assert not {"torch", "lightning", "pytorch_lightning"} & loaded and "polars" in loaded
    assert "torch" not in _loaded(f"scale growth {tmp_path}/data")


def _loaded(line: str) -> set[str]:
    code = f"import sys, json; from fullrank.cli import main; code = main({line.split()!r}); "
    code += "print(json.dumps([code, [m for m in sys.modules if '.' not in m]]))"
    env = {"PYTHONPATH": str(Path("src").resolve()), "POLARS_MAX_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    status, modules = json.loads(done.stdout.splitlines()[-1])
    assert status == 0, done.stderr
    return set(modules)


def test_stdout_holds_the_json_alone_whatever_prints(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def chatty(name: str) -> list[str]:
        print("chatter")
        return ["a"]

    monkeypatch.setattr("fullrank.core.registry.kinds", chatty)
    said = call("list losses --json")
    assert said.json["kinds"][0]["kind"] == "a" and "chatter" in said.err


def test_processes_behind_the_first_are_silent(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert call("list recipes").out == ""


def test_an_option_of_a_setting_takes_any_text() -> None:
    """YAML reads the two halves of an escaped character above U+FFFF as two characters that no file name has."""
    assert read_setting(shortcuts({"ranker": "🛋 größe"}, None)[0]) == ("ranker", "🛋 größe")
