"""The review of version 0.1, points 1 to 8 (silently wrong, data loss) and 14 (damage): they fail on that version.

They use the command line and names of `fullrank` that both versions have, so the same file runs on both:
``python -m tests.attack.version_0_1 CHECKOUT`` does, and records what failed there.
"""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fullrank as fr
from tests.attack.frame import call, copied, outcome_of, patience
from tests.attack.review import ASKED, MANY, answer, cut_off, listed, refused, rows_of, training, waited
from tests.attack.spawn import environment
from tests.attack.worlds import DIM, TINY, set_of, world

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
def test_08_what_a_killed_prediction_leaves(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pl.read_csv(world()["today.csv"])
    pl.concat([table] * 20_000).write_parquet(home / "many.parquet")
    (home / "out").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home / "out"))
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


# 14: folders that hold other things than they should


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
@pytest.mark.parametrize(("key", "value"), [("step", -5), ("step", 10**30), ("stale", -1), ("step", "x")])
def test_14_a_checkpoint_of_wrong_numbers(key: str, value: object, home: Path) -> None:
    run = shutil.copytree(cut_off(), home / "run")
    changed = 0
    for file in (run / "checkpoints").rglob("*.json"):
        tree = json.loads(file.read_text())
        if key in tree:
            file.write_text(json.dumps(tree | {key: value}))
            changed += 1
    assert changed, f"no checkpoint says its {key}"
    for pointer in (run / "checkpoints").glob("last.json"):  # what was changed on purpose has the right hash
        named = json.loads(pointer.read_text())
        if "state_sha256" in named:
            state = run / "checkpoints" / named["folder"] / "state.json"
            pointer.write_text(json.dumps(named | {"state_sha256": hashlib.sha256(state.read_bytes()).hexdigest()}))
    refused("train", "sasrec", "--resume", "--data", world()["store"], "--out", run, *set_of(*MANY))
