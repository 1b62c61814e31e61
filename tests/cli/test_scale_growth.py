"""`fullrank scale growth`: the JSON, what is said, the page, and mistakes in one sentence."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fullrank.cli import main
from fullrank.data.events.store import Store
from fullrank.scaling.growth import catalogue_growth
from tests.cli.conftest import Ask, Call, Refuses


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store whose folder is called like markup."""
    place = tmp_path_factory.mktemp("growth") / "<b>shop"
    assert main(f"prepare planted --set source.users=120 --set source.items=50 --out {place}".split()) == 0
    return place


def test_it_ends_with_the_numbers(data: Path, call: Call) -> None:
    said = call(f"scale growth '{data}' --json --seed 2 --dim 16")
    store = Store.open(data)
    assert said.code == 0 and said.json["source"] == str(data) and said.json["fingerprint"] == store.fingerprint
    assert said.json == json.loads(json.dumps(catalogue_growth(store, seed=2, dim=16).dump()))
    last = said.json["points"][-1]
    assert (last["users"], last["interactions"]) == (store.num_users, store.num_events)
    assert said.json["parameters"][0]["with_table"][-1] == 33_000 + 16 * len(np.unique(store.items))
    assert sum(one["items"] for one in said.json["events_per_item"]["histogram"]) == last["items"]


def test_what_is_said(data: Path, call: Call) -> None:
    said = call(f"scale growth '{data}'")
    text = " ".join(said.out.split())
    assert said.code == 0 and "table + 33K table + 4M table + 1B" in text
    for words in ("is no extrapolation", "R2 of the logarithms", "A model of text items has the rest alone", "Gini"):
        assert words in text, words
    law = catalogue_growth(data).law
    assert law is not None and f"interactions^{law.exponent:.3f}" in text


def test_the_page_needs_nothing(data: Path, tmp_path: Path, ask: Ask) -> None:
    said = ask(f"scale growth '{data}' --out page")
    kept = json.loads((tmp_path / "page" / "growth.json").read_text())
    assert kept == {k: v for k, v in said.items() if k != "out"}
    page = (tmp_path / "page" / "report.html").read_text()
    assert all(f'<section id="{name}"' in page for name in ("growth", "parameters", "popularity"))
    pictures = re.findall(r'<svg [^>]*aria-label="([^"]*)"', page)
    assert len(pictures) == 4 and all(len(text) > 30 for text in pictures)
    assert page.count("<figcaption>") == 3 == page.count("<details>")
    assert "<h2>The data</h2>" in page and "The runs" not in page and "Left out" not in page
    assert f"{Store.open(data).num_events:,}" in page
    assert not re.search(r"<script|https?://(?!www\.w3\.org)|<b>shop", page), (
        "nothing is fetched or runs, names are text"
    )


def test_a_store_too_small_for_a_law_has_its_page(call: Call, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("user_id,item_id,timestamp\n" + "".join(f"a,i{i},{i}\n" for i in range(4)))
    assert call("prepare events.csv --out data").code == 0
    said = call("scale growth data --out page --json")
    assert said.code == 0 and said.json["law"] is None and "points are too few" in " ".join(said.err.split())
    assert "too few points for a power law" in (tmp_path / "page" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        ("DATA --out DATA/manifest.json", "inside-a-store", "manifest.json"),
    ],
)
def test_mistakes_are_one_sentence(words: str, code: str, name: str, data: Path, refuses: Refuses) -> None:
    refuses(code, f"scale growth {words.replace('DATA', str(data))}", name)


def test_a_store_of_impressions(call: Call, refuses: Refuses) -> None:
    assert call("prepare-impressions planted_clicks --set source.rows=200 --out clicks").code == 0
    refuses("store-of-other-problem", "scale growth clicks", "store of impressions", "fullrank prepare")
