"""Batch inference and evaluation on Spark and Ray: the bits of one process. `make test MARK=cluster` runs these."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fullrank as fr
from featured import SHOP_FEATURES, shop_events, shop_people
from fullrank import api
from tests.data.test_spark import spark
from tests.inference.killed_worker import dying
from tests.inference.test_batch_parts import folder, recommend, refusal, written
from tests.training.conftest import tiny

pytestmark = pytest.mark.cluster
__all__ = ["folder", "spark"]


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    found = pytest.importorskip("ray", reason="ray is not installed (pip install 'fullrank[ray]')")
    found.init(
        num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, logging_level="ERROR",
        _temp_dir=str(tmp_path_factory.mktemp("ray"))[:60],
    )  # fmt: skip
    yield found
    found.shutdown()


@pytest.fixture(params=["spark", "ray"])
def engine(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue(request.param)
    return str(request.param)


def test_lists_are_those_of_one_process(engine: str, folder: Path, tmp_path: Path) -> None:
    """Of a store and of a table; and a call that goes on with parts of another engine writes the same files."""
    for name, given in (("store", ()), ("table", (folder / "events",))):
        how: dict[str, Any] = {"parts": 5, "seen": "keep", "exclude": ["i0"], **({"data": None} if given else {})}
        one = recommend(folder, tmp_path / f"{name}-here", *given, **how)
        there = recommend(folder, tmp_path / f"{name}-there", *given, engine=engine, **how)
        assert [file.read_bytes() for file in one.files] == [file.read_bytes() for file in there.files]
        there.files[1].unlink()
        again = recommend(folder, tmp_path / f"{name}-there", *given, engine=engine, **how)
        assert again.resumed == 4 and written(again).equals(written(one))


def test_metrics_are_those_of_one_process(engine: str, folder: Path) -> None:
    one, there = fr.evaluate(folder / "run"), fr.evaluate(folder / "run", engine=engine, parts=3)
    assert one.dump() == there.dump() and one.rows.table().equals(there.rows.table())


def test_what_a_worker_refuses_is_one_sentence(engine: str, folder: Path, tmp_path: Path) -> None:
    strange = tmp_path / "strange.parquet"
    pl.DataFrame({"user_id": ["new"], "item_id": ["nothing"], "timestamp": [5]}).write_parquet(strange)
    said = refusal(
        "unknown-item", recommend, folder, tmp_path / "lists", strange, data=None, unknown="error", engine=engine,
    )  # fmt: skip
    assert "1 events are of items that the model does not know" in said and "\n" not in said


@pytest.mark.parametrize("name", ["processes", "spark", "ray"])
def test_a_killed_worker_costs_no_list_and_no_metric(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Processes and Ray try the part again; Spark on one machine does not, but the next call goes on."""
    how: dict[str, Any] = {"workers": 2} if name == "processes" else {"engine": name}
    if name != "processes":
        request.getfixturevalue(name)
    run, flag = folder / "other", tmp_path / "flag"
    monkeypatch.setattr(api, "_loaded_on", partial(dying, flag, os.getpid()))

    def killed_once(call: Callable[[], Any]) -> Any:
        flag.touch()
        try:
            result = call()
        except fr.UserError as error:
            assert name == "spark" and error.code == "spark-failed"
            result = call()
        assert not flag.exists()
        return result

    lists = partial(fr.recommend_parts, run, data=folder / "store", parts=4)
    one, there = lists(tmp_path / "one"), killed_once(lambda: lists(tmp_path / "there", **how))
    assert [file.read_bytes() for file in one.files] == [file.read_bytes() for file in there.files]
    found = killed_once(lambda: fr.evaluate(run, parts=4, device="cpu", **how))  # no worker has it on this device
    assert found.dump() == fr.evaluate(run).dump()


def test_a_spark_frame(spark: Any, folder: Path, tmp_path: Path) -> None:
    table = pl.read_parquet(folder / "events")
    one = recommend(folder, tmp_path / "here", table, data=None, parts=3)
    frame = spark.createDataFrame(table.to_pandas())
    there = recommend(folder, tmp_path / "there", frame, data=None, parts=3, engine="spark")
    assert written(there).equals(written(one))
    refusal("other-lists-there", recommend, folder, tmp_path / "there", frame, data=None, parts=3, engine="spark")


def test_features_are_those_of_one_process(spark: Any, tmp_path: Path) -> None:
    """Of a store and of a table, whose different values Spark finds."""
    store = fr.prepare(shop_events(), tmp_path / "shop", users=shop_people(), **SHOP_FEATURES)
    run = fr.train(tiny("model.features=auto", "training.max_epochs=1"), store, tmp_path / "run", progress=False)
    shop_events().write_parquet(tmp_path / "events.parquet")
    for name, given in (("store", ()), ("table", (tmp_path / "events.parquet",))):
        with pytest.warns(UserWarning, match="of the request"):
            one = fr.recommend_parts(run, tmp_path / f"{name} here", *given, parts=3)
            there = fr.recommend_parts(run, tmp_path / f"{name} there", *given, parts=3, engine="spark")
        assert [file.read_bytes() for file in one.files] == [file.read_bytes() for file in there.files]
    people = shop_people().with_columns(device=pl.lit("phone"), price=pl.lit(3.0))
    frame = spark.createDataFrame(people.to_pandas())
    one = fr.recommend_parts(run, tmp_path / "told here", features=people, parts=3)
    there = fr.recommend_parts(run, tmp_path / "told there", features=frame, parts=3, engine="spark")
    assert [file.read_bytes() for file in one.files] == [file.read_bytes() for file in there.files]
