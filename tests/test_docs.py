"""The documentation says what is: files, links, commands with their options, settings, and code that compiles."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import typer.main
import yaml

from fullrank.cli import build
from fullrank.errors import UserError
from fullrank.experiment import Experiment
from fullrank.recipes.sasrec import SASRecRecipe
from fullrank.scaling.grid import Grid
from fullrank.scaling.search import Search
from fullrank.spec import kinds

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
OWN_KINDS = {"elu_linear"}
"""Kinds that docs/adding.md makes."""


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def commands(text: str) -> Iterator[list[str]]:
    """The words of every `fullrank ...` in a page's shell blocks."""
    for block in blocks(text, "bash"):
        for line in block.splitlines():
            words = shlex.split(line.split(" | ")[0].split(" > ")[0], comments=True)
            if words[:1] == ["fullrank"]:
                yield words[1:]
            elif "-m" in words and words[words.index("-m") + 1 :][:1] == ["fullrank"]:
                yield words[words.index("-m") + 2 :]


def check_command(words: list[str]) -> None:
    """The verb exists, has these options, and every --set of a recipe names a setting."""
    verbs = typer.main.get_command(build()).commands  # type: ignore[attr-defined]
    assert words[0] in verbs, f"there is no verb {words[0]!r}"
    options = {o for p in verbs[words[0]].params for o in p.opts} | {"--help", "--debug"}
    given = [word.split("=")[0] for word in words[1:] if word.startswith("--")]
    assert set(given) <= options, f"{words[0]} has no option {sorted(set(given) - options)}"
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    if words[:1] == ["train"] and words[1] in kinds("recipes") and not any(k in s for s in settings for k in OWN_KINDS):
        SASRecRecipe().build().override(*settings)


@PAGE
def test_commands(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        check_command(words)


@PAGE
def test_python_compiles(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8"), "python"):
        compile(block, str(page), "exec")


def test_the_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    draw = np.random.default_rng(0)
    items = np.concatenate([draw.permutation(20)[:8] for _ in range(40)])
    frame = pl.DataFrame({"user_id": np.repeat(np.arange(40), 8), "item_id": items, "timestamp": np.arange(320)})
    frame.write_parquet(tmp_path / "events.parquet")
    monkeypatch.chdir(tmp_path)
    (example,) = blocks((ROOT / "README.md").read_text(encoding="utf-8"), "python")
    assert len([line for line in example.splitlines() if line]) == 5
    exec(compile(example, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "'ndcg@10'" in shown and "rank" in shown


@PAGE
def test_yaml_parses(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8"), "yaml"):
        tree = yaml.safe_load(block)
        if "model" in tree and "recipe" in tree:
            Experiment.parse(tree)
        elif "axes" in tree and ("base" in tree or "cells" in tree):
            assert Grid.parse(tree).jobs()
        elif "space" in tree:
            assert Search.parse(tree).jobs()


@PAGE
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def test_map_names_every_file() -> None:
    text = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "fullrank"
    for file in source.rglob("*.py"):
        room = file.parent.relative_to(source).as_posix()
        heading = "## The top level" if room == "." else f"## {room}/"
        section = text.partition(heading + "\n")[2].partition("\n## ")[0]
        assert f"`{file.name}`" in section, f"docs/map.md lacks {room}/{file.name}: run python docs/make_map.py"


def test_every_decision_and_guide_page_is_listed() -> None:
    for index, folder in ((ROOT / "docs/index.md", "guide"), (ROOT / "docs/decisions/index.md", "decisions")):
        text = index.read_text(encoding="utf-8")
        for page in (ROOT / "docs" / folder).glob("*.md"):
            assert page.name == "index.md" or page.stem in text, f"{index} does not list {page.name}"


@pytest.mark.parametrize("line", ["fullrank trian x", "fullrank train sasrec --dta x", "fullrank list --set a=b"])
def test_a_wrong_command_is_caught(line: str) -> None:
    with pytest.raises(AssertionError):
        check_command(next(commands(f"```bash\n{line}\n```")))


def test_a_wrong_setting_is_caught() -> None:
    with pytest.raises(UserError):
        check_command(next(commands("```bash\nfullrank train sasrec --data d --out o --set model.dimm=3\n```")))
