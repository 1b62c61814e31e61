"""A release: its scripts, its workflow, the lock, and the files by which others cite, report and join in."""

import importlib.util
import os
import re
import tomllib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
WORKFLOWS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")}
RELEASE = yaml.safe_load(WORKFLOWS["release.yml"])


def script(name: str) -> Any:
    """A script of .ci/release as a module; nothing of it runs."""
    loader = SourceFileLoader(name.replace("-", "_"), str(ROOT / ".ci/release" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    return job.get("steps", [])


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_a_workflow_may_little_and_runs_nothing_that_can_change_under_it(name: str) -> None:
    text, tree = WORKFLOWS[name], yaml.safe_load(WORKFLOWS[name])
    for used in re.findall(r"^\s*-?\s*uses: (.*)$", text, re.M):
        assert used.startswith("$/.github/") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", used), used
    assert tree["permissions"] == {"contents": "read"}
    assert "secrets." not in text and "pull_request_target" not in text
    for job in tree["jobs"].values():
        assert "uses" in job or "timeout-minutes" in job
        for step in steps(job):
            assert "checkout@" not in step.get("uses", "") or step["with"]["persist-credentials"] is False
            for path in re.findall(r"\.ci/[\w/-]+", step.get("run", "")):
                assert os.access(ROOT / path, os.X_OK), f"{path} is no program"


def test_a_release_is_tried_out_before_anything_is_published() -> None:
    """What may write runs for a tag alone, and behind the builds, the installs, the tests and the image."""
    jobs = RELEASE["jobs"]
    writing = {name for name, job in jobs.items() if "write" in job.get("permissions", {}).values()}
    assert writing == {"pypi", "registry", "pages", "page"}
    assert all(jobs[name]["if"] == "startsWith(github.ref, 'refs/tags/v')" for name in writing)
    tried = {"build", "install", "tests", "image"}
    assert set(jobs["pypi"]["needs"]) == set(jobs["registry"]["needs"]) == tried
    assert "pypi" in jobs["pages"]["needs"] and {"pypi", "registry"} == set(jobs["page"]["needs"])
    assert jobs["pypi"]["permissions"] == {"id-token": "write"} and len(steps(jobs["pypi"])) == 2
    matrix = jobs["install"]["strategy"]["matrix"]
    assert {system.split("-")[0] for system in matrix["system"]} == {"ubuntu", "macos", "windows"}
    said = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith("Programming Language")]
    assert matrix["python"] == said


def test_the_package_and_its_citation_name_one_version_and_the_changelog_has_notes() -> None:
    notes = script("notes")
    package = (ROOT / "src/fullrank/__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.*)"$', package, re.M)
    assert notes.check(f"v{version}") == version
    text = notes.notes(f"v{version}")
    assert "### Added" in text and "\n## " not in text and len(text) < 10_000
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert link.startswith("https://"), link
        path = link.removeprefix(f"{PROJECT['urls']['Repository']}/blob/v{version}/").partition("#")[0]
        assert path.startswith("https://") or (ROOT / path).exists(), link


def test_notes_are_one_release_and_versions_that_differ_are_refused(tmp_path: Path) -> None:
    notes = script("notes")

    def tree(changelog: str, citation: str = "1.2.0") -> Path:
        files = {
            "src/fullrank/__init__.py": '__version__ = "1.2.0"\n',
            "pyproject.toml": '[project.urls]\nRepository = "https://h/r"\n',
            "CITATION.cff": f"version: {citation}\n",
            "CHANGELOG.md": changelog,
        }
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path

    older = "## [1.1.0] - 2026-11-01\n\n- b\n"
    log = f"# C\n\n## [Unreleased]\n\n- later\n\n## [1.2.0] - 2026-12-01\n\n- [a](docs/a.md)\n\n{older}"
    assert notes.notes("v1.2.0", tree(log)) == "- [a](https://h/r/blob/v1.2.0/docs/a.md)"
    assert notes.notes(None, tree(log)) == "- later"
    for tag, changelog, citation, said in (
        ("v1.2.1", log, "1.2.0", "the tag says 1.2.1, src/fullrank/__init__.py says 1.2.0"),
        ("1.2.0", log, "1.2.0", "its tag is vX.Y.Z"),
        ("v1.2.0", log, "1.1.0", "CITATION.cff says 1.1.0"),
        ("v1.2.0", "## [1.2.0]\n\n- a\n", "1.2.0", "no heading '## \\[1.2.0\\] - YYYY-MM-DD'"),
        ("v1.2.0", f"## [1.2.0] - 2026-12-01\n\n{older}", "1.2.0", "says nothing below"),
    ):
        with pytest.raises(SystemExit, match=said):
            notes.notes(tag, tree(changelog, citation))


def test_the_lock_has_the_requirements_and_the_versions_that_were_tested() -> None:
    """`.ci/lock` makes it anew. Files come from PyPI, by their hashes."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    locked: dict[str, set[str]] = {}
    for package in packages:
        locked.setdefault(package["name"], set()).add(package.get("version", ""))
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    tested = {_plain(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)$", lines, re.M)}
    assert {name: locked[name] for name in tested if name in locked} == {
        name: {version} for name, version in tested.items() if name in locked
    }
    (ours,) = [package for package in packages if package["name"] == "fullrank"]
    required = [*ours["metadata"]["requires-dist"], *ours["metadata"]["requires-dev"]["dev"]]
    known = {f"{one['name']}{one.get('specifier', '')}" for one in required}
    groups = (
        PROJECT["dependencies"],
        *PROJECT["optional-dependencies"].values(),
        PYPROJECT["dependency-groups"]["dev"],
    )
    wanted = {re.sub(r"\[.*?\]|\s*;.*", "", line) for lines in groups for line in lines}
    assert {f"{_plain(line.partition('>=')[0])}>={line.partition('>=')[2]}" for line in wanted} == known, "run .ci/lock"
    files = [file for package in packages for file in (*package.get("wheels", ()), package.get("sdist", {})) if file]
    assert len(files) > 1000 and all(file["hash"].startswith("sha256:") for file in files)
    assert {file["url"].split("/")[2] for file in files} == {"files.pythonhosted.org"}


def test_the_hooks_of_a_commit_are_those_of_make_check() -> None:
    made = (
        (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ncheck: ")[2].partition("\n\n")[0].splitlines()[1:]
    )
    checks = {line.strip().removeprefix("$(BIN)/").removesuffix(" $(CODE)") for line in made}
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    hooks = {hook["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude") for hook in local["hooks"]}
    assert hooks == checks and local["repo"] == "local"


def test_what_others_read_first_is_there_and_leads_on() -> None:
    pages = ("SECURITY.md", "CODE_OF_CONDUCT.md", "AGENTS.md", "CONTRIBUTING.md", ".github/pull_request_template.md")
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text(encoding="utf-8")):
            assert link.startswith("https://") or (ROOT / link).exists(), f"{page}: {link}"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["repository-code"] == PROJECT["urls"]["Repository"] and citation["license"] == PROJECT["license"]
    for form in ("bug", "idea"):
        body = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{form}.yml").read_text(encoding="utf-8"))["body"]
        assert len({part["id"] for part in body}) == len(body) > 1


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
