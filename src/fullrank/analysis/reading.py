"""One pass over a bounded sample of users: the model's answers, and what its layers and attentions were given.

Forward hooks take down what passes through; the model runs exactly as it does when it recommends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from fullrank.core.errors import UserError, unknown
from fullrank.core.progress import Progress
from fullrank.data.batch import Batch, Model, Scorer, States
from fullrank.data.events.store import Store
from fullrank.data.histories import EvalSet, Histories
from fullrank.evaluation.retrieval import Split
from fullrank.inference.batches import score_batches

BLOCK = 8192
"""Items per block; here it only bounds the users in a batch (`retrieval.batches.SCORES` / BLOCK)."""
WEIGHTS = 1 << 22
"""Most attention weights (users x heads x positions x positions) made at once, 4 bytes each."""


@dataclass(frozen=True)
class Sample:
    """Some users of a split, in an order drawn at random, so that the first n of them are a sample too."""

    eval_set: EvalSet
    popularity: Int[np.ndarray, "V"]
    """Training events of each item."""

    def __len__(self) -> int:
        return len(self.eval_set)

    def first(self, count: int) -> Sample:
        """The first users, which are a sample too."""
        return Sample(self.eval_set.take(slice(count)), self.popularity)

    @property
    def users(self) -> Int[np.ndarray, "U"]:
        """Rows of the store's users."""
        return self.eval_set.users

    @property
    def histories(self) -> Histories:
        return self.eval_set.histories

    @property
    def next_items(self) -> Int[np.ndarray, "U"]:
        """What each user chose next: the first of their targets."""
        return self.eval_set.next_items


def sample(store: Store, split: str, users: int, *, seed: int = 0) -> Sample:
    """`users` users of a split (all, where it has no more): a function of the seed and the split alone.

    Users without a history are never drawn. Raises `UserError` for another split and for one without users.
    """
    if split not in (*get_args(Split), "train"):
        raise unknown("split", split, (*get_args(Split), "train"))
    if users < 2:
        raise UserError(f"a sample needs at least 2 users, not {users}")
    whole = store.eval_set(split)
    if len(whole) < 2:
        raise UserError(f"the split {split!r} of {store.path} has {len(whole)} users with a history; 2 are needed")
    drawn = np.random.default_rng([seed, len(whole)]).permutation(len(whole))[:users]
    return Sample(whole.take(drawn), store.catalog.popularity)


@dataclass(frozen=True)
class Attended:
    """What one attention was given."""

    layer: int
    module: Any
    """Satisfies `attention.Attention`."""
    x: Tensor
    """[B, T, D], behind the norm where the block has one before it."""
    batch: Batch


@dataclass(frozen=True)
class Reading:
    """What one batch showed."""

    at: Int[np.ndarray, "B"]
    """Places of the rows in the sample."""
    answer: Scorer
    states: States | None = None
    """What the encoder returned; None for a model without one."""
    inputs: Batch | None = None
    """The batch that the encoder was given."""
    attended: tuple[Attended, ...] = ()
    given: dict[nn.Module, Tensor] = field(default_factory=dict)
    """What each norm and each feed-forward of the encoder was given."""


def readings(model: Model, sample: Sample, progress: Progress | None = None) -> Iterator[Reading]:
    """The sample, batch by batch, longest histories first. Use them before asking for the next."""
    with _listening(model) as heard:
        batches = score_batches(model, sample.histories, block=BLOCK, device=device_of(model), progress=progress)
        for at, answer in batches:
            yield Reading(at, answer, heard.states, heard.inputs, tuple(heard.attended), dict(heard.given))
            heard.clear()


def blocks_of(model: Model) -> list[nn.Module]:
    """The blocks of a model's encoder (of the inner one, where an encoder holds another); none for other models."""
    for module in model.modules() if isinstance(model, nn.Module) else ():
        if isinstance(getattr(module, "blocks", None), nn.ModuleList):
            return list(cast(nn.ModuleList, module.blocks))
    return []


def attention_of(block: nn.Module) -> Any | None:
    """A block's attention, where it has one that shows its weights and names its matrices."""
    found = getattr(block, "attention", None)
    whole = all(callable(getattr(found, name, None)) for name in ("weights", "apply_weights", "matrices"))
    return found if whole else None


def weights_of(attended: Attended) -> Iterator[tuple[slice, Batch, Tensor]]:
    """Rows, their batch and their attention weights [b, H, T, T] (zero for padded queries), some rows at a time.

    A run of rows is cut to its own longest history; what is cut off is padding.
    """
    batch, heads = attended.batch, attended.module.heads
    width = int(batch.items.shape[1])
    some = max(1, WEIGHTS // max(1, heads * width * width))
    for low in range(0, len(batch.items), some):
        rows = slice(low, min(low + some, len(batch.items)))
        part = cut(batch, rows)
        made = attended.module.weights(attended.x[rows, : part.items.shape[1]], part)
        yield rows, part, made * part.valid[:, None, :, None]


def cut(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch, without the padding that none of them needs."""
    longest = max(1, int(batch.lengths[rows].max()))
    kept: dict[str, Any] = {}
    for name, value in vars(batch).items():
        if isinstance(value, Tensor):
            kept[name] = value[rows, :longest] if value.ndim > 1 else value[rows]
    return replace(batch, **kept)


def device_of(model: Model) -> torch.device:
    """Where a model's weights are; the CPU for one without any."""
    tensors = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    return tensors[0].device if tensors else torch.device("cpu")


@dataclass
class _Heard:
    states: States | None = None
    inputs: Batch | None = None
    attended: list[Attended] = field(default_factory=list)
    given: dict[nn.Module, Tensor] = field(default_factory=dict)

    def clear(self) -> None:
        self.states, self.inputs = None, None
        self.attended.clear()
        self.given.clear()


@contextmanager
def _listening(model: Model) -> Iterator[_Heard]:
    """Hooks on the encoder, its attentions, its norms and its feed-forwards; removed at the end."""
    heard, hooks = _Heard(), []
    encoder = getattr(model, "encoder", None)

    def on_encoder(module: nn.Module, given: tuple[Any, ...], states: Any) -> None:
        heard.states, heard.inputs = states, given[1]

    def on_given(module: nn.Module, given: tuple[Any, ...]) -> None:
        heard.given.setdefault(module, given[0])

    def on_attention(layer: int, module: nn.Module) -> Any:
        def note(_: nn.Module, given: tuple[Any, ...]) -> None:
            heard.attended.append(Attended(layer, module, given[0], given[1]))

        return module.register_forward_pre_hook(note)

    if isinstance(encoder, nn.Module):
        hooks.append(encoder.register_forward_hook(on_encoder))
        blocks = blocks_of(model)
        noted: list[nn.Module] = [m for m in encoder.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm)]
        noted += [m for m in (getattr(block, "feed_forward", None) for block in blocks) if isinstance(m, nn.Module)]
        hooks += [module.register_forward_pre_hook(on_given) for module in noted]
        attentions = [(layer, attention_of(block)) for layer, block in enumerate(blocks)]
        hooks += [on_attention(layer, module) for layer, module in attentions if module is not None]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()
