"""The Yelp Open Dataset: reviews of businesses (JSON lines in a tar archive, inside a zip).

Yelp requires that its terms (academic use, no redistribution) are accepted on its page, so the
archive is fetched by hand and laid into the folder: `Yelp-JSON.zip`, the `yelp_dataset.tar` inside
it, or the unpacked JSON files. Yelp replaces the data from time to time under the same name, so
neither size nor checksum can be stated.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import polars as pl

from fullrank.core.spec import Spec
from fullrank.data.sources import RemoteFile, Tables
from fullrank.data.sources._archive import extract
from fullrank.data.sources._parse import (
    REVIEWS,
    Record,
    Row,
    joined,
    number,
    records,
    require,
    rows_with_events,
    text,
)

PAGE = "https://business.yelp.com/data/resources/open-dataset/"
_REVIEWS, _ITEMS_FILE, _USERS_FILE = (f"yelp_academic_dataset_{part}.json" for part in ("review", "business", "user"))
_WANTED = (_REVIEWS, _ITEMS_FILE, _USERS_FILE)
_TAR, _TARS, _ZIP = "yelp_dataset.tar", ("yelp_dataset.tar", "yelp_dataset.tgz", "yelp_dataset.tar.gz"), "Yelp-JSON.zip"
_ITEMS = {
    **dict.fromkeys(("item_id", "title", "category", "categories", "city", "state"), pl.String),
    "stars": pl.Float64,
}
_USERS = {"user_id": pl.String, "since": pl.String, "review_count": pl.Int64}


class Yelp(Spec):
    """About 7 million reviews of 150 thousand businesses by 2 million users; the numbers change with each release."""

    kind: Literal["yelp"] = "yelp"
    base_url: str | None = None
    """A mirror of your own that holds `yelp_dataset.tar`; None asks for the file by hand."""

    def files(self) -> tuple[RemoteFile, ...]:
        """The archive: manual unless `base_url` is set."""
        others = (_ZIP, *_TARS[1:], _REVIEWS)
        if self.base_url is not None:
            return (RemoteFile.below(self.base_url, _TAR, alternatives=others),)
        why = "Yelp asks you to accept its terms first: download the JSON archive from that page and put it there"
        return (RemoteFile(PAGE, _TAR, manual=why, alternatives=others),)

    def read(self, folder: Path) -> Tables:
        """Reviews in the file's order (local times taken as UTC); businesses and users that have a review.

        `category` is the first of a business's `categories` (A|B|C). Archives are unpacked into
        `folder`.
        """
        paths = _locate(folder)
        events, notes = records(paths[_REVIEWS], REVIEWS, _review)
        items, of_items = records(paths[_ITEMS_FILE], _ITEMS, _business)
        users, of_users = records(paths[_USERS_FILE], _USERS, _user)
        notes += (*of_items, *of_users, "Yelp Open Dataset: academic use under Yelp's terms")
        items, users = rows_with_events(items, events), rows_with_events(users, events, "user_id")
        return Tables(events, items, users, notes=notes)


def _locate(folder: Path) -> dict[str, Path]:
    """The three JSON files, unpacked where they are not yet."""
    if all((folder / name).is_file() for name in _WANTED):
        return {name: folder / name for name in _WANTED}
    hint = f"accept Yelp's terms at {PAGE}, download the JSON archive and put it there"
    archive = require(folder, *_TARS, _ZIP, hint=hint)
    if archive.name == _ZIP:
        archive = extract(archive, (_TAR,), folder)[_TAR]
    return extract(archive, _WANTED, folder)


def _review(record: Record) -> Row:
    time = datetime.fromisoformat(record["date"]).replace(tzinfo=UTC)
    return str(record["user_id"]), str(record["business_id"]), int(time.timestamp()), float(record["stars"])


def _business(record: Record) -> Row:
    labels = [label.strip() for label in (record.get("categories") or "").split(",") if label.strip()]
    return (
        str(record["business_id"]),
        text(record.get("name")),
        labels[0] if labels else None,
        joined(labels),
        text(record.get("city")),
        text(record.get("state")),
        number(record.get("stars")),
    )


def _user(record: Record) -> Row:
    return str(record["user_id"]), text(record.get("yelping_since")), int(record.get("review_count") or 0)
