"""Sphinx settings: Markdown pages, the furo theme. `make docs` builds them and fails on a warning."""

from importlib import metadata

project = "fullrank"
author = "The fullrank authors"
copyright = f"2026, {author}"
release = metadata.version("fullrank")

extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"fullrank {release}"
exclude_patterns = ["_build"]
nitpicky = True
