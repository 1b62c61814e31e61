"""Downloads from a local server that can be told to misbehave: resume, restart, checks, and errors in one sentence."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import resource
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fullrank.data import download as downloads
from fullrank.data.download import download
from fullrank.data.sources import RemoteFile, Tables
from fullrank.data.sources.amazon import Amazon
from fullrank.data.sources.movielens import MovieLens
from fullrank.data.sources.retailrocket import RetailRocket
from fullrank.data.sources.yelp import Yelp
from refusals import refused

DATA = bytes(i * 37 % 251 for i in range(1_000_000))


@dataclass
class Shelf:
    """What the server has and how it behaves."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    etag: str | None = '"v1"'
    obeys_if_range: bool = True
    chunked: bool = False
    """Without Content-Length."""
    cuts: list[int] = field(default_factory=list)
    """Body bytes after which each next answer is cut; empty sends all."""
    statuses: list[int] = field(default_factory=list)
    """Status of each next answer; empty is 200."""
    retry_after: str | None = None
    asked: list[dict[str, str]] = field(default_factory=list)
    """Headers of each request."""
    moved: dict[str, str] = field(default_factory=dict)
    """Files that lie elsewhere now -> where."""
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    shelf: Shelf

    def do_GET(self) -> None:
        shelf = self.shelf
        shelf.asked.append(dict(self.headers.items()))
        status = shelf.statuses.pop(0) if shelf.statuses else 200
        if (place := shelf.moved.get(self.path.lstrip("/"))) is not None:
            self.send_response(302)
            self.send_header("Location", place)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = shelf.files.get(self.path.lstrip("/"))
        if data is None:
            status = 404
        if status != 200 or data is None:
            self.send_response(status)
            if shelf.retry_after is not None:
                self.send_header("Retry-After", shelf.retry_after)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send(data)

    def send(self, data: bytes) -> None:
        shelf, start = self.shelf, 0
        asked = self.headers.get("Range")
        condition = self.headers.get("If-Range")
        if asked and shelf.ranges and not (shelf.obeys_if_range and condition and condition != shelf.etag):
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        if shelf.etag is not None:
            self.send_header("ETag", shelf.etag)
        body = data[start:]
        if shelf.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = shelf.cuts.pop(0) if shelf.cuts else None
        sent = body[:cut]
        if shelf.chunked:
            self.wfile.write(b"%x\r\n" % len(sent) + sent + b"\r\n" + (b"" if cut is not None else b"0\r\n\r\n"))
        else:
            self.wfile.write(sent)
        if cut is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of the tests."""


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    monkeypatch.setenv("no_proxy", "*")
    served = Shelf(files={"a.bin": DATA})
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"shelf": served}))
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield served
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a download would have waited."""
    waited: list[float] = []
    monkeypatch.setattr(downloads, "pause", waited.append)
    return waited


@dataclass
class Plain:
    """A source of given files."""

    given: tuple[RemoteFile, ...]

    def files(self) -> tuple[RemoteFile, ...]:
        return self.given

    def read(self, folder: Path) -> Tables:
        raise NotImplementedError


def one(shelf: Shelf, **checks: Any) -> Plain:
    return Plain((RemoteFile(f"{shelf.url}/a.bin", "a.bin", **checks),))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_file_arrives_whole_and_is_not_fetched_again(
    ranges: bool, chunked: bool, shelf: Shelf, tmp_path: Path
) -> None:
    shelf.ranges, shelf.chunked = ranges, chunked
    checks = {"size": len(DATA), "md5": hashlib.md5(DATA).hexdigest(), "sha256": hashlib.sha256(DATA).hexdigest()}
    folder = tmp_path / "new" / "folder"
    assert download(one(shelf, **checks), folder, progress=False) == [folder / "a.bin"]
    assert (folder / "a.bin").read_bytes() == DATA
    assert names(folder) == ["a.bin"]
    download(one(shelf, **checks), folder, progress=False)
    assert len(shelf.asked) == 1
    assert "Range" not in shelf.asked[0] and shelf.asked[0]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("chunked", [True, False])
def test_a_cut_connection_is_resumed_where_it_stopped(
    chunked: bool, shelf: Shelf, tmp_path: Path, waits: list[float]
) -> None:
    shelf.cuts, shelf.chunked = [500_000, 200_000], chunked
    download(one(shelf), tmp_path, progress=False)
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert [asked.get("Range") for asked in shelf.asked] == [None, "bytes=500000-", "bytes=700000-"]
    assert shelf.asked[1]["If-Range"] == '"v1"'
    assert waits == [1.0, 1.0]  # each attempt brought bytes, so the count begins again


def test_a_server_without_ranges_is_begun_again(shelf: Shelf, tmp_path: Path) -> None:
    shelf.cuts, shelf.ranges = [500_000], False
    download(one(shelf), tmp_path, progress=False)
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert len(shelf.asked) == 2


@pytest.mark.parametrize("lost", [0, 10_000])
def test_a_later_run_goes_on_from_the_kept_part(lost: int, shelf: Shelf, tmp_path: Path, waits: list[float]) -> None:
    shelf.cuts = [400_000, 0, 0, 0, 0]
    with refused("download-interrupted", "400,000 bytes are kept", "a.bin"):
        download(one(shelf), tmp_path, progress=False, attempts=4)
    assert names(tmp_path) == ["a.bin.part", "a.bin.part.json"]
    assert waits == [1.0, 2.0, 4.0]
    part = tmp_path / "a.bin.part"
    part.write_bytes(part.read_bytes()[: 400_000 - lost])  # a killed process may not have flushed everything
    shelf.cuts, shelf.asked = [], []
    download(one(shelf), tmp_path, progress=False)
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert shelf.asked[0]["Range"] == f"bytes={400_000 - lost}-"
    assert names(tmp_path) == ["a.bin"]


def interrupted(shelf: Shelf, folder: Path) -> None:
    shelf.cuts = [400_000]
    with refused("download-interrupted", "400,000"):
        download(one(shelf), folder, progress=False, attempts=1)
    shelf.cuts, shelf.asked = [], []


@pytest.mark.parametrize("obeys", [True, False])
def test_versions_are_never_mixed(obeys: bool, shelf: Shelf, tmp_path: Path) -> None:
    """The file changes on the server in between; a server may also ignore If-Range and send the rest of the new one."""
    interrupted(shelf, tmp_path)
    shelf.files["a.bin"], shelf.etag, shelf.obeys_if_range = DATA[::-1], '"v2"', obeys
    download(one(shelf), tmp_path, progress=False)
    assert (tmp_path / "a.bin").read_bytes() == DATA[::-1]


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_a_part_of_an_unknown_version_is_not_trusted(etag: str | None, shelf: Shelf, tmp_path: Path) -> None:
    shelf.etag = etag
    interrupted(shelf, tmp_path)
    download(one(shelf), tmp_path, progress=False)
    assert "Range" not in shelf.asked[0]
    assert (tmp_path / "a.bin").read_bytes() == DATA


def test_a_part_of_another_address_or_with_a_broken_note_is_not_trusted(shelf: Shelf, tmp_path: Path) -> None:
    for damage in ("not json", json.dumps({"url": "http://elsewhere/a.bin", "validator": '"v1"', "total": None}), "[]"):
        folder = tmp_path / str(len(damage))
        interrupted(shelf, folder)
        (folder / "a.bin.part.json").write_text(damage)
        download(one(shelf), folder, progress=False)
        assert "Range" not in shelf.asked[0]
        assert (folder / "a.bin").read_bytes() == DATA


def test_a_part_that_is_already_whole(shelf: Shelf, tmp_path: Path) -> None:
    interrupted(shelf, tmp_path)
    (tmp_path / "a.bin.part").write_bytes(DATA)
    download(one(shelf), tmp_path, progress=False)
    assert shelf.asked == []
    assert (tmp_path / "a.bin").read_bytes() == DATA


def test_a_part_longer_than_the_file_is_begun_again(shelf: Shelf, tmp_path: Path) -> None:
    interrupted(shelf, tmp_path)
    (tmp_path / "a.bin.part").write_bytes(DATA + b"more")
    download(one(shelf), tmp_path, progress=False)
    assert (tmp_path / "a.bin").read_bytes() == DATA


@pytest.mark.parametrize("check", [{"md5": "0" * 32}, {"sha256": "f" * 64}])
def test_a_wrong_checksum_keeps_nothing(check: dict[str, str], shelf: Shelf, tmp_path: Path) -> None:
    with refused("checksum-differs", *check, *check.values()):
        download(one(shelf, **check), tmp_path, progress=False)
    assert names(tmp_path) == []


def test_a_resumed_file_is_checked_from_its_first_byte(shelf: Shelf, tmp_path: Path) -> None:
    """Planted fault: one bit of the kept part is wrong, as after a bad disk or a mixed version."""
    source = one(shelf, md5=hashlib.md5(DATA).hexdigest())
    interrupted(shelf, tmp_path)
    part = tmp_path / "a.bin.part"
    part.write_bytes(b"\xff" + part.read_bytes()[1:])
    with refused("checksum-differs", hashlib.md5(DATA).hexdigest()):
        download(source, tmp_path, progress=False)
    assert shelf.asked[0]["Range"] == "bytes=400000-"
    download(source, tmp_path, progress=False)
    assert (tmp_path / "a.bin").read_bytes() == DATA


def test_a_wrong_size_is_refused_before_it_is_fetched(shelf: Shelf, tmp_path: Path) -> None:
    with refused("size-differs", "1,000,000", "999"):
        download(one(shelf, size=999), tmp_path, progress=False)
    assert names(tmp_path) == []
    shelf.chunked = True  # nobody says how much will come
    with refused("size-differs", "more than 999 bytes"):
        download(one(shelf, size=999), tmp_path, progress=False)
    assert names(tmp_path) == []


def test_a_wrong_file_under_the_final_name_is_replaced(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"half a file from somewhere")
    download(one(shelf, size=len(DATA)), tmp_path, progress=False)
    assert (tmp_path / "a.bin").read_bytes() == DATA


def test_a_server_that_sends_less_than_it_promised(shelf: Shelf, tmp_path: Path) -> None:
    shelf.cuts, shelf.ranges = [10] * 20, False
    with refused("download-interrupted", "10 of 1,000,000 bytes"):
        download(one(shelf), tmp_path, progress=False, attempts=3)
    assert not (tmp_path / "a.bin").exists()


def test_only_more_bytes_than_ever_before_are_progress(shelf: Shelf, tmp_path: Path) -> None:
    """Without ranges each attempt begins at zero: cuts that come and go must not keep it trying for ever."""
    shelf.cuts, shelf.ranges = [500, 600, 500, 600, 500, 600, 500], False
    with refused("download-interrupted", "600 of 1,000,000 bytes"):
        download(one(shelf), tmp_path, progress=False, attempts=3)
    assert len(shelf.asked) == 4


@pytest.mark.parametrize(("status", "says"), [(404, "base_url"), (410, "base_url"), (403, "by hand"), (400, "mirror")])
def test_refusals_are_final(status: int, says: str, shelf: Shelf, tmp_path: Path, waits: list[float]) -> None:
    shelf.statuses = [status] * 3
    with refused("server-refused", status, says):
        download(one(shelf), tmp_path, progress=False)
    assert len(shelf.asked) == 1 and waits == []
    assert names(tmp_path) == []


def test_busy_servers_are_asked_again_as_late_as_they_say(shelf: Shelf, tmp_path: Path, waits: list[float]) -> None:
    shelf.statuses, shelf.retry_after = [503, 429], "7"
    download(one(shelf), tmp_path, progress=False)
    assert waits == [7.0, 7.0]
    assert (tmp_path / "a.bin").read_bytes() == DATA
    shelf.statuses, shelf.retry_after = [500] * 9, "100000"
    (tmp_path / "a.bin").unlink()
    with refused("download-interrupted", "500"):
        download(one(shelf), tmp_path, progress=False, attempts=3)
    assert max(waits) == downloads.LONGEST_WAIT


def test_a_retry_after_that_is_a_date_or_nonsense(shelf: Shelf, tmp_path: Path, waits: list[float]) -> None:
    shelf.statuses, shelf.retry_after = [503], "Fri, 01 Jan 2100 00:00:00 GMT"
    download(one(shelf), tmp_path, progress=False)
    shelf.statuses, shelf.retry_after = [503], "soon"
    download(one(shelf), tmp_path / "again", progress=False)
    assert waits == [downloads.LONGEST_WAIT, 1.0]


def test_a_redirect_is_followed_and_may_not_leave_http(shelf: Shelf, tmp_path: Path) -> None:
    shelf.moved = {"a.bin": f"{shelf.url}/b.bin", "c.bin": "file:///etc/hostname", "d.bin": f"{shelf.url}/d.bin"}
    shelf.files["b.bin"], shelf.cuts = DATA, [400_000]
    download(one(shelf), tmp_path, progress=False)
    assert (tmp_path / "a.bin").read_bytes() == DATA
    assert [asked.get("Range") for asked in shelf.asked] == [None, None, "bytes=400000-", "bytes=400000-"]
    for name, code in (("c.bin", "address-not-http"), ("d.bin", "download-interrupted")):
        with refused(code, name):
            download(Plain((RemoteFile(f"{shelf.url}/{name}", name),)), tmp_path, progress=False, attempts=1)
    assert names(tmp_path) == ["a.bin"]


def test_a_proxy_of_the_environment_is_asked(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", shelf.url)
    shelf.files["http://publisher.invalid/a.bin"] = DATA
    download(Plain((RemoteFile("http://publisher.invalid/a.bin", "a.bin"),)), tmp_path, progress=False)
    assert (tmp_path / "a.bin").read_bytes() == DATA and shelf.asked[0]["Host"] == "publisher.invalid"
    assert not any(name.lower() == "proxy-authorization" for name in shelf.asked[0])
    monkeypatch.setenv("http_proxy", shelf.url.replace("://", "://user:p%40ss@"))
    download(Plain((RemoteFile("http://publisher.invalid/a.bin", "a.bin"),)), tmp_path / "again", progress=False)
    (login,) = [v.removeprefix("Basic ") for k, v in shelf.asked[1].items() if k.lower() == "proxy-authorization"]
    assert base64.b64decode(login) == b"user:p@ss"


def test_no_network(tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    source = Plain((RemoteFile(f"http://127.0.0.1:{port}/a.bin", "a.bin"),))
    with refused("download-interrupted", f"127.0.0.1:{port} does not answer", "Connection refused"):
        download(source, tmp_path, progress=False, attempts=3)
    assert waits == [1.0, 2.0]
    assert names(tmp_path) == []


def test_a_full_disk_is_seen_before_the_transfer(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with refused("disk-full", "1,000,000", "10 free", tmp_path):
        download(one(shelf), tmp_path, progress=False)


def test_a_disk_that_fills_up_on_the_way(shelf: Shelf, tmp_path: Path, waits: list[float]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        with refused("not-written", tmp_path / "a.bin.part"):
            download(one(shelf), tmp_path, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert waits == [] and not (tmp_path / "a.bin").exists()
    download(one(shelf), tmp_path, progress=False)
    assert (tmp_path / "a.bin").read_bytes() == DATA


@pytest.mark.parametrize("name", ["../a.bin", "/tmp/a.bin", "sub/a.bin", "..\\a.bin", "..", ""])
def test_names_cannot_leave_the_folder(name: str, shelf: Shelf, tmp_path: Path) -> None:
    with refused("path-outside-folder", repr(name)):
        download(Plain((RemoteFile(f"{shelf.url}/a.bin", name),)), tmp_path / "in", progress=False)
    assert shelf.asked == [] and names(tmp_path) == []


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/a", "data:text/plain,x"])
def test_only_http_is_fetched(url: str, tmp_path: Path) -> None:
    with refused("address-not-http", url, "http://", "https://"):
        download(Plain((RemoteFile(url, "a.bin"),)), tmp_path, progress=False)
    assert names(tmp_path) == []


def test_manual_files_say_where_to_get_them_and_where_to_put_them(tmp_path: Path) -> None:
    with refused("fetch-by-hand", "yelp.com/data", "accept its terms"):
        download(Yelp(), tmp_path, progress=False)
    with refused("fetch-by-hand", "events.csv, item_properties_part1.csv", "kaggle.com", "archive.zip"):
        download(RetailRocket(), tmp_path, progress=False)
    (tmp_path / "Yelp-JSON.zip").write_bytes(b"x")
    (tmp_path / "archive.zip").write_bytes(b"x")
    assert download(Yelp(), tmp_path, progress=False) == [tmp_path / "Yelp-JSON.zip"]
    assert download(RetailRocket(), tmp_path, progress=False) == [tmp_path / "archive.zip"]


def test_a_mirror_of_manual_files(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files["events.csv"] = b"timestamp,visitorid,event,itemid,transactionid\n1433221332117,1,view,2,\n"
    source = RetailRocket(base_url=shelf.url, properties=False)
    assert download(source, tmp_path, progress=False) == [tmp_path / "events.csv"]
    assert source.read(tmp_path).events.rows() == [(1, 2, 1433221332, "view")]


def test_amazon_from_server_to_tables(shelf: Shelf, tmp_path: Path) -> None:
    review = {"reviewerID": "u", "asin": "i", "overall": 4.0, "unixReviewTime": 1_400_000_000}
    shelf.files["x/reviews_Baby_5.json.gz"] = gzip.compress(json.dumps(review).encode())
    shelf.files["x/meta_Baby.json.gz"] = gzip.compress(b"{'asin': 'i', 'title': 'T'}\n")
    source = Amazon(category="Baby", base_url=f"{shelf.url}/x/")
    assert [path.name for path in download(source, tmp_path, progress=False)] == [
        "reviews_Baby_5.json.gz",
        "meta_Baby.json.gz",
    ]
    assert source.read(tmp_path).events.rows() == [("u", "i", 1_400_000_000, 4.0)]


def test_a_mirror_with_another_archive_is_caught(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files["ml-1m.zip"] = b"not the archive that GroupLens published"
    with refused("checksum-differs", "c4d9eecfca2ab87c1945afe126590906"):
        download(MovieLens(base_url=shelf.url), tmp_path, progress=False)
    assert names(tmp_path) == []


def test_a_source_by_name(tmp_path: Path) -> None:
    assert download("planted", tmp_path, progress=False) == []
    with refused("unknown-source", "did you mean 'movielens'"):
        download("movielense", tmp_path, progress=False)
    with refused("attempts-too-few", "attempts=0"):
        download("planted", tmp_path, attempts=0)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with refused("not-written", tmp_path / "file" / "sub"):
        download("planted", tmp_path / "file" / "sub", progress=False)


def test_progress_goes_to_standard_error(shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shelf.cuts = [500_000]
    download(one(shelf), tmp_path, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "a.bin" in shown.err and "trying again in 1 s" in shown.err
    download(one(shelf), tmp_path / "quiet", progress=False)
    assert capsys.readouterr() == ("", "")
