"""`fullrank serve`: a trained run behind an address."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fullrank.cli.options import AsJson, Settings, argument, flag, given, shortcuts, spec_options
from fullrank.cli.output import Output
from fullrank.cli.told_early import check_runs

SETTINGS = "fullrank.serving.settings:ServeSettings"
FLAGS = {
    "ranker": "--ranker RUN", "host": "--host HOST", "port": "", "workers": "", "store": "--store STORE",
    "keys": "--keys FILE", "watch": "--watch FOLDER", "canary": "--canary FILE", "log": "--log FOLDER", "log_days": "",
    "search": "", "rate": "", "device": "--device auto|cpu|cuda|...", "access_log": "",
}  # fmt: skip

COMMAND = spec_options(SETTINGS, FLAGS)


def serve(
    context: typer.Context,
    run: Annotated[Path, argument("RUN", "Run folder, of a recommender or of a ranking model.")],
    check: Annotated[
        bool, flag("--check", "Open everything, answer one request, say what would listen, and leave.")
    ] = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Serve a run over HTTP, with a page.

    Runs of every recipe are served. A recommender answers /v1/recommend, with --ranker in the order of a ranking
    model; a ranking model alone answers /v1/predict, with rows typed by its columns.

    It listens on this machine alone unless --host says otherwise, which needs --keys (`fullrank keys`). Histories and
    items that are added lie in --store. Ctrl-C or SIGTERM answers what waits and leaves.

    \b
    fullrank serve runs/sasrec
    fullrank serve runs/sasrec --ranker runs/dcnv2 --port 8080
    fullrank serve runs/dcnv2
    fullrank serve runs/monday --watch runs --log answers
    fullrank serve runs/sasrec --host 0.0.0.0 --keys keys.json --store redis://cache:6379/0 --workers 4
    """
    from fullrank.serving.settings import ServeSettings

    output = Output(as_json)
    made = ServeSettings.parse({"run": str(run)}).override(*shortcuts(given(context), settings))
    if made.watch is None:
        check_runs(made.run)
    from fullrank.serving.server import check_service, run_server

    if check:
        found = check_service(made)
        what, store = ("items", f"; the store: {found['store']}") if "items" in found else ("columns", "")
        output.say(f"{found['version']} with {found[what]:,} {what} would answer at {found['address']}{store}")
        output.finish(found)
        return
    run_server(made, output.say)
    output.finish({"run": run, "stopped": True})
