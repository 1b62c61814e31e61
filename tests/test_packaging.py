"""What a stranger gets: the page on PyPI, the wheel in an empty environment, and the oldest versions allowed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")


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
