"""`diagnose`, `attention`, `report`: tables for a person, rows for a program, a page, a sentence for what is no run."""

import shutil
from pathlib import Path

import pytest

import fullrank as fr
from fullrank.analysis.diagnose import Diagnosis
from fullrank.data.events.store import Store
from fullrank.run import Run
from tests.cli.conftest import Ask, Call, Refuses


@pytest.fixture
def run(shop: Path, tmp_path: Path) -> Path:
    """`sasrec` in the folder of the test, a copy: diagnose writes into the run folder."""
    return Path(shutil.copytree(shop / "sasrec", tmp_path / "sasrec"))


def test_rows_are_printed_and_kept(run: Path, ask: Ask) -> None:
    found = ask("diagnose sasrec --users 40")
    assert found["users"] == 40 and found["split"] == "test" and found["left_out"] == {}
    assert found["out"] == "sasrec/diagnosis.jsonl"
    assert list(Diagnosis.load(run / "diagnosis.jsonl").rows) == found["rows"]
    assert Run.open(run).spec.recipe == "sasrec", "the run stays a run"


def test_a_person_reads_tables_with_explanations(run: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = call("diagnose sasrec --users 40")
    assert said.code == 0 and said.err == ""
    for word in ("collapse share", "what it says", "attn", "bound", "attention 1", "fair0.8@1", "fullrank report"):
        assert word in said.out
    assert max(map(len, said.out.splitlines())) <= 80


@pytest.mark.parametrize("name", ["popularity", "item_to_item"])
def test_a_baseline_leaves_out_what_it_has_not(name: str, shop: Path, tmp_path: Path, call: Call) -> None:
    said = call(f"diagnose @{name} --users 40 --out rows.jsonl")
    assert said.code == 0 and "left out: layers (it has no layers)" in said.out
    assert not (shop / name / "diagnosis.jsonl").exists()
    assert Diagnosis.load(tmp_path / "rows.jsonl").left_out()["bound"] == "it has no transformer blocks"


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        ("--users 1", "setting-out-of-range", "--users 1 must be at least 2"),
        ("--out rows.csv", "unknown-suffix", "'.csv'"),
    ],
)
def test_mistakes(words: str, code: str, name: str, run: Path, refuses: Refuses) -> None:
    refuses(code, f"diagnose sasrec {words}", name)
    assert not (run / "diagnosis.jsonl").exists()


def test_training_is_watched(tmp_path: Path, call: Call, refuses: Refuses) -> None:
    tiny = "--set model.dim=8 --set training.max_epochs=1"
    assert call(f"train sasrec --data @data {tiny} --out run --watch").code == 0
    assert "watch/collapse_share" in Run.open(tmp_path / "run").rows()[-1]
    refuses("baseline-without-training", "train popularity --data @data --out p --watch", "callbacks")


def test_overwriting_a_run_takes_its_diagnosis_away(run: Path, call: Call) -> None:
    assert call("diagnose sasrec --users 20").code == 0
    assert call("train popularity --data @data --out sasrec --overwrite").code == 0
    assert not (run / "diagnosis.jsonl").exists()


def test_shares_of_one_user(shop: Path, ask: Ask) -> None:
    found = ask("attention @sasrec")
    events = found["events"]
    assert found["split"] == "test" and {event["relevant"] for event in events} == {True, False}
    shares = [event["attention"][str(shop / "sasrec")] for event in events]
    assert all(len(some) == 1 for some in shares) and sum(some[0] for some in shares) == pytest.approx(1, abs=1e-4)
    case = fr.explain(shop / "sasrec", found["user"])
    assert [round(float(x), 9) for x in case.shares[0][::-1]] == [round(some[0], 9) for some in shares]
    catalog = Store.open(shop / "data").catalog
    assert [event["item"] for event in events] == catalog.external(case.items[::-1]).to_list()
    assert found["target"]["item"] == catalog.external([case.target])[0]


def test_two_runs_side_by_side(shop: Path, tmp_path: Path, call: Call) -> None:
    shutil.copytree(shop / "sasrec", tmp_path / "other")
    said = call(f"attention @sasrec other --user {Store.open(shop / 'data').user_ids[3]}")
    assert said.code == 0 and said.err == ""
    for word in ("A1 %", "B1 %", "relevant", "who chose next", "below 0"):
        assert word in said.out


def test_a_page_of_two_runs(tmp_path: Path, ask: Ask) -> None:
    found = ask("report @sasrec @popularity --users 30 --out new/page.html")
    assert found["out"] == "new/page.html" and "pareto" in found["figures"] and "attention-A" in found["figures"]
    assert found["left_out"]["attention-B"].startswith("popularity: it has no attention")
    assert [row["recipe"] for row in found["runs"]] == ["sasrec", "popularity"]
    assert found["runs"][1]["collapse_share"] == pytest.approx(1)
    text = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and 'id="pareto"' in text
    assert text.count("history excluded") >= 3, "below the table, the scatter and the curves of validation"


def test_a_person_reads_what_was_left_out(call: Call) -> None:
    said = call("report @item_to_item --users 30 --out p.html")
    assert said.code == 0 and "left out: " in said.out and "1 figures" not in said.out
    assert max(map(len, said.out.splitlines())) <= 80


def test_a_kept_evaluation_is_taken(ask: Ask, call: Call) -> None:
    assert call("evaluate @popularity --set seen=keep --out kept").code == 0
    found = ask("report @popularity --evaluation popularity=kept --users 30 --out p.html")
    kept = ask("evaluate @popularity --set seen=keep")
    assert found["runs"][0]["metrics"] == kept["metrics"]
