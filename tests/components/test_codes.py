"""Laws of every learner of codes: what a quantiser promises whoever learned it."""

from functools import cache

import pytest
import torch
from torch import Tensor

from discover import load
from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.semantic_ids import AlignedCodesSpec, Quantiser
from fullrank.semantic_ids.measure import variance
from fullrank.semantic_ids.quantisers import Autoencoder
from fullrank.semantic_ids.vectors import Vectors
from refusals import refused
from tests.components.cases import every_kind
from tiny import drawn

LEARNERS = every_kind("items.codes")
SMALL = {"levels": 3, "size": 8}
NETWORK = {"hidden": (32,), "width": 8, "epochs": 60, "lr": 0.01}
QUICK = {"rqvae": NETWORK, "letter": NETWORK}
"""Settings under which a kind learns `vectors` in a moment."""
WIDTH = 12


def spec(pair, **settings) -> Spec:
    return load(pair).model_validate(SMALL | QUICK.get(pair[1], {}) | settings)


def learn(made, x, seed=0) -> Quantiser:
    aligned = Vectors(drawn(len(x), NETWORK["width"], seed=7), torch.ones(len(x), dtype=torch.bool), {})
    beside = [aligned] if isinstance(made, AlignedCodesSpec) else []
    quantiser = made.fit(x, seed, lambda done, total: None, *beside)
    assert isinstance(quantiser, Quantiser)
    return quantiser


@cache
def learned(pair, seed=0) -> tuple:
    """(vectors, what the kind learns from them, their codes)."""
    x = vectors()
    quantiser = learn(spec(pair), x, seed)
    return x, quantiser, quantiser.encode(x)


def vectors(rows=150, seed=0) -> Tensor:
    """Clusters of different sizes off the origin, and rows that are alike to the last bit."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(12, WIDTH, generator=generator) * 2 + 1
    x = centres[torch.arange(rows) ** 2 % 12] + 0.7 * torch.randn(rows, WIDTH, generator=generator)
    if rows > 17:
        x[5] = x[17] = x[3]
    return x


def error(quantiser, x, codes) -> Tensor:
    return (x.double() - quantiser.decode(codes).double()).pow(2).sum(1)


def divided(quantiser, x) -> tuple:
    """The codebooks and the vectors that they divide: behind an encoder, its own."""
    return (quantiser.inner, quantiser.latent(x)) if isinstance(quantiser, Autoencoder) else (quantiser, x)


def check_rows_alone(encode, x) -> None:
    """An item's codes depend neither on the chunk that it is encoded in nor on its place in it."""
    whole = encode(x)
    for rows in (1, 7, 64):
        assert torch.equal(torch.cat([encode(part) for part in x.split(rows)]), whole)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    assert torch.equal(encode(x[order]), whole[order])


@LEARNERS
def test_shapes_and_ranges(pair) -> None:
    x, found, codes = learned(pair)
    assert codes.dtype == torch.int64 and codes.shape == (len(x), 3) and found.sizes == (8, 8, 8)
    assert codes.min() >= 0 and (codes < torch.tensor(found.sizes)).all()
    assert found.decode(codes).shape == x.shape and found.dim == WIDTH
    assert found.codebooks.shape[:2] == (3, 8) and found.encode(x[:0]).shape == (0, 3)
    assert torch.equal(codes[5], codes[17]), "equal vectors have equal codes"
    check_rows_alone(found.encode, x)


@LEARNERS
def test_vectors_on_codewords_come_back(pair) -> None:
    """As many distinct vectors as codes: each is described without error, and keeps its codes when encoded again."""
    x = vectors(8, seed=3).repeat(20, 1)
    found = learn(spec(pair), x)
    codes = found.encode(x)
    assert len(codes.unique(dim=0)) == 8, "different vectors have different codes"
    if isinstance(found, Autoencoder):  # its decoder is learned by gradients: it comes near
        assert error(found, x, codes).mean() < 0.1 * variance(x)
        return
    assert error(found, x, codes).max() < 1e-6
    assert torch.equal(found.encode(found.decode(codes)), codes)


@LEARNERS
def test_codes_describe(pair) -> None:
    """Far better than the mean vector does, and better than the codes of another item."""
    x, found, codes = learned(pair)
    own = error(found, x, codes).mean()
    assert own < 0.5 * variance(x)
    assert own < 0.3 * error(found, x, codes.roll(1, 0)).mean()


@LEARNERS
def test_the_seed_decides(pair) -> None:
    x, one, _ = learned(pair)
    same, other = (learn(spec(pair), x, seed) for seed in (0, 1))
    assert all(torch.equal(value, same.tensors()[key]) for key, value in one.tensors().items())
    assert not torch.equal(one.codebooks, other.codebooks)


@LEARNERS
def test_tensors_are_all_of_it(pair) -> None:
    made, (_, found, _), fresh = spec(pair), learned(pair), vectors(40, seed=9)
    tensors = found.tensors()
    back, codes = made.restore({key: value.clone() for key, value in tensors.items()}), found.encode(fresh)
    assert torch.equal(back.encode(fresh), codes) and torch.equal(back.decode(codes), found.decode(codes))
    for key, value in tensors.items():
        for wrong in (value[:-1], value.double(), torch.full_like(value, torch.nan)):
            with pytest.raises(UserError):
                made.restore(tensors | {key: wrong})


@LEARNERS
def test_last_is_the_error_of_each_last_code(pair) -> None:
    x, found, codes = learned(pair)
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
def test_every_code_is_in_use(pair) -> None:
    x = vectors(400)
    codes = learn(spec(pair, size=16), x).encode(x)
    assert all(len(codes[:, level].unique()) == 16 for level in range(3))


@LEARNERS
def test_fewer_vectors_than_codes_are_refused(pair) -> None:
    with refused("too-few-vectors", 8, 7, "learner.size=1"):
        learn(spec(pair), vectors()[:7])


@LEARNERS
def test_one_item(pair) -> None:
    x = vectors()[:1]
    found = learn(spec(pair, size=1), x)
    assert found.encode(x).tolist() == [[0, 0, 0]]
    torch.testing.assert_close(found.decode(found.encode(x)), x)
