"""The tables of the planning page are those of the files that they cite; the formulas are right on small worlds."""

import re
from pathlib import Path

import pytest

from docs import make_plan
from docs.make_plan import Measured, Plan


def test_the_page_holds_the_tables_of_the_results() -> None:
    text = make_plan.PAGE.read_text(encoding="utf-8")
    for table in (make_plan.measured(), make_plan.computed()):
        assert table in text, "a table is old: run python docs/make_plan.py"
    cited = set(re.findall(r"`((?:results|docs|src)/[^`]+)`", text)) - {"docs/make_plan.py"}
    assert len(cited) >= 7 and [name for name in cited if not (make_plan.ROOT / name).exists()] == []


def test_figures_in_the_text_are_those_of_the_tables() -> None:
    text, m, large = make_plan.PAGE.read_text(encoding="utf-8"), Measured(), make_plan.WORLDS[-1]
    prose = " ".join(re.sub(r"<!-- (\w+):.*?<!-- end of \1 -->", "", text, flags=re.S).split())
    for told in (
        f"{m.table_bytes:,.0f} V", f"{m.table_seconds * 1e6:.2f} µs V", f"{m.index_bytes:.0f} V bytes",
        f"{m.index_seconds * 1e6:.0f} µs V", f"{m.prepare * 86_400 / 1e9:.0f} billion events",
        f"{m.epoch_over_products:.2f} times its products", f"{m.text_ratio:.2f} times that", f"{m.items:,} items",
        f"{large.step():.0f} seconds", f"{large.evaluated():.0f} core-hours", f"{large.spill() / 4096 / 1e9:.1f} GB",
        f"{large.events / 4096 / 1e6:.0f} million",
    ):  # fmt: skip
        assert told in prose, told


def test_large_data_still_says_what_is_taken_from_it() -> None:
    text = (make_plan.ROOT / make_plan.LARGE).read_text(encoding="utf-8")
    assert f"about {make_plan.SPILL} bytes an event" in text and f"{make_plan.ROW} bytes a row of an epoch" in text


def test_formulas() -> None:
    one = Plan(items=12_086, users=22_332, events=127_845)
    m = one.measured
    assert one.store() == 12 * one.events + 24 * one.users and one.table() == 4 * 4 * 64 * one.items
    assert one.exact() / m.rate == pytest.approx(m.products), "the products that were timed take what was timed"
    assert one.evaluated() * 3600 / 2 * one.users / 10_000 == pytest.approx(one.users / m.users)
    assert Plan(2e6, 1, 1).index_hours() == pytest.approx(2 * Plan(1e6, 1, 1).index_hours())
    assert Path(make_plan.PAGE).name == "planning.md"
