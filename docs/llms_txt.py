"""llms.txt and llms-full.txt beside the built pages, for programs that read them (https://llmstxt.org).

The first lists every page of the contents with a line about it, the page's first sentence; the second holds the text of
them all. Both come from what was built, so a new page is in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes

LONGEST = 200
"""Characters of the line about a page."""


def setup(app: Any) -> dict[str, bool]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write(app: Any, exception: Exception | None) -> None:
    """Both files, after a build of HTML that succeeded."""
    if exception is not None or app.builder.name != "html":
        return
    env, start = app.env, app.config.root_doc
    said = [f"# {app.config.project} {app.config.release}", "", f"> {sentence(env, start)}"]
    texts = [source(env, start)]
    for caption, pages in contents(env, start):
        said += ["", f"## {caption}", ""]
        for page in pages:
            said.append(f"- [{env.titles[page].astext()}]({address(env, page)}): {sentence(env, page)}")
            texts.append(source(env, page))
    folder = Path(app.outdir)
    (folder / "llms.txt").write_text("\n".join(said) + "\n", encoding="utf-8")
    (folder / "llms-full.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def contents(env: Any, start: str) -> Iterator[tuple[str, list[str]]]:
    """The captions of the contents and the pages below each, with those of a page's own contents behind it."""
    for tree in env.get_doctree(start).findall(addnodes.toctree):
        below = [page for one in tree["includefiles"] for page in (one, *env.toctree_includes.get(one, []))]
        yield tree["caption"], below


def address(env: Any, page: str) -> str:
    """The page's Markdown as it was written; of a notebook, whose file is mostly pictures, the page."""
    suffix = Path(env.doc2path(page)).suffix
    return f"{page}.html" if suffix == ".ipynb" else f"_sources/{page}{suffix}.txt"


def sentence(env: Any, page: str) -> str:
    """The first sentence of a page, in one line."""
    first = next(env.get_doctree(page).findall(nodes.paragraph), None)
    text = " ".join(first.astext().split()) if first is not None else ""
    said = re.split(r"(?<=[.:])\s+(?=[A-Z])", text, maxsplit=1)[0]
    return said.rstrip(":") if len(said) <= LONGEST else said[: said.rindex(" ", 0, LONGEST)] + " ..."


def source(env: Any, page: str) -> str:
    """The text of a page; of a notebook that of its cells."""
    if Path(env.doc2path(page)).suffix == ".ipynb":
        return str(env.get_doctree(page).astext())
    return Path(env.doc2path(page)).read_text(encoding="utf-8").strip()
