"""RQ-VAE: its loss by hand, where gradients flow, how codewords move, and what a folder of it gives back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from coded import catalog, drawn, matrix, settings, silent
from fullrank.semantic_ids import rqvae
from fullrank.semantic_ids.collisions import colliding
from fullrank.semantic_ids.measure import variance
from fullrank.semantic_ids.rqvae import MovingAverage, Quantised, RqVae, quantise, revive_dead, straight_through
from refusals import refused

SMALL = {"levels": 3, "size": 8, "hidden": (16,), "width": 4, "epochs": 4, "batch": 40, "lr": 0.01}


def learned(**changes: Any) -> rqvae.Autoencoder:
    return RqVae(**SMALL | changes).fit(torch.from_numpy(matrix(150)), 0, silent)


def test_the_loss_by_hand() -> None:
    """TIGER's sums of squares, vector by vector and level by level, from plain lists."""
    z, books = drawn(5, 2), drawn(2, 3, 2, seed=1)
    found = quantise(z, books)
    expected = [0.0, 0.0]
    for row, point in enumerate(z.double().tolist()):
        rest = point
        for level, book in enumerate(books.double().tolist()):
            far = [sum((r - e) ** 2 for r, e in zip(rest, word, strict=True)) for word in book]
            code = far.index(min(far))
            assert code == found.codes[row, level]
            expected[level] += (1 + 0.25) * min(far) / len(z)
            rest = [r - e for r, e in zip(rest, book[code], strict=True)]
    levels = found.losses(0.25)
    assert (2 * levels).tolist() == pytest.approx(expected, rel=1e-5)
    assert found.losses(0.25, codebook=False).tolist() == pytest.approx([e / 2 * 0.2 for e in expected], rel=1e-5)
    whole = RqVae(levels=2, size=3, width=2).total(torch.tensor(0.5), levels, 7)
    assert float(whole) == pytest.approx(7 * 0.5 + sum(expected), rel=1e-5)


def test_gradients_reach_the_encoder_and_the_deeper_levels() -> None:
    z, books = drawn(6, 3).requires_grad_(), drawn(3, 4, 3, seed=1).requires_grad_()
    found, weights = quantise(z, books), drawn(6, 3, seed=2)
    (through,) = torch.autograd.grad((straight_through(z, found) * weights).sum(), z, retain_graph=True)
    assert torch.equal(through, weights), "the decoder's gradient comes to the encoder as it is"
    torch.testing.assert_close(straight_through(z, found), found.words.sum(1))
    for level in range(3):
        kept = found.losses(1.0, codebook=False)[level]
        toward, words = torch.autograd.grad(kept, (z, books), retain_graph=True, allow_unused=True)
        expected = 2 * (found.rests - found.words)[:, level] / found.rests[:, level].numel()
        torch.testing.assert_close(toward, expected.detach()), "each level pulls the encoder"
        assert words is None, "commitment leaves codewords alone"
        toward, words = torch.autograd.grad(found.losses(0.0)[level], (z, books), retain_graph=True, allow_unused=True)
        assert not toward.any(), "the codebook loss leaves the encoder alone"
        used = [bool(part.any()) for part in words]
        assert used == [place == level for place in range(3)]


def test_moving_averages_by_hand_and_in_the_end() -> None:
    books = drawn(1, 3, 2)
    z, code = drawn(20, 2, seed=1), torch.arange(20) % 2  # nobody chooses code 2
    found = Quantised(code[:, None], z[:, None], z[:, None])
    first, average = books.clone(), MovingAverage(books, 0.75)
    average.update(found, books)
    total = torch.stack([z[code == c].sum(0) for c in range(2)])
    expected = (0.75 * first[0, :2] + 0.25 * total) / (0.75 + 0.25 * 10)
    torch.testing.assert_close(books[0, :2], expected)
    torch.testing.assert_close(books[0, 2], first[0, 2])
    for _ in range(200):
        average.update(found, books)
    torch.testing.assert_close(books[0, :2], total / 10)
    torch.testing.assert_close(books[0, 2], first[0, 2])


def test_dead_codes_move_to_what_is_described_worst() -> None:
    z = torch.tensor([[0.0, 0.0], [0.1, 0.0], [9.0, 0.0], [0.0, 5.0]])
    books = torch.zeros(2, 3, 2)
    books[:, 1:] = 99.0
    dead = torch.tensor([[False, True, True], [False, True, False]])
    moved = revive_dead(z, books, dead)
    assert torch.equal(moved, dead)
    assert books[0].tolist() == [[0, 0], [9, 0], [0, 5]]
    assert books[1, 1].tolist() == pytest.approx([0.1, 0]), "the worst of what level 0 now leaves"
    assert books[1, 2].tolist() == [99, 99]


@pytest.mark.parametrize("update", ["gradient", "ema"])
def test_a_collapsed_start_is_revived(update: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rqvae, "residual_kmeans", lambda z, levels, size, *_: torch.full((levels, size, z.shape[1]), 50.0)
    )
    x = torch.from_numpy(matrix(150))
    collapsed, whole = (learned(update=update, revive=revive) for revive in (False, True))
    assert collapsed.facts["revived"] == 0 and len(collapsed.encode(x)[:, 0].unique()) < 3
    assert whole.facts["revived"] >= 7 and all(len(whole.encode(x)[:, k].unique()) == 8 for k in range(3))


@pytest.mark.parametrize(
    "change",
    [
        {"hidden": ()}, {"hidden": (16, 8)}, {"width": 5}, {"commitment": 2.0}, {"update": "ema"}, {"epochs": 5},
        {"batch": 20}, {"lr": 0.02}, {"weight_decay": 0.5}, {"points": 60}, {"levels": 2}, {"size": 9},
    ],
    ids=str,
)  # fmt: skip
def test_every_setting_does_something(change: dict) -> None:
    one, other = learned().codebooks, learned(**change).codebooks
    assert one.shape != other.shape or not torch.equal(one, other)


def test_the_decay_does_something() -> None:
    assert not torch.equal(learned(update="ema").codebooks, learned(update="ema", decay=0.5).codebooks)
    still = learned(update="ema", decay=1.0, epochs=1, revive=False).codebooks
    assert torch.equal(still, learned(update="ema", decay=1.0, epochs=3, revive=False).codebooks)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    learned()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_scale_and_place_of_the_vectors_do_not_matter() -> None:
    x = torch.from_numpy(matrix(150))
    made = RqVae(**SMALL)
    one, other = made.fit(x, 0, silent), made.fit(x * 1024 + 512, 0, silent)
    assert (one.encode(x) == other.encode(x * 1024 + 512)).float().mean() > 0.97
    torch.testing.assert_close(one.decode(one.encode(x)) * 1024 + 512, other.decode(one.encode(x)), atol=9, rtol=0.01)


def test_a_diverged_training_is_said() -> None:
    with refused("loss-not-finite", "rqvae", "learner.lr"):
        learned(lr=1.0, weight_decay=1e9, epochs=30)


def encoding(vector_file: Path, *more: str) -> list:
    source = [s for s in settings(vector_file) if "rounds" not in s]
    quick = ("learner.hidden=[32]", "learner.width=8", "learner.epochs=30", "learner.lr=0.01", "limits.neighbours=0")
    return ["learner=rqvae", *source, *quick, *more]


def test_a_folder_gives_it_back_and_takes_new_items(vector_file: Path, encode: Callable, grow: Callable) -> None:
    made = encode(set=encoding(vector_file, "collisions=extra_digit", "pca=10"))
    x = torch.from_numpy(matrix(200))
    assert made.codebooks.shape == (4, 16, 8) and made.levels == 5
    assert torch.equal(made.quantise(x), made.codes[:, :4]) and not colliding(made.codes).any()
    assert made.manifest["learning"]["epochs"] == 30 and "squared_error" in made.manifest["learning"]["last_epoch"]
    described = made.decode(made.codes)
    assert (x - described).pow(2).sum(1).mean() < 0.6 * variance(x)
    new = grow(made)
    assert torch.equal(new.of(catalog()), made.codes) and new.manifest["grown"]["items"] == 30
    assert all(torch.equal(new.tensors[name], tensor) for name, tensor in made.tensors.items())
    for change in ("hidden=[16]", "hidden=[]", "width=9", "levels=3", "size=8"):
        with refused("codebooks-damaged"):
            made.spec.learner.override(change).restore(made.tensors)
