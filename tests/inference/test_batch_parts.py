"""Lists in parts are those of one call; what is there is not made again, and what is of another call is not touched."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.data.events.store import Store
from fullrank.inference import history_parts, list_parts
from fullrank.inference.list_parts import ListParts, ListTask, ModelSource
from refusals import refused

USERS, ITEMS = 150, 40


def refusal(code: str, call: Callable[..., Any], *given: Any, **how: Any) -> str:
    """The sentence with which a call is refused."""
    with refused(code) as found:
        call(*given, **how)
    return str(found)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`events` (text ids, in no order), `store` in two parts, and the runs `run` and `other`."""
    home, draw = tmp_path_factory.mktemp("batch"), np.random.default_rng(0)
    events = pl.DataFrame({
        "user_id": [f"u{user}" for user in draw.integers(0, USERS, 1800)],
        "item_id": [f"i{item}" for item in (ITEMS * draw.random(1800) ** 2).astype(int)],
        "timestamp": draw.permutation(1800),
    })  # fmt: skip
    (home / "events").mkdir()
    for number in range(3):
        events[number * 600 : (number + 1) * 600].write_parquet(home / "events" / f"{number}.parquet")
    store = fr.prepare(home / "events", home / "store", parts=2)
    small = ["model.dim=8", "model.encoder.layers=1", "training.max_epochs=1"]
    fr.train("sasrec", store, home / "run", set=small, progress=False)
    fr.train("popularity", store, home / "other", progress=False)
    return home


def written(made: ListParts) -> pl.DataFrame:
    return pl.read_parquet(made.files)


def same_lists(one: pl.DataFrame, other: pl.DataFrame) -> None:
    """The same items for the same users, in whatever order users stand; scores to float rounding."""
    one, other = (frame.sort("user", "rank") for frame in (one, other))
    assert one.drop("score").equals(other.drop("score"))
    assert np.allclose(one["score"], other["score"], rtol=1e-5)


def recommend(folder: Path, out: Path, *histories: Any, **how: Any) -> ListParts:
    return fr.recommend_parts(folder / "run", out, *histories, **{"data": folder / "store"} | how)


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_the_users_of_a_store(parts: int, folder: Path, tmp_path: Path) -> None:
    """Also where a part of the lists holds the end of one folder of the store and the beginning of the next."""
    store = Store.open(folder / "store")
    made = recommend(folder, tmp_path / "lists", parts=parts, k=5)
    assert made.parts == parts and made.users == store.num_users and made.rows == 5 * store.num_users
    found = written(made)
    assert found["user"].unique(maintain_order=True).equals(store.user_ids.alias("user"))
    same_lists(found, fr.recommend(folder / "run", users=store.user_ids, data=store, k=5))
    assert pl.read_parquet(made.folder).equals(found), "the folder of the lists holds something else"


def test_every_setting_is_that_of_one_call(folder: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "k": 6, "seen": "keep", "exclude": ["i0", "i1"], "filters": {"price": {"min": 3}}, "titles": True,
        "item_table": pl.DataFrame({"item_id": [f"i{n}" for n in range(ITEMS)], "price": range(ITEMS)}),
    }  # fmt: skip
    store = Store.open(folder / "store")
    found = written(recommend(folder, tmp_path / "lists", parts=4, **how))
    same_lists(found, fr.recommend(folder / "run", users=store.user_ids, data=store, **how))
    assert not set(found["item"]) & {"i0", "i1", "i2"}


@pytest.mark.parametrize("parts", [1, 5])
@pytest.mark.parametrize("kind", ["folder", "frame"])
def test_the_users_of_a_table(kind: str, parts: int, folder: Path, tmp_path: Path) -> None:
    """Events in no order, of users whose events lie in several files; one user's items are all unknown."""
    strange = pl.DataFrame({"user_id": ["new", "u3"], "item_id": ["nothing", "nothing"], "timestamp": [5, 5000]})
    table = pl.concat([pl.read_parquet(folder / "events"), strange])
    given: Any = table
    if kind == "folder":
        given = tmp_path / "events"
        given.mkdir()
        for number in range(4):
            table[number::4].write_parquet(given / f"{number}.parquet")
    with pytest.warns(UserWarning, match="1 of"):
        made = recommend(folder, tmp_path / "lists", given, data=None, parts=parts)
    assert made.popular == 1 and made.users == table["user_id"].n_unique()
    with pytest.warns(UserWarning, match="1 of"):
        same_lists(written(made), fr.recommend(folder / "run", table))
    assert not (tmp_path / "lists" / list_parts.HISTORIES).exists()


def test_a_table_in_pieces_keeps_the_order_of_equal_times(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fullrank.data.frames.CHUNK", 100)
    table = pl.read_parquet(folder / "events").with_columns(timestamp=pl.col("timestamp") // 300)
    made = recommend(folder, tmp_path / "lists", table, data=None, parts=3)
    same_lists(written(made), fr.recommend(folder / "run", table))


def test_parts_without_users_are_empty_tables(folder: Path, tmp_path: Path) -> None:
    table = pl.DataFrame({"user_id": ["a", "b"], "item_id": ["i1", "i2"]})
    found = [pl.read_parquet(file) for file in recommend(folder, tmp_path / "lists", table, data=None, parts=9).files]
    assert len({tuple(frame.schema.items()) for frame in found}) == 1
    assert sorted(map(len, found))[:7] == [0] * 7
    same_lists(pl.concat(found), fr.recommend(folder / "run", table))


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def test_what_was_killed_goes_on(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table: neither its reading nor the parts that are there are done again, and the files are those of one go."""
    whole = recommend(folder, tmp_path / "whole", folder / "events", data=None, parts=5)
    made, spilled, call = [], [], ListTask.__call__

    def counted(task: ListTask, number: int) -> Any:
        if number == 3 and len(made) == 3:
            raise Killed
        made.append(number)
        return call(task, number)

    spill = history_parts.HistoryTable.spill
    monkeypatch.setattr(ListTask, "__call__", counted)
    monkeypatch.setattr(
        history_parts.HistoryTable, "spill", lambda *given, **how: spilled.append(1) or spill(*given, **how)
    )
    with pytest.raises(Killed):
        recommend(folder, tmp_path / "killed", folder / "events", data=None, parts=5)
    assert made == [0, 1, 2]
    assert list_parts.open_list_parts(tmp_path / "killed")["whole"] is False
    (tmp_path / "killed" / "lists" / f".part-00003.parquet.{2**22 + 1}-1.part").mkdir()  # of the killed writer
    made.append(-1)
    found = recommend(folder, tmp_path / "killed", folder / "events", data=None, parts=5)
    assert made == [0, 1, 2, -1, 3, 4] and spilled == [1] and found.resumed == 3
    assert [one.read_bytes() for one in found.files] == [one.read_bytes() for one in whole.files]
    assert sorted(one.name for one in found.folder.iterdir()) == sorted(one.name for one in whole.files)
    assert list_parts.open_list_parts(tmp_path / "killed")["users"] == whole.users
    again = recommend(folder, tmp_path / "killed", folder / "events", data=None, parts=5)
    assert again.resumed == 5 and (again.users, again.rows) == (whole.users, whole.rows) and spilled == [1]


def test_lists_of_another_call_are_refused(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "lists"
    before = written(recommend(folder, out, parts=2))
    for other, named in (
        ({"k": 4}, "k"), ({"seen": "keep"}, "seen"), ({"exclude": ["i1"]}, "filters"), ({"parts": 3}, "parts"),
        ({"titles": True}, "titles"), ({"unknown": "error"}, "unknown"),
    ):  # fmt: skip
        assert named in refusal("other-lists-there", recommend, folder, out, **{"parts": 2} | other)
    refusal("other-lists-there", fr.recommend_parts, folder / "other", out, data=folder / "store", parts=2)
    refusal("other-lists-there", recommend, folder, out, folder / "events", data=None, parts=2)
    assert written(recommend(folder, out, parts=2)).equals(before)
    assert recommend(folder, out, parts=3, k=4, overwrite=True).resumed == 0
    assert len(list((out / "lists").iterdir())) == 3
    for place in (out / "mine.txt", out / "lists" / "mine.txt"):
        place.touch()
        assert "mine.txt" in refusal("foreign-files", recommend, folder, out, parts=2, overwrite=True)
        place.unlink()
    (tmp_path / "full" / "lists").mkdir(parents=True)  # of somebody else: it is not ours to delete
    (tmp_path / "full" / "lists" / "notes.txt").touch()
    refusal("folder-not-empty", recommend, folder, tmp_path / "full")
    assert (tmp_path / "full" / "lists" / "notes.txt").exists()


def test_mistakes_are_told_before_anything_is_written(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "lists"
    text = tmp_path / "events.csv"
    pl.read_parquet(folder / "events").write_csv(text)
    for code, how in (
        ("setting-out-of-range", {"parts": 10_000}),
        ("setting-out-of-range", {"parts": 0}),
        ("histories-or-users", {"histories": folder / "events"}),
        ("setting-without-effect", {"user_col": "user"}),
        ("setting-without-effect", {"time_unit": "ms"}),
        ("setting-without-effect", {"master": "local[2]"}),
        ("setting-without-effect", {"engine": "spark", "workers": 2}),
        ("setting-without-effect", {"ray": "auto"}),
        ("not-item-lists", {"exclude": {"u1": ["i1"]}}),
        ("not-item-lists", {"allow": [["i1"], ["i2"]]}),
        ("not-item-lists", {"filters": [{"price": 1}]}),
        ("nothing-allowed", {"allow": ["nothing"]}),
        ("invalid-list-length", {"k": 0}),
        ("unknown-choice", {"unknown": "maybe"}),
        ("missing-column", {"data": None, "histories": folder / "events", "item_col": "sku"}),
        ("unknown-suffix", {"data": None, "histories": text}),
    ):
        refusal(code, fr.recommend_parts, folder / "run", out, **{"data": folder / "store"} | how)
    assert not out.exists()
    monkey = pytest.MonkeyPatch()
    monkey.setitem(sys.modules, "pyspark.sql", None)
    refusal("missing-package", recommend, folder, out, engine="spark", master="local[2]")
    monkey.undo()


def test_a_worker_opens_the_files_that_it_is_sent(folder: Path) -> None:
    """Where the run's folder is not there, and once for all parts."""
    opened = []

    class Sent:
        @property
        def value(self) -> dict[str, bytes]:
            opened.append(1)
            return {path.name: path.read_bytes() for path in (folder / "run").iterdir() if path.is_file()}

    source = ModelSource("/nowhere", "of this test", "cpu", lambda at, on: fr.load(at, device=on), Sent())
    found = source.open().recommend([["i3"]])
    assert source.open() is ModelSource("/nowhere", "of this test", "cpu", lambda at, on: None).open()  # type: ignore[arg-type,return-value]
    assert opened == [1]
    assert found.equals(fr.load(folder / "run").recommend([["i3"]]))
