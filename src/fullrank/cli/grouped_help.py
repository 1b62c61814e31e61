"""Help in groups: a heading for verbs of one purpose, and for options that belong together.

An option is put under a heading by its name, so that it stands under the same one in every verb.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from typer.core import TyperCommand, TyperGroup

from fullrank.core.errors import UserError

VERBS = {
    "Begin": ("demo", "doctor", "doctor-serve", "list", "show", "schema"),
    "Data": ("download", "prepare", "prepare-impressions", "check", "subset", "encode"),
    "Train": (
        "auto",
        "train",
        "blend",
        "pretrain",
        "fisher",
        "finetune",
        "calibrate",
        "sweep",
        "tune",
        "grow",
        "scale",
    ),
    "Evaluate and explain": (
        "evaluate",
        "evaluate-lists",
        "evaluate-log",
        "diagnose",
        "attention",
        "report",
        "verify",
        "study",
    ),
    "Answer": (
        "recommend",
        "recommend-parts",
        "ask",
        "similar",
        "vectors",
        "serve",
        "predict",
        "cascade",
        "export",
        "keys",
    ),
}
"""Heading -> verbs, in the order of `fullrank --help`."""
EVERY = "In every verb"
OPTIONS = {
    "Which items are recommended": ("--seen", "--exclude", "--allow", "--filters", "--items"),
    "Columns of a table": (
        "--user-col",
        "--item-col",
        "--time-col",
        "--time-unit",
        "--rating-col",
        "--weight-col",
        "--type-col",
        "--label",
        "--separator",
    ),
    "Models that reason": ("--reasoning-steps", "--reasoning-streams", "--adaptive", "--patience"),
    EVERY: ("--set", "--json", "--help"),
}
"""Heading -> options. A heading with a single option in a verb is left out there."""
Record = tuple[str, str]
"""A line of help on an option or a verb: its name and its text."""


class GroupedCommand(TyperCommand):
    """A verb whose help has its options in groups, and whose options take no other option for their value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = {
            name: parameter for parameter in self.get_params(ctx) for name in parameter.opts if name.startswith("-")
        }
        words = args[: args.index("--")] if "--" in args else args
        for word, following in pairwise(words):
            if word in options and following in options and not getattr(options[word], "is_flag", False):
                raise UserError(
                    f"{word} needs a value, and {following} behind it is an option of {ctx.command_path}; a value that "
                    f"is meant so is written {word}={following}",
                    code="missing-value",
                )
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """[OPTIONS] RUN [RUN2]: arguments by their names, without the braces of typer."""
        arguments = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "argument"]
        return [
            "[OPTIONS]",
            *(str(parameter.metavar) if parameter.required else f"[{parameter.metavar}]" for parameter in arguments),
        ]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments: list[Record] = []
        options: list[tuple[set[str], Record]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and parameter.param_type_name == "argument":
                arguments.append((str(parameter.metavar), record[1]))  # without its type in Python
            elif record is not None:
                options.append((set(parameter.opts), record))
        _write(formatter, "Arguments", arguments)
        groups = {
            title: [record for names, record in options if names & set(members)] for title, members in OPTIONS.items()
        }
        groups = {title: records for title, records in groups.items() if len(records) > 1 or title == EVERY}
        grouped = [record for records in groups.values() for record in records]
        _write(formatter, "Options", (record for _, record in options if record not in grouped))
        for title, records in groups.items():
            _write(formatter, title, records)


class GroupedVerbs(TyperGroup):
    """`fullrank` itself, whose help has its verbs in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        shown = {name: self.commands[name] for name in self.list_commands(ctx) if not self.commands[name].hidden}
        room = formatter.width - 6 - max(map(len, shown))
        others = tuple(name for name in shown if not any(name in verbs for verbs in VERBS.values()))
        for title, verbs in {**VERBS, "Others": others}.items():
            lines = ((name, shown[name].get_short_help_str(room)) for name in verbs if name in shown)
            _write(formatter, title, lines)


def _write(formatter: Any, title: str, records: Iterable[Record]) -> None:
    if lines := list(records):
        with formatter.section(title):
            formatter.write_dl(lines)
