"""`fullrank doctor`: does this installation work, and what could it do with more packages?"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer

from fullrank import __version__
from fullrank.cli.errors import EXTRAS
from fullrank.cli.options import AsJson
from fullrank.cli.output import Output
from fullrank.core.errors import UserError

CORE = (
    "torch",
    "lightning",
    "pydantic",
    "typer",
    "rich",
    "narwhals",
    "polars",
    "numpy",
    "safetensors",
    "pyyaml",
    "jaxtyping",
    "urllib3",
)
"""Distributions that every installation has."""


def add(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(as_json: AsJson = False) -> None:
    """Check this installation with a small training run.

    The exit code is 2 where something that fullrank cannot do without is broken.

    \b
    fullrank doctor
    """
    screen = Output(as_json)
    found: dict[str, Any] = {
        "fullrank": __version__, "python": platform.python_version(), "system": platform.platform(),
        "packages": {name: _version(name) for name in CORE},
    }  # fmt: skip
    screen.say(f"fullrank {__version__}, Python {found['python']}, {found['system']}")
    screen.say("  " + ", ".join(f"{name} {version or 'MISSING'}" for name, version in found["packages"].items()))
    found["torch"] = _torch(screen)
    found["extras"] = _extras(screen)
    found["folder"] = _folder(screen)
    found["self_test"] = _self_test(screen)
    screen.finish(found)
    broken = [name for name in ("folder", "self_test") if not found[name]["ok"]]
    if broken and not as_json:
        raise UserError(f"not in order: {', '.join(found[name]['problem'] for name in broken)}")
    if broken:
        raise typer.Exit(2)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch(screen: Output) -> dict[str, Any]:
    import torch

    gpus = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "CPU"
    facts = {
        "version": torch.__version__, "build": build, "gpus": gpus, "threads": torch.get_num_threads(),
        "cores": os.cpu_count(), "threads_set_by": {n: os.environ[n] for n in _THREADS if n in os.environ},
    }  # fmt: skip
    screen.say(f"torch: {build} build, {facts['threads']} threads on {facts['cores']} cores")
    if gpus:
        screen.say(f"GPU: {', '.join(gpus)}")
    else:
        missing = (
            "" if torch.version.cuda is None else ", though this torch was built for one: check the driver (nvidia-smi)"
        )
        screen.say(f"GPU: none{missing}; everything works on the CPU")
    return facts


_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")


def _extras(screen: Output) -> dict[str, Any]:
    """Of each extra what is there and what is missing."""
    found: dict[str, Any] = {}
    for package, extra in EXTRAS.items():
        there = importlib.util.find_spec(package) is not None
        found.setdefault(extra, {"missing": []})
        if not there:
            found[extra]["missing"].append(package)
    rows = []
    for extra, facts in found.items():
        facts["installed"] = not facts["missing"]
        facts["install"] = f"pip install 'fullrank[{extra}]'"
        rows.append((extra, "yes" if facts["installed"] else "no", "" if facts["installed"] else facts["install"]))
    screen.table(("extra", "installed", "to install it"), rows)
    return found


def _folder(screen: Output) -> dict[str, Any]:
    """Whether runs can be written here."""
    here = Path.cwd()
    try:
        with tempfile.TemporaryFile(dir=here):
            pass
    except OSError as error:
        problem = f"nothing can be written in {here}: {error.strerror or error}"
        screen.say(f"folder: {problem}")
        return {"ok": False, "path": here, "problem": problem}
    screen.say(f"folder: {here} can be written to")
    return {"ok": True, "path": here, "problem": None}


def _self_test(screen: Output) -> dict[str, Any]:
    from fullrank.cli.selftest import selftest

    try:
        facts = selftest()
    except Exception as error:  # whatever is broken here, the report must say so
        problem = f"the self-test failed: {type(error).__name__}: {' '.join(str(error).split())}"
        screen.say(problem)
        if "--debug" in sys.argv:
            raise
        return {"ok": False, "problem": problem}
    screen.say(
        f"self-test: trained {facts['parameters']:,} parameters in {facts['seconds']:.1f} s; recall@10 "
        f"{facts['recall']:.3f}, by chance {facts['chance']:.3f}: {'ok' if facts['ok'] else 'NOT ok'}"
    )
    return facts
