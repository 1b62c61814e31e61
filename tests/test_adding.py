"""docs/adding.md, followed literally: its files become a package, and its entry point is trained from the shell."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from folders import distribution
from markets import planted_store

PAGE = Path(__file__).resolve().parent.parent / "docs" / "adding.md"


def blocks(language: str) -> list[str]:
    """The fenced blocks of the page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def install(site: Path) -> None:
    """What an installer would do with the page's files: the modules, and metadata that names the entry point."""
    project = tomllib.loads(blocks("toml")[0])["project"]
    paths = re.findall(r"^`(\w+/\w+\.py)`:", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for path, text in zip(paths, blocks("python"), strict=False):  # the blocks behind them are of other sections
        file = site / path
        file.parent.mkdir(parents=True)
        (file.parent / "__init__.py").write_text("")
        file.write_text(text, encoding="utf-8")
    distribution(site, project["name"], project["entry-points"])


def environment(site: Path) -> dict[str, str]:
    """This process's, with the package on the path."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def fullrank(site: Path, *arguments: str) -> dict[str, object]:
    """One command line; its last line as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "fullrank", *arguments, "--json"], env=environment(site), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def market(tmp_path: Path) -> Path:
    return planted_store(tmp_path / "store", users=200, items=60, events_per_user=10).path


@pytest.mark.process
def test_the_pages_attention_trains_through_its_entry_point(tmp_path: Path, market: Path) -> None:
    install(tmp_path / "site")
    assert "elu_linear" in json.dumps(fullrank(tmp_path / "site", "list", "attention"))
    small = ("model.dim=16", "training.max_epochs=2", "training.batch_size=512", "model.encoder.attention=elu_linear")
    settings = [word for setting in small for word in ("--set", setting)]
    run = tmp_path / "run"
    fullrank(tmp_path / "site", "train", "sasrec", "--data", str(market), "--out", str(run), *settings)
    spec = json.loads((run / "spec.json").read_text())
    assert spec["model"]["encoder"]["attention"]["kind"] == "elu_linear"
    losses = [
        row["train/loss"]
        for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        if "train/loss" in row
    ]
    assert losses[-1] < losses[0]
    found = fullrank(tmp_path / "site", "evaluate", str(run), "--split", "test")
    assert found["metrics"]["ndcg@10"] > 0  # type: ignore[index]


@pytest.mark.process
def test_the_pages_own_test_passes(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site)
    command = [sys.executable, "-c", "from tests.test_elu_linear import test_elu_linear; test_elu_linear()"]
    done = subprocess.run(
        command, env=environment(tmp_path / "site"), capture_output=True, text=True, cwd=tmp_path / "site"
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.process
def test_without_the_package_the_run_says_what_is_missing(tmp_path: Path, market: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fullrank",
        "train",
        "sasrec",
        "--data",
        str(market),
        "--out",
        str(tmp_path / "run"),
    ]
    done = subprocess.run([*command, "--set", "model.encoder.attention=elu_linear"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "elu_linear" in done.stderr and "Traceback" not in done.stderr
