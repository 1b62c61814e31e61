"""A virtual environment for each peer, made from its pinned requirements under .cache/peers/<name>.

FuxiCTR's package holds no models: their files are fetched from its repository at one commit, with the environment.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from benchmarks.harness import ROOT, Say
from fullrank.core.errors import UserError

HERE = Path(__file__).resolve().parent
PLACE = ROOT / ".cache" / "peers"
TORCH = "torch==2.13.0"
TORCH_CPU = "https://download.pytorch.org/whl/cpu"
ZOO = PLACE / "fuxictr-models"
COMMIT = "0245987fdc1d43c36164ea496a02324885a8557a"
MODELS = {
    "DCNv2": "78fc7d1c4f129dcbb750e410e53e075a646cacf5462ebd186ce0cf687418f4a9",
    "FinalMLP": "e0bf8021f7841f4213dc762d5ee99afde4d2416d177895698826045371a88b8b",
}
"""FuxiCTR's models that are compared, with the SHA-256 of their files at that commit."""


def requirements(name: str) -> Path:
    return HERE / "requirements" / f"{name}.txt"


def python_of(name: str, say: Say) -> Path:
    """The interpreter of a peer's environment, which is made first where it is absent or its requirements changed."""
    if name == "ours":
        return Path(sys.executable)
    if name == "fuxictr":
        fetch_models(say)
    folder = PLACE / name
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = _sha256(requirements(name).read_bytes())
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    say(f"make the environment of {name} in {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "-q"]
    # torch alone and first: resolved together with a peer, pip may take a build with CUDA
    _run([*pip, *_cpu_index(), TORCH])
    _run([*pip, "-r", str(requirements(name))])
    stamp.write_text(wanted)
    return python


def fetch_models(say: Say) -> None:
    """Put FuxiCTR's models into `ZOO`, from GitHub or from the checkout that FULLRANK_FUXICTR names."""
    for name, wanted in MODELS.items():
        file = ZOO / f"{name}.py"
        if file.is_file() and _sha256(file.read_bytes()) == wanted:
            continue
        inside, checkout = f"model_zoo/{name}/src/{name}.py", os.environ.get("FULLRANK_FUXICTR")
        source = f"{checkout or f'https://raw.githubusercontent.com/reczoo/FuxiCTR/{COMMIT}'}/{inside}"
        say(f"fetch {source}")
        try:
            content = Path(source).read_bytes() if checkout else _downloaded(source)
        except OSError as error:
            raise UserError(
                f"{source} cannot be read ({error}): go online, or set FULLRANK_FUXICTR to a checkout of "
                f"github.com/reczoo/FuxiCTR at {COMMIT[:12]}"
            ) from None
        if _sha256(content) != wanted:
            raise UserError(f"{source} is not the file of commit {COMMIT[:12]}")
        ZOO.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _downloaded(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        content: bytes = answer.read()
    return content


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _cpu_index() -> list[str]:
    try:
        with urllib.request.urlopen(f"{TORCH_CPU}/torch/", timeout=3):
            return ["--extra-index-url", TORCH_CPU]
    except OSError:
        return []  # torch comes from where pip is configured to look


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = " ".join(done.stderr.strip().splitlines()[-3:])
        raise UserError(f"{' '.join(command[1:5])} ... failed: {last}")
