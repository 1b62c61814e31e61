"""One tiny marketplace and its runs for all tests of the command line, and how to call a verb."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fullrank.cli import main
from tests.cli.mistakes import TINY, furnish


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
Ask = Callable[[str], Any]
Refuses = Callable[..., str]


@pytest.fixture
def call(shop: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`call("evaluate @sasrec --out kept")`: a line is typed in the folder of the test, `@` is that of the shop.

    What follows the line are more words, as they are.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(line: str, *more: str) -> Said:
        typed = [f"{shop}/{word[1:]}" if word.startswith("@") else word for word in shlex.split(line)]
        capfd.readouterr()
        code = main([*typed, *more])
        return Said(code, *capfd.readouterr())

    return run


@pytest.fixture
def ask(call: Call) -> Ask:
    """What a line that ends well says to a program."""

    def run(line: str) -> Any:
        said = call(f"{line} --json")
        assert said.code == 0, said.err
        return said.json

    return run


@pytest.fixture
def refuses(call: Call) -> Refuses:
    """`refuses("code", line, "named", ...)`: the command line ends with status 2, this code and one sentence.

    The sentence names these values (what was given, what is allowed); its prose may change. It is returned.
    """

    def run(code: str, line: str, *names: object) -> str:
        said = call(f"{line} --json")
        assert said.code == 2 and "Traceback" not in said.err, said.err
        sentence = str(said.json["error"])
        assert said.err.splitlines()[-1] == f"Error: {sentence}"
        assert said.json["code"] == code, said.json
        for name in names:
            assert str(name) in sentence, f"{name!r} is not named in: {sentence}"
        return sentence

    return run


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data` (a store) and the runs `popularity`, `item_to_item` and `sasrec` (one epoch, tiny)."""
    return furnish(tmp_path_factory.mktemp("shop"), popularity="", item_to_item="", sasrec=TINY)


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test of `doctor` has passed, in no time."""
    facts = {"ok": True, "problem": None, "parameters": 1, "seconds": 0.0, "recall": 1.0, "chance": 0.25}
    monkeypatch.setattr("fullrank.cli.doctor.selftest", lambda: facts)
