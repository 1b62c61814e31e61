"""`doctor` and `doctor-serve`: they pass here, they notice what is broken, and nothing is left behind."""

import os
import socket
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from fullrank.cli.doctor import selftest
from fullrank.core.errors import install_extra
from tests.cli.conftest import Ask, Call, Refuses


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


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_all_is_well(call: Call, tmp_path: Path) -> None:
    said = call(f"doctor-serve --store h.sqlite --run @sasrec --port {free_port()} --json")
    found = said.json["serve"]
    assert said.code == 0 and found["ok"], said.err
    assert found["store"]["promise"] and found["store"]["write_ms"] > 0 and found["run"]["ms"] > 0
    assert found["processor"]["cores"] >= 1 and found["packages"]["versions"]["fastapi"]
    assert os.listdir(tmp_path) == []
    assert "surviv" in said.err


def test_a_store_that_is_there_stays(call: Call, tmp_path: Path) -> None:
    from fullrank.cli import doctor_serve

    (tmp_path / "h.sqlite").touch()
    assert call(f"doctor-serve --store sqlite:h.sqlite --port {free_port()}").code == 0
    assert (tmp_path / "h.sqlite").exists() and doctor_serve.PORT == 8000


def test_what_is_not_in_order(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = call(f"doctor-serve --port {port} --json")
        assert said.code == 2 and str(port) in said.json["serve"]["problem"]
    (tmp_path / "torn.sqlite").write_bytes(b"no database" * 100)
    for words in ("--store torn.sqlite", "--store redis://127.0.0.1:1/0", "--store http://x", "--run ."):
        said = call(f"doctor-serve --port {free_port()} {words} --json")
        assert said.code == 2 and said.json["serve"]["problem"], words
    assert call(f"doctor-serve --port {free_port()} --store http://x").code == 2
    monkeypatch.setattr("importlib.metadata.version", Mock(side_effect=PackageNotFoundError("uvicorn")))
    said = call(f"doctor-serve --port {free_port()} --json")
    assert said.code == 2 and "[serve]" in said.json["serve"]["problem"]


def test_options_of_a_service_alone(refuses: Refuses) -> None:
    for word in ("--serve", "--run", "--store", "--port"):
        refuses("unknown-option", f"doctor {word}", word, "fullrank doctor-serve")
