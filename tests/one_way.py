"""Reads the source and reports what is written, read or printed elsewhere than by `core/`, which does it in one way.

`faults(root)` gives one sentence per fault. The text alone is read, as in `arrows.py`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

WRITING_METHODS = {
    "write_text", "write_bytes", "write_parquet", "write_csv", "write_ndjson", "write_json", "write_ipc", "write_excel",
    "sink_parquet", "sink_csv", "sink_ndjson", "sink_ipc", "tofile", "to_csv", "to_parquet",
    "savetxt", "savez", "savez_compressed", "save_file", "savefig",
}  # fmt: skip
WRITING_CALLS = {
    "np.save", "json.dump", "yaml.dump", "os.replace", "os.rename", "os.truncate", "shutil.copy", "shutil.copy2",
    "shutil.copyfile", "shutil.move",
}  # fmt: skip
READING_CALLS = {
    "json.load", "json.loads", "yaml.load", "yaml.load_all", "yaml.safe_load", "yaml.safe_load_all", "yaml.full_load",
    "yaml.unsafe_load", "yaml.SafeLoader", "pl.read_json", "pl.read_parquet",
}  # fmt: skip
READING_METHODS = {"model_validate_json", "parse_raw"}
PRINTING_CALLS = {"print", "sys.stderr.write", "sys.stdout.write", "logging.basicConfig"}

HOME = ("core/", "core/tensor_files.py")
PRINTS = ("cli/", "core/")
ALLOWED: dict[tuple[str, str], str] = {
    ("data/impressions/write.py", "open"): "arrays that grow at three places, in a folder that whole_folder replaces",
    (
        "data/events/pieces.py",
        "open",
    ): "columns that grow with each piece of a table, in a folder of work in progress",
    ("data/frames.py", "sink_parquet"): "scratch of an input that cannot be read from the middle",
    ("data/sources/movielens.py", "pl.read_parquet"): "a publisher's table, as tables of a user are read",
    ("data/download.py", "open"): "a transfer that stops and goes on: half a file is its state",
    ("data/download.py", "os.replace"): "the complete and checked transfer gets its final name",
    ("data/sources/_marketplace.py", "savez_compressed"): "into the handle of open_whole",
    ("serving/routes.py", "kind.model_validate_json"): "bodies, which the guard bounds",
    ("serving/export/encode.py", "json.loads"): "it runs in the folder of an export, without this library",
    (
        "data/sources/_parse.py",
        "json.loads",
    ): "publishers' lines, JSON or Python literals, by the million",
}
"""(file, call) -> why it is done there."""


def faults(root: Path, allowed: dict[tuple[str, str], str] = ALLOWED) -> list[str]:
    """One sentence for every call that `core/` should make, and for every permission that nothing uses."""
    found, used = [], set()
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root).as_posix()
        for call, line, what in calls(ast.parse(file.read_text(encoding="utf-8"))):
            if name.startswith(PRINTS if what == "prints" else HOME):
                continue
            if (name, call) in allowed:
                used.add((name, call))
            else:
                found.append(f"{name}:{line}: {call} {what}: {ADVICE[what]}")
    return found + [f"{file}: {call} is allowed and not there" for file, call in sorted(set(allowed) - used)]


ADVICE = {
    "writes": "use core.files or core.tables, which write whole or not at all",
    "reads": "use core.readers, which is bounded and knows every exception",
    "prints": "use core.log",
}


def calls(tree: ast.AST) -> Iterator[tuple[str, int, str]]:
    """(call, line, what it does) of every call, or import of a name, that this check is about."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in READING_CALLS:
                    yield whole, node.lineno, "reads"
                elif whole in WRITING_CALLS or alias.name in {"save_file", "NamedTemporaryFile"}:
                    yield whole, node.lineno, "writes"
        if isinstance(node, ast.Attribute):
            whole = ast.unparse(node)
            if whole in READING_CALLS or node.attr in READING_METHODS:
                yield whole, node.lineno, "reads"
            elif whole in WRITING_CALLS:
                yield whole, node.lineno, "writes"
            elif node.attr in WRITING_METHODS:
                yield node.attr, node.lineno, "writes"
        if isinstance(node, ast.Call):
            whole = ast.unparse(node.func)
            if whole in PRINTING_CALLS:
                yield whole, node.lineno, "prints"
            elif (whole == "open" or whole.endswith((".open", ".fdopen"))) and _may_write(node, whole == "open"):
                yield whole.rpartition(".")[2], node.lineno, "writes"


def _may_write(node: ast.Call, builtin: bool) -> bool:
    """Whether a file is opened for anything but reading; a mode that is worked out counts as one."""
    given = [k.value for k in node.keywords if k.arg == "mode"] + node.args[1 if builtin else 0 :][:1]
    if not given:
        return False
    mode = given[0]
    if isinstance(mode, ast.Constant) and isinstance(mode.value, str):
        letters = mode.value.partition(":")[0]  # `tarfile.open(path, "r:*")`
        return set(letters) <= set("rwaxbtU+|") and bool(set(letters) & set("wax+"))
    return builtin  # `Run.open(path)` takes a path there
