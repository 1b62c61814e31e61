"""Coverage-guided fuzzing of one reader: ``python -m tests.fuzz parquet --seconds 120``, with atheris (libFuzzer).

Inputs that reach new lines of the library are kept in build/fuzz/TARGET and grown from. What ends in anything but an
answer or a `UserError`, or takes more than 30 seconds or 4 GiB, is left as build/fuzz/TARGET-crash-HASH, and the exit
code is not 0; `python -m tests.fuzz TARGET FILE` reads it again. A file that was mended for joins `found/TARGET/`,
which `test_targets.py` reads.
"""

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))  # as pytest has it
with atheris.instrument_imports(include=["fullrank"]):
    from tests.fuzz.targets import TARGETS

VALUES = (None, True, -1, 0, 2**63, 10**30, 0.5, float("nan"), float("inf"), "", "x" * 300, "../x", [], {}, [[]], "1")


def changed(tree: Any, draw: random.Random) -> Any:
    """The tree with one value, wherever it stands, exchanged, taken out, or put in the place of another."""
    places, waiting = [], [tree]
    while waiting:
        inner = waiting.pop()
        keys = list(inner) if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
        places += [(inner, key) for key in keys]
        waiting += [inner[key] for key in keys]
    if not places:
        return draw.choice(VALUES)
    (inner, key), (other, at) = draw.choice(places), draw.choice(places)
    if draw.random() < 0.2:
        del inner[key]
    else:
        inner[key] = json.loads(json.dumps(other[at])) if draw.random() < 0.3 else draw.choice(VALUES)
    return tree


def of_json(data: bytes, most: int, seed: int) -> bytes:
    """Mutate what is JSON behind its first byte as a tree, half of the time, and bytes as libFuzzer does."""
    draw = random.Random(seed)
    if draw.random() < 0.5:
        try:
            text = json.dumps(changed(json.loads(data[1:]), draw)).encode()
        except (ValueError, RecursionError, TypeError):
            text = b""
        if 0 < len(text) < most:
            return data[:1] + text
    return bytes(atheris.Mutate(data, most))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("file", nargs="*", help="read these inputs alone")
    parser.add_argument("--seconds", type=int, default=120)
    options = parser.parse_args()
    target, out = TARGETS[options.target], ROOT / "build" / "fuzz"
    corpus = out / options.target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    logging.disable(logging.CRITICAL)
    memory = Path("/dev/shm")
    scratch = Path(tempfile.mkdtemp(prefix="fullrank-fuzz-", dir=memory if memory.is_dir() else None))
    words = [
        f"-max_total_time={options.seconds}", "-timeout=30", "-rss_limit_mb=4096", "-max_len=65536", "-len_control=0",
        f"-artifact_prefix={out}/{options.target}-", "-print_final_stats=1", "-seed=1",
    ]  # fmt: skip
    mutator = {"custom_mutator": of_json} if options.target == "manifest" else {}
    files = options.file or [str(corpus)]
    try:
        atheris.Setup([sys.argv[0], *words, *files], lambda data: target(data, scratch), **mutator)
        atheris.Fuzz()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
