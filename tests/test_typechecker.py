"""The run-time type checker of `make test-all` catches what it is there for: wrong types, and letters that disagree."""

from collections.abc import Iterator
from dataclasses import dataclass

import jaxtyping
import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from fullrank.core.jagged import Jagged
from fullrank.ops.singular_values import PowerIteration, _times, largest_singular_value
from typechecker import checked

typed = jaxtyping.jaxtyped(typechecker=checked)


@typed
def doubled(x: Float[Tensor, "n"], *, short: bool = False) -> Float[Tensor, "n"]:
    return (2 * x)[1:] if short else 2 * x


@typed
def parts(x: Float[Tensor, "n"], count: int) -> Iterator[Tensor]:
    yield from x.split(count)


@typed
@dataclass
class Pair:
    first: Float[Tensor, "n"]
    second: Float[Tensor, "n"]


def test_the_library_is_checked(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("jaxtyping_packages"):
        pytest.skip("types are checked by make test-all")
    for call in (
        lambda: _times(torch.zeros(3, 4), torch.zeros(5)),  # letters of two arguments
        lambda: largest_singular_value(torch.zeros(3)),  # too few axes
        lambda: largest_singular_value(torch.zeros(3, 3, dtype=torch.long)),  # type of the numbers
        lambda: largest_singular_value([[1.0]]),  # type of the argument
        lambda: PowerIteration(torch.eye(3), "many"),  # a constructor
        lambda: Jagged("values", "starts", "ends"),  # a dataclass
    ):
        with pytest.raises(TypeCheckError):
            call()


def test_results_are_checked_and_letters_are_forgotten_between_calls() -> None:
    with pytest.raises(TypeCheckError):
        doubled(torch.ones(3), short=True)
    assert len(doubled(torch.ones(2))) == 2 and len(doubled(torch.ones(5))) == 5


def test_generators_dataclasses_and_names_stay_what_they_are() -> None:
    assert len(list(parts(torch.ones(5), 2))) == 3
    with pytest.raises(TypeCheckError):
        list(parts(torch.ones(5), "two"))  # type: ignore[arg-type]
    assert Pair(torch.ones(2), torch.ones(2)) is not None
    with pytest.raises(TypeCheckError):
        Pair(torch.ones(2), torch.ones(3))
    assert doubled.__name__ == "doubled" and "Float" in str(doubled.__annotations__["x"])


def test_an_int_may_stand_for_a_float() -> None:
    @typed
    def half(x: float) -> float:
        return x / 2

    assert half(3) == 1.5
