"""`fullrank ask`: the lists of a service, for one of its users or for histories."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fullrank.cli.ids import words_of
from fullrank.cli.list_options import check_lists, list_options
from fullrank.cli.options import AsJson, History, argument, given, option
from fullrank.cli.output import Output

COMMAND = list_options("ListChoices", without=("filters",))


def ask(
    context: typer.Context,
    url: Annotated[str, argument("URL", "Address of the service (`fullrank serve`).")],
    user: Annotated[str | None, option("--user", "ID", "A user whose events the service has stored.")] = None,
    history: History = None,
    key: Annotated[str | None, option("--key", "KEY", "An API key of the service.", envvar="FULLRANK_KEY")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a service for recommendations.

    \b
    fullrank ask http://127.0.0.1:8000 --user 42 --k 5
    fullrank ask http://127.0.0.1:8000 --history 2,3,5 --exclude 11,12
    """
    from fullrank.core.checks import check_one_way

    check_one_way({"--user ID": user, "--history ID,ID,...": history}, needed=True)
    check_lists(given(context))
    from fullrank.serving.client import Client

    output = Output(as_json)
    lists: dict[str, Any] = given(context) | {"titles": True}
    lists |= {name: words_of(lists[name]) for name in ("exclude", "allow") if name in lists}
    asked = [{"user": user}] if history is None else [{"history": words_of(text)} for text in history]
    client = Client(url, key=key)
    answers = [client.recommend(**one, **lists) for one in asked]
    for number, answer in enumerate(answers):
        rows = [
            [at, str(one["item"]), one["score"], one.get("title") or ""] for at, one in enumerate(answer["items"], 1)
        ]
        title = f"version {answer['version']}" if len(answers) == 1 else f"user {number}, version {answer['version']}"
        output.table(["rank", "item", "score", "title"], rows, title=title)
    output.finish({"url": url, "k": lists.get("k", 10), "answers": answers})
