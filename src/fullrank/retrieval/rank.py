"""Ranked lists for any number of histories: length-bucketed batches through a model, answers through `top_k`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int

from fullrank.batch import Answer, Batch, Model
from fullrank.core.progress import Progress
from fullrank.errors import UserError
from fullrank.metrics import Ranking, flatten
from fullrank.retrieval.decoding import Decoding
from fullrank.retrieval.exact import scorer
from fullrank.retrieval.search import search_of
from fullrank.retrieval.seen import Seen, checked

BLOCK = 8192
"""Items per block."""
SCORES = 1 << 21
"""Most scores alive at once (users x block), 4 bytes each."""
TOKENS = 1 << 15
"""Most positions (users x padded length) in one batch given to a model."""


@dataclass(frozen=True)
class Histories:
    """The histories items[starts[u]:ends[u]], by time; `rows` are the ids that a model sees as `Batch.rows`."""

    items: Int[np.ndarray, "E"]
    starts: Int[np.ndarray, "U"]
    ends: Int[np.ndarray, "U"]
    times: Int[np.ndarray, "E"] | None = None
    rows: Int[np.ndarray, "U"] | None = None


def rank(
    model: Model,
    items: Int[np.ndarray, "E"],
    starts: Int[np.ndarray, "U"],
    ends: Int[np.ndarray, "U"],
    *,
    k: int,
    seen: str = "exclude",
    times: Int[np.ndarray, "E"] | None = None,
    rows: Int[np.ndarray, "U"] | None = None,
    batch_size: int | None = None,
    block: int | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    decoding: Decoding | None = None,
) -> Ranking:
    """The k best items for each history items[starts[u]:ends[u]], in the order given.

    The model reads the last `model.max_length` events; under `seen="exclude"` the whole history is kept out of the
    list. A history may be empty only for a model with the attribute `allows_empty = True`. `batch_size` (users) and
    `block` (items) default to what keeps users x block within `SCORES`; neither changes the result beyond float
    rounding in the model. `decoding` is the search among semantic ids; None scores every item. The model must already
    be on `device`; it is put in evaluation mode while it is used.
    Raises `UserError` on an unknown policy, an empty history, an id outside the catalogue or a NaN score.
    """
    policy = checked(seen)
    histories = Histories(items, starts, ends, times, rows)
    width = min(block or BLOCK, max(model.num_items, 1))
    search = search_of(model, decoding or Decoding(), width)
    ids = np.full((len(starts), k), -1, dtype=np.int64)
    scores = np.full((len(starts), k), -np.inf, dtype=np.float32)
    for at, answer in answers(model, histories, block=width, batch_size=batch_size, device=device, progress=progress):
        known = None
        if policy == "exclude":
            known = Seen.of(*flatten(items, starts[at], ends[at]), device=device)
        best, found = search(answer, k, known)
        ids[at], scores[at] = found.cpu().numpy(), best.cpu().numpy()
    return Ranking(ids, scores, policy)


def answers(
    model: Model,
    histories: Histories,
    *,
    block: int,
    batch_size: int | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Iterator[tuple[Int[np.ndarray, "B"], Answer]]:
    """The model's answers batch by batch, each with the places (in the order given) of the histories it is for."""
    shared = batches(model, histories, block=block, batch_size=batch_size, device=device, progress=progress)
    for at, batch in shared:
        with torch.inference_mode():
            answer = model.answer(batch)
        if answer.size != model.num_items:
            raise UserError(f"the model says it has {model.num_items} items but answers for {answer.size}")
        yield at, answer


def batches(
    model: Model,
    histories: Histories,
    *,
    block: int,
    batch_size: int | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Iterator[tuple[Int[np.ndarray, "B"], Batch]]:
    """The histories in batches of like length, on `device`; between them the model is in evaluation mode."""
    lengths = np.minimum(histories.ends - histories.starts, model.max_length)
    _check(model, histories, lengths, batch_size)
    if not getattr(model, "reads_times", True):
        histories = replace(histories, times=None)
    order = np.argsort(-lengths, kind="stable")  # longest first: what does not fit in memory fails at once
    most = batch_size or max(SCORES // block, 1)
    done = 0
    with _evaluating(model):
        while done < len(order):
            longest = max(int(lengths[order[done]]), 1)
            count = batch_size or min(most, max(TOKENS // longest, 1))
            at = order[done : done + count]
            batch = _pad(histories, at, lengths[at])
            _refuse_strangers(batch, model.num_items)
            yield at, batch.to(device)
            done += len(at)
            if progress is not None:
                progress(done, len(order))


def _check(model: Model, histories: Histories, lengths: np.ndarray, batch_size: int | None) -> None:
    if batch_size is not None and batch_size < 1:
        raise UserError(f"batch_size must be at least 1 user, not {batch_size}")
    if np.any(lengths < 0):
        raise UserError("a history ends before it starts: every end must be at least its start")
    empty = int(np.sum(lengths == 0))
    if empty and not getattr(model, "allows_empty", False):
        raise UserError(
            f"{empty} of {len(lengths)} histories are empty and this model cannot answer without one: "
            "leave these users out or rank them with a model that can, such as popularity"
        )


def _refuse_strangers(batch: Batch, num_items: int) -> None:
    low, high = (int(v) for v in torch.aminmax(batch.items))
    if low < 0 or high >= num_items:
        wrong = low if low < 0 else high
        raise UserError(f"item id {wrong} is not in the model's catalogue of {num_items} items (0 to {num_items - 1})")


def _pad(histories: Histories, at: Int[np.ndarray, "B"], lengths: Int[np.ndarray, "B"]) -> Batch:
    """The last `lengths` events of these histories, right-padded (with id 0, which lengths make invisible)."""
    longest = max(int(lengths.max()), 1)
    steps = np.arange(longest)
    valid = steps < lengths[:, None]
    where = np.where(valid, (histories.ends[at] - lengths)[:, None] + steps, 0)

    def gather(flat: Int[np.ndarray, "E"]) -> torch.Tensor:
        taken = flat[where] if len(flat) else np.zeros_like(where)
        return torch.from_numpy(np.where(valid, taken, 0).astype(np.int64))

    rows = at if histories.rows is None else histories.rows[at]
    return Batch(
        items=gather(histories.items),
        lengths=torch.from_numpy(lengths.astype(np.int64)),
        rows=torch.from_numpy(rows.astype(np.int64)),
        times=None if histories.times is None else gather(histories.times),
    )


@contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """A trained module must not drop out while it is evaluated, and makes its item vectors once."""
    training = isinstance(model, torch.nn.Module) and model.training
    if training:
        model.eval()  # type: ignore[attr-defined]
    frozen: AbstractContextManager[None] = getattr(model, "frozen", nullcontext)()
    try:
        with frozen:
            yield
    finally:
        if training:
            model.train()  # type: ignore[attr-defined]


@torch.inference_mode()
def pair_scores(
    answer: Answer, rows: Int[np.ndarray, "P"], items: Int[np.ndarray, "P"], *, block: int
) -> Float[np.ndarray, "P"]:
    """The scores of single (row, item) pairs as float32, by the same streaming over item blocks."""
    order = np.argsort(items, kind="stable")
    pairs_rows, pairs_items = torch.from_numpy(rows[order]), torch.from_numpy(items[order])
    found = np.empty(len(rows), dtype=np.float32)
    score = scorer(answer, block)
    edges = np.searchsorted(items[order], np.arange(0, answer.size + block, block))
    for number, (first, last) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        if first == last:
            continue
        low = number * block
        scores = score(low, min(low + block, answer.size))
        taken = scores[pairs_rows[first:last].to(scores.device), (pairs_items[first:last] - low).to(scores.device)]
        found[order[first:last]] = taken.float().cpu().numpy()
    if np.isnan(found).any():
        raise UserError(f"the model gave NaN scores for {int(np.isnan(found).sum())} of {len(found)} candidates")
    return found
