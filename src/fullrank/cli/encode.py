"""`fullrank encode`: items of a store to semantic ids, with a report of how good they are.

`show_codes` prints the reports of several folders side by side, for `fullrank show CODES CODES
...`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fullrank.cli.early_checks import check_items
from fullrank.cli.option_groups import WrittenBySettings
from fullrank.cli.options import argument, option, shortcuts, spec_options, typed_settings
from fullrank.cli.output import Output, seconds
from fullrank.cli.verbs import verb
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject

if TYPE_CHECKING:
    from fullrank.semantic_ids.reader import Codes


FLAGS = {
    "learner": "",
    "learner.levels": "",
    "learner.size": "",
    "vectors.model": "",
    "vectors.columns": "--text-col",
    "pca": "",
    "whiten": "",
    "collisions": "",
}
"""Setting of `Encode` -> its option; an empty one is the setting's own name."""


@verb(cls=spec_options("fullrank.semantic_ids.spec:Encode", FLAGS))
def encode(
    context: typer.Context,
    data: Annotated[
        Path, argument("STORE", "A store (`fullrank prepare` makes one), or a run: its items.", callback=check_items)
    ],
    out: Annotated[Path, option("FOLDER", "The codes to write.")],
    output: WrittenBySettings,
    vectors: Annotated[Path | None, option("FILE", "Vectors of your own, a row for each item.")] = None,
    collaborative: Annotated[
        Path | None, option("FILE", "Vectors of a trained recommender (`fullrank vectors`).")
    ] = None,
    grow: Annotated[Path | None, option("CODES", "Codes to keep: only items that are new since get codes.")] = None,
    cache: Annotated[Path | None, option("FOLDER", "Where text vectors are kept.  [default: .cache/vectors]")] = None,
) -> None:
    """Turn items into semantic ids (codes).

    Items become vectors of their text, vectors become codes. Text vectors need the extra `text`,
    and are made once. --set reaches every setting (`fullrank schema --kind encode`). Where the
    codes are bad, none are written, and the sentence says what to change or how to allow it.

    \b
    fullrank encode data/shop --out data/shop-codes
    fullrank encode data/shop --learner rq_kmeans --levels 4 --collisions extra_digit --out data/shop-rq
    fullrank encode data/shop --vectors clip.parquet --levels 32 --pca 256 --out data/shop-clip
    fullrank encode data/shop --learner letter --collaborative sasrec.parquet --out data/shop-letter
    fullrank encode data/shop-now --grow data/shop-codes --out data/shop-codes-now
    """
    files = {"vectors": vectors, "collaborative": collaborative}
    source = {name: {"kind": "file", "path": str(file)} for name, file in files.items() if file is not None}
    changes = shortcuts(source | typed_settings(context), output.settings)  # the source first: it starts `vectors` anew
    from fullrank.core.specs_alone import ask_alone

    if grow is None:
        ask_alone("fullrank.semantic_ids.spec", lambda there: there.Encode().override(*changes))
    from fullrank.semantic_ids.encode import encode as make
    from fullrank.semantic_ids.encode import grow_codes
    from fullrank.semantic_ids.vectors import CACHE

    with output.stages() as tell:
        if grow is None:
            codes = make(data, out, set=changes, cache=cache or CACHE, overwrite=output.overwrite, tell=tell)
        else:
            if [change for change in changes if not change.startswith("vectors={")]:
                raise UserError(
                    "--grow keeps the settings of the codes that it adds to: give --vectors at most",
                    code="option-without-effect",
                )
            codes = grow_codes(
                grow, data, out, vectors=vectors, cache=cache or CACHE, overwrite=output.overwrite, tell=tell
            )
    _report(output, codes)


def _report(output: Output, codes: Codes) -> None:
    """Print how good the codes are, and finish the verb."""
    manifest: JsonObject = codes.manifest
    report, counts = manifest["report"], manifest["counts"]
    clash, rebuilt, near = report["collisions"], report["reconstruction"], report["neighbours"]
    learned = [level for level in report["levels"] if level["learned"]]
    use = min(learned, key=lambda level: level["use"])
    perplexity = min(learned, key=lambda level: level["perplexity"])
    rows = [
        ["code utilisation (lowest level)", use["use"], f"level {use['level']} of {len(learned)}, {use['size']} codes"],
        ["least perplexity", perplexity["perplexity"], f"level {perplexity['level']}, {perplexity['size']} codes"],
        ["collision rate", clash["before"]["rate"], f"{clash['before']['different']:.4f} with other vectors"],
        [
            f"collision rate after {codes.policy}",
            clash["after"]["rate"],
            f"{clash['after']['tuples']:,} tuples, the largest of {clash['after']['largest']:,} items",
        ],
        ["reconstruction error", rebuilt["error"], "1 is no better than the mean vector"],
        ["neighbour agreement", near["recall"], f"recall of the nearest {near['k']}, {near['items']:,} items"],
    ]
    shared = report.get("collaborative")
    if shared is not None:
        rows.append(["collaborative agreement", shared["recall"], "the same, of the nearest by --collaborative"])
    output.table(("", "", ""), rows)
    grown = manifest.get("grown")
    if grown:
        output.say(
            f"{grown['items']:,} new items: reconstruction error {grown['error']:.4f}, of the items learned from "
            f"{grown['error_before']:.4f} (ratio {grown['ratio']:.2f})"
        )
    output.notes(manifest["notes"])
    output.say(
        f"{codes.path}: {counts['items']:,} items, {codes.levels} codes each ({codes.spec.learner.kind_of()}), learned "
        f"from {counts['learned_from']:,}, in {seconds(output.spent)}"
    )
    facts = {key: value for key, value in manifest.items() if key not in ("files", "format")}
    output.finish({"codes": codes.path, **facts, "seconds": output.spent})


FIGURES = {
    "learner": "learner",
    "levels": "levels",
    "items": "items",
    "least use": "use",
    "least perplexity": "perplexity",
    "sharing codes": "rate",
    "of another vector": "different",
    "after the policy": "after",
    "error": "error",
    "neighbours": "neighbours",
    "collaborative": "collaborative",
}
"""Title of a row of the table -> its name in `row_of`. Collisions are those before the policy."""


def show_codes(output: Output, folders: Sequence[str]) -> None:
    """Print a column of figures for each folder, in this order. Raises `UserError` for a folder that holds no codes."""
    from fullrank.semantic_ids.reader import Codes

    rows = [row_of(Codes.open(Path(folder))) for folder in folders]
    names = [Path(row["codes"]).name for row in rows]
    heads = names if len(set(names)) == len(names) else [row["codes"] for row in rows]
    output.table(("", *heads), [(title, *(row[name] for row in rows)) for title, name in FIGURES.items()])
    if len({row["item_ids"] for row in rows}) > 1:
        output.say("note: these are codes of different items, and their figures do not compare")
    if len({row["vectors"] for row in rows}) > 1:
        output.say("note: these codes were learned from different vectors: error and neighbours are about their own")
    output.finish({"codes": rows})


def row_of(codes: Codes) -> JsonObject:
    """The figures of one folder of codes."""
    report, learner = codes.report, codes.spec.learner
    learned = [level for level in report["levels"] if level["learned"]]
    clash = report["collisions"]
    return {
        "codes": str(codes.path),
        "learner": learner.kind_of(),
        "levels": f"{len(learned)} x {learned[0]['size']}",
        "items": len(codes),
        "use": min(level["use"] for level in learned),
        "perplexity": min(level["perplexity"] for level in learned),
        "rate": clash["before"]["rate"],
        "different": clash["before"]["different"],
        "after": f"{clash['after']['rate']:.4f} ({codes.policy})",
        "error": report["reconstruction"]["error"],
        "neighbours": report["neighbours"]["recall"],
        "collaborative": report.get("collaborative", {}).get("recall"),
        "policy": codes.policy,
        "rate_after": clash["after"]["rate"],
        "fingerprint": codes.fingerprint,
        "item_ids": codes.manifest["item_ids"],
        "vectors": codes.manifest.get("vectors", {}).get("fingerprint"),
        "pca": codes.spec.pca,
        "report": report,
    }
