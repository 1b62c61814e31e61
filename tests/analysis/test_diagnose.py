"""Every model that the house can train has a diagnosis: uniform rows, finite numbers, the same each time. Of ranking
models also: the sample, the file, what is refused, and not a bit of the weights changed, watched or diagnosed.
"""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import fullrank as fr
from discover import everything, name
from fullrank.analysis.activations import sample_impressions
from fullrank.analysis.diagnose import diagnose_ranking, diagnose_retrieval
from fullrank.analysis.diagnosis import KEYS, NAME, Diagnosis
from fullrank.core.tensor_files import read_tensors
from fullrank.data.impressions.store import ImpressionStore
from fullrank.run import Run, weights_hash
from fullrank.training import Callback
from markets import planted_store
from parts import BCE, GRU, Cloze, LastItem, Popularity, Softmax, Sprint, Transformer
from refusals import refused
from tests.analysis.conftest import STORE, model_of, recommender, shop
from tests.training.clicks import SCHEMA, table, tiny
from tests.training.clicks import shop as clicks_shop
from tests.training.conftest import tiny as tiny_of_lists
from tiny import plain


def specs() -> dict:
    found = {name(pair): plain(pair) for pair in everything("baselines")}
    found |= {name(pair): recommender(plain(pair)) for pair in everything("encoders")}
    found["encoders.seq2seq"] = found["encoders.seq2seq"].model_copy(update={"task": LastItem()})
    for pair in everything("attention"):
        found[name(pair)] = recommender(Transformer(layers=2, attention=plain(pair)))
    for pair in everything("items"):
        loss = {"loss": BCE()} if pair[1] == "tpab" else {}
        found[name(pair)] = recommender().model_copy(update={"items": plain(pair), **loss})
    found["cloze"] = recommender(Transformer(attention=Softmax(causal=False))).model_copy(update={"task": Cloze()})
    found["sprint"] = recommender().model_copy(update={"penalties": (Sprint(),)})
    found["cosine"] = recommender(None, "scoring.similarity=cosine", "scoring.temperature=0.1")
    return found


SPECS = specs()


def brands(store) -> Any:
    """Times for the baselines that ask for them."""
    store.times = torch.arange(store.num_events).numpy() * 86_400
    return store


@pytest.mark.parametrize("kind", SPECS)
def test_every_model_has_a_diagnosis(kind) -> None:
    store = brands(shop())
    model = model_of(SPECS[kind], store)
    found = diagnose_retrieval(model, store, users=25)
    assert found.about()["users"] == 25 and found.about()["split"] == "test"
    for one in found.rows:
        assert set(one) == KEYS
        assert one["value"] is None or math.isfinite(one["value"]), one
    assert {one["diagnostic"] for one in found.rows} == {
        "about", "spectrum", "layers", "attention_share", "alignment", "bound", "norms", "ablation", "robustness",
        "focus", "case", "shortcut",
    }  # fmt: skip
    json.dumps(found.rows, allow_nan=False)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_a_file_and_back(tmp_path) -> None:
    found = diagnose_retrieval(model_of(), STORE, users=9, weights="abc", seed=3)
    found.save(tmp_path / "deep" / "rows.jsonl")
    assert Diagnosis.load(tmp_path / "deep" / "rows.jsonl") == found
    sample = {"split": "test", "users": 9, "seed": 3, "fingerprint": "tiny", "weights": "abc"}
    assert found.about() == sample | {"accuracy": "ndcg@10", "seen": "exclude", "popularity": "train"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "0 rows"),
        ("{", "line 1 column 2"),
        ("[]\n", "no object"),
        ('{"a": 1}\n', "{'a': 1}"),
        ("[" * 10_000, "100 deep"),
    ],
)
def test_a_file_that_is_none(text, named, tmp_path) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with refused("file-damaged", tmp_path / "x.jsonl", named):
        Diagnosis.load(tmp_path / "x.jsonl")
    with refused("file-damaged", tmp_path / "missing.jsonl"):
        Diagnosis.load(tmp_path / "missing.jsonl")


def test_a_row_of_other_types_is_refused(tmp_path) -> None:
    good = dict.fromkeys(KEYS) | {"diagnostic": "a", "name": "b"}
    for key, value in (("layer", "<b>"), ("value", [1]), ("label", 3), ("name", None)):
        (tmp_path / "x.jsonl").write_text(json.dumps(good | {key: value}))
        with refused("file-damaged", "line 1", tmp_path / "x.jsonl", f"{key!r}: {value!r}"):
            Diagnosis.load(tmp_path / "x.jsonl")


def test_mistakes() -> None:
    model = model_of()
    with refused("unknown-split", "tset", "test"):
        diagnose_retrieval(model, STORE, split="tset")
    model.num_items += 1
    with refused("other-catalogue", 31, 30):
        diagnose_retrieval(model, STORE)


def test_progress_rises_to_its_end() -> None:
    seen = []
    diagnose_retrieval(model_of(), STORE, users=9, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1] == (1000, 1000)


@pytest.mark.parametrize(
    ("name", "spec"),
    [("alignment", recommender(GRU())), ("attention_share", recommender(GRU())), ("focus", recommender(GRU())),
     ("case", recommender(GRU())), ("norms", Popularity()), ("ablation", Popularity())],
)  # fmt: skip
def test_what_a_model_lacks_is_said(name, spec) -> None:
    why = diagnose_retrieval(model_of(spec), STORE, users=25).left_out()[name]
    assert "no attention" in why or spec == Popularity()


SMALL = ("training.max_epochs=2", "training.batch_size=300", "model.ranker.tokens=4", "model.ranker.width=6")


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> ImpressionStore:
    return clicks_shop(tmp_path_factory.mktemp("clicks") / "data")


def mixing(*settings) -> Any:
    return tiny().override("model.ranker=rankelastor", *SMALL, *settings)


@pytest.fixture(scope="module")
def run(store, tmp_path_factory) -> Run:
    return fr.train(mixing(), store, tmp_path_factory.mktemp("run") / "bare", progress=False)


def test_a_sample_is_a_function_of_seed_and_split(store) -> None:
    test = store.split("test")
    some = sample_impressions(store, "test", 50)
    assert len(set(some)) == 50 and all(row in test for row in some) and (np.diff(some) > 0).all()
    assert np.array_equal(some, sample_impressions(store, "test", 50)) and not np.array_equal(
        some, sample_impressions(store, "test", 50, seed=1)
    )
    assert list(sample_impressions(store, "test", 10**6)) == list(test)
    for words, hint in ((("tset", 5), "unknown-split"), (("test", 0), "setting-out-of-range")):
        with refused(hint, words[0] if hint == "unknown-split" else words[1]):
            sample_impressions(store, *words)


def test_rows_are_those_of_the_whole_split_in_any_batches(run, store, tmp_path, monkeypatch) -> None:
    found = fr.diagnose(run, impressions=10**6)
    about = found.about()
    assert about["impressions"] == len(store.split("test")) and about["split"] == "test" and about["seed"] == 0
    assert about["weights"] == weights_hash(run.path) and about["fingerprint"] == store.fingerprint
    found.save(tmp_path / NAME)
    assert Diagnosis.load(tmp_path / NAME) == found
    monkeypatch.setattr("fullrank.analysis.activations.ROWS", 7)
    again = fr.diagnose(run, impressions=10**6)
    for ours, theirs in zip(_smooth(again), _smooth(found), strict=True):
        assert ours["value"] == pytest.approx(theirs["value"], rel=1e-4, abs=1e-4), ours


def _smooth(found) -> list:
    """The figures that rounding moves a little, and does not make jump."""
    return [one for one in found.rows if one["value"] is not None and not one["name"].endswith(("_bin", "_rose"))]


def test_what_is_refused(run, store, tmp_path) -> None:
    with refused("sample-of-other-problem", run.path, "impressions"):
        fr.diagnose(run, users=5)
    other = fr.prepare_impressions(table(200), tmp_path / "other", schema=SCHEMA | {"fields": ["user", "item"]})
    with refused("store-differs", tmp_path / "other", run.path):
        fr.diagnose(run, data=other)
    with refused("other-fields", other.path):
        diagnose_ranking(run.model(), other)


def test_watching_logs_every_tap_and_changes_no_weight(run, store, tmp_path) -> None:
    watched = fr.train(mixing(), store, tmp_path / "watched", callbacks=[fr.Watch()], progress=False)
    epochs = [row for row in watched.rows() if row["event"] == "epoch"]
    assert len(epochs) == 2 and not [row for row in watched.rows() if row["event"] == "watch"]
    taps = ("embedding", "tokens", "mixing_0", "ffn_0", "mixing_1", "ffn_1")
    for row in epochs:
        for rank in ("stable_rank", "entropy_rank"):
            assert all(1 <= row[f"watch/{rank}/{tap}"] <= 6 for tap in taps)
            assert row[f"watch/last_layer_{rank}"] == row[f"watch/{rank}/ffn_1"]
    one, two = (read_tensors(path / "weights.safetensors") for path in (run.path, watched.path))
    assert one.keys() == two.keys() and all(one[key].equal(two[key]) for key in one)


def test_watching_inside_an_epoch_is_what_a_diagnosis_says(store, tmp_path) -> None:
    watch = fr.WatchRanks(impressions=100, every=3)
    made = fr.train(mixing("training.max_epochs=1"), store, tmp_path / "r", callbacks=[watch], progress=False)
    rows = [row for row in made.rows() if row["event"] == "watch"]
    assert [row["step"] for row in rows] == [3, 6] and all(0 < row["epoch"] < 1 for row in rows)
    (epoch,) = (row for row in made.rows() if row["event"] == "epoch")
    found = fr.diagnose(made, "validation", impressions=100)
    assert found.of("token_ranks", "stable_rank")[-1]["value"] == pytest.approx(epoch["watch/last_layer_stable_rank"])


def test_what_cannot_be_watched_is_said_before_anything_is_written(store, tmp_path) -> None:
    assert isinstance(fr.WatchRanks(), Callback)
    lr = tiny().override("model={kind: click, ranker: lr}")
    for spec, watch, hint in (
        (lr, fr.Watch(), "nothing-to-watch"),
        (lr, fr.WatchRanks(), "nothing-to-watch"),
        (mixing(), fr.Watch(users=30), "setting-without-effect"),
    ):
        with refused(hint):
            fr.train(spec, store, tmp_path / "no", callbacks=[watch], progress=False)
    market = planted_store(tmp_path / "market")
    with refused("watch-of-other-problem", "fullrank.Watch"):
        fr.train(tiny_of_lists(), market, tmp_path / "no", callbacks=[fr.WatchRanks()], progress=False)
    assert not (tmp_path / "no").exists()
    for settings in ({"impressions": 0}, {"every": 0}):
        with refused("setting-out-of-range", 0):
            fr.WatchRanks(**settings)


def test_without_validation_training_impressions_are_read(tmp_path) -> None:
    schema = SCHEMA | {"split": {"kind": "random", "shares": [0.9, 0.0, 0.1]}}
    store = fr.prepare_impressions(table(400), tmp_path / "data", schema=schema)
    made = fr.train(mixing("training.max_epochs=1"), store, tmp_path / "r", callbacks=[fr.Watch()], progress=False)
    assert [row for row in made.rows() if row["event"] == "epoch"][0]["watch/last_layer_stable_rank"] >= 1
