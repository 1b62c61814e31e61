"""`report`: a page from run folders, and a sentence for what is none."""

from pathlib import Path

import pytest

from tests.cli.conftest import Ask, Call


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
