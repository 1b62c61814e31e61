"""Predicting tables of any size: the same as evaluation, whatever the chunks; the file appears whole or not at all."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import torch

import fullrank as fr
from fullrank.data import frames
from fullrank.data.impressions.store import ImpressionStore
from fullrank.evaluation.ranking import evaluate_ranking
from fullrank.inference import predict as module
from fullrank.inference.predict import predict, predict_file
from fullrank.inference.predictor import Predictor
from fullrank.models.ranking.model import RankingModel, RankingModule
from refusals import refused
from tests.training.clicks import HISTORIES, SCHEMA, with_histories
from tests.training.clicks import table as listed
from tiny import shaken

READ = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".jsonl": pl.read_ndjson}


def table(rows: int = 3000) -> pl.DataFrame:
    """With the bag as text, which a CSV file can hold."""
    return listed(rows).with_columns(pl.col("tags").list.join("|"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImpressionStore:
    fields = [*SCHEMA["fields"][:3], {"name": "tags", "kind": "bag", "separator": "|"}]
    schema = {**SCHEMA, "fields": fields}
    return fr.prepare_impressions(table(), tmp_path_factory.mktemp("shop") / "store", schema=schema)


@pytest.fixture(scope="module")
def model(store: ImpressionStore) -> RankingModule:
    torch.manual_seed(0)
    return shaken(RankingModel().build(store.fields), 0.1).eval()  # type: ignore[return-value]


def fine(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Chunks of 70 rows, scored by 32; the calls by which frames are encoded are counted."""
    counted = Mock(side_effect=module.transform)
    monkeypatch.setattr(frames, "CHUNK", 70)
    monkeypatch.setattr(module, "ROWS", 32)
    monkeypatch.setattr(module, "transform", counted)
    return counted


def test_predictions_are_those_of_evaluation(store: ImpressionStore, model: RankingModule) -> None:
    """On the same rows: of the table that the store was prepared from, and of any part of it."""
    found = evaluate_ranking(model, store, "test")
    places = store.external(found.per_impression.rows)["input_row"].to_numpy()
    whole = predict(model, store.encoder, table())["probability"].to_numpy()
    assert np.allclose(whole[places], found.per_impression.probabilities, rtol=1e-6)
    alone = predict(model, store.encoder, table()[places])["probability"].to_numpy()
    assert np.array_equal(alone, found.per_impression.probabilities), "the very same batch"


def test_a_text_file_has_the_lists_of_training(tmp_path: Path) -> None:
    """A bag and a sequence of lists in training, text in the file: cut at any separator, and otherwise refused."""
    frame = with_histories(listed(400))
    store = fr.prepare_impressions(frame, tmp_path / "store", schema=HISTORIES)
    model = shaken(RankingModel().build(store.fields), 0.1).eval()
    predictor = Predictor(model, store.encoder, device="cpu")
    own = predictor.predict(frame)["probability"].to_list()
    for text in ("|", ";", ", ", "--"):
        columns = [pl.col(name).cast(pl.List(pl.String)).list.join(text) for name in ("tags", "history")]
        frame.drop("label").with_columns(columns).write_csv(tmp_path / "new.csv")
        assert predictor.predict(tmp_path / "new.csv", list_separator=text)["probability"].to_list() == own
    predictor.predict_file(tmp_path / "new.csv", tmp_path / "p.csv", list_separator="--")
    assert pl.read_csv(tmp_path / "p.csv")["probability"].to_list() == pytest.approx(own)
    with refused("missing-separator", "list_separator"):
        predictor.predict(tmp_path / "new.csv")
    with refused("not-a-separator"):
        predictor.predict(frame, list_separator="")
    plain = fr.prepare_impressions(frame, tmp_path / "plain", schema={"fields": ["user"]})
    with refused("setting-without-effect", "list_separator"):
        plain.encoder.with_separator("|")


def test_columns_of_users_come_from_their_table(store: ImpressionStore, tmp_path: Path) -> None:
    """As if they had been joined before; who is not in it lacks them."""
    schema = {**SCHEMA, "group": "user", "fields": ["user", "item", "country"]}
    whole = listed(300).with_columns(country=pl.col("user").cast(pl.Int64) % 5)
    shop = fr.prepare_impressions(whole, tmp_path / "shop", schema=schema)
    predictor = Predictor(shaken(RankingModel().build(shop.fields), 0.5).eval(), shop.encoder, device="cpu")
    people = whole.select("user", "country").unique().sort("user").slice(1)
    rows = whole.drop("country", "label")
    joined = rows.join(people, on="user", how="left", maintain_order="left")
    expected = predictor.predict(joined).drop("country")
    assert predictor.predict(rows, users=people.rename({"user": "user_id"})).equals(expected)
    people.write_csv(tmp_path / "people.csv")
    predictor.predict_file(rows, tmp_path / "out.parquet", users=tmp_path / "people.csv")
    assert pl.read_parquet(tmp_path / "out.parquet").equals(expected)
    for bad, code, words in (
        (people.drop("country"), "setting-without-effect", "users"),
        (people.drop("user"), "missing-id-column", "user"),
        (pl.concat([people, people]), "repeated-ids", "repeated"),
    ):
        with refused(code, words):
            predictor.predict(rows, users=bad)
    with refused("missing-column", "user"):
        predictor.predict(rows.drop("user"), users=people)


def test_on_real_impressions(real_data: Any, tmp_path: Path) -> None:
    """The newest ratings of MovieLens: evaluation of their test split, and `predict` on the file they came from."""
    from fullrank.data.sources.movielens import MovieLensCTR

    source = MovieLensCTR().impressions(real_data("ml-1m"))
    newest = source.table.sort("timestamp", maintain_order=True).tail(30_000)
    store = fr.prepare_impressions(newest, tmp_path / "store", schema=source.schema)
    torch.manual_seed(0)
    model = shaken(RankingModel().build(store.fields), 0.1).eval()
    found = evaluate_ranking(model, store, "test")  # type: ignore[arg-type]
    newest.write_parquet(tmp_path / "new.parquet")
    predict_file(model, store.encoder, tmp_path / "new.parquet", tmp_path / "p.parquet")  # type: ignore[arg-type]
    predicted = pl.read_parquet(tmp_path / "p.parquet")["probability"].to_numpy()
    places = store.external(found.per_impression.rows)["input_row"].to_numpy()
    assert len(places) > 2000 and np.allclose(predicted[places], found.per_impression.probabilities, rtol=1e-5)


@pytest.mark.parametrize("kind", [".parquet", ".csv", ".jsonl"])
def test_chunks_change_nothing(
    store: ImpressionStore, model: RankingModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    given = table(300)
    whole = predict(model, store.encoder, given)
    encoded = fine(monkeypatch)
    path, told = tmp_path / f"in{kind}", list[tuple[int, int]]()
    {".parquet": given.write_parquet, ".csv": given.write_csv, ".jsonl": given.write_ndjson}[kind](path)
    out = tmp_path / "new" / f"out{kind}"
    done = predict_file(model, store.encoder, path, out, progress=lambda *at: told.append(at))
    found = READ[kind](out)
    assert found.columns == whole.columns and done.rows == len(found) == 300
    assert max(len(call.args[1]) for call in encoded.call_args_list) <= 32
    assert np.allclose(found["probability"], whole["probability"], rtol=1e-6)
    assert found["note"].equals(whole["note"]) and done.mean == pytest.approx(whole["probability"].mean())
    assert told[-1] == (300, 300) and [at for at, _ in told] == sorted({at for at, _ in told})
    assert [p.name for p in out.parent.iterdir()] == [out.name], "no piece is left"


def test_no_rows(store: ImpressionStore, model: RankingModule, tmp_path: Path) -> None:
    for kind in READ:
        done = predict_file(model, store.encoder, table(5).head(0), tmp_path / f"out{kind}")
        assert (done.rows, done.mean) == (0, None) and (tmp_path / f"out{kind}").is_file()
    assert pl.read_parquet(tmp_path / "out.parquet").columns == [*table(5).columns, "probability"]


def test_an_error_leaves_the_old_file(
    store: ImpressionStore, model: RankingModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes in the last chunk, when others are written; it names the rows."""
    fine(monkeypatch)
    bad = table(300).with_columns(user=pl.when(pl.col("note") == 290).then(0.5).otherwise(pl.col("user")))
    for kind in READ:
        out = tmp_path / f"out{kind}"
        out.write_text("old")
        with refused("not-whole-numbers", "user", "280", "299", "1"):
            predict_file(model, store.encoder, bad, out)
        assert out.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 3, "no piece is left"


def test_what_cannot_be_written_is_said_at_once(store: ImpressionStore, model: RankingModule, tmp_path: Path) -> None:
    for code, name, frame, out, column in (
        ("lists-in-csv", "more", table(9).with_columns(more=[1, 2]), "out.csv", "p"),
        ("unknown-suffix", ".xls", table(9), "out.xls", "p"),
        ("column-exists", "note", table(9), "out.parquet", "note"),
    ):
        with refused(code, name):
            predict_file(model, store.encoder, frame, tmp_path / out, column=column)
    assert not list(tmp_path.iterdir())


def test_lists_serve_as_text_and_labels_are_not_read(store: ImpressionStore, model: RankingModule) -> None:
    """A schema splits the text; stars in the label column are no reason to refuse new impressions."""
    frames = (table(200), listed(200), table(200).with_columns(label=pl.lit(7)))
    wanted, *found = (predict(model, store.encoder, frame)["probability"] for frame in frames)
    assert all(probabilities.equals(wanted) for probabilities in found)
