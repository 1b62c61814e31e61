"""Every line of `mistakes.md`, typed again: the error code, the sentence and the exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import mistakes

RECORDED = [line for line in mistakes.TABLE.read_text().splitlines() if "| `fullrank " in line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mistakes")
    mistakes.build(made)
    return made


def test_sixty_mistakes_are_one_sentence_each(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sentence says may change: then the table is written anew, and its difference read."""
    monkeypatch.chdir(folder)
    rows = {line: mistakes.row(line) for line in mistakes.lines()}
    assert len(rows) >= 60 and sorted(RECORDED) == sorted(rows.values())
    for line, row in rows.items():
        _, code, given, said, status, _ = row.replace(r"\|", "/").split("|")
        assert status.strip() == "2" and code.strip(), line
        assert given.strip(" `") == line.replace("|", "/")
        assert said.strip() and "Traceback" not in said and "Errno" not in said, row
