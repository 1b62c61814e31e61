"""Laws of every learner of codes: what a quantiser promises whoever learned it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from discover import Pair, everything, load, name
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.semantic_ids import AlignedCodesSpec, Quantiser
from fullrank.semantic_ids.autoencoder import Autoencoder
from fullrank.semantic_ids.measure import variance
from fullrank.semantic_ids.quantisers import Product
from fullrank.semantic_ids.vectors import Vectors
from refusals import refused

LEARNERS = pytest.mark.parametrize("pair", everything("items.codes"), ids=name)
SMALL = {"levels": 3, "size": 8}
NETWORK = {"hidden": (32,), "width": 8, "epochs": 60, "lr": 0.01}
QUICK: dict[str, dict[str, Any]] = {"rqvae": NETWORK, "letter": NETWORK}
"""Settings under which a kind learns `vectors` in a moment."""
WIDTH = 12


def spec(pair: Pair, **settings: Any) -> Spec:
    return load(pair).model_validate(SMALL | QUICK.get(pair[1], {}) | settings)


def fit(made: Spec, x: Float[Tensor, "N D"], seed: int = 0) -> Quantiser:
    drawn = torch.randn(len(x), NETWORK["width"], generator=torch.Generator().manual_seed(7))
    beside = [Vectors(drawn, torch.ones(len(x), dtype=torch.bool), {})] if isinstance(made, AlignedCodesSpec) else []
    found = made.fit(x, seed, lambda done, total: None, *beside)  # type: ignore[attr-defined]
    assert isinstance(found, Quantiser)
    return found


def vectors(rows: int = 150, seed: int = 0) -> Float[Tensor, "N D"]:
    """Clusters of different sizes off the origin, and rows that are alike to the last bit."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(12, WIDTH, generator=generator) * 2 + 1
    x = centres[torch.arange(rows) ** 2 % 12] + 0.7 * torch.randn(rows, WIDTH, generator=generator)
    if rows > 17:
        x[5] = x[17] = x[3]
    return x


def error(quantiser: Quantiser, x: Tensor, codes: Tensor) -> Float[Tensor, "N"]:
    return (x.double() - quantiser.decode(codes).double()).pow(2).sum(1)


def divided(quantiser: Quantiser, x: Tensor) -> tuple[Quantiser, Tensor]:
    """The codebooks and the vectors that they divide: behind an encoder, its own."""
    return (quantiser.inner, quantiser.latent(x)) if isinstance(quantiser, Autoencoder) else (quantiser, x)


def check_rows_alone(encode: Callable[[Tensor], Tensor], x: Float[Tensor, "N D"]) -> None:
    """An item's codes depend neither on the chunk that it is encoded in nor on its place in it."""
    whole = encode(x)
    for rows in (1, 7, 64):
        assert torch.equal(torch.cat([encode(part) for part in x.split(rows)]), whole)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    assert torch.equal(encode(x[order]), whole[order])


@LEARNERS
def test_shapes_and_ranges(pair: Pair) -> None:
    x = vectors()
    found = fit(spec(pair), x)
    codes = found.encode(x)
    assert codes.dtype == torch.int64 and codes.shape == (len(x), 3) and found.sizes == (8, 8, 8)
    assert int(codes.min()) >= 0 and bool((codes < torch.tensor(found.sizes)).all())
    assert found.decode(codes).shape == x.shape and found.dim == WIDTH
    assert found.codebooks.shape[:2] == (3, 8) and found.encode(x[:0]).shape == (0, 3)
    assert torch.equal(codes[5], codes[17]), "equal vectors have equal codes"


@LEARNERS
def test_vectors_on_codewords_come_back(pair: Pair) -> None:
    """As many distinct vectors as codes: each is described without error, and keeps its codes when encoded again."""
    x = vectors(8, seed=3).repeat(20, 1)
    found = fit(spec(pair), x)
    codes = found.encode(x)
    assert len(codes.unique(dim=0)) == 8, "different vectors have different codes"
    if isinstance(found, Autoencoder):  # its decoder is learned by gradients: it comes near
        assert float(error(found, x, codes).mean()) < 0.1 * variance(x)
        return
    assert float(error(found, x, codes).max()) < 1e-6
    assert torch.equal(found.encode(found.decode(codes)), codes)


@LEARNERS
def test_codes_describe(pair: Pair) -> None:
    """Far better than the mean vector does, and better than the codes of another item."""
    x = vectors()
    found = fit(spec(pair), x)
    codes = found.encode(x)
    own, plain = error(found, x, codes).mean(), (x - x.mean(0)).pow(2).sum(1).mean()
    assert float(own) < 0.5 * float(plain)
    assert float(own) < 0.3 * float(error(found, x, codes.roll(1, 0)).mean())


@LEARNERS
def test_rows_are_treated_alone(pair: Pair) -> None:
    x = vectors()
    check_rows_alone(fit(spec(pair), x).encode, x)


@LEARNERS
def test_the_seed_decides(pair: Pair) -> None:
    x = vectors()
    one, same, other = (fit(spec(pair), x, seed) for seed in (0, 0, 1))
    assert all(torch.equal(one.tensors()[key], same.tensors()[key]) for key in one.tensors())
    assert not torch.equal(one.codebooks, other.codebooks)


@LEARNERS
def test_tensors_are_all_of_it(pair: Pair) -> None:
    x, made = vectors(), spec(pair)
    found = fit(made, x)
    back = made.restore({key: value.clone() for key, value in found.tensors().items()})  # type: ignore[attr-defined]
    fresh = vectors(40, seed=9)
    codes = found.encode(fresh)
    assert torch.equal(back.encode(fresh), codes) and torch.equal(back.decode(codes), found.decode(codes))
    for key, value in found.tensors().items():
        for wrong in (value[:-1], value.double(), torch.full_like(value, torch.nan)):
            with pytest.raises(UserError):
                made.restore(found.tensors() | {key: wrong})  # type: ignore[attr-defined]


@LEARNERS
def test_last_is_the_error_of_each_last_code(pair: Pair) -> None:
    x = vectors()
    found = fit(spec(pair), x)
    codes = found.encode(x)
    given = found.last(x, codes).double()
    found, x = divided(found, x)
    assert torch.equal(given.argmin(1), codes[:, -1])
    for code in range(found.sizes[-1]):
        other = codes.clone()
        other[:, -1] = code
        more = error(found, x, other) - error(found, x, codes)
        expected = given[:, code] - given.gather(1, codes[:, -1:]).squeeze(1)
        torch.testing.assert_close(expected, more, atol=1e-3, rtol=1e-4)


@LEARNERS
def test_every_code_is_in_use(pair: Pair) -> None:
    x = vectors(400)
    codes = fit(spec(pair, size=16), x).encode(x)
    assert all(len(codes[:, level].unique()) == 16 for level in range(3))


@LEARNERS
def test_fewer_vectors_than_codes_are_refused(pair: Pair) -> None:
    with refused("too-few-vectors", 8, 7, "learner.size=1"):
        fit(spec(pair), vectors()[:7])


@LEARNERS
def test_one_item(pair: Pair) -> None:
    x = vectors()[:1]
    found = fit(spec(pair, size=1), x)
    assert found.encode(x).tolist() == [[0, 0, 0]]
    torch.testing.assert_close(found.decode(found.encode(x)), x)


def test_planted_faults_are_caught() -> None:
    class Batchwise(Product):
        """Planted: centred by the mean of the rows that it is given."""

        def encode(self, x: Float[Tensor, "N D"]) -> Int64[Tensor, "N K"]:
            return super().encode(x - x.mean(0))

    x = vectors()
    plain = fit(spec(("items.codes", "opq")), x)
    assert isinstance(plain, Product)
    with pytest.raises(AssertionError):
        check_rows_alone(Batchwise(plain.codebooks, plain.rotation, plain.mean).encode, x)
