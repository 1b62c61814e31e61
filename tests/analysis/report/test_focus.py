"""The figures of attention to relevant events and of one case: their numbers are those of the diagnosis."""

from dataclasses import replace

import numpy as np
import pytest

from fullrank.analysis.diagnosis import Diagnosis
from fullrank.analysis.diagnostics.explain import ExampleUser
from fullrank.analysis.diagnostics.focus import Focus
from fullrank.analysis.report import Missing
from fullrank.analysis.report.collect import collect
from tests.analysis.report.conftest import HOSTILE, make


@pytest.fixture(scope="module")
def found(store, runs, tmp_path_factory) -> list:
    """Softmax and focused attention, and a baseline."""
    home = tmp_path_factory.mktemp("focused")
    focused = make(store, home / "focused", "model.encoder.attention={kind: focused, heads: 2}")
    return collect([runs["deep-2"], focused, runs["popularity"]], sample=60)


def test_shares_by_layer(found) -> None:
    made = Focus.figure(found)
    assert [row[0] for row in made.rows] == ["A deep-2"] * 2 + ["B focused"] * 2
    assert made.absent == ("Run C (popularity) is not shown: it has no attention that shows its weights.",)
    for row in made.rows:
        one = found["AB".index(row[0][0])]
        heads = [
            r["value"]
            for r in one.diagnosis.of("focus", "relevant")
            if r["layer"] == row[1] - 1 and r["head"] in (0, 1)
        ]
        assert row[2] == pytest.approx(np.mean(heads)) and 0 < row[2] < 1
        assert row[3] == pytest.approx(row[2] / one.diagnosis.value("focus", "even"))
    softmax, focused = made.rows[0], made.rows[2]
    assert softmax[4] == pytest.approx(softmax[2]) and softmax[4] + softmax[5] == pytest.approx(1, abs=1e-4)
    assert focused[4] + focused[5] < 0.9, "signed shares cancel"
    missing = Focus.figure(found[2:])
    assert isinstance(missing, Missing) and missing.why == made.absent[0]


def test_a_case_with_titles(found) -> None:
    made = ExampleUser.figure(found)
    assert len(made.absent) == 1
    assert made.headers == ("event", "item", "title", "related", "A layer 1", "A layer 2", "B layer 1", "B layer 2")
    assert [row[0] for row in made.rows] == list(range(1, len(made.rows) + 1))
    assert all(row[2].startswith("</title>") and "\x07" not in row[2] and HOSTILE not in row[2] for row in made.rows)
    for place in (0, 1):
        sums = np.abs([row[4 + place] for row in made.rows]).sum()
        assert sums == pytest.approx(1, abs=1e-4)
    assert any(row[6] < 0 for row in made.rows), "focused attention subtracts"
    assert "✓" in made.panels[0].svg and "✗" not in made.panels[0].svg, "an event that is not related is no error"
    assert {row[3] for row in made.rows} == {"yes", "no"}


def test_cases_of_other_data_do_not_mix(found) -> None:
    other = tuple(
        one | {"value": one["value"] + 1} if one["diagnostic"] == "case" and one["name"] == "user" else one
        for one in found[1].diagnosis.rows
    )
    made = ExampleUser.figure([found[0], replace(found[1], diagnosis=Diagnosis(other))])
    assert made.absent == ("Run B (focused) is not shown: its case is of other data.",)
    strange = tuple(
        one | {"value": 10_000} if one["diagnostic"] == "case" and one["name"] == "item" else one
        for one in found[0].diagnosis.rows
    )
    assert isinstance(ExampleUser.figure([replace(found[0], diagnosis=Diagnosis(strange))]), Missing)


def test_a_run_that_reads_less_far_back_leaves_the_rest_empty(found) -> None:
    most = max(r["index"] for r in found[1].diagnosis.of("case", "item"))
    shorter = tuple(one for one in found[1].diagnosis.rows if one["diagnostic"] != "case" or one["index"] != most)
    made = ExampleUser.figure([found[0], replace(found[1], diagnosis=Diagnosis(shorter))])
    assert not made.absent
    assert made.rows[-1][4] is not None and made.rows[-1][6:] == (None, None)
