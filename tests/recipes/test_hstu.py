"""Both HSTU recipes learn; their settings are those that committed grids ran (`tests/golden/test_grids.py`)."""

from pathlib import Path

import pytest

from fullrank.data.events.store import Store
from tests.recipes.conftest import beats_popularity


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["hstu", "hstu_plus"])
def test_it_learns(recipe: str, market: Store, tmp_path: Path) -> None:
    settings = ("training.max_epochs=18", "training.batch_size=512")
    beats_popularity(recipe, "train/loss", 0.95, market, tmp_path, *settings)
