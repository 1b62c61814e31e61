"""`demo`: the whole way, small here; its own folder is replaced and no other."""

import re
from pathlib import Path

import pytest

from fullrank.cli import demo
from tests.cli.conftest import Ask, Call, Refuses


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("model.dim=8", "training.max_epochs=1")
    monkeypatch.setattr(demo, "MODELS", {name: few if set_ else () for name, set_ in demo.MODELS.items()})


@pytest.mark.slow
def test_the_demo_ends_with_a_table_and_runs_again(small: None, ask: Ask, call: Call) -> None:
    said = ask("demo --out demo")
    found = said
    assert list(found["metrics"]) == ["popularity", "item_to_item", "gru4rec", "sasrec_plus"]
    assert all(list(row) == ["ndcg@10", "recall@10", "fair0.8@1", "coverage@10"] for row in found["metrics"].values())
    assert found["example"]["recommendations"][0]["title"]
    again = call("demo --out demo")
    assert again.code == 0 and "What to try next" in again.out and "SASRec++" in again.out


@pytest.mark.slow
def test_the_commands_it_proposes_work(small: None, call: Call) -> None:
    out = call("demo --out demo").out
    commands = re.findall(r"^  fullrank (.*)", out.split("What to try next:")[1], re.MULTILINE)
    assert len(commands) >= 4
    shown, again = (_list(text) for text in (out.split("SASRec++ recommends")[1], call(commands[1]).out))
    assert shown == again and len(shown) == 5, "the list that it prints is that of the command it prints"
    for line in commands:
        if " data/mine" not in line:
            assert call(line).code == 0, line


def _list(text: str) -> list[list[str]]:
    """Rank, item and score of the rows of the first table in a text."""
    rows = (line.split() for line in text.splitlines())
    return [row[:3] for row in rows if len(row) > 3 and row[0].isdecimal()][:5]


def test_a_folder_of_others_is_left_alone(refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    refuses("folder-of-others", f"demo --out {tmp_path}", tmp_path, demo.MARK)
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("mine", ["notes.txt", "sasrec_mine"])
def test_what_the_demo_did_not_write_is_never_deleted(mine: str, refuses: Refuses, tmp_path: Path) -> None:
    for name in (*demo.MODELS, "data"):
        (tmp_path / name).mkdir()
    (tmp_path / demo.MARK).write_text("{}")
    (tmp_path / mine).mkdir() if "." not in mine else (tmp_path / mine).write_text("precious")
    refuses("folder-of-others", "demo --out .", f" {mine};")
    assert {entry.name for entry in tmp_path.iterdir()} == {*demo.MODELS, "data", demo.MARK, mine}


def test_its_own_leftovers_are_replaced_and_links_not_followed(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "demo", tmp_path / "elsewhere"
    (out / "gru4rec").mkdir(parents=True)
    (out / ".data.123.part").mkdir()
    (out / demo.MARK).write_text("{}")
    elsewhere.mkdir()
    (elsewhere / "events").write_text("precious")
    (out / "data").symlink_to(elsewhere)
    demo._claim(out)
    assert [entry.name for entry in out.iterdir()] == [demo.MARK] and (elsewhere / "events").exists()
