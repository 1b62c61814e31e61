"""Damaged folders: what is wrong is told or does not matter, and nothing in a folder runs (`tamper`, `mutations`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack import specimens, tamper
from tests.attack.frame import Case, attacks, check
from tests.attack.specimens import FORMATS, SPECIMENS, Specimen


@attacks(tamper.cases(), one_in=100)
def test_a_damaged_folder(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda one: one.name)
def test_every_file_of_a_folder_is_known(specimen: Specimen) -> None:
    """A new file of a format fails here until the generators know its kind."""
    found = specimens.files(specimen, tamper.world())
    held = {pattern for pattern in FORMATS[specimen.format] if any(specimens.fits(name, pattern) for name in found)}
    assert held == set(specimen.patterns)
