"""What a stranger gets: the page on PyPI, the wheel in an empty environment, and the oldest versions allowed."""

import importlib.metadata
import json
import os
import re
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import lowest
from test_release import script
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_nothing_is_promised_of_an_index_that_has_no_fullrank() -> None:
    """Before the first release `pip install fullrank` stands beside words that say so; the README begins with make."""
    first = re.search(r"```bash\n(.*?)```", README, re.S)
    assert first is not None and first[1].startswith("make demo") and "\ndemo:" in (ROOT / "Makefile").read_text()
    for page in (ROOT / "README.md", *(ROOT / "docs" / "guide").glob("*.md"), *(ROOT / "deploy").iterdir()):
        for part in page.read_text(encoding="utf-8").split("\n\n"):
            promise = re.search(r"pip install (-c \S+ )?'?fullrank\b", part)
            assert promise is None or "first release" in " ".join(part.split()), f"{page.name}: {part}"


def test_the_readme_links_to_the_one_address() -> None:
    """A relative link is broken on PyPI, and an absolute one has to lead to a file that is there."""
    home = PROJECT["urls"]["Repository"]
    places = {home: "blob", home.replace("github.com", "raw.githubusercontent.com"): ""}
    inline = re.findall(r"\]\(([^)]+)\)", README)
    named = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", README, re.M))
    assert set(re.findall(r"\]\[([^\]]+)\]", README)) == set(named)
    assert [link for link in inline if not link.startswith("https://")] == []
    for link in (*inline, *named.values(), *PROJECT["urls"].values()):
        (place,) = [place for place in places if link.startswith(place)]
        rest = link.removeprefix(place).removeprefix(f"/{places[place]}" if places[place] else "")
        if rest.startswith("/main/"):
            path, _, anchor = rest.removeprefix("/main/").partition("#")
            assert (ROOT / path).exists(), link
            assert not anchor or anchor in _anchors(ROOT / path), link
        else:
            assert rest in ("", "/issues"), link


def test_the_readme_names_every_extra() -> None:
    rows = [line.split("|")[1] for line in README.partition("| extra |")[2].splitlines()[2:] if line.startswith("|")]
    rows = rows[: next((n for n, row in enumerate(rows) if "`" not in row), len(rows))]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(PROJECT["optional-dependencies"]) <= named


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_lowest_versions_are_those_of_the_project() -> None:
    """One line for each lower bound, without an upper one, and torch alone may be the tested one."""
    made = lowest.pins(PROJECT)
    needed = [*PROJECT["dependencies"], *(one for lines in PROJECT["optional-dependencies"].values() for one in lines)]
    assert len(made) == len({line.split("==")[0] for line in made}) == len({_bare(one) for one in needed})
    assert "torch==2.11" in made and "redis==5.2" in made
    with pytest.raises(SystemExit, match="no lower bound"):
        lowest.pins({"dependencies": ["rich"], "optional-dependencies": {}})


def test_the_workflow_runs_the_commands_of_a_person() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert {run.split()[1] for run in runs if run.startswith("make ")} <= targets
    assert {run for run in runs if not run.startswith("make ")} == {".ci/run", ".ci/lowest"}
    assert {"make check", "make docs"} <= set(runs)
    versions = workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    said = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith("Programming Language")]
    assert versions == said and min(versions) == PROJECT["requires-python"].removeprefix(">=")


def test_the_weekly_jobs_call_scripts_that_are_there() -> None:
    text = (ROOT / ".github" / "workflows" / "scheduled.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"} and "secrets." not in text
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in steps if "uses" in step), "pinned by commit"
    assert all(os.access(ROOT / step["run"], os.X_OK) for step in steps if step.get("run", "").startswith(".ci/"))
    assert {".ci/mutation", ".ci/fuzz"} <= {step.get("run") for step in steps}
    assert (names := (ROOT / ".ci" / "fuzz").read_text().partition("for target in ")[2].partition(";")[0].split())
    assert sorted(names) == sorted(TARGETS), "each reader has its minutes"


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    """What pip makes of this tree, with torch pinned to the tested one and nothing else, runs far from the tree: the
    demo, which learns, and the example of the first day. By the functions of `.ci/release/check-install`."""
    install = script("check-install")
    run = install.run
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT], tmp_path)
    (wheel,) = tmp_path.glob("fullrank-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        told = packed.read(metadata).decode()
    assert "fullrank/py.typed" in names and any(name.endswith("page.html.j2") for name in names)
    assert any(name.endswith("LICENSE") for name in names) and not any(name.startswith("tests/") for name in names)
    assert f"Project-URL: Repository, {PROJECT['urls']['Repository']}" in told
    torch = f"torch=={importlib.metadata.version('torch')}"
    programs = install.environment(tmp_path / "empty", f"{wheel}[report]", torch)
    python, program = programs / "python", programs / "fullrank"
    assert run([program, "--version"], tmp_path).strip() == f"fullrank {importlib.metadata.version('fullrank')}"
    assert "sasrec" in run([program, "list", "recipes"], tmp_path)
    demo = json.loads(run([program, "demo", "--json"], tmp_path))
    metrics = {name: row["ndcg@10"] for name, row in demo["metrics"].items()}
    assert metrics["popularity"] * 2 < min(metrics["item_to_item"], metrics["gru4rec"], metrics["sasrec_plus"])
    assert metrics["sasrec_plus"] > metrics["item_to_item"] and demo["seconds"] < 300
    shutil.copy(ROOT / "examples" / "first_day.py", tmp_path)
    assert "7. ship" in run([python, "first_day.py", "day"], tmp_path)
    missing = run([program, "report", "demo/none", "--out", "r.html"], tmp_path, status=2)
    assert "Traceback" not in missing


def _bare(requirement: str) -> str:
    return re.split(r"[\[>;]", requirement)[0]
