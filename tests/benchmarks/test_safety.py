"""The check of `benchmarks.safety`: green as it is, red where what it leaves out notices nothing."""

from __future__ import annotations

import pytest

from benchmarks import safety
from benchmarks.harness import Wrong
from fullrank.data import manifest


def test_the_check_is_green() -> None:
    safety.check()


def test_hashes_that_are_not_compared_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "check_hash", lambda *_: None)
    with pytest.raises(Wrong, match="not noticed"):
        safety.check()
