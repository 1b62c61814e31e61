"""The answer at the top of a page: its order, paired differences, recall by popularity, lists of five users, words."""

import re
from dataclasses import replace

import numpy as np
import pytest

import fullrank as fr
from fullrank.analysis.diagnosis import Diagnosis, row
from fullrank.analysis.diagnostics.evaluation import PERCENTS, RankingDifferences, RetrievalDifferences, gain
from fullrank.analysis.diagnostics.examples import ExampleLists
from fullrank.analysis.diagnostics.recall_bands import RecallByPopularity, band_error, band_recall
from fullrank.analysis.report import Missing, TableCell
from fullrank.analysis.report.answer import retrieval_answer, run_facts
from fullrank.analysis.report.collect import collect
from fullrank.analysis.report.page import Report
from fullrank.analysis.report.report import report
from fullrank.analysis.report.results import RunResult, is_baseline, reference_run
from fullrank.evaluation.statistics import popularity_bands
from tests.analysis.report.conftest import Page, make
from tests.analysis.report.test_ranking import RANKERS, written
from tests.training.clicks import shop


@pytest.fixture(scope="module")
def found(runs, store, tmp_path_factory) -> list:
    """Two trained runs and two baselines."""
    links = make(store, tmp_path_factory.mktemp("links") / "links", recipe="item_to_item")
    return collect([runs["deep-2"], runs["gru"], runs["popularity"], links], sample=30)


@pytest.fixture(scope="module")
def page(found) -> Report:
    return report([one.run for one in found], users=30)


@pytest.fixture(scope="module")
def rankers(tmp_path_factory) -> dict:
    """Logistic regression, DCNv2 and RankMixer with drawn weights."""
    home = tmp_path_factory.mktemp("rankers")
    impressions = shop(home / "data")
    return {name: written(impressions, home / name, *RANKERS[name]) for name in ("lr", "dcnv2", "rankmixer")}


def test_the_page_is_in_the_order_of_who_decides(page) -> None:
    ids = Page(page.html).ids()
    wanted = ["runs", "differences", "recall_bands", "examples", "pareto", "bands", "internals", "spectrum", "run-A"]
    assert [name for name in ids if name in (*wanted, "left-out", "glossary")] == [*wanted, "left-out", "glossary"]
    said = Page(page.html).said()
    places = [said.index(word) for word in ("is the most accurate", "Data", "Protocol", "Date", "Cost", "parameters")]
    assert places == sorted(places), "answer, what it rests on, table"
    assert page.sentences[0].split(" is the most accurate")[0].startswith(("A (", "B (", "C (", "D ("))


def test_models_from_inside_are_folded_and_what_is_missing_stands_at_the_end(page) -> None:
    before, _, rest = page.html.partition('<details class="internals"')
    folded, _, after = rest.partition('id="left-out"')
    for one in page.internals:
        assert isinstance(one, Missing) or (f'id="{one.name}"' in folded and f'id="{one.name}"' not in before)
    assert "is not shown" not in before + folded, "reasons stand in one place"
    for title, why in page.left_out:
        assert title in Page(page.html).said() and why.split()[0] in after
    assert any("it has no layers" in why for _, why in page.left_out)


def test_no_table_of_the_answer_can_be_cut(page) -> None:
    """Such a table has few columns, whose words wrap; intervals stand below their numbers."""
    tables = re.findall(r'<table class="whole">.*?</table>', page.html, re.S)
    assert len(tables) == 3
    for table in tables:
        heads = re.findall(r"<th ", table)
        assert 3 <= len(heads) <= 9, "at 1200 pixels a column of nine has 130"
        values = [re.sub(r'<span class="below">.*?</span>', "", cell) for cell in re.findall(r"<td.*?</td>", table)]
        words = [re.sub(r"<[^>]*>", "", value) for value in values]
        assert max(len(word) for line in words for word in line.split()) <= 16, "no word is wider than its column"
        assert all('data-label="' in cell for cell in re.findall(r"<td (?!.*chip).*?</td>", table))
    rule = re.search(r"\.whole th, \.whole td \{([^}]*)\}", page.html)
    assert rule is not None and "white-space: normal" in rule[1]


def test_differences_are_those_of_compare(found) -> None:
    base = next(one for one in found if one.key == found[0].reference)
    baselines = [one for one in found if is_baseline(one)]
    assert [one.name for one in baselines] == ["popularity", "links"]
    assert base is max(baselines, key=lambda one: one.metric("ndcg@10") or 0) and base.against == {}
    made = RetrievalDifferences.figure(found)
    assert made.rows[0][0] == TableCell(base.label, "the reference")
    others = [one for one in found if one is not base]
    for line, one in zip(made.rows[1:], others, strict=True):
        assert list(one.against) == ["ndcg@10", "fair0.8@1", "coverage@10"]
        for place, (name, difference) in enumerate(one.against.items()):
            assert difference == fr.compare(base.evaluation, one.evaluation, name)
            cell, p = line[1 + 2 * place], line[2 + 2 * place]
            assert cell.value == f"{one.metric(name) - base.metric(name):+.4f}"  # type: ignore[operator]
            assert f"{difference.interval[0]:+.4f} to {difference.interval[1]:+.4f}" in cell.below
            assert p == ("< 0.001" if difference.p < 0.001 else f"{difference.p:.2g}")


def test_rankers_are_compared_with_the_linear_one(rankers) -> None:
    some = collect([rankers["dcnv2"], rankers["lr"]], sample=40)
    assert reference_run(some) is some[1] or some[1].reference == "B"
    assert some[0].against["auc"] == fr.compare(some[1].evaluation, some[0].evaluation, "auc")
    made = RankingDifferences.figure(some)
    assert len(made.rows) == 2 and len(made.headers) == 5
    assert "%" not in made.rows[1][1].below, "an AUC has no true zero that shares could be of"


def test_without_a_baseline_the_first_run_is_the_reference(found) -> None:
    pair = collect([found[1].run, found[0].run], sample=30)
    assert [one.reference for one in pair] == ["A", "A"]
    made = RetrievalDifferences.figure(pair)
    assert "since no baseline is among them" in made.caption
    alone = RetrievalDifferences.figure(found[:1])
    assert isinstance(alone, Missing) and "the report has one" in alone.why
    apart = RetrievalDifferences.figure([replace(one, reference=None, against={}) for one in found])
    assert isinstance(apart, Missing) and "different users" in apart.why


def test_recall_by_popularity_is_that_of_the_users_in_the_band(found, store) -> None:
    made = RecallByPopularity.figure(found)
    assert made.open and made.headers == ("run", "head", "mid", "tail")
    targets = store.eval_set("test").next_items
    band = popularity_bands(store.catalog.popularity)[targets]
    for line, one in zip(made.rows, found, strict=False):
        lists = one.evaluation.per_user.lists
        hit = (lists[:, :10] == targets[:, None]).any(1)
        means = [hit[band == place].mean() for place in range(3)]
        assert list(band_recall(one).values()) == pytest.approx(means)
        assert [cell.value for cell in line[1:]] == [f"{mean:.4f}" for mean in means]
        tail = hit[band == 2].astype(float)
        assert band_error(one, "tail") == pytest.approx(2 * tail.std(ddof=1) / len(tail) ** 0.5)
    assert made.rows[-1][1:] == tuple(np.bincount(band, minlength=3).tolist())


def test_without_slices_recall_by_popularity_is_left_out(found) -> None:
    bare = replace(found[0], evaluation=fr.evaluate(found[0].run, set=["slices=false"]))
    made = RecallByPopularity.figure([bare])
    assert isinstance(made, Missing) and "slices=false" in made.why and band_recall(bare) == {}
    assert list(retrieval_answer([bare])), "the sentences do without them"


def test_lists_are_those_that_were_evaluated(found, store) -> None:
    made, again = ExampleLists.figure(found), ExampleLists.figure(list(found))
    assert made == again and len(made.users) == 5
    whole = store.eval_set("test")
    for example in made.users:
        user = int(np.flatnonzero((store.user_ids.cast(str) == example.user).to_numpy())[0])
        one = whole.take(whole.users == user)
        (history,) = one.histories.items.last(5)
        assert len(example.history) == len(history) and len(example.chosen) == 1
        assert [each.key for each in example.lists] == ["A", "B", "C", "D"]
        for each, run in zip(example.lists, found, strict=True):
            rows = run.evaluation.per_user
            (place,) = np.flatnonzero(rows.users == user)
            items = rows.lists[place, :10]
            assert len(each.items) == 10 and all(title.startswith("</title>") for title, _ in each.items)
            assert [hit for _, hit in each.items] == (items == one.next_items[0]).tolist()


def test_lists_do_not_depend_on_the_runs(found) -> None:
    all_, two = ExampleLists.figure(found), ExampleLists.figure(found[1:3])
    assert [one.user for one in all_.users] == [one.user for one in two.users]
    without = ExampleLists.figure([replace(one, store=None) for one in found])
    assert isinstance(without, Missing) and "not at hand" in without.why


def test_at_most_six_runs_stand_side_by_side(found) -> None:
    many = [replace(found[0], key=key) for key in "EFGHI"]
    made = ExampleLists.figure([*found, *many])
    assert {len(one.lists) for one in made.users} == {6}
    assert "the 6 most accurate are shown" in made.caption


def collapsed(one) -> RunResult:
    rows = [each for each in one.diagnosis.rows if each["name"] not in ("collapse_share", "popularity_spearman")]
    rows += [row("spectrum", "collapse_share", 0.84), row("spectrum", "popularity_spearman", 0.7)]
    return replace(one, diagnosis=Diagnosis(tuple(rows)))


def test_collapse_is_told_as_what_it_costs_whom(found) -> None:
    plain = [sentence for sentence in retrieval_answer(found) if sentence.startswith("Collapse")]
    some = [collapsed(found[0]), *found[1:]]
    told = [
        sentence for sentence in retrieval_answer(some) if sentence.startswith("Collapse: 84% of the variance of A")
    ]
    assert len(told) == 1 and told[0] not in plain
    assert "Spearman correlation with popularity 0.70" in told[0]
    tails = {one.key: band_recall(one)["tail"] for one in some}
    best = max(tails, key=lambda key: tails[key])
    if tails[best] > tails["A"]:
        assert f"{tails['A']:.1%} of them find it with A, {tails[best]:.1%} with {best}" in told[0]
    else:
        assert "costs nobody here" in told[0]
    (alone,) = (sentence for sentence in retrieval_answer(some[:1]) if sentence.startswith("Collapse"))
    assert f"{tails['A']:.1%} find it." in alone, "without another run nobody can say what it costs"
    assert next(iter(retrieval_answer(some))).split(",")[0].count("is the most accurate") == 1, "no alarm comes first"


def test_facts_say_what_the_numbers_rest_on(found, store) -> None:
    facts = dict(run_facts(found, "test"))
    assert facts["Data"].startswith(f"store: {store.num_users} users") and "20" in facts["Data"].split(",")[-1]
    assert "Leave-one-out, test split: 120 users" in facts["Protocol"] and "history excluded" in facts["Protocol"]
    assert re.search(r"\d{4}-\d\d-\d\d by fullrank", facts["Date"])
    assert facts["Cost"].startswith("Under 1 s of training") and "C under 1 s" in facts["Cost"]
    assert "hold no times" in dict(run_facts([replace(found[0], log=())], "test"))["Cost"]


def test_gain_counts_clicks_from_the_highest_prediction_on() -> None:
    rng = np.random.default_rng(0)
    p, labels = rng.random(200), (rng.random(200) < 0.3).astype(float)
    made = gain(p, labels)
    for (share, lift, precision), percent in zip(made, PERCENTS, strict=True):
        first = sorted(range(200), key=lambda i: -p[i])[: 2 * percent]
        clicked = sum(labels[i] for i in first)
        assert share == pytest.approx(clicked / labels.sum()) and precision == pytest.approx(clicked / len(first))
        assert lift == pytest.approx(precision / labels.mean())
