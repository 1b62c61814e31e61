"""The 21 points of the review of version 0.1, each as a test that fails on that version.

They use the command line and names of `fullrank` that both versions have, so the same file runs on both:
``python -m tests.attack.version_0_1 CHECKOUT`` does, and records what failed there.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from tests.attack.frame import Said, call, copied, outcome_of, patience, shared
from tests.attack.pools import VALUES
from tests.attack.spawn import environment, spawn
from tests.attack.worlds import DIM, TINY, events, set_of, world

MANY = ("training.max_epochs=3000", "training.batch_size=64", "training.patience=null", *DIM)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(*words: object) -> Said:
    """The command line ends with status 2 and one sentence. Version 0.1 had no codes: `test_options` asks for them."""
    said = call(*words, "--json")
    outcome = outcome_of(said, as_json=False)
    assert outcome.kind == "refused", f"{outcome.kind}: {outcome.detail}"
    return said


def answer(*words: object) -> Any:
    """The JSON of a command line that ends with 0."""
    said = call(*words, "--json")
    outcome = outcome_of(said)
    assert outcome.kind == "ok", f"{outcome.kind}: {outcome.detail}"
    return said.json


def listed(run: object, *words: object) -> list[tuple[Any, ...]]:
    rows = answer("recommend", run, *words)["recommendations"]
    return [(row["item"], round(row["score"], 6)) for row in rows]


ASKED = ("--k", 30, "--history", "9,7,5")


# 1 to 4: silently wrong


@pytest.mark.parametrize(
    ("times", "order"),
    [
        (("2024-01-01T09:00:00-03:00", "2024-01-01T10:00:00+00:00", "2024-01-01T09:30:00-01:00"), "5,7,9"),
        (("10", "9", "9.5"), "5,7,9"),
        (("1e1", "9", "95e-1"), "5,7,9"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_01_histories_are_sorted_as_prepare_sorts(times: tuple[str, ...], order: str, suffix: str, home: Path) -> None:
    frame = pl.DataFrame({"user_id": ["u"] * 3, "item_id": [9, 5, 7], "timestamp": times})
    file = home / f"h.{suffix}"
    frame.write_csv(file) if suffix == "csv" else frame.write_ndjson(file)
    if suffix == "jsonl" and "T" not in times[0]:  # text that is a number is a number where a file has no types
        refused("prepare", file, "--out", home / "store")
        refused("recommend", world()["sasrec"], "--histories", file)
        return
    wanted = listed(world()["sasrec"], "--k", 30, "--history", order)
    assert wanted != listed(world()["sasrec"], *ASKED), "the order makes no difference to this model"
    if call("prepare", file, "--out", home / "store").code == 2:  # what is no time there is none here
        refused("recommend", world()["sasrec"], "--histories", file)
    else:
        assert listed(world()["sasrec"], "--histories", file, "--k", 30) == wanted


@pytest.mark.parametrize("time_of", ["", "nan", "yesterday", "inf"])
def test_01_times_that_prepare_refuses_are_refused(time_of: str, home: Path) -> None:
    (home / "h.csv").write_text(f"user_id,item_id,timestamp\nu,9,1700000000\nu,5,{time_of}\nu,7,1700000001\n")
    refused("prepare", home / "h.csv", "--out", home / "store")
    refused("recommend", world()["sasrec"], "--histories", home / "h.csv")


def budgets(run: str) -> Callable[[int | None], list[Any]]:
    """The lists of one model that is loaded once, with a budget of reasoning steps (None: its own)."""
    histories = [[3, 5, 7], [1, 2, 3, 4], [9]]
    if hasattr(fr, "load"):
        loaded = fr.load(run)

        def lists(steps: int | None) -> list[Any]:
            budget = {} if steps is None else {"budget": {"steps": steps}}
            return loaded.recommend(histories, k=20, **budget).rows()

        return lists
    from fullrank.retrieval.dial import Reasoning  # version 0.1, which had no name for a loaded model
    from fullrank.retrieval.recommend import recommend

    opened = fr.Run.open(run)
    model = opened.model()
    return lambda steps: recommend(
        model, opened.catalog, histories, k=20, reasoning=Reasoning() if steps is None else Reasoning(steps=steps)
    ).rows()


def test_02_two_budgets_on_one_model() -> None:
    lists = budgets(world()["thinker"])
    wanted = {steps: lists(steps) for steps in (0, 2, None)}
    assert wanted[0] != wanted[2]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda n: (n % 2 * 2, lists(n % 2 * 2)), range(200)))
    wrong = sum(got != wanted[steps] for steps, got in found)
    assert wrong == 0, f"{wrong} of 200 answers are wrong"
    assert lists(None) == wanted[None], "the budget of a call has stayed"


def flipped(path: Path, place: float = 0.7) -> None:
    """Another bit somewhere in a file, which is replaced (it may be a link to the original)."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 4
    path.unlink()
    path.write_bytes(data)


def test_03_a_flipped_bit_of_the_weights(home: Path) -> None:
    run = copied(Path(world()["sasrec"]), home / "run")
    before = listed(run, *ASKED)
    flipped(run / "weights.safetensors")
    refused("recommend", run, *ASKED)
    assert before == listed(world()["sasrec"], *ASKED)


def test_03_items_in_another_order(home: Path) -> None:
    run = copied(Path(world()["sasrec"]), home / "run")
    frame = pl.read_parquet(run / "items.parquet")
    (run / "items.parquet").unlink()
    frame.with_columns(pl.col("item_id").reverse()).write_parquet(run / "items.parquet")
    refused("recommend", run, *ASKED)


@pytest.mark.parametrize(
    ("folder", "file"),
    [
        ("store", "users.parquet"),
        ("store", "items.npy"),
        ("clicks", "numeric.npy"),
        ("sasrec", "weights.safetensors"),
        ("sasrec", "items.parquet"),
        ("codes", "codes.parquet"),
    ],
)
def test_03_verify(folder: str, file: str, home: Path) -> None:
    copy = copied(Path(world()[folder]), home / folder)
    answer("verify", copy)
    flipped(copy / file)
    refused("verify", copy)


@pytest.mark.parametrize(("table", "option"), [("items", "--items"), ("users", "--users")])
def test_04_rows_of_one_id_that_differ(table: str, option: str, home: Path) -> None:
    name = {"items": "item_id", "users": "user_id"}[table]
    ids = pl.Series(name, [3, 3] if table == "items" else ["u3", "u3"])
    pl.DataFrame({name: ids, "title": ["one", "another"]}).write_parquet(home / "t.parquet")
    refused("prepare", world()["events.csv"], option, home / "t.parquet", "--out", home / "store")
    assert not (home / "store").exists()


# 5 to 8: data loss


@pytest.mark.parametrize(
    "setting",
    ["training.betas=[2,3]", "training.lr=.inf", "training.lr=1e308", "seed=" + "9" * 40, "model.dim=999999999999"],
)
def test_05_overwrite_keeps_the_run(setting: str, home: Path) -> None:
    run = copied(Path(world()["sasrec"]), home / "run")
    before = listed(run, *ASKED)
    words = ("train", "sasrec", "--data", world()["store"], "--out", run, "--overwrite")
    refused(*words, *set_of(*TINY, *DIM), "--set", setting)
    assert listed(run, *ASKED) == before


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_06_recommend_on_a_full_disk(suffix: str, home: Path) -> None:
    out = home / "out" / f"lists.{suffix}"
    answer("recommend", world()["sasrec"], "--histories", world()["histories.csv"], "--k", 2, "--out", out)
    before = out.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    words = ("recommend", world()["sasrec"], "--histories", world()["events.csv"], "--k", 39, "--out", out, "--json")
    said = None
    before_signal = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # room for the messages, none for 2,340 rows
    try:
        said = call(*words, "--seen", "keep")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before_signal)
    assert said is not None and outcome_of(said, as_json=False).kind == "refused", said
    assert out.read_bytes() == before and [path.name for path in out.parent.iterdir()] == [out.name]


@contextlib.contextmanager
def training(run: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that trains for long, once it has kept a checkpoint; killed at the end."""
    given = ["train", "sasrec", "--data", world()["store"], "--out", str(run), *words, *set_of(*MANY)]
    process = subprocess.Popen(
        [sys.executable, "-m", "fullrank", *given],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        waited(lambda: len(rows_of(run)) >= 2 or process.poll() is not None)
        assert process.poll() is None, "the training has ended before its time"
        yield process
    finally:
        process.kill()
        process.wait()


def waited(until: Callable[[], bool], seconds: float = 80) -> None:
    end = time.monotonic() + seconds * patience()
    while not until():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def rows_of(run: Path) -> list[int]:
    """The epochs in a run's metrics."""
    if not (run / "metrics.jsonl").exists():
        return []
    lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
    return [json.loads(line)["epoch"] for line in lines if '"event": "epoch"' in line]


def cut_off() -> Path:
    """A run whose training was killed, with its checkpoint."""

    def make(folder: Path) -> None:
        with training(folder / "run"):
            waited(lambda: len(rows_of(folder / "run")) >= 4)

    return shared("cut-off", make) / "run"


@pytest.mark.slow
@pytest.mark.attack
def test_07_two_trainings_of_one_run(home: Path) -> None:
    with training(home / "run"):
        said = call(
            "train", "--resume", "sasrec", "--data", world()["store"], "--out", home / "run", *set_of(*MANY), "--json"
        )
        assert outcome_of(said, as_json=False).kind == "refused", outcome_of(said)
        assert said.seconds < 15 * patience()
    found = rows_of(home / "run")
    assert found == list(range(found[0], found[0] + len(found))), "an epoch has two rows, or none"


@pytest.mark.slow
@pytest.mark.attack
def test_08_what_a_killed_prediction_leaves(home: Path) -> None:
    table = pl.read_csv(world()["today.csv"])
    pl.concat([table] * 20_000).write_parquet(home / "many.parquet")
    (home / "out").mkdir()
    out, few = home / "out" / "p.csv", world()["today.csv"]
    answer("predict", world()["lr"], few, "--out", out)
    before = out.read_bytes()
    process = subprocess.Popen(
        [sys.executable, "-m", "fullrank", "predict", world()["lr"], str(home / "many.parquet"), "--out", str(out)],
        env=environment() | {"TMPDIR": str(home / "out")},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )

    def writing() -> bool:
        """Whether something is being written beside the file."""
        beside = [path for path in (home / "out").rglob("*") if path != out and path.is_file()]
        return any(path.stat().st_size > 0 for path in beside if path.exists())

    waited(lambda: writing() or process.poll() is not None)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "it had ended before it could be killed"
    assert out.read_bytes() == before
    answer("predict", world()["lr"], few, "--out", out)
    assert out.read_bytes() == before and [path.name for path in (home / "out").iterdir()] == [out.name]


# 9 to 17: crashes, hangs, tracebacks


@pytest.mark.slow
@pytest.mark.attack
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


@pytest.mark.parametrize("file", ["spec.json", "manifest.json"])
def test_10_a_killed_start_blocks_no_folder(file: str, home: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (home / "run").mkdir()
    for left in (f".{file}.{dead.pid}.part", f".{file}.{dead.pid}-0.part"):
        (home / "run" / left).write_text('{"half')
    words = ("train", "sasrec", "--data", world()["store"], "--out", home / "run", *set_of(*TINY, *DIM))
    answer(*words)


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.parametrize(
    "setting",
    [
        "model.dim="
        + VALUES["bomb"]
        .replace("f: [", "f: &f [")
        .replace("]}", "], g: [*f,*f,*f,*f,*f,*f,*f,*f], h: [*f,*f,*f,*f,*f,*f,*f,*f], i: [*f,*f,*f,*f,*f,*f,*f,*f]}"),
        "model.encoder.layers=10000000",
    ],
    ids=["bomb", "layers"],
)
def test_11_values_that_grow(setting: str, home: Path) -> None:
    words = ("train", "sasrec", "--data", world()["store"], "--out", home / "run", "--set", setting, "--json")
    said = spawn(*words, memory=6 << 30, seconds=45)  # 25 of them for a start of Python on a busy machine
    assert outcome_of(said, as_json=False).kind == "refused", outcome_of(said)


YAMLS = ["2001-13-01", "!!int x", "!!float x", "!!bool maybe", "!!timestamp foo", "9" * 5000, "[" * 2000]


@pytest.mark.parametrize("value", YAMLS, ids=range(len(YAMLS)))
@pytest.mark.parametrize("where", ["--set", "experiment", "grid"])
def test_12_yaml_that_is_no_value(where: str, value: str, home: Path) -> None:
    train = ("train", "sasrec", "--data", world()["store"], "--out", home / "run")
    if where == "--set":
        refused(*train, "--set", f"seed={value}")
    elif where == "experiment":
        shown = answer("show", "sasrec")
        assert shown
        (home / "mine.yaml").write_text(f"name: mine\nseed: {value}\n")
        refused("train", home / "mine.yaml", *train[2:])
    else:
        (home / "grid.yaml").write_text(f"cells: [{{name: a, recipe: sasrec}}]\nseeds: {value}\n")
        refused("sweep", home / "grid.yaml", "--data", world()["store"], "--out", home / "sweep")


@pytest.mark.parametrize(
    "setting",
    ["seed=" + str(10**40), "model.dim=100000000", "model.max_length=1000000000000", "training.batch_size=" + "9" * 30],
)
def test_13_numbers_beyond_any_machine(setting: str, home: Path) -> None:
    words = ("train", "sasrec", "--data", world()["store"], "--out", home / "run", *set_of(*TINY, *DIM))
    refused(*words, "--set", setting)


def test_14_an_encoder_of_wrong_types(home: Path) -> None:
    name = next(name for name in ("encoder.json", "fields.json") if (Path(world()["lr"]) / name).exists())
    tree = json.loads((Path(world()["lr"]) / name).read_text())
    paths = list(leaves_of(tree))
    assert len(paths) > 10
    for number, path in enumerate(paths[:: max(1, len(paths) // 40)]):
        run = copied(Path(world()["lr"]), home / f"run{number}")
        (run / name).unlink()
        (run / name).write_text(json.dumps(replaced(tree, path, [["x"]])))
        said = call("predict", run, world()["today.csv"], "--json")
        assert outcome_of(said, as_json=False).kind in ("ok", "refused"), (path, outcome_of(said))


def leaves_of(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    yield path
    for key, inner in pairs:
        yield from leaves_of(inner, (*path, key))


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = replaced(copy[path[0]], path[1:], value)
    return copy


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.parametrize("value", [5, [1], {"a": 1}, True])
def test_14_an_origin_of_wrong_type(value: object, home: Path) -> None:
    run = shutil.copytree(cut_off(), home / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"init_from": value}))
    refused("train", "sasrec", "--resume", "--data", world()["store"], "--out", run, *set_of(*MANY))


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.parametrize(("key", "value"), [("step", -5), ("step", 10**30), ("epoch", -1), ("step", "x")])
def test_14_a_checkpoint_of_wrong_numbers(key: str, value: object, home: Path) -> None:
    run = shutil.copytree(cut_off(), home / "run")
    changed = 0
    for file in (run / "checkpoints").rglob("*.json"):
        tree = json.loads(file.read_text())
        if key in tree:
            file.write_text(json.dumps(tree | {key: value}))
            changed += 1
    assert changed, "no checkpoint says its step"
    refused("train", "sasrec", "--resume", "--data", world()["store"], "--out", run, *set_of(*MANY))


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


@pytest.mark.parametrize("address", ["http://[", "//x", "5", "http://a\u2028b", "ftp://127.0.0.1:1", "file:///etc"])
def test_15_addresses_that_are_none(address: str, home: Path) -> None:
    said = refused("download", "amazon", "--out", home / "d", "--set", f"base_url={json.dumps(address)}")
    assert said.seconds < 15 * patience()


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (302, {"Location": "http://[::bad"}),
        (302, {"Location": "ftp://127.0.0.1:1/x"}),
        (200, {"Content-Length": "9" * 5000}),
        (302, {"Location": "http://a\u00a0b/\u00e9"}),
    ],
)
def test_15_answers_that_are_none(status: int, headers: dict[str, str], home: Path) -> None:
    with server(status, headers) as address:
        said = refused("download", "amazon", "--out", home / "d", "--set", f"base_url={json.dumps(address)}")
    assert "ftp" not in headers.get("Location", "") or "ftp" in said.json["error"]


@pytest.mark.parametrize(
    "columns",
    [
        ("--user-col", "item_id"),
        ("--item-col", "user_id"),
        ("--item-col", "__place"),
        ("--time-col", "item_id"),
        ("--user-col", "__user", "--item-col", "__seconds"),
    ],
)
def test_16_columns_that_collide(columns: tuple[str, ...], home: Path) -> None:
    named = dict(zip(columns[::2], columns[1::2], strict=True))
    frame = pl.DataFrame({"user_id": ["u"] * 3, "item_id": [9, 5, 7], "timestamp": [1, 2, 3]})
    for option, name in named.items():
        if name.startswith("__"):
            frame = frame.rename({option[2:].replace("-col", "_id"): name})
    frame.write_parquet(home / "h.parquet")
    said = call("recommend", world()["sasrec"], "--histories", home / "h.parquet", *columns, "--json")
    assert outcome_of(said, as_json=False).kind in ("ok", "refused"), outcome_of(said)


@pytest.mark.parametrize("histories", [{"a": 5}, {"a": None}, [5, 7], 5, [None], [[None]], [float("nan")]], ids=repr)
def test_16_histories_that_are_none(histories: Any) -> None:
    with pytest.raises(fr.UserError):
        fr.recommend(world()["sasrec"], histories)


@pytest.mark.parametrize("k", [1.5, "3", None, True, float("nan"), [3]], ids=repr)
def test_16_numbers_of_items_that_are_none(k: Any) -> None:
    with pytest.raises(fr.UserError):
        fr.recommend(world()["sasrec"], [[3, 5]], k=k)


def test_17_sampled_candidates_are_bounded() -> None:
    kept = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = call("evaluate", world()["sasrec"], "--set", "sampled=100000000", "--json")
    assert outcome_of(said, as_json=False).kind in ("ok", "refused"), outcome_of(said)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - kept < 1 << 20, "more than 1 GB"


def test_17_steps_are_bounded() -> None:
    said = call("recommend", world()["thinker"], *ASKED, "--reasoning-steps", 100_000, "--json")
    assert outcome_of(said, as_json=False).kind in ("ok", "refused"), outcome_of(said)


@pytest.mark.slow
@pytest.mark.attack
def test_17_a_model_that_no_hub_has(home: Path) -> None:
    words = ("encode", world()["store"], "--model", "nope/nope", "--out", home / "codes", "--cache", home / "cache")
    said = spawn(*words, "--json", seconds=60)
    assert outcome_of(said, as_json=False).kind == "refused", outcome_of(said)


# 18 to 21: unclear


def test_18_an_output_by_way_of_a_missing_folder(home: Path) -> None:
    out = home / "missing" / ".." / "z"
    said = call("prepare", world()["events.csv"], "--out", out, "--json")
    assert outcome_of(said, as_json=False).kind == "ok" or not (home / "z").exists(), (
        "refused, and written all the same"
    )
    assert outcome_of(said, as_json=False).kind in ("ok", "refused"), outcome_of(said)


def test_19_a_rating_that_nothing_reads(home: Path) -> None:
    events().with_columns(rating=pl.lit(3.0)).write_csv(home / "e.csv")
    refused("prepare", home / "e.csv", "--rating-col", "rating", "--out", home / "store")
    answer("prepare", home / "e.csv", "--rating-col", "rating", "--min-rating", 2, "--out", home / "store")


def test_20_an_evaluation_into_a_store(home: Path) -> None:
    words = ("prepare", world()["events.csv"], "--out", home / "store")
    answer(*words)
    before = sorted(path.name for path in (home / "store").iterdir())
    call("evaluate", world()["sasrec"], "--out", home / "store", "--json")
    assert sorted(path.name for path in (home / "store").iterdir()) == before
    answer(*words)


@pytest.mark.slow
@pytest.mark.attack
def test_21_the_peer_of_a_killed_process(home: Path) -> None:
    """The launcher may end the survivor before it speaks: what it says, if anything, asks nobody to report a bug."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        "0",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "127.0.0.1:0",
    ]
    words = [
        "-m",
        "fullrank",
        "train",
        "sasrec",
        "--data",
        world()["store"],
        "--out",
        str(home / "run"),
        *set_of(*MANY),
    ]
    with open(home / "told", "wb") as told:
        process = subprocess.Popen(
            [*launcher, *words], env=environment(), stdout=told, stderr=told, start_new_session=True
        )
        try:
            waited(lambda: len(rows_of(home / "run")) >= 2 or process.poll() is not None)
            ranks = [int(pid) for pid in _children(process.pid) if _rank(int(pid)) == "1"]
            assert len(ranks) == 1, (home / "told").read_text()[-500:]
            os.kill(ranks[0], signal.SIGKILL)
            process.wait(40 * patience())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = (home / "told").read_text(errors="replace")
    assert "please report" not in text and "unexpected" not in text, text[-2000:]


def _children(parent: int) -> list[str]:
    return Path(f"/proc/{parent}/task/{parent}/children").read_text().split()


def _rank(process: int) -> str:
    variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return next((text[5:].decode() for text in variables if text.startswith(b"RANK=")), "")
