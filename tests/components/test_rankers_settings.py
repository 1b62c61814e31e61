"""Every setting of a ranker has an effect, and its parts do what their rooms say."""

from functools import cache

import torch

from clicks import FIELDS
from discover import variations
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.testing.rankers import extra
from rankers_small import ALL, DIM, PARTS, small, tokens
from tiny import built, drawn, plain, reachable, shaken


@cache
def trace(spec) -> tuple | None:
    """What can be seen of a spec: the shapes of its parameters, starting values, an output, and one in training."""
    try:
        torch.manual_seed(0)
        ranker = spec.build(FIELDS, DIM)
    except UserError:
        return None
    start = tuple(p.double().norm().item() for p in ranker.parameters())
    shaken(ranker)
    x = tokens(spec)
    out = [ranker.eval()(x).logits]
    torch.manual_seed(0)
    trained = ranker.train()(x)
    out += [trained.logits, *trained.aux.values()]
    shapes = [(label, tuple(p.shape)) for label, p in ranker.named_parameters()]
    return shapes, start, *(tuple(o.flatten().tolist()) for o in out)


def check_effects(spec) -> None:
    """Of the values that a setting accepts here, one at least makes a difference."""
    here = trace(spec)
    for key in type(spec).model_fields:
        part = getattr(spec, key)
        others = [v for v in variations(spec) if getattr(v, key) != part]
        if isinstance(part, Spec):
            for inner in type(part).model_fields:
                changed = [v for v in variations(part) if getattr(v, inner) != getattr(part, inner)]
                check_some(here, [spec.model_copy(update={key: v}) for v in changed], f"{key}.{inner} of {spec!r}")
        check_some(here, others, f"{key} of {spec!r}")


def check_some(here, others, what) -> None:
    same = [found == here for found in map(trace, others[:3]) if found is not None]
    assert not same or not all(same), f"{what} has no effect: refuse it"


@ALL
def test_settings_have_effect(pair) -> None:
    base = small(pair)
    if "deep" in type(base).model_fields:
        base = base.override("deep.dropout=0.3")
    if "dropout" in type(base).model_fields:
        base = base.override("dropout=0.3")
    for spec in [*reachable(base, 1, numbers=False), *extra(base)]:
        if trace(spec) is not None:
            check_effects(spec)


@PARTS
def test_parts_mix_and_learn(pair) -> None:
    """Mixings and FFNs keep the shape; a mixing moves something from token to token, an FFN nothing."""
    for spec, part in built(reachable(plain(pair), 2), 4, 8):
        x = drawn(3, 4, 8).requires_grad_()
        out = part(x)
        value = out[1] if pair[0].endswith("mixings") else out[0]
        assert value.shape == x.shape, spec
        (touched,) = torch.autograd.grad(value[:, 0].pow(3).sum(), x)
        assert touched[:, 1:].any() == pair[0].endswith("mixings"), spec
