"""`fullrank verify`: is a store, a run or a folder of codes as it was written?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fullrank.cli.options import AsJson, argument
from fullrank.cli.output import Output


def verify(
    folder: Annotated[Path, argument("FOLDER", "A store, a run, or a folder of codes.")],
    as_json: AsJson = False,
) -> None:
    """Compare the files of a folder with their hashes.

    The folder is a store, a run or codes. The exit code is 2 where a file is missing or is not as it was written.
    Hashes find damage and mix-ups of files, not somebody who changed the hashes too.

    \b
    fullrank verify data/shop
    fullrank verify runs/sasrec
    """
    from fullrank.core.specs_alone import ask_alone

    ask_alone("fullrank.verification", lambda there: there.manifest_of(folder))
    from fullrank.verification import verify as check

    output = Output(as_json)
    found = check(folder)
    output.say(f"{found.kind} {found.path}")
    output.table(
        ("file", "bytes", "state"),
        [(file.name, "" if file.bytes is None else f"{file.bytes:,}", file.state) for file in found.files],
    )
    output.notes(found.notes)
    found.require_ok()
    output.finish(found.dump())
