"""Attention weights of a model that answers: which share of its attention each event of a history gets, layer by layer.

Forward hooks note the input of every attention; the model runs exactly as it does when it
recommends. Diagnostics of a whole sample and the explanation of one request read the same numbers.
`changed_feature` lets a model read one feature otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fullrank.data.batch import Batch
from fullrank.models import Model
from fullrank.models.sequential.attention import Attention
from fullrank.models.sequential.items.event_features import FieldVectors
from fullrank.models.sequential.model import RecommenderModel

WEIGHTS = 1 << 22
"""Most attention weights (users x heads x positions x positions) made at once, 4 bytes each."""


@dataclass(frozen=True)
class AttentionInput:
    """The input of one attention."""

    layer: int
    module: Attention
    x: Tensor
    """[B, T, D], behind the norm where the block has one before it."""
    batch: Batch


def reader_of(model: Model) -> nn.Module | None:
    """The module whose blocks read a history (an encoder, or the one within it); None for other models."""
    return _holder(model, "blocks")


def blocks_of(model: Model) -> list[nn.Module]:
    """The blocks of `reader_of`; none for other models."""
    reader = reader_of(model)
    return [] if reader is None else list(cast(nn.ModuleList, reader.blocks))


def decoder_blocks_of(model: Model) -> list[nn.Module]:
    """The blocks that write an answer behind a history, with their attention to it in `cross`; none for other models.

    Their attentions read no history, so no diagnostic of events sees them.
    """
    writer = _holder(model, "decoder")
    return [] if writer is None else list(cast(nn.ModuleList, writer.decoder))


def _holder(model: Model, name: str) -> nn.Module | None:
    """The first module of a model that has a list of modules by this name."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return next((module for module in modules if isinstance(getattr(module, name, None), nn.ModuleList)), None)


def attention_of(block: nn.Module) -> Attention | None:
    """A block's attention, where it has one."""
    attention = getattr(block, "attention", None)
    return attention if isinstance(attention, Attention) else None


def weights_of(inputs: AttentionInput) -> Iterator[tuple[slice, Batch, Tensor]]:
    """Rows, their batch and their attention weights [b, H, T, T] (zero for padded queries), some rows at a time.

    A run of rows is cut to its own longest history; what is cut off is padding.
    """
    batch, count = inputs.batch, len(inputs.batch.items)
    width = int(batch.items.shape[1])
    at_once = max(1, WEIGHTS // max(1, inputs.module.heads * width * width))
    for low in range(0, count, at_once):
        rows = slice(low, min(low + at_once, count))
        part = trim(batch, rows)
        weights = inputs.module.weights(inputs.x[rows, : part.items.shape[1]], part)
        yield rows, part, weights * part.valid[:, None, :, None]


def trim(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch, without the padding that none of them needs."""
    longest = max(1, int(batch.lengths[rows].max()))
    cut: dict[str, Any] = {
        name: x[rows, :longest] if x.ndim > 1 else x[rows] for name, x in vars(batch).items() if isinstance(x, Tensor)
    }
    return replace(batch, **cut)


def last_shares(weights: Float[Tensor, "B H T T"], batch: Batch, window: Bool[Tensor, "B T"]) -> Float[Tensor, "B H T"]:
    """The weights of each row's last event over the sum of their absolute values in the
    window, signed; 0 elsewhere."""
    at = (batch.lengths - 1).clamp_min(0)[:, None, None, None].expand(-1, weights.shape[1], 1, weights.shape[3])
    inside = weights.gather(2, at)[:, :, 0].float() * window[:, None]
    return inside / inside.abs().sum(-1, keepdim=True).clamp_min(1e-30)


def tokens_per_event(model: Model) -> int:
    """Positions that an event takes in a model's encoder: one, or one for each code of its item."""
    return model.task.tokens_per_event if isinstance(model, RecommenderModel) else 1


def event_places(model: Model, batch: Batch) -> Bool[Tensor, "B T"]:
    """Where an encoder's rows hold events: no padding, nothing covered, and none of
    what a task puts before them."""
    real = batch.valid if batch.hidden is None else batch.valid & ~batch.hidden
    before = model.task.tokens_before if isinstance(model, RecommenderModel) else 0
    return real & (torch.arange(real.shape[1], device=real.device) >= before)


def note_attentions(model: Model, inputs: list[AttentionInput]) -> list[RemovableHandle]:
    """Hooks that append the input of each attention to `inputs` from now on; call `remove()` of each when done.

    Only the thread that called this is followed: others may be answering from the same model.
    """
    owner = threading.get_ident()

    def hook(layer: int, module: Attention) -> RemovableHandle:
        def note(_: nn.Module, arguments: tuple[Tensor, Batch]) -> None:
            if threading.get_ident() == owner:
                inputs.append(AttentionInput(layer, module, *arguments))

        return module.register_forward_pre_hook(note)

    modules = [(layer, attention_of(block)) for layer, block in enumerate(blocks_of(model))]
    return [hook(layer, module) for layer, module in modules if module is not None]


@contextmanager
def noted_attentions(model: Model) -> Iterator[list[AttentionInput]]:
    """The list to which each attention of the model appends its input, inside the block."""
    inputs: list[AttentionInput] = []
    with ExitStack() as stack:
        for hook in note_attentions(model, inputs):
            stack.callback(hook.remove)
        yield inputs


Change = Callable[[Float[Tensor, "*n D"], Float[Tensor, "D"], Int[Tensor, "B"]], Tensor]
"""Vectors of one feature, [B D] of users or [B T D] of places, its vector where it is missing, and
the lengths of the histories -> the vectors that are read in their place."""


@contextmanager
def changed_feature(model: Model, role: str, name: str, change: Change) -> Iterator[None]:
    """While this lasts, let the calling thread read a feature (`Model.reads_features`) as `change` of its vectors.

    A feature of requests is changed both where they are past and where one is to be answered.
    """
    assert isinstance(model, RecommenderModel) and model.features is not None
    owner, lengths, reader = threading.get_ident(), list[Tensor](), model.features

    def note(_: nn.Module, arguments: tuple[Tensor, Batch]) -> None:
        if threading.get_ident() == owner:
            lengths[:] = [arguments[1].lengths]

    def read(part: nn.Module, _: object, out: Tensor) -> Tensor:
        if threading.get_ident() != owner:
            return out
        part = cast(FieldVectors, part)
        at, none = part.names.index(name), part.forward(None, [part.offsets.new_zeros(1)] * len(part.made), 1)
        out = out.clone()
        out[..., at, :] = change(out[..., at, :], none[0, at], lengths[0])
        return out

    with ExitStack() as stack:
        stack.callback(reader.register_forward_pre_hook(note).remove)
        for vectors in ("request", "asked") if role == "request" else (role,):
            stack.callback(reader.vectors[vectors].register_forward_hook(read).remove)
        yield
