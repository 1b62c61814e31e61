"""Items that a trained model has not learned: new ones are added, and those without training events get vectors.

`grow_catalog` adds items: vectors from their features or from like items, ids appended, the id
map versioned. It writes a run folder; `grown_model` is the same in memory, for a service whose
catalogue changes while it answers. `fill_unseen` puts means of the vectors of like items in
place of untrained ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fullrank.core.checks import public
from fullrank.core.errors import UserError, no_effect
from fullrank.core.spec import Spec
from fullrank.data.events.catalog import Catalog
from fullrank.models.sequential.items.semantic import Semantic, read_codes
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.run import Run, opened_run, require_empty, write_copy
from fullrank.semantic_ids.reader import CODES, SIZES, Codes


@public
def grow_catalog(
    run: Run | str | Path,
    new_items: Any,
    out: str | Path,
    *,
    item: str = "item_id",
    start: Literal["features", "neighbours", "mean"] = "features",
    like: str | None = None,
    codes: Codes | str | Path | None = None,
) -> Run:
    """A copy of `run` in the folder `out` that knows `new_items` too (a path or a DataFrame with the column `item`).

    `start` says where a new item's own vector comes from: `features` for models whose items are
    made of features (the own part starts at the mean of all items), `neighbours` averages the items
    whose column `like` holds the same value (all items where none does), `mean` is the mean of all
    items. Old items keep their ids, vectors and scores.

    For a run whose items are made of semantic ids, `codes` are those of old and new items
    (`grow_codes`): a new item's vector is put together from parts that are trained
    already, so nothing is retrained. So it is with items made of text, which need the
    text of the new items alone.
    """
    run = opened_run(run)
    require_like(start, like)
    old = run.catalog
    grown = old.extended(new_items, item)
    grown = _coded(run, old, grown, codes)
    spec = run.spec.model.items if isinstance(run.spec.model, Recommender) else None
    reads_new = spec is not None and spec.reads_new_items
    if spec is not None and reads_new:
        if start != "features":
            raise no_effect(f"start={start!r}", "since this run's items are made of what is known of them")
        grown = spec.add_new_columns(grown, old.size)
    model = outline(run.spec.model, grown)
    from_features = reads_new or (isinstance(model, RecommenderModel) and hasattr(model.items, "codes"))
    if start == "features" and not from_features:
        columns = [name for name in old.frame.columns if name != "item_id"]
        raise UserError(
            f"start='features' is for models that make items of their features, and {run.spec.recipe} learns each by "
            "its id: say where a new one begins, with start='neighbours' and like=COLUMN (like the items of the same "
            f"value; columns: {', '.join(columns) or 'none'}) or with start='mean' (like all items)",
            code="no-item-features",
        )
    folder = Path(out)
    require_empty(folder)
    like_items = LikeItems(grown, np.arange(old.size), np.arange(old.size, grown.size), like)
    new = _grown(model, run.tensors(), lambda _, table: torch.cat([table, like_items.mean(table)]))
    return write_copy(run, folder, grown, new, {"grown_from": str(run.path), "id_map_version": grown.version})


def _coded(run: Run, old: Catalog, grown: Catalog, codes: Codes | str | Path | None) -> Catalog:
    """The grown catalogue with the codes of its new items, where the
    run's items are made of codes."""
    has_codes = isinstance(run.spec.model, Recommender) and isinstance(run.spec.model.items, Semantic)
    if has_codes != (codes is not None):
        reason = (
            "this run's items are made of semantic ids: give the codes of old and new items, "
            "codes=fr.grow_codes(CODES, run.catalog.extended(new_items), OUT)"
            if has_codes
            else "codes= is for runs whose items are made of semantic ids; leave it out"
        )
        raise UserError(reason, code="wrong-codes-given")
    if codes is None:
        return grown
    opened = codes if isinstance(codes, Codes) else Codes.open(codes)
    whole = opened.attach(Catalog(grown.frame.drop(CODES, SIZES), grown.features))
    (before, sizes), (after, more) = read_codes(old), read_codes(whole)
    if more != sizes or not torch.equal(after[: old.size], before):
        raise UserError(
            f"{opened.path} gives old items other codes than the run has: grow the codes that it was trained on "
            "(grow_codes keeps those of old items)",
            code="other-codes",
        )
    return whole


Grow = Callable[[str, Tensor], Tensor]
"""A learned table with a row for each item of the run, by its name -> the same with the rows of new items behind."""


def grown_model(spec: Spec, model: nn.Module, grown: Catalog, grow: Grow) -> Any:
    """The trained `model`, which `spec` describes, on the items of `grown`, its own and new ones behind: in memory.

    What is not per item is shared with `model` and not copied, so that the two together cost little
    more than their tables. The answer is in evaluation mode, where the weights of `model` are.
    """
    tensors = model.state_dict()
    device = next(iter(tensors.values())).device
    new = outline(spec, grown)
    new.load_state_dict(_grown(new, tensors, grow), assign=True)
    return new.to(device).eval()


class _NoTables(TorchFunctionMode):
    """Tables of so many rows, as items ask for, are made without memory, and nothing is drawn into them."""

    def __init__(self, rows: int):
        super().__init__()
        self.rows = rows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        if func is torch.empty and args and isinstance(args[0], tuple) and args[0][:1] == (self.rows,):
            return func(*args, **keywords | {"device": "meta"})
        name, into = getattr(func, "__name__", ""), args[0] if args else keywords.get("tensor")
        if isinstance(into, Tensor) and into.is_meta and name.endswith("_") and not name.startswith("_"):
            return into  # normal_, zeros_ and so on: torch would import its compiler for them
        return func(*args, **keywords)


def outline(spec: Spec, catalog: Catalog) -> nn.Module:
    """The model of a spec on a catalogue, without memory for its tables of items: weights are still to be put in.

    Its buffers are made, which hold what the catalogue says of the items.
    """
    builder: Any = spec
    with _NoTables(catalog.size):
        return builder.build(catalog)


def _grown(model: nn.Module, tensors: Mapping[str, Tensor], grow: Grow) -> dict[str, Tensor]:
    """The state of `model`: tensors of the run of the same shape are not per item and
    stay, all others get new rows."""
    learned = dict(model.named_parameters())
    new = {}
    for name, value in model.state_dict().items():
        trained = tensors[name]
        if trained.shape == value.shape:
            new[name] = trained
        elif name in learned:
            new[name] = grow(name, trained)
        elif name.startswith("items."):
            new[name] = value
        else:
            new[name] = torch.cat([trained, value[len(trained) :].to(trained.device)])
    return new


def require_like(start: str, like: str | None) -> None:
    """Raise `UserError` unless `like` is given where, and only where, neighbours are asked for."""
    if (like is not None) != (start == "neighbours"):
        raise UserError(
            "like= names the column that neighbours share: give it with start='neighbours' and only there",
            code="like-not-given",
        )


class LikeItems:
    """For each of the `wanted` items the `known` ones with its value in `like`, of which it is the mean.

    They are a stretch of the known items in the order of that value; all of them where `like` is
    null, where none has the same value, and where the value is missing.
    """

    def __init__(self, catalog: Catalog, known: Int[np.ndarray, "n"], wanted: Int[np.ndarray, "m"], like: str | None):
        codes = np.zeros(catalog.size, np.int64) if like is None else np.asarray(catalog.categorical(like).codes)
        self.order = known[np.argsort(codes[known], kind="stable")]
        ranked = codes[self.order]
        low, high = np.searchsorted(ranked, codes[wanted]), np.searchsorted(ranked, codes[wanted], side="right")
        self.alone = (high == low) | (codes[wanted] == 0)
        """[m], those that are the mean of all known items."""
        self.low, self.high = np.where(self.alone, 0, low), np.where(self.alone, len(known), high)

    def mean(self, table: Float[Tensor, "V *D"]) -> Float[Tensor, "m *D"]:
        """The means of each item's stretch of rows, as differences of sums that run over the rows."""
        before = torch.zeros(len(self.order) + 1, *table.shape[1:], dtype=torch.float64)
        before[1:] = table.double()[torch.from_numpy(self.order)].cumsum(0)
        low, high = torch.from_numpy(self.low), torch.from_numpy(self.high)
        count = (high - low).view(-1, *[1] * (table.ndim - 1))
        return ((before[high] - before[low]) / count).to(table.dtype)


TABLE = "items.embedding.weight"
"""Vectors per item, in every kind of items that has them."""


@public
def fill_unseen(
    run: Run | str | Path,
    out: str | Path,
    *,
    start: Literal["neighbours", "mean"] = "neighbours",
    like: str | None = None,
) -> Run:
    """A copy of `run` in the folder `out` in which items without training events have a vector that was learned.

    A table of item vectors knows nothing of an item that nobody had when it was trained: its row is
    where it started, or where the loss pushed it as a negative. The fallback `neighbours` puts
    there the mean of the trained items whose column `like` holds the same value (of all trained
    items where none does), `mean` that of all trained items. All other rows stay.

    Raises `UserError` for a fallback or a column that does not exist, for a column in which no
    such item has the value of a trained one, for items without a vector of their own (text,
    codes, features alone: those have vectors without events), and where every item has
    training events, or none has.
    """
    require_like(start, like)
    folder = Path(out)
    require_empty(folder)
    run = opened_run(run)
    model = run.model()
    vectors = getattr(model.items, "embedding", None) if isinstance(model, RecommenderModel) else None
    if not isinstance(vectors, nn.Embedding) or vectors.num_embeddings != run.catalog.size:
        raise UserError(
            "this run's items have no vectors of their own, so there are none to fill: use the run as it is",
            code="no-item-vectors",
        )
    unseen = run.catalog.popularity == 0
    if unseen.all() or not unseen.any():
        raise UserError(
            f"{int(unseen.sum()):,} of {len(unseen):,} items have no training events: nothing to fill",
            code="nothing-to-fill",
        )
    like_items = LikeItems(run.catalog, np.flatnonzero(~unseen), np.flatnonzero(unseen), like)
    if like is not None and like_items.alone.all():
        raise UserError(
            f"none of the {int(unseen.sum()):,} items without training events shares its {like!r} with a trained one: "
            "name a column with fewer values, or take start='mean'",
            code="no-like-items",
        )
    tensors = run.tensors()
    filled = tensors[TABLE].clone()
    filled[unseen] = like_items.mean(filled)
    tensors[TABLE] = filled
    facts = {
        "start": start,
        "like": like,
        "items": int(unseen.sum()),
        "without_neighbours": int(like_items.alone.sum()),
    }
    return write_copy(run, folder, run.catalog, tensors, {"filled_from": str(run.path), "filled": facts})
