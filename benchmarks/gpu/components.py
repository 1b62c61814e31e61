"""The component checks (`fullrank.testing`) on the device: one row, with what failed and whether all were reached."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from benchmarks.gpu.device import Where
from fullrank.core.registry import find, kinds
from fullrank.testing import ROOMS, checks

SECONDS = 150
"""After which no further kind is begun."""
WORKERS = 4


def rows(where: Where) -> Iterator[dict[str, Any]]:
    pairs = [(room, kind) for room in ROOMS for kind in kinds(room)]
    if where.small:
        pairs = [("objectives.weightings", kind) for kind in ("uniform", "inverse_popularity")]
    until = time.time() + SECONDS
    with ProcessPoolExecutor(1 if where.small else WORKERS, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(checked, room, kind, str(where.device), until) for room, kind in pairs]
        results = [job.result() for job in jobs]
    passed = sum(count for count, _ in results)
    failed = [line for _, lines in results for line in lines]
    reached = all(count or lines for count, lines in results)
    row = {"checks": passed, "failed": failed[:50], "all_reached": reached, "right": not failed and passed > 0}
    yield row if passed or failed else row | {"error": "no kind was reached in time"}


def checked(room: str, kind: str, device: str, until: float) -> tuple[int, list[str]]:
    """How many checks of a kind passed, and a line for each that did not. Neither, where it is too late to begin."""
    passed, failed = 0, []
    if time.time() < until:
        for name, check in checks(find(kind, room), room=room):
            try:
                check(device)
                passed += 1
            except Exception as error:
                failed.append(f"{room}.{kind}, {name}: {str(error)[:200]}")
    return passed, failed
