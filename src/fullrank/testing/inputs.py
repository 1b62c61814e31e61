"""Inputs of checks: specs near a spec, their modules, a small catalogue, padded histories."""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.models import Queries

Check = Callable[[Spec, torch.device], None]
"""A check of a spec, or of what it builds on a device; raises AssertionError with what it saw."""
Device = torch.device | str
"""A device, or its name."""
Cases = Callable[[Spec, torch.device], Iterable[tuple[Any, ...]]]
"""Makes cases from a spec: each its name, often a spec, and the arguments of a check."""
M = TypeVar("M", bound=nn.Module)

ITEMS = 23
STAGES = 8
MOST_CHANGES = int(os.environ.get("FULLRANK_CHECKS", "2"))
"""Settings that checks vary together: pairs show interactions, single ones are ten times faster."""
LENGTHS = (1, 2, 5, 9, 3)
"""Lengths of the histories of `sequences`."""
EXAMPLES: dict[str, dict[str, Any]] = {
    "features": {"categorical": ("brand",), "numeric": ("price",)},
    "s3rec": {"attributes": ("tags",)},
}
"""Settings of kinds whose required ones have no plain value."""


def example(kind: type[Spec]) -> Spec:
    """The spec at its defaults; where a setting has no default, the plainest value of its type."""
    settings = EXAMPLES.get(kind.kind_of(), {})
    if settings and settings.keys() <= kind.model_fields.keys():  # a recipe may have the same name
        return kind.model_validate(settings)
    required = {n: _plainest(field.annotation) for n, field in kind.model_fields.items() if field.is_required()}
    return kind.model_validate(required)


@lru_cache(4096)
def variations(spec: Spec) -> tuple[Spec, ...]:
    """Specs that differ from this one in a single setting, for each with another valid value."""
    others = []
    for key in type(spec).model_fields:
        for value in _others(getattr(spec, key), type(spec).model_fields[key].annotation):
            try:
                other = spec.override(f"{key}={value}")
            except UserError:
                continue  # out of range, or sound only together with another setting
            if other != spec:
                others.append(other)
    return tuple(others)


def reachable(spec: Spec, changes: int = 2, *, numbers: bool = True) -> list[Spec]:
    """The spec, and those that differ in up to `changes` settings, at most `MOST_CHANGES`.

    Without `numbers`, no number differs.
    """
    specs, edge = {spec: None}, [spec]
    for _ in range(min(changes, MOST_CHANGES)):
        edge = [other for near in edge for other in variations(near) if other not in specs]
        edge = [other for other in edge if numbers or not _numbers_differ(spec, other)]
        specs |= dict.fromkeys(edge)
    return list(specs)


def with_parts(spec: Spec, *, numbers: bool = True, part_numbers: bool = True) -> list[Spec]:
    """The spec, others one change away, and two changes inside its parts (a mixing)."""
    specs = dict.fromkeys(reachable(spec, 1, numbers=numbers))
    for key in type(spec).model_fields:
        if isinstance(part := getattr(spec, key), Spec):
            others = reachable(part, 2, numbers=part_numbers)
            specs |= dict.fromkeys(spec.model_copy(update={key: other}) for other in others)
    return list(specs)


def of_specs(checks: Iterable[Callable[..., None]], cases: Cases) -> tuple[Check, ...]:
    """Checks of a Spec's modules as checks of the Spec: each runs on every one of its cases."""

    def of_spec(check: Callable[..., None]) -> Check:
        @wraps(check)
        def run(spec: Spec, device: torch.device) -> None:
            for case, *arguments in cases(spec, device):
                with naming(case):
                    check(*arguments)

        return run

    return tuple(map(of_spec, checks))


def built(specs: Iterable[Any], *arguments: Any, device: Device = "cpu") -> Iterator[tuple[Spec, Any]]:
    """Modules of these specs, shaken, in evaluation mode; specs that refuse sizes are skipped."""
    count = 0
    for spec in specs:
        try:
            torch.default_generator.manual_seed(0)  # parts are built on the CPU
            module = spec.build(*arguments)
        except UserError:
            continue
        count += 1
        yield spec, shaken(module).to(device).eval()
    assert count, "none of the specs could be built"


@contextmanager
def naming(case: object) -> Iterator[None]:
    """Name the case, often the settings, in the error of a failed check."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{case!r}: {error}") from error


def settings_have_effect(spec: Spec, trace: Callable[[Spec], Any], most: int | None = None) -> None:
    """No setting is idle: one of its values near the spec's own makes a difference.

    `trace` gives what can be seen of a spec, None where it cannot be built.
    """
    for near in reachable(spec, 1, numbers=False):
        here = trace(near)
        for key in type(spec).model_fields if here is not None else ():
            others = [v for v in variations(near) if getattr(v, key) != getattr(near, key)]
            same = [t == here for t in map(trace, others[:most]) if t is not None]
            assert not same or not all(same), f"{key} has no effect in {near!r}: refuse it"


def all_learn(leaves: Iterable[tuple[str, Tensor]]) -> None:
    """Each of these has a gradient, finite and not zero everywhere."""
    for label, leaf in leaves:
        assert leaf.grad is not None and leaf.grad.isfinite().all(), label
        assert leaf.grad.any(), f"{label} does not learn"


def shaken(module: M, scale: float = 0.3, seed: int = 1) -> M:
    """Draw every parameter anew, large enough that no effect hides behind small ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return module


def close(a: Tensor, b: Tensor, tolerance: float = 2e-5) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a, b, rtol=tolerance, atol=tolerance))


def close_in_bf16(run: Callable[[], Tensor], leaves: Sequence[Tensor]) -> None:
    """Outputs of `run`, and gradients of the leaves, in bf16 products match fp32 up to rounding.

    A number of bf16 has 8 bits and is off by 2^-9 of itself at most. The yardstick is what this
    does to an fp32 run whose leaves alone are rounded: a product rounds what else it reads, and
    what it gives, as often, which came to five times as much in the worst component, and eight
    times are allowed; a last sum rounds once or twice more, by 2^-7 at most. Gradients jump where
    rounding turns the sign of a unit that is cut off at zero, or of a norm of few numbers that are
    nearly equal: by less than half their length. A gradient that is lost, or of something else, is
    off by all.
    """

    def learned(half: bool = False) -> tuple[Tensor, Tensor]:
        with torch.autocast(leaves[0].device.type, torch.bfloat16, enabled=half):
            out = run()
        upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(6)).to(out.device)
        gradients = torch.autograd.grad((out * upstream).sum(), leaves, allow_unused=True)
        return out.detach(), torch.cat([g.flatten() for g in gradients if g is not None])

    exact, rough = learned(), learned(half=True)
    with torch.no_grad():
        saved = [leaf.clone() for leaf in leaves]
        for leaf in leaves:
            leaf.copy_(leaf.bfloat16())
        rounded = torch.enable_grad()(learned)()
        for leaf, value in zip(leaves, saved, strict=True):
            leaf.copy_(value)
    bounds = (("what it gives", 2**-7), ("its gradient", 2**-1))
    for (what, least), x, y, z in zip(bounds, exact, rough, rounded, strict=True):
        distance, most = float((y - x).norm()), 8 * float((z - x).norm()) + least * float(x.norm())
        assert distance <= most, f"{what} is off by {distance:.2g} in bf16, and roundings come to {most:.2g}"


def padded(rows: Sequence[Sequence[int]], *, extra: int = 0, fill: int = 0, ids: Any = None, step: int = 0) -> Batch:
    """These histories, right-padded with item `fill`, and with `extra` more places.

    The times follow from the items, so a prefix keeps its own: gaps from none to half a year,
    and zeros in the padding.
    """
    width = max(len(row) for row in rows) + extra
    items = torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    rows_ids = torch.arange(100, 100 + len(rows)) if ids is None else torch.as_tensor(ids)
    gaps = (3.0 ** (items % 16)).long() - 1
    times = torch.where(torch.arange(width) < lengths[:, None], 10**9 + gaps.cumsum(1), 0)
    return Batch(items, lengths, rows=rows_ids, times=times, seed=3, step=step)


def sequences(dim: int, device: Device = "cpu", extra: int = 0) -> tuple[Tensor, Batch]:
    """Vectors of five histories of different lengths, and the batch that they are of."""
    batch = padded(histories(LENGTHS), extra=extra)
    x = torch.randn(len(LENGTHS), 40, dim, generator=torch.Generator().manual_seed(5))
    return x[:, : batch.items.shape[1]].to(device), batch.to(device)


def times_of(batch: Batch) -> Tensor:
    """The times of a batch that has some, as those of `padded` have."""
    assert batch.times is not None
    return batch.times


def histories(lengths: Iterable[int], items: int = ITEMS, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, items, n).tolist() for n in lengths]


def catalog(size: int = ITEMS) -> Catalog:
    """Popularity falls like a power law and ends in items without events; brands, prices and tags are missing at times.

    Up to 25 items have different semantic ids of three levels, and all have tokens of a title and a
    brand and two vectors. Events by stage follow the items, over the times of `padded`.
    """
    counts = [int(40 / (1 + i)) if i < size - 2 else 0 for i in range(size)]
    brand = [None if i % 5 == 4 else f"brand-{i % 3}" for i in range(size)]
    price = [None if i % 7 == 6 else 1.5 * i for i in range(size)]
    columns = {"item": np.arange(size), "item_id": [f"i{i}" for i in range(size)], "train_count": counts}
    codes = np.stack([np.arange(size) % 5, np.arange(size) // 5 % 5, np.arange(size) * 7 // 25 % 3], 1)
    semantic = {"codes": pl.Series(codes.astype(np.uint16), dtype=pl.Array(pl.UInt16, 3))}
    semantic["code_sizes"] = pl.Series([[5, 5, 3]] * size, dtype=pl.Array(pl.Int32, 3))
    tags = [[f"tag-{n}" for n in range(i % 4)] if i % 6 else None for i in range(size)]
    stages = [[(i * 7 + 5 * s) % 13 * (s > i % 3) for s in range(STAGES)] for i in range(size)]
    begun = [10**9 + 3 * 10**6 * s for s in range(STAGES)]
    of_stages = pl.Array(pl.Int64, STAGES)
    features = {
        "brand": brand,
        "price": price,
        "tags": tags,
        "stage_counts": pl.Series(stages, dtype=of_stages),
        "stage_starts": pl.Series([begun] * size, dtype=of_stages),
    }
    return Catalog(pl.DataFrame(columns | features | semantic | _tokens(size) | _vectors(size)))


def store(rows: Sequence[Sequence[int]], items: int = ITEMS, *, times: Sequence[Sequence[int]] | None = None) -> Store:
    """A store in memory, split by leave-one-out: a row ends in a validation and a test event."""
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    bounds = np.stack([np.maximum(offsets[1:] - 2, offsets[:-1]), np.maximum(offsets[1:] - 1, offsets[:-1])], 1)
    trained = [item for row in rows for item in row[:-2]]
    counts = np.bincount(np.array(trained, dtype=np.int64), minlength=items)
    flat = np.array([item for row in rows for item in row], dtype=np.int32)
    clock = None if times is None else np.array([t for row in times for t in row], dtype=np.int64)
    arrays = {"items": flat, "offsets": offsets, "bounds": bounds, "times": clock, "weights": None, "types": None}
    frame = catalog(items).frame.with_columns(train_count=pl.Series(counts))
    return Store(Path("in memory"), {"fingerprint": "tiny"}, arrays, Catalog(frame))


class Flat:
    """An item index of these vectors and training counts."""

    def __init__(self, vectors: Tensor, counts: Tensor | None = None):
        self.vectors = vectors
        self.counts = torch.ones(len(vectors), device=vectors.device) if counts is None else counts.float()

    @property
    def size(self) -> int:
        return len(self.vectors)

    def embed(self, ids: Tensor) -> Tensor:
        return self.vectors[ids]

    def all(self) -> Tensor:
        return self.vectors

    def log_q(self, ids: Tensor) -> Tensor:
        return (self.counts / self.counts.sum()).log()[ids]


def questions(batch: Batch, *, items: int = ITEMS, dim: int = 6, device: Device = "cpu") -> Queries:
    """Queries for every event but each row's first, on random vectors and power-law counts."""
    generator = torch.Generator().manual_seed(0)
    rows, positions = batch.valid[:, 1:].nonzero(as_tuple=True)
    table = torch.randn(items, dim, generator=generator).to(device).requires_grad_()
    places = torch.randn(1000, 64, dim, generator=generator)  # a query's vector is a function of its place alone
    assert batch.rows is not None
    vectors = places[batch.rows[rows] % 1000, positions].to(device).requires_grad_()
    counts = 100 / torch.arange(1, items + 1, device=device)
    batch, rows, positions = batch.to(device), rows.to(device), positions.to(device)
    return Queries("ahead_1", vectors, batch.items[rows, positions + 1], Flat(table, counts), rows, positions)


def _vectors(size: int) -> dict[str, pl.Series]:
    """Two vectors of width 5 for each item; of the last item nothing is known."""
    drawn = np.random.default_rng(7).standard_normal((2, size, 5)).astype(np.float32)
    drawn[:, -1] = 0
    names = ("item_vectors", "item_vectors_augmented")
    return {n: pl.Series(n, x, dtype=pl.Array(pl.Float32, 5)) for n, x in zip(names, drawn, strict=True)}


def _tokens(size: int) -> dict[str, pl.Series]:
    """Up to four tokens of 13 in the title and two in the brand, without a tokeniser."""
    title = [[1 + (i * k + k) % 12 for k in range(1, 1 + i % 5)] for i in range(size)]
    brand = [[1 + (i * 5 + k) % 12 for k in range(i % 3)] for i in range(size)]
    tokens = {"title_tokens": title, "brand_tokens": brand}
    columns = {name: pl.Series(rows, dtype=pl.List(pl.Int32)) for name, rows in tokens.items()}
    return columns | {"tokeniser_size": pl.Series([13] * size, dtype=pl.Int32)}


def _numbers_differ(a: Spec, b: Spec) -> bool:
    values = [getattr(b, key) for key in type(b).model_fields if getattr(a, key) != getattr(b, key)]
    return any(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _plainest(annotation: Any) -> Any:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return inner[0]
    if origin in (typing.Union, types.UnionType):
        return _plainest(inner[0])
    return {str: "x", int: 1, float: 0.5, bool: True}.get(annotation, ())


def _others(value: Any, annotation: Any) -> Iterator[Any]:
    for choice in _choices(annotation):
        if choice != value:
            yield choice
    if isinstance(value, bool):
        yield "false" if value else "true"
    elif isinstance(value, int | float):
        # 0.03: of a value 0 (a dropout) another one whose effect no rounding hides
        yield from (value + 1, value / 3 + 0.03, value * 1e-9)


def _choices(annotation: Any) -> Iterator[Any]:
    if typing.get_origin(annotation) is Literal:
        yield from typing.get_args(annotation)
    for inner in typing.get_args(annotation):
        if typing.get_origin(inner) is not None:
            yield from _choices(inner)
        elif inner is type(None):
            yield "null"
