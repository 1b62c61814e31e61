"""Damaged folders: what is wrong is told or does not matter, and nothing in a folder runs (`tamper`, `damage`)."""

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.attack.damage import BY_SUFFIX, Damage, Evil, kinds_of_files
from tests.attack.frame import attack, every
from tests.attack.tamper import ALL, Reader, cases, tampered, whole_answer

RECOMMEND = next(reader for reader in ALL if reader.name == "item_to_item-recommend")


@every(ALL, [RECOMMEND], "reader")
def test_a_damaged_folder(reader: Reader) -> None:
    count, damages = cases(reader)
    attack("tamper", reader.verb, damages, partial(tampered, reader), count * reader.draws, reader.specimen)


@pytest.mark.attack
@pytest.mark.slow
def test_every_file_of_a_folder_is_known() -> None:
    """A file with a new suffix fails here until `damage.BY_SUFFIX` knows what it can get wrong."""
    for reader in ALL:
        unknown = {Path(name).suffix for name in kinds_of_files(reader.folder)} - BY_SUFFIX.keys()
        assert not unknown, f"{reader.specimen}: {unknown}"


@every(ALL, name="reader")
def test_verbs_answer_to_a_whole_folder(reader: Reader) -> None:
    """Else every damage would be refused, and nothing be compared; twice, since no two calls share all figures."""
    assert whole_answer(reader) == whole_answer.__wrapped__(reader)


def kind_of(ask: Any, folder: Path, damage: Damage, file: str) -> str:
    return tampered(replace(RECOMMEND, ask=ask), (file, damage), folder).kind


def test_another_answer_is_silent(tmp_path: Path) -> None:
    """As if a reader took whatever lay there."""
    less = Damage("a line less", lambda path: path.write_bytes(b""))
    for kind, answer in {"ok": 1, "silent": 2}.items():
        home = tmp_path / kind
        home.mkdir()
        taken = partial(lambda answer, home, it, out: answer if it.parent == home else 1, answer, home)
        assert kind_of(taken, home, less, "items.parquet") == kind


def test_code_that_a_folder_runs_is_noticed(tmp_path: Path) -> None:
    def runs(it: Path, out: Path) -> bool:
        return it.parent == tmp_path and pickle.loads((it / "weights.safetensors").read_bytes())

    evil = Damage("a pickle", lambda path: path.write_bytes(pickle.dumps(Evil())))
    assert kind_of(runs, tmp_path, evil, "weights.safetensors") == "native"
