"""The documentation says what is: files, links, commands with their options, settings, and code that compiles."""

import pkgutil
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer.main
import yaml

import fullrank
import fullrank.recipes
from docs import make_benchmark_table, make_check_table, make_map, make_recipe_table
from fullrank.cli import build
from fullrank.core.errors import UserError
from fullrank.core.registry import find, kinds
from fullrank.data.events.prepare import Prepare
from fullrank.data.impressions.schema import Schema
from fullrank.evaluation.spec import Evaluation, RankingEvaluation
from fullrank.run.experiment import Experiment, find_experiment
from fullrank.semantic_ids.spec import Encode
from fullrank.sweeps.search import Search
from fullrank.sweeps.sweep import Grid

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OWN_KINDS = {"elu_linear", "fading", "pairwise", "unpopular", "fwfm", "gsasrec", "rbp"}
"""Kinds that docs/adding.md makes."""


def text_of(page: Path | str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def each_page(check: Callable[[Path], None]) -> Callable[[pytest.Subtests], None]:
    """A test of every page, each of them a subtest."""

    def test(subtests: pytest.Subtests) -> None:
        for page in PAGES:
            with subtests.test(page.relative_to(ROOT).as_posix()):
                check(page)

    return test


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def commands(text: str) -> Iterator[list[str]]:
    """The words of every `fullrank ...` in a page's shell blocks, and of those in its sentences that set something."""
    inline = [" ".join(code.split()) for code in re.findall(r"(?<!`)`(fullrank [^`]*--set [^`]*)`", text)]
    for block in (*blocks(text, "bash"), *inline):
        for line in block.splitlines():
            words = shlex.split(line.split(" | ")[0].split(" > ")[0], comments=True)
            if words[:1] == ["fullrank"]:
                yield words[1:]
            elif "-m" in words and words[words.index("-m") + 1 :][:1] == ["fullrank"]:
                yield words[words.index("-m") + 2 :]


@cache
def verbs() -> dict[str, Any]:
    return typer.main.get_command(build()).commands  # type: ignore[attr-defined]


def check_command(words: list[str]) -> None:
    """The verb exists, has these options, and every --set names a setting."""
    assert words[0] in verbs(), f"there is no verb {words[0]!r}"
    verb = verbs()[words[0]]
    if hasattr(verb, "commands"):  # a group: `scale fit`
        assert words[1:2] and words[1] in verb.commands, f"{words[0]} has no verb {' '.join(words[1:2])!r}"
        verb = verb.commands[words[1]]
    options = {o for p in verb.params for o in p.opts} | {"--help", "--debug"}
    given = [word.split("=")[0] for word in words[1:] if word.startswith("--")]
    assert set(given) <= options, f"{words[0]} has no option {sorted(set(given) - options)}"
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    if not any(kind in setting for setting in settings for kind in OWN_KINDS):
        rules = [f"split={words[i + 1]}" for i, word in enumerate(words) if word == "--split" and words[0] == "prepare"]
        check_settings(words[:2], rules + settings)


def check_settings(words: list[str], settings: list[str]) -> None:
    """Every --set after `train RECIPE`, `prepare EVENTS`, `evaluate RUN` and `download SOURCE` names a setting."""
    verb, what = [*words, ""][:2]
    own = [setting.removeprefix("source.") for setting in settings if setting.startswith("source.")]
    if verb == "train" and what in kinds("recipes"):
        find_experiment(what).override(*settings)
    elif verb in ("prepare", "prepare-impressions"):
        spec = Prepare() if verb == "prepare" else Schema(fields=("a",), time="t")
        spec.override(*(setting for setting in settings if not setting.startswith("source.")))
        if own:
            find(what, "data.sources")().override(*own)
    elif verb == "download" and settings:
        find(what, "data.sources")().override(*settings)
    elif verb == "encode":
        Encode().override(*settings)
    elif verb == "evaluate":
        of_clicks = any(setting.startswith("slices=[") for setting in settings)
        (RankingEvaluation() if of_clicks else Evaluation()).override(*settings)


@each_page
def test_commands(page: Path) -> None:
    for words in commands(text_of(page)):
        check_command(words)


@each_page
def test_python_compiles(page: Path) -> None:
    for block in blocks(text_of(page), "python"):
        compile(block, str(page), "exec")


def test_the_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    draw = np.random.default_rng(0)
    items = np.concatenate([draw.permutation(20)[:8] for _ in range(40)])
    frame = pl.DataFrame({"user_id": np.repeat(np.arange(40), 8), "item_id": items, "timestamp": np.arange(320)})
    frame.write_parquet(tmp_path / "events.parquet")
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(text_of("README.md"), "python")
    assert len([line for line in example.splitlines() if line]) == 5
    exec(compile(example, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "'ndcg@10'" in shown and "rank" in shown


@each_page
def test_yaml_parses(page: Path) -> None:
    for block in blocks(text_of(page), "yaml"):
        tree = yaml.safe_load(block)
        if "model" in tree and "recipe" in tree:
            Experiment.parse(tree)
        elif "fields" in tree:
            Schema.parse(tree)
        elif "axes" in tree and ("base" in tree or "cells" in tree):
            assert Grid.parse(tree).jobs()
        elif "space" in tree:
            assert Search.parse(tree).jobs()


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(page)):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def test_the_map_is_that_of_the_tree() -> None:
    text = text_of("docs/map.md")
    assert text.endswith(make_map.listing(make_map.SOURCE)), "docs/map.md is old: run python docs/make_map.py"
    named = set(re.findall(r"`([a-z_/0-9]+/|[a-z_/0-9]+\.py)`", text))
    lost = [p for p in sorted(named) if not any((root / p).exists() for root in (ROOT, make_map.SOURCE))]
    assert len(named) > 40 and not lost, f"docs/map.md names what is not there: {lost}"


def test_docstrings_name_files_that_are_there() -> None:
    """`serving/fast.py`, `data/events/` and their like, in docstrings and comments of the package."""
    written = [path.relative_to(make_map.SOURCE) for path in make_map.SOURCE.rglob("*")]
    ends = {"/".join(path.parts[-n:]) for path in written for n in range(1, len(path.parts) + 1)}
    lost, count = [], 0
    for path in sorted(make_map.SOURCE.rglob("*.py")):
        for named in re.findall(r"(?<!`)`([\w/.]+\.py|(?:\w+/)+)`", text_of(path)):
            name, count = named.rstrip("/"), count + 1
            if name not in ends and not (ROOT / name).exists() and not (path.parent / name).exists():
                lost.append(f"{path.relative_to(make_map.SOURCE)}: {named}")
    assert count > 100 and not lost, f"{count} named, and not there: {lost}"


def test_every_decision_and_guide_page_is_listed() -> None:
    for index, folder, prefix in (
        ("index.md", "guide", "guide/"), ("index.md", "results", "results/"), ("decisions/index.md", "decisions", ""),
    ):  # fmt: skip
        text = text_of(ROOT / "docs" / index)
        listed = "\n".join(blocks(text, "{toctree}")).splitlines()
        for page in (ROOT / "docs" / folder).glob("*.md"):
            assert page.name == "index.md" or prefix + page.stem in listed, f"{index} does not list {page.name}"


def test_the_reference_has_every_public_name() -> None:
    text = text_of("docs/reference.md")
    named = re.findall(r"^\.\. auto(?:function|class):: fullrank\.(\w+)$", text, re.M)
    assert sorted(named) == sorted(set(fullrank.__all__) - set(fullrank._RENAMED))
    for old, new in fullrank._RENAMED.items():
        assert f"`{old}` is `{new}`" in text
    for name in named:
        written = ".. autoclass" if isinstance(getattr(fullrank, name), type) else ".. autofunction"
        assert f"{written}:: fullrank.{name}\n" in text, f"{name} is written as the other of a class and a function"


def test_every_module_of_the_pages_is_in_the_reference() -> None:
    """What a page imports, a notebook too, and every file of recipes stands in docs/modules.md."""
    text = text_of("docs/modules.md")
    pages = [*PAGES, *(ROOT / "docs" / "notebooks").glob("*.ipynb")]
    imported = {name for page in pages for name in re.findall(r"\bfrom (fullrank\.[\w.]+) import", text_of(page))}
    recipes = {f"fullrank.recipes.{module.name}" for module in pkgutil.iter_modules(fullrank.recipes.__path__)}
    assert len(imported) >= 12 and {name for name in imported | recipes if name not in text} == set()


def test_the_table_of_processors_is_that_of_the_results() -> None:
    text, table = text_of(make_benchmark_table.PAGE), make_benchmark_table.table()
    assert f"{make_benchmark_table.BEGIN}\n{table}\n{make_benchmark_table.END}" in text, (
        "the table is old: run python docs/make_benchmark_table.py"
    )
    assert all(re.search(rf"\| `{name}` .*\d", table) for name in make_benchmark_table.FIGURES)


def test_the_table_of_findings_is_that_of_the_newest_record_and_names_every_finding() -> None:
    text = text_of(make_check_table.PAGE)
    assert f"{make_check_table.BEGIN}\n{make_check_table.tables()}\n{make_check_table.END}" in text, (
        "the tables are old: run python docs/make_check_table.py"
    )
    source = "".join(file.read_text() for file in (ROOT / "src/fullrank/data").glob("*/check.py"))
    names = set(re.findall(r'(?:finding|Finding|_worst)\(\s*"(\w+)"', source)) | {"unseen_validation", "unseen_test"}
    assert len(names) > 20 and all(f"`{name}`" in text for name in names), names


def test_the_table_of_recipes_is_that_of_the_results() -> None:
    text = text_of("docs/guide/which_recipe.md")
    assert make_recipe_table.table() in text, "the table is old: run python docs/make_recipe_table.py"
    numbers = re.findall(r"\| (\.\d{4}) ", make_recipe_table.table())
    assert len(numbers) >= 19 and set(make_recipe_table.RECIPES) <= set(kinds("recipes"))


def test_every_recipe_of_recommenders_is_in_the_guide() -> None:
    text = text_of("docs/guide/which_recipe.md")
    recommenders = {k for k in kinds("recipes") if find_experiment(k).problem == "retrieval"}
    assert {k for k in recommenders if f"`{k}`" not in text} == set()


@pytest.mark.parametrize(
    "line",
    [
        "fullrank trian x", "fullrank train sasrec --dta x", "fullrank list --set a=b", "fullrank scale fti x",
        "fullrank scale fit x --flops 3",
    ],
)  # fmt: skip
def test_a_wrong_command_is_caught(line: str) -> None:
    with pytest.raises(AssertionError):
        check_command(next(commands(f"```bash\n{line}\n```")))


@pytest.mark.parametrize(
    "line",
    [
        "fullrank train sasrec --data d --out o --set model.dimm=3",
        "fullrank prepare events.csv --out o --set columns.users=u",
        "fullrank prepare planted --out o --set source.userz=3",
        "fullrank download movielens --set varient=1m",
        "fullrank evaluate runs/a --set sen=keep",
    ],
)
@pytest.mark.parametrize("page", ["```bash\n{}\n```", "Say `{}`."])
def test_a_wrong_setting_is_caught(line: str, page: str) -> None:
    with pytest.raises(UserError):
        check_command(next(commands(page.format(line))))
