"""Times, from the store to training, evaluation and recommendation, for a model that reads them and for no other."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.core.jagged import Jagged
from fullrank.data.batch import Batch
from fullrank.data.events.prepare import Prepare
from fullrank.data.events.store import Store
from fullrank.data.events.table import Columns
from fullrank.data.histories import Histories as Flat
from fullrank.evaluation import Evaluation, evaluate
from fullrank.inference.predictor import Predictor
from fullrank.inference.recommend import rank
from fullrank.inference.requests import even_times
from fullrank.models.sequential.attention.hstu import HSTU
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.models.sequential.objectives.tasks.cloze import known_times
from fullrank.models.sequential.objectives.tasks.last_item import LastItem
from fullrank.run import Run
from fullrank.run.experiment import Experiment
from fullrank.training.data_module import RetrievalData
from refusals import refused
from tests.training.conftest import histories, share_of_hits, tiny
from tiny import catalog, padded


def timed(*settings: str) -> Experiment:
    """An HSTU of 2 x 16 that reads times."""
    stack = ("model.encoder.attention={kind: hstu}", "model.encoder.feed_forward=none")
    return tiny(*stack, "training.max_epochs=2", *settings, dropout=0.1)


def model_of(experiment: Experiment, store: Store) -> RecommenderModel:
    model: Any = experiment.model.build(store.catalog)  # type: ignore[attr-defined]
    assert isinstance(model, RecommenderModel)
    return model


@pytest.fixture(scope="module")
def run(market: Store, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fr.train(timed(), market, tmp_path_factory.mktemp("runs") / "run", progress=False)


def untimed_store(market: Store, folder: Path) -> Store:
    users = np.repeat(np.arange(market.num_users), np.diff(market.offsets))
    frame = pl.DataFrame({"user_id": users, "item_id": market.catalog.external(market.items)})
    return fr.prepare(frame, folder, spec=Prepare(columns=Columns(time=None)))


def test_training_reads_times_where_the_model_does(market: Store) -> None:
    """They are those of the row's events, and a model that does not read them is not given any."""
    model = model_of(timed(), market)
    batch = RetrievalData.of(timed(), market).loader(model).batch(0)
    assert market.times is not None and batch.times is not None and batch.rows is not None
    for row, n, end, times in zip(batch.items, batch.lengths, batch.rows, batch.times, strict=True):
        assert row[:n].tolist() == market.items[end - n : end].tolist()
        assert times[:n].tolist() == market.times[end - n : end].tolist()
    plain = RetrievalData.of(tiny(), market).loader(model_of(tiny(), market))
    assert plain.batch(0).times is None


def test_a_gap_that_decides_the_next_item() -> None:
    """Item 2 follows within the hour, item 3 after a month: nothing but the time between 0 and 1 tells which."""
    draw, rows = np.random.default_rng(0), 64
    long = torch.from_numpy(draw.integers(0, 2, rows))
    gap = torch.where(long.bool(), 30 * 86_400, 1_800) + torch.from_numpy(draw.integers(0, 600, rows))
    items = torch.stack([torch.zeros_like(long), torch.ones_like(long), 2 + long], 1)
    at = 10**9 + torch.from_numpy(draw.integers(0, 10**7, rows))
    times = torch.stack([at, at + gap, at + gap + 5], 1)
    batch = Batch(items, torch.full((rows,), 3), rows=torch.arange(rows), times=times)
    hit = {}
    for bias in ("times", "positions"):
        torch.manual_seed(0)
        encoder = Transformer(layers=1, attention=HSTU.parse({"rel_bias": bias}), feed_forward="none", dropout=0.0)
        model = Recommender(dim=8, max_length=4, encoder=encoder, task=LastItem()).build(catalog(6))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
        for _ in range(80):
            loss = torch.stack(list(model(batch).values())).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        asked = replace(batch, items=items[:, :2], lengths=batch.lengths - 1, times=times[:, :2])
        with torch.no_grad():
            scores = model.eval().answer(asked).block(2, 4)
        hit[bias] = float((scores.argmax(1) == long).float().mean())
    assert hit["times"] > 0.95 and hit["positions"] < 0.7


def test_a_store_without_times_is_refused_before_anything_is_written(market: Store, tmp_path: Path) -> None:
    bare = untimed_store(market, tmp_path / "bare")
    with refused("missing-times", "rel_bias=positions"):
        fr.train(timed(), bare, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    fr.train(timed("model.encoder.attention.rel_bias=positions"), bare, tmp_path / "run", progress=False)
    with refused("missing-times", "batch", "rel_bias=positions"):
        evaluate(model_of(timed(), bare), bare, "test", Evaluation(bootstrap=0))


def test_evaluation_and_recommendation_agree(run: Run, market: Store) -> None:
    """recall@5 from the recommended frame is what evaluate reports; the time column's unit and type do not matter."""
    frame = histories(market).sample(fraction=1.0, shuffle=True, seed=0)
    found = fr.recommend(run, frame, k=5)
    measured = evaluate(run.model(), market, "test", Evaluation(ks=(5,), metrics=("recall",), bootstrap=0))
    assert share_of_hits(market, found) == pytest.approx(measured.metrics["recall@5"], abs=1e-9)
    moments = frame.with_columns(timestamp=pl.from_epoch("timestamp", time_unit="s"))
    assert fr.recommend(run, moments, k=5).equals(found)
    text = moments.with_columns(timestamp=pl.col("timestamp").dt.strftime("%Y-%m-%dT%H:%M:%S"))
    assert fr.recommend(run, text, k=5).equals(found)
    finer = frame.with_columns(pl.col("timestamp") * 1000)
    assert fr.recommend(run, finer, k=5, time_unit="ms").equals(found)
    with refused("wrong-time-unit", "'timestamp'", 5000, "time_unit='ms'"):
        fr.recommend(run, finer, k=5)


def test_times_matter_and_go_with_the_known_items(run: Run, market: Store) -> None:
    ids = market.catalog.ids.to_list()
    frame = pl.DataFrame({"user_id": 1, "item_id": ids[:4], "timestamp": [0, 60, 7 * 86_400, 90 * 86_400]})
    found = fr.recommend(run, frame, k=5)
    slower = fr.recommend(run, frame.with_columns(pl.col("timestamp") * 50), k=5)
    assert found["score"].to_list() != slower["score"].to_list()
    later = fr.recommend(run, frame.with_columns(pl.col("timestamp") + 12345), k=5)
    np.testing.assert_allclose(found["score"].to_numpy(), later["score"].to_numpy(), rtol=1e-5)
    stranger = pl.DataFrame({"user_id": 1, "item_id": [10**9], "timestamp": [3600]})
    assert fr.recommend(run, pl.concat([frame, stranger.cast(frame.schema)]), k=5).equals(found)


def test_histories_without_times(run: Run, market: Store) -> None:
    """Lists are taken as of now, a day between events, with a note; a table is refused, and both if asked for."""
    ids = market.catalog.ids.to_list()[:4]
    frame = pl.DataFrame({"user_id": ["u"] * 4, "item_id": ids})
    for bare, how in ((frame, {}), (frame, {"untimed": "error"}), ([ids], {"untimed": "error"})):
        with refused("missing-times", "histories", "'timestamp'", "untimed='even'"):
            fr.recommend(run, bare, **how)
    even = fr.recommend(run, {"u": ids}, k=5, untimed="even")
    today = int(time.time()) // 86_400
    days = frame.with_columns(timestamp=pl.Series([86_400 * (today - 3 + t) for t in range(4)]))
    assert even.equals(fr.recommend(run, days, k=5)) and even.equals(fr.recommend(run, frame, k=5, untimed="even"))
    assert even_times(np.array([4, 0, 1])).tolist() == [*days["timestamp"], days["timestamp"][-1]]
    predictor = fr.load(run)
    calls: list[Any] = [
        lambda: predictor.recommend({"u": ids}, k=5), lambda: predictor.score([ids], ids[:2]),
        lambda: predictor.user_vectors([ids]),
    ]  # fmt: skip
    for call in calls:
        with pytest.warns(UserWarning, match="as of now, a day between events"):
            call()
    with pytest.warns(UserWarning, match="as of now"):
        assert even.equals(fr.recommend(run, {"u": ids}, k=5))
    assert fr.recommend(run, {"u": []}, k=5).height == 5, "no events, no times to miss"
    with refused("unknown-choice", "untimed='evn'", "'even'", "error"):
        fr.recommend(run, {"u": ids}, untimed="evn")


def test_a_model_without_times_is_given_none(market: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table is put in order by time all the same, and refused where `prepare` refuses it."""
    model, asked = model_of(tiny(), market), []
    answer = model.answer
    monkeypatch.setattr(model, "answer", lambda batch, **how: (asked.append(batch), answer(batch, **how))[1])
    evaluate(model, market, "test", Evaluation(bootstrap=0))
    assert asked and all(batch.times is None for batch in asked)
    frame = pl.DataFrame({"user_id": [1, 1], "item_id": market.catalog.ids.head(2), "timestamp": ["b", "a"]})
    predictor = Predictor(model, market.catalog)
    with refused("unreadable-times", "'timestamp'", "'b'"):
        predictor.recommend(frame, k=3)
    ranked = rank(model, Flat(Jagged.from_lists([[1, 0]])), k=3)
    found = predictor.recommend(frame.with_columns(timestamp=pl.Series(["2024-01-02", "2024-01-01"])), k=3)
    assert found["item"].to_list() == market.catalog.external(ranked.ids[0]).to_list()


def test_covered_events_have_no_time_of_their_own() -> None:
    times = torch.tensor([[10, 20, 30, 40], [10, 20, 30, 40], [10, 20, 30, 40]])
    hidden = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 1], [1, 1, 1, 1]]).bool()
    assert known_times(times, hidden).tolist() == [[10, 10, 10, 40], [30, 30, 30, 30], [10, 10, 10, 10]]


def test_cloze_asks_at_the_time_of_the_last_event() -> None:
    """Also where the oldest event makes way for the covered place."""
    settings = ("model.task=cloze", "model.encoder.attention.causal=false", "model.max_length=4")
    model: Any = timed(*settings).model.build(catalog())  # type: ignore[attr-defined]
    for row, wanted in (([1, 2, 3], [0, 1, 2, 2]), ([1, 2, 3, 4], [1, 2, 3, 3]), ([5], [0, 0])):
        batch = padded([row])
        assert batch.times is not None
        _, inputs = model.task.inference_inputs(model.items, batch)
        assert inputs.times.tolist() == [batch.times[0, wanted].tolist()]
