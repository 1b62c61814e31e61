"""Options of the verbs that list items, and the words of a shell that are typed there.

The options are the fields of `ListOptions`, made as `cli/options.py` makes those of a Spec. A verb
takes them by `@verb(cls=list_options())`, checks what was typed by `check_lists` before it loads
torch, and asks for lists by `list_keywords`. There `2,3,5` becomes items of a catalogue,
`genre=Comedy` and `year>=2000` the filters of `fr.recommend`; `--users` becomes users of a store.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.cli.early_checks import ask_alone
from fullrank.cli.options import EVALUATION, REASONING, Setting, check_owner, spec_of, with_settings
from fullrank.core.errors import UserError, brief, no_such
from fullrank.core.tables import SUFFIXES

if TYPE_CHECKING:
    import polars as pl
    from typer.core import TyperCommand

    from fullrank.data.events.catalog import Catalog
    from fullrank.data.events.store import Store


MODULE = "fullrank.inference.list_options"
IDS = (str, "ID,ID,...")
FORMS: Mapping[str, tuple[Any, str]] = {
    "exclude": IDS,
    "allow": IDS,
    "item_table": (Path, "FILE"),
    "decoding": (str, "exact|graph|beam|pruned"),
    "filters": (list[str], "NAME=VALUE|NAME>=VALUE|NAME<=VALUE"),
}
"""Fields whose types do not say how they are typed."""
POLICIES = ("unknown", "empty", "untimed", "seen")
FILTER = re.compile(r"\s*(?P<name>.+?)\s*(?P<sign>>=|<=|=)\s*(?P<value>.*?)\s*", re.S)
BOUNDS = {">=": "min", "<=": "max"}


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
    """Raise `UserError` for options of lists that are wrong whatever the items of a run are."""
    check_owner("--filters", typed.get("filters"), items=typed.get("item_table"))
    fields = {name: value for name, value in typed.items() if "." not in name}
    ask_alone(MODULE, lambda there: there.ListOptions.of(fields))


def list_keywords(typed: Mapping[str, Any], catalog: Catalog, item: str = "item_id") -> dict[str, Any]:
    """The typed options as keywords of `Predictor.recommend`: ids and values of filters in the types of the items."""
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


def policies_of(lists: Mapping[str, Any]) -> dict[str, Any]:
    """The length of lists and the policies of a call, for `--json`."""
    from fullrank.inference.list_options import ListOptions

    options = ListOptions(**lists)
    return {"k": options.k, "policies": {name: getattr(options, name) for name in POLICIES}}


def words_of(text: str) -> list[str]:
    """The words of `2,3,5`."""
    return [word.strip() for word in text.split(",") if word.strip()]


def known_ids(flag: str, text: str | None, catalog: Catalog) -> pl.Series | None:
    """External ids from `2,3,5`, each of which the model has to know: a misspelt one would be without effect."""
    if text is None:
        return None
    ids = catalog.parse(words_of(text))
    unknown = unknown_ids(ids, catalog)
    if unknown:
        raise UserError(
            f"{flag} names items that the model does not know: {', '.join(map(str, unknown[:5]))}", code="unknown-item"
        )
    return ids


def unknown_ids(items: pl.Series, catalog: Catalog) -> list[Any]:
    """The distinct items that the catalogue does not have, at most 100."""
    import polars as pl

    if items.is_empty():
        return []
    return items.filter(pl.Series(catalog.lookup(items) < 0)).unique(maintain_order=True).head(100).to_list()


def user_ids(text: str, store: Store, column: str = "user_id") -> pl.Series:
    """Users from `ann,bo`, or from a column of a file (each once), of the type that the store has."""
    import polars as pl

    from fullrank.data import values
    from fullrank.data.frames import InputTable

    if Path(text).suffix in SUFFIXES:
        source = InputTable(Path(text), "users")
        source.require(column, "name it with --user-col")
        source.require_one_kind(column)
        ids = values.without_fractions(source.read([column])[column]).drop_nulls().unique(maintain_order=True)
        if source.typed:
            return ids.alias("user")
        words = ids.cast(pl.String)
    else:
        words = pl.Series(words_of(text), dtype=pl.String)
    words = words.str.strip_chars().alias("user")
    if store.user_ids.dtype == pl.String:
        return words
    whole = values.parse_whole(words, store.user_ids.dtype)
    if whole.null_count():
        raise UserError(
            f"--users: {words.filter(whole.is_null())[0]!r} is not a user id; those of {str(store.path)!r} are whole "
            f"numbers (such as {store.user_ids[0]!r})",
            code="not-a-user-id",
        )
    return whole


def parse_filters(texts: Sequence[str] | None, columns: Mapping[str, pl.Series]) -> dict[str, Any] | None:
    """Filters by column. A column named twice by `=` may have either value; `>=` and `<=` bound numbers.

    Raises `UserError` for what has no such form, for an unknown column, and for a
    value that it cannot hold.
    """
    if not texts:
        return None
    filters: dict[str, Any] = {}
    for text in texts:
        match = FILTER.fullmatch(text)
        if match is None:
            raise UserError(
                f"--filters {brief(text, 80)}: say NAME=VALUE, or of numbers 'NAME>=VALUE', 'NAME<=VALUE', in quotes",
                code="not-a-filter",
            )
        name, sign = match["name"], match["sign"]
        if name not in columns:
            what = f"--filters {brief(text, 80)}: the items have no column"
            raise no_such(what, name, columns, "columns", code="unknown-column")
        value = _value(text, match["value"], columns[name].dtype)
        so_far = filters.setdefault(name, [] if sign == "=" else {})
        if isinstance(so_far, list) != (sign == "=") or (sign != "=" and BOUNDS[sign] in so_far):
            raise UserError(
                f"--filters {brief(text, 80)}: {name!r} has a value or another such bound already; give values by =, "
                "or one >= and one <=",
                code="given-twice",
            )
        if sign == "=":
            so_far.append(value)
        else:
            so_far[BOUNDS[sign]] = value
    return filters


def _value(text: str, word: str, dtype: Any) -> Any:
    """A word as a value of such a column."""
    from fullrank.inference.column_filters import WORDS, kind_of

    kind = kind_of(dtype)[0]
    if kind == "flag" and word.lower() in ("true", "false"):
        return word.lower() == "true"
    if kind == "number":
        for number in (int, float):
            try:
                return number(word)
            except ValueError:
                continue
    if kind in ("flag", "number"):
        raise UserError(f"--filters {brief(text, 80)}: this column holds {WORDS[kind]}", code="filter-wrong-type")
    return word
