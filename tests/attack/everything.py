"""Imported by the fork server alone (`forks`): all that a command line may import, and what typer reads."""

import gc
import importlib
import pkgutil
from contextlib import suppress

import pytest

import fullrank
from tests.attack.frame import parse_once

names = [module.name for module in pkgutil.walk_packages(fullrank.__path__, "fullrank.")]
for name in (*names, "matplotlib.pyplot", "matplotlib.backends.backend_svg", "jinja2", "optuna", "torch._dynamo",
             "torch.distributed", "lightning.pytorch", "faiss"):  # fmt: skip
    if not name.endswith("__main__"):
        with suppress(ImportError):
            importlib.import_module(name)
parse_once(pytest.MonkeyPatch())
gc.freeze()
