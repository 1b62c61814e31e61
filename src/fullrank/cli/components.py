"""`fullrank list`, `show` and `schema`: what there is to choose from, and what may stand in an experiment's file.

`list` reads the source text of the rooms, so that nothing heavy is imported.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fullrank.cli.early_checks import SPEC, check_recipe, check_settings
from fullrank.cli.option_groups import Written
from fullrank.cli.options import Settings, argument, check_out, check_owner, option
from fullrank.cli.output import Output
from fullrank.cli.verbs import verb
from fullrank.core.errors import UserError, unknown
from fullrank.core.files import JsonObject, write_json

if TYPE_CHECKING:
    from fullrank.core.spec import Spec
    from fullrank.run.experiment import Experiment


@verb("list")
def list_(
    output: Output,
    room: Annotated[
        str | None, argument("TYPE", "One component type, or the setting that takes it; without it, all types.")
    ] = None,
) -> None:
    """List recipes, data sources, losses and the rest.

    A component type holds components that do the same job, and a setting chooses one of them. A
    component's name is what `kind` takes in a YAML recipe and in --set (`--set model.loss=bce`).
    Components of installed third parties are listed too.

    \b
    fullrank list              the component types
    fullrank list recipes      what `fullrank train` knows by name, and what data each needs
    fullrank list sources      what `fullrank download` and `prepare` know by name
    fullrank list penalties    what `--set 'model.penalties=[{kind: ...}]'` takes
    """
    from fullrank.core.registry import ROOMS, SETTINGS, kinds

    if room is None:
        rooms: list[JsonObject] = [
            {"room": name, "setting": SETTINGS.get(name), "kinds": kinds(name), "what": what}
            for name, what in ROOMS.items()
        ]
        rows = [(r["room"], r["setting"], len(r["kinds"]), r["what"]) for r in rooms]
        output.table(("type", "setting", "names", "what"), rows)
        output.say("\nfullrank list TYPE names the components of one type; TYPE may be the setting, too.")
        output.finish({"rooms": rooms})
        return
    full = full_room(room)
    lines: list[JsonObject] = [{"kind": kind, "what": first_line(full, kind)} for kind in kinds(full)]
    if full == "recipes":
        _list_recipes(output, lines)
    else:
        output.table(("name", "what"), [tuple(line.values()) for line in lines])
    output.finish({"room": full, "what": ROOMS[full], "kinds": lines})


def _list_recipes(output: Output, lines: list[JsonObject]) -> None:
    """Print recommenders and rankers apart, with the data that each
    needs, which is added to `lines`."""
    for line in lines:
        line["needs"] = needs_of(line["kind"])
    for title, rankers in (
        ("Recommenders: lists of items, from events (fullrank prepare)", False),
        ("Rankers: click probabilities, from impressions (fullrank prepare-impressions)", True),
    ):
        rows = [r for r in lines if r["needs"].startswith("impressions") == rankers]
        if rankers:
            output.say()
        output.table(("recipe", "needs", "what"), [(r["kind"], r["needs"], r["what"]) for r in rows], title=title)
    output.say(
        "\nWhere people choose the same items again (sessions, groceries, music), every recommender needs --set "
        "evaluation.seen=keep: lists leave out the history otherwise."
    )


def needs_of(recipe: str) -> str:
    """The data that a recipe names as `needs`, empty where it names none; our own recipes are read and not imported."""
    from fullrank.core.registry import component, declared

    module = declared("recipes").get(recipe)
    if module is None:
        return str(getattr(component(recipe, "recipes"), "needs", ""))
    (mark,) = _definition(module, recipe).decorator_list
    assert isinstance(mark, ast.Call)
    return str(next(ast.literal_eval(word.value) for word in mark.keywords if word.arg == "needs"))


def full_room(name: str) -> str:
    """The room of a name (`losses`, `model.loss`: `objectives.losses`). Raises `UserError` for none or several."""
    from fullrank.core.registry import rooms_named

    rooms = rooms_named(name)
    if len(rooms) > 1:
        raise UserError(
            f"{name!r} takes components of {len(rooms)} types: name one of {', '.join(rooms)}", code="ambiguous-kind"
        )
    return rooms[0]


def first_line(room: str, kind: str) -> str:
    """The opening paragraph of the docstring of the file that declares a kind.

    That of its class or function for recipes, and where a file declares several kinds. Empty where
    the source is out of reach.
    """
    from fullrank.core.registry import declared

    modules = declared(room)
    if kind in modules:
        several = list(modules.values()).count(modules[kind]) > 1 or room == "recipes"
        return _docstring(modules[kind], kind if several else None)
    points = importlib.metadata.entry_points(group=f"fullrank.{room}")
    return next((_docstring(point.module) for point in points if point.name == kind), "")


def _docstring(module: str, kind: str | None = None) -> str:
    """The opening paragraph of a module's docstring, or of that of a `kind` in it, as one line.

    The module is not imported.
    """
    tree = _tree(module)
    if tree is None:
        return ""
    text = ast.get_docstring(tree if kind is None else _definition(module, kind)) or ""
    return " ".join(text.strip().partition("\n\n")[0].split())


def _definition(module: str, kind: str) -> ast.ClassDef | ast.FunctionDef:
    from fullrank.core.registry import defined_names, source

    nodes = (node for node in source(module).body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return next(node for node in nodes if node.name == defined_names(module)[kind])


def _tree(module: str) -> ast.Module | None:
    """The source of a module found beside its top package; None where it is out of reach."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top) if top else None
    if spec is None or spec.origin is None:
        return None
    base = Path(spec.origin)
    named = base.parent.joinpath(*rest)
    file = base if not rest else named / "__init__.py" if named.is_dir() else named.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8")) if file.is_file() and file.suffix == ".py" else None


@verb()
def show(
    output: Output,
    what: Annotated[
        list[str],
        argument("WHAT...", "A recipe's name, a YAML or JSON file, a run folder, or folders of codes to compare."),
    ],
    settings: Settings = None,
    data: Annotated[Path | None, option("STORE", "Count a ranking model's size on this store's fields.")] = None,
) -> None:
    """Show the settings of a recipe or a run as YAML.

    Of folders of semantic ids it shows the reports side by side. `fullrank train` reads the YAML
    back. Of a ranking model, a comment below counts its parameters and the FLOPs of an impression:
    of a run, or with --data.

    \b
    fullrank show sasrec > mine.yaml
    fullrank show sasrec --set model.dim=256
    fullrank show runs/sasrec
    fullrank show dcnv2 --data data/ctr
    fullrank show data/shop-rq data/shop-rqvae
    """
    if len(what) == 1 and not Path(what[0]).is_dir():
        check_recipe(what[0], settings)
    elif len(what) == 1 and settings and (Path(what[0]) / SPEC).is_file():
        check_settings(Path(what[0]), settings)
    from fullrank import api
    from fullrank.cli.encode import show_codes
    from fullrank.run import Run
    from fullrank.semantic_ids.folder import is_codes

    name = what[0]
    if len(what) > 1 or (Path(name).is_dir() and is_codes(Path(name))):
        check_owner("a recipe or a run", None, set=settings or None, data=data)
        show_codes(output, what)
        return
    run = Run.open(name) if Path(name).is_dir() else None
    spec = api.recipe(name if run is None else run.spec, *(settings or ()))
    folder = data or (None if run is None else run.path)
    if run is not None and data is None and not settings:
        size = run.manifest.get("size")
    else:
        size = None if folder is None else size_of(spec, folder)
    output.say(spec.to_yaml().rstrip() + size_comment(size), wrap=False)
    facts: JsonObject = {"spec": spec.dump()}
    if run is not None:
        facts |= {"manifest": run.manifest, "last": run.rows()[-1] if run.rows() else None}
    output.finish(facts | ({} if size is None else {"size": size}))


def size_of(spec: Experiment, folder: Path) -> JsonObject | None:
    """A ranking model's size on the fields of a store or a run. Raises `UserError` where these have none."""
    import torch

    from fullrank.data.impressions.store import open_store
    from fullrank.run import Run, is_run

    if is_run(folder):
        if spec.problem == "retrieval":
            return None
        fields = Run.open(folder).fields
    else:
        store = open_store(folder)
        if spec.problem == "retrieval" or store.problem == "retrieval":
            raise UserError(
                f"a size is counted of a ranking model on impressions, not of {spec.recipe} on {folder}: leave out "
                "--data",
                code="option-of-other-problem",
            )
        fields = store.fields
    with torch.device("meta"):  # shapes without memory
        model: Any = spec.model
        size: JsonObject = model.build(fields).size().dump()
    return size


def size_comment(size: JsonObject | None) -> str:
    """A size as comments of the YAML before it; empty for None."""
    if size is None:
        return ""
    lines = [
        f"{size['embedding_parameters']:,} parameters in tables, {size['dense_parameters']:,} dense",
        f"{count(size['flops'])} FLOPs an impression (products of the forward pass)",
        *(f"  {name} {count(flops)}" for name, flops in size["flops_by_component"].items()),
    ]
    return "".join(f"\n# {line}" for line in lines)


def count(flops: int | None) -> str:
    return "an unknown number of" if flops is None else f"{flops:,}"


@verb()
def schema(
    output: Written,
    kind: Annotated[
        str | None, option("KIND", "One component (see `fullrank list`), `prepare`, `impressions` or `encode`.")
    ] = None,
    room: Annotated[
        str | None,
        typer.Option("--type", "--room", metavar="TYPE", help="Where two component types have that name, which one."),
    ] = None,
    out: Annotated[Path | None, option("FILE", "Write there, not to stdout.")] = None,
) -> None:
    """Print a JSON Schema, for editors to complete.

    Begin a YAML file with the line `# yaml-language-server: $schema=experiment.schema.json` (VS
    Code, Neovim and JetBrains editors understand it). `fullrank show sasrec > mine.yaml` gives a
    file to begin with.

    \b
    fullrank schema --out experiment.schema.json
    fullrank schema --kind transformer
    """
    from fullrank.core.specs_alone import ask_alone

    if room is not None and kind is None:
        raise UserError("--type says which --kind is meant: give both or neither", code="missing-option")
    check_out(out, output.overwrite)
    tree = ask_alone("fullrank.run.experiment", lambda _: spec_of(kind, room).model_json_schema())
    tree = spec_of(kind, room).model_json_schema() if tree is None else tree
    tree = {"$schema": "https://json-schema.org/draft/2020-12/schema", **tree}
    text = json.dumps(tree, indent=2)
    if out is not None:
        write_json(out, tree)
        output.say(f"written to {out}")
        output.finish({"out": out, "title": tree.get("title")})
        return
    if not output.as_json:
        output.say(text, wrap=False)
    output.finish(tree)


SPECS = {
    "prepare": ("fullrank.data.events.prepare", "Prepare"),
    "impressions": ("fullrank.data.impressions.schema", "Schema"),
    "encode": ("fullrank.semantic_ids.spec", "Encode"),
}
"""Specs that are no component, by what `--kind` calls them."""


def spec_of(kind: str | None, room: str | None) -> type[Spec]:
    """The Spec class of a kind; without one, of an experiment. Raises `UserError` for an unknown or ambiguous name."""
    from fullrank.core import registry
    from fullrank.core.registry import ROOMS, find, kinds

    experiment: type[Spec] = registry.load("fullrank.run.experiment").Experiment
    if kind is None:
        return experiment
    if room is None and kind in SPECS:
        module, name = SPECS[kind]
        return getattr(registry.load(module), name)
    rooms = [full_room(room)] if room is not None else list(ROOMS)
    matches = [name for name in rooms if kind in kinds(name)]
    if not matches:
        raise unknown("kind", kind, sorted({known for name in rooms for known in kinds(name)}))
    if len(matches) > 1:
        raise UserError(f"{kind!r} is a kind of {' and of '.join(matches)}: choose by --type", code="ambiguous-kind")
    return experiment if matches == ["recipes"] else find(kind, matches[0])
