"""Sentences of the library in the words of a shell: `user_col=` is `--user-col` there, `seen='keep'` is `--seen keep`.

The library speaks Python. Only arguments that the verb has an option for are reworded, so what a person typed elsewhere
(`--set seed=1`, the name of a file) stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

ARGUMENT = re.compile(
    r"""(?<![\w.'"/=-])(?P<name>[a-z]\w*)=(?P<value>'[^'\s]+'|"[^"\s]+"|-?\d+(?:\.\d+)?|\w+)?(?=[\s,;:.!?)]|$)"""
)
"""A keyword of a Python call, perhaps with a value: text, a number or a word; lists and the like stay Python."""
QUOTES = "'\""
ELSEWHERE = ("--set ", "--context ")
"""Options whose values have the form `name=value` themselves."""


def in_shell(sentence: str, options: Sequence[str]) -> str:
    """The sentence with the keyword of each long option (`--time-col`: `time_col=`) as that option."""
    known = {option.removeprefix("--").replace("-", "_"): option for option in options if option.startswith("--")}

    def reworded(found: re.Match[str]) -> str:
        option, value = known.get(found["name"]), found["value"]
        before = sentence[: found.start()]
        if option is None or before.endswith(ELSEWHERE):
            return found[0]
        if value is None or value == "True":
            return option
        return f"{option} {'none' if value == 'None' else value.strip(QUOTES)}"

    return ARGUMENT.sub(reworded, sentence)


def options_of(command: Any, words: Sequence[str]) -> list[str]:
    """The options of the verb that `words` name, below a command line's root."""
    return list(_options(command, iter(words)))


def _options(command: Any, words: Iterator[str]) -> Iterator[str]:
    while hasattr(command, "commands"):
        verb = next((word for word in words if word in command.commands), None)
        if verb is None:
            return
        command = command.commands[verb]
    for one in command.params:
        yield from (option for option in one.opts if option.startswith("--"))
