"""Damaged folders: what is wrong is told or does not matter, and nothing in a folder runs (`tamper`, `damage`)."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.attack.damage import BY_SUFFIX, Damage, Evil, apply, kinds_of_files
from tests.attack.frame import attack, every
from tests.attack.tamper import ALL, SPECIMENS, Reader, cases, furnish, judged, tampered, whole_answer

RECOMMEND = next(reader for reader in ALL if reader.name == "item_to_item-recommend")
HARMLESS = Damage("as it was", lambda path: None)


@every(ALL, [RECOMMEND], "reader")
def test_a_damaged_folder(reader: Reader) -> None:
    count, damages = cases(reader.specimen)
    attack("tamper", reader.verb, damages, partial(tampered, reader), count * reader.draws, reader.specimen.name)


@pytest.mark.attack
@pytest.mark.slow
def test_every_file_of_a_folder_is_known() -> None:
    """A file with a new suffix fails here until `damage.BY_SUFFIX` knows what it can get wrong."""
    for specimen in SPECIMENS:
        unknown = {Path(name).suffix for name in kinds_of_files(specimen.folder)} - BY_SUFFIX.keys()
        assert not unknown, f"{specimen.name}: {unknown}"


@every(ALL, name="reader")
def test_verbs_answer_to_a_whole_folder(reader: Reader) -> None:
    """Else every damage would be refused, and nothing be compared; twice, since no two calls share all figures."""
    assert whole_answer(reader) == whole_answer.__wrapped__(reader)


def outcome(reader: Reader, folder: Path, damage: Damage = HARMLESS, file: str = "items.parquet") -> str:
    it = furnish(reader.specimen, folder)
    if damage is not HARMLESS:
        apply(it, file, damage)
    return judged(reader, file, damage, folder).kind


def test_a_folder_that_is_as_it_was_passes(tmp_path: Path) -> None:
    assert outcome(RECOMMEND, tmp_path) == "ok"


def test_another_answer_is_silent(tmp_path: Path) -> None:
    """As if a reader took whatever lay there."""
    taken = replace(RECOMMEND, ask=lambda it, out: 2 if it.parent == tmp_path else 1)
    assert outcome(taken, tmp_path) == "silent"


def test_code_that_a_folder_runs_is_noticed(tmp_path: Path) -> None:
    runs = replace(
        RECOMMEND, ask=lambda it, out: it.parent == tmp_path and pickle.loads((it / "weights.safetensors").read_bytes())
    )
    evil = Damage("a pickle", lambda path: path.write_bytes(pickle.dumps(Evil())))
    assert outcome(runs, tmp_path, evil, "weights.safetensors") == "native"
