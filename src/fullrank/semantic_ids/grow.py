"""Codes for new items from codebooks that stay: what was learned and every code given so far is left as it is.

What can drift is said: how much worse the codebooks describe the new items than those that they were learned from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fullrank.core.checks import public
from fullrank.core.errors import UserError
from fullrank.core.files import without_dots
from fullrank.core.locks import folder_lock
from fullrank.core.log import Tell, quiet
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.semantic_ids import folder, measure
from fullrank.semantic_ids.collisions import resolve_collisions
from fullrank.semantic_ids.encode import CACHE, fill_unknown, ids_hash, notes, open_items, quality_report
from fullrank.semantic_ids.reader import Codes
from fullrank.semantic_ids.vectors import VectorsSpec, require_known, require_width

DRIFT = 1.5
"""Error of new items over that of the old from which a note advises to encode anew."""


@public
def grow_codes(
    codes: Codes | str | Path,
    items: Catalog | Store | str | Path,
    out: str | Path,
    *,
    vectors: str | Path | None = None,
    cache: str | Path = CACHE,
    overwrite: bool = False,
    tell: Tell = quiet,
) -> Codes:
    """Codes of a catalogue in which some items are new, written at `out`; items that have codes keep them. With
    `overwrite`, codes that are at `out` are replaced at the end.

    The new items' vectors are made as the old ones were; where those came from a file, `vectors` names the one that
    has the new (and any of the old, which the report is then about too). The manifest's `grown` says how many are new
    and how well they are described. Raises `UserError` where no item is new or none of the new has a vector.
    """
    old = codes if isinstance(codes, Codes) else Codes.open(codes)
    place = without_dots(out)
    source = _source(old, vectors if vectors is None else Path(vectors))
    with folder_lock(place, "encode --grow"):
        folder.require_replaceable_codes(place, overwrite=overwrite)
        return _grow_locked(old, items, place, source, Path(cache), tell)


def _grow_locked(
    old: Codes, items: Catalog | Store | str | Path, place: Path, source: VectorsSpec, cache: Path, tell: Tell
) -> Codes:
    catalog, origin = open_items(items)
    rows = old.rows(catalog)
    order = torch.cat([(rows >= 0).nonzero(), (rows < 0).nonzero()]).squeeze(1)
    count = int((rows >= 0).sum())
    if count == catalog.size:
        raise UserError(
            f"all {catalog.size:,} items have codes in {str(old.path)!r}: there is nothing to add", code="no-new-items"
        )
    found = source.read(catalog, cache, tell)
    fresh = rows < 0
    require_known(found.known & fresh, f"the {int(fresh.sum()):,} new items", "give vectors of the new items")
    raw = fill_unknown(found)
    x = _seen(old, raw)
    fixed = old.codes[rows[order[:count]]]
    first, final = _codes(old, x[order], fixed, catalog.popularity[order.numpy()])
    back = order.argsort()
    first, final = first[back], final[back]
    report = quality_report(raw, x, found.known, (first, final), old.sizes, old.quantiser, old.reduction, old.spec)
    drift = _drift(old, x, first, found.known & fresh) | {"items": int(fresh.sum()), "from": old.fingerprint}
    lacking = int((~found.known & fresh).sum())
    facts = {
        "spec": old.spec.dump() | {"vectors": source.dump()}, "sizes": list(old.sizes),
        "item_ids": ids_hash(catalog.ids), "data": origin, "vectors": found.facts, "report": report, "grown": drift,
        "counts": old.manifest["counts"] | {"items": catalog.size, "without_vector": lacking},
        "notes": [*notes(found.facts, lacking, catalog.size), *_doubts(old, drift, len(old) - count)],
    }  # fmt: skip
    folder.write_folder(place, catalog.ids, final, old.tensors, facts)
    return Codes.open(place)


def _source(old: Codes, vectors: str | Path | None) -> VectorsSpec:
    if vectors is None:
        return old.spec.vectors
    if old.spec.vectors.kind_of() != "file":
        raise UserError(
            f"the vectors of {str(old.path)!r} are of kind {old.spec.vectors.kind_of()}; a file of others would not "
            "fit its codebooks",
            code="other-vectors",
        )
    return old.spec.vectors.override(f"path={json.dumps(str(vectors))}")


def _seen(old: Codes, raw: Float[Tensor, "V D"]) -> Float[Tensor, "V R"]:
    """The vectors as the old learner saw them. Raises `UserError` where their width is another."""
    width = old.quantiser.dim if old.reduction is None else len(old.reduction.mean)
    require_width(raw, width, "new", f"that of the vectors that {str(old.path)!r} was made of")
    return raw if old.reduction is None else old.reduction.apply(raw)


def _codes(
    old: Codes, x: Float[Tensor, "V R"], fixed: Int64[Tensor, "F L"], popularity: Any
) -> tuple[Int64[Tensor, "V K"], Int64[Tensor, "V L"]]:
    """(learned codes, final codes) of rows of which the first F have theirs."""
    quantiser = old.quantiser
    first = quantiser.encode(x)
    first[: len(fixed)] = fixed[:, : first.shape[1]]

    sizes = old.sizes if old.policy == "extra_digit" else quantiser.sizes
    final, _ = resolve_collisions(
        old.policy, first, sizes, popularity, lambda rows: quantiser.last(x[rows], first[rows]), fixed
    )
    return first, final


def _drift(old: Codes, x: Float[Tensor, "V R"], first: Int64[Tensor, "V K"], new: Tensor) -> dict[str, Any]:
    """Relative error of the new items, on the scale of the old ones' variance, beside the old ones' own."""
    was = old.report["reconstruction"]
    error = float(measure.squared_errors(x[new], old.quantiser.decode(first[new])).mean()) / was["variance"]
    before = was["error_before_policy"]
    return {"described": int(new.sum()), "error": error, "error_before": before, "ratio": error / max(before, 1e-30)}


def _doubts(old: Codes, drift: dict[str, Any], gone: int) -> Iterator[str]:
    """What to know of new items that are described badly, and of old ones that are `gone`."""
    if drift["ratio"] >= DRIFT:
        yield (
            f"the codebooks describe the new items {drift['ratio']:.1f} times worse than those they were learned from: "
            "encode all items anew before long, and train again"
        )
    if gone:
        yield f"{gone:,} items of {old.path.name} are not among these items: their codes are left out"
