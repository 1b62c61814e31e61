"""`subset`: what is written, what is said, and mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fullrank.data.events.store import Store

if TYPE_CHECKING:
    from conftest import Call, Refuses


def test_a_share_and_hidden_items(shop: Path, tmp_path: Path, call: Call) -> None:
    options = ("--share", 0.5, "--hide-items", 0.1, "--seed", 1, "--out", tmp_path / "part")
    said = call("subset", shop / "data", *options, "--json")
    assert said.code == 0, said.err
    part = Store.open(tmp_path / "part", verify=True)
    assert said.json["counts"]["users"] == part.num_users and said.json["hidden_items"] > 0
    told = call("subset", shop / "data", *options, "--overwrite").out
    for words in ("items hidden", "popularity gini", "events per user mean", "fullrank train sasrec --data"):
        assert words in told, words


def test_mistakes(shop: Path, tmp_path: Path, refuses: Refuses) -> None:
    refuses("setting-out-of-range", ["subset", shop / "data", "--share", 2, "--out", tmp_path / "part"], "--share 2")
    assert not (tmp_path / "part").exists()
    refuses("wrong-folder", ["subset", shop / "sasrec", "--share", 0.5, "--out", tmp_path / "part"], "sasrec", "store")
