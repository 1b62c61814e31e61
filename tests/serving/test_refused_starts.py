"""A service that does not start leaves nothing: no store, no index, no promise, whatever it was refused for."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import pytest

from fullrank.cli import main
from serving.conftest import Shop


def test_whatever_is_refused_leaves_no_file_and_no_promise(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    damaged, place = tmp_path / "damaged", tmp_path / "place"
    shutil.copytree(shop.run.path, damaged)
    with (damaged / "weights.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x00\x01\x02\x03")
    place.mkdir()
    monkeypatch.chdir(place)
    run, taken = str(shop.run.path), socket.create_server(("127.0.0.1", 0))
    refusals = {
        "a store": [str(shop.store.path)],
        "nothing": ["nowhere"],
        "damaged weights": [str(damaged)],
        "no ranking model": [run, "--ranker", run],
        "a taken port": [run, "--port", str(taken.getsockname()[1])],
        "no keys": [run, "--host", "0.0.0.0"],
        "no such file of keys": [run, "--keys", "keys.json"],
        "no folder to watch": [run, "--watch", "runs"],
        "no such export": [run, "--set", "exported=nowhere"],
        "a setting of other models": [run, "--set", "rows_most=5"],
        "a bad setting": [run, "--set", "keep=0"],
        "an unknown setting": [run, "--set", "kep=1"],
    }
    for what, words in refusals.items():
        for check in ([], ["--check"]):
            if check and what == "a taken port":  # it listens on none
                continue
            port = [] if "--port" in words else ["--port", "0"]
            assert main(["serve", *words, *port, *check]) == 2, what
            said = capfd.readouterr()
            assert "survives" not in said.out + said.err and "Error: " in said.err, (what, said)
            assert not list(place.iterdir()), (what, list(place.iterdir()))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "uvicorn", None)
        without.delitem(sys.modules, "fullrank.serving.server", raising=False)
        assert main(["serve", run]) == 2 and not list(place.iterdir())
    assert main(["serve", run, "--check"]) == 0  # what starts has a store
    assert "survives" in capfd.readouterr().err and (place / "fullrank-serve.sqlite").exists()
    taken.close()
