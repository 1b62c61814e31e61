"""Evaluation: users a second from histories to lists of 20, the whole catalogue ranked and seen items left out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.device import Where, milliseconds, peak_memory, refusals
from benchmarks.gpu.exact_softmax import megabytes
from benchmarks.gpu.stores import histories
from benchmarks.retrieve import K, model_of
from fullrank.inference.recommend import rank

WIDTHS = (64, 256)


def rows(where: Where) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        store = histories(Path(folder) / "store", where)
        given = store.eval_set("test").histories
        for width in (16,) if where.small else WIDTHS:
            row: dict[str, Any] = {"width": width, "items": store.num_items, "users": len(given), "k": K}
            with refusals(row):
                model = model_of(store, dim=width).to(where.device)

                def whole(model: Any = model) -> object:
                    return rank(model, given, k=K)

                row["peak_mb"] = megabytes(peak_memory(whole, where.device))
                row["ms"] = milliseconds(whole, where.device, rounds=where.of(5, 1), warm=1)
                row["users_per_s"] = len(given) / row["ms"] * 1e3
            yield row
