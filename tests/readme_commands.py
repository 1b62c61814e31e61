"""Runs what README.md and getting started say, in their order, from a clean clone: `python tests/readme_commands.py`.

Each page has a clone of its own below --work (default: a temporary folder), where its blocks are run as a reader would:
commands of `bash` in one shell, `python` blocks with the imports of those before them, a `yaml` block as the file that
the next command reads. `fullrank serve` goes on while the rest of its block asks it. Nothing is listed here but the
tables that a reader brings (`BRING`). A block below the comment `<!-- not run: REASON -->` is counted and left out. The
exit code is 1 where anything fails. Takes some ten minutes, most of them pip's and the demo's, so no test calls it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/guide/getting_started.md")
BLOCK = re.compile(r"(?:<!-- not run: (?P<why>[^\n]*?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.S)
SECONDS = 1200
"""The longest that one command may take."""
BRING = """
import polars as pl
from fullrank.data.sources.planted import Planted
shop = Planted(users=300, items=60).read()
item = pl.col("item_id") - 1000
shop.items.with_columns(item).write_parquet("items.parquet")
events = shop.events.with_columns(item)
events.drop("rating").write_parquet("events.parquet")
words = {"user_id": "customer", "item_id": "sku", "timestamp": "bought_at"}
events.rename(words).write_csv("log.csv")
events.rename({"rating": "stars"}).write_csv("ratings.csv")
"""
"""The tables that the pages read, which a reader has: a small generated shop whose items are called 1 to 60."""


@dataclass(frozen=True)
class Step:
    """A command, or a block of another language."""

    language: str
    text: str
    line: int
    block: int
    why_not: str = ""


def steps(text: str) -> Iterator[Step]:
    """What a page says to do, in order: each command of its shell blocks, its Python blocks and the files it shows."""
    for number, found in enumerate(BLOCK.finditer(text)):
        language, why = found["language"], found["why"] or ""
        first = text.count("\n", 0, found.start("text")) + 1
        if language == "bash":
            for offset, line in enumerate(found["text"].splitlines()):
                if line.strip() and not line.lstrip().startswith("#"):
                    yield Step(language, line, first + offset, number, why)
        elif language in ("python", "yaml"):
            yield Step(language, found["text"], first, number, why)


class Reader:
    """Somebody who does what a page says, in one folder."""

    def __init__(self, folder: Path):
        self.folder, self.state = folder, folder / ".reader"
        self.said: list[str] = []
        self.shown = ""
        self.service: subprocess.Popen[bytes] | None = None
        self.brought = False
        own = str(Path(sys.prefix) / "bin")
        kept = [place for place in os.environ["PATH"].split(os.pathsep) if place != own]
        self.env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self.env["PATH"] = os.pathsep.join(kept)

    def do(self, step: Step) -> None:
        """Raises `CalledProcessError` or `TimeoutExpired` where it does not work."""
        if step.language == "yaml":
            self.shown = step.text
            return
        if not self.brought and (self.folder / ".venv" / "bin" / "fullrank").exists():
            self.bash(f".venv/bin/python - <<'END'\n{BRING}\nEND")
            self.brought = True
        if step.language == "python":
            self.said.append(step.text)  # the interpreter of a reader knows what was said before; here it is said again
            names = "\n".join(
                line for text in self.said[:-1] for line in text.splitlines() if line.startswith("import ")
            )
            self.bash(f"python - <<'END'\n{names}\n{step.text}\nEND")
            return
        named = re.search(r"\S+\.yaml", step.text)
        if named is not None and self.shown:
            (self.folder / named[0]).write_text(self.shown, encoding="utf-8")
        if step.text.startswith("fullrank serve"):
            self.serve(step.text)
        else:
            self.bash(step.text)

    def bash(self, command: str) -> None:
        """A command in the shell, whose variables (`source .venv/bin/activate`) those behind it have too."""
        before, after = f"[ ! -f {self.state} ] || source {self.state}", f"export -p > {self.state}"
        script = f"{before}; set -eo pipefail\n{command}\n{after}\n"
        subprocess.run(["bash", "-c", script], cwd=self.folder, env=self.env, check=True, timeout=SECONDS)

    def serve(self, command: str) -> None:
        """Start the service, and wait until it answers."""
        self.service = subprocess.Popen(
            ["bash", "-c", f"source {self.state}; exec {command.partition('#')[0]}"], cwd=self.folder, env=self.env
        )
        for _ in range(120):
            asked = ["curl", "--silent", "--output", "/dev/null", "http://127.0.0.1:8000/v1/model"]
            if subprocess.run(asked, check=False).returncode == 0:
                return
            if self.service.poll() is not None:
                break
            time.sleep(1)
        raise subprocess.CalledProcessError(self.service.returncode or 1, command)

    def stop(self) -> None:
        """End the service of the block before."""
        if self.service is not None:
            self.service.terminate()
            self.service.wait(60)
            self.service = None


def follow(page: str, work: Path) -> list[tuple[Step, str, float]]:
    """Each step of a page with `ok`, `not run: ...` or `FAILED: ...`, and its seconds."""
    clone = work / Path(page).stem
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    reader, outcomes, block = Reader(clone), [], -1
    for step in steps((clone / page).read_text(encoding="utf-8")):
        if step.block != block:
            reader.stop()
        block, begun, outcome = step.block, time.perf_counter(), "ok"
        if step.why_not:
            outcome = f"not run: {step.why_not}"
        else:
            print(f"{page}:{step.line}: {step.text.splitlines()[0]}", file=sys.stderr, flush=True)
            try:
                reader.do(step)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                outcome = f"FAILED: {type(error).__name__}"
        outcomes.append((step, outcome, time.perf_counter() - begun))
    reader.stop()
    return outcomes


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("pages", nargs="*", default=PAGES)
    words.add_argument("--work", type=Path, help="where the clones are made")
    given = words.parse_args()
    work = given.work or Path(tempfile.mkdtemp(prefix="readme-"))
    all_of_them = {page: follow(page, work) for page in given.pages}
    outcomes = []
    for page, found in all_of_them.items():
        for step, outcome, seconds in found:
            print(f"{seconds:7.1f} s  {outcome:12} {page}:{step.line}  {step.text.splitlines()[0]}")
            outcomes.append(outcome)
    failed = sum(outcome.startswith("FAILED") for outcome in outcomes)
    left = sum(outcome.startswith("not run") for outcome in outcomes)
    print(f"{len(outcomes)} steps: {len(outcomes) - failed - left} ran, {left} not run, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
