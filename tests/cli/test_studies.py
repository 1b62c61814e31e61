"""`study`, and `evaluate` and `recommend` of a run that reasons: budget, ceiling, curve, and hidden events."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fullrank as fr
from fullrank import api
from fullrank.data.events.store import Store
from fullrank.evaluation import EvaluationResult
from fullrank.run import write_run, write_weights
from fullrank.run.experiment import find_experiment
from tests.cli.conftest import Ask, Call, Refuses
from tiny import shaken


@pytest.fixture(scope="module")
def plr(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a reasoner of two streams and three steps, its weights drawn and never trained."""
    store, path = Store.open(shop / "data"), tmp_path_factory.mktemp("thinking") / "plr"
    settings = ("model.dim=8", "model.encoder.layers=1", "model.task=last_item", "model.reasoner=plr")
    spec = find_experiment("sasrec").override(*settings, "model.reasoner.steps=3")
    torch.manual_seed(0)
    model: Any = shaken(spec.model.build(store.catalog))  # type: ignore[attr-defined]
    data = {"path": str(store.path), "split_fingerprint": store.fingerprint, "users": store.num_users}
    write_run(path, spec, store.catalog, {"parameters": 1, "data": data})
    write_weights(path, model)
    return path


def test_the_budget_of_evaluate(plr: Path, ask: Ask) -> None:
    found = ask(f"evaluate {plr} --reasoning-steps 1 --reasoning-streams 1")
    assert found["protocol"]["reasoning"] == {"steps": 1, "streams": 1}
    same = ask(f"evaluate {plr} --set reasoning.steps=1 --set reasoning.streams=1")
    assert same["metrics"] == found["metrics"]
    own = ask(f"evaluate {plr}")
    assert own["protocol"]["reasoning"] == {"steps": 3, "streams": 2} and own["metrics"] != found["metrics"]


def test_a_budget_refuses_what_has_no_effect(refuses: Refuses, plr: Path) -> None:
    for words, code, name in (
        ("@sasrec --reasoning-steps 1", "no-reasoner", "--reasoning-steps 1"),
        ("@popularity --adaptive 5", "no-reasoner", "--adaptive 5"),
        (f"{plr} --reasoning-streams 3", "too-many-streams", "2 streams: 3"),
        (f"{plr} --reasoning-steps 1 --set reasoning.steps=2", "given-twice", "--reasoning-steps"),
    ):
        refuses(code, f"evaluate {words}", name)


def test_adaptive_stopping_says_how_long(ask: Ask, call: Call, plr: Path) -> None:
    words = f"evaluate {plr} --adaptive 3 --metric ndcg@10"
    found = ask(words)
    assert 1 <= found["mean_steps"] <= 3
    assert f"{found['mean_steps']:.2f} of at most 3 reasoning steps a user" in call(words).out


def test_recommend_takes_the_same_budget(ask: Ask, refuses: Refuses, plr: Path) -> None:
    words = f"recommend {plr} --history 1002,1003,1005 --k 5"
    zero = ask(f"{words} --reasoning-steps 0")
    assert zero["reasoning"] == {"steps": 0}
    lists = {
        name: [row["item"] for row in fr.recommend(plr, [[1002, 1003, 1005]], k=5, budget=budget).to_dicts()]
        for name, budget in {"zero": {"steps": 0}, "own": None, "three": {"steps": 3}}.items()
    }
    assert [row["item"] for row in zero["recommendations"]] == lists["zero"] != lists["own"] == lists["three"]
    settled = ask(f"{words} --adaptive 5")["recommendations"]
    assert {row["steps"] for row in settled} <= {1, 2, 3} and len({row["steps"] for row in settled}) == 1
    refuses("no-reasoner", "recommend @sasrec --history 1002,1003 --adaptive 5", "--adaptive 5")


def test_the_ceiling(ask: Ask, call: Call, refuses: Refuses, plr: Path, tmp_path: Path) -> None:
    found = ask(f"study oracle-step {plr} --out kept")
    row = found["oracle"]["ndcg@10"]
    assert row["best"] >= row["fixed"] == pytest.approx(api.evaluate(plr).metrics["ndcg@10"]) == row["steps"][-1]
    assert "reads the truth" in found["label"] and len(row["steps"]) == 4
    assert json.loads((tmp_path / "kept" / "oracle_step.json").read_text())["oracle"] == found["oracle"]
    said = call(f"study oracle-step {plr}").out
    assert "Oracle (reads the truth" in " ".join(said.split())
    refuses("not-a-reasoner", "study oracle-step @sasrec")
    refuses("usage", f"study oracle-step {plr} @sasrec", "sasrec")
    refuses("unknown-option", f"evaluate {plr} --oracle-step", "--oracle-step", "fullrank study oracle-step RUN")


def test_the_curve(ask: Ask, call: Call, plr: Path) -> None:
    found = ask(f"study step-curve {plr} --reasoning-steps 2")["curve"]
    assert [row["label"] for row in found] == ["0", "1", "2", "adaptive, at most 2"]
    assert all(row["seconds"] > 0 and list(row["metrics"]) == ["ndcg@10"] for row in found)
    one = ask(f"evaluate {plr} --reasoning-steps 1")["metrics"]["ndcg@10"]
    assert found[1]["metrics"]["ndcg@10"] == pytest.approx(one)
    assert "s / 1,000 users" in call(f"study step-curve {plr} --metric hit@5").out


def test_every_budget(ask: Ask, refuses: Refuses, plr: Path, shop: Path, tmp_path: Path) -> None:
    found = ask(f"study dial {plr} --reasoning-steps 1 --out .")["curve"]
    assert [(row["streams"], row["label"]) for row in found] == [
        (m, label) for m in (1, 2) for label in ("0", "1", "adaptive, at most 1")
    ]
    for row in (found[1], found[4]):
        one = ask(f"evaluate {plr} --reasoning-steps 1 --reasoning-streams {row['streams']}")["metrics"]
        assert row["metrics"]["ndcg@10"] == pytest.approx(one["ndcg@10"])
    assert found[0]["metrics"] == found[3]["metrics"] and found[1]["metrics"] != found[4]["metrics"]
    assert json.loads((tmp_path / "dial.json").read_text())["curve"] == found
    refuses("unknown-option", f"study dial {plr} --reasoning-streams 1", "--reasoning-streams")
    refuses("options-exclude-each", f"study dial {plr} --set reasoning.streams=1", "reasoning.streams")
    refuses("no-reasoner", "study dial @sasrec", shop / "sasrec")


def test_hidden_events_of_one_run_and_of_two(ask: Ask, call: Call, shop: Path, plr: Path, tmp_path: Path) -> None:
    found = ask(f"study drop {plr} --shares 0.3,0.1 --out .")["shares"]
    assert [row["drop"] for row in found] == [0.0, 0.1, 0.3]
    assert found[0]["metrics"] == pytest.approx(api.evaluate(plr).metrics) and "dropped" not in found[0]["protocol"]
    assert found[2]["metrics"] == api.evaluate(plr, set=["drop=0.3"]).metrics
    assert EvaluationResult.load(tmp_path / "drop-0.1").metrics == found[1]["metrics"]
    pairs = ask(f"study drop @sasrec {plr} --shares 0.2 --metric ndcg@10")["shares"]
    one, two = (api.evaluate(path, set=["drop=0.2"]).metrics["ndcg@10"] for path in (shop / "sasrec", plr))
    row = pairs[1]["metrics"]["ndcg@10"]
    assert (row["a"], row["b"]) == (one, two) and 0 < row["p"] <= 1
    assert "hidden" in call(f"study drop @sasrec {plr} --shares 0.2 --metric ndcg@10").out
    assert "30%" in call(f"study drop {plr} --shares 0.3").out


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        ("--shares 1.5", "not-shares", "--shares '1.5'"),
        ("--shares many", "not-shares", "'many'"),
        ("--shares 0.1 --set drop=0.2", "options-exclude-each", "--shares"),
        ("--shares 0.1 --set reasoning.adaptive=5", "options-exclude-each", "--shares"),
        ("--shares 0.1 --adaptive 5", "unknown-option", "--adaptive"),
        ("", "usage", "--shares"),
    ],
)
def test_bad_studies_are_refused(refuses: Refuses, plr: Path, words: str, code: str, name: str) -> None:
    refuses(code, f"study drop {plr} {words}", name)


def test_diagnose_says_what_reasoning_is_worth(ask: Ask, call: Call, plr: Path) -> None:
    words = "--users 30 --out rows.jsonl --overwrite"
    said = call(f"diagnose {plr} {words}")
    assert said.code == 0 and "gate entropy" in said.out and "oracle" in said.out
    rows = {row["diagnostic"] for row in ask(f"diagnose {plr} {words}")["rows"]}
    assert {"diversity", "streams", "ensemble", "latent_attention", "step_curve", "oracle_step", "gate_gain"} <= rows
    assert "gate entropy" not in call(f"diagnose @sasrec {words}").out
