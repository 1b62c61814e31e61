"""A bug stays visible: what no verb foresaw leaves with 1, says that it is a bug and where to report it.

A catch-all in a verb, or below it, would make a sentence and exit code 2 of it, and this fails.
"""

from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.cli.conftest import Call, Refuses
from tests.cli.test_main import COMMANDS

WORK: dict[str, tuple[str, str]] = {
    "ask": ("ask http://127.0.0.1:9 --user 1", "fullrank.serving.client.Client.recommend"),
    "attention": ("attention @sasrec --user 1", "fullrank.run.Run.open"),
    "cascade": ("cascade @sasrec @sasrec", "fullrank.run.Run.open"),
    "demo": ("demo --out out", "fullrank.data.sources.planted.Planted.read"),
    "diagnose": ("diagnose @sasrec", "fullrank.run.Run.model"),
    "doctor": ("doctor", "fullrank.cli.doctor._torch"),
    "doctor-serve": ("doctor-serve", "fullrank.cli.doctor_serve._packages"),
    "download": ("download planted --out out", "fullrank.data.sources.planted.Planted.files"),
    "encode": ("encode @data --out out --levels 2 --size 4", "fullrank.semantic_ids.encode.encode"),
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
        "grow @sasrec --items events.csv --start mean --out out", "fullrank.training.grow.grow_catalog",
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
    "scale advise": ("scale advise events.csv --flops 1e15", "fullrank.scaling.read.read_ladder"),
    "scale fit": ("scale fit events.csv", "fullrank.scaling.read.read_ladder"),
    "scale growth": ("scale growth @data", "fullrank.scaling.growth.catalogue_growth"),
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
