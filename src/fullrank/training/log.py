"""Logs of a run: metrics.jsonl, Lightning loggers, and the progress on a terminal (a bar, and a line per epoch).

metrics.jsonl has one JSON row per logged step and per epoch, in the order they happened.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError, install_extra, unknown
from fullrank.core.files import JsonObject, append_line, write_jsonl
from fullrank.core.log import Reporter, clock
from fullrank.run import metrics_rows


class MetricsLog:
    """Appends rows to a run's metrics.jsonl and passes their numbers on to Lightning loggers.

    Loggers write to the place of the run. With `wait` an older run is still there, and they
    get nothing until `move`.
    """

    def __init__(self, out: Path, loggers: tuple[Any, ...] = (), *, wait: bool = False):
        self.path, self.loggers = out / "metrics.jsonl", loggers
        self.waiting: list[tuple[JsonObject, int]] | None = [] if wait else None

    def move(self, out: Path) -> None:
        """Go on in another folder, into which the run was moved; the loggers get what has waited for that."""
        self.path = out / "metrics.jsonl"
        waiting, self.waiting = self.waiting or [], None
        for numbers, step in waiting:
            self._pass_on(numbers, step)

    def keep_until(self, step: int) -> None:
        """Drop the rows after a step: a resumed run writes them again."""
        if not self.path.exists():
            return
        write_jsonl(self.path, takewhile(lambda row: row["step"] <= step, metrics_rows(self.path.parent)))

    def add(self, event: str, step: int, epoch: int | float, figures: Mapping[str, Any]) -> None:
        """One row: what happened, where, and its figures."""
        row = {"event": event, "step": step, "epoch": epoch, **figures}
        append_line(self.path, json.dumps(row))
        numbers = {f"{event}/{k}": v for k, v in figures.items() if isinstance(v, int | float)}
        if self.waiting is None:
            self._pass_on(numbers, step)
        else:
            self.waiting.append((numbers, step))

    def _pass_on(self, numbers: JsonObject, step: int) -> None:
        """Give the numbers of a row to all loggers."""
        for logger in self.loggers:
            logger.log_metrics(numbers, step=step)


def make_loggers(names: tuple[str, ...], out: Path) -> tuple[Any, ...]:
    """Lightning loggers by name (tensorboard, csv, mlflow, wandb, ...)."""
    import lightning.pytorch.loggers as loggers_module

    classes = [name for name in dir(loggers_module) if name.endswith("Logger") and name != "Logger"]
    allowed = {name.removesuffix("Logger").lower(): name for name in classes}
    loggers = []
    settings: dict[str, JsonObject] = {
        **{name: {"project": "fullrank"} for name in ("wandb", "comet", "neptune")},
        **{name: {"save_dir": str(out / "logs"), "name": name, "version": ""} for name in ("tensorboard", "csv")},
        "mlflow": {"experiment_name": "fullrank", "tracking_uri": f"file:{(out / 'logs' / 'mlflow').absolute()}"},
    }
    for name in names:
        known = name.lower()
        if known not in allowed:
            raise unknown("logger", name, allowed)
        try:
            loggers.append(getattr(loggers_module, allowed[known])(**settings.get(known, {})))
        except ModuleNotFoundError as error:
            remedy = install_extra("tensorboard") if known == "tensorboard" else str(error)
            raise UserError(
                f"the logger {name!r} needs a package that is not installed: {remedy}", code="missing-package"
            ) from None
    return tuple(loggers)


class TrainingProgress:
    """A bar on a terminal; where there is none, a line per epoch alone."""

    def __init__(self, enabled: bool, total: int, done: int):
        self.total, self.first, self.begun = total, done, time.perf_counter()
        self.reporter = Reporter(enabled, lines=False).__enter__()
        self.advance(done, "training")

    def advance(self, step: int, text: str) -> None:
        self.reporter.at("training", step, self.total, text)

    def epoch(self, step: int, text: str) -> None:
        """One line that stays."""
        spent = time.perf_counter() - self.begun
        left = spent / max(1, step - self.first) * (self.total - step)
        self.reporter.say(f"{text}  [elapsed {clock(spent)}, remaining at most {clock(left)}]")

    def close(self) -> None:
        self.reporter.close()
