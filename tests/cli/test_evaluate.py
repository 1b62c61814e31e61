"""`evaluate`: one run, two runs, what may not be compared, and a log of what was shown."""

import shutil
from pathlib import Path

import polars as pl
import pytest

from fullrank import api
from fullrank.cli.study import read_shares
from fullrank.data.events.store import Store
from fullrank.evaluation import EvaluationResult
from refusals import refused
from seals import store_moved
from tests.cli.conftest import Ask, Call, Refuses


def test_metrics_and_protocol(shop: Path, ask: Ask) -> None:
    found = ask("evaluate @item_to_item --split test")
    assert found["metrics"] == api.evaluate(shop / "item_to_item").metrics
    assert {"ndcg@10", "fair0.8@1", "coverage@10"} <= set(found["metrics"])
    assert {int(name.split("@")[1]) for name in found["metrics"]} == {1, 5, 10, 20}
    assert found["protocol"]["split"] == "test" and found["protocol"]["seen"] == "exclude"


def test_a_person_reads_a_table(call: Call) -> None:
    said = call("evaluate @popularity --split validation")
    assert "ndcg" in said.out and "validation" in said.out
    assert "recall@10 where the target is head 0." in said.out and ", tail 0." in said.out
    assert max(map(len, said.out.splitlines())) <= 80


def test_five_rows_unless_all_are_asked_for(ask: Ask, call: Call) -> None:
    few, every = (call(f"evaluate @popularity {more}").out for more in ("", "--all"))
    assert "novelty" not in few and "hit = recall" in few and "novelty" in every
    named = call("evaluate @popularity --metric hit --metric recall").out
    assert {"hit", "recall"} <= {line.split()[0] for line in named.splitlines() if line}, "what is asked for has a row"
    assert "hit = recall" in named
    assert "hit@10" in ask("evaluate @popularity")["metrics"]


def test_later_events(ask: Ask, call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    store = Store.open(shop / "data")
    assert store.times is not None
    when = int(store.times.max()) + 10
    rows = {"who": store.user_ids[:20], "what": store.catalog.ids[:20], "when": [when] * 20}
    pl.DataFrame(rows).write_csv(tmp_path / "later.csv")
    later = "--events later.csv --user-col who --item-col what --time-col when"
    words = f"evaluate @popularity {later}"
    found = ask(words)
    columns = {"user_col": "who", "item_col": "what", "time_col": "when"}
    again = api.evaluate(shop / "popularity", events=tmp_path / "later.csv", **columns)
    assert found["metrics"] == again.metrics and "users of later events" in call(words).out
    pair = ask(f"evaluate @popularity @item_to_item {later}")
    assert pair["metrics"]["ndcg@10"]["a"] == again.metrics["ndcg@10"]
    refuses("missing-column", "evaluate @popularity --events later.csv", "--user-col")
    refuses("option-without-effect", "evaluate @popularity --user-col who", "--user-col", "--events FILE")
    refuses("unknown-option", f"{words} --drop 0.1", "--drop", "fullrank study drop RUN")


def test_lists_made_elsewhere(ask: Ask, call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    store = Store.open(shop / "data")
    rows = [(user, item, place) for user in store.user_ids for place, item in enumerate(store.catalog.ids[:20])]
    pl.DataFrame(rows, schema=["user", "item", "rank"], orient="row").write_csv(tmp_path / "lists.csv")
    words = "evaluate-lists lists.csv"
    alone = ask(f"{words} --data @data --out alone")
    assert alone["metrics"] == api.evaluate_lists(tmp_path / "lists.csv", shop / "data").metrics
    assert EvaluationResult.load(tmp_path / "alone").metrics == alone["metrics"]
    pair = ask(f"{words} @popularity --out two")
    row = pair["metrics"]["ndcg@10"]
    assert row["a"] == api.evaluate(shop / "popularity").metrics["ndcg@10"] and row["b"] == alone["metrics"]["ndcg@10"]
    assert {path.name for path in (tmp_path / "two").iterdir()} == {"a", "b"}
    kept = ask(f"{words} @popularity --set seen=keep")
    assert kept["protocol"]["seen"] == "keep"
    assert "own history" in call(f"{words} @popularity").out
    refuses("missing-store", words, "--data")
    for option in ("--lists lists.csv", "--rank-col x"):
        refuses("unknown-option", f"evaluate @popularity {option}", option.split()[0], "fullrank evaluate-lists FILE")


def test_settings_change_the_protocol(ask: Ask) -> None:
    found = ask("evaluate @popularity --set seen=keep --metric recall@7")
    assert list(found["metrics"]) == ["recall@7"] and found["protocol"]["seen"] == "keep"


def test_sampled_metrics_stand_beside(ask: Ask, call: Call) -> None:
    words = "evaluate @popularity --set sampled=20 --metric recall@5"
    found = ask(words)
    row = found["sampled"]["recall@5"]
    assert row["full"] == found["metrics"]["recall@5"] and row["gap"] == row["sampled"] - row["full"]
    told = call(words).out
    assert "20 shared negatives" in told and "all items" in told and f"{row['gap']:+.4f}" in told
    assert "negatives were drawn" not in told
    more = call("evaluate @popularity --set sampled=10000 --metric recall@5").out
    assert "note: 10,000 negatives were drawn with replacement from" in more and "full metrics say the same" in more


def test_two_runs_are_compared_on_the_same_users(ask: Ask, call: Call, shop: Path) -> None:
    said = ask("evaluate @popularity @item_to_item --metric ndcg@10 --metric hit@5")
    row = said["metrics"]["ndcg@10"]
    one, two = (api.evaluate(shop / name).metrics["ndcg@10"] for name in ("popularity", "item_to_item"))
    assert row["a"] == one and row["b"] == two and row["difference"] == pytest.approx(two - one)
    assert row["interval"][0] <= row["difference"] <= row["interval"][1] and 0 < row["p"] <= 1
    assert list(said["metrics"]) == ["ndcg@10", "hit@5"]
    out = call("evaluate @popularity @item_to_item").out
    assert "B - A" in out and "fair0.8@1" in out and "ndcg@20" not in out
    assert "bqs_like" not in out, "printed on request only"
    hidden = call("study drop @popularity @item_to_item --shares 0.1").out
    assert "ndcg@10" in hidden and "bqs_like" not in hidden


def test_the_stand_in_for_bqs_compares_two_runs(ask: Ask, call: Call, refuses: Refuses) -> None:
    pair = "evaluate @popularity @item_to_item"
    rows = ask(f"{pair} --metric bqs_like@5")["metrics"]
    assert list(rows) == ["ndcg@5", "bqs_like@5"] and rows["bqs_like@5"]["a"] == 0.5
    refuses("metric-of-two-runs", "evaluate @popularity --metric bqs_like@5", "bqs_like")
    asked = call(f"{pair} --metric bqs_like@5").out
    assert "bqs_like@5" in asked and "a stand-in, not BQS" in asked
    assert "bqs_like@10" in ask(pair)["metrics"], "programs get it always"


def test_runs_that_were_measured_differently_are_refused(call: Call, refuses: Refuses) -> None:
    assert call("train popularity --data @data --out kept --set evaluation.seen=keep").code == 0
    refuses("protocols-differ", "evaluate @popularity kept", "seen is 'exclude'", "'keep'")


def test_tables_say_what_became_of_the_history(call: Call) -> None:
    assert "history excluded" in call("evaluate @popularity").out
    assert "history ranked" in call("evaluate @popularity --set seen=keep").out
    pair = "evaluate @popularity @item_to_item --set seen=keep"
    assert "paired, history ranked" in " ".join(call(pair).out.split())
    hidden = call("study drop @popularity @item_to_item --set seen=keep --shares 0.1").out
    assert "history ranked" in " ".join(hidden.split()).lower()


def test_out_with_another_evaluation_is_refused_before_anything_runs(
    call: Call, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "evaluate @popularity --out saved"
    assert call(words).code == 0
    with monkeypatch.context() as patch:
        patch.setattr(api, "evaluate", None)
        for more in ("--set seen=keep", "--split validation", ""):
            refuses("already-there", f"{words} {more}", "evaluation.json", "--overwrite")
    assert call(f"{words} --set seen=keep --overwrite").code == 0


def test_out_saves_what_can_be_loaded(ask: Ask, call: Call, tmp_path: Path) -> None:
    found = ask("evaluate @popularity --out saved")
    assert EvaluationResult.load(tmp_path / "saved").metrics == found["metrics"]
    assert call("evaluate @popularity @sasrec --metric hit@1 --out two").code == 0
    assert {path.name for path in (tmp_path / "two").iterdir()} == {"a", "b"}


def test_a_store_that_was_moved_is_named_with_data(call: Call, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    shutil.copytree(shop / "popularity", tmp_path / "run")
    store_moved(tmp_path / "run", tmp_path / "gone")
    refuses("missing-store", "evaluate run", tmp_path / "gone", "--data")
    assert call("evaluate run --data @data").code == 0


def test_a_list_of_shares_has_an_end() -> None:
    assert len(read_shares(",".join(f"{n / 1000}" for n in range(1, 100)), [])) == 100
    with refused("too-many-shares", "101"):
        read_shares(",".join(f"{n / 1000}" for n in range(1, 102)), [])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """40 answers of two versions, and events of which the second version has found more."""
    rows, events = [], []
    for n in range(40):
        version = "ab"[n % 2]
        rows.append((1000.0 + n, f"u{n}", version, "model", 2, ["7", "8" if version == "b" else "9"]))
        events.append((f"u{n}", 8 if n % 3 else 1, 1500 + n))
    folder = tmp_path / "log"
    folder.mkdir()
    frame = pl.DataFrame(rows, schema=["time", "user", "version", "source", "k", "items"], orient="row")
    frame.write_parquet(folder / "answers-1.parquet")
    pl.DataFrame(events, schema=["who", "what", "when"], orient="row").write_csv(tmp_path / "events.csv")
    return folder


def test_versions_are_measured_and_saved(log: Path, ask: Ask, call: Call, tmp_path: Path) -> None:
    words = "evaluate-log log --events events.csv --user-col who --item-col what --time-col when"
    found = ask(f"{words} --out out --metric hit")
    assert found["versions"]["a"]["metrics"] == {"hit@2": 0.0} and found["versions"]["b"]["metrics"]["hit@2"] > 0.5
    assert found["differences"][0]["difference"] > 0.5 and found["counts"]["scored"] == 40
    assert found["protocol"]["within_hours"] == 24
    assert (tmp_path / "out" / "per_answer.parquet").is_file()
    shown = call(words)
    assert shown.code == 0 and "b - a" in shown.out + shown.err


def test_what_does_not_go_together_is_refused(log: Path, refuses: Refuses) -> None:
    refuses("unknown-option", "evaluate @sasrec --log log --events events.csv", "--log", "fullrank evaluate-log DIR")
    refuses("unknown-option", "evaluate @sasrec --within 5", "--within", "fullrank evaluate-log DIR")
    words = "evaluate-log log --events events.csv"
    refuses("unknown-option", f"{words} --columns a,b,c", "--columns", "--user-col")
    refuses("unknown-option", f"{words} --set seen=keep", "--set")
    refuses("usage", "evaluate", "RUN")
    refuses("usage", "evaluate-log log", "--events")
    refuses("missing-column", words, "user_id")
    refuses("setting-out-of-range", f"{words} --within -1", "-1")
    refuses("no-logged-answers", "evaluate-log @ --events events.csv")
