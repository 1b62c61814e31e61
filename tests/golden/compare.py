"""`make golden`: does this tree compute what the baseline commit computed, to the last bit?

The baseline is checked out beside this tree, `record.py` runs in both with one thread and the same interpreter, and
the two records are compared. Prints a line for each recipe; exit code 0: equal, 1: some are not, 2: no comparison.
Another commit: ``make golden BASELINE=HASH``, or the environment variable FULLRANK_BASELINE.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fullrank.core.spec import REMOVED

ROOT = Path(__file__).resolve().parents[2]
BASELINE = "0addcbbd5a798fc35133f9a551f0e3292a057ded"
"""The last commit before the modules began to move."""
MAY_GAIN = ("spec", "rows")
"""Parts of a record that later versions may add keys to: a setting at its old behaviour, a figure in a row."""

MAY_LOSE = {name: removed.default for (_, name), removed in REMOVED.items()}
"""Settings of a spec that are gone, at the value with which nothing has changed."""


class NoComparison(Exception):
    """The two trees cannot be compared here; the message says why."""


def differences(old: Any, new: Any, path: str = "", *, may_gain: bool = False) -> Iterator[str]:
    """Every place in which two records differ, in order, with both values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in old:
            inside = f"{path} / {key}" if path else str(key)
            if key in new:
                now = known(old[key], new[key]) if key == "diagnosis" else new[key]
                yield from differences(old[key], now, inside, may_gain=may_gain or key in MAY_GAIN)
            elif not (path.startswith("spec") and key in MAY_LOSE and old[key] == MAY_LOSE[key]):
                yield f"{inside}: {brief(old[key])} is gone"
        if not may_gain:
            yield from (f"{path} / {key}: {brief(new[key])} is new" for key in new if key not in old)
    elif isinstance(old, list) and isinstance(new, list):
        for place, (one, other) in enumerate(zip(old, new, strict=False), 1):
            yield from differences(one, other, f"{path} #{place}", may_gain=may_gain)
        if len(old) != len(new):
            yield f"{path}: {len(old)} entries are now {len(new)}"
    elif type(old) is not type(new) or old != new:
        yield f"{path}: {brief(old)} is now {brief(new)}"


def known(old: list[Mapping[str, Any]], new: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those rows of a diagnosis that measure what the old one does: a diagnostic may join later, or a row of one."""

    def place(row: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        return tuple((key, value) for key, value in row.items() if key != "value")

    places = {place(row) for row in old}
    return [row for row in new if place(row) in places]


def brief(value: Any) -> str:
    """A value in a line of text; floats, which records hold in hexadecimal, with their decimal form."""
    text = value if isinstance(value, str) else json.dumps(value)
    try:
        return f"{text} ({float.fromhex(text)!r})" if text.lstrip("-").startswith("0x") else text[:120]
    except ValueError:
        return text[:120]


def report(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], bool]:
    """(the lines of the table, whether all is equal) of two records."""
    rows, same = [("recipe", "steps", "")], True
    parts = {f"store of {name}": name for name in old["stores"]}
    for label, name in parts.items():
        found = next(differences(old["stores"][name], new["stores"].get(name)), None)
        rows.append((label, "", found or "equal"))
        same = same and found is None
    for name, before in old["families"].items():
        after = new["families"].get(name, {"error": "this recipe was not run"})
        found = next(differences(before, after), None)
        if "error" in before:  # a baseline that fails proves nothing, whether or not this tree fails alike
            found = f"the baseline failed: {before['error']}"
        elif "error" in after:
            found = f"failed: {after['error']}"
        rows.append((name, str(len(before.get("losses", ())) or ""), found or "equal"))
        same = same and found is None
    wide = max(len(row[0]) for row in rows)
    return [f"{name:{wide}}  {steps:>5}  {told}".rstrip() for name, steps, told in rows], same


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A worktree of the commit in a temporary folder, removed afterwards. Raises `NoComparison`."""
    if _git("rev-parse", "--git-dir").returncode:
        raise NoComparison(f"{ROOT} is no git checkout, so the baseline {commit[:12]} cannot be built beside it")
    if _git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
        raise NoComparison(f"the commit {commit[:12]} is not in this clone's history; fetch it (git fetch --unshallow)")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "baseline"
        made = _git("worktree", "add", "--detach", str(place), commit)
        if made.returncode:
            raise NoComparison(f"git could not check out {commit[:12]}: {made.stderr.strip()}")
        try:
            yield place
        finally:
            _git("worktree", "remove", "--force", str(place))


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoComparison("git is not installed, so the baseline cannot be built") from None


def recorded(tree: Path, out: Path, names: Sequence[str] = ()) -> dict[str, Any]:
    """What the library in `tree` computes. The recording script is this tree's in both cases."""
    # Not in ROOT: the working folder would come before PYTHONPATH. The library's src comes before the editable install.
    path = os.pathsep.join([str(tree / "src"), str(ROOT)])
    one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "PYTHONPATH": path}
    one["FULLRANK_BF16"] = "0"  # the bits of fp32, on every machine
    command = [sys.executable, "-m", "tests.golden.record", str(out), *names]
    done = subprocess.run(command, cwd=out.parent, env=os.environ | one, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoComparison(f"recording {tree} failed: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(out.read_text())
    if Path(found["library"]).resolve() != (tree / "src" / "fullrank").resolve():
        raise NoComparison(f"the library was loaded from {found['library']} and not from {tree}: nothing was compared")
    return found


def main() -> int:
    commit = os.environ.get("FULLRANK_BASELINE") or BASELINE
    names = sys.argv[1:]
    print(f"Recording the baseline {commit[:12]} and this tree, about 30 seconds each on a quiet core", flush=True)
    try:
        with checked_out(commit) as baseline, tempfile.TemporaryDirectory() as folder:
            old = recorded(baseline, Path(folder) / "baseline.json", names)
            new = recorded(ROOT, Path(folder) / "here.json", names)
    except NoComparison as reason:
        print(f"No comparison: {reason}.")
        return 2
    lines, same = report(old, new)
    print("\n".join(lines))
    print("Equal bits." if same else "Not the same: the first difference of each recipe stands above.")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
