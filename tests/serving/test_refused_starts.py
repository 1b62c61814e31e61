"""A service that does not start leaves nothing: no store, no index, no promise, whatever it was refused for."""

import json
import shutil
import socket
import sys
from pathlib import Path

import pytest

from fullrank.cli import main
from fullrank.core.errors import UserError
from fullrank.serving.processes import tell_failure, told_failure
from serving.conftest import Shop


def test_whatever_is_refused_leaves_no_file_and_no_promise(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    damaged, place = tmp_path / "damaged", tmp_path / "place"
    shutil.copytree(shop.run.path, damaged)
    with (damaged / "weights.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x00\x01\x02\x03")
    place.mkdir()
    monkeypatch.chdir(place)
    run, taken = str(shop.run.path), socket.create_server(("127.0.0.1", 0))
    taken_port = [run, "--port", str(taken.getsockname()[1])]
    refusals = [
        ("not-a-run", [str(shop.store.path)]), ("not-a-run", ["nowhere"]),
        ("no-version", [str(damaged)]), ("no-version", [run, "--ranker", run]),
        ("address-in-use", taken_port), ("exposed-without-keys", [run, "--host", "0.0.0.0"]),
        ("file-unreadable", [run, "--keys", "keys.json"]), ("not-a-folder", [run, "--watch", "runs"]),
        ("no-version", [run, "--set", "exported=nowhere"]),
        ("setting-without-effect", [run, "--set", "rows_most=5"]),
        ("invalid-setting", [run, "--set", "keep=0"]), ("unknown-setting", [run, "--set", "kep=1"]),
        ("unknown-store-address", [run, "--store", "nonsense://somewhere"]),
        ("not-a-history-store", [run, "--store", str(tmp_path)]),
        ("store-of-one-process", [run, "--store", "memory:", "--workers", "2"]),
    ]  # fmt: skip
    for code, words in refusals:
        for check in ([], ["--check"]) if words is not taken_port else ([],):  # a check listens on no port
            port = [] if "--port" in words else ["--port", "0"]
            assert main(["serve", *words, *port, *check, "--json"]) == 2, words
            said = capfd.readouterr()
            assert json.loads(said.out)["code"] == code, said
            assert "survives" not in said.out + said.err and "Traceback" not in said.err, said
            assert not list(place.iterdir()), (words, list(place.iterdir()))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "uvicorn", None)
        without.delitem(sys.modules, "fullrank.serving.server", raising=False)
        assert main(["serve", run]) == 2 and not list(place.iterdir())
    assert main(["serve", run, "--check"]) == 0  # what starts has a store
    assert "survives" in capfd.readouterr().err and (place / "fullrank-serve.sqlite").exists()
    taken.close()


def test_the_parent_of_several_processes_hears_why() -> None:
    with told_failure() as failure:
        assert failure().code == "not-started"
        tell_failure(UserError("the run is gone", code="no-version"))
        assert (str(failure()), failure().code) == ("the run is gone", "no-version")
