"""The targets of the fuzzers read what is whole, refuse what is not, and read what was once found to break a reader."""

import random
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

FOUND = sorted((Path(__file__).parent / "found").glob("*/*"))


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_read_and_damages_refused(name: str, tmp_path: Path) -> None:
    target, draw = TARGETS[name], random.Random(0)
    seeds = target.seeds()
    assert any(target(seed, tmp_path) for seed in seeds), "no whole file is read"
    refused = 0
    for seed in seeds:
        at = draw.randrange(1, len(seed))
        for data in (seed[:at], seed[:at] + bytes([seed[at] ^ 128]) + seed[at + 1 :], b"", seed[:at] + seed):
            refused += not target(data, tmp_path)
    assert refused, "nothing that is damaged is refused"


@pytest.mark.parametrize("file", FOUND, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_what_a_fuzzer_found_is_refused_or_read(file: Path, tmp_path: Path) -> None:
    TARGETS[file.parent.name](file.read_bytes(), tmp_path)
