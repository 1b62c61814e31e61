"""The figures of the documentation are drawn from files in results/, here from generated ones."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fullrank.sweeps.sweep import Grid

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/make_figures.py with a results folder that holds generated rows of RankElastor's grids."""
    spec = importlib.util.spec_from_file_location("make_figures", ROOT / "docs" / "make_figures.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    for grid in ("ladder", "ablation", "headline"):
        rows = generated(Grid.read(ROOT / "experiments" / "rankelastor" / f"{grid}.yaml"))
        path = tmp_path / "results" / "rankelastor" / f"2026-01-02_2cpu_{grid}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"rows": rows}))
    return module


def generated(grid: Grid) -> list[dict[str, Any]]:
    """A row per job; the n-th cell has n thousand parameters and an AUC of .7 + n / 1000."""
    cells = [cell.name for cell in grid.expand()]
    rows: list[dict[str, Any]] = []
    for job in grid.jobs():
        n = cells.index(job.cell)
        size = {"dense_parameters": 1000 * n, "flops": 2000 * n}
        rows.append({"cell": job.cell, "seed": job.seed, "size": size, "metrics": {"test": {"auc": 0.7 + n / 1000}}})
    return [*rows, {"cell": cells[0], "seed": 9, "error": "out of memory", "metrics": {}}]


def test_a_ladder_has_its_rungs_and_the_base(figures: ModuleType) -> None:
    panels = figures.rankelastor_ladder().axes
    assert len(panels) == 4
    for axes in panels:
        lines = axes.get_lines()
        assert [line.get_label() for line in lines] == ["RankElastor", "RankMixer"]
        for line in lines:
            x, y = line.get_data()
            assert len(x) == 5 and list(x) == sorted(x)
            assert list(y) == pytest.approx([0.7 + n / 1e6 for n in x])
    bases = set.intersection(*({*axes.get_lines()[1].get_xdata()} for axes in panels))
    assert len(bases) == 1, "the base is a rung of every ladder"


def test_the_ablation_shows_every_seed_and_the_mean(figures: ModuleType) -> None:
    (axes,) = figures.rankelastor_ablation().axes
    points = [line for line in axes.get_lines() if line.get_linestyle() == "None"]
    assert [len(line.get_xdata()) for line in points] == [3, 3, 3, 3]
    assert [label.get_text() for label in axes.get_xticklabels()][-1] == "full\nGLU"


def test_efficiency_shows_every_ranker_twice(figures: ModuleType) -> None:
    panels = figures.rankelastor_efficiency().axes
    assert [len(axes.get_lines()) for axes in panels] == [8, 8]
    assert panels[0].get_lines()[7].get_xdata()[0] == 2 * panels[1].get_lines()[7].get_xdata()[0] == 14_000


def test_a_figure_without_results_is_left_out_and_named(
    figures: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    figures.main()
    drawn = {path.stem for path in (tmp_path / "docs" / "images").glob("*.svg")}
    assert drawn == {"rankelastor_ladder", "rankelastor_ablation", "rankelastor_efficiency"}
    said = capsys.readouterr().out
    assert "sprint_depth: not drawn" in said and "plr_dial: not drawn" in said
