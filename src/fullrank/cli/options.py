"""Options of the verbs: those that several share, declared once, and those that are settings of a Spec, not declared.

A verb says which settings of which Spec have an option of their own, `@verb(cls=spec_options(SPEC,
FLAGS))`, takes a `context: typer.Context`, and reads what was typed by `typed_settings(context)`.
Type, bounds, allowed values, default and help are the Spec's, which is imported when the verb is
called or its own help is asked for: `fullrank --help` imports none.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

from fullrank.cli.early_checks import check_runs, check_store
from fullrank.cli.grouped_help import GroupedCommand
from fullrank.core.constraints import MOST_VALUE
from fullrank.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from fullrank.core.spec import Spec

    Word = Any
else:
    Word = str
"""A word that `choice` has checked. To typer it is any text: its own error would not name the nearest word."""


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """An option that takes a value, for the annotation of a parameter, whose name it has unless there are `names`."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


def choice(words: str, text: str) -> Any:
    """An option that takes one of some words (`validation|test`), and refuses others with the nearest."""
    return option(words, text, callback=one_of(words))


def one_of(words: str) -> Callable[[Any, Any, Any], Any]:
    """A callback of typer's that raises `UserError` for what is none of some words (`validation|test`)."""
    allowed = words.split("|")

    def check(context: Any, parameter: Any, word: Any) -> Any:
        if word and word not in allowed:
            raise UserError(
                f"{parameter.opts[0]} {word!r} is unknown{did_you_mean(word, allowed)} (allowed: {', '.join(allowed)})",
                code="unknown-value",
            )
        return word

    return check


def flag(name: str, text: str, **more: Any) -> Any:
    """An option that takes no value."""
    return typer.Option(name, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """A word that stands without an option."""
    return typer.Argument(metavar=metavar, help=text, **more)


AsJson = Annotated[
    bool,
    flag("--json", "Print one JSON object as the last line of stdout; everything else goes to stderr."),
]
Settings = Annotated[
    list[str] | None,
    option("PATH=VALUE", "Change one setting, such as a.b=3; may be repeated.", "--set"),
]
MovedStore = Annotated[
    Path | None,
    option("STORE", "The store, where it was moved since the training.", callback=check_store),
]
EVALUATION = "fullrank.evaluation.spec:Evaluation"
REASONING = {
    "reasoning.steps": "--reasoning-steps",
    "reasoning.streams": "--reasoning-streams",
    "reasoning.adaptive": "--adaptive",
    "reasoning.patience": "--patience",
}
"""The inference budget of a model that reasons, for `spec_options(EVALUATION, REASONING)`."""
Overwrite = Annotated[bool, flag("--overwrite", "Replace what is at --out already.")]
Device = Annotated[
    str,
    option("auto|cpu|cuda|...", "Where the model runs; auto is a CUDA device where there is one."),
]
History = Annotated[
    list[str] | None,
    option("ID,ID,...", "Items of one user, oldest first; may be repeated."),
]
UserStore = Annotated[
    Path | None,
    option("STORE", "The store of the users.  [default: that of the run's training]"),
]
RunFolder = Annotated[Path, argument("RUN", "A run folder, as `fullrank train` writes it.", callback=check_runs)]


LAST = ("overwrite", "settings", "device", "as_json")
"""Parameters that stand behind those of a Spec in a verb's help."""


def check_out(out: Path | None, overwrite: bool, *names: str, suffixes: Sequence[str] = ()) -> None:
    """Raise `UserError` where a verb would replace a file without --overwrite, or write into prepared data.

    `out` is what --out names: a file with one of the `suffixes`, or the folder of the files
    `names`. Call it before any work is done.
    """
    check_owner("--out", out, overwrite=overwrite or None)
    if out is None:
        return
    if suffixes and out.suffix not in suffixes:
        raise UserError(
            f"--out {out} has the suffix {out.suffix!r}; allowed: {', '.join(suffixes)}", code="unknown-suffix"
        )
    from fullrank.data.manifest import require_no_store

    require_no_store(out, "output")
    if (out.is_dir() and not names) or (out.is_file() and names):
        kinds = ("file", "folder") if names else ("folder", "file")
        raise UserError(f"{out} is a {kinds[0]}; name a {kinds[1]} by --out", code=f"not-a-{kinds[1]}")
    file = next((path for path in (out / name for name in names or ("",)) if path.is_file()), None)
    if file is not None and not overwrite:
        raise UserError(
            f"{file} is there already: replace it with --overwrite, or name another {'folder' if names else 'file'}",
            code="already-there",
        )


Split = Annotated[Word, choice("validation|test", "Which part of the store is measured.")]


def check_owner(owner: str, there: object, **typed: object) -> None:
    """Raise `UserError` for an option that was typed without the one that it is about."""
    name = next((name for name, value in typed.items() if value is not None), None)
    if name is not None and there is None:
        raise UserError(
            f"--{name.replace('_', '-')} is about {owner}, which is not given", code="option-without-effect"
        )


class Setting(NamedTuple):
    """A setting that has an option of its own."""

    spec: type[Spec]
    flag: str
    form: tuple[Any, str] | None = None
    """The type that it is typed in and its placeholder in the help, where the field's type does not say."""
    choice: bool = False
    """Whether a word that the help does not show is refused when it is typed, and not by the Spec."""


def spec_options(spec: str, flags: Mapping[str, str]) -> type[TyperCommand]:
    """A class of commands with an option for each of some settings of a Spec.

    `spec` is `module:Class`. `flags` has the option of each dotted path, with the placeholder of
    its value in the help where that is no NAME (`--log FOLDER`); an empty one is the setting's
    own name with dashes (`k_core`: `--k-core`). An error sentence that names such a setting
    names its option instead.
    """

    def settings() -> dict[str, Setting]:
        named = {}
        for path, words in flags.items():
            name, _, metavar = words.partition(" ")
            name = name or f"--{path.rpartition('.')[2].replace('_', '-')}"
            named[path] = Setting(spec_of(spec), name, (str, metavar) if metavar else None)
        return named

    return with_settings(settings)


def with_settings(make: Callable[[], dict[str, Setting]]) -> type[TyperCommand]:
    """A class of commands with an option for each setting; they are made when they are first looked at."""
    settings = functools.cache(make)

    class WithSettings(GroupedCommand):
        context_class = typer.Context
        _list: list[Any]
        _complete = False

        @property  # a plain list in the base class, which adds to it; here it is completed when somebody looks at it
        def params(self) -> list[Any]:
            if not self._complete:
                self._complete = True
                position = next(
                    (n for n, parameter in enumerate(self._list) if parameter.name in LAST), len(self._list)
                )
                self._list[position:position] = _options(settings())
            return self._list

        @params.setter
        def params(self, declared: list[Any]) -> None:
            self._list = declared

        def invoke(self, context: Any) -> Any:
            typed = {path: context.params.pop(_name(path)) for path in settings()}
            nullable = {path for path, setting in settings().items() if _nullable(_field(setting.spec, path)[0])}
            context.obj = {
                path: None if value == "none" and path in nullable else value
                for path, value in typed.items()
                if value is not None and value is not False and value not in ([], ())
            }
            try:
                return super().invoke(context)
            except UserError as error:
                flags = {path: setting.flag for path, setting in settings().items()}
                raise UserError(in_options(str(error), flags, context.obj), code=error.code) from error

    return WithSettings


def typed_settings(context: typer.Context) -> dict[str, Any]:
    """Path -> value of the settings whose own options were typed; None where the word was `none`."""
    typed: dict[str, Any] = context.obj
    return typed


def names_of(settings: Iterable[str]) -> set[str]:
    """The dotted paths that some settings set."""
    return {setting.partition("=")[0].strip() for setting in settings}


def check_unset(settings: Sequence[str] | None, paths: Iterable[str], by: str, *, code: str = "given-twice") -> None:
    """Raise `UserError` where --set gives one of the settings that something else says (`by`)."""
    named = names_of(settings or ())
    for path in paths:
        if path in named:
            raise UserError(f"{path} is given by --set, which does not go with {by}: keep one", code=code)


def shortcuts(typed: Mapping[str, object], settings: list[str] | None) -> list[str]:
    """Dotted settings from options that abbreviate them, then those of ``--set``.

    Raises `UserError` where both say the same setting: one of them would be without effect.
    """
    check_unset(settings, typed, "its own option")
    return [*(f"{path}={json.dumps(value, ensure_ascii=False)}" for path, value in typed.items()), *(settings or [])]


def in_options(sentence: str, flags: Mapping[str, str], typed: Iterable[str] = ()) -> str:
    """Replace settings in a sentence (`columns.user`) by the options that a person types.

    A path without a dot is a word like others (`split`): it is replaced where it was typed as an
    option and the sentence begins with it.
    """
    for path in typed:
        if re.match(rf"{re.escape(path)}(?![\w.])", sentence):
            sentence = flags[path] + sentence[len(path) :]
    for path, flag in flags.items():
        if "." in path:
            whole = rf"(?<![\w.]){re.escape(path)}(?!\w|\.\w)"  # not the beginning of a longer (or misspelt) setting
            sentence = re.sub(whole, flag, re.sub(f"{whole}=", f"{flag} ", sentence))
            sentence = sentence.replace(f"{flag} None", f"{flag} none")
    return sentence


def _options(settings: Mapping[str, Setting]) -> list[Any]:
    """The parameters of a command, made by typer from a function with such a signature."""

    def carrier(**typed: Any) -> None: ...

    flags = {path: setting.flag for path, setting in settings.items()}
    parameters = [_option(path, setting, flags) for path, setting in settings.items()]
    vars(carrier)["__signature__"] = inspect.Signature(parameters)
    app = typer.Typer(add_completion=False)
    app.command()(carrier)
    return list(typer.main.get_command(app).params)


def _option(path: str, setting: Setting, flags: Mapping[str, str]) -> inspect.Parameter:
    """One setting as a parameter of a command, with the bounds, default and help of its field."""
    field, owner = _field(setting.spec, path)
    kind, metavar = setting.form or _type(field)
    limits = [] if owner else field.metadata  # another kind may stand there, with limits of its own
    bounds = {
        name: limit
        for name in ("ge", "le")
        for constraint in limits
        if abs(limit := getattr(constraint, name, MOST_VALUE)) < MOST_VALUE  # a larger one tells nobody anything
    }
    if _nullable(field):
        metavar = f"{metavar}|none"
    callback = one_of(metavar) if metavar and setting.choice and "|" in metavar else None
    names = [setting.flag, *([f"-{path}"] if len(path) == 1 else [])]
    text = _help(field, owner, kind, flags)
    info = typer.Option(
        *names, metavar=metavar, help=text, min=bounds.get("ge"), max=bounds.get("le"), callback=callback
    )
    annotation: Any = Annotated[kind if kind is bool else kind | None, info]
    default = False if kind is bool else None  # None: not typed; the default is the Spec's
    return inspect.Parameter(_name(path), inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _help(field: FieldInfo, owner: str | None, kind: Any, flags: Mapping[str, str]) -> str:
    """The field's docstring in the words of a shell, and its default."""
    text = " ".join((field.description or "").split())
    text = re.sub(r"\b(None|null)\b", "none" if _nullable(field) else "the default", text)
    text = re.sub(r"`([\w.]+)`", lambda path: flags.get(path[1], path[0]), text)
    if kind == list[str]:
        text += " May be repeated."
    default: Any = field.get_default(call_default_factory=True)
    if default is None or default is False or default == ():
        return text
    shown = default.kind_of() if hasattr(default, "kind_of") else default
    return f"{text}  [default: {shown}{f' ({owner})' if owner else ''}]"


def spec_of(name: str) -> type[Spec]:
    """The Spec `module:Class`, without torch where that is not loaded."""
    from fullrank.core.specs_alone import ask_alone

    module, _, cls = name.partition(":")
    spec: type[Spec] | None = ask_alone(module, lambda specs: getattr(specs, cls))
    return getattr(importlib.import_module(module), cls) if spec is None else spec


def _field(spec: type[Spec], path: str) -> tuple[FieldInfo, str | None]:
    """The field at a dotted path of the default spec, and the kind it belongs to
    where others could stand there."""
    *outer, last = path.split(".")
    owner = None
    for key in outer:
        spec = type(spec.model_fields[key].get_default(call_default_factory=True))
        owner = spec.kind_of() if "kind" in spec.model_fields else None
    return spec.model_fields[last], owner


def _nullable(field: FieldInfo) -> bool:
    """Whether a field that has a value by default may also be `none` (`--time-col none`)."""
    default: Any = field.get_default(call_default_factory=True)
    return default is not None and type(None) in get_args(field.annotation)


def _type(field: FieldInfo) -> tuple[Any, str | None]:
    """The type that typer reads an option as, and the placeholder for its value in the help.

    Allowed values are shown alone: the Spec refuses others, also those of ``--set``.
    """
    from fullrank.core.registry import Room

    rooms = [member for member in field.metadata if isinstance(member, Room)]
    if rooms:
        return str, "|".join(rooms[0].kinds())
    union = get_origin(field.annotation) in (Union, types.UnionType)
    members: list[Any] = [
        member for member in (get_args(field.annotation) if union else [field.annotation]) if member is not type(None)
    ]
    if all(hasattr(member, "kind_of") for member in members):
        return str, "|".join(member.kind_of() for member in members)
    first = members[0]
    if get_origin(first) is Literal:
        return str, "|".join(get_args(first))
    if get_origin(first) is tuple:
        return list[str], "NAME"
    if get_origin(first) is Annotated:  # a bounded number that may also be None
        first = get_args(first)[0]
    return first, {int: "N", float: "X", str: "NAME", bool: None}[first]


def _name(path: str) -> str:
    """The parameter of a setting in Python."""
    return path.replace(".", "__")
