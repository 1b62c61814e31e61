"""docs/adding.md, followed literally: its files become packages, found by their entry points, used from the shell."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from folders import distribution
from fullrank.analysis import diagnostics as room
from fullrank.analysis.diagnostics import find_sections
from fullrank.core.registry import component
from fullrank.metrics.names import ACCURACY
from fullrank.testing import check_component, checks, checks_of, name_of
from markets import planted_store

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
ATTENTION, _, REST = PAGE.partition("\n## A package of each kind\n")
KINDS, _, REST = REST.partition("\n## A diagnostic\n")
DIAGNOSTIC = REST.partition("\n## ")[0]
PACKAGES = dict(part.split("\n", 1) for part in KINDS.split("\n### ")[1:])
"""Heading -> text of each package, and of how all of them are used."""
USE = PACKAGES.pop("All of them in use")
RECIPE = "A recipe"


def blocks(language: str, text: str) -> list[str]:
    """The fenced blocks of a part of the page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def install(site: Path, text: str) -> Path:
    """What an installer would do with the files named there: the modules, and metadata that names the entry point."""
    project = tomllib.loads(blocks("toml", text)[0])["project"]
    paths = re.findall(r"^`(\w+/\w+\.py)`:", text, re.MULTILINE)
    for path, code in zip(paths, blocks("python", text), strict=False):  # those behind them show more of the same
        file = site / path
        file.parent.mkdir(parents=True)
        (file.parent / "__init__.py").write_text("")
        file.write_text(code, encoding="utf-8")
    distribution(site, project["name"], project["entry-points"])
    return site


def python(site: Path, *arguments: str, cwd: Path | None = None) -> str:
    """What a Python with the package on its path prints last."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr[-2000:]
    return (done.stdout.splitlines() or [""])[-1]


def fullrank(site: Path, *arguments: str) -> dict[str, Any]:
    """One command line; its last line as JSON."""
    found: dict[str, Any] = json.loads(python(site, "-m", "fullrank", *arguments, "--json"))
    return found


@pytest.fixture
def market(tmp_path: Path) -> Path:
    return planted_store(tmp_path / "store", users=200, items=60, events_per_user=10).path


@pytest.mark.process
def test_the_pages_attention_trains_through_its_entry_point(tmp_path: Path, market: Path) -> None:
    site = install(tmp_path / "site", ATTENTION)
    assert "elu_linear" in json.dumps(fullrank(site, "list", "attention"))
    small = ("model.dim=16", "training.max_epochs=2", "training.batch_size=512", "model.encoder.attention=elu_linear")
    settings = [word for setting in small for word in ("--set", setting)]
    run = tmp_path / "run"
    fullrank(site, "train", "sasrec", "--data", str(market), "--out", str(run), *settings)
    spec = json.loads((run / "spec.json").read_text())
    assert spec["model"]["encoder"]["attention"]["kind"] == "elu_linear"
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert losses[-1] < losses[0]
    assert fullrank(site, "evaluate", str(run), "--split", "test")["metrics"]["ndcg@10"] > 0


@pytest.mark.process
def test_the_pages_own_test_passes(tmp_path: Path) -> None:
    site = install(tmp_path / "site", ATTENTION)
    python(site, "-c", "from tests.test_elu_linear import test_elu_linear; test_elu_linear()", cwd=site)


@pytest.mark.process
def test_without_the_package_the_run_says_what_is_missing(tmp_path: Path, market: Path) -> None:
    train = ("train", "sasrec", "--data", str(market), "--out", str(tmp_path / "run"))
    command = [sys.executable, "-m", "fullrank", *train, "--set", "model.encoder.attention=elu_linear"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "elu_linear" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.process
def test_the_pages_diagnostic_has_rows_and_a_figure(tmp_path: Path) -> None:
    site = install(tmp_path / "site", DIAGNOSTIC)
    store = planted_store(tmp_path / "store", users=80)
    run = fr.train("popularity", store, tmp_path / "run", progress=False)
    found = fullrank(site, "diagnose", str(run.path), "--users", "30")
    rows = [one for one in found["rows"] if one["diagnostic"] == "reach"]
    assert [(one["name"], one["value"]) for one in rows] == [("items", 10), ("share", 0.25)], "popularity has one list"
    out = tmp_path / "page.html"
    made = fullrank(site, "report", str(run.path), "--out", str(out))
    assert made["figures"][-2:] == ["reach", "spectrum"], "behind those of fullrank, before the folded ones"
    page = out.read_text()
    assert "How many items reach a top ten" in page and "share of the items by run: A 25 %" in page


@pytest.mark.process
def test_the_pages_diagnostic_passes_the_checks(tmp_path: Path) -> None:
    python(install(tmp_path / "site", DIAGNOSTIC), "-c", blocks("python", DIAGNOSTIC)[1])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packages of the page, installed for this process."""
    site = tmp_path / "site"
    for text in PACKAGES.values():
        install(site, text)
    monkeypatch.syspath_prepend(str(site))
    return site


def brought(text: str) -> Any:
    """What the entry point of a package names."""
    ((group, points),) = tomllib.loads(blocks("toml", text)[0])["project"]["entry-points"].items()
    (name,) = points
    return ACCURACY[name] if group == "fullrank.metrics.accuracy" else component(name, group.removeprefix("fullrank."))


@pytest.mark.parametrize("kind", [kind for kind in PACKAGES if kind != RECIPE])
def test_a_part_of_the_page_passes_the_checks_that_the_page_lists(kind: str, site: Path) -> None:
    part = brought(PACKAGES[kind])
    check_component(part)
    common = {name_of(check) for check in checks_of("settings")} if kind != "A metric" else set()
    assert common <= set(re.findall(r"`(\w+)`", KINDS.partition("\n### ")[0]))
    listed = re.findall(r"`(\w+)`", PACKAGES[kind].rpartition("\nChecks: ")[2])
    assert {name for name, _ in checks(part)} - common <= set(listed), "the page lists each check"


@pytest.mark.slow
def test_the_parts_of_the_page_train_together(site: Path, market: Path, tmp_path: Path) -> None:
    mine, evaluated, recipe, ranker = (shlex.split(line) for line in blocks("bash", USE)[0].splitlines())
    small = ["model.dim=16", "training.max_epochs=2", "training.batch_size=512"]
    run = fr.train(mine[2], market, tmp_path / "run", set=[*settings_of(mine), *small], progress=False)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert all({"train/unpopular", "validation/rbp@10"} <= row.keys() for row in rows), "it adds, and it chooses"
    found = fr.evaluate(run, "test", set=settings_of(evaluated)).metrics
    assert 0 < found["rbp@10"] < found["ndcg@10"]
    wanted = fr.train(recipe[2], market, tmp_path / "recipe", set=["training.max_epochs=1"], progress=False)
    assert wanted.spec.recipe == "gsasrec" and wanted.spec.model.dump()["loss"]["kind"] == "gbce"
    draw = np.random.default_rng(0)
    user, item = draw.integers(12, size=900), draw.integers(20, size=900)
    clicks = pl.DataFrame({"label": ((user + item) % 2).astype(int), "user": user, "item": item})
    store = fr.prepare_impressions(clicks, tmp_path / "clicks", schema={"fields": ["user", "item"], "split": "random"})
    few = [*settings_of(ranker), "training.max_epochs=3"]
    crossed = fr.train(ranker[2], store, tmp_path / "ranker", set=few, progress=False)
    assert "ranker.strength" in crossed.tensors() and np.isfinite(fr.evaluate(crossed, "test").metrics["auc"])


def settings_of(words: list[str]) -> list[str]:
    """What stands behind each --set of a command line."""
    return [value for option, value in zip(words, words[1:], strict=False) if option == "--set"]


@pytest.mark.slow
@pytest.mark.process
def test_what_the_page_prints_is_typed(tmp_path: Path) -> None:
    """By the settings of this repository, all packages at once: mypy reads fullrank first, from its cache if it can."""
    for text in (ATTENTION, *PACKAGES.values(), DIAGNOSTIC):
        install(tmp_path, text)
    files = [str(file) for file in sorted(tmp_path.glob("my_*/*.py"))]
    assert len(files) == 2 * (len(PACKAGES) + 2), "a package and its file each"
    done = subprocess.run([sys.executable, "-m", "mypy", *files], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


class _Mine(room.Section):
    name = "mine"


def test_sections_come_in_the_order_asked_for_then_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", f"{__name__}:_Mine", room.GROUP)
    monkeypatch.setattr(room.importlib.metadata, "entry_points", lambda group: [point])
    names = [one.name for one in find_sections("retrieval", ("norms", "bands"))]
    assert names[:2] == ["norms", "bands"] and names[2:] == sorted(names[2:]) and "mine" in names
    assert "mine" not in [one.name for one in find_sections("ranking")]
