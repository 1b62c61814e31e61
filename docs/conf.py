"""Sphinx settings: Markdown pages and notebooks in the furo theme, which brings search, light and dark.

`make docs` builds them and fails on a warning. `llms.txt` lists the pages for programs that read them."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any

project = "fullrank"
author = "The fullrank authors"
copyright = f"2026, {author}"
release = metadata.version("fullrank")

sys.path.insert(0, str(Path(__file__).parent))
extensions = ["myst_nb", "sphinx.ext.autodoc", "llms_txt"]
nb_execution_mode = "off"  # they show what `make notebooks` left in them
nb_output_stderr = "remove"
myst_enable_extensions = ["dollarmath", "deflist", "substitution"]
myst_substitutions = {"release": release}
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"fullrank {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r".*")]  # types of other packages have no page here
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
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


def defaults_in_short(app: Any, thing: Any, bound: bool) -> None:
    """A default that is a tree of settings, by its name: `spec=Prepare()`."""
    if isinstance(thing, FunctionType):
        signature = inspect.signature(thing)
        shown = [
            one.replace(default=Shown(in_short(one.default))) if hasattr(one.default, "model_fields") else one
            for one in signature.parameters.values()
        ]
        thing.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]


class Shown:
    """What stands for a default."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def in_short(value: Any) -> str:
    return f"{type(value).__name__}()" if hasattr(value, "model_fields") else repr(value)


def _default(field: Any) -> str:
    return in_short(field.get_default(call_default_factory=True))


def setup(app: Any) -> None:
    app.connect("autodoc-before-process-signature", defaults_in_short)
    app.connect("autodoc-process-signature", settings_in_short)
    app.connect("autodoc-process-docstring", as_restructured_text)
