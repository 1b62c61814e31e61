"""Every model that the house can train has a diagnosis: uniform rows, finite numbers, the same each time."""

import json
import math
from typing import Any

import pytest
import torch

from discover import everything, name
from fullrank.analysis.diagnose import diagnose_retrieval
from fullrank.analysis.diagnosis import KEYS, Diagnosis
from parts import BCE, GRU, Cloze, LastItem, Popularity, Softmax, Sprint, Transformer
from refusals import refused
from tests.analysis.conftest import STORE, model_of, recommender, shop
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
