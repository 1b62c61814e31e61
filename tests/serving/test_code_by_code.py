"""A model that generates semantic ids code by code, wherever a trained model answers: the predictor and the service.

One small run for all of it, on the shop: 120 items, two codes and a digit of their own.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.run import Run
from fullrank.serving.client import Client
from fullrank.serving.model import ServedModel
from fullrank.serving.searching import Finder
from fullrank.serving.settings import ServeSettings
from fullrank.serving.version_checks import Canary, CanarySettings, check_model
from refusals import refused
from serving.conftest import HISTORY, REQUESTS, Shop
from serving.running import items_of, running, scores_of
from serving.served import here


@pytest.fixture(scope="module")
def codes(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Codes in which items of one category begin alike."""
    place = tmp_path_factory.mktemp("codes")
    rng = np.random.default_rng(0)
    numbers = np.array([int(one[1:]) for one in shop.store.catalog.ids])
    vectors = 4 * rng.normal(size=(6, 8))[numbers % 6] + rng.normal(size=(120, 8))
    frame = pl.DataFrame({"item_id": shop.store.catalog.ids, "vector": vectors.astype(np.float32)})
    frame.with_columns(pl.col("vector").cast(pl.Array(pl.Float32, 8))).write_parquet(place / "vectors.parquet")
    fr.encode(
        shop.store, place / "codes",
        set=[f"vectors={{kind: file, path: {place / 'vectors.parquet'}}}",
             "learner={kind: rq_kmeans, levels: 2, size: 8}", "collisions=extra_digit", "limits={collisions: 1}"],
    )  # fmt: skip
    return place / "codes"


@pytest.fixture(scope="module")
def run(shop: Shop, codes: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = [
        f"model.items.codes={codes}", "model.dim=16", "model.encoder.inner=16", "model.encoder.layers=1",
        "model.encoder.attention.heads=2", "training.max_epochs=4", "training.batch_size=64",
        "evaluation.decoding.beams=20",
    ]  # fmt: skip
    return fr.train("tiger", shop.store, tmp_path_factory.mktemp("runs") / "tiger", set=settings, progress=False)


@pytest.fixture(scope="module")
def service(run: Run) -> Iterator:
    with running(run=str(run.path)) as client:
        yield client


def test_lists_are_full_and_valid_under_everything_at_once(shop: Shop, run: Run) -> None:
    predictor = fr.load(run, device="cpu")
    items = pl.DataFrame(run.catalog.frame)
    users = {"some": HISTORY, "one": ["i8"], "unknown": ["of another shop"], "empty": []}
    exclude, allow = [f"i{n}" for n in range(0, 120, 9)], [f"i{n}" for n in range(100)]
    with pytest.warns(UserWarning, match="1 of 4 histories hold no item"):
        found = predictor.recommend(users, k=30, exclude=exclude, allow=allow, filters={"in_stock": True})
    stock = set(items.filter("in_stock")["item_id"])
    for user, history in users.items():
        mine = found.filter(pl.col("user") == user)
        left = (set(allow) & stock) - set(exclude) - set(history)
        assert mine.height == mine["item"].n_unique() == 30 and set(mine["item"]) <= left
        assert mine["source"].unique().to_list() == ["model" if set(history) & set(shop.ids) else "popular"]
        assert mine["score"].is_sorted(descending=True)
    every = predictor.recommend({"some": HISTORY}, k=120, filters={"in_stock": True})
    assert set(every["item"]) == stock - set(HISTORY), "as long as items remain"
    exact = predictor.recommend({"some": HISTORY}, k=120, filters={"in_stock": True}, decoding="exact")
    assert every["item"].equals(exact["item"]), "as wide as the catalogue, the beam is exact"


def test_similar_items_are_those_of_like_codes(run: Run) -> None:
    found = fr.load(run, device="cpu").similar("i7", k=5, filters={"in_stock": True})
    codes = dict(zip(run.catalog.ids, run.catalog.frame["codes"].to_list(), strict=True))
    table = run.model().items.all().detach().numpy()
    numbers = run.catalog.lookup(["i7", found["similar"][0]])
    a, b = table[numbers[0]], table[numbers[1]]
    assert found["score"][0] == pytest.approx(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), abs=1e-5)
    assert len(codes["i7"]) == 3 and "i7" not in found["similar"].to_list()


def test_what_needs_vectors_or_a_graph_is_refused(run: Run, tmp_path: Path) -> None:
    with refused("not-exportable", "serve"):
        fr.export(run, tmp_path / "graph", to="onnx")
    with refused("no-vectors"):
        fr.load(run, device="cpu").item_vectors()
    with refused("decoding-needs-independent-codes", "beam"):
        fr.recommend(run, {"me": HISTORY}, decoding={"kind": "graph"})
    with refused("index-needs-vectors", "--search"):
        Finder.open(run, fr.load(run, device="cpu"), ServeSettings.parse({"run": str(run.path), "search": "index"}))


def test_the_service_gives_the_lists_of_recommend(service: Client, run: Run) -> None:
    predictor = fr.load(run, device="cpu")
    for request in REQUESTS:
        more = {name: value for name, value in request.items() if name != "history"}
        own = predictor.recommend([request["history"]], **more)
        answer = service.recommend(**request)
        assert items_of(answer) == own["item"].to_list()
        assert scores_of(answer) == pytest.approx(own["score"].to_list(), abs=1e-4)
    alone = [service.recommend(**request) for request in REQUESTS]
    assert list(map(items_of, service.recommend_batch(REQUESTS))) == list(map(items_of, alone))


def test_card_similar_and_explanation(service: Client, run: Run) -> None:
    card = service.call("GET", "/v1/model")
    assert card["recipe"] == "tiger" and card["explains"]["attention"]
    answer = service.recommend(history=HISTORY, k=3, explain=True)
    assert all(one["because"] for one in answer["items"]) and answer["attention"]
    own = fr.load(run, device="cpu").similar("i7", k=4)
    assert items_of(service.similar("i7", k=4)) == own["similar"].to_list()


def test_items_join_a_running_service(service: Client) -> None:
    service.put_items([{"id": "fresh", "like": ["i25"], "title": "Mint cream number 991"}])
    shown = items_of(service.recommend(history=["i7", "i13"], k=122, seen="keep"))
    assert len(shown) == 121 == len(set(shown)) and abs(shown.index("fresh") - shown.index("i25")) == 1
    assert "fresh" in items_of(service.recommend(history=["i7"], k=5, allow=["fresh", "i25"]))
    assert len(service.recommend(history=["fresh"], k=5)["items"]) == 5


def test_a_new_version_is_compared_with_the_one_that_answers(run: Run) -> None:
    settings = ServeSettings.parse({"run": str(run.path)})
    new, active = (ServedModel.open(run.path, settings, {}) for _ in ("new", "active"))
    canaries = [Canary((f"i{n}", f"i{n + 6}"), (1.0, 2.0), f"i{n + 12}") for n in range(100)]
    checks = check_model(new, active, canaries, CanarySettings(), here)
    assert checks and all(check.ok for check in checks), checks
