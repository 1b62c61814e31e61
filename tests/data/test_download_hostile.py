"""Servers that answer nonsense, addresses that are none, and parts that somebody tampered with: one sentence each."""

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from fullrank.core.errors import UserError
from fullrank.data import download as downloads
from fullrank.data.download import download
from fullrank.data.sources import RemoteFile
from refusals import refused

Answer = Callable[[socket.socket], None]


def fetch(url: str, folder: Path, size: int | None = None) -> bytes:
    """Download a source of one file, and read it."""
    source = SimpleNamespace(files=lambda: (RemoteFile(url, "a.bin", size=size),), read=Path)
    download(source, folder, progress=False, attempts=2)
    return (folder / "a.bin").read_bytes()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(downloads, "pause", lambda seconds: None)
    monkeypatch.setattr(downloads, "TIMEOUT", 0.5)


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """The address of a server that gives each connection this answer and closes it."""

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed
                return
            with connection:
                try:
                    connection.recv(1 << 16)
                    answer(connection)
                except OSError:  # the client has gone
                    pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/a.bin"


def said(head: str, body: bytes = b"") -> Answer:
    return lambda connection: connection.sendall(head.encode("latin-1") + b"\r\n\r\n" + body)


def length(value: str) -> Answer:
    return said(f"HTTP/1.1 200 OK\r\nContent-Length: {value}", b"abc")


def chunks(body: bytes) -> Answer:
    return said("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", body)


def moved(to: str) -> Answer:
    return said(f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0")


def busy(retry_after: str) -> Answer:
    return said(f"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: {retry_after}")


def for_ever(chunk: bytes, head: bytes) -> Answer:
    def send(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(chunk)

    return send


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def stall(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
    time.sleep(2)


NINES = "9" * 5000
ANSWERS = {
    "length of 5,000 digits": ("answer-malformed", length(NINES)),
    "length of 20 digits": ("answer-malformed", length("9" * 20)),
    "length negative": ("answer-malformed", length("-5")),
    "length in other digits": ("answer-malformed", length("\xb2")),
    "length in words": ("answer-malformed", length("three")),
    "length larger than the disk": ("disk-full", length("9" * 15)),
    "length in two values": ("download-interrupted", length("3\r\nContent-Length: 4")),
    "fewer bytes": ("download-interrupted", length("30")),
    "nothing": ("download-interrupted", lambda connection: None),
    "bytes": ("download-interrupted", lambda connection: connection.sendall(b"\x00\xff" * 1000)),
    "another protocol": ("download-interrupted", said("SSH-2.0 hello")),
    "reset": ("download-interrupted", reset),
    "stall": ("download-interrupted", stall),
    "many headers": ("download-interrupted", said("HTTP/1.1 200 OK\r\n" + "X: y\r\n" * 5000)),
    "long header": ("download-interrupted", said("HTTP/1.1 200 OK\r\nX: " + "y" * 200_000)),
    "status no number": ("download-interrupted", said("HTTP/1.1 abc X")),
    "status unknown": ("server-refused", said("HTTP/1.1 999 X\r\nContent-Length: 0")),
    "no content": ("server-refused", said("HTTP/1.1 204 No")),
    "long reason": ("server-refused", said("HTTP/1.1 404 \x1b[31m" + "x" * 60_000 + "\r\nContent-Length: 0")),
    "range unasked and elsewhere": (
        "download-interrupted", said("HTTP/1.1 206 P\r\nContent-Range: bytes 5-7/8\r\nContent-Length: 3", b"abc")),
    "range without a place": ("download-interrupted", said("HTTP/1.1 206 P\r\nContent-Length: 3", b"abc")),
    "range of 5,000 digits": (
        "answer-malformed", said(f"HTTP/1.1 206 P\r\nContent-Range: bytes 0-2/{NINES}\r\nContent-Length: 3", b"abc")),
    "range not satisfiable": ("download-interrupted", said("HTTP/1.1 416 X\r\nContent-Length: 0")),
    "chunk of no size": ("download-interrupted", chunks(b"zz\r\nabc\r\n0\r\n\r\n")),
    "chunk of negative size": ("download-interrupted", chunks(b"-5\r\nabc\r\n0\r\n\r\n")),
    "chunk of huge size": ("download-interrupted", chunks(b"f" * 200 + b"\r\nabc\r\n0\r\n\r\n")),
    "chunk with a long line": ("download-interrupted", chunks(b"1" * 100_000)),
    "chunks for ever": (
        "size-differs", for_ever(b"4\r\nabcd\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")),
    "bytes for ever": ("size-differs", for_ever(b"x" * 4096, b"HTTP/1.1 200 OK\r\n\r\n")),
    "wait of 5,000 digits": ("download-interrupted", busy(NINES)),
    "wait until the year 99999": ("download-interrupted", busy("Fri, 01 Jan 99999 00:00:00 GMT")),
    "wait until the year 0": ("download-interrupted", busy("Fri, 01 Jan 0000 00:00:00 GMT")),
    "wait negative": ("download-interrupted", busy("-5")),
    "version of other letters": ("download-interrupted", said('HTTP/1.1 200 OK\r\nContent-Length: 9\r\nETag: "\x85"')),
    "long version": ("download-interrupted", said(f'HTTP/1.1 200 OK\r\nContent-Length: 30\r\nETag: "{"a" * 60_000}"')),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_that_is_none_is_refused(case: str, tmp_path: Path) -> None:
    code, answer = ANSWERS[case]
    size = 1000 if "for ever" in case else None
    with serving(answer) as url, refused(code) as refusal:
        fetch(url, tmp_path, size)
    assert len(str(refusal)) < 600 and str(refusal).isprintable()
    assert not (tmp_path / "a.bin").exists()
    with serving(length("3")) as url:  # nothing that was left blocks the folder
        assert fetch(url, tmp_path) == b"abc"


@pytest.mark.parametrize(
    "to",
    ["http://[::bad", "http://user:pw@[::1", "ftp://127.0.0.1/x", "file:///etc/passwd", "data:,x", "javascript:1",
     "http://a b/", "http://127.0.0.1:99999/", "http://127.0.0.1:abc/", "http://..", "http://\x85/"],
)  # fmt: skip
def test_a_redirect_to_no_address_is_refused(to: str, tmp_path: Path) -> None:
    with serving(moved(to)) as url, refused("address-not-http", url):
        fetch(url, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["/a.bin", "//", "http://", "http:///x", "x", "?" * 70_000, "http://127.0.0.1:1/"])
def test_a_redirect_that_leads_nowhere_is_given_up(to: str, tmp_path: Path) -> None:
    with serving(moved(to)) as url, refused("download-interrupted", url):
        fetch(url, tmp_path)


@pytest.mark.parametrize(
    "url",
    ["http://[", "//x", "5", "", "ftp://h/x", "file:///etc/passwd", "http://", "http://\u2028/", "http://h\r\n/x",
     "http://a b", "http://\x00/", "http://x:y:z/", "http://127.0.0.1:99999/", "http://.../", "http://" + "a" * 10**5],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(url: str, tmp_path: Path) -> None:
    with refused("address-not-http", "http://") as refusal:
        fetch(url, tmp_path)
    assert len(str(refusal)) < 400


NOTE = {"url": "URL", "validator": '"v"', "total": 30}
NOTES = {
    "validator with a line break": NOTE | {"validator": "a\r\nHost: evil"},
    "validator with U+2028": NOTE | {"validator": "a\u2028b"},
    "validator long": NOTE | {"validator": "a" * 100_000},
    "validator a number": NOTE | {"validator": 5},
    "validator a list": NOTE | {"validator": ["a"]},
    "total as text": NOTE | {"total": "30"},
    "total true": NOTE | {"total": True},
    "total negative": NOTE | {"total": -1},
    "total huge": NOTE | {"total": 10**30},
    "total infinite": NOTE | {"total": float("inf")},
    "url a list": NOTE | {"url": ["URL"]},
    "no keys": {},
    "a list": [],
    "a text": "x",
}


@pytest.mark.parametrize("case", NOTES)
def test_a_part_with_a_tampered_note_is_begun_again(case: str, tmp_path: Path) -> None:
    with serving(length("3")) as url:
        note = json.loads(json.dumps(NOTES[case]).replace("URL", url))
        (tmp_path / "a.bin.part").write_bytes(b"?" * 10)
        (tmp_path / "a.bin.part.json").write_text(json.dumps(note))
        assert fetch(url, tmp_path) == b"abc"
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("name", ["a.bin", "a.bin.part", "a.bin.part.json"])
@pytest.mark.parametrize("kind", ["folder", "fifo", "link to nowhere", "link to itself"])
def test_what_stands_in_the_way_is_named_or_replaced(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / ("nowhere" if kind == "link to nowhere" else name))
    with serving(length("3")) as url:
        try:
            assert fetch(url, tmp_path) == b"abc"
        except UserError as error:
            assert str(path) in str(error) and error.code in ("not-a-file", "not-written")
