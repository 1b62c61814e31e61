"""Ids in addresses: one part of a path, percent-encoded, so that every id that can be stored can be named.

A server is given a path decoded, in which the slash of `ann%2Fhistory` parts as `ann/history` does. So `routed_path`
keeps that slash apart, and routes declare an id as `{user:id}` (`routes/__init__.py`). A plain slash inside an id is
taken too, unless what follows it is the name of a route below the id.
"""

from __future__ import annotations

from urllib.parse import unquote

from fullrank.core.errors import UserError

BELOW = ("history", "similar")
"""Last parts of a path that are no part of the id before them."""
ID = rf"(?:[^/]+|.+/(?!(?:{'|'.join(BELOW)})$)[^/]+)"
"""Regular expression of an id in a routed path, to be unquoted."""
KEPT = {ord(sign): f"%{ord(sign):02X}" for sign in "%/\n"}
"""What is kept apart there; "." of a regular expression takes no newline."""


def routed_path(raw: bytes) -> str:
    """The path by which a request is routed, of the one that was sent: decoded but for percent signs, slashes and
    newlines inside its parts.

    Raises `UserError` for what is no UTF-8.
    """
    try:
        parts = [unquote(part, errors="strict") for part in raw.decode("ascii").split("/")]
    except UnicodeDecodeError:
        raise UserError(
            "the address is no UTF-8: percent-encode ids as encodeURIComponent does",
            code="invalid-address",
            public=True,
        ) from None
    return "/".join(part.translate(KEPT) for part in parts)
