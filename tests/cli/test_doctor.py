"""`doctor` and its self-test: it passes here, and it notices what is broken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fullrank.cli.doctor import selftest
from fullrank.core.errors import install_extra

if TYPE_CHECKING:
    from conftest import Call


def test_a_sound_installation(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = call("doctor", "--json")
    found = said.json
    assert said.code == 0, said.err
    assert "note" not in said.err, said.err
    assert found["self_test"]["ok"] and found["folder"]["ok"] and found["torch"]["version"] == torch.__version__
    assert found["extras"]["tune"]["install"] == install_extra("tune")
    assert all(found["packages"].values()) and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    facts = {"ok": True, "problem": None, "parameters": 1, "seconds": 0.0, "recall": 1.0, "chance": 0.25}
    monkeypatch.setattr("fullrank.cli.doctor.selftest", lambda: facts)
    said = call("doctor")
    assert said.code == 2 and "Permission denied" in said.err
    assert call("doctor", "--json").code == 2


@pytest.mark.parametrize(
    ("name", "broken", "status"),
    [
        ("fullrank.core.file_system.exchange", lambda one, other: False, 0),
        ("fullrank.core.locks._acquire", lambda path, place: None, 0),
        ("fullrank.core.file_system.flush", os.unlink, 2),
        ("pathlib.Path.replace", lambda self, target: None, 2),
    ],
)
def test_what_a_file_system_lacks_is_told(
    name: str, broken: Any, status: int, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"ok": True, "problem": None, "parameters": 1, "seconds": 0.0, "recall": 1.0, "chance": 0.25}
    monkeypatch.setattr("fullrank.cli.doctor.selftest", lambda: facts)
    monkeypatch.chdir(tmp_path)
    assert set(call("doctor", "--json").json["folder"]["file_system"].values()) == {None}
    monkeypatch.setattr(name, broken)
    said = call("doctor", "--json")
    lacking = [one for one, why in said.json["folder"]["file_system"].items() if why is not None]
    assert (said.code, len(lacking)) == (status, 1)


def test_the_self_test_notices_a_model_that_does_not_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, closure=None: closure() if closure else None)
    found = selftest()
    assert not found["ok"] and "was expected" in found["problem"]
