"""`fullrank demo`: the whole way on a generated marketplace, offline: prepare, train, compare, recommend."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fullrank.cli.options import option
from fullrank.cli.output import Output, seconds
from fullrank.cli.verbs import verb
from fullrank.core.errors import UserError, command_line
from fullrank.core.files import JsonObject, foreign_files, write_json
from fullrank.core.locks import folder_lock

if TYPE_CHECKING:
    from fullrank.data.events.store import Store
    from fullrank.run import Run

MODELS: dict[str, tuple[str, ...]] = {
    "popularity": (),
    "item_to_item": (),
    "gru4rec": (
        "model.dim=64",
        "model.encoder.dropout=0.2",
        "model.scoring.similarity=dot",
        "model.scoring.temperature=1",
        "training.max_epochs=10",
        "training.batch_size=1024",
        "training.lr=3e-3",
        "training.evaluate_every=2",
    ),
    "sasrec_plus": (
        "training.max_epochs=20",
        "training.batch_size=1024",
        "training.lr=2e-3",
        "training.evaluate_every=5",
    ),
}
"""Recipe -> the settings with which it fits a small marketplace and a few minutes (chosen on validation)."""
TITLES = {"popularity": "popularity", "item_to_item": "item-to-item", "gru4rec": "GRU4Rec", "sasrec_plus": "SASRec++"}
METRICS = ("ndcg@10", "recall@10", "fair0.8@1", "coverage@10")
LEAST = 6
"""Fewest events of the user who is shown."""
MARK = "demo.json"
"""Written first: in a folder with it, what the demo wrote may be replaced."""


@verb()
def demo(
    output: Output,
    out: Annotated[Path, option("FOLDER", "Where everything goes.")] = Path("runs/demo"),
) -> None:
    """See everything on generated data, in two minutes.

    A small marketplace is generated, prepared and learned by four recommenders; a table compares
    them. It needs no network. Running it again replaces what it wrote.

    \b
    fullrank demo
    fullrank demo --out runs/first
    """
    from fullrank.data.events.prepare import Columns, Prepare, prepare
    from fullrank.data.sources.planted import Planted
    from fullrank.training import fit  # noqa: F401  (slow to import: not the first model's time)

    with folder_lock(out, "demo"):
        _claim(out)
        output.say(
            "A marketplace of 3,000 users is generated: each has tastes that drift, and buys what goes together."
        )
        tables = Planted().read()
        spec = Prepare(columns=Columns())
        store = prepare(tables.events, out / "data", items=tables.items, users=tables.users, spec=spec)
        runs = {name: _train(output, name, changes, store, out / name) for name, changes in MODELS.items()}
        rows = {name: _measured(run, store) for name, run in runs.items()}
        output.say()
        cells = [[TITLES[name], *row.values()] for name, row in rows.items()]
        output.table(("model", "NDCG@10", "Recall@10", "fair0.8@1", "coverage@10"), cells)
        output.say(
            f"For each of {store.num_users:,} users: which of {store.num_items:,} items comes next? "
            "NDCG and Recall: is it among the first 10, and how near the top? fair0.8: the share of first places "
            "that go to the least popular 80 % of the items. coverage: the share of all items that anybody gets to "
            "see. Larger is better."
        )
        example = _example(output, store, runs["sasrec_plus"])
        _next(output, out, example["history"])
        output.say(f"\nAll of it took {seconds(output.spent)} and lies in {out}.")
        result = {"out": out, "metrics": rows, "example": example, "seconds": output.spent}
        write_json(out / MARK, {"metrics": rows, "seconds": output.spent})
        output.finish(result)


def _claim(out: Path) -> None:
    """Make an empty folder for the demo, in place of its former one. Raises `UserError`
    where it holds other files."""
    from fullrank.data.manifest import require_outside_stores

    require_outside_stores(out)
    if out.exists():
        ours = out.is_dir() and ((out / MARK).is_file() or not foreign_files(out))
        others = foreign_files(out, {"data", MARK, *MODELS}.__contains__) if ours else []
        if others or not ours:
            reason = f"it holds {', '.join(others)}" if ours else f"it has no {MARK}"
            raise UserError(
                f"{out} is not the demo's: {reason}; choose another folder by --out", code="folder-of-others"
            )
        for entry in sorted(out.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    write_json(out / MARK, {})


def _train(output: Output, name: str, changes: tuple[str, ...], store: Store, out: Path) -> Run:
    """Train one of the demo's models, and print the command and what it cost."""
    from fullrank import api

    words = [f"{TITLES[name]}: fullrank train {name}", *(f"--set {change}" for change in changes)]
    output.say("\n" + " ".join(words))
    begun = time.perf_counter()
    run = api.train(name, store, out, set=changes)
    output.say(f"{run.manifest['parameters']:,} parameters, trained in {seconds(time.perf_counter() - begun)}")
    return run


def _measured(run: Run, store: Store) -> dict[str, float]:
    from fullrank import api

    evaluation = api.evaluate(run, data=store, set=[f"metrics=[{', '.join(METRICS)}]", "slices=false"])
    return {name: evaluation.metrics[name] for name in METRICS}


def _example(output: Output, store: Store, run: Run) -> JsonObject:
    """Recommendations for one user, with titles, beside what the user really bought next."""
    import numpy as np

    from fullrank import api

    test_set = store.eval_set("test")
    lengths = test_set.histories.lengths
    row = int(np.where(lengths < LEAST, lengths.max() + 1, lengths).argmin())  # short, so that it can be typed again
    example = test_set.take(slice(row, row + 1))
    history, bought = example.histories.items.flat(), int(example.next_items[0])
    items, titles = store.catalog.external(history).to_list(), store.catalog.titles
    answers = api.recommend(run, {store.user_ids[int(example.users[0])]: items}, k=10, titles=True)
    hit = store.catalog.external([bought])[0]
    name = dict(zip(store.catalog.ids, titles, strict=True)) if titles is not None else {}
    output.say()
    output.table(
        ("item", "title"),
        [[str(item), name.get(item)] for item in items],
        title=f"User {answers['user'][0]} bought",
    )
    cells = [
        [r["rank"], str(r["item"]), r["score"], f"{r['title']}{'   <- bought next' if r['item'] == hit else ''}"]
        for r in answers.head(5).to_dicts()
    ]
    output.say()
    output.table(("rank", "item", "score", "title"), cells, title="SASRec++ recommends")
    ranks = answers.filter(answers["item"] == hit)["rank"].to_list()
    if not ranks or ranks[0] > 5:
        where = f"number {ranks[0]} of the list" if ranks else "not among the first ten"
        output.say(f"bought next: {name.get(hit, hit)} ({where})")
    return {"user": answers["user"][0], "history": items, "bought_next": hit, "recommendations": answers.to_dicts()}


def _next(output: Output, out: Path, history: list[Any]) -> None:
    """Print commands to try next."""
    output.say("\nWhat to try next:")
    for command in (
        command_line("evaluate", out / "gru4rec", out / "sasrec_plus"),
        command_line("recommend", out / "sasrec_plus", "--history", ",".join(map(str, history)), "--k", 5),
        command_line("recommend", out / "gru4rec", "--history", history[-1]),
        "fullrank prepare YOUR_EVENTS.csv --items YOUR_ITEMS.csv --out data/mine",
        "fullrank train sasrec --data data/mine --out runs/mine",
        "fullrank list recipes",
    ):
        output.say(f"  {command}", wrap=False)
