"""`evaluate`: one run, two runs, and what may not be compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from fullrank import api
from fullrank.cli.evaluate_study import read_shares
from fullrank.data.events.store import Store
from fullrank.evaluation import EvaluationResult
from refusals import refused
from seals import reseal

if TYPE_CHECKING:
    from conftest import Call, Refuses


def test_metrics_and_protocol(call: Call, shop: Path) -> None:
    found = call("evaluate", shop / "item_to_item", "--split", "test", "--json").json
    assert found["metrics"] == api.evaluate(shop / "item_to_item").metrics
    assert {"ndcg@10", "fair0.8@1", "coverage@10"} <= set(found["metrics"])
    assert {int(name.split("@")[1]) for name in found["metrics"]} == {1, 5, 10, 20}
    assert found["protocol"]["split"] == "test" and found["protocol"]["seen"] == "exclude"


def test_a_person_reads_a_table(call: Call, shop: Path) -> None:
    said = call("evaluate", shop / "popularity", "--split", "validation")
    assert "ndcg" in said.out and "validation" in said.out
    assert "recall@10 where the target is head 0." in said.out and ", tail 0." in said.out
    assert max(map(len, said.out.splitlines())) <= 80


def test_five_rows_unless_all_are_asked_for(call: Call, shop: Path) -> None:
    few, every = (call("evaluate", shop / "popularity", *more).out for more in ([], ["--all"]))
    rows = [line.split()[0] for line in few.splitlines()[1:6]]
    assert rows == ["ndcg", "recall", "mrr", "fair0.8", "coverage"] and "novelty" not in few and "hit = recall" in few
    assert "novelty" in every and "gini" in every
    named = call("evaluate", shop / "popularity", "--metric", "hit", "--metric", "recall").out
    rows = [line.split()[0] for line in named.splitlines() if line]
    assert {"hit", "recall"} <= set(rows) and "hit = recall" in named, (
        "what is asked for has a row, a note says the rest"
    )
    assert "hit@10" in call("evaluate", shop / "popularity", "--json").json["metrics"]


def test_later_events(call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    store = Store.open(shop / "data")
    assert store.times is not None
    when = int(store.times.max()) + 10
    rows = {"who": store.user_ids[:20], "what": store.catalog.ids[:20], "when": [when] * 20}
    pl.DataFrame(rows).write_csv(tmp_path / "later.csv")
    names = ("--user-col", "who", "--item-col", "what", "--time-col", "when")
    words = ("evaluate", shop / "popularity", "--events", tmp_path / "later.csv", *names)
    found = call(*words, "--json").json
    again = api.evaluate(
        shop / "popularity", events=tmp_path / "later.csv", user_col="who", item_col="what", time_col="when"
    )
    assert found["metrics"] == again.metrics and "users of later events" in call(*words).out
    pair = call("evaluate", shop / "popularity", shop / "item_to_item", *words[2:], "--json").json
    assert pair["metrics"]["ndcg@10"]["a"] == again.metrics["ndcg@10"]
    refuses("missing-column", words[:4], "--user-col")
    refuses("options-exclude-each", ["evaluate", shop / "popularity", "--user-col", "who"], "--events FILE")
    refuses("options-exclude-each", [*words, "--drop", "0.1"], "--drop")


def test_lists_made_elsewhere(call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    store = Store.open(shop / "data")
    rows = [(user, item, place) for user in store.user_ids for place, item in enumerate(store.catalog.ids[:20])]
    pl.DataFrame(rows, schema=["user", "item", "rank"], orient="row").write_csv(tmp_path / "lists.csv")
    words = ("--lists", tmp_path / "lists.csv")
    alone = call("evaluate", *words, "--data", shop / "data", "--json", "--out", tmp_path / "alone").json
    assert alone["metrics"] == api.evaluate_lists(tmp_path / "lists.csv", shop / "data").metrics
    assert EvaluationResult.load(tmp_path / "alone").metrics == alone["metrics"]
    pair = call("evaluate", shop / "popularity", *words, "--json", "--out", tmp_path / "two").json
    row = pair["metrics"]["ndcg@10"]
    assert row["a"] == api.evaluate(shop / "popularity").metrics["ndcg@10"] and row["b"] == alone["metrics"]["ndcg@10"]
    assert {path.name for path in (tmp_path / "two").iterdir()} == {"a", "b"}
    kept = call("evaluate", shop / "popularity", *words, "--set", "seen=keep", "--json").json
    assert kept["protocol"]["seen"] == "keep"
    assert "own history" in call("evaluate", shop / "popularity", *words).out
    refuses("missing-store", ["evaluate", *words], "--data")
    refuses("options-exclude-each", ["evaluate", *words, "--events", "x.csv"], "--events", "--lists")
    refuses("options-exclude-each", ["evaluate", shop / "popularity", "--rank-col", "x"], "--lists FILE")


def test_settings_change_the_protocol(call: Call, shop: Path) -> None:
    found = call("evaluate", shop / "popularity", "--set", "seen=keep", "--metric", "recall@7", "--json").json
    assert list(found["metrics"]) == ["recall@7"] and found["protocol"]["seen"] == "keep"


def test_sampled_metrics_stand_beside(call: Call, shop: Path) -> None:
    words = ("evaluate", shop / "popularity", "--set", "sampled=20", "--metric", "recall@5")
    found = call(*words, "--json").json
    row = found["sampled"]["recall@5"]
    assert row["full"] == found["metrics"]["recall@5"] and row["gap"] == row["sampled"] - row["full"]
    told = call(*words).out
    assert "20 shared negatives" in told and "all items" in told and f"{row['gap']:+.4f}" in told
    assert "negatives were drawn" not in told
    more = call("evaluate", shop / "popularity", "--set", "sampled=10000", "--metric", "recall@5").out
    assert "note: 10,000 negatives were drawn with replacement from" in more and "full metrics say the same" in more


def test_two_runs_are_compared_on_the_same_users(call: Call, shop: Path) -> None:
    said = call(
        "evaluate", shop / "popularity", shop / "item_to_item", "--metric", "ndcg@10", "--metric", "hit@5", "--json"
    )
    row = said.json["metrics"]["ndcg@10"]
    one, two = (api.evaluate(shop / name).metrics["ndcg@10"] for name in ("popularity", "item_to_item"))
    assert row["a"] == one and row["b"] == two and row["difference"] == pytest.approx(two - one)
    assert row["interval"][0] <= row["difference"] <= row["interval"][1] and 0 < row["p"] <= 1
    assert list(said.json["metrics"]) == ["ndcg@10", "hit@5"]
    out = call("evaluate", shop / "popularity", shop / "item_to_item").out
    assert "B - A" in out and "fair0.8@1" in out and "ndcg@20" not in out
    assert "bqs_like" not in out, "printed on request only"
    hidden = call("evaluate", shop / "popularity", shop / "item_to_item", "--drop", "0.1").out
    assert "ndcg@10" in hidden and "bqs_like" not in hidden


def test_the_stand_in_for_bqs_compares_two_runs(call: Call, refuses: Refuses, shop: Path) -> None:
    words = ("evaluate", shop / "popularity", shop / "item_to_item", "--metric", "bqs_like@5", "--json")
    rows = call(*words).json["metrics"]
    assert list(rows) == ["ndcg@5", "bqs_like@5"] and rows["bqs_like@5"]["a"] == 0.5
    refuses("metric-of-two-runs", ["evaluate", shop / "popularity", "--metric", "bqs_like@5"], "bqs_like")
    asked = call(*words[:-1]).out
    assert "bqs_like@5" in asked and "a stand-in, not BQS" in asked
    assert "bqs_like@10" in call(*words[:3], "--json").json["metrics"], "programs get it always"


def test_runs_that_were_measured_differently_are_refused(
    call: Call, refuses: Refuses, shop: Path, tmp_path: Path
) -> None:
    words = ("--data", shop / "data", "--out", tmp_path / "kept", "--set", "evaluation.seen=keep")
    assert call("train", "popularity", *words).code == 0
    refuses("protocols-differ", ["evaluate", shop / "popularity", tmp_path / "kept"], "seen is 'exclude'", "'keep'")


def test_tables_say_what_became_of_the_history(call: Call, shop: Path) -> None:
    assert "history excluded" in call("evaluate", shop / "popularity").out
    assert "history ranked" in call("evaluate", shop / "popularity", "--set", "seen=keep").out
    pair = ("evaluate", shop / "popularity", shop / "item_to_item", "--set", "seen=keep")
    assert "paired, history ranked" in " ".join(call(*pair).out.split())
    assert "history ranked" in " ".join(call(*pair, "--drop", "0.1").out.split()).lower()


def test_out_with_another_evaluation_is_refused_before_anything_runs(
    call: Call, refuses: Refuses, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("evaluate", shop / "popularity", "--out", tmp_path / "saved")
    assert call(*words).code == 0
    with monkeypatch.context() as patch:
        patch.setattr(api, "evaluate", None)
        for more in (["--set", "seen=keep"], ["--split", "validation"], []):
            refuses("already-there", [*words, *more], "evaluation.json", "--overwrite")
    assert call(*words, "--set", "seen=keep", "--overwrite").code == 0


def test_out_saves_what_can_be_loaded(call: Call, shop: Path, tmp_path: Path) -> None:
    found = call("evaluate", shop / "popularity", "--out", tmp_path / "saved", "--json").json
    assert EvaluationResult.load(tmp_path / "saved").metrics == found["metrics"]
    assert (
        call("evaluate", shop / "popularity", shop / "sasrec", "--metric", "hit@1", "--out", tmp_path / "two").code == 0
    )
    assert {path.name for path in (tmp_path / "two").iterdir()} == {"a", "b"}


def test_a_store_that_was_moved_is_named_with_data(call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    shutil.copytree(shop / "popularity", tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    manifest["data"]["path"] = str(tmp_path / "gone")
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    reseal(tmp_path / "run")
    refuses("missing-store", ["evaluate", tmp_path / "run"], tmp_path / "gone", "--data")
    assert call("evaluate", tmp_path / "run", "--data", shop / "data").code == 0


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["--split", "tset"], "unknown-value", "did you mean 'test'"),
        (["--metric", "ndgc@10"], "unknown-metric", "did you mean 'ndcg'"),
        (["--metric", "ndcg@10", "--set", "metrics=[hit]"], "given-twice", "--metric"),
        (["--set", "seen=maybe"], "invalid-setting", "'exclude' or 'keep'"),
        (["--set", "sen=keep"], "unknown-setting", "did you mean 'seen'"),
        (["--device", "gpu"], "unknown-device", "allowed: auto, cpu, cuda"),
        (["--data", "nowhere"], "missing-folder", "'nowhere'"),
    ],
)
def test_mistakes(words: list[str], code: str, name: str, refuses: Refuses, shop: Path) -> None:
    refuses(code, ["evaluate", shop / "popularity", *words], name)


def test_a_folder_that_is_no_run(call: Call, tmp_path: Path, shop: Path) -> None:
    assert "is not a run folder" in call("evaluate", tmp_path / "nothing").err
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_text("{")
    assert call("evaluate", tmp_path / "bad").code == 2
    assert call("evaluate", shop / "data").code == 2, "a store is no run"


def test_a_list_of_shares_has_an_end() -> None:
    assert len(read_shares(",".join(f"{n / 1000}" for n in range(1, 100)), [])) == 100
    with refused("too-many-shares", "101"):
        read_shares(",".join(f"{n / 1000}" for n in range(1, 102)), [])
