"""`fullrank scale fit` and `fullrank scale advise`: the JSON, the page, and mistakes in one sentence."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fullrank.analysis.scaling.growth import catalogue_growth
from fullrank.cli import main
from fullrank.data.events.store import Store
from tests.cli.conftest import Ask, Call, Refuses

FEW = "--resamples 20"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs on a sigmoid of their FLOPs: five sizes on seven data sets, three moments each."""
    lines = ["run,dataset,n_total_params,n_nonemb_params,interactions,epoch_flops,ndcg_ep1,ndcg_ep2,ndcg_ep4"]
    draw = np.random.default_rng(0)
    for n in np.geomspace(1e5, 1e8, 5):
        for t in np.geomspace(1e4, 1e7, 7):
            best = 0.2 - 4 * n**-0.3 - 3 * t**-0.4 + 3e-4 * draw.standard_normal()
            lines.append(f"{n:.0f}-{t:.0f},<b>{t:.0f},{n:.0f},{n / 2:.0f},{t:.0f},{6 * n * t},"
                         + ",".join(f"{best * (1 - 0.4 / e):.6f}" for e in (1, 2, 4)))  # fmt: skip
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_fit_ends_with_the_parameters(runs: Path, call: Call) -> None:
    said = call(f"scale fit runs.csv --form sigmoid --reference srt --json {FEW}")
    assert said.code == 0 and set(said.json["parameters"]) == {"a", "k", "x0", "c"}
    assert set(said.json["intervals"]) == {"a", "k", "x0", "c", "asymptote"}
    assert said.json["reference"]["parameters"]["x0"] == 24.44 and "rmse" in said.err
    spoken = call(f"scale fit runs.csv --form power {FEW}")
    assert spoken.code == 0 and "alpha" in spoken.out and "without the 5 runs of the largest data" in spoken.out


def test_help_without_a_verb_and_mistakes_before_any_work(runs: Path, call: Call, refuses: Refuses) -> None:
    said = call("scale")
    assert said.code == 0 and "advise" in said.out and "Error" not in said.err
    refuses("usage", "scale fit runs.csv --seed -1", "'--seed'")
    refuses("not-a-folder", f"scale fit runs.csv --out runs.csv {FEW}", "runs.csv")


@pytest.mark.slow
def test_fit_writes_a_page_that_needs_nothing(runs: Path, call: Call, tmp_path: Path) -> None:
    said = call(f"scale fit runs.csv --form power --out page --json {FEW}")
    assert said.code == 0
    kept = json.loads((tmp_path / "page" / "fit.json").read_text())
    assert kept["parameters"] == said.json["parameters"] and kept["held_out"] == said.json["held_out"]
    page = (tmp_path / "page" / "report.html").read_text()
    assert all(
        f'<section id="{name}"' in page for name in ("compute", "frontier", "extrapolation", "surface", "held-out")
    )
    assert "Left out" not in page and page.count("<svg") == 9
    assert not re.search(r"<script|https?://(?!www\.w3\.org)|<b>1", page), "nothing is fetched or runs, names are text"


@pytest.mark.slow
def test_a_page_of_losses(runs: Path, call: Call) -> None:
    """The metric less 1 grows downwards; a sigmoid of it is left out with the reason."""
    header, *lines = runs.read_text().splitlines()
    turned = [",".join([*w[:6], *(f"{1 - float(v):.6f}" for v in w[6:])]) for w in (line.split(",") for line in lines)]
    losses = runs.with_name("losses.csv")
    losses.write_text("\n".join([header.replace("ndcg", "loss"), *turned]) + "\n")
    said = call(f"scale fit losses.csv --form loss --out page --json {FEW}")
    assert said.code == 0 and said.json["metric"] == "loss" and said.json["parameters"]["A"] > 0
    assert "left out: A line or a sigmoid" in said.err
    advice = call(f"scale advise losses.csv --flops 1e12 --form loss --json {FEW}")
    assert advice.code == 0 and 0.8 < advice.json["metric"]["value"] < 1


@pytest.mark.slow
def test_advise(runs: Path, call: Call) -> None:
    said = call(f"scale advise runs.csv --flops 1e13 --json {FEW}")
    assert said.code == 0 and said.json["flops"] == 1e13
    for name in ("parameters", "data", "epochs", "metric"):
        low, high = said.json[name]["interval"]
        assert low <= high and said.json[name]["value"] > 0, name
    spoken = call(f"scale advise runs.csv --flops 1e30 {FEW}")
    assert spoken.code == 0 and "extrapolation" in " ".join(spoken.out.split()) and "interactions T" in spoken.out


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        ("fit runs.csv --form sigmiod", "unknown-form", "did you mean 'sigmoid'"),
        ("fit runs.csv --flops-col spent", "missing-column", "no column 'spent'"),
        ("fit runs.csv --form linear --reference srt", "option-without-effect", "'linear'"),
        ("fit runs.csv --reference chinchilla", "unknown-reference", "allowed: srt"),
        ("advise runs.csv --flops -3", "setting-out-of-range", "--flops -3.0 must be above 0"),
        ("advise runs.csv --flops 1e12 --form linear", "unknown-form", "--form linear"),
    ],
)
def test_mistakes_are_one_sentence(words: str, code: str, name: str, runs: None, refuses: Refuses) -> None:
    refuses(code, f"scale {words}", name)


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


def test_a_page_inside_the_store_is_refused(data: Path, refuses: Refuses) -> None:
    refuses("inside-a-store", f"scale growth {data} --out {data}/manifest.json", "manifest.json")


def test_a_store_of_impressions(call: Call, refuses: Refuses) -> None:
    assert call("prepare-impressions planted_clicks --set source.rows=200 --out clicks").code == 0
    refuses("store-of-other-problem", "scale growth clicks", "store of impressions", "fullrank prepare")
