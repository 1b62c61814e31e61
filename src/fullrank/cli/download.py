"""`fullrank download`: the files of a public data set, from its publisher."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fullrank.cli.options import AsJson, Settings, argument, option
from fullrank.cli.output import Output
from fullrank.core.errors import UserError, unknown

if TYPE_CHECKING:
    from fullrank.data.sources import EventSource, ImpressionSource

DOWNLOADS = Path("downloads")
"""Where files lie by default: downloads/SOURCE."""


def download(
    source: Annotated[str, argument("SOURCE", "A public data set; `fullrank list sources` names all.")],
    out: Annotated[Path | None, option("--out", "FOLDER", "Where the files go.  [default: downloads/SOURCE]")] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Download a public data set.

    Files are checked where the publisher gives a size or a checksum. Run it again to go on with a download that was
    cut off; files that are complete are kept. --set changes the source's own settings (`fullrank schema --kind SOURCE`
    lists them).

    \b
    fullrank download movielens --set variant=20m
    fullrank prepare movielens --set source.variant=20m --out data/ml-20m
    """
    from fullrank.data.download import download as fetch

    output = Output(as_json)
    spec = named_source(source, settings or [])
    kept: Any = getattr(spec, "dump", dict)()
    folder = out or DOWNLOADS / source
    files = fetch(spec, folder, progress=sys.stderr.isatty())
    if not files:
        verb = "prepare" if hasattr(spec, "read") else "prepare-impressions"
        output.say(f"{source} has no files to download: `fullrank {verb} {source} --out data/{source}` makes it")
    for file in files:
        output.say(f"{file}  {file.stat().st_size:,} bytes")
    output.finish({"source": kept, "folder": folder, "files": files})


def named_source(name: str, settings: list[str]) -> EventSource | ImpressionSource:
    """A source by kind, with dotted settings; `UserError` with the nearest name where there is none."""
    from fullrank.core.registry import find, kinds

    if name not in kinds("data.sources"):
        raise unknown("source", name, kinds("data.sources"))
    spec: Any = find(name, "data.sources")
    if any(field.is_required() for field in spec.model_fields.values()):
        raise UserError(
            f"the source {name!r} has settings without a default; choose them in Python", code="missing-setting"
        )
    return spec().override(*settings)
