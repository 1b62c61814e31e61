"""What holds for every verb: help, --json, and the way mistakes, bugs and interruptions end.

A bug stays visible: what no verb foresaw leaves with 1, says that it is a bug and where to report it. A catch-all in a
verb, or below it, would make a sentence and exit code 2 of it, and a test here fails.
"""

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
from tests.cli.conftest import Call, Refuses


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
        (ModuleNotFoundError("torch", name="torch.nn"), 2, "missing-package", "pip install torch"),
        (ModuleNotFoundError("fullrank.x", name="fullrank.x"), 1, "bug", "unexpected ModuleNotFoundError"),
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


WORK: dict[str, tuple[str, str]] = {
    "ask": ("ask http://127.0.0.1:9 --user 1", "fullrank.serving.client.Client.recommend"),
    "attention": ("attention @sasrec --user 1", "fullrank.run.Run.open"),
    "cascade": ("cascade @sasrec @sasrec", "fullrank.run.Run.open"),
    "check": ("check @data", "fullrank.data.check.event_findings"),
    "demo": ("demo --out out", "fullrank.data.sources.planted.Planted.read"),
    "diagnose": ("diagnose @sasrec", "fullrank.run.Run.model"),
    "doctor": ("doctor", "fullrank.cli.doctor._torch"),
    "doctor-serve": ("doctor-serve", "fullrank.cli.doctor_serve._packages"),
    "download": ("download planted --out out", "fullrank.data.sources.planted.Planted.files"),
    "encode": ("encode @data --out out --levels 2 --size 4", "fullrank.semantic_ids.encode.encode"),
    "auto": ("auto @data --out out --no-page", "fullrank.sweeps.auto.auto"),
    "blend": ("blend @sasrec @sasrec --out out", "fullrank.training.blending.blend"),
    "calibrate": ("calibrate @sasrec --out out", "fullrank.training.calibrate.calibrate"),
    "evaluate": ("evaluate @sasrec", "fullrank.run.Run.model"),
    "evaluate-lists": ("evaluate-lists events.csv @sasrec", "fullrank.run.Run.open"),
    "evaluate-log": ("evaluate-log @data --events events.csv", "fullrank.evaluation.logged.evaluate_log"),
    "keys add": ("keys add out --name shop", "fullrank.serving.keys._write"),
    "keys list": ("keys list events.csv", "fullrank.serving.keys.read_keys"),
    "keys remove": ("keys remove events.csv --name shop", "fullrank.serving.keys.read_keys"),
    "export": ("export @sasrec --to faiss --out out", "fullrank.run.Run.model"),
    "finetune": ("finetune @sasrec --data @data --out out", "fullrank.run.Run.model"),
    "fisher": ("fisher @sasrec --out out", "fullrank.run.Run.model"),
    "grow": (
        "grow @sasrec --items events.csv --start mean --out out", "fullrank.run.grow.grow_catalog",
    ),
    "list": ("list recipes", "fullrank.core.registry.kinds"),
    "pretrain": ("pretrain sasrec --data @data --data @data --out out", "fullrank.data.events.join.join_stores"),
    "predict": ("predict @sasrec events.csv", "fullrank.run.Run.open"),
    "prepare": ("prepare planted --out out", "fullrank.data.sources.planted.Planted.read"),
    "prepare-impressions": (
        "prepare-impressions planted_clicks --out out",
        "fullrank.data.sources.planted_clicks.PlantedClicks.impressions"),
    "recommend": ("recommend @sasrec --history 1", "fullrank.run.Run.model"),
    "recommend-parts": ("recommend-parts @sasrec --out lists", "fullrank.run.Run.model"),
    "report": ("report @sasrec --out out.html", "fullrank.run.Run.open"),
    "scale advise": ("scale advise events.csv --flops 1e15", "fullrank.analysis.scaling.read.read_ladder"),
    "scale fit": ("scale fit events.csv", "fullrank.analysis.scaling.read.read_ladder"),
    "scale growth": ("scale growth @data", "fullrank.analysis.scaling.growth.catalogue_growth"),
    "serve": ("serve @sasrec --store memory: --check", "fullrank.run.Run.model"),
    "schema": ("schema --kind transformer", "fullrank.core.registry.find"),
    "show": ("show sasrec", "fullrank.api.recipe"),
    "similar": ("similar @sasrec --item 1", "fullrank.run.Run.model"),
    "study dial": ("study dial @sasrec", "fullrank.run.Run.open"),
    "study drop": ("study drop @sasrec --shares 0.1", "fullrank.run.Run.model"),
    "study oracle-step": ("study oracle-step @sasrec", "fullrank.run.Run.model"),
    "study step-curve": ("study step-curve @sasrec", "fullrank.run.Run.model"),
    "subset": ("subset @data --share 0.5 --out out", "fullrank.data.events.subset.subset"),
    "sweep": ("sweep grid.yaml --data @data --out out", "fullrank.sweeps.sweep.run_sweep"),
    "train": (
        "train sasrec --data @data --out out --overwrite --set model.dim=8",
        "fullrank.training.loop.FitModule.training_step"),
    "tune": ("tune space.yaml --data @data --out out", "fullrank.sweeps.tune.tune"),
    "vectors": ("vectors @sasrec --out out.parquet", "fullrank.run.Run.model"),
    "verify": ("verify @sasrec", "fullrank.run.Run.open"),
}  # fmt: skip
"""Verb -> a command line, and what it calls that has the bug."""
GROUPS = {"keys", "scale", "study"}
"""Words that only verbs stand behind."""
BUGS = (TypeError, KeyError, RuntimeError, ZeroDivisionError, AttributeError)


@pytest.fixture
def files(tmp_path: Path) -> None:
    for name, text in {
        "events.csv": "user_id,item_id,timestamp,label,run,loss,flops\n1,2,3,1,a,0.5,1e9\n",
        "grid.yaml": "name: g\ncells: [{name: p, recipe: popularity}]\nseeds: [0]\n",
        "space.yaml": "cells: [sasrec]\nspace: {training.lr: {log: [0.001, 0.01]}}\ntrials: 2\n",
    }.items():
        (tmp_path / name).write_text(text)


def test_every_verb_is_in_the_table() -> None:
    assert set(WORK) | GROUPS == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("verb", WORK)
def test_a_bug_in_a_verb_leaves_with_one_and_says_where_to_report_it(
    verb: str, call: Call, files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, work = WORK[verb]
    for bug in BUGS:
        ran: list[bool] = []

        def fail(*_: object, bug: type[Exception] = bug, ran: list[bool] = ran, **__: object) -> None:
            ran.append(True)
            raise bug("planted")

        monkeypatch.setattr(work, fail)
        said = call(f"{line} --json")
        assert ran, f"{line} never calls {work}: {said.err[-500:]}"
        assert said.code == 1 and "Traceback" not in said.err, said.err[-2000:]
        assert said.json["code"] == "bug"
        for part in (bug.__name__, "planted", "bug", "report it", "--debug"):
            assert part in said.json["error"]
    assert "Traceback" in call(f"{line} --debug").err


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), OSError(24, "Too many open files"), OSError(30, "Read-only file system"),
              PermissionError(13, "Permission denied"), OSError(36, "File name too long"), OSError(5, "I/O error")],
)  # fmt: skip
def test_what_the_machine_refuses_is_no_bug(error: OSError, refuses: Refuses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullrank.core.registry.kinds", Mock(side_effect=error))
    refuses("file-error", "list recipes", error.strerror)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "\udcff", "a/" * 3000])
def test_a_name_that_no_file_can_have(name: str, call: Call) -> None:
    for words in (["evaluate", name], ["train", name, "--data", name, "--out", name], ["prepare", name, "--out", name],
                  ["prepare", "planted", "--out", name + "/b"], ["show", name]):  # fmt: skip
        said = call(*words, "--json")
        assert said.code == 2, (words[0], said.err[-500:])
