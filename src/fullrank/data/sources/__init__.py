"""Public data sets, a file for each publisher, and those that the library generates itself (`planted`, ...).

A source names the publisher's files (`files`) and turns them into tables: of events
(`read`), for recommenders, or of impressions (`impressions`), for rankers. It downloads
nothing: `fullrank.data.download` does, so that files fetched by hand or kept on a mirror
are read in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

import polars as pl
from pydantic import Field

from fullrank.core.spec import Spec
from fullrank.data.impressions.schema import Schema


@dataclass(frozen=True)
class RemoteFile:
    """One file of a publisher."""

    url: str
    """Where it is downloaded from; for a manual file the page where its terms are accepted."""
    name: str
    """Its name inside the download folder."""
    size: int | None = None
    """Bytes, where known from the publisher; None relies on the server's Content-Length."""
    md5: str | None = None
    """Hexadecimal, lower case. Only checksums that the publisher or several users of the file report."""
    sha256: str | None = None
    """Hexadecimal, lower case."""
    manual: str | None = None
    """Why a program may not fetch it, and what to do instead (a clause); None for a file that it may."""
    alternatives: tuple[str, ...] = ()
    """Other names under which the same content may lie in the folder: the archive, or what was taken out of it."""

    @classmethod
    def below(
        cls,
        base_url: str,
        path: str,
        size: int | None = None,
        md5: str | None = None,
        *,
        alternatives: tuple[str, ...] = (),
    ) -> RemoteFile:
        """The file at a path below a folder on a server."""
        name = path.rpartition("/")[2]
        return cls(f"{base_url.rstrip('/')}/{path}", name, size, md5, alternatives=alternatives)


@dataclass(frozen=True)
class Tables:
    """Tables that a source read: a row per event, and a row per item and user where the publisher describes them."""

    events: pl.DataFrame
    """`user_id`, `item_id`, `timestamp` (integer seconds since 1970), `rating` or `type` where they exist."""
    items: pl.DataFrame | None = None
    """`item_id`, `title` and what else is known (category, genres, brand, price, ...); `item_id` is unique."""
    users: pl.DataFrame | None = None
    """`user_id` and what is known of the user; `user_id` is unique."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Role -> column name, with the roles of `fullrank.data.events.prepare.Columns`; only roles that exist here. Empty
    for the roles whose usual names the events have."""
    notes: tuple[str, ...] = ()
    """Facts worth a line in the manifest: rows left out while parsing, terms of use."""

    def __post_init__(self) -> None:
        usual = {"user": "user_id", "item": "item_id", "time": "timestamp", "rating": "rating", "type": "type"}
        there = {role: name for role, name in usual.items() if name in self.events.columns}
        object.__setattr__(self, "columns", self.columns or there)


@dataclass(frozen=True)
class ImpressionTables:
    """The table that a source of impressions read, a row for each, and the schema of its columns."""

    table: pl.DataFrame | pl.LazyFrame
    """Lazy where the files may be larger than memory."""
    schema: Schema
    """The fields as the set is used in the literature."""
    notes: tuple[str, ...] = ()
    """Facts worth a line in the manifest."""


Logit = Annotated[float, Field(ge=-100, le=100)]
"""A weight of a planted law."""


class Generated(Spec):
    """Base of a source that generates its data."""

    def files(self) -> tuple[RemoteFile, ...]:
        """Nothing is downloaded."""
        return ()


class Source(Protocol):
    """A Spec whose `kind` is its name. One with files has a `base_url` for mirrors."""

    def files(self) -> tuple[RemoteFile, ...]:
        """The files of the download folder; none for a source that generates its data."""
        ...


@runtime_checkable
class EventSource(Source, Protocol):
    """A source of events."""

    def read(self, folder: Path) -> Tables:
        """The publisher's files below `folder` as tables. Raises `UserError` for a missing or malformed file."""
        ...


@runtime_checkable
class ImpressionSource(Source, Protocol):
    """A source of impressions."""

    def impressions(self, folder: Path) -> ImpressionTables:
        """The publisher's files below `folder`. Raises `UserError` for a missing or malformed file."""
        ...
