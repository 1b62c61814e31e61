"""From an exception to one sentence and an exit code.

Mistakes of the caller leave with 2 and without a traceback, what we did not foresee (a bug) with 1, Ctrl-C with 130.
``--debug`` shows the traceback of each; with ``--json`` the sentence is also the last line of stdout, as an object.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fullrank.cli.output import only_json, print_json
from fullrank.core.errors import UserError, nearest

if TYPE_CHECKING:
    import typer

EXTRAS = {
    "fastapi": "serve",
    "uvicorn": "serve",
    "sentence_transformers": "text",
    "sentencepiece": "text",
    "faiss": "codes",
    "optuna": "tune",
    "pyspark": "spark",
    "redis": "redis",
    "matplotlib": "report",
    "jinja2": "report",
}
"""Optional package, by import name -> the extra that installs it."""


def guarded(build: Callable[[], typer.Typer], given: list[str]) -> int:
    """Run the app that `build` makes on the words `given`; never raises."""
    words, debug = _without_debug(given)
    as_json = "--json" in words
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a title must not end a run on an ASCII terminal
    with only_json() if as_json else contextlib.nullcontext():
        try:
            return _run(build, words or ["--help"])
        except BaseException as error:
            if isinstance(error, SystemExit):
                return error.code if isinstance(error.code, int) else 1
            if _closed_pipe(error):
                return _leave_pipe()
            if type(error).__name__ == "NoArgsIsHelpError":  # verbs of verbs, such as `scale`
                print(error.ctx.get_help())  # type: ignore[attr-defined]
                return 0
            sentence, code = explained(error)
            if debug:
                traceback.print_exc(file=sys.stderr)
            elif code == 1:
                sentence += "; please report it with what --debug shows"
            print(f"Error: {sentence}" if code != 130 else sentence, file=sys.stderr, flush=True)
            if as_json and os.environ.get("RANK", "0") == "0":
                print_json({"error": sentence, "code": getattr(error, "code", None) if code == 2 else None})
            return code


def explained(error: BaseException) -> tuple[str, int]:
    """The sentence and the exit code of an exception."""
    import typer

    usage = typer.BadParameter.__mro__[1]  # UsageError, wherever this typer keeps its click
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "interrupted", 130
    if isinstance(error, UserError):
        return _one_line(str(error)), 2
    if isinstance(error, usage):
        return _usage(error), 2
    if hasattr(error, "format_message"):
        return _one_line(error.format_message()), 2
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in EXTRAS:
        name = (error.name or "").split(".")[0]
        return f"this needs the package {name!r}: pip install 'fullrank[{EXTRAS[name]}]'", 2
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", 2
    if isinstance(error, MemoryError):
        return "the memory of this machine is not enough for this", 2
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):
        from fullrank.core.spec import explain

        return _one_line(explain(error)), 2  # type: ignore[arg-type]
    return f"unexpected {type(error).__name__}: {_one_line(str(error))}", 1


def _run(build: Callable[[], typer.Typer], words: list[str]) -> int:
    import typer

    command = typer.main.get_command(build())
    code = command.main(args=words, prog_name="fullrank", standalone_mode=False)
    if code == 130:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _without_debug(given: list[str]) -> tuple[list[str], bool]:
    """`--debug` may stand anywhere, so it is taken out before the words are parsed."""
    return [word for word in given if word != "--debug"], "--debug" in given


def _usage(error: Any) -> str:
    context = error.ctx
    name = context.command_path if context is not None else "fullrank"
    option = getattr(error, "option_name", None)
    if option is not None and type(error).__name__ == "NoSuchOption":
        known = [o for p in context.command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")]
        text = f"{name} has no option {option!r}{nearest(option, [*known, '--help', '--debug'])}"
    else:
        text = _one_line(error.format_message()).rstrip(".")
        if text.startswith("No such command") and context is not None:
            text = _no_verb(text, list(context.command.commands))
        text = text[:1].lower() + text[1:]
    return f"{text} (see {name} --help)"


def _no_verb(text: str, verbs: list[str]) -> str:
    given = text.split("'")[1] if text.count("'") >= 2 else ""
    return f"there is no verb {given!r}{nearest(given, verbs)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _closed_pipe(error: BaseException) -> bool:
    return isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and error.errno == errno.EPIPE)


def _leave_pipe() -> int:
    """The reader (`| head`) has gone: nothing more can be said, and Python must not try at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 1
