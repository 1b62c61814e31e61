"""The page of sequence methods and the list of results hold the tables of the files that they cite."""

import re

import pytest

from docs import make_results_table, make_sequence_tables
from docs.make_sequence_tables import PAGE, ROOT, TABLES, marks, table


@pytest.mark.parametrize("store", TABLES)
def test_the_page_holds_the_tables_of_the_results(store: str) -> None:
    begin, end = marks(store)
    assert f"{begin}\n{table(store)}\n{end}" in PAGE.read_text(encoding="utf-8"), (
        "a table is old: run python docs/make_sequence_tables.py"
    )


UNKEPT = {"s3rec", "scratch"}
"""Cells whose rows were written without the epochs of their training; they are to be run again."""


@pytest.mark.parametrize("store", TABLES)
def test_every_line_prints_its_terms(store: str) -> None:
    """Of what learns: trials, seeds, best and last epoch, and precision (decision 33)."""
    head, _, *lines = (line.split(" | ") for line in table(store).splitlines())
    terms = [head.index(name) for name in ("trials", "seeds", "best / last epoch", "precision")]
    learned = [
        method for method in make_sequence_tables.in_order(store) if method.cell not in make_sequence_tables.COUNTED
    ]
    by_file = {(method.name, method.file): method.cell for method in learned}
    seen = 0
    for line in lines:
        cell = by_file.get((line[0].removeprefix("| "), line[-1].removesuffix(" |").strip("`")))
        if cell is not None:
            seen += 1
            assert all(line[at] for at in terms) or cell in UNKEPT, line
    assert seen == len(learned)


def test_the_list_of_results_is_made_of_their_commands() -> None:
    listed = make_results_table.table()
    assert listed in make_results_table.PAGE.read_text(encoding="utf-8"), "run python docs/make_results_table.py"
    assert [name for name in re.findall(r"experiments/[\w./-]+yaml", listed) if not (ROOT / name).exists()] == []


def test_every_file_that_the_page_names_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    cited = set(re.findall(r"`(?:results/|experiments/)?([a-z_]+/[\w.-]+\.(?:json|yaml))`", text))
    folders = {".json": "results", ".yaml": "experiments"}
    assert len(cited) >= 8 and [name for name in cited if not (ROOT / folders[name[-5:]] / name).exists()] == []


def test_rows_of_other_protocols_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line takes the figures with the history excluded, wherever a row has them."""
    row = {
        "cell": "a",
        "metrics": {"test": {"ndcg@10": 0.1}, "other": {"ndcg@10": 0.2}},
        "stderr": {"test": {}, "other": {}},
        "protocol": {"test": {"split": "test", "seen": "keep"}, "other": {"split": "test", "seen": "exclude"}},
    }
    monkeypatch.setattr(make_sequence_tables, "_read", lambda _: {"rows": [row, {**row, "cell": "b"}]})
    method = make_sequence_tables.Method("a", "x.json", "a")
    assert len(method.rows) == 1 and method.metrics(method.rows[0])[0] == {"ndcg@10": 0.2}
    with pytest.raises(AssertionError, match="no cell c"):
        _ = make_sequence_tables.Method("c", "x.json", "c").rows
