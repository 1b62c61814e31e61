"""A virtual environment for each peer, made from its pinned requirements under .cache/peers/<name>."""

from __future__ import annotations

import hashlib
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


def requirements(name: str) -> Path:
    return HERE / "requirements" / f"{name}.txt"


def python_of(name: str, say: Say) -> Path:
    """The interpreter of a peer's environment, which is made first where it is absent or its requirements changed."""
    if name == "ours":
        return Path(sys.executable)
    folder = PLACE / name
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = hashlib.sha256(requirements(name).read_bytes()).hexdigest()
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
