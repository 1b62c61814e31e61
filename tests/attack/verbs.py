"""The verbs that write, each as one small command line: what it reads, where it writes, what was there before.

`Verb.begin` lays out an empty folder as the verb finds it; `snapshot` is what a reader of its outputs sees, without
times of day and durations.
"""

import hashlib
import json
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.attack.frame import steady
from tests.attack.worlds import ENCODE, SMALL, located, world


def serving(respond: Callable[[BaseHTTPRequestHandler], None]) -> str:
    """The address of a server that answers each GET so."""
    handler = type(
        "Handler",
        (BaseHTTPRequestHandler,),
        {"do_GET": lambda handler: respond(handler), "log_message": lambda *_: None},
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


@cache
def slow_file() -> str:
    """Where any address is a file of 300 kB that comes in six pieces, or from where a range begins."""
    return serving(_slowly)


def _slowly(handler: BaseHTTPRequestHandler) -> None:
    whole = b"a,b\n" + b"1,2\n" * 75_000
    start = int(handler.headers.get("Range", "bytes=0-")[6:].rstrip("-"))
    headers = {"ETag": '"v1"', "Content-Length": len(whole) - start}
    if start:
        headers["Content-Range"] = f"bytes {start}-{len(whole) - 1}/{len(whole)}"
    handler.send_response(206 if start else 200)
    for name, value in headers.items():
        handler.send_header(name, str(value))
    handler.end_headers()
    try:
        for low in range(start, len(whole), 50_000):
            handler.wfile.write(whole[low : low + 50_000])
            threading.Event().wait(0.02)
    except OSError:  # the client was killed
        handler.close_connection = True


@dataclass(frozen=True)
class Verb:
    """A command line that writes. What begins with `@` lies in the world, the rest in its own folder."""

    name: str
    line: str | tuple[str, dict[str, str]]
    """Its words; or a function of fullrank and its arguments."""
    out: str
    """What it writes: a file or a folder."""
    old: str = ""
    """What is there before it starts: `out`, as this part of the world."""
    again: str = ""
    """A word more when it is started again behind a kill."""
    marker: str = ""
    """A folder of several files counts from the moment that it holds this one."""
    pair: bool = False
    """It writes an evaluation, two files that are checked against each other: a kill between them may cost both."""
    kind: str = "whole"
    """`whole`: its output is the old one or the new one at any time; `train`, `rows`, `part`: it grows."""
    once: bool = False
    """It refuses a folder that holds anything, also what it has written itself."""
    kills: int = 4
    """Places at which the suite kills it: all of them where it has fewer."""

    def begin(self, home: Path) -> Path:
        """Lay out its folder."""
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        if self.old:
            source, target = Path(world(self.old)), home / self.out
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target) if source.is_dir() else shutil.copyfile(source, target)
        return home

    def words(self, *, again: bool = False, as_json: bool = False) -> list[Any]:
        """The words with the paths of the world; what is replaced whole may be there already."""
        if not isinstance(self.line, str):
            return located(self.line)
        more = ["--overwrite"] * (self.kind == "whole" and not self.once) + ["--json"] * as_json
        words = self.line.replace("URL", slow_file() if "URL" in self.line else "").split()
        return located([*words, *more, *([self.again] if again and self.again else [])])


SHOP, SEEN = "--data @shop", "--set bootstrap=5 --data @shop"
TRAIN, CODES = f"train sasrec {SHOP} --out run {SMALL}", f"--vectors @vectors.parquet {ENCODE} --out codes"
SHOWN = "prepare-impressions @impressions.parquet --schema @schema.yaml --out st"
VERBS = (
    Verb("prepare", "prepare @events.csv --items @items.csv --out st", "st", kills=10),
    Verb("prepare-over", "prepare @events.csv --out st", "st", "twin", kills=10),
    Verb("clicks", SHOWN, "st", kills=13),
    Verb("clicks-over", SHOWN, "st", "clicks_old"),
    Verb("subset", "subset @shop --share 0.5 --out st", "st", "twin", kills=5),
    Verb("encode", f"encode @shop {CODES}", "codes"),
    Verb("encode-over", f"encode @shop {CODES}", "codes", "codes_twin", kills=5),
    Verb("grow-codes", "encode @more --vectors @vectors.parquet --grow @codes --out codes", "codes"),
    Verb("train", TRAIN, "run", again="--resume", kind="train", kills=20),
    Verb("train-over", f"{TRAIN} --overwrite", "run", "run_twin", kind="train", kills=20),
    Verb("train-resume", f"train @cut_off/spec.json {SHOP} --out run --resume", "run", "cut_off", kind="train",
    kills=10),
    Verb("train-clicks", "train lr --data @clicks --out run --set training.max_epochs=2 --overwrite", "run", "lr",
         kind="train", kills=5),
    Verb("train-baseline", f"train popularity {SHOP} --out run --overwrite", "run", "run_twin", kind="train", kills=10),
    Verb("fill-run", ("fullrank:fill_unseen", {"run": "@run_cold", "out": "run", "start": "mean"}), "run", once=True,
         kills=5),
    Verb("predict-parquet", "predict @lr @today.csv --out p.parquet", "p.parquet", "old.csv", kills=5),
    Verb("predict-csv", "predict @lr @today.csv --out p.csv", "p.csv", "old.csv"),
    Verb("predict-jsonl", "predict @lr @today.csv --out deep/p.jsonl", "deep/p.jsonl"),
    Verb("recommend-parquet", "recommend @run --histories @events.csv --out r.parquet", "r.parquet", "old.csv"),
    Verb("recommend-jsonl", "recommend @run --histories @events.csv --out r.jsonl", "r.jsonl"),
    Verb("evaluate", f"evaluate @run {SEEN} --out ev", "ev", "evaluation_twin", marker="evaluation.json", pair=True),
    Verb("evaluate-into-run", f"evaluate run {SEEN} --out run", "run", "run_twin", pair=True),
    Verb("diagnose", f"diagnose run {SHOP}", "run", "run_twin"),
    Verb("report", f"report @run {SEEN} --out page.html", "page.html", "old.csv"),
    Verb("cascade", "cascade @run @lr --users @people.csv --user user_id --item item_id --context hour=3"
         " --set bootstrap=5 --store @shop --impressions @clicks --candidates 20 --out both", "both",
         marker="cascade.json"),
    Verb("schema", "schema --kind transformer --out s.json", "s.json", "grid.yaml"),
    Verb("scale", "scale growth @shop --out growth", "growth", marker="growth.json"),
    Verb("sweep", f"sweep @cells.yaml {SHOP} --out grid --results kept.json", "grid", kind="rows", kills=5),
    Verb("tune", f"tune @space.yaml {SHOP} --out tuned", "tuned", kind="rows"),
    Verb("grow", "grow @run --items @new_items.csv --start mean --out grown", "grown", once=True, kills=9),
    Verb("blend", f"blend @run @run_twin {SHOP} --out run", "run", "run_twin", kills=3),
    Verb("calibrate", "calibrate @lr --data @clicks --out calibrated", "calibrated", once=True),
    Verb("fisher", f"fisher @run {SHOP} --batches 2 --out f.safetensors", "f.safetensors", "old.csv"),
    Verb("finetune", f"finetune @run {SHOP} --out run --stages 0 --set training.max_epochs=2",
         "run", again="--resume", kind="train"),
    Verb("pretrain", f"pretrain sasrec {SHOP} --data @twin --out run --joined both {SMALL} --overwrite", "run",
         kind="train"),
    Verb("similar", "similar @run --item 5 --out s.jsonl", "s.jsonl", "old.csv"),
    Verb("vectors", "vectors @run --out v.parquet", "v.parquet", "old.csv"),
    Verb("export", "export @run --to faiss --out ex", "ex"),
    Verb("download", "download frappe --set base_url=URL --out files", "files", kind="part"),
    Verb("keys-add", "keys add keys.json --name other", "keys.json", "keys.json", once=True, kills=5),
)  # fmt: skip
BY_NAME = {verb.name: verb for verb in VERBS}


VOLATILE = re.compile(
    r"seconds$|_per_s$|hours|^pace$|^seal$|^taken$|^estimate$|^since$|^created|^command$|^resumed_at_step$|^load|^code$"
    r"|^key_sha256$|\.jsonl$"
)
"""Keys whose values no two runs have in common; `code` is the commit, which a developer may make meanwhile, and
`key_sha256` the hash of a key, which is drawn."""


def snapshot(home: Path, out: str) -> dict[str, str]:
    """File -> a hash of what it says, of everything at or below `out` that is not hidden; empty where it is absent."""
    path = home / out
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    shown = [p for p in files if not any(part.startswith(".") for part in p.relative_to(home).parts)]
    return {str(p.relative_to(home)): _said(p, home) for p in shown}


def listing(home: Path) -> list[str]:
    """Every path below a folder, hidden ones too."""
    return sorted(str(p.relative_to(home)) for p in home.rglob("*"))


def _said(path: Path, home: Path) -> str:
    content = path.read_bytes()
    try:
        if path.suffix == ".json":
            content = _plain(json.loads(content), home)
        elif path.suffix == ".jsonl":
            rows = [json.loads(line) for line in content.splitlines()]
            # a sweep adds a row for a run that failed, and another one when that run is done again, behind the others
            kept = [_plain(row, home) for row in rows if not (isinstance(row, dict) and row.get("error"))]
            content = b"\n".join(sorted(kept) if path.name == "rows.jsonl" else kept)
    except ValueError:
        return "torn"
    if path.suffix == ".html":
        content = content.replace(str(home).encode(), b"HOME")
    return hashlib.sha256(content).hexdigest()[:16]


def _plain(tree: Any, home: Path) -> bytes:
    return json.dumps(steady(tree, VOLATILE), sort_keys=True).replace(json.dumps(str(home))[1:-1], "HOME").encode()
