"""bf16 against fp32 through the real training loop: loss curves and the validation metric, on planted data.

The two runs have the same seed, batches and dropout. `ndcg_gap` is relative to fp32; 5 % is within what seeds do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.device import Where
from benchmarks.gpu.stores import market
from fullrank.run.experiment import find_experiment
from fullrank.training.fit import fit

STEPS = 200


def rows(where: Where) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        store = market(Path(folder) / "store", where)
        last: dict[str, float] = {}
        for precision in ("fp32", "bf16"):
            made = find_experiment("sasrec").override(
                f"training.precision={precision}", f"training.batch_size={where.of(4096, 500)}",
                f"training.max_epochs={where.of(3, 2)}", "training.patience=null",
            )  # fmt: skip
            run = fit(made, store, Path(folder) / precision, device=str(where.device), progress=False)
            journal = run.rows()
            epochs = [row for row in journal if row["event"] == "epoch"]
            last[precision] = epochs[-1]["validation/ndcg@10"]
            yield {
                "precision": precision,
                "steps": epochs[-1]["step"],
                "losses": {row["step"]: row["loss"] for row in journal if row["event"] == "step"},
                "train_loss": [row["train/loss"] for row in epochs],
                "validation_ndcg@10": [row.get("validation/ndcg@10") for row in epochs],
                "seconds": [row["seconds"] for row in epochs],
            }
        gap = last["bf16"] / last["fp32"] - 1 if last["fp32"] else None
        yield {"ndcg_gap": gap, "right": where.small or (gap is not None and abs(gap) <= 0.05)}
