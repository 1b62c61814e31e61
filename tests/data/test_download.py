"""Downloads from a local server that can be told to misbehave: resume, restart, checks, and errors in one sentence."""

import base64
import gzip
import hashlib
import json
import resource
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from folders import left, limited
from fullrank.data import download as downloads
from fullrank.data.download import download
from fullrank.data.sources import RemoteFile, Tables
from fullrank.data.sources.amazon import Amazon
from fullrank.data.sources.movielens import MovieLens
from fullrank.data.sources.retailrocket import RetailRocket
from fullrank.data.sources.yelp import Yelp
from refusals import refused

DATA = bytes(i * 37 % 251 for i in range(1_000_000))
MD5 = hashlib.md5(DATA).hexdigest()


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
        shelf, name = self.shelf, self.path.lstrip("/")
        shelf.asked.append(dict(self.headers.items()))
        status = shelf.statuses.pop(0) if shelf.statuses else 200
        if name in shelf.moved:
            self.head(302, {"Location": shelf.moved[name], "Content-Length": 0})
        elif status != 200 or name not in shelf.files:
            later = {} if shelf.retry_after is None else {"Retry-After": shelf.retry_after}
            self.head(404 if status == 200 else status, later | {"Content-Length": 0})
        else:
            self.send(shelf.files[name])

    def head(self, status: int, headers: dict) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def send(self, data: bytes) -> None:
        shelf, start, status, headers = self.shelf, 0, 200, {}
        wanted, condition = self.headers.get("Range"), self.headers.get("If-Range")
        if wanted and shelf.ranges and not (shelf.obeys_if_range and condition and condition != shelf.etag):
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            if start >= len(data):
                return self.head(416, {"Content-Range": f"bytes */{len(data)}", "Content-Length": 0})
            status, headers = 206, {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        if shelf.etag is not None:
            headers["ETag"] = shelf.etag
        body = data[start:]
        length = {"Transfer-Encoding": "chunked"} if shelf.chunked else {"Content-Length": len(body)}
        self.head(status, headers | length)
        cut = shelf.cuts.pop(0) if shelf.cuts else None
        body = body[:cut]
        if shelf.chunked:
            body = b"%x\r\n" % len(body) + body + b"\r\n" + (b"" if cut is not None else b"0\r\n\r\n")
        self.wfile.write(body)
        self.close_connection |= cut is not None

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
def waits(monkeypatch: pytest.MonkeyPatch) -> list:
    """The seconds that a download would have waited."""
    waited = []
    monkeypatch.setattr(downloads, "pause", waited.append)
    return waited


@dataclass
class Plain:
    """A source of given files."""

    given: tuple[RemoteFile, ...]

    def files(self) -> tuple:
        return self.given

    def read(self, folder: Path) -> Tables:
        raise NotImplementedError


Fetch = Callable[..., bytes]


@pytest.fixture
def fetch(shelf: Shelf, tmp_path: Path) -> Fetch:
    """Downloads a file of the shelf, or from another address, and reads it."""

    def read(into: Path = tmp_path, *, url: str = "", name: str = "a.bin", attempts: int = 5, **checks: Any) -> bytes:
        source = Plain((RemoteFile(url or f"{shelf.url}/{name}", name, **checks),))
        assert download(source, into, progress=False, attempts=attempts) == [into / name]
        return (into / name).read_bytes()

    return read


def ranges(shelf: Shelf) -> list:
    """What part each request asked for."""
    return [headers.get("Range") for headers in shelf.asked]


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("chunked", [True, False])
def test_a_file_arrives_whole_and_is_not_fetched_again(
    ranges: bool, chunked: bool, shelf: Shelf, fetch: Fetch, tmp_path: Path
) -> None:
    shelf.ranges, shelf.chunked = ranges, chunked
    checks = {"size": len(DATA), "md5": MD5, "sha256": hashlib.sha256(DATA).hexdigest()}
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        assert fetch(folder, **checks) == DATA and left(folder) == ["a.bin"]
        (folder / "a.bin.part.json").write_text("{}")  # as a kill leaves it between the last two steps
    (headers,) = shelf.asked
    assert "Range" not in headers and headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("chunked", [True, False])
def test_a_cut_connection_is_resumed_where_it_stopped(chunked: bool, shelf: Shelf, fetch: Fetch, waits: list) -> None:
    shelf.cuts, shelf.chunked = [500_000, 200_000], chunked
    assert fetch() == DATA
    assert ranges(shelf) == [None, "bytes=500000-", "bytes=700000-"] and shelf.asked[1]["If-Range"] == '"v1"'
    assert waits == [1.0, 1.0]  # each attempt brought bytes, so the count begins again


def test_a_server_without_ranges_is_begun_again(shelf: Shelf, fetch: Fetch) -> None:
    shelf.cuts, shelf.ranges = [500_000], False
    assert fetch() == DATA and len(shelf.asked) == 2


@pytest.mark.parametrize("lost", [0, 10_000])
def test_a_later_run_goes_on_from_the_kept_part(
    lost: int, shelf: Shelf, fetch: Fetch, tmp_path: Path, waits: list
) -> None:
    shelf.cuts = [400_000, 0, 0, 0, 0]
    with refused("download-interrupted", "400,000 bytes are kept", "a.bin"):
        fetch(attempts=4)
    assert left(tmp_path) == ["a.bin.part", "a.bin.part.json"] and waits == [1.0, 2.0, 4.0]
    part = tmp_path / "a.bin.part"
    part.write_bytes(part.read_bytes()[: 400_000 - lost])  # a killed process may not have flushed everything
    shelf.cuts, shelf.asked = [], []
    assert fetch() == DATA and left(tmp_path) == ["a.bin"]
    assert ranges(shelf) == [f"bytes={400_000 - lost}-"]


def interrupted(shelf: Shelf, fetch: Fetch, *folder: Path) -> None:
    shelf.cuts = [400_000]
    with refused("download-interrupted", "400,000"):
        fetch(*folder, attempts=1)
    shelf.cuts, shelf.asked = [], []


@pytest.mark.parametrize("obeys", [True, False])
def test_versions_are_never_mixed(obeys: bool, shelf: Shelf, fetch: Fetch) -> None:
    """The file changes on the server in between; a server may also ignore If-Range and send the rest of the new one."""
    interrupted(shelf, fetch)
    shelf.files["a.bin"], shelf.etag, shelf.obeys_if_range = DATA[::-1], '"v2"', obeys
    assert fetch() == DATA[::-1]


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_a_part_of_an_unknown_version_is_not_trusted(etag: str | None, shelf: Shelf, fetch: Fetch) -> None:
    shelf.etag = etag
    interrupted(shelf, fetch)
    assert fetch() == DATA and ranges(shelf) == [None]


def test_a_part_of_another_address_or_with_a_broken_note_is_not_trusted(
    shelf: Shelf, fetch: Fetch, tmp_path: Path
) -> None:
    for damage in ("not json", json.dumps({"url": "http://elsewhere/a.bin", "validator": '"v1"', "total": None})):
        folder = tmp_path / str(len(damage))
        interrupted(shelf, fetch, folder)
        (folder / "a.bin.part.json").write_text(damage)
        assert fetch(folder) == DATA and ranges(shelf) == [None]


@pytest.mark.parametrize("more", [b"", b"more"])
def test_a_part_that_is_whole_is_kept_and_a_longer_one_begun_again(
    more: bytes, shelf: Shelf, fetch: Fetch, tmp_path: Path
) -> None:
    interrupted(shelf, fetch)
    (tmp_path / "a.bin.part").write_bytes(DATA + more)
    assert fetch() == DATA and bool(shelf.asked) == bool(more)


@pytest.mark.parametrize("check", [{"md5": "0" * 32}, {"sha256": "f" * 64}])
def test_a_wrong_checksum_keeps_nothing(check: dict, fetch: Fetch, tmp_path: Path) -> None:
    with refused("checksum-differs", *check, *check.values()):
        fetch(**check)
    assert left(tmp_path) == []


def test_a_resumed_file_is_checked_from_its_first_byte(shelf: Shelf, fetch: Fetch, tmp_path: Path) -> None:
    """Planted fault: one bit of the kept part is wrong, as after a bad disk or a mixed version."""
    interrupted(shelf, fetch)
    part = tmp_path / "a.bin.part"
    part.write_bytes(b"\xff" + part.read_bytes()[1:])
    with refused("checksum-differs", MD5):
        fetch(md5=MD5)
    assert ranges(shelf) == ["bytes=400000-"]
    assert fetch(md5=MD5) == DATA


def test_a_wrong_size_is_refused_before_it_is_fetched(shelf: Shelf, fetch: Fetch, tmp_path: Path) -> None:
    for shelf.chunked, sizes in ((False, ("1,000,000", "999")), (True, ("more than 999 bytes",))):  # or nobody says it
        with refused("size-differs", *sizes):
            fetch(size=999)
        assert left(tmp_path) == []


def test_a_wrong_file_under_the_final_name_is_replaced(fetch: Fetch, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"half a file from somewhere")
    assert fetch(size=len(DATA)) == DATA


def test_only_more_bytes_than_ever_before_are_progress(shelf: Shelf, fetch: Fetch, tmp_path: Path) -> None:
    """Without ranges each attempt begins at zero: cuts that come and go must not keep it trying for ever."""
    shelf.cuts, shelf.ranges = [500, 600, 500, 600, 500, 600, 500], False
    with refused("download-interrupted", "600 of 1,000,000 bytes"):
        fetch(attempts=3)
    assert len(shelf.asked) == 4 and not (tmp_path / "a.bin").exists()


@pytest.mark.parametrize(("status", "says"), [(404, "base_url"), (410, "base_url"), (403, "by hand"), (400, "mirror")])
def test_refusals_are_final(status: int, says: str, shelf: Shelf, fetch: Fetch, tmp_path: Path, waits: list) -> None:
    shelf.statuses = [status] * 3
    with refused("server-refused", status, says):
        fetch()
    assert len(shelf.asked) == 1 and waits == left(tmp_path) == []


def test_busy_servers_are_asked_again_as_late_as_they_say(shelf: Shelf, fetch: Fetch, waits: list) -> None:
    shelf.statuses, shelf.retry_after = [503, 429], "7"
    assert fetch() == DATA and waits == [7.0, 7.0]


@pytest.mark.parametrize(("status", "later"), [(500, "100000"), (503, "Fri, 01 Jan 2100 00:00:00 GMT"), (503, "soon")])
def test_a_retry_after_that_is_too_long_or_nonsense(
    status: int, later: str, shelf: Shelf, fetch: Fetch, waits: list
) -> None:
    shelf.statuses, shelf.retry_after = [status] * 9, later
    with refused("download-interrupted", status):
        fetch(attempts=2)
    assert waits == [1.0 if later == "soon" else downloads.LONGEST_WAIT]


def test_a_redirect_is_followed_and_may_not_leave_http(shelf: Shelf, fetch: Fetch, tmp_path: Path) -> None:
    shelf.moved = {"a.bin": f"{shelf.url}/b.bin", "c.bin": "file:///etc/hostname", "d.bin": f"{shelf.url}/d.bin"}
    shelf.files["b.bin"], shelf.cuts = DATA, [400_000]
    assert fetch() == DATA and ranges(shelf) == [None, None, "bytes=400000-", "bytes=400000-"]
    for name, code in (("c.bin", "address-not-http"), ("d.bin", "download-interrupted")):
        with refused(code, name):
            fetch(name=name, attempts=1)
    assert left(tmp_path) == ["a.bin"]


def test_a_proxy_of_the_environment_is_asked(
    shelf: Shelf, fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "")
    url = "http://publisher.invalid/a.bin"
    shelf.files[url] = DATA
    for login, folder in (("", "plain"), ("user:p%40ss@", "again")):
        monkeypatch.setenv("http_proxy", shelf.url.replace("://", f"://{login}"))
        assert fetch(tmp_path / folder, url=url) == DATA and shelf.asked[-1]["Host"] == "publisher.invalid"
    logins = [
        {key.lower(): value for key, value in headers.items()}.get("proxy-authorization") for headers in shelf.asked
    ]
    assert logins == [None, "Basic " + base64.b64encode(b"user:p@ss").decode()]


def test_no_network(fetch: Fetch, tmp_path: Path, waits: list) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    with refused("download-interrupted", f"{place} does not answer", "Connection refused"):
        fetch(url=f"http://{place}/a.bin", attempts=3)
    assert waits == [1.0, 2.0] and left(tmp_path) == []


def test_a_full_disk_is_seen_before_the_transfer(fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    with refused("disk-full", "1,000,000", "10 free", tmp_path):
        fetch()


def test_a_disk_that_fills_up_on_the_way(fetch: Fetch, tmp_path: Path, waits: list) -> None:
    with limited(resource.RLIMIT_FSIZE, 300_000), refused("not-written", tmp_path / "a.bin.part"):
        fetch()
    assert waits == [] and not (tmp_path / "a.bin").exists()
    assert fetch() == DATA


@pytest.mark.parametrize("name", ["../a.bin", "/tmp/a.bin", "sub/a.bin", "..\\a.bin", "..", ""])
def test_names_cannot_leave_the_folder(name: str, shelf: Shelf, fetch: Fetch, tmp_path: Path) -> None:
    with refused("path-outside-folder", repr(name)):
        fetch(tmp_path / "in", url=f"{shelf.url}/a.bin", name=name)
    assert shelf.asked == [] and left(tmp_path) == []


@pytest.mark.parametrize("source", [Yelp(), RetailRocket()])
def test_manual_files_say_where_to_get_them_and_where_to_put_them(source: Any, tmp_path: Path) -> None:
    archive, *words = {
        "yelp": ("Yelp-JSON.zip", "yelp.com/data", "accept its terms"),
        "retailrocket": ("archive.zip", "events.csv, item_properties_part1.csv", "kaggle.com", "archive.zip"),
    }[source.kind_of()]
    with refused("fetch-by-hand", *words):
        download(source, tmp_path, progress=False)
    (tmp_path / archive).write_bytes(b"x")
    assert download(source, tmp_path, progress=False) == [tmp_path / archive]


def test_a_mirror_of_manual_files(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files["events.csv"] = b"timestamp,visitorid,event,itemid,transactionid\n1433221332117,1,view,2,\n"
    source = RetailRocket(base_url=shelf.url, properties=False)
    assert download(source, tmp_path, progress=False) == [tmp_path / "events.csv"]
    assert source.read(tmp_path).events.rows() == [(1, 2, 1433221332, "view")]


def test_amazon_from_server_to_tables(shelf: Shelf, tmp_path: Path) -> None:
    review = {"reviewerID": "u", "asin": "i", "overall": 4.0, "unixReviewTime": 1_400_000_000}
    meta = {"asin": "i", "title": "T"}
    files = {"reviews_Baby_5.json.gz": json.dumps(review), "meta_Baby.json.gz": str(meta)}
    shelf.files |= {f"x/{name}": gzip.compress(text.encode()) for name, text in files.items()}
    source = Amazon(category="Baby", base_url=f"{shelf.url}/x/")
    assert [path.name for path in download(source, tmp_path, progress=False)] == list(files)
    assert source.read(tmp_path).events.rows() == [("u", "i", 1_400_000_000, 4.0)]


def test_a_mirror_with_another_archive_is_caught(shelf: Shelf, tmp_path: Path) -> None:
    shelf.files["ml-1m.zip"] = b"not the archive that GroupLens published"
    with refused("checksum-differs", "c4d9eecfca2ab87c1945afe126590906"):
        download(MovieLens(base_url=shelf.url), tmp_path, progress=False)
    assert left(tmp_path) == []


def test_a_source_by_name(tmp_path: Path) -> None:
    assert download("planted", tmp_path, progress=False) == []
    with refused("unknown-source", "did you mean 'movielens'"):
        download("movielense", tmp_path, progress=False)
    with refused("setting-out-of-range", "attempts=0"):
        download("planted", tmp_path, attempts=0)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with refused("not-written", tmp_path / "file" / "sub"):
        download("planted", tmp_path / "file" / "sub", progress=False)


def test_progress_goes_to_standard_error(shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    source = Plain((RemoteFile(f"{shelf.url}/a.bin", "a.bin"),))
    shelf.cuts = [500_000]
    download(source, tmp_path, progress=True)
    shown = capsys.readouterr()
    assert shown.out == "" and "a.bin" in shown.err and "trying again in 1 s" in shown.err
    download(source, tmp_path / "quiet", progress=False)
    assert capsys.readouterr() == ("", "")
