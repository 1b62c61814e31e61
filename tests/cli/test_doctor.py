"""`doctor` and its self-test: it passes here, and it notices what is broken."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from fullrank.cli.doctor import selftest
from fullrank.core.errors import install_extra
from tests.cli.conftest import Ask, Call


def test_a_sound_installation(call: Call, tmp_path: Path) -> None:
    said = call("doctor --json")
    found = said.json
    assert said.code == 0, said.err
    assert "note" not in said.err, said.err
    assert found["self_test"]["ok"] and found["folder"]["ok"] and found["torch"]["version"] == torch.__version__
    assert found["extras"]["tune"]["install"] == install_extra("tune")
    assert all(found["packages"].values()) and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(learned: None, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryDirectory", Mock(side_effect=PermissionError(13, "Permission denied")))
    said = call("doctor")
    assert said.code == 2 and "Permission denied" in said.err
    assert call("doctor --json").code == 2


@pytest.mark.parametrize(
    ("name", "broken", "status"),
    [
        ("fullrank.core.file_system.exchange", lambda one, other: False, 0),
        ("fullrank.core.locks._acquire", lambda *_: None, 0),
        ("fullrank.core.file_system.flush", os.unlink, 2),
        ("pathlib.Path.replace", lambda self, target: None, 2),
    ],
)
def test_what_a_file_system_lacks_is_told(
    name: str, broken: Any, status: int, learned: None, ask: Ask, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(ask("doctor")["folder"]["file_system"].values()) == {None}
    monkeypatch.setattr(name, broken)
    said = call("doctor --json")
    lacking = [one for one, why in said.json["folder"]["file_system"].items() if why is not None]
    assert (said.code, len(lacking)) == (status, 1)


def test_the_self_test_notices_a_model_that_does_not_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, closure=None: closure() if closure else None)
    found = selftest()
    assert not found["ok"] and "was expected" in found["problem"]
