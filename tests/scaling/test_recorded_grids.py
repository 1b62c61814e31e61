"""Every grid and every search that results/ names can be read, and each of its cells is an experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from fullrank.scaling.grid import Grid
from fullrank.scaling.search import Search

FILES = sorted((Path(__file__).parents[2] / "results").glob("*/*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_it_can_be_read_and_built(path: Path) -> None:
    kind = Search if "space:" in path.read_text() else Grid
    assert kind.read(path).jobs()


def test_there_are_some() -> None:
    assert FILES
