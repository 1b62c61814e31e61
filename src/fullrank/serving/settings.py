"""Settings of the service: address, stores, limits, batching, versions, log."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fullrank.core.constraints import MOST_COUNT, MOST_LIST, MOST_PARTS, Share, changed, only_with
from fullrank.core.errors import UserError, brief, no_effect
from fullrank.core.registry import Problem
from fullrank.core.spec import Spec
from fullrank.serving.limits import is_network

SERVED: dict[Problem, str] = {"retrieval": "lists of items", "ranking": "click probabilities"}
UNREAD: dict[Problem, tuple[str, ...]] = {
    "retrieval": ("rows_most",),
    "ranking": (
        "ranker",
        "candidates",
        "search",
        "index_from",
        "recall",
        "index_folder",
        "exported",
        "k_most",
        "steps_most",
        "batch_most",
        "log",
        "log_days",
    ),
}
"""Problem of the run that is served -> settings without effect on it."""
PATHS = ("run", "ranker", "keys", "index_folder", "exported", "watch", "canary", "log")
"""Settings that name a file or a folder; a store knows its own."""


class ServeSettings(Spec):
    """Settings of `fullrank serve`."""

    run: str
    """Folder of the run that answers first: of a recommender, or of a ranking model."""
    ranker: str | None = None
    """Folder of a ranking model's run that puts the candidates in order."""
    host: str = "127.0.0.1"
    """Address to listen on. Any but loopback needs `keys`."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    hosts: tuple[str, ...] = Field((), max_length=100)
    """Names by which the service may be called without keys, beside localhost."""
    proxies: tuple[str, ...] = Field((), max_length=100)
    """Addresses, or networks, of proxies in front: their X-Forwarded-For says who calls; nobody else's is read."""
    workers: int = Field(1, ge=1, le=256)
    """Processes. Each holds the model; they share the port and the store."""
    store: str = "fullrank-serve.sqlite"
    """Where histories, users and items that were added are kept: a file (SQLite), redis://HOST:PORT/DB, or memory:."""
    keys: str | None = None
    """File of API keys (`fullrank keys`); null answers reads and writes of anybody on this machine, and no admin."""
    device: str = "cpu"
    """Where models run."""
    threads: int = Field(1, ge=1, le=MOST_PARTS)
    """Threads of one forward pass; the event loop has a thread of its own."""

    candidates: int = Field(100, ge=1, le=MOST_LIST)
    """Items that the ranker puts in order."""
    blend: Annotated[Share, only_with("ranker")] = 0.0
    """Share of the retriever in that order (`fr.Cascade`)."""
    user_field: Annotated[str | None, only_with("ranker")] = None
    """Column of the ranker's schema that holds the user's id; null: the group column, or a usual name."""
    item_field: Annotated[str | None, only_with("ranker")] = None
    """Column of the ranker's schema that holds the item's id; null: a usual name."""

    search: Literal["auto", "exact", "index"] = "auto"
    """How items are found: every item is scored, or an index (faiss) is built; auto: from `index_from` items on."""
    index_from: int = Field(100_000, ge=1, le=MOST_COUNT)
    """Catalogue size from which `auto` builds an index."""
    recall: float = Field(0.98, ge=0, le=1)
    """Least recall@10 of the index against exact lists; below it the service does not start."""
    index_folder: str | None = None
    """Folder where indexes are kept between starts; null builds them at every start."""

    exported: str | None = None
    """Folder of an ONNX export of the run (`fullrank export RUN --to onnx`), by which ONNX Runtime answers requests
    without filters; null answers all of them by torch."""

    max_batch: int = Field(64, ge=1, le=65536)
    """Most requests of one forward pass."""
    queue: int = Field(512, ge=1, le=MOST_COUNT)
    """Most requests waiting; more are told to come back (429)."""
    timeout: float = Field(2.0, gt=0, le=3600)
    """Seconds after which a waiting request is given up (503)."""

    k_most: int = Field(1000, ge=1, le=MOST_LIST)
    """Longest list that may be asked for."""
    steps_most: int = Field(32, ge=0, le=MOST_PARTS)
    """Most reasoning steps that a request may ask for: each holds up all who wait."""
    history_most: int = Field(1000, ge=1, le=MOST_LIST)
    """Most events read of a user, or given in a request; older ones are neither read nor kept out of the list. Of a
    ranking model: most values of a list in a row."""
    batch_most: int = Field(100, ge=1, le=MOST_LIST)
    """Most requests in one call of recommend:batch, and most events or items in one call."""
    rows_most: int = Field(10_000, ge=1, le=MOST_LIST)
    """Most rows in one call of predict."""
    body_most: int = Field(1 << 20, ge=1024, le=1 << 30)
    """Bytes of a request's body."""
    rate: float | None = Field(None, gt=0, le=1e6)
    """Requests a second of one key (without keys: of one address); null does not limit them."""
    burst: Annotated[int, only_with("rate")] = Field(50, ge=1, le=MOST_COUNT)
    """Requests that may come at once above the rate."""

    watch: str | None = None
    """Folder in which new runs appear: each is checked and, where it passes, answers from then on."""
    auto_activate: bool = True
    """Whether a version that passes its check answers at once; otherwise somebody activates it."""
    canary: Annotated[str | None, only_with("watch")] = None
    """Table of events (user_id, item_id, timestamp) whose last ones a new version has to predict; null: the store's.
    Of a ranking model: a table of impressions with their labels; null asks for none."""
    tolerance: float = Field(0.05, ge=0, le=1)
    """Relative loss of hit rate, or rise of log loss, below which a new version is not refused."""
    keep: int = Field(2, ge=1, le=16)
    """Versions kept open."""

    log: str | None = None
    """Folder of logged answers (Parquet); null logs none."""
    log_days: int = Field(30, ge=1, le=36500)
    """Days that logged answers are kept."""
    access_log: bool = False
    """One line of JSON for each request on stderr."""

    def require_effect(self, problem: Problem) -> None:
        """Raise `UserError` for a setting that the service of such a run does not read."""
        for name in UNREAD[problem]:
            if changed(self, name):
                raise no_effect(name, f"since the run {self.run!r} gives {SERVED[problem]}")

    def absolute(self) -> ServeSettings:
        """The settings with absolute paths, which can be kept out of the sentences that callers get."""
        return self.model_copy(
            update={name: os.path.abspath(path) for name in PATHS if (path := getattr(self, name)) is not None}
        )

    @property
    def paths(self) -> set[str]:
        """The paths of its files and folders, links followed and not."""
        paths = [path for name in PATHS if (path := getattr(self, name)) is not None]
        return {*map(os.path.abspath, paths), *map(os.path.realpath, paths)}

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> ServeSettings:
        for proxy in self.proxies:
            if not is_network(proxy):
                raise UserError(
                    f"proxies names {brief(proxy)}, which is no address: give such as 10.0.0.7, or a network such as "
                    "10.0.0.0/24",
                    code="not-an-address",
                )
        if self.store == "memory:" and self.workers > 1:
            raise UserError(
                f"the store memory: lies in one process, so {self.workers} processes would each answer from histories "
                "and items of their own: give --store a file or redis://HOST:PORT, or --workers 1",
                code="store-of-one-process",
            )
        return self
