"""The check of `benchmarks.opening`: green as it is, red where nothing compares hashes."""

from __future__ import annotations

import pytest

from benchmarks import opening
from benchmarks.harness import Wrong
from fullrank.data import manifest


def test_the_check_is_green() -> None:
    opening.check()


def test_the_check_notices_readers_without_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "check_hash", lambda *given: None)
    with pytest.raises(Wrong, match="flipped"):
        opening.check()
