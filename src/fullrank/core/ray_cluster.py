"""A Ray cluster to work on: the one that is there, one at an address, or a small one started on this machine."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fullrank.core.checks import check_that
from fullrank.core.errors import UserError, no_effect, package, reason_line

STORE_BYTES = 128 * 2**20
"""Shared memory of a cluster started here: what we send through it are paths and rows."""
ANSWER_SECONDS = 10.0
"""How long the head of a cluster may take to accept a connection."""


def require_ray(address: Any) -> Any:
    """The module `ray`. Raises `UserError` where `address` is none, or the package is missing."""
    name = address if isinstance(address, str) else ""
    host, _, port = name.rpartition(":")
    sound = name in ("auto", "local") or bool(host and port.isascii() and port.isdigit())
    allowed = " (allowed: auto, the Ray cluster of this machine; local, one that is started here; HOST:PORT of a head)"
    check_that(sound, "address", address, allowed, code="invalid-address")
    return package("ray", "ray", "this")


@contextmanager
def ray_cluster(address: str) -> Iterator[Any]:
    """The module `ray`, connected to the cluster at `address` (`auto`, `local`, or `HOST:PORT`) while the block runs.

    A connection that this process has already is used and stays; an address of another cluster is then an error.
    Raises `UserError`, also where no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless the user asks for it
    ray = require_ray(address)
    if ray.is_initialized():
        used = ray.get_runtime_context().gcs_address
        if address not in ("auto", used):
            why = f"since this process is connected to the Ray cluster at {used}"
            raise no_effect(f"the address {address!r}", why, "give auto, or leave that one by ray.shutdown()")
        yield ray
        return
    own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        _require_answer(address)
        ray.init(address=address, logging_level=logging.WARNING, **(own if address == "local" else {}))
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"no Ray cluster could be reached at {address!r} ({reason_line(error)}); start one with `ray start "
            "--head`, name its HOST:PORT, or take local",
            code="ray-not-reached",
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_answer(address: str) -> None:
    """Raise `OSError` where nobody listens at HOST:PORT: Ray itself tries again for minutes."""
    if address not in ("auto", "local"):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS):
            pass
