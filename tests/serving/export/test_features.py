"""Graphs of recommenders that read features: 200 requests of raw columns through `encode.py` and the graph have the
lists of the run, whatever is missing or unknown in them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from featured import SHOP_BEGAN, SHOP_FEATURES, shop_events, shop_people
from fullrank.data.batch import BatchFeatures
from fullrank.data.events.store import Store
from fullrank.inference.list_options import ListOptions
from fullrank.inference.predictor import Predictor
from fullrank.inference.requests import read_histories
from fullrank.run import Run
from fullrank.serving.export import parity
from fullrank.serving.export.encode import Encoder
from fullrank.serving.export.graph import OnnxGraph
from fullrank.serving.export.make import load_program
from fullrank.serving.export.session import ExportedModel
from fullrank.training.data_module import RetrievalData
from refusals import refused
from tests.serving.export.exporting import sealed_run
from tests.training.conftest import tiny
from tiny import shaken

USERS, MOST, SEEN = 200, 12, 1_690_000_000
TIMED = "event: [auto, hour, age, gap], request: [auto, weekday, gap]"
WHOLE = f"model.features={{{TIMED}, user_at: prefix, fuse: concat}}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    place = tmp_path_factory.mktemp("shop") / "store"
    return fr.prepare(shop_events(), place, users=shop_people(), **SHOP_FEATURES)


def made_run(store: Store, folder: Path, *settings: str) -> Run:
    """A run with drawn weights, whose features weigh as much as its items."""
    spec = tiny("model.encoder.layers=1", *settings)
    known = RetrievalData.of(spec, store).known
    torch.manual_seed(0)
    model = shaken(spec.model.build(known))
    return sealed_run(folder, spec, known, model, store)


@pytest.fixture(scope="module")
def run(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(store, tmp_path_factory.mktemp("runs") / "run", WHOLE)


@pytest.fixture(scope="module")
def graph(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fr.export(run, tmp_path_factory.mktemp("graphs") / "onnx", k=8).path


def some(draw: np.random.Generator, values: list[Any], count: int) -> list[Any]:
    return [values[at] for at in draw.integers(len(values), size=count)]


def requests(users: int, seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Histories in order of time, some longer than is read, and a row of what is known of each user and request."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, MOST + 4, users)
    count = int(lengths.sum())
    lists = [None, [], ["a"], ["c", "b", "zz"], ["d", "a", None, "b"]]
    events = {
        "user_id": np.arange(users).repeat(lengths), "item_id": some(draw, shop_events()["item_id"].to_list(), count),
        "timestamp": SEEN + draw.integers(0, 10**5, count).cumsum(), "rating": some(draw, [1, 2, 5, 99, None], count),
        "dwell": some(draw, [None, 0.5, 60.0, 1e6], count), "tags": some(draw, lists, count),
        "device": some(draw, ["phone", "desk", "", None, "new"], count),
        "price": some(draw, [1.0, 9.5, 1e3, None], count),
    }  # fmt: skip
    likes = [None, ["sea"], ["town", "hills", "moon"], []]
    people = {
        "user_id": np.arange(users), "country": some(draw, ["is", "no", "xx", None], users),
        "born": some(draw, [1950.0, 1999.5, None], users), "likes": some(draw, likes, users),
        "device": some(draw, ["phone", "desk", None, "new"], users), "price": some(draw, [3.0, 50.0, None], users),
        "asked_at": SHOP_BEGAN + draw.integers(0, 10**7, users),
    }  # fmt: skip
    return pl.DataFrame(events), pl.DataFrame(people)


def inputs_of(folder: Path, run: Run, events: pl.DataFrame, people: pl.DataFrame) -> dict[str, np.ndarray]:
    """The inputs of a graph, of raw columns by the code that lies beside it."""
    number = {item: at for at, item in enumerate(run.catalog.ids)}
    read = events.group_by("user_id", maintain_order=True).tail(MOST)
    lengths = read.group_by("user_id", maintain_order=True).len()["len"].to_numpy().astype(np.int64)
    inside = np.arange(lengths.max()) < lengths[:, None]

    found: dict[str, np.ndarray] = {}

    def padded(values: np.ndarray) -> np.ndarray:
        rows = np.zeros((*inside.shape, *values.shape[1:]), values.dtype)
        rows[inside] = values
        return rows

    roles = {"event": "event", "request": "request", "asked": "request", "user": "user"}
    for name, role in roles.items():
        of_events = name in ("event", "request")
        values = Encoder(folder, role)(read if of_events else people)
        found |= {f"{name}_{kind}": padded(one) if of_events else one for kind, one in values.items()}
    return found | {
        "items": padded(np.array([number[item] for item in read["item_id"]])), "lengths": lengths,
        "times": padded(read["timestamp"].to_numpy()), "asked_at": people["asked_at"].to_numpy(),
        "excluded": np.full((len(lengths), 1), -1),
    }  # fmt: skip


def lists_of(run: Run, events: pl.DataFrame, people: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Scores and item numbers of the run's lists."""
    read = events.group_by("user_id", maintain_order=True).tail(MOST)
    frame = fr.recommend(run, read, features=people, k=8, device="cpu").sort("user", "rank")
    return frame["score"].to_numpy().reshape(-1, 8), run.catalog.lookup(frame["item"]).reshape(-1, 8)


def same(found: Any, own: tuple[np.ndarray, np.ndarray]) -> None:
    """Equal lists, but for items whose scores are closer than rounding."""
    np.testing.assert_allclose(found[0], own[0], atol=1e-4)
    assert (found[1] == own[1]).mean() > 0.995


def test_requests_of_raw_columns_are_answered_as_by_the_run(run: Run, graph: Path) -> None:
    events, people = requests(USERS)
    own = lists_of(run, events, people)
    inputs = inputs_of(graph, run, events, people)
    opened = OnnxGraph(graph / "model.onnx")
    same(opened(inputs), own)
    blind = people.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in list(people.schema.items())[1:-1])
    scores = opened(inputs_of(graph, run, events, blind))[0]
    assert np.abs(scores - own[0]).max(1).mean() > 0.01, "what is known changes the scores"
    same(opened(inputs_of(graph, run, events, blind)), lists_of(run, events, blind))
    for rows in (1, 7):  # other sizes, of rows, places and lists
        first = events.filter(pl.col("user_id") < rows)
        same(opened(inputs_of(graph, run, first, people.head(rows))), tuple(one[:rows] for one in own))


def test_an_opened_export_takes_what_the_library_encoded(run: Run, graph: Path) -> None:
    """The same lists; without features it says what is missing."""
    events, people = requests(30, seed=1)
    opened, inputs = ExportedModel.open(graph), inputs_of(graph, run, events, people)
    predictor: Predictor = fr.load(run, device="cpu")
    read = events.group_by("user_id", maintain_order=True).tail(MOST)
    asked = read_histories(read, predictor.catalog, ListOptions(), features=people, reads=predictor.reads).histories
    known = BatchFeatures.of(asked.features, asked.items, ("event", "request", "user"))
    given = [inputs[name] for name in ("items", "lengths", "times", "excluded")]
    whole = OnnxGraph(graph / "model.onnx")
    same(opened.answer(*given, features=known), tuple(whole(inputs)))
    with refused("missing-input", "event_categorical"):
        opened.answer(*given)


def test_a_torch_program_takes_them(run: Run, graph: Path, tmp_path: Path) -> None:
    made = fr.export(run, tmp_path / "torch", to="torch", k=8)
    events, people = requests(12, seed=2)
    names = [one["name"] for one in made.manifest["inputs"]]
    found = load_program(made.path / "model.pt2", names)(inputs_of(made.path, run, events, people))
    same(found, lists_of(run, events, people))
    shapes = {one["name"]: one["shape"] for one in made.manifest["inputs"]}
    assert shapes["event_categorical"] == ["B", "T", 1] and shapes["user_numeric"] == ["B", 1]
    assert shapes["request_categorical"] == ["B", "T", 2] and shapes["asked_categorical"] == ["B", 2]
    assert json.loads((graph / "manifest.json").read_text())["inputs"] == made.manifest["inputs"]


KINDS = [
    ("model.encoder={kind: gru}", f"model.features={{{TIMED}, fuse: gate}}"),
    ("model.encoder={kind: fmlp}", "model.features={user_at: prefix}"),
    ("model.encoder.attention={kind: hstu}", "model.features={event: [rating], request: [hour], user: []}"),
    ("model.reasoner={kind: plr}", "model.features=auto", "model.task=last_item"),
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", KINDS, ids=["gru", "fmlp", "hstu", "plr"])
def test_kinds_that_read_features_have_graphs(settings: tuple[str, ...], store: Store, tmp_path: Path) -> None:
    made = fr.export(made_run(store, tmp_path / "run", *settings), tmp_path / "out", k=5)
    assert made.parity["largest_difference"] <= parity.TOLERANCE and made.parity["same_places"] > 0.9
    assert made.manifest["inputs"][0]["shape"] == ["B", "T"]


def test_a_run_that_reads_no_features_ships_no_encoder(store: Store, tmp_path: Path) -> None:
    made = fr.export(made_run(store, tmp_path / "run"), tmp_path / "out", to="torch", k=5)
    assert sorted(one.name for one in made.path.iterdir()) == ["items.parquet", "manifest.json", "model.pt2"]
    assert [one["name"] for one in made.manifest["inputs"]] == ["items", "lengths", "excluded"]
