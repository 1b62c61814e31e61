"""Damaged folders: what is wrong is told or does not matter, and nothing in a folder runs (`tamper`, `mutations`)."""

from __future__ import annotations

import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.attack import specimens, tamper
from tests.attack.damage import Evil, Mutation
from tests.attack.frame import Case, Said, attacks, check
from tests.attack.mutations import damage
from tests.attack.specimens import FORMATS, SPECIMENS, Specimen
from tests.attack.tamper_verbs import Verb, verbs_of


@pytest.fixture(scope="module", autouse=True)
def made() -> None:
    """The folders are made before the clock of a case begins."""
    tamper.world()


@attacks(tamper.cases(), one_in=100)
def test_a_damaged_folder(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda one: one.name)
def test_every_file_of_a_folder_is_known(specimen: Specimen) -> None:
    """A new file of a format fails here until the generators know its kind."""
    found = specimens.files(specimen, tamper.world())
    held = {pattern for pattern in FORMATS[specimen.format] if any(specimens.fits(name, pattern) for name in found)}
    assert held == set(specimen.patterns)


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda one: one.name)
def test_verbs_answer_to_a_whole_folder(specimen: Specimen) -> None:
    """Else every damage would be refused, and nothing be compared; twice, since no two calls share all figures."""
    for verb in verbs_of(specimen):
        assert tamper.whole_answer(specimen, verb) == tamper.whole_answer.__wrapped__(specimen, verb), verb.name


SPECIMEN = next(one for one in SPECIMENS if one.name == "item_to_item")
RECOMMEND = next(verb for verb in verbs_of(SPECIMEN) if verb.name == "recommend")
HARMLESS = Mutation("as it was", lambda path: None)


def outcome(verb: Verb, place: Path, mutation: Mutation = HARMLESS, file: str = "items.parquet") -> str:
    it = place / SPECIMEN.name
    shutil.copytree(tamper.world() / SPECIMEN.name, it)
    if mutation is not HARMLESS:
        damage(it, file, mutation)
    return tamper.judged(SPECIMEN, verb, file, mutation, tamper.world(), it, place).kind


def test_a_folder_that_is_as_it_was_passes(tmp_path: Path) -> None:
    assert outcome(RECOMMEND, tmp_path) == "ok"


def test_another_answer_is_silent(tmp_path: Path) -> None:
    """As if a reader took whatever lay there: the histories of other people are asked about."""

    def ask(home: Path, it: Path, out: Path) -> Said:
        said = RECOMMEND.ask(home, it, out)
        return replace(said, out=said.out.replace('"i1"', '"i2"')) if it.parent == tmp_path else said

    assert outcome(replace(RECOMMEND, ask=ask), tmp_path) == "silent"


def test_code_that_a_folder_runs_is_noticed(tmp_path: Path) -> None:
    def ask(home: Path, it: Path, out: Path) -> Said:
        pickle.loads((it / "weights.safetensors").read_bytes())
        return RECOMMEND.ask(home, tamper.world() / SPECIMEN.name, out)

    evil = Mutation("a pickle", lambda path: path.write_bytes(pickle.dumps(Evil())))
    assert outcome(replace(RECOMMEND, ask=ask), tmp_path, evil, "weights.safetensors") == "native"


def test_a_file_of_a_new_kind_is_noticed(tmp_path: Path) -> None:
    folder = shutil.copytree(tamper.world() / SPECIMEN.name, tmp_path / SPECIMEN.name)
    (folder / "extra.bin").write_bytes(b"1")
    with pytest.raises(AssertionError, match=re.escape("extra.bin")):
        specimens.files(SPECIMEN, tmp_path)


def test_damages_are_the_same_in_every_run() -> None:
    for file in ("items.parquet", "spec.json", "weights.safetensors"):
        names = [one.name for one in tamper.damages(SPECIMEN, file)]
        tamper.damages.cache_clear()
        assert names == [one.name for one in tamper.damages(SPECIMEN, file)] and len(set(names)) == len(names)
