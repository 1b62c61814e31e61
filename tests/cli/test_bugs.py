"""A bug stays visible: what no verb foresaw leaves with 1, says that it is a bug and where to report it.

A catch-all in a verb, or below it, would make a sentence and exit code 2 of it, and this fails.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.test_main import COMMANDS

if TYPE_CHECKING:
    from conftest import Call

WORK: dict[str, tuple[str, str]] = {
    "attention": ("attention SASREC --user 1", "fullrank.run.Run.open"),
    "cascade": ("cascade SASREC SASREC", "fullrank.run.Run.open"),
    "demo": ("demo --out OUT", "fullrank.data.sources.planted.Planted.read"),
    "diagnose": ("diagnose SASREC", "fullrank.run.Run.model"),
    "doctor": ("doctor", "fullrank.cli.doctor._torch"),
    "download": ("download planted --out OUT", "fullrank.data.sources.planted.Planted.files"),
    "encode": ("encode DATA --out OUT --levels 2 --size 4", "fullrank.semantic_ids.encode.encode"),
    "calibrate": ("calibrate SASREC --out OUT", "fullrank.training.calibrate.calibrate"),
    "evaluate": ("evaluate SASREC", "fullrank.run.Run.model"),
    "keys add": ("keys add OUT --name shop", "fullrank.serving.keys._write"),
    "keys list": ("keys list EVENTS", "fullrank.serving.keys.read_keys"),
    "keys remove": ("keys remove EVENTS --name shop", "fullrank.serving.keys.read_keys"),
    "export": ("export SASREC --to faiss --out OUT", "fullrank.run.Run.model"),
    "finetune": ("finetune SASREC --data DATA --out OUT", "fullrank.run.Run.model"),
    "fisher": ("fisher SASREC --out OUT", "fullrank.run.Run.model"),
    "grow": ("grow SASREC --items EVENTS --start mean --out OUT", "fullrank.training.cold_start.grow.grow_catalog"),
    "list": ("list recipes", "fullrank.core.registry.kinds"),
    "pretrain": ("pretrain sasrec --data DATA --data DATA --out OUT", "fullrank.data.events.join.join_stores"),
    "predict": ("predict SASREC EVENTS", "fullrank.run.Run.open"),
    "prepare": ("prepare planted --out OUT", "fullrank.data.sources.planted.Planted.read"),
    "prepare-impressions": (
        "prepare-impressions planted_clicks --out OUT",
        "fullrank.data.sources.planted_clicks.PlantedClicks.impressions"),
    "recommend": ("recommend SASREC --history 1", "fullrank.run.Run.model"),
    "report": ("report SASREC --out OUT.html", "fullrank.run.Run.open"),
    "scale advise": ("scale advise EVENTS --flops 1e15", "fullrank.scaling.read.read_ladder"),
    "scale fit": ("scale fit EVENTS", "fullrank.scaling.read.read_ladder"),
    "scale growth": ("scale growth EVENTS", "fullrank.scaling.growth.catalogue_growth"),
    "serve": ("serve SASREC --store memory: --check", "fullrank.run.Run.model"),
    "schema": ("schema --kind transformer", "fullrank.core.registry.find"),
    "show": ("show sasrec", "fullrank.api.recipe"),
    "similar": ("similar SASREC --item 1", "fullrank.run.Run.model"),
    "subset": ("subset DATA --share 0.5 --out OUT", "fullrank.data.events.subset.subset"),
    "sweep": ("sweep GRID --data DATA --out OUT", "fullrank.sweeps.sweep.run_sweep"),
    "train": (
        "train sasrec --data DATA --out OUT --overwrite --set model.dim=8",
        "fullrank.training.loop.FitModule.training_step"),
    "tune": ("tune SPACE --data DATA --out OUT", "fullrank.sweeps.tune.tune"),
    "vectors": ("vectors SASREC --out OUT.parquet", "fullrank.run.Run.model"),
    "verify": ("verify SASREC", "fullrank.run.Run.open"),
}  # fmt: skip
"""Verb -> a command line, and what it calls that has the bug."""
GROUPS = {"keys", "scale"}
"""Words that only verbs stand behind."""
BUGS = (TypeError, KeyError, RuntimeError, ZeroDivisionError, AttributeError)


@pytest.fixture
def places(shop: Path, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "events.csv").write_text("user_id,item_id,timestamp,label,run,loss,flops\n1,2,3,1,a,0.5,1e9\n")
    (tmp_path / "grid.yaml").write_text("name: g\ncells: [{name: p, recipe: popularity}]\nseeds: [0]\n")
    (tmp_path / "space.yaml").write_text(
        "cells: [{name: s, recipe: sasrec}]\nspace: {training.lr: {log: [0.001, 0.01]}}\ntrials: 2\n"
    )
    return {
        "DATA": str(shop / "data"), "SASREC": str(shop / "sasrec"), "OUT": str(tmp_path / "out"),
        "EVENTS": str(tmp_path / "events.csv"), "GRID": str(tmp_path / "grid.yaml"),
        "SPACE": str(tmp_path / "space.yaml"), "OUT.html": str(tmp_path / "out.html"),
        "OUT.parquet": str(tmp_path / "out.parquet"),
    }  # fmt: skip


def test_every_verb_is_in_the_table() -> None:
    assert set(WORK) | GROUPS == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("verb", WORK)
def test_a_bug_in_a_verb_leaves_with_one_and_says_where_to_report_it(
    verb: str, call: Call, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, work = WORK[verb]
    words = [places.get(word, word) for word in line.split()]
    for bug in BUGS:
        ran: list[bool] = []

        def fail(*_: object, bug: type[Exception] = bug, ran: list[bool] = ran, **__: object) -> None:
            ran.append(True)
            raise bug("planted")

        monkeypatch.setattr(work, fail)
        said = call(*words, "--json")
        assert ran, f"{line} never calls {work}: {said.err[-500:]}"
        assert said.code == 1 and "Traceback" not in said.err, said.err[-2000:]
        assert said.json["code"] == "bug"
        for part in (bug.__name__, "planted", "bug", "report it", "--debug"):
            assert part in said.json["error"]
    assert "Traceback" in call(*words, "--debug").err


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"),
     type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2 GiB")],
)  # fmt: skip
def test_too_little_memory_is_no_bug(error: Exception, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(room: str) -> None:
        raise error

    monkeypatch.setattr("fullrank.core.registry.kinds", fail)
    said = call("list", "recipes", "--json")
    assert said.code == 2 and said.json["code"] == "out-of-memory"


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), OSError(24, "Too many open files"), OSError(30, "Read-only file system"),
              PermissionError(13, "Permission denied"), OSError(36, "File name too long"), OSError(5, "I/O error")],
)  # fmt: skip
def test_what_the_machine_refuses_is_no_bug(error: OSError, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(room: str) -> None:
        raise error

    monkeypatch.setattr("fullrank.core.registry.kinds", fail)
    said = call("list", "recipes", "--json")
    assert said.code == 2 and said.json["code"] == "file-error" and str(error.strerror) in said.json["error"]


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "\udcff", "a/" * 3000])
def test_a_name_that_no_file_can_have(name: str, call: Call, tmp_path: Path) -> None:
    for words in (["evaluate", name], ["train", name, "--data", name, "--out", name], ["prepare", name, "--out", name],
                  ["prepare", "planted", "--out", name + "/b"], ["show", name]):  # fmt: skip
        said = call(*words, "--json")
        assert said.code == 2, (words[0], said.err[-500:])
