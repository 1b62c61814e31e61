"""`fullrank keys`: make, list and remove the API keys of a service. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fullrank.cli.options import AsJson, argument, option
from fullrank.cli.output import Output

File = Annotated[Path, argument("FILE", "The file of keys that `fullrank serve --keys` reads.")]


def add(app: typer.Typer) -> None:
    group = typer.Typer(help=keys.__doc__, rich_markup_mode=None, no_args_is_help=True)
    group.command("add")(add_key)
    group.command("list")(list_keys)
    group.command("remove")(remove_key)
    app.add_typer(group, name="keys")


def keys() -> None:
    """Make, list and remove the API keys of a service.

    All verbs take --json. A service that runs follows changes of the file within two seconds.

    \b
    fullrank keys add keys.json --name shop --scope read --scope write
    fullrank keys list keys.json
    fullrank keys remove keys.json --name shop
    """


def add_key(
    file: File,
    name: Annotated[str, option("--name", "NAME", "Whose key it is; stands in the service's log.")],
    scope: Annotated[
        list[str] | None,
        option(
            "--scope",
            "read|write|admin",
            "What it may do; may be repeated: read recommendations, write events, items and users, administer "
            "versions.  [default: read]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key, and show it this once.

    What is stored is its hash. The file is made where it is missing, and only its owner may read it.

    \b
    fullrank keys add keys.json --name shop --scope read --scope write
    """
    from fullrank.serving import keys as made

    output = Output(as_json)
    text, key = made.add_key(file, name, scope or ["read"])
    shown = "it stands below" if as_json else "it is shown this once"  # and in one place: stderr may be kept
    output.say(f"{file}: made the key {key.name} (scopes: {', '.join(key.scopes)}); {shown}", wrap=False)
    if not as_json:
        output.say(text, wrap=False)
    output.finish({"file": file, "name": key.name, "scopes": key.scopes, "created": key.created, "key": text})


def list_keys(file: File, as_json: AsJson = False) -> None:
    """List the names and scopes of the keys in a file.

    \b
    fullrank keys list keys.json
    """
    from fullrank.serving.keys import read_keys

    output = Output(as_json)
    found = read_keys(file)
    output.table(("name", "scopes", "created"), [(key.name, " ".join(key.scopes), key.created) for key in found])
    rows = [{"name": key.name, "scopes": key.scopes, "created": key.created} for key in found]
    output.finish({"file": file, "keys": rows})


def remove_key(
    file: File,
    name: Annotated[str, option("--name", "NAME", "Name of the key that is taken back.")],
    as_json: AsJson = False,
) -> None:
    """Take a key back: services refuse it within two seconds.

    \b
    fullrank keys remove keys.json --name shop
    """
    from fullrank.serving import keys as made

    output = Output(as_json)
    key = made.remove_key(file, name)
    output.say(f"{file}: the key {key.name} is taken back")
    output.finish({"file": file, "name": key.name})
