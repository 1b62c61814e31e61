"""`report`: a page from run folders, and a sentence for what is none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Call, Refuses


def test_a_page_of_two_runs(call: Call, shop: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    found = call("report", shop / "sasrec", shop / "popularity", "--users", 30, "--out", out, "--json").json
    assert found["out"] == str(out) and "pareto" in found["figures"] and "attention-A" in found["figures"]
    assert found["left_out"]["attention-B"].startswith("popularity: it has no attention")
    assert [row["recipe"] for row in found["runs"]] == ["sasrec", "popularity"]
    assert found["runs"][1]["collapse_share"] == pytest.approx(1)
    text = out.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and 'id="pareto"' in text
    assert text.count("history excluded") >= 3, "below the table, the scatter and the curves of validation"


def test_a_person_reads_what_was_left_out(call: Call, shop: Path, tmp_path: Path) -> None:
    said = call("report", shop / "item_to_item", "--users", 30, "--out", tmp_path / "p.html")
    assert said.code == 0 and "left out: " in said.out and "1 figures" not in said.out
    lines = [line for line in said.out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80


def test_a_kept_evaluation_is_taken(call: Call, shop: Path, tmp_path: Path) -> None:
    assert call("evaluate", shop / "popularity", "--set", "seen=keep", "--out", tmp_path / "kept").code == 0
    words = ("--users", 30, "--out", tmp_path / "p.html", "--json")
    found = call("report", shop / "popularity", "--evaluation", f"popularity={tmp_path / 'kept'}", *words).json
    kept = call("evaluate", shop / "popularity", "--set", "seen=keep", "--json").json
    assert found["runs"][0]["metrics"] == kept["metrics"]


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["--split", "tset"], "unknown-value", "did you mean 'test'"),
        (["--out", "page.pdf"], "unknown-suffix", "'.pdf'"),
        (["--evaluation", "popularity"], "not-name-and-value", "'popularity'"),
        (["--evaluation", "popularity=nowhere"], "not-an-evaluation", "nowhere/evaluation.json"),
        (["--set", "sen=keep"], "unknown-setting", "did you mean 'seen'"),
        (["--set", "protocol=sampled"], "needs-full-protocol", "--set protocol=full"),
        (["--data", "nowhere"], "missing-folder", "'nowhere'"),
        (["--users", "1"], "sample-too-small", "at least 2 users"),
    ],
)
def test_mistakes(words: list[str], code: str, name: str, refuses: Refuses, shop: Path, tmp_path: Path) -> None:
    given = words if "--out" in words else [*words, "--out", tmp_path / "p.html"]
    refuses(code, ["report", shop / "popularity", *given], name)
    assert not (tmp_path / "p.html").exists()


def test_folders_that_are_no_runs(refuses: Refuses, tmp_path: Path, shop: Path) -> None:
    out = ("--out", tmp_path / "p.html")
    refuses("not-a-run", ["report", tmp_path / "nothing", *out], tmp_path / "nothing", "manifest.json")
    refuses("not-a-run", ["report", shop / "data", *out], shop / "data", "fullrank train")
    refuses("given-twice", ["report", shop / "popularity", shop / "popularity", *out], shop / "popularity")
    refuses("usage", ["report", *out], "missing argument", "RUN")
    refuses("usage", ["report", shop / "popularity"], "missing option '--out'")
