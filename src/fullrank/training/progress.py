"""What a person sees of a long run: a bar with the rate and the time left, and a line per epoch."""

from __future__ import annotations

import time

from fullrank.core.progress import Reporter, clock


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
        self.reporter.say(f"{text}  [{clock(spent)} gone, at most {clock(left)} left]")

    def close(self) -> None:
        self.reporter.close()
