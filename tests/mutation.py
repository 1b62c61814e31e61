"""The mutation score of metrics, filters and splits: the share of small faults in them that their own tests notice.

``python tests/mutation.py --share 0.15`` prints, for each file, how many mutants its tests kill, and every survivor as
a difference. It needs mutmut (``pip install mutmut==3.8.1``), whose operators make the mutants: an argument left out or
None, an operator exchanged, a number one more, a branch forced, a value None. Strings are left as they are: codes
of errors have a test of their own, and the words of a sentence may change. mutmut leaves out decorated functions and
what stands outside of functions.

Tests are run by the process of the planted faults (`plants/server.py`), a fork for each mutant: mutmut's own forks come
after a first run of the tests, and the threads of polars do not live on in a fork.
"""

import argparse
import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SELECTED = "not (slow or process or page or redis or cluster)"
TESTS = {
    "metrics/__init__.py": "tests/metrics/test_lists.py",
    "metrics/ctr.py": "tests/metrics/test_ctr.py",
    "metrics/lists.py": "tests/metrics/test_lists.py tests/evaluation/test_statistics.py",
    "metrics/names.py": "tests/metrics/test_names.py tests/metrics/test_lists.py",
    "inference/filters.py": "tests/inference/test_users_and_filters.py tests/inference/test_filters.py "
    "tests/inference/test_exact.py",
    "inference/column_filters.py": "tests/serving/test_columns.py tests/inference/test_users_and_filters.py",
    "data/events/filters.py": "tests/data/test_prepare.py tests/data/test_columns.py",
    "data/events/splits.py": "tests/data/test_splits.py tests/data/test_moments.py",
}
"""File of the source -> its tests, of which the marked ones are left out."""
SECONDS = 60
"""A mutant whose tests take longer loops for ever: it counts as killed."""


def mutants(code: str) -> list[str]:
    """The sources that differ from `code` by one mutation, each once."""
    import libcst
    from mutmut.mutation.file_mutation import create_mutations

    module, mutations, _, _ = create_mutations("source", code)
    chosen = [one for one in mutations if one.contained_by_top_level_function is not None
              and not isinstance(one.original_node, libcst.SimpleString)]  # fmt: skip
    texts = [module.deep_replace(one.original_node, one.mutated_node).code for one in chosen]  # type: ignore[union-attr]
    return [text for text in dict.fromkeys(texts) if text != code]


def sample(texts: list[str], share: float) -> list[str]:
    """The share of them with the least hash: a larger share holds a smaller one, and other mutants change no choice."""
    ordered = sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())
    return ordered[: round(share * len(ordered))]


def difference(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


class Tree:
    """A copy of source and tests, in which files are mutated, and the process that runs its tests."""

    def __init__(self, folder: Path):
        self.root, self.said, self.written = folder / "root", folder / "said", 0
        self.root.mkdir()
        for path in ROOT.iterdir():
            if path.name in ("src", "tests"):
                shutil.copytree(path, self.root / path.name)
            elif not path.name.startswith((".", "build")):
                (self.root / path.name).symlink_to(path)
        command = [sys.executable, str(ROOT / "tests" / "plants" / "server.py")]
        self.server = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def write(self, file: Path, text: str) -> None:
        """With a time of its own: by that and the size Python knows whether what it compiled is of this text."""
        file.write_text(text, encoding="utf-8")
        self.written += 1
        os.utime(file, (self.written, self.written))

    def test(self, tests: str) -> int:
        """Pytest's exit code; less than 0 where it did not end."""
        options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-m", SELECTED, "--tb=line"]
        job = {"root": str(self.root), "said": str(self.said), "words": [*options, *tests.split()], "seconds": SECONDS}
        assert self.server.stdin is not None and self.server.stdout is not None
        print(json.dumps(job), file=self.server.stdin, flush=True)
        return int(self.server.stdout.readline())


def survivors(tree: Tree, name: str, share: float) -> tuple[int, list[str]]:
    """How many mutants of a file were tried, and the differences of those that no test noticed."""
    place, tests = Path("src", "fullrank", name), TESTS[name]
    file = tree.root / place
    code = file.read_text(encoding="utf-8")
    if tree.test(tests) != 0:
        sys.exit(f"the tests of {name} fail without a mutation:\n{tree.said.read_text(encoding='utf-8')[-3000:]}")
    tried, alive = sample(mutants(code), share), []
    for text in tried:
        tree.write(file, text)
        if tree.test(tests) == 0:
            alive.append(difference(code, text))
            print(f"survived in {name}:\n{alive[-1]}", flush=True)
    tree.write(file, code)
    return len(tried), alive


def rows(names: list[str], share: float) -> Iterator[tuple[str, int, int]]:
    """(file, mutants, killed) of each."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        try:
            for name in names:
                begin = time.monotonic()
                count, alive = survivors(tree, name, share)
                print(f"{name}: {count - len(alive)} of {count}, {time.monotonic() - begin:.0f} s", flush=True)
                yield name, count, count - len(alive)
        finally:
            assert tree.server.stdin is not None
            tree.server.stdin.close()
            tree.server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", default=list(TESTS), help="below src/fullrank; all of them by default")
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants of each file")
    parser.add_argument("--least", type=float, default=0.0, help="the exit code is 1 below this share of killed ones")
    options = parser.parse_args()
    table = list(rows(options.files, options.share))
    table.append(("all", sum(row[1] for row in table), sum(row[2] for row in table)))
    print("| file | mutants | killed | score |\n|---|---|---|---|")
    for name, count, killed in table:
        print(f"| `{name}` | {count} | {killed} | {killed / max(count, 1):.1%} |")
    return int(table[-1][2] < options.least * table[-1][1])


if __name__ == "__main__":
    sys.exit(main())
