"""`attention`: a table for a person, shares for a program, two runs side by side, and a sentence for what is none."""

import shutil
from pathlib import Path

import pytest

import fullrank as fr
from fullrank.data.events.store import Store
from tests.cli.conftest import Ask, Call


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
