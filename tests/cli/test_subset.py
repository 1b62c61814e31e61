"""`subset`: what is written, what is said, and mistakes."""

from pathlib import Path

from fullrank.data.events.store import Store
from tests.cli.conftest import Ask, Call, Refuses


def test_a_share_and_hidden_items(tmp_path: Path, ask: Ask, call: Call) -> None:
    options = "--share 0.5 --hide-items 0.1 --seed 1 --out part"
    said = ask(f"subset @data {options}")
    part = Store.open(tmp_path / "part", verify=True)
    assert said["counts"]["users"] == part.num_users and said["hidden_items"] > 0
    told = call(f"subset @data {options} --overwrite").out
    for words in ("items hidden", "popularity gini", "events per user mean", "fullrank train sasrec --data"):
        assert words in told, words


def test_mistakes(tmp_path: Path, refuses: Refuses) -> None:
    refuses("setting-out-of-range", "subset @data --share 2 --out part", "--share 2")
    assert not (tmp_path / "part").exists()
    refuses("wrong-folder", "subset @sasrec --share 0.5 --out part", "sasrec", "store")
