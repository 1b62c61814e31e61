"""The review of version 0.1, points 1 to 8 (silently wrong, data loss) and 14 (damage): they fail on that version.

They use the command line and names of `fullrank` that both versions have, so the same file runs on both:
``python -m tests.attack.version_0_1 CHECKOUT`` does, and records what failed there.
"""

from __future__ import annotations

import hashlib
import json
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fullrank as fr
from tests.attack.frame import call, copied, patience
from tests.attack.review import (
    ASKED,
    SLOW,
    TRAIN,
    answer,
    cut_off,
    environment,
    listed,
    refused,
    rows_of,
    slow,
    survived,
    training,
    waited,
)  # fmt: skip
from tests.attack.worlds import DIM, TINY, set_of, world

# 1 to 4: silently wrong


@pytest.mark.parametrize("suffix", ["csv", pytest.param("jsonl", marks=SLOW)])
@pytest.mark.parametrize(
    ("times", "order"),
    [
        (("2024-01-01T09:00:00-03:00", "2024-01-01T10:00:00+00:00", "2024-01-01T09:30:00-01:00"), "5,7,9"),
        pytest.param(("10", "9", "9.5"), "5,7,9", marks=SLOW), pytest.param(("1e1", "9", "95e-1"), "5,7,9", marks=SLOW),
    ],
)  # fmt: skip
def test_01_histories_are_sorted_as_prepare_sorts(times: tuple[str, ...], order: str, suffix: str, home: Path) -> None:
    frame, run, file = (
        pl.DataFrame({"user_id": ["u"] * 3, "item_id": [9, 5, 7], "timestamp": times}),
        world("sasrec"),
        home / f"h.{suffix}",
    )
    frame.write_csv(file) if suffix == "csv" else frame.write_ndjson(file)
    text = suffix == "jsonl" and "T" not in times[0]  # text that is a number is a number where a file has no types
    wanted = listed(run, "--k", 30, "--history", order)
    assert wanted != listed(run, *ASKED), "the order makes no difference to this model"
    if call("prepare", file, "--out", home / "store").code == 2 or text:  # what is no time there is none here
        refused("recommend", run, "--histories", file)
        assert not (home / "store").exists()
    else:
        assert listed(run, "--histories", file, "--k", 30) == wanted


@slow
@pytest.mark.parametrize("time_of", ["", "nan", "yesterday", "inf"])
def test_01_times_that_prepare_refuses_are_refused(time_of: str, home: Path) -> None:
    (home / "h.csv").write_text(f"user_id,item_id,timestamp\nu,9,1700000000\nu,5,{time_of}\nu,7,1700000001\n")
    refused("prepare", home / "h.csv", "--out", home / "store")
    refused("recommend", world("sasrec"), "--histories", home / "h.csv")


def budgets(run: str) -> tuple[Any, Callable[[int | None], list[Any]]]:
    """A model that is loaded once, and its lists with a budget of reasoning steps (None: its own)."""
    histories = [[3, 5, 7], [1, 2, 3, 4], [9]]
    if hasattr(fr, "load"):
        loaded = fr.load(run)
        return loaded.model, lambda steps: loaded.recommend(
            histories, k=20, **({} if steps is None else {"budget": {"steps": steps}})
        ).rows()
    from fullrank.retrieval.dial import Reasoning  # version 0.1, which had no name for a loaded model
    from fullrank.retrieval.recommend import recommend

    opened = fr.Run.open(run)
    model = opened.model()
    return model, lambda steps: recommend(
        model, opened.catalog, histories, k=20, reasoning=Reasoning() if steps is None else Reasoning(steps=steps)
    ).rows()


@slow
def test_02_two_budgets_on_one_model() -> None:
    """Two calls meet inside the model, each with its budget: what one has set must not be the other's."""
    interval = sys.getswitchinterval()
    model, lists = budgets(world("thinker"))
    wanted = {steps: lists(steps) for steps in (0, 2, None)}
    assert wanted[0] != wanted[2]
    both, mine = threading.Barrier(2), threading.local()

    def meet(*_: object) -> None:
        if getattr(mine, "coming", False):
            mine.coming = False
            both.wait(20)

    def ask(steps: int) -> list[Any]:
        mine.coming = True
        found = lists(steps)
        assert not mine.coming, "the two did not meet"
        return found

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


def flipped(path: Path) -> None:
    """Another bit somewhere in a file, which is replaced (it may be a link to the original)."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * 0.7)] ^= 4
    path.unlink()
    path.write_bytes(data)


def test_03_a_flipped_bit_of_the_weights(home: Path) -> None:
    run = copied(Path(world("sasrec")), home / "run")
    flipped(run / "weights.safetensors")
    refused("recommend", run, *ASKED)


def test_03_items_in_another_order(home: Path) -> None:
    run = copied(Path(world("sasrec")), home / "run")
    frame = pl.read_parquet(run / "items.parquet")
    (run / "items.parquet").unlink()
    frame.with_columns(pl.col("item_id").reverse()).write_parquet(run / "items.parquet")
    refused("recommend", run, *ASKED)


@slow
@pytest.mark.parametrize(
    "file", ["store/users.parquet", "store/items.npy", "clicks/numeric.npy", "sasrec/weights.safetensors",
             "sasrec/items.parquet", "codes/codes.parquet"],
)  # fmt: skip
def test_03_verify(file: str, home: Path) -> None:
    folder, name = file.split("/")
    copy = copied(Path(world(folder)), home / folder)
    answer("verify", copy)
    flipped(copy / name)
    refused("verify", copy)


@pytest.mark.parametrize(("option", "name", "key"), [("--items", "item_id", 3), ("--users", "user_id", "u3")])
def test_04_rows_of_one_id_that_differ(option: str, name: str, key: object, home: Path) -> None:
    pl.DataFrame({name: [key, key], "title": ["one", "another"]}).write_parquet(home / "t.parquet")
    refused("prepare", world("events.csv"), option, home / "t.parquet", "--out", home / "store")
    assert not (home / "store").exists()


# 5 to 8: data loss


@slow
@pytest.mark.parametrize(
    "setting",
    ["training.betas=[2,3]", "training.lr=.inf", "training.lr=1e308", "seed=" + "9" * 40, "model.dim=999999999999"],
)
def test_05_overwrite_keeps_the_run(setting: str, home: Path) -> None:
    run = copied(Path(world("sasrec")), home / "run")
    before = listed(run, *ASKED)
    refused(*TRAIN, "--data", world("store"), "--out", run, "--overwrite", *set_of(*TINY, *DIM, setting))
    assert listed(run, *ASKED) == before


@slow
@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_06_recommend_on_a_full_disk(suffix: str, home: Path) -> None:
    out = home / "out" / f"lists.{suffix}"
    over = ["--overwrite"] if "--overwrite" in call("recommend", "--help").out else []  # version 0.1 asked for none
    words = ("recommend", world("sasrec"), *over, "--out", out, "--seen", "keep", "--histories")
    answer(*words, world("histories.csv"), "--k", 2)
    before, events = out.read_bytes(), world("events.csv")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before_signal = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # room for the messages, none for 2,340 rows
    try:
        refused(*words, events, "--k", 39)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before_signal)
    assert out.read_bytes() == before and [path.name for path in out.parent.iterdir()] == [out.name]


@slow
def test_07_two_trainings_of_one_run(home: Path) -> None:
    with training(home / "run") as (_, words):
        assert refused(*words, "--resume").seconds < 15 * patience()
    found = rows_of(home / "run")
    assert found == list(range(found[0], found[0] + len(found))), "an epoch has two rows, or none"


@slow
def test_08_what_a_killed_prediction_leaves(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, folder, many = world("today.csv"), home / "out", home / "many.parquet"
    pl.concat([pl.read_csv(few)] * 20_000).write_parquet(many)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    over = ["--overwrite"] if "--overwrite" in call("predict", "--help").out else []  # version 0.1 asked for none
    predict, out = ("predict", world("lr"), *over, "--out", str(folder / "p.csv")), folder / "p.csv"
    answer(*predict, few)
    before = out.read_bytes()
    process = subprocess.Popen(
        [sys.executable, "-m", "fullrank", *predict, str(many)], env=environment() | {"TMPDIR": str(folder)},
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip

    def writing() -> bool:
        """Whether something is being written beside the file."""
        beside = [path for path in folder.rglob("*") if path != out and path.is_file()]
        return any(path.stat().st_size > 0 for path in beside if path.exists())

    waited(lambda: writing() or process.poll() is not None)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "it had ended before it could be killed"
    assert out.read_bytes() == before
    answer(*predict, few)
    assert out.read_bytes() == before and [path.name for path in folder.iterdir()] == [out.name]


# 14: folders that hold other things than they should


@slow
def test_14_an_encoder_of_wrong_types(home: Path) -> None:
    whole = Path(world("lr"))
    name = next(name for name in ("encoder.json", "fields.json") if (whole / name).exists())
    tree = json.loads((whole / name).read_text())
    paths = list(leaves_of(tree))
    assert len(paths) > 10
    for number, path in enumerate(paths[:: max(1, len(paths) // 40)]):
        run = copied(whole, home / f"run{number}")
        (run / name).unlink()
        (run / name).write_text(json.dumps(replaced(tree, path, [["x"]])))
        survived("predict", run, world("today.csv"))


def leaves_of(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    yield path
    for key, inner in pairs:
        yield from leaves_of(inner, (*path, key))


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = tree.copy()
    copy[path[0]] = replaced(copy[path[0]], path[1:], value)
    return copy


@slow
@pytest.mark.parametrize("value", [5, [1], {"a": 1}, True])
def test_14_an_origin_of_wrong_type(value: object, home: Path) -> None:
    run, words = cut_off(home / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"init_from": value}))
    refused(*words)


@slow
@pytest.mark.parametrize(("key", "value"), [("step", -5), ("step", 10**30), ("stale", -1), ("step", "x")])
def test_14_a_checkpoint_of_wrong_numbers(key: str, value: object, home: Path) -> None:
    run, words = cut_off(home / "run")
    trees = {file: json.loads(file.read_text()) for file in (run / "checkpoints").rglob("*.json")}
    changed = {file: tree for file, tree in trees.items() if key in tree}
    assert changed, f"no checkpoint says its {key}"
    for file, tree in changed.items():
        file.write_text(json.dumps(tree | {key: value}))
    for pointer in (run / "checkpoints").glob("last.json"):  # what was changed on purpose has the right hash
        named = json.loads(pointer.read_text())
        if "state_sha256" in named:
            state = run / "checkpoints" / named["folder"] / "state.json"
            pointer.write_text(json.dumps(named | {"state_sha256": hashlib.sha256(state.read_bytes()).hexdigest()}))
    refused(*words)
