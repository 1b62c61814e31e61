"""Evaluation in parts: every metric, error, interval and row of one process, and users are not lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fullrank as fr
from fullrank.evaluation import parts
from tests.inference.test_batch_parts import folder, refusal

__all__ = ["folder"]


@pytest.mark.parametrize("settings", [[], ["sampled=30", "diversity_by=null"], ["protocol=sampled", "negatives=10"]])
def test_equals_one_process(settings: list[str], folder: Path) -> None:
    one = fr.evaluate(folder / "run", set=settings)
    done: list[tuple[int, int]] = []
    found = fr.evaluate(folder / "run", set=settings, parts=4, progress=lambda *at: done.append(at))
    assert found.dump() == one.dump()
    assert found.rows.table().equals(one.rows.table())
    users = one.protocol["users"]
    assert len(done) == 4 and done[-1] == (users, users)


def test_a_lost_user_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = parts.stretch
    monkeypatch.setattr(parts, "stretch", lambda number, *of: np.subtract(whole(number, *of), (0, number == 2)))
    refusal("shards-incomplete", fr.evaluate, folder / "run", parts=3)


def test_mistakes(folder: Path) -> None:
    def wrong(code: str, **how: Any) -> None:
        refusal(code, fr.evaluate, folder / "run", **how)

    wrong("setting-out-of-range", parts=10_000)
    wrong("setting-without-effect", parts=2, events=folder / "events")
    wrong("setting-without-effect", master="local[2]")
