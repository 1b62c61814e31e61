"""From a catalogue to a folder of codes: vectors, reduction, codebooks, collisions, diagnostics, in this order.

`grow_codes` gives codes to new items from codebooks that stay: what was learned and every code
given so far is left as it is. What can drift is said: how much worse the codebooks describe the new
items than those that they were learned from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fullrank.core.checks import public
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject, without_dots
from fullrank.core.locks import folder_lock
from fullrank.core.log import Progress, Tell, quiet
from fullrank.data import manifest as manifests
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.data.values import hash_ids
from fullrank.semantic_ids import AlignedCodesSpec, Quantiser, folder, measure
from fullrank.semantic_ids.collisions import resolve_collisions
from fullrank.semantic_ids.quantisers import Autoencoder
from fullrank.semantic_ids.reader import Codes
from fullrank.semantic_ids.spec import Encode
from fullrank.semantic_ids.vectors import CACHE, Vectors, VectorsSpec, require_known, require_width
from fullrank.semantic_ids.vectors.reduce import Reduction, fit_reduction


@public
def encode(
    items: Catalog | Store | str | Path,
    out: str | Path,
    *,
    spec: Encode = Encode(),
    set: Sequence[str] = (),
    cache: str | Path = CACHE,
    overwrite: bool = False,
    tell: Tell = quiet,
) -> Codes:
    """Learn codes of the items of a store (or of a run, or of a catalogue) and write them at `out`.

    With `overwrite`, codes that are there are replaced at the end. `set` changes settings of the
    spec (`"learner.levels=32"`). Text vectors are kept in the folder `cache`, by a fingerprint.
    An item of which nothing is known is described by the mean of all vectors, is not learned
    from, and is counted. Raises `UserError` where the vectors cannot be had, or where a limit
    says that the codes are bad.
    """
    path, spec = without_dots(out), spec.override(*set)
    with folder_lock(path, "encode"):
        folder.require_replaceable_codes(path, overwrite=overwrite)
        catalog, origin = open_items(items)
        vectors = spec.vectors.read(catalog, Path(cache), tell)
        raw = fill_unknown(vectors)
        learned = vectors.known
        if spec.fit_on == "trained":
            learned = learned & torch.from_numpy(catalog.popularity > 0)
        require_known(learned, "the items with training events", "set fit_on=all", code="nothing-to-learn-from")
        reduction = fit_reduction(raw[learned], spec.pca, spec.whiten)
        x = raw if reduction is None else reduction.apply(raw)
        collaborative = None if spec.collaborative is None else spec.collaborative.read(catalog, Path(cache), tell)
        quantiser = _fit(spec, x, learned, collaborative, tell("codebooks"))
        before = quantiser.encode(x)
        codes, sizes = resolve_collisions(
            spec.collisions,
            before,
            quantiser.sizes,
            catalog.popularity,
            lambda rows: quantiser.last(x[rows], before[rows]),
        )
        report = quality_report(raw, x, vectors.known, (before, codes), sizes, quantiser, reduction, spec)
        if collaborative is not None:
            # without an extra digit; behind an encoder an item is described by the sum of its
            # codewords
            digits = codes[collaborative.known][:, : len(quantiser.sizes)]
            described = quantiser.quantised(digits) if isinstance(quantiser, Autoencoder) else quantiser.decode(digits)
            report["collaborative"] = measure.neighbour_recall(
                collaborative.matrix[collaborative.known], described, spec.seed
            )
        measure.check_limits(report, spec.limits)
        lacking = int((~vectors.known).sum())
        facts = {
            "spec": spec.dump(),
            "sizes": list(sizes),
            "item_ids": ids_hash(catalog.ids),
            "data": origin,
            "counts": {"items": catalog.size, "learned_from": int(learned.sum()), "without_vector": lacking},
            "vectors": vectors.facts,
            "report": report,
            "notes": notes(vectors.facts, lacking, catalog.size),
        }
        if collaborative is not None:
            facts["collaborative"] = collaborative.facts
        if isinstance(quantiser, Autoencoder):
            facts["learning"] = quantiser.facts
        tensors = quantiser.tensors() | ({} if reduction is None else reduction.tensors())
        folder.write_folder(path, catalog.ids, codes, tensors, facts)
        return Codes.open(path)


def _fit(
    spec: Encode, x: Float[Tensor, "V R"], learned: Bool[Tensor, "V"], beside: Vectors | None, tick: Progress
) -> Quantiser:
    """Codebooks learned from these rows, and by a learner that asks for them from
    their collaborative vectors too."""
    if not isinstance(spec.learner, AlignedCodesSpec):
        return spec.learner.fit(x[learned], spec.seed, tick)
    if beside is not None:
        beside = Vectors(beside.matrix[learned], beside.known[learned], beside.facts)
    return spec.learner.fit(x[learned], spec.seed, tick, beside)


def open_items(items: Catalog | Store | str | Path) -> tuple[Catalog, JsonObject]:
    """(catalogue, what the manifest says of it) of a store, of a run, or of a catalogue in memory."""
    if isinstance(items, Catalog):
        return items, {}
    if isinstance(items, Store):
        return items.catalog, {"store": items.path.name, "fingerprint": items.fingerprint}
    path = Path(items)
    table = path / "items.parquet"
    # a run: a store's manifest names its format, and a folder without a manifest is neither
    if table.is_file() and (path / manifests.NAME).is_file() and "format" not in manifests.load_manifest(path):
        return Catalog.open(manifests.checked_file(path, "items.parquet", manifests.RUN_AGAIN)), {"run": path.name}
    return open_items(Store.open(path))


def fill_unknown(vectors: Vectors) -> Float[Tensor, "V D"]:
    """The vectors, with the mean of those known where nothing is known."""
    matrix = vectors.matrix.clone()
    if not vectors.known.all():
        matrix[~vectors.known] = matrix[vectors.known].double().mean(0).float()
    return matrix


def quality_report(
    raw: Float[Tensor, "V D"],
    x: Float[Tensor, "V R"],
    known: Bool[Tensor, "V"],
    codes: tuple[Int64[Tensor, "V K"], Int64[Tensor, "V L"]],
    sizes: tuple[int, ...],
    quantiser: Quantiser,
    reduction: Reduction | None,
    spec: Encode,
) -> JsonObject:
    """Diagnostics of codes before and after the policy. `raw` are the vectors read, `x` what the learner saw of them.

    Reconstruction is relative: 1 is no better than describing every item by the mean. Items without
    a vector are left out of reconstruction and neighbours.
    """
    before, after = codes
    learned = len(quantiser.sizes)
    described = quantiser.decode(after[:, :learned])
    spread = max(measure.variance(x[known]), 1e-30)
    as_read = described if reduction is None else reduction.inverse(described)
    cosine = torch.nn.functional.cosine_similarity(raw[known].double(), as_read[known].double(), dim=1)
    error_before = measure.squared_errors(x[known], quantiser.decode(before)[known])
    return {
        "levels": measure.levels(after, sizes, learned),
        "collisions": {
            "policy": spec.collisions,
            "before": measure.collisions(before, raw),
            "after": measure.collisions(after, raw),
        },
        "reconstruction": {
            "error": float(measure.squared_errors(x[known], described[known]).mean()) / spread,
            "error_before_policy": float(error_before.mean()) / spread,
            "cosine": float(cosine.mean()),
            "variance": spread,
        },
        "neighbours": measure.neighbour_recall(raw[known], as_read[known], spec.seed),
    }


def notes(facts: JsonObject, lacking: int, size: int) -> list[str]:
    """Sentences for people about items without vectors and vectors without items."""
    sentences = []
    if lacking:
        sentences.append(
            f"{lacking:,} of {size:,} items have no vector (nothing is known of them): they have the codes of the mean "
            "vector"
        )
    if facts.get("rows_of_other_items"):
        sentences.append(f"{facts['rows_of_other_items']:,} vectors belong to no item of this catalogue")
    return sentences


def ids_hash(ids: pl.Series) -> str:
    """SHA-256 of external ids in their order."""
    state = hashlib.sha256()
    hash_ids(state, ids)
    return state.hexdigest()


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
    """Codes of a catalogue in which some items are new, written at `out`; items that have codes keep them.

    With `overwrite`, codes that are at `out` are replaced at the end. The new items' vectors are
    made as the old ones were; where those came from a file, `vectors` names the one that has the
    new (and any of the old, which the report is then about too). The manifest's `grown` says how
    many are new and how well they are described. Raises `UserError` where no item is new or none
    of the new has a vector.
    """
    old = codes if isinstance(codes, Codes) else Codes.open(codes)
    path = without_dots(out)
    source = _source(old, vectors if vectors is None else Path(vectors))
    with folder_lock(path, "encode --grow"):
        folder.require_replaceable_codes(path, overwrite=overwrite)
        catalog, origin = open_items(items)
        rows = old.rows(catalog)
        order = torch.cat([(rows >= 0).nonzero(), (rows < 0).nonzero()]).squeeze(1)
        known_count = int((rows >= 0).sum())
        if known_count == catalog.size:
            raise UserError(
                f"all {catalog.size:,} items have codes in {str(old.path)!r}: there is nothing to add",
                code="no-new-items",
            )
        read = source.read(catalog, Path(cache), tell)
        is_new = rows < 0
        require_known(read.known & is_new, f"the {int(is_new.sum()):,} new items", "give vectors of the new items")
        raw = fill_unknown(read)
        width = old.quantiser.dim if old.reduction is None else len(old.reduction.mean)
        require_width(raw, width, "new", f"that of the vectors that {str(old.path)!r} was made of")
        x = raw if old.reduction is None else old.reduction.apply(raw)
        fixed = old.codes[rows[order[:known_count]]]
        before, final = _codes(old, x[order], fixed, catalog.popularity[order.numpy()])
        back = order.argsort()
        before, final = before[back], final[back]
        report = quality_report(raw, x, read.known, (before, final), old.sizes, old.quantiser, old.reduction, old.spec)
        drift = _drift(old, x, before, read.known & is_new) | {"items": int(is_new.sum()), "from": old.fingerprint}
        lacking = int((~read.known & is_new).sum())
        facts = {
            "spec": old.spec.dump() | {"vectors": source.dump()},
            "sizes": list(old.sizes),
            "item_ids": ids_hash(catalog.ids),
            "data": origin,
            "vectors": read.facts,
            "report": report,
            "grown": drift,
            "counts": old.manifest["counts"] | {"items": catalog.size, "without_vector": lacking},
            "notes": [*notes(read.facts, lacking, catalog.size), *_doubts(old, drift, len(old) - known_count)],
        }
        folder.write_folder(path, catalog.ids, final, old.tensors, facts)
        return Codes.open(path)


def _source(old: Codes, vectors: str | Path | None) -> VectorsSpec:
    """Where the new items' vectors come from. Raises `UserError` for a file where the
    old ones' were made otherwise."""
    if vectors is None:
        return old.spec.vectors
    if old.spec.vectors.kind_of() != "file":
        raise UserError(
            f"the vectors of {str(old.path)!r} are of kind {old.spec.vectors.kind_of()}; a file of others would not "
            "fit its codebooks",
            code="other-vectors",
        )
    return old.spec.vectors.override(f"path={json.dumps(str(vectors))}")


def _codes(
    old: Codes, x: Float[Tensor, "V R"], fixed: Int64[Tensor, "F L"], popularity: Int64[np.ndarray, "V"]
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


def _drift(old: Codes, x: Float[Tensor, "V R"], first: Int64[Tensor, "V K"], new: Tensor) -> JsonObject:
    """Relative error of the new items, on the scale of the old ones'
    variance, beside the old ones' own."""
    was = old.report["reconstruction"]
    error = float(measure.squared_errors(x[new], old.quantiser.decode(first[new])).mean()) / was["variance"]
    before = was["error_before_policy"]
    return {"described": int(new.sum()), "error": error, "error_before": before, "ratio": error / max(before, 1e-30)}


def _doubts(old: Codes, drift: JsonObject, gone: int) -> Iterator[str]:
    """Sentences for people about new items that are described badly,
    and old ones that are `gone`."""
    if drift["ratio"] >= DRIFT:
        yield (
            f"the codebooks describe the new items {drift['ratio']:.1f} times worse than those they were learned from: "
            "encode all items anew before long, and train again"
        )
    if gone:
        yield f"{gone:,} items of {old.path.name} are not among these items: their codes are left out"
