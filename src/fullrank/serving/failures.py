"""Failures at the start: why a service did not open, as one sentence of the process that was started.

uvicorn logs the traceback of a failed start and leaves with status 3. A `UserError` says in one sentence what is wrong;
of several processes each leaves it in a file, and their parent raises the first.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError
from fullrank.core.files import write_json
from fullrank.core.readers import read_json

FILE = "FULLRANK_SERVE_FAILURE"
"""Variable that names the file in which a process of several says why it did not start."""


@contextmanager
def quiet_failure(app: Any) -> Iterator[None]:
    """Keep uvicorn from logging what `app.state.failure` says in one sentence."""

    def unsaid(_: logging.LogRecord) -> bool:
        return getattr(app.state, "failure", None) is None

    log = logging.getLogger("uvicorn.error")
    log.addFilter(unsaid)
    try:
        yield
    finally:
        log.removeFilter(unsaid)


@contextmanager
def told_failure() -> Iterator[Callable[[], UserError]]:
    """A place where processes that are started inside the block say why they did not open, and what reads it."""
    with tempfile.TemporaryDirectory(prefix="fullrank-serve-") as folder:
        file = Path(folder, "failure.json")

        def read() -> UserError:
            if not file.exists():
                return UserError("a process of the service did not start; the log says why", code="not-started")
            told = read_json(file)
            return UserError(told["sentence"], code=told["code"])

        os.environ[FILE] = str(file)
        try:
            yield read
        finally:
            del os.environ[FILE]


def tell_failure(error: UserError) -> None:
    """Leave to the parent why this process of several does not open; nothing where it has no parent."""
    if file := os.environ.get(FILE):
        logging.getLogger("uvicorn.error").addFilter(lambda _: False)  # this process ends now
        write_json(Path(file), {"sentence": str(error), "code": error.code})
