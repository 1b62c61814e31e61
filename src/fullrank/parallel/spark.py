"""The workers of a Spark session, a task of a job for each item; they need this library.

The session is the one that is there, or a new one. Spark starts lost tasks again itself, as
`spark.task.maxFailures` says.
"""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fullrank.core.errors import UserError, no_effect, package, reason_line
from fullrank.parallel import Attempt, Outcomes, Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True)
class OnSpark(Runner):
    """Tasks of a Spark session, a job for all items."""

    session: SparkSession
    threads: int | None = None
    """Threads of torch in a task; None: as many as there are, and torch is not loaded."""
    remote = True

    def map(self, task: Callable[[A], R], items: Iterable[A]) -> Outcomes[A, R]:
        """`Runner.map`, except that an error ends the whole job, and is raised."""
        result_of = self._result_of(task)
        with as_user_error():
            results = self._spread(items).map(lambda item: (item, result_of(item))).collect()
        yield from results

    def total(self, task: Callable[[A], R], items: Iterable[A]) -> R:
        """The sum of all results, added up by the workers in a tree."""
        with as_user_error():
            total: R = self._spread(items).map(self._result_of(task)).treeReduce(operator.add)
        return total

    def share(self, files: Callable[[], dict[str, bytes]]) -> Any:
        return self.session.sparkContext.broadcast(files())

    def _spread(self, items: Iterable[Any]) -> Any:
        items = list(items)
        return self.session.sparkContext.parallelize(items, max(len(items), 1))

    def _result_of(self, task: Callable[[A], R]) -> Callable[[A], R]:
        """The task as a worker calls it; an error ends the job."""
        attempt = Attempt(task, self.threads)

        def result(item: A) -> R:
            with refusals_as_text():
                return attempt.result(item)

        return result


@contextmanager
def refusals_as_text() -> Iterator[None]:
    """Put a refusal's code into its text, all that Spark hands on (`as_user_error`)."""
    try:
        yield
    except UserError as error:
        raise RuntimeError(f"UserError[{error.code}]: {error}") from error


def session_of(table: Any, master: str | None) -> SparkSession:
    """The session of a Spark DataFrame, else the one that is there, else a new one on `master`.

    Raises `UserError` without Spark or Java, and where a session is there already on another
    master.
    """
    package("pyspark.sql", "spark", "the engine spark")
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    active: SparkSession | None = getattr(table, "sparkSession", None) or SparkSession.getActiveSession()
    if active is not None:
        used = active.sparkContext.master
        if master not in (None, used):
            why = f"since a Spark session is there already, on {used!r}"
            raise no_effect(f"master={master!r}", why, "leave it out, or stop that session")
        return active
    builder = SparkSession.builder.appName("fullrank")
    try:
        return (builder.master(master) if master is not None else builder).getOrCreate()
    except Exception as error:
        raise UserError(
            f"no Spark session could be made on {master or 'the default master'} ({reason_line(error)}); Spark needs "
            "Java 17 or later, and an address such as local[2] or spark://host:7077",
            code="spark-not-started",
        ) from error


@contextmanager
def as_user_error() -> Iterator[None]:
    """Raise what a worker said of the data, or one sentence of what Spark says, as `UserError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        text = str(error)
        if (refusal := re.search(r"UserError\[([\w-]+)\]: (.+)", text)) is not None:
            raise UserError(refusal[2].strip(), code=refusal[1]) from error
        if "No module named 'fullrank'" in text:
            raise UserError(
                "Spark's workers have no fullrank: install it where they run, and name that Python by PYSPARK_PYTHON "
                "before the session is made",
                code="spark-without-library",
            ) from error
        errors = re.findall(r"^\s*(?:\w+\.)*\w*(?:Error|Exception): .+", text, re.MULTILINE)
        reason = (errors[-1:] or text.strip().splitlines()[:1] or [type(error).__name__])[0].strip()[:300]
        raise UserError(f"Spark could not do it: {reason}", code="spark-failed") from error
