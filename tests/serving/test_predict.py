"""A ranking model alone behind the service: its answers are `predict`'s, what does not fit its columns is refused."""

import asyncio
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import urllib3
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import fullrank as fr
from fullrank.core.errors import UserError
from fullrank.inference.predictor import Predictor
from fullrank.run import Run
from fullrank.serving import openapi as forms
from fullrank.serving.batcher import Batcher
from fullrank.serving.client import Client
from fullrank.serving.messages import PredictRequest
from fullrank.serving.service import PredictService, Service
from fullrank.serving.settings import UNREAD, ServeSettings
from refusals import refused
from serving.conftest import FIELDS, Shop, impressions
from serving.running import running


@pytest.fixture(scope="module")
def predictor(click_run: Path) -> Predictor:
    return fr.load(click_run, device="cpu")


@pytest.fixture(scope="module")
def service(click_run: Path) -> Iterator:
    with running(run=str(click_run), rows_most=1000, history_most=20) as client:
        yield client


def rows_of(frame: pl.DataFrame) -> list:
    return frame.drop("label").to_dicts()


def problem(client: Client, body, path: str = "/v1/predict") -> dict:
    found = urllib3.request("POST", client.url + path, json=body).json()
    return found


def test_answers_are_those_of_predict(service: Client, predictor: Predictor) -> None:
    frame = impressions(900)
    expected = predictor.predict(frame)["probability"].to_list()
    assert np.ptp(expected) > 0.1
    assert service.predict(rows_of(frame)) == pytest.approx(expected, abs=1e-7)
    with ThreadPoolExecutor(8) as callers:  # whatever they were batched with
        parts = [rows_of(frame[start : start + 7]) for start in range(0, 280, 7)]
        found = [one for part in callers.map(service.predict, parts) for one in part]
    assert found == pytest.approx(expected[:280], abs=1e-6)


WHOLE = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
CATEGORY = st.none() | st.booleans() | WHOLE | TEXT | st.sampled_from(["3", 3, 3.0, "p1", -0.0])
NUMBER = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6)
LIST = st.none() | st.lists(WHOLE, max_size=8) | st.lists(TEXT | st.none(), max_size=8)
ROW = st.fixed_dictionaries({
    "city": CATEGORY, "Place": CATEGORY, "age": NUMBER, "price": NUMBER, "genres": LIST | TEXT, "seen": LIST,
})  # fmt: skip
BLANK = dict.fromkeys(["city", "Place", "age", "price", "genres", "seen"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROW, min_size=1, max_size=4))
@example(rows=[BLANK | {"city": 3, "genres": "drama| noir"}, BLANK | {"city": "3", "genres": ["drama", "noir"]}])
def test_any_rows_that_fit_are_answered_as_predict_does(service: Client, predictor: Predictor, rows: list) -> None:
    """Each row alone is a table whose columns have the types of its own values."""
    for row, probability in zip(rows, service.predict(rows), strict=True):
        alone = pl.DataFrame({name: [value] for name, value in row.items()})
        assert probability == pytest.approx(predictor.predict(alone)["probability"][0], abs=1e-6)


@pytest.mark.parametrize(
    ("row", "pointer", "word"),
    [
        ({"citty": 1}, "#/rows/1/citty", "did you mean 'city'"),
        ({"city": ...}, "#/rows/1/city", "null where it is missing"),
        ({"Place": 1.5}, "#/rows/1/Place", "no category"),
        ({"Place": [1]}, "#/rows/1/Place", "takes text"),
        ({"Place": 2**63}, "#/rows/1/Place", "64 bits"),
        ({"Place": "x" * 5000}, "#/rows/1/Place", "4,096 characters"),
        ({"age": "12"}, "#/rows/1/age", "takes a number"),
        ({"price": 10**309}, "#/rows/1/price", "64 bits"),
        ({"seen": "1|2"}, "#/rows/1/seen", "takes a list"),
        ({"seen": False}, "#/rows/1/seen", "takes a list"),
        ({"seen": list(range(21))}, "#/rows/1/seen", "at most 20"),
        ({"seen": [1, [2]]}, "#/rows/1/seen/1", "a value of this list"),
        ({"genres": ["a", 0.5]}, "#/rows/1/genres/1", "no category"),
        ({"genres": 5}, "#/rows/1/genres", "text with '|'"),
    ],
)
def test_what_does_not_fit_a_column_is_told_where_it_stands(
    service: Client, row: dict, pointer: str, word: str
) -> None:
    bad = {name: value for name, value in (BLANK | row).items() if value is not ...}
    told = problem(service, {"rows": [BLANK, bad]})
    assert told["status"] == 422 and told["code"] == "invalid-request"
    assert [one["pointer"] for one in told["errors"]] == [pointer] and word in told["detail"]


def test_numbers_that_no_number_of_json_is() -> None:
    from fullrank.data.impressions.schema import Schema
    from fullrank.serving.rows import RowMistakes, RowReader

    reader = RowReader(Schema.parse({"fields": FIELDS}).fields, 20)
    for value in (float("inf"), float("nan"), -float("inf")):
        for name in ("age", "city"):
            with pytest.raises(RowMistakes):
                reader.frame([BLANK | {name: value}])


def test_bodies_and_limits(service: Client) -> None:
    for body, code in (
        ({"rows": []}, "invalid-request"), ({"rows": [BLANK], "k": 3}, "invalid-request"), ([], "invalid-request"),
        ({"rows": [BLANK] * 1001}, "too-many"), ({"rows": [BLANK], "version": "june"}, "unknown-version"),
        ({"rows": [BLANK | {"age": 1e300}]}, "numbers-too-large"),
        ({"rows": [BLANK | {"age": 1e30}]}, "probabilities-not-finite"),
    ):  # fmt: skip
        assert problem(service, body)["code"] == code, body
    with refused("body-too-large"):
        service.predict([BLANK | {"city": "x" * 4000}] * 400)
    assert len(service.predict([BLANK] * 1000)) == 1000


def test_a_bad_row_spoils_no_other_request(service: Client) -> None:
    """Requests that go through the model together: the numbers that only the encoder refuses are one's own matter."""
    bodies = [[BLANK | {"age": 1e300 if number % 3 == 0 else 30}] for number in range(30)]

    def code(rows: list) -> str:
        try:
            service.predict(rows)
        except UserError as error:
            return error.code
        return "ok"

    with ThreadPoolExecutor(10) as callers:
        found = list(callers.map(code, bodies))
    assert found == ["numbers-too-large" if number % 3 == 0 else "ok" for number in range(30)]


def test_requests_that_wait_go_through_the_model_together(click_run: Path, predictor: Predictor) -> None:
    from fullrank.serving.prediction import ServedPredictor

    sizes = []
    model = ServedPredictor(Run.open(click_run), predictor, 20)

    async def main() -> list:
        batcher = Batcher(observe=lambda size, waited, took: sizes.append(size))
        frames = [model.rows.frame([BLANK | {"age": number}] * (number % 3 + 1)) for number in range(20)]
        waiting = []
        batcher._loop = asyncio.get_running_loop()
        for frame in frames:
            waiting.append(batcher.submit(model.answer, frame, id(model)))
        batcher.start()
        found = await asyncio.gather(*waiting)
        await batcher.close()
        return found

    found = asyncio.run(main())
    assert sizes == [20] and [len(one) for one in found] == [number % 3 + 1 for number in range(20)]
    frame = pl.DataFrame([BLANK | {"age": float(number)} for number in range(20)], infer_schema_length=None)
    assert [one[0] for one in found] == pytest.approx(predictor.predict(frame)["probability"].to_list(), abs=1e-6)


def test_it_has_the_routes_of_its_family_alone(service: Client, shop: Shop) -> None:
    document = service.call("GET", "/openapi.json")
    assert "/v1/predict" in document["paths"] and not [path for path in document["paths"] if "recommend" in path]
    row = document["components"]["schemas"]["Row"]
    assert row["required"] == list(BLANK) and row["additionalProperties"] is False
    assert row["properties"]["age"] == {"type": ["number", "boolean", "null"]}
    assert "RecommendRequest" not in document["components"]["schemas"]
    for path in ("/v1/recommend", "/v1/recommend:batch", "/v1/events", "/v1/items"):
        assert problem(service, {}, path)["status"] == 404, path
    with running(run=str(shop.run.path)) as recommender:
        assert problem(recommender, {"rows": [{}]})["status"] == 404


def test_operations(service: Client) -> None:
    ready = service.call("GET", "/readyz")
    assert ready["status"] == "ok" and ready["version"] == "may" and ready["columns"] == 6 and "store" not in ready
    card = service.call("GET", "/v1/model")
    assert card["recipe"] == "dcnv2" and card["problem"] == "ranking" and card["data"]["impressions"] == 600
    assert [one["name"] for one in card["columns"]] == list(BLANK) and card["columns"][0]["values"]
    assert service.call("GET", "/v1/versions")["active"] == "may"
    before = urllib3.request("GET", service.url + "/metrics").data.decode()
    service.predict([BLANK] * 3)
    after = urllib3.request("GET", service.url + "/metrics").data.decode()

    def rows(text: str) -> float:
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("fullrank_rows_total"))

    assert rows(after) == rows(before) + 3 and 'route="/v1/predict"' in after
    page = urllib3.request("GET", service.url + "/").data.decode()
    assert '<html lang="en" data-problem="ranking">' in page
    forms.PredictAnswer.model_validate(service.call("POST", "/v1/predict", {"rows": [BLANK]}))


def test_lists_of_several_types_are_read_as_text(service: Client) -> None:
    mixed, text = [3, "3", 3.0, None, True], ["3", "3", "3", "true"]
    found = service.predict([BLANK | {"seen": seen} for seen in (mixed, text, None)])
    assert found[0] == found[1] != found[2]


def test_a_setting_without_effect_is_refused(click_run: Path, shop: Shop) -> None:
    given = {
        "ranker": str(click_run),
        "search": "exact",
        "index_folder": "i",
        "exported": "e",
        "log": "l",
        "recall": 0.5,
    }
    for kind, run in ((PredictService, click_run), (Service, shop.run.path)):
        for name in UNREAD[kind.problem]:
            with refused("setting-without-effect", name):
                kind(
                    ServeSettings.parse(
                        {"run": str(run), "store": "memory:", name: given.get(name, 0.5 if name == "recall" else 7)}
                    )
                )


def test_a_worse_version_and_one_of_other_columns_are_refused(click_run: Path, tmp_path: Path) -> None:
    watched, clicks = tmp_path / "runs", impressions()
    shutil.copytree(click_run, watched / "may")
    shutil.copytree(click_run, watched / "june")
    impressions(2000).write_parquet(tmp_path / "canaries.parquet")
    turned = clicks.with_columns(1 - pl.col("label"))
    for name, frame, fields in (("turned", turned, FIELDS), ("narrow", clicks, FIELDS[:3])):
        store = fr.prepare_impressions(frame, tmp_path / name, schema={"fields": fields})
        settings = ["training.max_epochs=3", "training.lr=0.05"]
        fr.train("lr", store, watched / name, set=settings, device="cpu", progress=False)
    given = {"run": str(watched / "may"), "watch": str(watched), "canary": str(tmp_path / "canaries.parquet")}

    async def main() -> None:
        service = PredictService(ServeSettings.parse({**given, "store": "memory:", "auto_activate": False}))
        await service.open()
        try:
            with refused("version-refused", "no longer read: genres"):
                await service.versions.activate("narrow")
            with refused("version-refused", "rise of log loss"):
                await service.versions.activate("turned")
            await service.versions.activate("june")
            june = next(one for one in service.versions.describe()["versions"] if one["name"] == "june")
            assert june["verdict"]["checks"][-1]["name"] == "rise of log loss"
            answer = await service.predict(PredictRequest(rows=[BLANK]))
            assert answer["version"] == "june"
            await service.versions.rollback()
            assert service.model.name == "may"
        finally:
            await service.close()

    asyncio.run(main())
