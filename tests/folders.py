"""What tests of folders and of other processes share: names in a folder, packages, Python code that runs by itself.

And what a machine may refuse: room on the disk, and whatever has a limit.
"""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def left(folder: Path) -> list:
    return sorted(path.name for path in folder.iterdir())


def distribution(site: Path, name: str, points: Mapping[str, Mapping[str, str]]) -> None:
    """The metadata of an installed package: group -> entry point -> `module:name`."""
    info = site / f"{name.replace('-', '_')}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    lines = [line for group in points for line in (f"[{group}]", *(f"{p} = {at}" for p, at in points[group].items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def python(code: str, *arguments: object, ends: int = 0, **environment: str) -> subprocess.CompletedProcess:
    """Run code with the imports of this process, and wait for this exit status."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == ends, f"{done.returncode}: {done.stderr[-800:]}"
    return done


def full(*_: object) -> None:
    """In place of a function that writes: there is no room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    """This process has such a limit (`resource.RLIMIT_FSIZE`)."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
