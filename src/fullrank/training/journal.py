"""metrics.jsonl: one JSON row per logged step and per epoch, in the order they happened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fullrank.errors import UserError
from fullrank.ops.safe_files import write_text


class Journal:
    """Appends rows to a run's metrics.jsonl and passes their numbers on to Lightning loggers."""

    def __init__(self, out: Path, loggers: tuple[Any, ...] = ()):
        self.path, self.loggers = out / "metrics.jsonl", loggers

    def keep_until(self, step: int) -> None:
        """Drop the rows behind a step: a resumed run writes them again."""
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not isinstance(row, dict) or not isinstance(row.get("step"), int) or row["step"] > step:
                break
            kept.append(line)
        write_text(self.path, "".join(line + "\n" for line in kept))

    def add(self, event: str, step: int, epoch: int | float, figures: Mapping[str, Any]) -> None:
        """One row: what happened, where, and its figures."""
        row = {"event": event, "step": step, "epoch": epoch, **figures}
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror or error}") from error
        numbers = {f"{event}/{k}": v for k, v in figures.items() if isinstance(v, int | float)}
        for logger in self.loggers:
            logger.log_metrics(numbers, step=step)


def make_loggers(names: tuple[str, ...], out: Path) -> tuple[Any, ...]:
    """Lightning loggers by name (tensorboard, csv, mlflow, wandb, ...)."""
    import lightning.pytorch.loggers as room

    allowed = {n.removesuffix("Logger").lower(): n for n in dir(room) if n.endswith("Logger") and n != "Logger"}
    found = []
    for name in names:
        if name.lower() not in allowed:
            from fullrank.errors import unknown

            raise unknown("logger", name, allowed)
        try:
            found.append(_make_logger(getattr(room, allowed[name.lower()]), name.lower(), out))
        except ModuleNotFoundError as error:
            raise UserError(f"the logger {name!r} needs a package that is not installed: {error}") from None
    return tuple(found)


def _make_logger(kind: Any, name: str, out: Path) -> Any:
    if name in ("tensorboard", "csv"):
        return kind(save_dir=str(out / "logs"), name=name, version="")
    if name == "mlflow":
        return kind(experiment_name="fullrank", tracking_uri=f"file:{(out / 'logs' / 'mlflow').absolute()}")
    return kind(project="fullrank") if name in ("wandb", "comet", "neptune") else kind()
