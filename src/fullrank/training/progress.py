"""What a person sees of a long run: a bar with the rate and the time left, and a line per epoch."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class TrainingProgress:
    """A bar on a terminal; where there is none, a line per epoch alone."""

    def __init__(self, enabled: bool, total: int, done: int):
        self.console = Console(stderr=True)
        self.enabled, self.bar = enabled, None
        self.task: TaskID | None = None
        self.total, self.first, self.begun = total, done, time.perf_counter()
        if enabled and sys.stderr.isatty():
            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
                TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=self.console,
            )  # fmt: skip
            self.task = self.bar.add_task("training", total=total, completed=done)
            self.bar.start()

    def advance(self, step: int, text: str) -> None:
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=step, description=text)

    def epoch(self, step: int, text: str) -> None:
        """One line that stays."""
        if not self.enabled:
            return
        spent = time.perf_counter() - self.begun
        left = spent / max(1, step - self.first) * (self.total - step)
        self.console.print(
            f"{text}  [{clock(spent)} gone, at most {clock(left)} left]",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def clock(seconds: float) -> str:
    """A duration as a clock shows it: `4:05`, `1:02:03`."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
