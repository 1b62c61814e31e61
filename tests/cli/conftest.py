"""One tiny marketplace and its runs for all tests of the command line, and how to call a verb."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fullrank.cli import main


@dataclass(frozen=True)
class Said:
    """What one command line left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The object in the only line of stdout."""
        lines = self.out.splitlines()
        assert len(lines) == 1, f"stdout must hold one line with --json: {self.out!r}"
        return json.loads(lines[0])


Call = Callable[..., Said]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    def run(*words: object) -> Said:
        capfd.readouterr()
        code = main([str(word) for word in words])
        out, err = capfd.readouterr()
        return Said(code, out, err)

    return run


Refuses = Callable[..., str]


@pytest.fixture
def refuses(call: Call) -> Refuses:
    """`refuses("code", words, "named", ...)`: the command line ends with status 2, this code and one sentence.

    The sentence names these values (what was given, what is allowed); its prose may change. It is returned.
    """

    def run(code: str, words: Sequence[object], *names: object) -> str:
        said = call(*words, "--json")
        assert said.code == 2 and "Traceback" not in said.err, said.err
        sentence = said.json["error"]
        assert said.err.splitlines()[-1] == f"Error: {sentence}"
        assert said.json["code"] == code, said.json
        for name in names:
            assert str(name) in sentence, f"{name!r} is not named in: {sentence}"
        return str(sentence)

    return run


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data` (a store) and the runs `popularity`, `item_to_item` and `sasrec` (one epoch, tiny)."""
    home = tmp_path_factory.mktemp("shop")
    small = ["--set", "source.users=150", "--set", "source.items=60"]
    assert main(["prepare", "planted", *small, "--out", str(home / "data")]) == 0
    tiny = ["--set", "model.dim=8", "--set", "model.encoder.layers=1", "--set", "training.max_epochs=1"]
    for recipe, settings in {"popularity": [], "item_to_item": [], "sasrec": tiny}.items():
        assert main(["train", recipe, "--data", str(home / "data"), "--out", str(home / recipe), *settings]) == 0
    return home
