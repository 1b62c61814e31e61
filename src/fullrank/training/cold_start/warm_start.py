"""Start from an earlier run's weights: same spec; items go by external id, or by what they are made of.

Items that are made of what is known of them (text, text vectors) need no id: the tables of tokens, the maps of vectors
and the encoder are taken over, and any catalogue may be the new one. Rows of a table go by external id, so the ids have
to name the same items. Two catalogues that were each numbered 1, 2, 3, ... share ids and no items; where both have a
column that tells items apart, such as a title, that is found out. Where they have none it cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
import torch
from jaxtyping import Int
from torch import Tensor, nn

from fullrank.core.errors import UserError, brief
from fullrank.data.events.catalog import Catalog
from fullrank.data.values import none_known
from fullrank.models.sequential.model import RecommenderModel
from fullrank.run import Run

ITEMS = "items."
"""What the names of the item module's tensors begin with."""
FEW = 10
"""Items that share an id, below which it is not asked whether their texts agree."""
DISTINCT = 0.5
"""Distinct texts for each item from which on a column tells items apart: titles do, brands and categories do not."""
AGREE = 0.5
"""Share of the items with a common id whose texts must agree: an edited title is no other item, most titles are."""


@torch.no_grad()
def copy_weights(model: nn.Module, catalog: Catalog, source: Run) -> int:
    """Fill `model` from a run. Returns how many of its items have from the run what belongs to an item.

    What the item module learned per item is matched by external id, what it learned of features or tokens by their
    values (`Items.transferred`), which needs no id where that is all; its buffers are the new data's. All else is
    copied and must have the same shape. Raises `UserError` where items are matched by id and none is known, or those
    that are known are other items, and where the run is of another model spec.
    """
    tensors = source.tensors()
    old = source.catalog
    own, learned = model.state_dict(), {name for name, _ in model.named_parameters()}
    carried = _transferred(model, tensors, old, catalog)
    by_value = bool(carried) and all(name in carried for name in learned if name.startswith(ITEMS))
    place = np.arange(0) if by_value else _places(catalog, old, source)
    known, rows = torch.from_numpy(np.flatnonzero(place >= 0)), torch.from_numpy(place[place >= 0])
    shard = model.items.shard if isinstance(model, RecommenderModel) else None
    low, high = (0, catalog.size) if shard is None else (shard.low, shard.high)
    mine = (known >= low) & (known < high)  # the items whose rows this process holds
    for name, tensor in own.items():
        of_items = name.startswith(ITEMS)
        if of_items and name not in learned:
            continue  # counts, codes and standardised numbers of the new data
        given = carried[name] if name in carried else tensors.get(name)
        if given is None:
            raise other_weights(source, name, None, tensor)
        per_item = of_items and name not in carried and _has_rows(given, old.size) and _has_rows(tensor, high - low)
        if given.shape[1:] == tensor.shape[1:] and per_item:
            tensor[known[mine] - low] = given[rows[mine]]
        elif given.shape == tensor.shape:
            tensor.copy_(given)
        else:
            raise other_weights(source, name, given, tensor)
    return catalog.size if by_value else len(known)


def other_weights(source: Run, name: str, given: Tensor | None, needed: Tensor) -> UserError:
    """The error for weights of a run that do not fit the model which starts from them."""
    shape = "is missing" if given is None else f"has shape {tuple(given.shape)}"
    return UserError(
        f"{source.path}: {name!r} {shape}, needed {tuple(needed.shape)}; going on needs the same model spec",
        code="weights-differ-from-spec",
    )


def _places(catalog: Catalog, old: Catalog, source: Run) -> Int[np.ndarray, "V"]:
    """For each item its place in the run's catalogue, -1 where the run does not know it."""
    place = np.asarray(old.lookup(catalog.ids))
    known = np.flatnonzero(place >= 0)
    if len(known) == 0:
        raise none_known(catalog.ids, "items", str(source.path), old.ids)
    agree = {name: _agree(old, catalog, name, place[known], known) for name in _telling_apart(old, catalog)}
    pairs = {name: len(same) - same.null_count() for name, same in agree.items()}
    shares = {name: same.sum() / pairs[name] for name, same in agree.items() if pairs[name] >= FEW}
    if shares and max(shares.values()) < AGREE:
        name = max(shares, key=shares.__getitem__)
        at = int(known[int((~agree[name]).fill_null(False).arg_true()[0])])
        there, here = (brief(one.frame[name][where], 40) for one, where in ((old, int(place[at])), (catalog, at)))
        raise UserError(
            f"{len(known):,} items have an id that {source.path} knows, and {1 - shares[name]:.0%} of them another "
            f"{name!r} there (of {catalog.ids[at]!r} it is {there} in the run and {here} in the store), so these are "
            "ids of other items: give both stores the same ids for the same items, or choose items made of text, which "
            "need none",
            code="ids-of-other-items",
        )
    return place


def _telling_apart(old: Catalog, new: Catalog) -> list[str]:
    """The columns of text, in both catalogues, that tell items apart."""
    both = [name for name in old.columns if name in new.columns]
    text = [name for name in both if old.frame[name].dtype == new.frame[name].dtype == pl.String]
    return [n for n in text if min(one.frame[n].drop_nulls().n_unique() / one.size for one in (old, new)) >= DISTINCT]


def _agree(old: Catalog, new: Catalog, name: str, there: Int[np.ndarray, "n"], here: Int[np.ndarray, "n"]) -> pl.Series:
    """For each pair of items whether both have the same text, in whatever case; null where one has none."""
    before, after = old.frame[name][there], new.frame[name][here]
    return before.str.to_lowercase().str.strip_chars() == after.str.to_lowercase().str.strip_chars()


def _transferred(model: nn.Module, tensors: Mapping[str, Tensor], old: Catalog, new: Catalog) -> dict[str, Tensor]:
    if not isinstance(model, RecommenderModel):
        return {}
    given = {name.removeprefix(ITEMS): tensor for name, tensor in tensors.items() if name.startswith(ITEMS)}
    return {ITEMS + name: tensor for name, tensor in model.items.transferred(given, old, new).items()}


def _has_rows(tensor: Tensor, rows: int) -> bool:
    return tensor.ndim > 0 and len(tensor) == rows
