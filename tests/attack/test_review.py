"""The 21 points of the review of version 0.1, with what both versions have: each fails on that version.

``python -m tests.attack.version_0_1 CHECKOUT`` runs this file there, and records what failed. What of it is slow has a
fast test in its own room.
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from tests.attack.forks import Child, run, surroundings
from tests.attack.frame import MEMORY, SURVIVED, Said, call, copied, digest, outcome_of, patience, shared
from tests.attack.verbs import serving
from tests.attack.worlds import BOMB, DIM, QUICK, events, located, set_of, world

pytestmark = pytest.mark.usefixtures("home")
TRAIN = "train sasrec --data @store --out ~run"
LONG = " ".join(set_of("training.max_epochs=3000", "training.batch_size=64", "training.patience=null", *DIM))
ASK = "recommend @sasrec --k 30"


def slow(test: Any) -> Any:
    return pytest.mark.process(pytest.mark.attack(test))


def words_of(line: str, *more: str) -> list[str]:
    return located([*line.split(), *more], Path.cwd())


def survived(line: str, *more: str, kinds: tuple[str, ...] = SURVIVED, memory: int = MEMORY) -> Said:
    """A command line ends with an answer or a refusal. Version 0.1 had no codes: `test_options` asks for them."""
    said = call(*words_of(line, *more), "--json", memory=memory)
    outcome = outcome_of(said, as_json=kinds == ("ok",))
    assert outcome.kind in kinds, (line, more, outcome)
    return said


def answer(line: str, *more: str) -> Any:
    return survived(line, *more, kinds=("ok",)).json


refused = partial(survived, kinds=("refused",))


def listed(line: str) -> list[tuple[Any, ...]]:
    return [(row["item"], round(row["score"], 6)) for row in answer(line)["recommendations"]]


def replacing(verb: str) -> str:
    return "--overwrite" if "--overwrite" in call(verb, "--help").out else ""  # version 0.1 asked for none


def waited(until: Callable[[], bool]) -> None:
    end = time.monotonic() + 80 * patience()
    while not until():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def epochs_of(folder: Path) -> list[int]:
    """The epochs in a run's metrics."""
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
    return [json.loads(line)["epoch"] for line in lines if '"event": "epoch"' in line]


@contextlib.contextmanager
def training(folder: Path, epochs: int = 2) -> Iterator[None]:
    """While a process trains that has told so many epochs; killed at the end."""
    child = Child(words_of(f"{TRAIN} --out {folder} {LONG}"), Path.cwd())
    try:
        waited(lambda: len(epochs_of(folder)) >= epochs or child.process.exitcode is not None)
        assert child.process.exitcode is None, "the training has ended before its time"
        yield
    finally:
        child.signal(signal.SIGKILL)
        child.process.join()


# 1 to 4: silently wrong


def test_01_histories_are_sorted_as_prepare_sorts(home: Path) -> None:
    wanted = listed(f"{ASK} --history 5,7,9")
    assert wanted != listed(f"{ASK} --history 9,7,5"), "the order makes no difference to this model"
    for times in (("2024-01-01T09:00:00-03:00", "2024-01-01T10:00:00+00:00", "2024-01-01T09:30:00-01:00"),
                  ("10", "9", "9.5"), ("1e1", "9", "95e-1")):  # fmt: skip
        frame = pl.DataFrame({"user_id": ["u"] * 3, "item_id": [9, 5, 7], "timestamp": times})
        frame.write_csv("h.csv")
        frame.write_ndjson("h.jsonl")
        for file in ("h.csv", "h.jsonl"):  # text that is a number is a number where a file has no types
            store, is_text = home / f"{file}-{times[0]}", file == "h.jsonl" and "T" not in times[0]
            if call("prepare", file, "--out", store).code == 2 or is_text:  # what is no time there is none here
                refused(f"{ASK} --histories ~{file}")
                assert not store.exists()
            else:
                assert listed(f"{ASK} --histories ~{file}") == wanted


def budgets(path: str) -> tuple[Any, Callable[[int | None], list[Any]]]:
    """A model that is loaded once, and its lists with a budget of reasoning steps (None: its own)."""
    histories = [[3, 5, 7], [1, 2, 3, 4], [9]]
    if hasattr(fr, "load"):
        loaded = fr.load(path)
        ask = partial(loaded.recommend, histories, k=20)
        return loaded.model, lambda steps: ask(budget=None if steps is None else {"steps": steps}).rows()
    from fullrank.retrieval.dial import Reasoning  # version 0.1, which had no name for a loaded model
    from fullrank.retrieval.recommend import recommend

    opened = fr.Run.open(path)
    model, budget = opened.model(), lambda steps: Reasoning() if steps is None else Reasoning(steps=steps)
    return model, lambda steps: recommend(model, opened.catalog, histories, k=20, reasoning=budget(steps)).rows()


@slow
def test_02_two_budgets_on_one_model() -> None:
    """Two calls meet inside the model, each with its budget: what one has set must not be the other's."""
    (model, lists), interval = budgets(world("thinker")), sys.getswitchinterval()
    wanted = {steps: lists(steps) for steps in (0, 2, None)}
    assert wanted[0] != wanted[2]
    both, mine = threading.Barrier(2), threading.local()

    def meet(*_: object) -> None:
        if getattr(mine, "coming", False):
            mine.coming = False
            both.wait(20)

    def ask(steps: int) -> list[Any]:
        mine.coming = True
        return lists(steps)

    for part in model.modules():
        part.register_forward_pre_hook(meet)
    sys.setswitchinterval(1e-5)  # else one of the two ends before the other goes on
    try:
        with ThreadPoolExecutor(2) as pool:
            for _ in range(20):
                assert list(pool.map(ask, (0, 2))) == [wanted[0], wanted[2]]
    finally:
        sys.setswitchinterval(interval)
    assert lists(None) == wanted[None], "the budget of a call has stayed"


def test_03_a_flipped_bit_of_the_weights(home: Path) -> None:
    weights = copied(Path(world("sasrec")), home / "run") / "weights.safetensors"
    flipped = bytearray(weights.read_bytes())
    flipped[int(len(flipped) * 0.7)] ^= 4
    weights.unlink()
    weights.write_bytes(flipped)
    refused("recommend ~run --history 9,7,5")
    refused("verify ~run")


def test_04_rows_of_one_id_that_differ(home: Path) -> None:
    for option, name, key in (("--items", "item_id", 3), ("--users", "user_id", "u3")):
        pl.DataFrame({name: [key, key], "title": ["one", "another"]}).write_parquet("t.parquet")
        refused(f"prepare @events.csv {option} ~t.parquet --out ~store")
        assert not (home / "store").exists()


# 5 to 8: data loss


@slow
def test_05_overwrite_keeps_the_run(home: Path) -> None:
    whole = digest(copied(Path(world("sasrec")), home / "run"))
    for wrong in ("training.betas=[2,3]", "training.lr=.inf", "training.lr=1e308", "seed=" + "9" * 40,
                  "model.dim=999999999999"):  # fmt: skip
        refused(f"{TRAIN} --overwrite {QUICK} --set {wrong}")
        assert digest(home / "run") == whole


@slow
def test_06_recommend_on_a_full_disk(home: Path) -> None:
    words = f"recommend @sasrec {replacing('recommend')} --seen keep --out ~out/lists"
    for suffix in ("csv", "parquet", "jsonl"):
        answer(f"{words}.{suffix} --histories @histories.csv --k 2")
        before = digest(home / "out")
        many = words_of(f"{words}.{suffix} --histories @events.csv --k 39")
        done = run(many, home, limits={"RLIMIT_FSIZE": 4096})  # room for the messages, none for 2,340 rows
        assert outcome_of(done).kind == "refused" and digest(home / "out") == before


@slow
def test_07_two_trainings_of_one_run(home: Path) -> None:
    with training(home / "run"):
        assert refused(f"{TRAIN} {LONG} --resume").seconds < 15 * patience()
    epochs = epochs_of(home / "run")
    assert epochs == list(range(epochs[0], epochs[0] + len(epochs))), "an epoch has two rows, or none"


@slow
def test_08_what_a_killed_prediction_leaves(home: Path) -> None:
    predict, out = f"predict @lr {replacing('predict')} --out ~out/p.csv", home / "out" / "p.csv"
    pl.concat([pl.read_csv(world("today.csv"))] * 20_000).write_parquet("many.parquet")
    (home / "tmp").mkdir()
    answer(f"{predict} @today.csv")
    before, files = out.read_bytes(), {*home.rglob("*")}
    child = Child(words_of(f"{predict} ~many.parquet"), home)
    waited(lambda: {*home.rglob("*")} != files or out.read_bytes() != before or child.process.exitcode is not None)
    child.signal(signal.SIGKILL)
    assert child.end().code == -signal.SIGKILL, "it had ended before it could be killed"
    assert out.read_bytes() == before
    assert run(words_of(f"{predict} @today.csv"), home).code == 0
    assert out.read_bytes() == before and {*home.rglob("*")} == files, "something is left"


# 9 to 17: crashes, hangs, tracebacks


@slow
def test_09_fewer_vectors_than_dimensions(home: Path) -> None:
    for rows, dims in ((120, 384), (300, 384), (40, 64)):
        ids = list(range(rows))
        frame = pl.DataFrame({"user_id": [i // 4 for i in ids] * 3, "item_id": ids * 3, "timestamp": range(3 * rows)})
        frame.write_parquet("events.parquet")
        draw = np.random.default_rng(0).standard_normal((rows, dims)).astype(np.float32)
        pl.DataFrame({"item_id": ids, "v": draw}).write_parquet("v.parquet")
        answer(f"prepare ~events.parquet --out ~store{rows}")
        line = f"encode ~store{rows} --vectors ~v.parquet --levels 4 --size 8 --set limits.collisions=1 --out ~{rows}"
        done = run(words_of(line), home)
        assert done.code == 0, done
        assert pl.read_parquet(home / f"{rows}" / "codes.parquet").height == rows


@slow
def test_10_a_killed_start_blocks_no_folder(home: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (home / "run").mkdir()
    for left in (f"{file}.{dead.pid}{more}" for file in ("spec.json", "manifest.json") for more in ("", "-0")):
        (home / "run" / f".{left}.part").write_text('{"half')
    answer(f"{TRAIN} {QUICK}")


@slow
def test_11_values_that_grow() -> None:
    for wrong in (f"model.dim={BOMB}", "model.encoder.layers=10000000"):
        refused(f"{TRAIN} --set", wrong)


def test_12_yaml_that_is_no_value(home: Path) -> None:
    for value in ("2001-13-01", "!!int x", "!!float x", "!!bool maybe", "!!timestamp foo", "9" * 5000, "[" * 2000):
        (home / "mine.yaml").write_text(f"name: mine\nseed: {value}\n")
        (home / "grid.yaml").write_text(f"cells: [{{name: a, recipe: sasrec}}]\nseeds: {value}\n")
        refused(f"{TRAIN} --set", f"seed={value}")
        refused("train ~mine.yaml --data @store --out ~run")
        refused("sweep ~grid.yaml --data @store --out ~run")


def test_13_numbers_beyond_any_machine() -> None:
    for wrong in (f"seed={10**40}", "model.dim=100000000", "model.max_length=1000000000000",
                  f"training.batch_size={10**30}"):  # fmt: skip
        refused(f"{TRAIN} {QUICK} --set {wrong}")


def killed_training(folder: Path) -> None:
    with training(folder, epochs=4):
        pass


@slow
def test_14_checkpoints_of_wrong_values(home: Path) -> None:
    changes = [("init_from", value) for value in (5, [1], {"a": 1}, True)]
    for key, value in [*changes, ("step", -5), ("step", 10**30), ("stale", -1), ("step", "x")]:
        folder = copied(shared("killed", killed_training), home / f"{key}{value}")
        trees = {path: json.loads(path.read_text()) for path in folder.rglob("*.json")}
        wrong = [path for path in trees if key in trees[path] or (key == "init_from" and path.stem == "manifest")]
        assert wrong, f"nothing says its {key}"
        for path in wrong:
            path.unlink()
            path.write_text(json.dumps(trees[path] | {key: value}))
        for pointer in folder.glob("checkpoints/last.json"):  # what was changed on purpose has the right hash
            named = json.loads(pointer.read_text())
            if "state_sha256" in named:
                state = (pointer.parent / named["folder"] / "state.json").read_bytes()
                pointer.unlink()
                pointer.write_text(json.dumps(named | {"state_sha256": hashlib.sha256(state).hexdigest()}))
        refused(f"{TRAIN} {LONG} --resume --out {folder}")


def answers(status: int, name: str, value: str, handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(status)
    handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(b"x")


@slow
def test_15_addresses_and_answers_that_are_none() -> None:
    addresses = ["http://[", "//x", "5", "http://a\u2028b", "ftp://127.0.0.1:1", "file:///etc"]
    for wrong in ((302, "Location", "http://[::bad"), (302, "Location", "ftp://127.0.0.1:1/x"),
                  (200, "Content-Length", "9" * 5000), (302, "Location", "http://a\u00a0b/\u00e9")):  # fmt: skip
        addresses.append(serving(partial(answers, *wrong)))
    for address in addresses:
        said = refused("download amazon --out ~d --set", f"base_url={json.dumps(address)}")
        assert said.seconds < 15 * patience()


@slow
def test_16_columns_that_collide() -> None:
    frame = pl.DataFrame({"user_id": ["u"] * 3, "item_id": [9, 5, 7], "timestamp": [1, 2, 3]})
    for names, columns in (
        ({}, "--user-col item_id"), ({}, "--item-col user_id"), ({}, "--time-col item_id"),
        ({"item_id": "__place"}, "--item-col __place"),
        ({"user_id": "__user"}, "--user-col __user --item-col __seconds"),
    ):  # fmt: skip
        frame.rename(names).write_parquet("h.parquet")
        survived(f"{ASK} --histories ~h.parquet {columns}")


@slow
def test_17_work_is_bounded() -> None:
    survived("evaluate @sasrec --set sampled=100000000", memory=1 << 30)
    survived("recommend @thinker --history 9,7,5 --reasoning-steps 100000")
    refused("encode @store --model nope/nope --out ~codes --cache ~cache")


# 18 to 21: unclear


def test_18_an_output_by_way_of_a_missing_folder(home: Path) -> None:
    said = survived("prepare @events.csv --out ~missing/../z")
    assert said.code == 0 or not (home / "z").exists(), "refused, and written all the same"


def test_19_a_rating_that_nothing_reads() -> None:
    events().with_columns(rating=pl.lit(3.0)).write_csv("e.csv")
    line = "prepare ~e.csv --rating-col rating --out ~store"
    refused(line)
    answer(f"{line} --min-rating 2")


@slow
def test_20_an_evaluation_into_a_store(home: Path) -> None:
    answer("prepare @events.csv --out ~store")
    before = digest(home / "store").keys()
    call(*words_of("evaluate @sasrec --out ~store"))
    assert digest(home / "store").keys() == before
    answer("prepare @events.csv --out ~store --overwrite")


@slow
def test_21_the_peer_of_a_killed_process(home: Path) -> None:
    """The launcher may end the survivor before it speaks: what it says, if anything, asks nobody to report a bug."""
    line = "-m torch.distributed.run --nproc-per-node 2 --master-port 0 --rdzv-backend c10d"
    line += f" --rdzv-endpoint 127.0.0.1:0 -m fullrank {TRAIN} {LONG}"
    with open("told", "wb") as told:
        process = subprocess.Popen(
            [sys.executable, *words_of(line)], env=surroundings(), stdout=told, stderr=told, start_new_session=True
        )
    try:
        waited(lambda: len(epochs_of(home / "run")) >= 2 or process.poll() is not None)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (rank,) = (pid for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
        os.kill(int(rank), signal.SIGKILL)
        process.wait(40 * patience())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    text = (home / "told").read_text(errors="replace")
    assert "please report" not in text and "unexpected" not in text, text[-2000:]
