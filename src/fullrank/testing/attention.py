"""Checks of every attention: the future and the padding are invisible, its weights are what it does, no idle setting.

Those of one module can be called alone (``check_causal(attention)``); `CHECKS` runs each on every
module that a Spec's settings reach.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fullrank.core.device import device_of
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.data.batch import Batch, Captures, ColumnSums
from fullrank.models.sequential.attention import Attention, AttentionSpec, Memory, Places, mask
from fullrank.models.sequential.encoders import Encoder
from fullrank.ops.model_cost import counted
from fullrank.testing.inputs import (
    LENGTHS,
    all_learn,
    built,
    close,
    histories,
    naming,
    of_specs,
    padded,
    reachable,
    sequences,
    settings_have_effect,
    shaken,
    times_of,
)

BASE = AttentionSpec
DIM, LONGEST = 12, 16
COUNTED = (1, 9, 150)
"""Lengths at which operations are counted; the last is more than one block of queries."""


def inputs_of(module: nn.Module, extra: int = 0) -> tuple[Tensor, Batch]:
    """`sequences` where a module's parameters are."""
    return sequences(DIM, device_of(module), extra)


def outputs_of(module: Attention | Encoder, x: Tensor, batch: Batch) -> Tensor:
    """The output of an attention, or the token states of an encoder."""
    output: Any = module(x, batch)
    return output.tokens if isinstance(module, Encoder) else output


def check_causal(module: Attention | Encoder) -> None:
    """A position's output does not depend on what comes after it."""
    if not module.causal:
        return
    x, batch = inputs_of(module)
    whole, times = outputs_of(module, x, batch), times_of(batch)
    for t in range(1, x.shape[1]):
        changed = x.clone()
        changed[:, t:] += torch.arange(DIM, device=x.device)  # a norm would not see a constant
        seen = batch.valid & (torch.arange(x.shape[1], device=x.device) < t)
        assert close(outputs_of(module, changed, batch)[seen], whole[seen]), f"position {t} is seen before it happens"
        later = replace(batch, times=times + 10**6 * (torch.arange(x.shape[1], device=x.device) > t))
        assert close(outputs_of(module, x, later)[seen], whole[seen]), f"a time behind position {t} is seen too early"


def check_padding(module: Attention | Encoder) -> None:
    """Padding, whatever it holds and however long, changes no valid output."""
    x, batch = inputs_of(module)
    whole = outputs_of(module, x, batch)
    assert whole.shape == x.shape
    other = torch.where(batch.valid[..., None], x, 7.0)
    elsewhere = replace(batch, times=torch.where(batch.valid, times_of(batch), 77))
    assert close(outputs_of(module, other, elsewhere)[batch.valid], whole[batch.valid]), "padding is seen"
    longer, longer_batch = inputs_of(module, 4)
    assert close(outputs_of(module, longer, longer_batch)[longer_batch.valid], whole[batch.valid]), (
        "extra padding is seen"
    )
    for row, length in enumerate(LENGTHS):
        single = padded([batch.items[row, :length].tolist()]).to(x.device)
        alone = outputs_of(module, x[row : row + 1, :length], single)[0]
        assert close(alone, whole[row, :length]), f"row {row} differs when alone"


def check_weights(attention: Attention) -> None:
    """Hidden positions have no weight; visible ones have, or may if `sparse`, in rows of sum 1."""
    x, batch = inputs_of(attention)
    weights = attention.weights(x, batch)
    assert weights.shape == (len(x), attention.heads, x.shape[1], x.shape[1])
    allowed = mask(batch, causal=attention.causal)
    queries = batch.valid[:, None, :, None]
    assert not weights.masked_select(queries & ~allowed).any(), "a hidden place has weight"
    if attention.rows_sum_to_one:
        seen = weights.masked_select(queries & allowed)
        assert (seen >= 0 if attention.sparse else seen > 0).all(), "a visible place has none, or less"
        assert close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def check_apply(attention: Attention) -> None:
    """``apply_weights(weights(x, batch), x)`` is the module's output."""
    x, batch = inputs_of(attention)
    again = attention.apply_weights(attention.weights(x, batch), x)
    assert close(again[batch.valid], attention(x, batch)[batch.valid])


@torch.no_grad()
def check_matrices(attention: Attention) -> None:
    """A head with a value projection of 0 mixes nothing, nor any with an output projection of 0."""
    x, batch = inputs_of(attention)
    value, output = attention.matrices()
    weights = attention.weights(x, batch)
    before, saved = attention.apply_weights(weights, x), output.clone()
    for head in range(attention.heads):
        other, noise = weights.clone(), torch.rand(weights[:, head].shape, generator=torch.Generator().manual_seed(3))
        noise = noise.to(weights.device)
        other[:, head] += noise - noise.mean(-1, keepdim=True)  # rows keep their sums, so value biases stay
        assert not close(attention.apply_weights(other, x), before), "the weights are not used"
        original = value[head].clone()
        value[head] = 0
        assert close(attention.apply_weights(other, x), attention.apply_weights(weights, x)), f"not head {head}'s value"
        value[head] = original
    output.zero_()
    silent = attention.apply_weights(weights, x)
    assert close(silent, silent[:1, :1].expand_as(silent)), "something goes round the output projection"
    output.copy_(saved)


def check_linear(attention: Attention) -> None:
    """`apply_weights` is, up to biases, the sum over heads of output @ value @ mixed tokens."""
    if not attention.linear:
        return
    x, batch = inputs_of(attention)
    value, output = attention.matrices()
    weights = attention.weights(x, batch)
    mixed = torch.einsum("bhts,bsd,hed->bthe", weights, x, value).flatten(2)
    linear = attention.apply_weights(weights, x) - attention.apply_weights(weights, torch.zeros_like(x))
    assert close((mixed @ output.T)[batch.valid], linear[batch.valid], 1e-4)


def check_project(attention: Attention) -> None:
    """`attend` on what `project` gives, under the mask, is the module: what a cache relies on."""
    x, batch = inputs_of(attention)
    projected = attention.project(x, batch.positions(from_end=False))
    again = attention.attend(*projected, mask(batch, causal=attention.causal), Places.of(batch))
    assert close(again[batch.valid], attention(x, batch)[batch.valid])


def check_learns(attention: Attention) -> None:
    """Every parameter gets a gradient."""
    x, batch = inputs_of(attention)
    attention.train()
    attention(x, batch)[batch.valid].pow(2).sum().backward()
    all_learn(attention.named_parameters())
    attention.eval()


def check_columns(attention: Attention) -> None:
    """Noted columns are absolute weights summed over valid queries, in value and gradient.

    An attention with `column_weights` of its own keeps sums of those; they are at
    least the absolute weights.
    """
    x, batch = inputs_of(attention, 2)
    plain_y, captured = attention(x, batch), list[ColumnSums]()
    assert close(attention(x, replace(batch, captures=Captures(columns=captured)))[batch.valid], plain_y[batch.valid])
    (noted,) = captured
    absolute = attention.weights(x, batch).abs()
    column_weights = attention.column_weights(x, batch)
    assert noted.module is attention and torch.equal(noted.valid, batch.valid)
    assert not noted.sums.masked_select(~batch.valid[:, None]).any(), "a padded key has received attention"
    assert (column_weights - absolute > -1e-6).all(), "what is noted is no bound"
    column_weights = column_weights * batch.valid[:, None, :, None]
    sums = column_weights.sum(2)
    assert close(noted.sums, sums)
    assert close(
        column_weights.sum(3),
        noted.rows if noted.rows is not None else batch.valid[:, None].expand_as(column_weights.sum(3)).float(),
    )
    assert noted.sums.requires_grad == sums.requires_grad, "columns without the weights' gradient"
    if sums.requires_grad:
        parameters = list(attention.parameters())
        gradients = torch.autograd.grad(noted.sums.pow(2).sum(), parameters, allow_unused=True)
        wanted = torch.autograd.grad(sums.pow(2).sum(), parameters, allow_unused=True)
        for a, b in zip(gradients, wanted, strict=True):
            assert (a is None or not a.any()) if b is None else a is not None and close(a, b, 1e-4)
    attention(x, replace(batch, captures=Captures()))
    assert len(captured) == 1, "noted what nobody wants"


def check_latent(attention: Attention) -> None:
    """Two tokens in each of three streams agree with the reference, which copies the history."""
    x, batch = inputs_of(attention, 2)
    memory: dict[nn.Module, Memory] = {}
    attention(x, replace(batch, captures=Captures(memory=memory)))
    prefix = memory[attention]
    projected = attention.project(x, batch.positions(from_end=False))[1:]
    assert all(torch.equal(a, b) for a, b in zip(prefix, projected, strict=True)), "not the keys and values"
    latent: Memory | None = None
    for s in range(2):
        new = torch.randn(len(x), 3, DIM, generator=torch.Generator().manual_seed(s)).to(x.device)
        q, _, _ = attention.project(new, (batch.lengths + s)[:, None].expand(-1, 3))
        y, latent = attention.step(new, prefix, latent, batch)
        assert close(y, Attention.attend_latent(attention, q, prefix, latent, batch)), (
            f"step {s} differs from a full copy"
        )


def check_across(attention: Attention) -> None:
    """Tokens that look at others see valid ones alone, and get what `mix` gives from `attend`."""
    if attention.reads_times:  # a decoder's tokens have none
        return
    x, batch = inputs_of(attention, 2)
    asking, memory, captured = x[:, :3].flip(1), attention.remember(x), list[ColumnSums]()
    y = attention.across(asking, memory, batch.valid)
    assert y.shape == asking.shape
    other = attention.remember(torch.where(batch.valid[..., None], x, 7.0))
    assert close(attention.across(asking, other, batch.valid), y), "padding is seen"
    for row, length in enumerate(LENGTHS):
        keys, values = (part[row : row + 1, :, :length] for part in memory)
        alone = attention.across(asking[row : row + 1], (keys, values), batch.valid[row : row + 1, :length])
        assert close(alone[0], y[row]), f"row {row} differs when alone"
    assert close(attention.across(asking, memory, batch.valid, Captures(columns=captured)), y), (
        "noted columns change it"
    )
    (noted,) = captured
    assert noted.module is attention and noted.queries == 3
    assert not noted.sums.masked_select(~batch.valid[:, None]).any(), "a padded key has received attention"
    if attention.rows_sum_to_one:
        assert close(noted.sums.sum(-1), torch.full_like(noted.sums[..., 0], 3.0))
    assert attention.across(asking, memory, torch.zeros_like(batch.valid)).isfinite().all(), "rows without keys"


def check_short_rows(attention: Attention) -> None:
    """Rows of length one are read."""
    x = torch.randn(2, 1, DIM).to(device_of(attention))
    y = attention(x, padded([[3], [4]]).to(x.device))
    assert y.shape == (2, 1, DIM) and y.isfinite().all(), "rows of length one"


def check_flops(spec: Spec, device: torch.device) -> None:
    """Costs on shapes equal costs on numbers, or `uncounted` says why there are none."""
    for length in COUNTED:
        batch, x = padded(histories([length] * 3)).to(device), torch.randn(3, length, DIM).to(device)
        for other, module in built(reachable(spec, 1, numbers=length < 100), DIM, max(COUNTED), device=device):
            with naming(other), torch.no_grad():
                counts_as_said(module, (x, batch), length)
                if isinstance(module, Encoder) and module.decodes and length > 1:
                    counts_as_said(module, (x, replace(batch, answer=2)), length, 2)


def counts_as_said(module: Any, inputs: tuple[Any, ...], *length: int) -> None:
    """The stated cost of rows of a length (and an answer) is what torch counts."""
    uncounted = getattr(module, "uncounted", "")
    if uncounted or not hasattr(module, "flops"):
        assert len(uncounted) > 20, "neither flops(length) nor a sentence `uncounted`"
        return
    parts, rows = module.flops(*length), len(inputs[0])
    assert None not in parts.values(), f"{parts}: say why in `uncounted`"
    stated, operations = rows * sum(parts.values()), counted(lambda: module(*inputs))
    assert stated == operations, f"{rows} rows of length {length[0]} are said to cost {stated} and cost {operations}"


@cache
def trace(spec: Any, device: torch.device) -> tuple[Any, ...] | None:
    """The observable behaviour of a spec: parameter shapes, an output, an output in training."""
    try:
        torch.manual_seed(0)
        module = shaken(spec.build(DIM, LONGEST)).to(device)
    except UserError:
        return None
    x, batch = sequences(DIM, device)
    if isinstance(module, Encoder) and module.continues and not module.causal:
        batch = replace(batch, answer=1)  # the positions of the answer are the decoder's
    outputs = outputs_of(module.eval(), x, batch)
    torch.manual_seed(0)
    trained = outputs_of(module.train(), x, batch)
    shapes = [(label, tuple(p.shape)) for label, p in module.named_parameters()]
    return shapes, *(output[batch.valid].flatten().tolist() for output in (outputs, trained))


def check_effects(spec: Spec, device: torch.device) -> None:
    """No setting is idle: one of its values near the defaults makes a difference."""
    settings_have_effect(spec, lambda other: trace(other, device))


OF_MODULES = (
    check_causal,
    check_padding,
    check_weights,
    check_apply,
    check_matrices,
    check_linear,
    check_project,
    check_learns,
    check_columns,
    check_latent,
    check_across,
    check_short_rows,
)
CHECKS = (
    *of_specs(OF_MODULES, lambda spec, device: built(reachable(spec), DIM, LONGEST, device=device)),
    check_flops,
    check_effects,
)
