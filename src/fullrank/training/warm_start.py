"""Start from an earlier run's weights, of the same spec: rows of tables are matched by external id or by value.

Items of a recommender that are made of what is known of them (text, text vectors) need no id: the
tables of tokens, the maps of vectors and the encoder are taken over, and any catalogue may be the
new one. Rows of a table go by external id, so the ids have to name the same items. Two catalogues
that were each numbered 1, 2, 3, ... share ids and no items; where both have a column that tells
items apart, such as a title, that is found out. Where they have none it cannot be.

A ranking model needs the same fields. Which row is which value stands in the earlier run's encoder
(a run of format 1 needs its store for it). A value that is new keeps its first vector. A bucket of
numbers takes the vector of the old bucket in which its middle lies. Numbers that are standardised
are so by the new rows: their vectors are copied as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Int
from torch import Tensor, nn

from fullrank.core.errors import UserError, brief
from fullrank.core.files import JsonObject
from fullrank.data.events.catalog import Catalog
from fullrank.data.impressions.encoding import FieldEncoder, vocabulary_owner
from fullrank.data.impressions.schema import AnyField, Numeric
from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.impressions.vocabulary import FIRST, UNKNOWN, Hashed, Vocabulary
from fullrank.data.values import none_known
from fullrank.models.ranking.fused import FusedTable
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.items.event_features import SIZES, FieldVectors
from fullrank.models.sequential.model import RecommenderModel
from fullrank.run import Run

ITEMS = "items."
"""Beginning of the names of the item module's tensors."""
FEW = 10
"""Fewest items with a common id of which it is asked whether their texts agree."""
DISTINCT = 0.5
"""Distinct texts for each item from which on a column tells items apart: titles do, brands and categories do not."""
AGREE = 0.5
"""Share of the items with a common id whose texts must agree: some titles may have been edited, not most."""


@torch.no_grad()
def copy_weights(model: nn.Module, catalog: Catalog, source: Run) -> int:
    """Fill `model` from a run. Returns how many of its items have what the run learned of them.

    What the item module learned per item is matched by external id, what it learned of features or
    tokens by their values (`Items.transferred`), which needs no id where that is all; its buffers
    are the new data's. All else is copied and must have the same shape. Raises `UserError` where
    items are matched by id and none is known, or those that are known are other items, and where
    the run is of another model spec.
    """
    tensors = source.tensors()
    old = source.catalog
    state, learned = model.state_dict(), {name for name, _ in model.named_parameters()}
    carried, of_features = dict[str, Tensor](), dict[str, Tensor]()
    if isinstance(model, RecommenderModel):
        learned_items = {name.removeprefix(ITEMS): tensor for name, tensor in tensors.items() if name.startswith(ITEMS)}
        carried = {
            ITEMS + name: tensor for name, tensor in model.items.transferred(learned_items, old, catalog).items()
        }
        of_features = _features_carried(model, catalog, source, tensors)
    by_value = bool(carried) and all(name in carried for name in learned if name.startswith(ITEMS))
    carried |= of_features
    positions = np.arange(0) if by_value else _rows_in_run(catalog, old, source)
    known, rows = torch.from_numpy(np.flatnonzero(positions >= 0)), torch.from_numpy(positions[positions >= 0])
    shard = model.items.shard if isinstance(model, RecommenderModel) else None
    low, high = (0, catalog.size) if shard is None else (shard.low, shard.high)
    mine = (known >= low) & (known < high)  # the items whose rows this process holds
    for name, tensor in state.items():
        of_items = name.startswith(ITEMS)
        if of_items and name not in learned:
            continue  # counts, codes and standardised numbers of the new data
        before = carried[name] if name in carried else tensors.get(name)
        if before is None:
            raise other_weights(source, name, None, tensor)
        by_item = (old.size, *tensor.shape[1:]), (high - low, *tensor.shape[1:])
        if of_items and name not in carried and (before.shape, tensor.shape) == by_item:
            tensor[known[mine] - low] = before[rows[mine]]
        elif before.shape == tensor.shape:
            tensor.copy_(before)
        else:
            raise other_weights(source, name, before, tensor)
    return catalog.size if by_value else len(known)


def _features_carried(
    model: RecommenderModel, catalog: Catalog, source: Run, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The tables of features, each value with the vector that it has in the run; a new one keeps its first vector.

    Raises `UserError` for a feature that is of another kind there, and for other features
    where their places decide.
    """
    known, before = catalog.features, source.catalog.features
    if known is None or before is None or model.features is None:
        return {}
    earlier = {field.name: field for field in before.schema.declared}
    fields = {field.name: field for field in known.schema.declared if field.name in earlier}
    for name, field in fields.items():
        if _settings(field) != _settings(earlier[name]):
            raise UserError(
                f"the feature {name!r} is {_settings(earlier[name])} in {source.path} and {_settings(field)} in this "
                "store; going on needs the same kind of feature",
                code="other-fields",
            )
    spec: Any = source.spec.model
    old = spec.features.build(model.dim, source.catalog).vectors
    carried = {}
    for role, part in model.features.vectors.items():
        name = f"task.features.vectors.{role}.table"
        if role in old and isinstance(part, FieldVectors):  # numbers, and all that a map joins, have a place each
            names = "names" if model.features.fuse == "concat" else "numeric"
            before_names, now_names = getattr(old[role], names), getattr(part, names)
            if (now_names, part.made) != (before_names, old[role].made):
                raise UserError(
                    f"{role} features are {', '.join(old[role].names)} in {source.path} and {', '.join(part.names)} in "
                    "this store; going on needs the same in the same order",
                    code="other-fields",
                )
        if name in tensors and isinstance(part, FieldVectors) and part.table is not None:
            carried[name] = part.table.clone()
            for feature, start in part.starts.items():
                if feature in old[role].starts:
                    every = np.arange(1 + SIZES.get(feature, 0))
                    rows = (every, every) if feature in part.made else _rows(fields[feature], before, known)
                    ids, old_ids = _index(rows)
                    carried[name][start + ids] = tensors[name][old[role].starts[feature] + old_ids]
    return carried


def other_weights(source: Run, name: str, saved: Tensor | None, needed: Tensor) -> UserError:
    """The error for weights of a run that do not fit the model which starts from them."""
    shape = "is missing" if saved is None else f"has shape {tuple(saved.shape)}"
    return UserError(
        f"{source.path}: {name!r} {shape}, needed {tuple(needed.shape)}; going on needs the same model spec",
        code="weights-differ-from-spec",
    )


def _rows_in_run(catalog: Catalog, old: Catalog, source: Run) -> Int[np.ndarray, "V"]:
    """For each item its row in the run's catalogue, -1 where the run does not know it."""
    positions = np.asarray(old.lookup(catalog.ids))
    known = np.flatnonzero(positions >= 0)
    if len(known) == 0:
        raise none_known(catalog.ids, "items", str(source.path), old.ids)
    # columns that tell items apart, and whether the texts of each common item agree in them
    both = [name for name in old.columns if name in catalog.columns and _tells_apart(old, catalog, name)]
    agree = {name: _plain(old, name, positions[known]) == _plain(catalog, name, known) for name in both}
    pairs = {name: len(same) - same.null_count() for name, same in agree.items()}
    shares = {name: same.sum() / pairs[name] for name, same in agree.items() if pairs[name] >= FEW}
    if shares and max(shares.values()) < AGREE:
        name = max(shares, key=shares.__getitem__)
        at = int(known[int((~agree[name]).fill_null(False).arg_true()[0])])
        there, here = brief(old.frame[name][int(positions[at])], 40), brief(catalog.frame[name][at], 40)
        raise UserError(
            f"{len(known):,} items have an id that {source.path} knows, and {1 - shares[name]:.0%} of them another "
            f"{name!r} there (of {catalog.ids[at]!r} it is {there} in the run and {here} in the store), so these are "
            "ids of other items: give both stores the same ids for the same items, or choose items made of text, which "
            "need none",
            code="ids-of-other-items",
        )
    return positions


def _tells_apart(old: Catalog, new: Catalog, name: str) -> bool:
    """Whether a column is text that tells items apart, in both catalogues."""
    texts = [old.frame[name], new.frame[name]]
    return all(text.dtype == pl.String and text.drop_nulls().n_unique() >= DISTINCT * len(text) for text in texts)


def _plain(catalog: Catalog, name: str, items: Int[np.ndarray, "n"]) -> pl.Series:
    """The texts of items in a column, in lower case and without space around."""
    return catalog.frame[name][items].str.to_lowercase().str.strip_chars()


Rows = tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]
"""Ids in the new table, and those of the same values in the old one."""


def _index(rows: Rows) -> tuple[Tensor, Tensor]:
    """Both sides of `rows` as indices of tensors."""
    new, old = (torch.from_numpy(ids.astype(np.int64)) for ids in rows)
    return new, old


FREE = {"min_count", "separator", "max_length", "buckets"}
"""Settings of a field that may differ: they change which values have rows, not what a row means."""


def _settings(field: AnyField) -> JsonObject:
    """The settings of a field that two stores must share for their rows to mean the same."""
    return {key: value for key, value in field.dump().items() if key not in FREE}


@torch.no_grad()
def copy_ranking_weights(model: RankingModule, store: ImpressionStore, source: Run) -> int:
    """Fill `model` from a run. Returns how many values of the new vocabularies the run knew.

    Raises `UserError` where the run is of another kind, spec or schema, where it needs its store
    and that is gone, and where it knows no value.
    """
    before = _its_encoder(source)
    settings = [[_settings(field) for field in schema.fields] for schema in (before.schema, store.schema)]
    for number, (a, b) in enumerate(zip_longest(*settings), 1):
        if a != b:
            raise UserError(
                f"field {number} is {a} in {source.path} and {b} in this store; going on needs the same fields in the "
                "same order",
                code="other-fields",
            )
    old: Any = source.model(before)
    rows = {
        field.name: _rows(field, before, store.encoder)
        for field in store.schema.fields
        if vocabulary_owner(field) == field.name and not (isinstance(field, Numeric) and field.transform != "bucket")
    }
    if rows and not any(len(ids) > FIRST for ids, _ in rows.values()):
        raise UserError(
            f"{source.path} knows none of the values in {store.path}; are these fields of the same kind?",
            code="no-known-values",
        )
    saved, tables, olds = old.state_dict(), _tables(model), _tables(old)
    for name, tensor in model.state_dict().items():
        if name not in saved or saved[name].shape[1:] != tensor.shape[1:] or (name in tables) != (name in olds):
            raise other_weights(source, name, saved.get(name), tensor)
        if name in tables:
            for field, start in tables[name].starts.items():
                if field in rows:
                    ids, old_ids = _index(rows[field])
                    tensor[start + ids] = saved[name][olds[name].starts[field] + old_ids]
        elif saved[name].shape == tensor.shape:
            tensor.copy_(saved[name])
        else:
            raise other_weights(source, name, saved[name], tensor)
    return sum(len(ids) - FIRST for ids, _ in rows.values())


def _its_encoder(source: Run) -> FieldEncoder:
    """The encoder of a ranking run. Raises `UserError` for another run, and where
    the store that has it is gone."""
    if source.spec.problem == "retrieval":
        raise UserError(
            f"{source.path} recommends items and this model predicts clicks: start from a run of a ranking model",
            code="run-of-other-problem",
        )
    where = Path(source.manifest["data"]["path"])
    if source.needs_store and not where.is_dir():
        raise UserError(
            f"the store {where} that {source.path} was trained on is not there, and it alone says which row is which "
            "value: put it back, or train without init_from (--from)",
            code="missing-store",
        )
    return source.encoder()


def _rows(field: AnyField, old: FieldEncoder, new: FieldEncoder) -> Rows:
    """Rows of missing, of unknown, and of every value that both encoders know."""
    always = np.arange(FIRST)
    if isinstance(field, Numeric):
        ids, known = _buckets(*(np.asarray(encoder.fitted[field.name]["edges"], np.float64) for encoder in (old, new)))
    else:
        before, now = old.lookup(field), new.lookup(field)
        if isinstance(now, Hashed) or not isinstance(before, Vocabulary):
            ids = known = np.arange(FIRST, now.size)
        else:
            numbers = before.ids(now.values)
            ids, known = np.flatnonzero(numbers > UNKNOWN) + FIRST, numbers[numbers > UNKNOWN]
    return np.concatenate([always, ids]), np.concatenate([always, known])


def _buckets(old: np.ndarray, new: np.ndarray) -> Rows:
    """Each new bucket, and the old one that its middle lies in; the outer ones count
    as wide as their neighbours."""
    ids = np.arange(len(new) + 1) + FIRST
    if len(new) == 0:
        return ids, np.full(1, len(old) // 2 + FIRST)
    widths = np.diff(new) if len(new) > 1 else np.ones(1)
    ends = new[0] - widths[0] / 2, new[-1] + widths[-1] / 2
    middles = np.concatenate([[ends[0]], (new[:-1] + new[1:]) / 2, [ends[1]]])
    return ids, np.searchsorted(old, middles, side="right") + FIRST


def _tables(model: RankingModule) -> dict[str, FusedTable]:
    """The fused tables of a model, by the names of their weights."""
    return {f"{name}.table": module for name, module in model.named_modules() if isinstance(module, FusedTable)}
