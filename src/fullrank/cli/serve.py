"""`fullrank serve`, `ask` and `keys`: a trained run behind an address, its lists from a shell, and its API keys.

None of them loads torch before a service is opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fullrank.cli.early_checks import check_runs
from fullrank.cli.list_options import check_lists, list_options, words_of
from fullrank.cli.options import History, Settings, argument, flag, option, shortcuts, spec_options, typed_settings
from fullrank.cli.output import Output
from fullrank.cli.verbs import group, verb

SETTINGS = "fullrank.serving.settings:ServeSettings"
FLAGS = {
    "ranker": "--ranker RUN",
    "host": "--host HOST",
    "port": "",
    "workers": "",
    "store": "--store STORE",
    "keys": "--keys FILE",
    "watch": "--watch FOLDER",
    "canary": "--canary FILE",
    "log": "--log FOLDER",
    "log_days": "",
    "search": "",
    "rate": "",
    "device": "--device auto|cpu|cuda|...",
    "access_log": "",
}
"""Setting of `ServeSettings` -> its option; an empty one is the setting's own name."""
KeyFile = Annotated[Path, argument("FILE", "The file of keys that `fullrank serve --keys` reads.")]


@verb(cls=spec_options(SETTINGS, FLAGS))
def serve(
    context: typer.Context,
    run: Annotated[Path, argument("RUN", "Run folder, of a recommender or of a ranking model.")],
    output: Output,
    check: Annotated[
        bool, flag("--check", "Open everything, answer one request, say what would listen, and leave.")
    ] = False,
    settings: Settings = None,
) -> None:
    """Serve a run over HTTP, with a page.

    Runs of every recipe are served. A recommender answers /v1/recommend, with --ranker in the order
    of a ranking model; a ranking model alone answers /v1/predict, with rows typed by its columns.

    It listens on this machine alone unless --host says otherwise, which needs --keys (`fullrank keys`).
    Histories and items that are added lie in --store. Ctrl-C or SIGTERM answers what waits and leaves.

    \b
    fullrank serve runs/sasrec
    fullrank serve runs/sasrec --ranker runs/dcnv2 --port 8080
    fullrank serve runs/dcnv2
    fullrank serve runs/monday --watch runs --log answers
    fullrank serve runs/sasrec --host 0.0.0.0 --keys keys.json --store redis://cache:6379/0 --workers 4
    """
    from fullrank.serving.settings import ServeSettings

    service = ServeSettings.parse({"run": str(run)}).override(*shortcuts(typed_settings(context), settings))
    if service.watch is None:
        check_runs(service.run)
    from fullrank.serving.server import check_service, run_server

    if check:
        facts = check_service(service)
        what, store = ("items", f"; the store: {facts['store']}") if "items" in facts else ("columns", "")
        output.say(f"{facts['version']} with {facts[what]:,} {what} would answer at {facts['address']}{store}")
        output.finish(facts)
        return
    run_server(service, output.say)
    output.finish({"run": run, "stopped": True})


@verb(cls=list_options("ListChoices", without=("filters",)))
def ask(
    context: typer.Context,
    url: Annotated[str, argument("URL", "Address of the service (`fullrank serve`).")],
    output: Output,
    user: Annotated[str | None, option("ID", "A user whose events the service has stored.")] = None,
    history: History = None,
    key: Annotated[str | None, option("KEY", "An API key of the service.", envvar="FULLRANK_KEY")] = None,
) -> None:
    """Ask a service for recommendations.

    \b
    fullrank ask http://127.0.0.1:8000 --user 42 --k 5
    fullrank ask http://127.0.0.1:8000 --history 2,3,5 --exclude 11,12
    """
    from fullrank.core.checks import check_one_way

    check_one_way({"--user ID": user, "--history ID,ID,...": history}, needed=True)
    check_lists(typed_settings(context))
    from fullrank.serving.client import Client

    lists: dict[str, Any] = typed_settings(context) | {"titles": True}
    lists |= {name: words_of(lists[name]) for name in ("exclude", "allow") if name in lists}
    requests: list[dict[str, Any]] = [{"user": user}]
    if history is not None:
        requests = [{"history": words_of(text)} for text in history]
    client = Client(url, key=key)
    answers = [client.recommend(**request, **lists) for request in requests]
    for number, answer in enumerate(answers):
        rows = [
            [rank, str(entry["item"]), entry["score"], entry.get("title") or ""]
            for rank, entry in enumerate(answer["items"], 1)
        ]
        title = f"version {answer['version']}" if len(answers) == 1 else f"user {number}, version {answer['version']}"
        output.table(["rank", "item", "score", "title"], rows, title=title)
    output.finish({"url": url, "k": lists.get("k", 10), "answers": answers})


@group
def keys() -> None:
    """Make, list and remove the API keys of a service.

    All verbs take --json. A service that runs follows changes of the file within two seconds.

    \b
    fullrank keys add keys.json --name shop --scope read --scope write
    fullrank keys list keys.json
    fullrank keys remove keys.json --name shop
    """


@verb("add", of=keys)
def add_key(
    file: KeyFile,
    output: Output,
    name: Annotated[str, option("NAME", "Whose key it is; stands in the service's log.")],
    scope: Annotated[
        list[str] | None,
        option(
            "read|write|admin",
            "What it may do; may be repeated: read recommendations, write events, items and users, administer "
            "versions.  [default: read]",
        ),
    ] = None,
) -> None:
    """Make a key, and show it this once.

    What is stored is its hash. The file is made where it is missing, and only its owner may read it.

    \b
    fullrank keys add keys.json --name shop --scope read --scope write
    """
    from fullrank.serving import keys as made

    text, key = made.add_key(file, name, scope or ["read"])
    shown = "it stands below" if output.as_json else "it is shown this once"  # and in one place: stderr may be kept
    output.say(f"{file}: made the key {key.name} (scopes: {', '.join(key.scopes)}); {shown}", wrap=False)
    if not output.as_json:
        output.say(text, wrap=False)
    output.finish({"file": file, "name": key.name, "scopes": key.scopes, "created": key.created, "key": text})


@verb("list", of=keys)
def list_keys(file: KeyFile, output: Output) -> None:
    """List the names and scopes of the keys in a file.

    \b
    fullrank keys list keys.json
    """
    from fullrank.serving.keys import read_keys

    entries = read_keys(file)
    output.table(("name", "scopes", "created"), [(key.name, " ".join(key.scopes), key.created) for key in entries])
    rows = [{"name": key.name, "scopes": key.scopes, "created": key.created} for key in entries]
    output.finish({"file": file, "keys": rows})


@verb("remove", of=keys)
def remove_key(
    file: KeyFile,
    output: Output,
    name: Annotated[str, option("NAME", "Name of the key that is taken back.")],
) -> None:
    """Take a key back: services refuse it within two seconds.

    \b
    fullrank keys remove keys.json --name shop
    """
    from fullrank.serving import keys as made

    key = made.remove_key(file, name)
    output.say(f"{file}: the key {key.name} is taken back")
    output.finish({"file": file, "name": key.name})
