"""The options of verbs that list items: the fields of `ListOptions`, made as `cli/options.py` makes those of a Spec.

A verb takes them by `app.command(cls=list_options())`, checks what was typed by `check_lists` before it loads torch,
and asks for lists by `list_keywords`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.cli.ids import known_ids
from fullrank.cli.options import EVALUATION, REASONING, Setting, check_beside, spec_of, with_settings
from fullrank.cli.told_early import ask_alone

if TYPE_CHECKING:
    from typer.core import TyperCommand

    from fullrank.data.events.catalog import Catalog

MODULE = "fullrank.inference.list_options"
IDS = (str, "ID,ID,...")
FORMS: Mapping[str, tuple[Any, str]] = {
    "exclude": IDS, "allow": IDS, "item_table": (Path, "FILE"), "decoding": (str, "exact|graph|beam|pruned"),
    "filters": (list[str], "NAME=VALUE|NAME>=VALUE|NAME<=VALUE"),
}  # fmt: skip
"""Fields whose types do not say how they are typed."""
POLICIES = ("unknown", "empty", "untimed", "seen")


def list_options(
    of: str = "ListOptions", *, only: Collection[str] = (), without: Collection[str] = ()
) -> type[TyperCommand]:
    """A class of commands with an option for each field of a class of `inference/list_options.py`.

    A budget has the options of an evaluation's; titles come always.
    """

    def settings() -> dict[str, Setting]:
        named: dict[str, Setting] = {}
        spec = spec_of(f"{MODULE}:{of}")
        for name in only or spec.model_fields:
            if name == "budget":
                named |= {path: Setting(spec_of(EVALUATION), flag) for path, flag in REASONING.items()}
            elif name not in ("titles", *without):
                flag = "--items" if name == "item_table" else f"--{name.replace('_', '-')}"
                named[name] = Setting(spec, flag, FORMS.get(name), choice=name != "filters")
        return named

    return with_settings(settings)


def check_lists(typed: Mapping[str, Any]) -> None:
    """Raise `UserError` for what can be told to be wrong without the items of a run."""
    check_beside("--filters", typed.get("filters"), items=typed.get("item_table"))
    fields = {name: value for name, value in typed.items() if "." not in name}
    ask_alone(MODULE, lambda there: there.ListOptions.of(fields))


def list_keywords(typed: Mapping[str, Any], catalog: Catalog, item: str = "item_id") -> dict[str, Any]:
    """What was typed as keywords of `Predictor.recommend`: ids and values of filters in the types of the items."""
    from fullrank.cli.column_filters import parse_filters
    from fullrank.inference.column_filters import item_columns

    keywords = {name: value for name, value in typed.items() if "." not in name}
    for name in {"exclude", "allow"} & keywords.keys():
        keywords[name] = known_ids(f"--{name}", keywords[name], catalog)
    if "filters" in keywords:
        columns = item_columns(catalog, keywords.get("item_table"), item)
        keywords["filters"] = parse_filters(keywords["filters"], columns)
    return keywords


def budget_of(typed: Mapping[str, Any]) -> dict[str, Any]:
    """The steps of a reasoner that were typed."""
    return {path.removeprefix("reasoning."): value for path, value in typed.items() if "." in path}


def settled(lists: Mapping[str, Any]) -> dict[str, Any]:
    """What `--json` says of the keywords of a call: the length of its lists, and its policies."""
    from fullrank.inference.list_options import ListOptions

    options = ListOptions(**lists)
    return {"k": options.k, "policies": {name: getattr(options, name) for name in POLICIES}}
