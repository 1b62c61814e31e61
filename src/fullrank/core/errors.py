"""The one exception for mistakes of the caller, and the sentence in it that helps."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

MOST_SENTENCE = 2000
"""Characters of a sentence; longer ones are cut in the middle, where they list values."""
MOST_GIVEN = 200
"""Characters that a sentence shows of a value."""
MOST_NAMES = 2000
"""Names among which the nearest is looked for; difflib takes a second for so many."""
_QUOTED = re.compile(rf"""(?<!\w)(?:'[^'\n]{{{MOST_GIVEN},}}'|"[^"\n]{{{MOST_GIVEN},}}")(?!\w)""")
"""A long value in quotes, as `repr` writes it; the quotes of a word such as `user's` begin none."""


class UserError(ValueError):
    """A mistake of the caller: one sentence with what was given, what is allowed, what to do.

    `code` names the kind of mistake for programs (`unknown-column`); it stays when the sentence is
    improved. The command line prints the sentence without a traceback and leaves with exit code 2.

    `public`: the service may tell the sentence to whoever sent the request, since it is about the
    request and names nothing of this machine. All other sentences are for the service's log.
    """

    def __init__(self, sentence: str, *, code: str = "user-error", public: bool = False):
        if len(sentence) > MOST_GIVEN:
            sentence = middle_cut(_QUOTED.sub(lambda quoted: middle_cut(quoted[0]), sentence), MOST_SENTENCE)
        super().__init__(sentence)
        self.code, self.public = code, public


@contextmanager
def in_context(before: str, after: str = "", *, code: str | None = None, public: bool = False) -> Iterator[None]:
    """Put words `before` and `after` the sentence of any `UserError` of the block: where it happened, what to do.

    `code` replaces the code of the error. Each is `public` as said here, whatever it was: the block
    knows what its sentences are about.
    """
    try:
        yield
    except UserError as error:
        raise UserError(f"{before}{error}{after}", code=code or error.code, public=public) from None


def command_line(*words: object) -> str:
    """A command of fullrank that can be pasted into a shell, whatever its paths and ids hold."""
    return shlex.join(["fullrank", *map(str, words)])


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the closest allowed name, or an empty string."""
    close = nearest(word, allowed)
    return f"; did you mean {close!r}?" if close is not None else ""


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed name closest to a word; None where none is close."""
    word, names = str(word), [name for a in allowed if len(name := str(a)) <= MOST_GIVEN]
    if len(word) > MOST_GIVEN or len(names) > MOST_NAMES:
        return None
    lower = {name.lower(): name for name in names}  # `SASRec` is a spelling of `sasrec`
    close = [name for name in difflib.get_close_matches(word, names, n=5, cutoff=0.5) if _is_slip(word, name)]
    close = [lower[word.lower()]] if word.lower() in lower else close
    return close[0] if close else None


def _is_slip(word: str, name: str) -> bool:
    """Whether the longer of two words begins with the shorter, or ends in
    `_shorter`, or differs in few letters."""
    short, long = sorted((word.lower().lstrip("-"), name.lower().lstrip("-")), key=len)
    same = sum(block.size for block in difflib.SequenceMatcher(None, short, long).get_matching_blocks())
    part = len(short) > 2 and (long.startswith(short) or long.endswith(f"_{short}"))
    return part or len(long) - same <= max(1, len(long) // 3)


def unknown(what: str, name: str, allowed: Iterable[str], *, public: bool = False) -> UserError:
    """The error for a name that is unknown; its code is `unknown-` and then `what`, such as `unknown-field`."""
    names = sorted(str(a) for a in allowed)
    return no_such(f"unknown {what}", name, names, code=f"unknown-{what.replace(' ', '-')}", public=public)


def no_such(
    what: str,
    name: str,
    allowed: Iterable[str],
    names: str = "allowed",
    remedy: str = "",
    *,
    code: str,
    public: bool = False,
) -> UserError:
    """The error for a name that `what` lacks ("the items have no column"), with the nearest one."""
    names_of = list(allowed)
    shown = f"{did_you_mean(name, names_of)} ({names}: {', '.join(names_of) or 'none'})"
    return UserError(f"{what} {brief(name, 80)}{shown}{remedy}", code=code, public=public)


def no_effect(what: str, why: str, remedy: str = "leave it out") -> UserError:
    """The error for something given that would change nothing."""
    return UserError(f"{what} has no effect {why}: {remedy}", code="setting-without-effect")


def brief(value: object, most: int = MOST_GIVEN) -> str:
    """The `repr` of a value, with its middle cut out beyond `most` characters."""
    try:
        text = repr(value)
        return middle_cut(" ".join(text.split()) if "\n" in text else text, most)  # tables and arrays have many lines
    except (ValueError, RecursionError):  # a whole number of thousands of digits; what nests too deeply
        return f"a {type(value).__name__} that is too large to show"


def reason_line(error: BaseException, *, file: bool = False) -> str:
    """The first line of an error of the system or a library, or its type where it says nothing.

    An error of the system is given without its number; `file` adds the file that it is about,
    where the sentence does not.
    """
    said = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    name = getattr(error, "filename", None) if file else None
    return str(said).splitlines()[0].rstrip(".")[:MOST_GIVEN] + (f": {name}" if name else "")


def middle_cut(text: str, most: int = MOST_GIVEN) -> str:
    """A text with dots in place of its middle where it has more than `most` characters."""
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def package(name: str, extra: str, what: str, instead: str = "") -> Any:
    """Import the package of an extra for `what`. Raises `UserError` where it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name.partition(".")[0]:
            raise
        raise UserError(
            f"{what} needs the package {name.partition('.')[0]}: {install_extra(extra)}{instead}",
            code="missing-package",
        ) from None


def install_extra(extra: str) -> str:
    """The command that installs an extra from where this fullrank came: index, clone or wheel."""
    try:
        origin = json.loads(importlib.metadata.distribution("fullrank").read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        origin = {}
    url, source = unquote(origin.get("url", "")), f"fullrank[{extra}]"  # PEP 610; nothing where the index had it
    if "vcs_info" in origin:
        source = f"fullrank[{extra}] @ {origin['vcs_info']['vcs']}+{url}"
    elif url:
        source = f"{url.removeprefix('file://')}[{extra}]"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(source)}"


LISTS, LOG = "`fullrank evaluate-lists FILE [RUN]`", "`fullrank evaluate-log DIR --events FILE`"
PARTS, ASK = "`fullrank recommend-parts RUN --out FOLDER`", "`fullrank ask URL`"
DOCTOR = "`fullrank doctor-serve`"
RENAMED = {
    "recommend reasoning": "budget=",
    "recommend_parts reasoning": "budget=",
    "evaluate --drop": "`fullrank study drop RUN --shares SHARE,...`",
    "evaluate --oracle-step": "`fullrank study oracle-step RUN`",
    "evaluate --step-curve": "`fullrank study step-curve RUN`",
    "evaluate --dial": "`fullrank study dial RUN`",
    **dict.fromkeys(("evaluate --lists", "evaluate --rank-col", "evaluate --score-col"), LISTS),
    **dict.fromkeys(("evaluate --log", "evaluate --within", "evaluate --columns"), LOG),
    "evaluate-log --columns": "`--user-col NAME`, `--item-col NAME` and `--time-col NAME`",
    **{f"doctor --{name}": DOCTOR for name in ("serve", "run", "store", "port")},
    **{f"recommend --{name}": PARTS for name in ("engine", "parts", "workers", "master", "ray")},
    **{f"recommend --{name}": ASK for name in ("url", "user", "key")},
}
"""Old spelling, behind its function or verb -> the new spelling."""


def called_now(where: str, old: str) -> str:
    """The end of a sentence that gives the new spelling of a renamed word; empty for
    a word that was not renamed."""
    new = RENAMED.get(f"{where} {old}")
    return "" if new is None else f"; it is {new} now"
