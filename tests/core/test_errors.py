"""Sentences for the user: how an extra is installed, wherever this fullrank came from."""

import importlib.metadata
import json
from typing import Any

import pytest

from fullrank.core.errors import install_extra

ORIGINS = {
    "pip install 'fullrank[report]'": None,
    "pip install '/my shop/fullrank-0.2-py3-none-any.whl[report]'": {
        "url": "file:///my%20shop/fullrank-0.2-py3-none-any.whl", "archive_info": {},
    },
    "pip install '/src/fullrank[report]'": {"url": "file:///src/fullrank", "dir_info": {}},
    "pip install -e '/src/fullrank[report]'": {"url": "file:///src/fullrank", "dir_info": {"editable": True}},
    "pip install 'fullrank[report] @ git+https://example.org/fullrank'": {
        "url": "https://example.org/fullrank", "vcs_info": {"vcs": "git", "commit_id": "0"},
    },
}  # fmt: skip
"""Command -> direct_url.json (PEP 610), which pip writes unless an index had the package."""


def test_an_extra_comes_from_where_fullrank_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        origin: Any = None

        def read_text(self, name: str) -> str | None:
            return None if self.origin is None else json.dumps(self.origin)

    installed = Installed()
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: installed)
    for command, installed.origin in ORIGINS.items():
        assert install_extra("report") == command
