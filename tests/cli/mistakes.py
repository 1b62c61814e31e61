"""Mistakes of a newcomer: command lines, the files that they are typed beside, and what is said, as a table.

``python tests/cli/mistakes.py`` writes ``mistakes.md`` anew; test_mistakes.py types every line again and compares.
"""

import contextlib
import io
import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

TABLE = Path(__file__).parent / "mistakes.md"
HEAD = """# Mistakes

What a person types who does not know the library yet, what it says, and how it ends, by error code (of `--json`).
Each line is typed again by `test_mistakes.py`; `python tests/cli/mistakes.py` writes this file anew.

| error code | given | said | exit |
|---|---|---|---|
"""
TINY = "--set model.dim=8 --set model.encoder.layers=1 --set training.max_epochs=1"
EVENTS = "user_id,item_id,timestamp\n" + "".join(
    f"{user},{(user * 3 + event) % 12},{1_600_000_000 + 86_400 * event}\n" for user in range(12) for event in range(6)
)
FILES = {
    "events.csv": EVENTS,
    "empty.csv": "",
    "header.csv": "user_id,item_id,timestamp\n",
    "shop.csv": EVENTS.replace("user_id,item_id,timestamp", "customer,sku,when"),
    "semicolons.csv": EVENTS.replace(",", ";").replace("user_id", "customer"),
    "no_time.csv": "user_id,item_id\n1,2\n1,3\n",
    "missing_user.csv": EVENTS + ",3,1600000000\n",
    "missing_time.csv": EVENTS + "3,3,\n",
    "bad_times.csv": EVENTS + "3,3,yesterday\n",
    "events.txt": EVENTS,
    "events.json": "{not json",
    "torn.parquet": "PAR1",
    "clicks.csv": "user,item,liked\n1,2,0\n1,3,1\n2,2,1\n",
    "three_labels.csv": "user,item,click\n1,2,0\n1,3,2\n2,2,1\n",
    "no_recipe.yaml": "name: x\n",
    "wrong.yaml": "cells: [sasrec]\nsedes: [0]\n",
    "no_yaml.yaml": "cells: [sasrec\n",
    "space.yaml": "cells: [sasrec]\nspace: {training.lr: {logg: [0.1, 0.2]}}\ntrials: 2\n",
    "histories.csv": "user_id,item\n1,2\n",
    "a_file": "x",
}
"""Files of the folder that the lines are typed in; beside them the store `data` and the runs `sasrec`, `popularity`."""
MISTAKES = """
fullrank trian sasrec --data data --out new
fullrank train sasrec --dta data --out new
fullrank train sasrec --out new
fullrank train sasrec --data data
fullrank serve sasrec --store --check
fullrank train sasrek --data data --out new
fullrank train SASRec --data data --out new
fullrank train sasrec --data dtaa --out new
fullrank train sasrec --data events.csv --out new
fullrank train sasrec --data sasrec --out new
fullrank train sasrec --data data --out sasrec
fullrank train sasrec --data data --out a_file
fullrank train sasrec --data data --out new --epochs 5
fullrank train sasrec --data data --out new --lr 0.01
fullrank train sasrec --data data --out new --set model.dimm=8
fullrank train sasrec --data data --out new --set model.dim
fullrank train sasrec --data data --out new --set model.dim=-8
fullrank train sasrec --data data --out new --set model.dim=eight
fullrank train sasrec --data data --out new --set training.max_epochs=0
fullrank train sasrec --data data --out new --set model.encoder.attention=sofmax
fullrank train sasrec --data data --out new --device gpu
fullrank train dcnv2 --data data --out new
fullrank train fair --data data --out new
fullrank train sasrec --out nowhere --resume
fullrank prepare
fullrank prepare nothing.csv --out new
fullrank prepare empty.csv --out new
fullrank prepare header.csv --out new
fullrank prepare events.txt --out new
fullrank prepare events.json --out new
fullrank prepare torn.parquet --out new
fullrank prepare shop.csv --out new
fullrank prepare shop.csv --out new --user-col custmer --item-col sku --time-col when
fullrank prepare semicolons.csv --out new
fullrank prepare no_time.csv --out new
fullrank prepare missing_user.csv --out new
fullrank prepare missing_time.csv --out new
fullrank prepare bad_times.csv --out new
fullrank prepare events.csv --out data
fullrank prepare events.csv --out new --k-core 50
fullrank prepare events.csv --out new --k-core five
fullrank prepare events.csv --out new --split random
fullrank prepare events.csv --out new --time-unit seconds
fullrank prepare movielens-1m --out new
fullrank prepare-impressions clicks.csv --out new
fullrank prepare-impressions clicks.csv --out new --label likd
fullrank prepare-impressions three_labels.csv --out new
fullrank recommend sasrec
fullrank recommend sasrek --history 2,3
fullrank recommend data --history 2,3
fullrank recommend sasrec --history a,b
fullrank recommend sasrec --history 2,3 --k 0
fullrank recommend sasrec --history 2,3 --exclude 99999
fullrank recommend sasrec --history 2,3 --unknown error --k five
fullrank recommend sasrec --histories histories.csv
fullrank recommend sasrec --histories nothing.csv
fullrank recommend sasrec --users 99999
fullrank recommend sasrec --users ann
fullrank recommend sasrec --history 2,3 --users 1
fullrank recommend sasrec --history 2,3 --filters colour=red
fullrank recommend sasrec --history 2,3 --out lists.xls
fullrank recommend sasrec --history 2,3 --seen keeep
fullrank recommend sasrec --history 2,3 --decoding grph
fullrank recommend sasrec --history 2,3 --items histories.csv
fullrank recommend --url http://127.0.0.1:8000 --user 1
fullrank recommend sasrec --workers 2 --out lists
fullrank recommend-parts sasrec --out lists --time-col when
fullrank evaluate
fullrank evaluate sasrec --drop 0.1,0.2
fullrank evaluate sasrec --lists histories.csv
fullrank evaluate --log answers --events events.csv
fullrank evaluate sasrec --user-col who
fullrank evaluate-lists histories.csv
fullrank study drop sasrec --shares 2
fullrank evaluate sasrec --split tset
fullrank evaluate data
fullrank evaluate sasrec --set seen=maybe
fullrank evaluate sasrec popularity --metric ndgc@10
fullrank diagnose
fullrank report sasrec --out page.pdf
fullrank sweep no_recipe.yaml --data data --out new
fullrank sweep wrong.yaml --data data --out new
fullrank sweep no_yaml.yaml --data data --out new
fullrank tune space.yaml --data data --out new
fullrank list recipies
fullrank show sasrek
fullrank export sasrec --to onyx --out new
fullrank export sasrec --to folder --out data
fullrank predict sasrec --data events.csv
fullrank cascade sasrec popularity --data data
fullrank compare sasrec popularity
fullrank serve nowhere --port 0
fullrank verify nowhere
fullrank download movilens --out new
fullrank evaluate nowhere
fullrank evaluate sasrec nowhere
fullrank evaluate sasrec --data nowhere
fullrank evaluate sasrec --set sene=keep
fullrank similar nowhere --items 2
fullrank vectors nowhere --out new.parquet
fullrank predict nowhere events.csv
fullrank cascade nowhere popularity
fullrank diagnose nowhere
fullrank attention nowhere
fullrank report nowhere --out new.html
fullrank export nowhere --out new
fullrank calibrate nowhere --out new
fullrank finetune nowhere --data data --out new
fullrank finetune sasrec --data nowhere --out new
fullrank finetune sasrec --data data --out new --set trainng.lr=1
fullrank train --from sasrec --data data --out new --set trainng.lr=1
fullrank report sasrec --out new.html --set sene=keep
fullrank fisher nowhere --out new.safetensors
fullrank grow nowhere --items events.csv --out new
fullrank subset nowhere --out new
fullrank pretrain srt --data nowhere --data data --out new
fullrank pretrain sasrek --data data --out new
fullrank scale growth nowhere
fullrank scale fit nothing.csv
fullrank encode nowhere --out new
fullrank encode data --out new --set learner.levls=3
fullrank encode data --out new --levels 0
fullrank sweep wrong.yaml --data nowhere --out new
fullrank sweep nothing.yaml --data data --out new
fullrank show sasrec --set model.dimm=8
fullrank show nothing.yaml
fullrank schema --kind sasrek
fullrank train sasrec --from nowhere --data data --out new
fullrank train nothing.yaml --data data --out new
fullrank prepare events.csv --out new --set splt=random
"""


def furnish(home: Path, **runs: str) -> Path:
    """A folder with a tiny marketplace, `data`, and runs of these recipes with these settings."""
    from fullrank.cli import main

    lines = [f"prepare planted --set source.users=150 --set source.items=60 --out {home}/data"]
    lines += [f"train {recipe} --data {home}/data --out {home}/{recipe} {more}" for recipe, more in runs.items()]
    assert all(main(line.split()) == 0 for line in lines)
    return home


def build(folder: Path) -> None:
    """Write the files, the store and the runs that the lines are typed beside."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    furnish(folder, popularity="", sasrec=TINY)


def lines() -> list[str]:
    """The command lines, in the order of the list."""
    return [line for line in MISTAKES.strip().splitlines() if line]


def said(line: str) -> tuple[str, str, int]:
    """Error code, sentence and exit status of a line that is typed in the current folder."""
    from fullrank.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*shlex.split(line)[1:], "--json"])
    shutil.rmtree("new", ignore_errors=True)  # what one line made is not in the way of the next
    if status == 0:
        return "", "done", 0
    told = json.loads(out.getvalue().splitlines()[-1])
    return told["code"], told["error"], status


def row(line: str) -> str:
    """The row of the table for a line."""
    code, sentence, status = said(line)
    shown = sentence.replace(f"{os.getcwd()}/", "").replace("|", r"\|")
    return f"| {code} | `{line}` | {shown} | {status} |"


def main() -> None:
    """Write the table."""
    folder = Path(tempfile.mkdtemp())
    try:
        build(folder)
        os.chdir(folder)
        rows = sorted((row(line) for line in lines()), key=lambda text: text.split("|")[1])
    finally:
        shutil.rmtree(folder)
    TABLE.write_text(HEAD + "".join(f"{one}\n" for one in rows))


if __name__ == "__main__":
    sys.exit(main())
