"""Start a ranking model from an earlier run's weights: same spec and fields, rows of tables matched by external value.

Which row is which value stands in the earlier run's encoder (a run of format 1 needs its store for it). A value that is
new keeps its first vector. A bucket of numbers takes the vector of the old bucket in which its middle lies. Numbers
that are standardised are so by the new rows: their vectors are copied as they are.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from fullrank.core.errors import UserError
from fullrank.data.impressions.encoding import FieldEncoder, vocabulary_owner
from fullrank.data.impressions.schema import AnyField, Numeric, Schema
from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.impressions.vocabulary import FIRST, UNKNOWN, Hashed, Vocabulary
from fullrank.models.ranking.fused import FusedTable
from fullrank.models.ranking.model import RankingModule
from fullrank.run import Run
from fullrank.training.cold_start.warm_start import other_weights

Rows = tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]
"""Ids in the new table, and those of the same values in the old one."""
FREE = {"min_count", "separator", "max_length", "buckets"}
"""Settings of a field that may differ: they change which values have rows, not what a row means."""


@torch.no_grad()
def copy_ranking_weights(model: RankingModule, store: ImpressionStore, source: Run) -> int:
    """Fill `model` from a run. Returns how many values of the new vocabularies the run knew.

    Raises `UserError` where the run is of another kind, spec or schema, where it needs its store and that is gone, and
    where it knows no value.
    """
    before = _its_encoder(source)
    _check_fields(before.schema, store.schema, source)
    old: Any = source.model(before)
    rows = {
        field.name: _rows(field, before, store.encoder)
        for field in store.schema.fields
        if vocabulary_owner(field) == field.name and not _is_number(field)
    }
    if rows and not any(len(ids) > FIRST for ids, _ in rows.values()):
        raise UserError(
            f"{source.path} knows none of the values in {store.path}; are these fields of the same kind?",
            code="no-known-values",
        )
    given, tables = old.state_dict(), {f"{name}.table": one for name, one in _tables(model)}
    olds = {f"{name}.table": one for name, one in _tables(old)}
    for name, tensor in model.state_dict().items():
        if name not in given or given[name].shape[1:] != tensor.shape[1:] or (name in tables) != (name in olds):
            raise other_weights(source, name, given.get(name), tensor)
        if name in tables:
            for field, start in tables[name].starts.items():
                if field in rows:
                    ids, known = (torch.from_numpy(one.astype(np.int64)) for one in rows[field])
                    tensor[start + ids] = given[name][olds[name].starts[field] + known]
        elif given[name].shape == tensor.shape:
            tensor.copy_(given[name])
        else:
            raise other_weights(source, name, given[name], tensor)
    return sum(len(ids) - FIRST for ids, _ in rows.values())


def _its_encoder(source: Run) -> FieldEncoder:
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


def _check_fields(old: Schema, new: Schema, source: Run) -> None:
    """Raise `UserError` unless both have the same fields, in the same order."""
    told = [
        [{key: value for key, value in field.dump().items() if key not in FREE} for field in schema.fields]
        for schema in (old, new)
    ]
    for number, (a, b) in enumerate(zip_longest(*told), 1):
        if a != b:
            raise UserError(
                f"field {number} is {a} in {source.path} and {b} in this store; going on needs the same fields in the "
                "same order",
                code="other-fields",
            )


def _is_number(field: AnyField) -> bool:
    return isinstance(field, Numeric) and field.transform != "bucket"


def _rows(field: AnyField, old: FieldEncoder, new: FieldEncoder) -> Rows:
    """Missing, unknown, and every value that both know."""
    always = np.arange(FIRST)
    if isinstance(field, Numeric):
        ids, known = _buckets(*(np.asarray(one.fitted[field.name]["edges"], np.float64) for one in (old, new)))
    else:
        before, now = old.lookup(field), new.lookup(field)
        if isinstance(now, Hashed) or not isinstance(before, Vocabulary):
            ids = known = np.arange(FIRST, now.size)
        else:
            found = before.ids(now.values)
            ids, known = np.flatnonzero(found > UNKNOWN) + FIRST, found[found > UNKNOWN]
    return np.concatenate([always, ids]), np.concatenate([always, known])


def _buckets(old: np.ndarray, new: np.ndarray) -> Rows:
    """Each new bucket, and the old one that its middle lies in; the outer ones count as wide as their neighbours."""
    ids = np.arange(len(new) + 1) + FIRST
    if len(new) == 0:
        return ids, np.full(1, len(old) // 2 + FIRST)
    widths = np.diff(new) if len(new) > 1 else np.ones(1)
    ends = new[0] - widths[0] / 2, new[-1] + widths[-1] / 2
    middles = np.concatenate([[ends[0]], (new[:-1] + new[1:]) / 2, [ends[1]]])
    return ids, np.searchsorted(old, middles, side="right") + FIRST


def _tables(model: RankingModule) -> list[tuple[str, FusedTable]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, FusedTable)]
