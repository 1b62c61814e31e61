"""llms.txt beside built pages: every page of the contents with its first sentence, and the text of them all."""

import io
import sys
from pathlib import Path

import pytest
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_each_page_has_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    pages = {
        "index": "# Shop\n\nAbout a shop. More.\n\n```{toctree}\n:caption: Start\n\none\ndeep\n```\n",
        "one": "# First\n\nWhat to do\nfirst. And then\n`more`.\n",
        "deep": "# Below\n\n" + "long " * 60 + "\n\n```{toctree}\nunder\n```\n",
        "under": "# Under\n\nIt ends so:\n\n- here\n",
    }
    for name, text in pages.items():
        (tmp_path / f"{name}.md").write_text(text)
    settings = {"extensions": ["myst_parser", "llms_txt"], "project": "shop", "release": "3"}
    out = tmp_path / "out"
    app = Sphinx(tmp_path, None, out, tmp_path / "trees", "html", settings, status=io.StringIO(), warning=io.StringIO())
    app.build()
    said = (out / "llms.txt").read_text().splitlines()
    assert said[:5] == ["# shop 3", "", "> About a shop.", "", "## Start"]
    first, below, under = said[6:]
    assert first == "- [First](_sources/one.md.txt): What to do first."
    assert (
        below.startswith("- [Below](_sources/deep.md.txt): long long") and below.endswith(" ...") and len(below) < 250
    )
    assert under == "- [Under](_sources/under.md.txt): It ends so"
    assert all((out / line.partition("](")[2].partition(")")[0]).is_file() for line in said[6:])
    whole = (out / "llms-full.txt").read_text()
    assert all(text.strip() in whole for text in pages.values())
