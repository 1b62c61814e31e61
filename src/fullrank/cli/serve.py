"""`fullrank serve`: a trained recommender behind an address."""

from __future__ import annotations

from typing import Annotated

import typer

from fullrank.cli.options import AsJson, RunFolder, Settings, given, shortcuts, spec_options
from fullrank.cli.output import Output

SETTINGS = "fullrank.serving.settings:ServeSettings"
FLAGS = {
    "ranker": "--ranker", "host": "--host", "port": "--port", "workers": "--workers", "store": "--store",
    "keys": "--keys", "watch": "--watch", "canary": "--canary", "log": "--log", "log_days": "--log-days",
    "search": "--search", "rate": "--rate", "device": "--device", "access_log": "--access-log",
}  # fmt: skip


def add(app: typer.Typer) -> None:
    app.command("serve", cls=spec_options(SETTINGS, FLAGS))(serve)


def serve(
    context: typer.Context,
    run: RunFolder,
    check: Annotated[
        bool, typer.Option("--check", help="Open everything, answer one request, say what would listen, and leave.")
    ] = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Serve lists of a run over HTTP, and a page.

    It listens on this machine alone unless --host says otherwise, which needs --keys (`fullrank keys`). Histories and
    items that are added lie in --store. Ctrl-C or SIGTERM answers what waits and leaves.

    \b
    fullrank serve runs/sasrec
    fullrank serve runs/sasrec --ranker runs/dcnv2 --port 8080
    fullrank serve runs/monday --watch runs --log answers
    fullrank serve runs/sasrec --host 0.0.0.0 --keys keys.json --store redis://cache:6379/0 --workers 4
    """
    from fullrank.serving.settings import ServeSettings

    output = Output(as_json)
    made = ServeSettings.parse({"run": str(run)}).override(*shortcuts(given(context), settings))
    from fullrank.serving.server import check_service, run_server

    if check:
        found = check_service(made)
        output.say(
            f"{found['version']} with {found['items']:,} items would answer at {found['address']}; the store: "
            f"{found['store']}"
        )
        output.finish(found)
        return
    run_server(made, output.say)
    output.finish({"run": run, "stopped": True})
