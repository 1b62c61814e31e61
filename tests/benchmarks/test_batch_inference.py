"""The check of `benchmarks.batch_inference`: green as it is, red where a call that goes on makes other lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import batch_inference
from benchmarks.harness import Wrong

pytestmark = pytest.mark.slow


def test_the_check_is_green() -> None:
    batch_inference.check()


def test_lists_of_other_settings_are_noticed() -> None:
    def keeping(folder: Path, name: str, parts: int, **how: Any) -> Any:
        return batch_inference.lists(folder, name, parts, seen="keep", **how)

    with pytest.raises(Wrong, match="other lists than one call"):
        batch_inference.check(keeping)
