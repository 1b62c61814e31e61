"""What all runners share. The standard library and pandas alone: it runs in every peer's environment."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any


def given() -> tuple[Path, Path, dict[str, Any]]:
    """(folder of the exchange, folder for the answer, settings) from the command line."""
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    return folder, out, json.loads((folder / "settings.json").read_text(encoding="utf-8"))


class Clock:
    """When training began, and when each batch and epoch ended."""

    def __init__(self) -> None:
        self.begun = self.last = 0.0
        self.batches = 0
        self.epochs: list[float] = []

    def start(self) -> None:
        self.begun = self.last = time.perf_counter()

    def batch(self) -> None:
        self.last = time.perf_counter()
        self.batches += 1

    def epoch(self) -> None:
        self.epochs.append(time.perf_counter())

    def figures(self, batches_per_epoch: int) -> dict[str, Any]:
        """Seconds per epoch: the median of whole epochs, or of a part of one scaled up."""
        spent = self.last - self.begun
        whole = [b - a for a, b in zip([self.begun, *self.epochs], self.epochs, strict=False)]
        full = self.batches // batches_per_epoch
        seconds = sorted(whole[:full])[full // 2] if full else spent * batches_per_epoch / self.batches
        return {
            "seconds_per_epoch": seconds,
            "epoch_extrapolated": not full,
            "epochs": self.batches / batches_per_epoch,
            "train_seconds": spent,
        }


def finish(out: Path, timing: dict[str, Any], table: Any, name: str = "lists") -> None:
    """Writes the DataFrame that is scored (lists: user_id, item_id, rank; probabilities: row, probability), and
    timing.json with this process's peak memory."""
    table.to_parquet(out / f"{name}.parquet", index=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (out / "timing.json").write_text(json.dumps(timing | {"peak_rss_mb": peak}), encoding="utf-8")
