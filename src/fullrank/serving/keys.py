"""API keys: a file of hashed keys with names and scopes, and the rights of a request with (or without) one of them.

A key is 32 random bytes, so one round of SHA-256 without salt is enough at rest: there is nothing
to guess. The key itself is shown once, when it is made, and is neither stored nor logged. A
request's key is looked up by its digest: how long that takes tells nothing of a stored key, since
nobody can choose the digest of what is sent.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from fullrank.core.checks import check_path
from fullrank.core.errors import UserError, brief, unknown
from fullrank.core.files import write_json
from fullrank.core.locks import folder_lock
from fullrank.core.log import logger
from fullrank.core.readers import cannot_read, read_json
from fullrank.data.manifest import require_outside_stores
from fullrank.serving.limits import HostRule

log = logger(__name__)

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
FORMAT = 1
PREFIX = "frk_"
"""Beginning of every key, by which scanners for leaked secrets can know one."""
MOST_KEYS = 10_000
MOST_HEADER = 256
"""Characters of an Authorization header that is looked at."""
LOOK = 1.0
"""Least seconds between two looks at whether the file has changed."""
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is stored."""

    name: Annotated[str, Field(pattern=f"^{_NAME}$")]
    """Whose it is; stands in logs and counts towards its own rate."""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)]
    created: str
    """When it was made, as ISO 8601 in UTC."""
    key_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Hex digest of the key."""


class Keys:
    """The keys of a file, read again when the file changes. For one thread, such as an event loop's."""

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.monotonic):
        """Raises `UserError` where the file is missing, damaged, or
        other people may write to it."""
        self.path = Path(path)
        self._clock = clock
        self._stamp = _stamp(self.path)
        self._keys = {key.key_sha256: key for key in read_keys(path)}
        self._looked = clock()

    def find(self, header: str | bytes | None) -> Key | None:
        """The key of an Authorization header (``Bearer KEY``); None where there is no key, or an unknown one."""
        self._refresh()
        if not header or len(header) > MOST_HEADER:
            return None
        sent = header.encode("utf-8", "surrogateescape") if isinstance(header, str) else header
        scheme, _, key = sent.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        return self._keys.get(sha256(key.strip()).hexdigest())

    def __len__(self) -> int:
        return len(self._keys)

    def _refresh(self) -> None:
        """Read the file again where it has changed since the last look."""
        now = self._clock()
        if now - self._looked < LOOK:
            return
        self._looked = now
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        if stamp is None:  # whoever takes the file away means that nobody gets in
            self._keys = {}
            log.error("the file of keys has gone: no key is accepted until it is back")
            return
        try:
            self._keys = {key.key_sha256: key for key in read_keys(self.path)}
        except UserError as error:
            log.error(f"the file of keys was changed and cannot be read; the keys from before hold on: {error}")


class Access:
    """Who may do what, by key where there is a file of keys.

    Without one anybody may read and write whom `hosts` lets speak to the service.
    """

    def __init__(self, keys: Keys | None, hosts: HostRule | None = None):
        self.keys, self.hosts = keys, hosts

    def check(self, header: str | bytes | None, scope: Scope | None) -> Key | None:
        """The key of a request that needs `scope` (None: nothing). Raises `UserError` where it may not."""
        if scope is None:
            return None
        if self.keys is None:
            if scope != "admin":
                return None
            raise _denied("admin-off", "administration is off without keys: start the service with --keys FILE")
        if not header:
            raise _denied("key-missing", "this needs a key: send the header 'Authorization: Bearer KEY'")
        key = self.keys.find(header)
        if key is None:
            raise _denied("key-unknown", "this key is not known: send 'Authorization: Bearer KEY' with one that is")
        if scope not in key.scopes:
            raise _denied(
                "scope-missing", f"the key {key.name!r} has the scopes {', '.join(key.scopes)}; this needs {scope!r}"
            )
        return key


def _denied(code: str, sentence: str) -> UserError:
    """The error for a request without the key, or without the scope, that it needs."""
    return UserError(sentence, code=code, public=True)


def scope_of(method: str, path: str) -> Scope | None:
    """The scope that a request needs; None: open to all. A route that is not named here is closed: it needs `admin`.

    The page is a file without data, and asks for a key itself; whether the service lives and
    is ready tells no secret.
    """
    if method in ("GET", "HEAD"):
        return None if path in ("/", "/healthz", "/readyz", "/openapi.json", "/favicon.ico") else "read"
    if method == "POST" and path in ("/v1/recommend", "/v1/recommend:batch", "/v1/predict"):
        return "read"
    if (method, path) in (("POST", "/v1/events"), ("POST", "/v1/items")) or path.startswith("/v1/users/"):
        return "write"
    return "admin"


def read_keys(path: str | Path) -> list[Key]:
    """The keys in a file. Raises `UserError` where it is missing, holds something
    else, or others may write to it."""
    file = check_path("keys", path)
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise cannot_read(f"the keys {str(path)!r}", error) from None
    tree = read_json(file)
    if os.name == "posix" and mode & 0o022:
        raise UserError(
            f"others than its owner may write to {str(path)!r}, and so let themselves in: chmod go-w it",
            code="keys-writable",
        )
    try:
        keys = TypeAdapter(list[Key]).validate_python(tree.get("keys"))
    except ValidationError:  # whose own text would show the keys
        keys = None
    if keys is None or tree.get("format") != FORMAT or not len({key.name for key in keys}) == len(keys) <= MOST_KEYS:
        raise UserError(
            f"{str(path)!r} is no file of keys, each of another name and {MOST_KEYS:,} at most; `fullrank keys add` "
            "makes one",
            code="not-a-keys-file",
        )
    return keys


def add_key(path: str | Path, name: str, scopes: Iterable[str] = ("read",)) -> tuple[str, Key]:
    """Make a key and write it into a file, which is made where there is none: (the key, what is stored of it).

    The key cannot be had again. Raises `UserError` for a name that is taken or malformed,
    and for an unknown scope.
    """
    if not re.fullmatch(_NAME, name):
        raise UserError(
            f"{brief(name)} is no name of a key: give 1 to 64 letters, digits, dots, dashes and underscores",
            code="invalid-key-name",
        )
    wanted = set(scopes)
    for scope in sorted(wanted):
        if scope not in SCOPES:
            raise unknown("scope", scope, SCOPES)
    if not wanted:
        raise UserError(f"a key needs a scope (allowed: {', '.join(SCOPES)})", code="missing-scope")
    text = PREFIX + secrets.token_urlsafe(32)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    key = Key(name, tuple(s for s in SCOPES if s in wanted), now, sha256(text.encode()).hexdigest())
    require_outside_stores(Path(path))
    with folder_lock(path, "keys add"):
        stored = read_keys(path) if os.path.lexists(path) else []
        if any(other.name == name for other in stored):
            raise UserError(f"a key is called {name!r} already: remove it, or choose another name", code="key-exists")
        if len(stored) >= MOST_KEYS:
            raise UserError(f"the file holds {MOST_KEYS:,} keys, and that is the most", code="too-many-keys")
        _write(path, [*stored, key])
    return text, key


def remove_key(path: str | Path, name: str) -> Key:
    """Take a key out of a file; services refuse it within a second or two. Raises
    `UserError` for an unknown name."""
    with folder_lock(path, "keys remove"):
        stored = read_keys(path)
        gone = [key for key in stored if key.name == name]
        if not gone:
            raise unknown("key", name, (key.name for key in stored))
        _write(path, [key for key in stored if key.name != name])
    return gone[0]


def _write(path: str | Path, keys: list[Key]) -> None:
    write_json(path, {"format": FORMAT, "keys": [asdict(key) for key in keys]}, private=True)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Inode, time and size of a file, of which one changes when it is replaced or
    written to; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
