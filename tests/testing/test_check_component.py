"""`check_component` and `checks`: which room a Spec is of, what a failure names, and what is left as it was."""

import ast
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import fullrank.testing
from fullrank.core.spec import Spec
from fullrank.models.sequential.attention import Attention, AttentionSpec
from fullrank.models.sequential.attention.softmax import Softmax, SoftmaxAttention
from fullrank.models.sequential.encoders.gru import GRU
from fullrank.models.sequential.reasoning.plr import PLR
from fullrank.testing import check_component, checks, checks_of, name_of, room_of
from refusals import refused


class Even(AttentionSpec):
    """The mean of what a query may see: no entry point names it."""

    kind: Literal["even"] = "even"
    unread: bool = False
    """Planted: nothing reads it."""

    def build(self, dim: int, max_length: int) -> Attention:
        return EvenAttention(dim, max_length, self)


class EvenAttention(Attention):
    uncounted = "its weights are no products of queries and keys"

    def mix(self, q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
        return (allowed / allowed.sum(-1, keepdim=True)).expand(len(q), q.shape[1], -1, -1).to(q.dtype)


class Leaky(Softmax):
    """Planted: looks ahead."""

    def build(self, dim: int, max_length: int) -> SoftmaxAttention:
        return LeakyAttention(dim, max_length, self)


class LeakyAttention(SoftmaxAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Any, places: Any = None) -> Tensor:
        return super().attend(q, k, v, torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool), places)


class Nowhere(Spec):
    """Of no room."""

    kind: Literal["nowhere"] = "nowhere"


def test_the_room_follows_from_the_kind_or_the_base_class() -> None:
    assert [room_of(spec) for spec in (Softmax, GRU, PLR)] == ["attention", "encoders", "reasoning"]
    assert room_of(Even) == "attention"
    with refused("room-not-found", "Nowhere", "attention"):
        check_component(Nowhere)
    with refused("unknown-room", "attentoin", "attention"):
        check_component(Softmax, room="attentoin")


def test_a_failure_names_the_component_the_check_and_the_settings() -> None:
    with pytest.raises(AssertionError, match=r"softmax, check 'causal': Leaky\(.*position 1 is seen before it happens"):
        check_component(Leaky)


def test_what_a_third_party_has_not_registered_is_checked_by_its_base_class() -> None:
    with pytest.raises(AssertionError, match="even, check 'effects': unread has no effect"):
        check_component(Even)


def test_checks_have_the_names_of_the_settings_and_of_the_room() -> None:
    names = [name for name, _ in checks(Softmax)]
    assert names == [name_of(check) for room in ("settings", "attention") for check in checks_of(room)]
    assert len(set(names)) == len(names)


def test_checks_leave_the_generator_as_it_was() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    dict(checks(Softmax))["short_rows"](torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.backends.cuda.matmul.allow_tf32


def test_no_test_runner_is_needed() -> None:
    for file in Path(fullrank.testing.__file__).parent.glob("*.py"):
        tops = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else
                         [alias.name for alias in node.names] if isinstance(node, ast.Import) else [])
        }  # fmt: skip
        assert not tops & {"pytest", "hypothesis"}, file
