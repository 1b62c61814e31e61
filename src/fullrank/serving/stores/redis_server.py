"""The address of a Redis server, read and made fit to be shown, and what a server of some settings promises."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from fullrank.core.errors import UserError

PREFIX = "fullrank"
"""Before every key, unless the address says otherwise."""
OPTIONS = {"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
"""What may stand behind the `?` of an address, beside `prefix`; the words are those of redis-py."""


def promise_of(settings: Mapping[str, Any]) -> str:
    """What a server with these settings (of CONFIG GET) keeps of what it acknowledged."""
    if "appendonly" not in settings:
        told = "the server decides what survives it, and did not say how it is set (CONFIG GET is not allowed)"
    elif settings["appendonly"] != "yes":
        told = (
            "acknowledged events may be lost when the server ends, back to its last snapshot if it has any "
            "(appendonly no)"
        )
    elif settings.get("appendfsync") == "always":
        told = "acknowledged events survive a killed server and a loss of power (appendonly yes, appendfsync always)"
    elif settings.get("appendfsync") == "everysec":
        # The server answers before it writes to its log while an earlier flush of the log is under way.
        told = (
            "acknowledged events of the last two seconds may be lost when the server is killed or loses power "
            "(appendonly yes, appendfsync everysec; set appendfsync always to lose none)"
        )
    else:
        told = (
            "acknowledged events survive a killed server; a loss of power takes what the system has not written yet, "
            "about 30 seconds (appendonly yes, appendfsync no)"
        )
    if str(settings.get("maxmemory", "0")) != "0" and str(settings.get("maxmemory-policy")).startswith("allkeys"):
        told += (
            f"; and the server drops histories when its memory is full ({settings['maxmemory-policy']}: set noeviction)"
        )
    return told


def redis_address(address: str) -> tuple[str, str, str]:
    """The URL for redis-py, the prefix of all keys, and the address as it may be shown."""
    scheme = address.partition(":")[0].lower()
    try:
        found = urlsplit(address)
        asked = dict(parse_qsl(found.query, keep_blank_values=True))
        port = found.port
    except ValueError:
        asked, port, found = {}, None, urlsplit("")
    host = found.path if scheme == "unix" else found.hostname
    prefix = asked.pop("prefix", PREFIX)
    wrong_db = scheme != "unix" and not re.fullmatch(r"/?\d*", found.path)  # redis-py would take it for 0
    if not host or wrong_db or set(asked) - OPTIONS or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", prefix):
        raise UserError(
            f"the address of a store {scheme}://... cannot be read (allowed: redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]"
            ", rediss://..., unix://[[USER]:PASSWORD@]PATH[?db=DB], with ?prefix=NAME of up to 64 letters and digits)",
            code="unknown-store-address",
        )
    at = host if scheme == "unix" else (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    shown = f"{scheme}://{at}" + ("" if scheme == "unix" else found.path)
    return found._replace(query=urlencode(asked)).geturl(), prefix, shown


def secrets(url: str) -> list[str]:
    """The password in a URL, as it is written and as it is meant: what no log may show."""
    password = urlsplit(url).password
    return [secret for secret in {password, unquote(password or "")} if secret]
