"""`fullrank doctor` and `verify`: does this installation work, what does it lack; is a folder as it was written?"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

from fullrank import __version__
from fullrank.cli.errors import EXTRAS
from fullrank.cli.options import argument
from fullrank.cli.output import Output
from fullrank.cli.verbs import verb
from fullrank.core.errors import UserError, install_extra
from fullrank.core.file_system import NEEDED, check_file_system
from fullrank.core.files import JsonObject

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
USERS, ITEMS, LENGTH = 400, 40, 12
"""Users, items and events of a user in the self-test, where each user walks over the items in steps of one."""
START, DAY = 1_700_000_000, 86_400
"""Time of its first event (seconds since 1970), and the seconds between two events of a user."""
BAR = 0.8
"""Recall@10 that a model which learned the rule reaches; by chance it is 10 / 40."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")
LESS = {
    "rename": "a file may be found half written",
    "flush": "what was written may be lost where power fails",
    "exchange": "a folder that is replaced is absent for a moment",
    "lock": "nothing keeps two processes from writing to one folder at the same time",
}
"""Ability of a file system -> what may happen without it."""


@verb()
def doctor(output: Output) -> None:
    """Check this installation with a small training run.

    The exit code is 2 where something that fullrank cannot do without is broken. What a service
    needs: `fullrank doctor-serve`.

    \b
    fullrank doctor
    """
    report: JsonObject = {
        "fullrank": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: version(name) for name in CORE},
    }
    output.say(f"fullrank {__version__}, Python {report['python']}, {report['system']}")
    output.say("  " + ", ".join(f"{name} {version or 'MISSING'}" for name, version in report["packages"].items()))
    report["torch"] = _torch(output)
    report["extras"] = _extras(output)
    report["folder"] = _folder(output)
    report["self_test"] = _self_test(output)
    finish(output, report, "folder", "self_test")


def finish(output: Output, report: JsonObject, *checks: str) -> None:
    """End the verb, with exit code 2 where one of its checks found something broken."""
    problems = [report[name]["problem"] for name in checks if not report[name]["ok"]]
    broken = UserError(f"not in order: {', '.join(problems)}", code="installation-broken")
    output.finish(report, broken=broken if problems else None)


def version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch(output: Output) -> JsonObject:
    """Print and return facts about torch: its build, GPUs and threads."""
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if torch.version.hip else "CPU"
    facts = {
        "version": torch.__version__,
        "build": build,
        "gpus": gpus,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "threads_set_by": {n: os.environ[n] for n in _THREADS if n in os.environ},
    }
    output.say(f"torch: {build} build, {facts['threads']} threads on {facts['cores']} cores")
    if gpus:
        output.say(f"GPU: {', '.join(gpus)}")
    else:
        missing = ", though this torch was built for one: check the driver (nvidia-smi)" * bool(torch.version.cuda)
        output.say(f"GPU: none{missing}; everything works on the CPU")
    return facts


def _extras(output: Output) -> JsonObject:
    """Print and return the packages of each extra that are missing."""
    extras: dict[str, JsonObject] = {}
    for extra, packages in EXTRAS.items():
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        extras[extra] = {"missing": missing, "installed": not missing, "install": install_extra(extra)}
    rows = [(extra, *(("yes", "") if e["installed"] else ("no", e["install"]))) for extra, e in extras.items()]
    output.table(("extra", "installed", "to install it"), rows)
    return extras


def _folder(output: Output) -> JsonObject:
    """Check that runs can be written here, and what the file system can do for them."""
    here = Path.cwd()
    try:
        promises = check_file_system(here)
    except OSError as error:
        problem = f"nothing can be written in {here}: {error.strerror or error}"
        output.say(f"folder: {problem}")
        return {"ok": False, "path": here, "problem": problem, "file_system": {}}
    lacking = {name: why for name, why in promises.items() if why is not None}
    broken = [f"{name}: {why}" for name, why in lacking.items() if name in NEEDED]
    output.say(f"folder: {here} can be written to ({', '.join(name for name in promises if name not in lacking)})")
    for name, why in lacking.items():
        output.say(f"  {name}: NO, {why}; {LESS[name]}")
    fault = f"the file system of {here} does not do what is needed: {'; '.join(broken)}" if broken else None
    return {"ok": not broken, "path": here, "problem": fault, "file_system": promises}


def _self_test(output: Output) -> JsonObject:
    """Run the self-test, and print its outcome or why it failed."""
    try:
        facts = selftest()
    except Exception as error:  # whatever is broken here, the report must say so
        problem = f"the self-test failed: {type(error).__name__}: {' '.join(str(error).split())}"
        output.say(problem)
        if "--debug" in sys.argv:
            raise
        return {"ok": False, "problem": problem}
    output.say(
        f"self-test: trained {facts['parameters']:,} parameters in {facts['seconds']:.1f} s; recall@10 "
        f"{facts['recall']:.3f}, by chance {facts['chance']:.3f}: {'ok' if facts['ok'] else 'NOT ok'}"
    )
    return facts


def selftest() -> JsonObject:
    """Train a very small model for real: {"ok": whether it learned the planted walks, "recall", "chance", ...}."""
    import numpy as np
    import polars as pl

    from fullrank import api
    from fullrank.data.events.prepare import prepare
    from fullrank.run.experiment import Experiment, Training
    from fullrank.training import fit  # noqa: F401  (seconds of imports that are not the test's)

    start = np.random.default_rng(0).integers(ITEMS, size=(USERS, 1))
    walks = (start + np.arange(LENGTH)) % ITEMS
    table = pl.DataFrame(
        {
            "user_id": np.repeat(np.arange(USERS), LENGTH),
            "item_id": walks.ravel() + 1,
            "timestamp": np.tile(START + DAY * np.arange(LENGTH), USERS),
        }
    )
    small = ("model.dim=16", "model.encoder.layers=1", "model.encoder.attention.heads=1", "model.encoder.dropout=0")
    training = Training(max_epochs=6, batch_size=512, lr=2e-2)
    experiment = Experiment(recipe="selftest", training=training).override(*small)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        store = prepare(table, Path(folder) / "data")
        run = api.train(experiment, store, Path(folder) / "run", progress=False)
        recall = api.evaluate(run, data=store, set=["metrics=[recall@10]", "bootstrap=0"]).metrics["recall@10"]
        best = api.recommend(run, [[3, 4, 5, 6]], k=1)["item"][0]
        spent = time.perf_counter() - begun
    problem = (
        None
        if recall >= BAR and best == 7
        else f"recall@10 is {recall:.3f}, {BAR} was expected, and 7 after 3, 4, 5, 6"
    )
    return {
        "ok": problem is None,
        "problem": problem,
        "recall": recall,
        "chance": 10 / ITEMS,
        "after_3_4_5_6": best,
        "parameters": run.manifest["parameters"],
        "seconds": spent,
    }


@verb()
def verify(
    folder: Annotated[Path, argument("FOLDER", "A store, a run, or a folder of codes.")],
    output: Output,
) -> None:
    """Compare the files of a folder with their hashes.

    The folder is a store, a run or codes. The exit code is 2 where a file is missing or is not as it
    was written. Hashes find damage and mix-ups of files, not somebody who changed the hashes too.

    \b
    fullrank verify data/shop
    fullrank verify runs/sasrec
    """
    from fullrank.core.specs_alone import ask_alone

    ask_alone("fullrank.run.verification", lambda there: there.manifest_of(folder))
    from fullrank.run.verification import verify as check

    verification = check(folder)
    output.say(f"{verification.kind} {verification.path}")
    output.table(
        ("file", "bytes", "state"),
        [(file.name, "" if file.bytes is None else f"{file.bytes:,}", file.state) for file in verification.files],
    )
    output.notes(verification.notes)
    verification.require_ok()
    output.finish(verification.dump())
