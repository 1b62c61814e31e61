"""The diagnostic of docs/adding.md, followed literally: a package of its own, found by its entry point."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import fullrank as fr
from folders import distribution
from fullrank.analysis import diagnostics as room
from fullrank.analysis.diagnostics import find_sections
from markets import planted_store

PAGE = Path(__file__).resolve().parent.parent / "docs" / "adding.md"
SECTION = PAGE.read_text(encoding="utf-8").partition("\n## A diagnostic\n")[2].partition("\n## ")[0]


def block(language: str, number: int = 0) -> str:
    """A fenced block of the section."""
    return re.findall(rf"^```{language}\n(.*?)^```", SECTION, flags=re.DOTALL | re.MULTILINE)[number]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an installer would do with the page's files: the module, and metadata that names the entry point."""
    folder = tmp_path_factory.mktemp("site")
    project = tomllib.loads(block("toml"))["project"]
    path = re.search(r"^`(my_diagnostic/\w+\.py)`:", SECTION, flags=re.MULTILINE)
    assert path is not None
    file = folder / path[1]
    file.parent.mkdir()
    (file.parent / "__init__.py").write_text("")
    file.write_text(block("python"), encoding="utf-8")
    distribution(folder, project["name"], project["entry-points"])
    return folder


def python(site: Path, *arguments: str) -> str:
    """What a Python with the package on its path prints last."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, [env.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return (done.stdout.splitlines() or [""])[-1]


@pytest.mark.process
def test_the_pages_diagnostic_has_rows_and_a_figure(site: Path, tmp_path: Path) -> None:
    store = planted_store(tmp_path / "store", users=80)
    run = fr.train("popularity", store, tmp_path / "run", progress=False)
    found = json.loads(python(site, "-m", "fullrank", "diagnose", str(run.path), "--users", "30", "--json"))
    rows = [one for one in found["rows"] if one["diagnostic"] == "reach"]
    assert [(one["name"], one["value"]) for one in rows] == [("items", 10), ("share", 0.25)], "popularity has one list"
    out = tmp_path / "page.html"
    made = json.loads(python(site, "-m", "fullrank", "report", str(run.path), "--out", str(out), "--json"))
    assert made["figures"][-2:] == ["reach", "spectrum"], "behind those of fullrank, before the folded ones"
    assert (
        "How many items reach a top ten" in out.read_text() and "share of the items by run: A 25 %" in out.read_text()
    )


@pytest.mark.process
def test_the_pages_diagnostic_passes_the_checks(site: Path) -> None:
    python(site, "-c", block("python", 1))


class _Mine(room.Section):
    name = "mine"


def test_sections_come_in_the_order_asked_for_then_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", f"{__name__}:_Mine", room.GROUP)
    monkeypatch.setattr(room.importlib.metadata, "entry_points", lambda group: [point])
    names = [one.name for one in find_sections("retrieval", ("norms", "bands"))]
    assert names[:2] == ["norms", "bands"] and names[2:] == sorted(names[2:]) and "mine" in names
    assert "mine" not in [one.name for one in find_sections("ranking")]
