"""The review of version 0.1, points 9 to 21 (crashes, hangs, what is unclear): they fail on that version.

They use the command line and names of `fullrank` that both versions have, so the same file runs on both:
``python -m tests.attack.version_0_1 CHECKOUT`` does, and records what failed there.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from jaxtyping import TypeCheckError

import fullrank as fr
from tests.attack.frame import call, outcome_of, patience
from tests.attack.review import ASKED, MANY, TRAIN, answer, environment, refused, rows_of, slow, spawn, survived, waited
from tests.attack.worlds import DIM, TINY, events, set_of, world

# 9 to 17: crashes, hangs, tracebacks


@slow
@pytest.mark.parametrize(("rows", "dims"), [(120, 384), (300, 384), (40, 64)])
def test_09_fewer_vectors_than_dimensions(rows: int, dims: int, home: Path) -> None:
    ids = list(range(rows))
    frame = pl.DataFrame({"user_id": [i // 4 for i in ids] * 3, "item_id": ids * 3, "timestamp": range(3 * rows)})
    frame.write_parquet(home / "events.parquet")
    draw = np.random.default_rng(0).standard_normal((rows, dims)).astype(np.float32)
    pl.DataFrame({"item_id": ids, "v": draw}).write_parquet(home / "v.parquet")
    answer("prepare", home / "events.parquet", "--out", home / "store")
    words = ("--levels", 4, "--size", 8, "--set", "limits.collisions=1", "--json")
    said = spawn("encode", home / "store", "--vectors", home / "v.parquet", *words, "--out", home / "codes", seconds=80)
    assert outcome_of(said).kind == "ok", outcome_of(said)
    assert pl.read_parquet(home / "codes" / "codes.parquet").height == rows


@slow
@pytest.mark.parametrize("file", ["spec.json", "manifest.json"])
def test_10_a_killed_start_blocks_no_folder(file: str, home: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (home / "run").mkdir()
    for left in (f".{file}.{dead.pid}.part", f".{file}.{dead.pid}-0.part"):
        (home / "run" / left).write_text('{"half')
    answer(*TRAIN, "--data", world("store"), "--out", home / "run", *set_of(*TINY, *DIM))


BOMB = "{a: &a [x,x,x,x,x,x,x,x,x,x], " + ", ".join(
    f"{name}: &{name} [{','.join([f'*{above}'] * 10)}]" for above, name in zip("abcdefgh", "bcdefghi", strict=True)
) + "}"  # fmt: skip
"""YAML of 600 characters for a billion values."""


@slow
@pytest.mark.parametrize("setting", [f"model.dim={BOMB}", "model.encoder.layers=10000000"], ids=["bomb", "layers"])
def test_11_values_that_grow(setting: str, home: Path) -> None:
    words = (*TRAIN, "--data", world("store"), "--out", home / "run", "--set", setting, "--json")
    said = spawn(*words, memory=6 << 30, seconds=45)  # 25 of them for a start of Python on a busy machine
    assert outcome_of(said, as_json=False).kind == "refused", outcome_of(said)


@pytest.mark.parametrize("where", ["--set", "experiment", "grid"])
def test_12_yaml_that_is_no_value(where: str, home: Path) -> None:
    data = ("--data", world("store"), "--out", home / "out")
    for value in ("2001-13-01", "!!int x", "!!float x", "!!bool maybe", "!!timestamp foo", "9" * 5000, "[" * 2000):
        (home / "mine.yaml").write_text(f"name: mine\nseed: {value}\n")
        (home / "grid.yaml").write_text(f"cells: [{{name: a, recipe: sasrec}}]\nseeds: {value}\n")
        refused(*{"--set": (*TRAIN, *data, "--set", f"seed={value}"), "experiment": ("train", home / "mine.yaml",
        *data),
                  "grid": ("sweep", home / "grid.yaml", *data)}[where])  # fmt: skip


def test_13_numbers_beyond_any_machine(home: Path) -> None:
    words = (*TRAIN, "--data", world("store"), "--out", home / "run")
    for number in (
        f"seed={10**40}",
        "model.dim=100000000",
        "model.max_length=1000000000000",
        f"training.batch_size={10**30}",
    ):
        refused(*words, *set_of(*TINY, *DIM, number))


@contextlib.contextmanager
def server(status: int, headers: dict[str, str]) -> Iterator[str]:
    """A server on this machine with one answer to everything."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"x")

        def log_message(self, *arguments: Any) -> None: ...

    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{serving.server_port}"
    finally:
        serving.shutdown()
        serving.server_close()


def download(address: str, home: Path) -> str:
    said = refused("download", "amazon", "--out", home / "d", "--set", f"base_url={json.dumps(address)}")
    assert said.seconds < 15 * patience()
    return said.json["error"]


@slow
@pytest.mark.parametrize("address", ["http://[", "//x", "5", "http://a\u2028b", "ftp://127.0.0.1:1", "file:///etc"])
def test_15_addresses_that_are_none(address: str, home: Path) -> None:
    download(address, home)


@slow
@pytest.mark.parametrize(
    ("status", "name", "value"),
    [(302, "Location", "http://[::bad"), (302, "Location", "ftp://127.0.0.1:1/x"), (200, "Content-Length", "9" * 5000),
     (302, "Location", "http://a\u00a0b/\u00e9")],
)  # fmt: skip
def test_15_answers_that_are_none(status: int, name: str, value: str, home: Path) -> None:
    with server(status, {name: value}) as address:
        sentence = download(address, home)
    assert "ftp" not in value or "ftp" in sentence


@slow
@pytest.mark.parametrize(
    "columns",
    [
        ("--user-col", "item_id"), ("--item-col", "user_id"), ("--item-col", "__place"), ("--time-col", "item_id"),
        ("--user-col", "__user", "--item-col", "__seconds"),
    ],
)  # fmt: skip
def test_16_columns_that_collide(columns: tuple[str, ...], home: Path) -> None:
    frame = pl.DataFrame({"user_id": ["u"] * 3, "item_id": [9, 5, 7], "timestamp": [1, 2, 3]})
    for option, name in zip(columns[::2], columns[1::2], strict=True):
        if name.startswith("__"):
            frame = frame.rename({option[2:].replace("-col", "_id"): name})
    frame.write_parquet(home / "h.parquet")
    survived("recommend", world("sasrec"), "--histories", home / "h.parquet", *columns)


@slow
@pytest.mark.parametrize("histories", [{"a": 5}, {"a": None}, [5, 7], 5, [None], [[None]], [float("nan")]], ids=repr)
def test_16_histories_that_are_none(histories: Any) -> None:
    with pytest.raises(fr.UserError):
        fr.recommend(world("sasrec"), histories)


@slow
@pytest.mark.parametrize("k", [1.5, "3", None, True, float("nan"), [3]], ids=repr)
def test_16_numbers_of_items_that_are_none(k: Any) -> None:
    # where the run-time type checker of the tests is on, it is asked before fullrank is
    with pytest.raises((fr.UserError, TypeCheckError)):
        fr.recommend(world("sasrec"), [[3, 5]], k=k)


@slow
def test_17_sampled_candidates_are_bounded() -> None:
    run, kept = world("sasrec"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    survived("evaluate", run, "--set", "sampled=100000000")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - kept < 1 << 20, "more than 1 GB"


@slow
def test_17_steps_are_bounded() -> None:
    survived("recommend", world("thinker"), *ASKED, "--reasoning-steps", 100_000)


@slow
def test_17_a_model_that_no_hub_has(home: Path) -> None:
    words = ("encode", world("store"), "--model", "nope/nope", "--out", home / "codes", "--cache", home / "cache")
    said = spawn(*words, "--json", seconds=60)
    assert outcome_of(said, as_json=False).kind == "refused", outcome_of(said)


# 18 to 21: unclear


def test_18_an_output_by_way_of_a_missing_folder(home: Path) -> None:
    said = survived("prepare", world("events.csv"), "--out", home / "missing" / ".." / "z")
    assert said.code == 0 or not (home / "z").exists(), "refused, and written all the same"


def test_19_a_rating_that_nothing_reads(home: Path) -> None:
    events().with_columns(rating=pl.lit(3.0)).write_csv(home / "e.csv")
    words = ("prepare", home / "e.csv", "--rating-col", "rating", "--out", home / "store")
    refused(*words)
    answer(*words, "--min-rating", 2)


@slow
def test_20_an_evaluation_into_a_store(home: Path) -> None:
    words = ("prepare", world("events.csv"), "--out", home / "store")
    answer(*words)
    before = sorted(path.name for path in (home / "store").iterdir())
    call("evaluate", world("sasrec"), "--out", home / "store", "--json")
    assert sorted(path.name for path in (home / "store").iterdir()) == before
    answer(*words, "--overwrite")


@slow
def test_21_the_peer_of_a_killed_process(home: Path) -> None:
    """The launcher may end the survivor before it speaks: what it says, if anything, asks nobody to report a bug."""
    launcher = (
        "torch.distributed.run --nproc-per-node 2 --master-port 0 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0"
    )
    line = [
        *launcher.split(),
        "-m",
        "fullrank",
        *TRAIN,
        "--data",
        world("store"),
        "--out",
        str(home / "run"),
        *set_of(*MANY),
    ]
    with open(home / "told", "wb") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", *line], env=environment(), stdout=told, stderr=told, start_new_session=True
        )
        try:
            waited(lambda: len(rows_of(home / "run")) >= 2 or process.poll() is not None)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            ranks = [
                int(pid) for pid in children if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            ]
            assert len(ranks) == 1, (home / "told").read_text()[-500:]
            os.kill(ranks[0], signal.SIGKILL)
            process.wait(40 * patience())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = (home / "told").read_text(errors="replace")
    assert "please report" not in text and "unexpected" not in text, text[-2000:]
