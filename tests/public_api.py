"""What other people's code, commands and files rest on: `python tests/public_api.py` writes the snapshot anew.

`--check` (in `make check`) prints how it differs from the code, and fails. A change of the snapshot is a change of the
public interface: a name that goes away has to warn for a release first.
"""

import difflib
import inspect
import json
import sys
import warnings
from pathlib import Path
from typing import Any

SNAPSHOT = Path(__file__).with_name("public_api.json")


def surface() -> dict[str, Any]:
    """Names and signatures of the package, verbs with their options, kinds with their settings, names of rooms."""
    return {"names": names(), "verbs": verbs(), "kinds": settings(), "recipes": recipes()}


def names() -> dict[str, Any]:
    """What `import fullrank as fr` offers: parameters of each function and class, and of the public methods."""
    import fullrank

    return {name: _described(getattr(fullrank, name)) for name in sorted(fullrank.__all__)}


def verbs() -> dict[str, list[str]]:
    """Every command, its arguments and options with their default values."""
    import typer

    from fullrank.cli import build

    found = {}

    def walk(command: Any, path: tuple[str, ...]) -> None:
        for name, inner in sorted(getattr(command, "commands", {}).items()):
            walk(inner, (*path, name))
        if path:
            found[" ".join(path)] = sorted(_option(p) for p in command.params if p.name != "help")

    walk(typer.main.get_command(build()), ())
    return found


def settings() -> dict[str, dict[str, dict[str, Any]]]:
    """room -> kind -> setting -> its default, as plain data (`required` where there is none)."""
    from fullrank.core.registry import ROOMS, find, kinds

    return {"recipes": {kind: {"kind": kind} for kind in kinds("recipes")}} | {
        room: {kind: _fields(find(kind, room)) for kind in kinds(room)} for room in ROOMS if room != "recipes"
    }


def recipes() -> list[str]:
    """What an experiment's file may name beside kinds: functions of the papers' recipes that give a list of cells."""
    from fullrank import recipes

    places = []
    for kind_file in sorted(Path(recipes.__file__).parent.glob("*.py")):
        module = __import__(f"fullrank.recipes.{kind_file.stem}", fromlist=["x"])
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
                places.append(f"{module.__name__}:{name}")
    return sorted(places)


def _fields(spec: Any) -> dict[str, Any]:
    from pydantic import BaseModel

    def plain(value: Any) -> Any:
        return (
            value.model_dump(mode="json")
            if isinstance(value, BaseModel)
            else json.loads(json.dumps(value, default=repr))
        )

    return {
        name: "required" if field.is_required() else plain(field.get_default(call_default_factory=True))
        for name, field in spec.model_fields.items()
    }


def _described(value: Any) -> Any:
    if not inspect.isclass(value):
        return _signature(value)
    methods = {
        name: _signature(inspect.unwrap(getattr(value, name))) if callable(getattr(value, name)) else "value"
        for cls in value.__mro__
        if cls.__module__.startswith("fullrank")
        for name in vars(cls)
        if not name.startswith(("_", "model_"))
    }
    fields = getattr(value, "model_fields", {})
    return {"call": _signature(value), "has": {n: methods[n] for n in sorted(methods) if n not in fields}}


def _signature(value: Any) -> list[str]:
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ["?"]
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    told, named = [], False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not named:
            told, named = [*told, "*"], True
        told.append(stars.get(p.kind, "") + p.name + ("" if p.default is p.empty else f"={_default(p.default)}"))
    return told


def _default(value: Any) -> str:
    plain = (str, int, float, bool, tuple, type(None))
    return repr(value) if isinstance(value, plain) else type(value).__name__


def _option(parameter: Any) -> str:
    names = "/".join(sorted([*parameter.opts, *parameter.secondary_opts]))
    shown = " required" if parameter.required else f"={parameter.default}"
    return f"{parameter.param_type_name} {names}{shown}"


def text() -> str:
    return json.dumps(surface(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # of the old names
    now, then = text(), SNAPSHOT.read_text(encoding="utf-8")
    if "--check" not in sys.argv:
        SNAPSHOT.write_text(now, encoding="utf-8")
    elif now != then:
        print(*difflib.unified_diff(then.splitlines(), now.splitlines(), "snapshot", "code", lineterm=""), sep="\n")
        sys.exit("the public interface has changed; meant? python tests/public_api.py")
