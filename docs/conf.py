"""Sphinx settings: Markdown pages, the furo theme. `make docs` builds them and fails on a warning."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

project = "fullrank"
author = "The fullrank authors"
copyright = f"2026, {author}"
release = metadata.version("fullrank")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"fullrank {release}"
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r".*")]  # types of other packages have no page here
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"exclude-members": "model_config, model_post_init, kind", "inherited-members": False}


def as_restructured_text(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are written for a terminal: `x` is code, an asterisk an asterisk."""
    text = "\n".join(lines)
    parts = re.split(r"(``.+?``|`[^`\n]+?`)", text)
    parts[::2] = [part.replace("*", r"\*") for part in parts[::2]]
    parts[1::2] = [part if part.startswith("``") else f"`{part}`" for part in parts[1::2]]
    lines[:] = "".join(parts).split("\n")


def settings_in_short(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Settings with their defaults alone: the types stand with each of them below."""
    if what != "class" or not hasattr(thing, "model_fields"):
        return signature, returns
    kinds = {key: field for key, field in thing.model_fields.items() if key != "kind"}
    said = [key if field.is_required() else f"{key}={_default(field)}" for key, field in kinds.items()]
    return f"({', '.join(said)})", None


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    return f"{type(value).__name__}()" if hasattr(value, "model_fields") else repr(value)


def setup(app: Any) -> None:
    app.connect("autodoc-process-signature", settings_in_short)
    app.connect("autodoc-process-docstring", as_restructured_text)
