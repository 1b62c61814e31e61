"""Download the files of a source: resumed after a cut, checked, and never half a file under the final name.

A file grows as `<name>.part` beside `<name>.part.json` (url, validator, total), so that an
interrupted download goes on where it stopped, in this process or a later one. Only a complete and
checked file gets its final name, by rename. urllib3 does the HTTP. Its own retries are off: they
begin a body again from its first byte.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, cast

import urllib3
from urllib3.exceptions import HTTPError, InvalidHeader
from urllib3.util import Retry, make_headers, parse_url

from fullrank.core.checks import check_whole
from fullrank.core.errors import UserError, brief, in_context, reason_line
from fullrank.core.files import make_folder, require_space, write_json
from fullrank.core.locks import folder_lock
from fullrank.core.log import Reporter
from fullrank.core.readers import read_json
from fullrank.core.registry import find
from fullrank.data.manifest import is_count, require_no_store
from fullrank.data.sources import EventSource, ImpressionSource, RemoteFile

CHUNK = 1 << 18
"""Bytes read at once."""
TIMEOUT = 60.0
"""Seconds without a byte before a connection counts as lost."""
LONGEST_WAIT = 30.0
"""Seconds between two attempts, at most."""
MOST_BYTES = 1 << 38
"""Most bytes of a file of unknown length: 256 GiB, far above what any source here publishes."""
# Redirects are followed; every failure is ours to wait for and to go on from.
_RETRIES = Retry(total=None, connect=0, read=0, other=0, status=0, redirect=10)
_MAY_PASS = frozenset({408, 425, 429, 500, 502, 503, 504})


def download(
    source: EventSource | ImpressionSource | str, folder: str | Path, *, progress: bool = True, attempts: int = 5
) -> list[Path]:
    """Download the files of `source` into `folder` and return their paths; files that are complete stay.

    `source` is a source's spec, or its kind for the defaults. `attempts` is how often in a row a
    transfer may fail without a byte of progress before it is given up; it waits 1, 2, 4, ... up to
    30 seconds in between. Raises `UserError`: for files that have to be fetched by hand (the others
    are fetched first), where the server does not answer or has no such file, where the disk is
    full, and where size or checksum are wrong.
    """
    if isinstance(source, str):
        with in_context("", code="unknown-source"):
            source = find(source, "data.sources")()  # type: ignore[assignment]  # every spec of that room is a Source
    assert not isinstance(source, str)
    check_whole("attempts", attempts, 1)
    target, files = Path(folder), source.files()
    for file in files:
        if file.name in ("", ".", "..") or PurePosixPath(file.name.replace("\\", "/")).name != file.name:
            sentence = f"the source names a file {file.name!r} outside of the download folder; names hold no folders"
            raise UserError(sentence, code="path-outside-folder")
        for path in (target / f"{file.name}{ending}" for ending in ("", ".part", ".part.json")):
            if path.exists() and not path.is_file():  # a pipe would never answer
                sentence = f"{path} is no file, and {file.name} would be downloaded there; move it away"
                raise UserError(sentence, code="not-a-file")
    require_no_store(target, "downloads")
    make_folder(target)
    with folder_lock(target, "download"), Reporter(progress, sizes=True) as shown:
        paths = [_complete(file, target) or _fetch(file, target / file.name, shown, attempts) for file in files]
    missing = [file for file, path in zip(files, paths, strict=True) if path is None]
    if missing:
        names = ", ".join(file.name for file in missing)
        sentence = f"{names} cannot be downloaded to {target} from {missing[0].url}: {missing[0].manual}"
        raise UserError(sentence, code="fetch-by-hand")
    return list(dict.fromkeys(filter(None, paths)))


class _Interrupted(Exception):
    """The transfer stopped for a reason that may pass; `wait` is the server's Retry-After, in seconds."""

    def __init__(self, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.wait = wait


@dataclass
class _Part:
    """The growing file of a transfer, and the note of its address and version."""

    file: RemoteFile
    path: Path
    note: Path
    done: int = 0
    """Bytes so far."""
    total: int | None = None
    """Bytes of the whole file according to the server, None where it does not say."""
    validator: str | None = None
    """A strong ETag or a Last-Modified date: the version that the transfer began with."""

    @classmethod
    def of(cls, file: RemoteFile, target: Path) -> _Part:
        """The part as an earlier process left it; an empty one where that cannot be trusted."""
        part = cls(file, target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.part.json"))
        noted: dict[str, Any] = {}
        if part.note.is_file():
            with suppress(UserError):  # a broken note
                noted = read_json(part.note)
        validator, total = noted.get("validator"), noted.get("total")
        sound = _is_validator(validator) and (total is None or (is_count(total) and total < MOST_BYTES))
        # A part without a validator could mix two versions; a checksum would find that out at the
        # end.
        if sound and noted.get("url") == file.url and (validator or file.md5 or file.sha256) and part.path.is_file():
            part.validator, part.total, part.done = validator, total, part.path.stat().st_size
            return part
        part.restart()
        return part

    def restart(self, total: int | None = None, validator: str | None = None) -> None:
        """Begin another version. The old bytes go first: a killed process must not
        pair them with a new validator."""
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)
        self.done, self.total, self.validator = 0, total, validator

    def begin(self, response: urllib3.BaseHTTPResponse) -> None:
        """Take position, length and version from the answer, and note them before its body is written."""
        headers, content_range = response.headers, response.headers.get("Content-Range", "")
        if response.status not in (200, 206, 416):
            raise _refusal(self.file.url, response)
        tag = headers.get("ETag")
        validator = tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")
        validator = validator if _is_validator(validator) else None
        length = content_range.rpartition("/")[2] if response.status == 206 else headers.get("Content-Length", "")
        total = _length(length, self.file.url)
        if response.status == 200:  # also of a server that ignores the range
            self.restart(total, validator)
        elif (  # a server may also ignore If-Range and send the rest of another version
            not content_range.startswith(f"bytes {self.done}-")
            or self.total not in (None, total)
            or self.validator not in (None, validator)
        ):
            self.restart()
            raise _Interrupted("the file on the server has changed, it is begun again")
        self.total, self.validator = total, validator
        size = self.file.size
        if size is not None and total not in (None, size):
            raise UserError(
                f"{self.file.url} has {total:,} bytes but the published file has {size:,}: the publisher may have "
                f"replaced it; if you trust the new one, fetch it by hand to {self.path.with_suffix('')}",
                code="size-differs",
            )
        require_space(self.path.parent, (total or size or 0) - self.done, f"the rest of {self.file.name}")
        write_json(self.note, {"url": self.file.url, "validator": self.validator, "total": total}, indent=None)

    def copy(self, response: urllib3.BaseHTTPResponse, tell: Callable[[], None]) -> None:
        """Append the body. Raises `_Interrupted` for the network, `OSError` for the
        disk, `UserError` for no end."""
        most = self.total or self.file.size or MOST_BYTES
        with open(self.path, "r+b" if self.done else "wb") as out:
            out.seek(self.done)
            out.truncate()
            while True:
                tell()
                try:
                    block = response.read1(CHUNK)  # what has arrived: `read` would lose it where the connection breaks
                except (OSError, HTTPError) as error:
                    broken = f"the connection broke after {self.done:,} bytes ({_shown(reason_line(_cause(error)))})"
                    raise _Interrupted(broken) from None
                if not block:
                    break
                self.done += out.write(block)
                if self.done > most:  # of no use to a later run
                    self.restart()
                    raise UserError(
                        f"{self.file.url} has sent more than {most:,} bytes and has not ended, so it is not the "
                        "published file; fetch it by hand, or set base_url to a mirror",
                        code="size-differs",
                    )
        if self.total is not None and self.done != self.total:
            raise _Interrupted(f"the connection ended after {self.done:,} of {self.total:,} bytes")


def _fetch(file: RemoteFile, target: Path, shown: Reporter, attempts: int) -> Path | None:
    """Complete a file's part and give it its final name; `attempts` is that of `download`.

    None for a file that has to be fetched by hand.
    """
    if file.manual is not None:
        return None
    part = _Part.of(file, target)
    failures, most = 0, part.done
    try:
        while part.total is None or part.done != part.total:
            try:
                _attempt(part, lambda: shown.at(file.name, part.done, part.total or file.size or 0))
                break
            except _Interrupted as error:
                failures = 1 if part.done > most else failures + 1  # only more bytes than ever before are progress
                most = max(most, part.done)
                if failures >= attempts:
                    sentence = f"cannot download {file.url}: {error}"
                    if part.done:
                        sentence += f"; {part.done:,} bytes are kept: run the command again to go on from there"
                    raise UserError(sentence, code="download-interrupted") from None
                wait = min(LONGEST_WAIT, max(error.wait, 2.0 ** (failures - 1)))
                shown.say(f"{error}; trying again in {wait:.0f} s")
                pause(wait)
        if (fault := _fault(part.path, file)) is not None:  # what is wrong is of no use to a later run
            part.restart()
            raise fault
        os.replace(part.path, target)
        part.note.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write {part.path}: {reason_line(error)}; make room and run it again", code="not-written"
        ) from None
    return target


def _attempt(part: _Part, tell: Callable[[], None]) -> None:
    """Request the missing bytes of a part. Raises `_Interrupted` for failures that may
    pass, `UserError` for others."""
    url = part.file.url
    # identity: a length and a range mean the stored bytes only without a transport compression.
    headers = {"User-Agent": "fullrank (dataset download)", "Accept-Encoding": "identity"}
    if part.done:
        headers |= {"Range": f"bytes={part.done}-"} | ({"If-Range": part.validator} if part.validator else {})
    try:
        if not url.startswith(("http://", "https://")):
            raise ValueError("it begins otherwise")
        response = _pool(url).request(
            "GET",
            url,
            headers=headers,
            retries=_RETRIES,
            timeout=TIMEOUT,
            preload_content=False,
            decode_content=False,
            enforce_content_length=False,
        )
    except ValueError as error:  # urllib3's LocationValueError, urljoin's own
        raise UserError(
            f"cannot download {brief(url)}: {_shown(str(error)[:80])}; it, or what it redirects to, is no address that "
            "starts with http:// or https://",
            code="address-not-http",
        ) from None
    except HTTPError as error:
        cause = _cause(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise UserError(
                f"cannot download {url}: the server's certificate is not valid ({cause.verify_message}); check this "
                "machine's clock and certificates, or fetch the file by hand",
                code="certificate-invalid",
            ) from None
        raise _Interrupted(
            f"{parse_url(url).netloc} does not answer ({_shown(reason_line(cause))}); check the network and any proxy"
        ) from None
    try:
        part.begin(response)
        part.copy(response, tell)
    finally:
        response.close()


def _pool(url: str) -> urllib3.PoolManager:
    """Connections by way of the proxy that the environment (`https_proxy`,
    `no_proxy`, ...) names for an address."""
    where = parse_url(url)
    proxy = urllib.request.getproxies().get(where.scheme or "")
    if proxy is None or urllib.request.proxy_bypass(where.netloc or ""):
        return urllib3.PoolManager()
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    login = parse_url(proxy).auth  # urllib3 does not send what stands in the address
    headers = make_headers(proxy_basic_auth=urllib.parse.unquote(login)) if login else None
    return urllib3.ProxyManager(proxy, proxy_headers=headers)


def pause(seconds: float) -> None:
    """Wait between two attempts."""
    time.sleep(seconds)


def _refusal(url: str, response: urllib3.BaseHTTPResponse) -> _Interrupted | UserError:
    """The error for an answer that is no file."""
    status = f"the server answered {response.status} {_shown(response.reason or '')}"
    if response.status in _MAY_PASS:
        with suppress(InvalidHeader, ValueError, OverflowError):  # a date or a number beyond any calendar
            return _Interrupted(status, _RETRIES.get_retry_after(response) or 0.0)
        return _Interrupted(status)
    if response.status in (404, 410):
        advice = "there is no such file; the publisher may have moved it: set base_url to where it is now"
    elif response.status in (401, 403):
        advice = "it is not open to programs; fetch it by hand, or set base_url to a mirror"
    else:
        advice = "set base_url to a mirror, or fetch it by hand"
    return UserError(f"cannot download {url}: {status}; {advice}", code="server-refused")


def _length(header: str, url: str) -> int | None:
    """The length in a header, None where there is none (`*` of a range).
    Raises `UserError` for nonsense."""
    if header in ("", "*"):
        return None
    if not re.fullmatch("[0-9]{1,15}", header):
        raise UserError(
            f"cannot download {url}: the server says that it has {brief(header, 60)} bytes, which is no length; set "
            "base_url to a mirror, or fetch it by hand",
            code="answer-malformed",
        )
    return int(header)


def _is_validator(header: object) -> bool:
    """Whether a header can be sent back as If-Range, or is None: no header takes a line break."""
    return header is None or (isinstance(header, str) and re.fullmatch("[ -~]{0,999}", header) is not None)


def _shown(text: str) -> str:
    """A server's text for a sentence: printable and short."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:120])


def _cause(error: BaseException) -> Exception:
    """The error below those of urllib3, which wraps an error as its cause
    or as one of its arguments."""
    below = error.__cause__ or next((a for a in error.args if isinstance(a, Exception)), None)
    return cast(Exception, error) if below is None else _cause(below)


def _complete(file: RemoteFile, folder: Path) -> Path | None:
    """The path of a file, or of its content under another name, where it is
    there; None: download it (again)."""
    for name in (file.name, *file.alternatives):
        path = folder / name
        if path.is_file() and (name != file.name or _fault(path, file) is None):
            _Part.of(file, folder / file.name)  # a kill behind the renaming has left the note of a part that is gone
            return path
    return None


def _fault(path: Path, file: RemoteFile) -> UserError | None:
    """The error where size or checksum differ from what was published."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        sentence = f"{file.url} gave {size:,} bytes, not {file.size:,}; nothing was kept, download it again"
        return UserError(sentence, code="size-differs")
    for name, expected in (("md5", file.md5), ("sha256", file.sha256)):
        if expected is not None:
            algorithm = partial(hashlib.new, name, usedforsecurity=False)
            with open(path, "rb") as stream:
                digest = hashlib.file_digest(stream, algorithm).hexdigest()
            if digest != expected.lower():
                return UserError(
                    f"{file.url} has the {name} {digest}, not {expected}: it was damaged on the way or "
                    "replaced by its publisher; nothing was kept, download it again",
                    code="checksum-differs",
                )
    return None
