"""One HTTP transfer that can stop and go on, and the patience to try it again. Standard library only."""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError

CHUNK = 1 << 18
"""Bytes read at once."""
TIMEOUT = 60.0
"""Seconds without a byte before a connection counts as lost."""
LONGEST_WAIT = 30.0
"""Seconds between two attempts, at most."""
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class Lost(Exception):
    """The transfer stopped for a reason that may pass; `wait` is what the server asked for, in seconds."""

    def __init__(self, reason: str, wait: float | None = None):
        super().__init__(reason)
        self.wait = wait


@dataclass
class Transfer:
    """How far one file has come."""

    url: str
    part: Path
    """The growing file; it holds `done` bytes."""
    done: int = 0
    total: int | None = None
    """Bytes of the whole file as the server says, None where it does not."""
    validator: str | None = None
    """A strong ETag or a Last-Modified date: the version that `part` was begun with."""
    complete: bool = False


def fetch(transfer: Transfer, *, on_bytes: Callable[[int, int | None], None], save: Callable[[], None]) -> None:
    """Bring `transfer` to its end. `save` is called when a version is begun, before its bytes are written.

    Raises `Lost` for what may pass, `UserError` for what will not (no such file, no permission, bad certificate),
    `OSError` where the disk refuses.
    """
    request = urllib.request.Request(transfer.url, headers=_headers(transfer))
    if request.type not in ("http", "https"):
        raise UserError(f"cannot download {transfer.url!r}: give an address that starts with http:// or https://")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            _begin(transfer, response)
            save()
            on_bytes(transfer.done, transfer.total)
            _copy(transfer, response, on_bytes)
    except urllib.error.HTTPError as error:
        _refused(transfer, error)
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise _unreachable(transfer.url, error) from None
    if transfer.total is not None and transfer.done != transfer.total:
        raise Lost(f"the connection ended after {transfer.done:,} of {transfer.total:,} bytes")
    transfer.complete = True


def patiently(
    once: Callable[[], None], done: Callable[[], int], attempts: int, *, on_wait: Callable[[str], None]
) -> None:
    """Call `once` until it succeeds; give up after `attempts` failures in a row without more bytes than ever before."""
    failures, most = 0, done()
    while True:
        try:
            return once()
        except Lost as error:
            failures = 1 if done() > most else failures + 1
            most = max(most, done())
            if failures >= attempts:
                raise
            wait = min(LONGEST_WAIT, max(error.wait or 0.0, 2.0 ** (failures - 1)))
            on_wait(f"{error}; trying again in {wait:.0f} s")
            pause(wait)


def pause(seconds: float) -> None:
    """Wait between two attempts."""
    time.sleep(seconds)


def _headers(transfer: Transfer) -> dict[str, str]:
    # identity: a length and a range mean the stored bytes only without a transport compression.
    headers = {"User-Agent": "fullrank (dataset download)", "Accept-Encoding": "identity"}
    if transfer.done:
        headers["Range"] = f"bytes={transfer.done}-"
        if transfer.validator is not None:
            headers["If-Range"] = transfer.validator
    return headers


def _begin(transfer: Transfer, response: Any) -> None:
    """Set where the body starts and how long the whole is; a server that ignores the range starts from zero."""
    tag = response.headers.get("ETag")
    validator = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")
    length = response.headers.get("Content-Length")
    if response.status == 206:
        start, total = _content_range(response.headers.get("Content-Range", ""))
        same = transfer.total in (None, total) and transfer.validator in (None, validator)
        if start != transfer.done or not same:
            _forget(transfer)
            raise Lost("the file on the server has changed, it is begun again")
        transfer.total = total
    else:
        # Gone before the new version is noted: a kill in between must not pair old bytes with a new validator.
        transfer.part.unlink(missing_ok=True)
        transfer.done, transfer.total = 0, int(length) if length and length.isdigit() else None
    transfer.validator = validator


def _copy(transfer: Transfer, response: Any, on_bytes: Callable[[int, int | None], None]) -> None:
    with open(transfer.part, "r+b" if transfer.done else "wb") as out:
        out.seek(transfer.done)
        out.truncate()
        while True:
            try:
                block = response.read(CHUNK)
            except (OSError, http.client.HTTPException) as error:
                # Caught here, so that an OSError of the disk below is not taken for one of the network.
                if isinstance(error, http.client.IncompleteRead):
                    transfer.done += out.write(error.partial)
                raise Lost(f"the connection broke after {transfer.done:,} bytes ({_reason(error)})") from None
            if not block:
                break
            out.write(block)
            transfer.done += len(block)
            on_bytes(transfer.done, transfer.total)


def _refused(transfer: Transfer, error: urllib.error.HTTPError) -> None:
    """An answer that is no file: raises, except where a 416 says that the part is already the whole."""
    host = f"the server answered {error.code} {error.reason}"
    if error.code == 416 and transfer.done:
        total = (error.headers.get("Content-Range") or "").rpartition("/")[2]
        if total == str(transfer.done) and transfer.total in (None, transfer.done):
            transfer.total = transfer.done
            return
        _forget(transfer)
        raise Lost("the file on the server has changed, it is begun again") from None
    if error.code in _AGAIN:
        after = error.headers.get("Retry-After") or ""
        raise Lost(host, float(after) if after.isdigit() else None) from None
    if error.code in (404, 410):
        advice = "there is no such file; the publisher may have moved it: set base_url to where it is now"
    elif error.code in (401, 403):
        advice = "it is not open to programs; fetch it by hand, or set base_url to a mirror"
    else:
        advice = "set base_url to a mirror, or fetch it by hand"
    raise UserError(f"cannot download {transfer.url}: {host}; {advice}") from None


def _unreachable(url: str, error: BaseException) -> Lost | UserError:
    reason: object = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return UserError(
            f"cannot download {url}: the server's certificate is not valid ({reason.verify_message}); check this "
            "machine's clock and certificates, or fetch the file by hand"
        )
    host = urllib.request.Request(url).host
    return Lost(f"{host} does not answer ({_reason(reason)}); check the network and any proxy")


def _reason(error: object) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


def _content_range(header: str) -> tuple[int, int | None]:
    """Start and total of `bytes 10-99/100`; (-1, None) for anything else."""
    unit, _, rest = header.partition(" ")
    span, _, total = rest.partition("/")
    start = span.partition("-")[0]
    if unit != "bytes" or not start.isdigit():
        return -1, None
    return int(start), int(total) if total.isdigit() else None


def _forget(transfer: Transfer) -> None:
    transfer.done, transfer.total, transfer.validator = 0, None, None
    transfer.part.unlink(missing_ok=True)
