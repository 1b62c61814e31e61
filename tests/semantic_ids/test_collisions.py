"""Items with the same codes: what each policy makes of them, first and when new items come."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from coded import matrix, silent
from fullrank.semantic_ids import collisions
from fullrank.semantic_ids.collisions import colliding, resolve_collisions, transport
from fullrank.semantic_ids.rq_kmeans import RqKmeans
from refusals import refused

ROWS = 250
POPULAR = np.arange(ROWS) * 7 % 50


@pytest.fixture(scope="module")
def made() -> tuple:
    x = torch.from_numpy(matrix(ROWS))
    quantiser = RqKmeans(levels=2, size=32).fit(x, 0, silent)
    codes = quantiser.encode(x)
    assert colliding(codes).sum() > 40, "the codes collide, or the tests below say nothing"
    return x, codes, quantiser


def apply(policy: str, made: tuple, codes: Tensor | None = None, fixed: Tensor | None = None, sizes=(32, 32)):  # type: ignore[no-untyped-def, type-arg]
    x, first, quantiser = made
    codes = first if codes is None else codes
    return resolve_collisions(
        policy, codes, sizes, POPULAR[: len(codes)], lambda r: quantiser.last(x[r], codes[r]), fixed
    )  # type: ignore[arg-type]


def test_list_changes_nothing(made: tuple) -> None:  # type: ignore[type-arg]
    codes, sizes = apply("list", made)
    assert torch.equal(codes, made[1]) and sizes == (32, 32)


def test_extra_digit_counts_the_items_of_a_tuple(made: tuple) -> None:  # type: ignore[type-arg]
    codes, sizes = apply("extra_digit", made)
    assert torch.equal(codes[:, :2], made[1]) and sizes == (32, 32, 32) and not colliding(codes).any()
    for row in range(ROWS):
        others = [i for i in range(ROWS) if torch.equal(made[1][i], made[1][row])]
        ahead = sorted(others, key=lambda i: (-POPULAR[i], i))
        assert int(codes[row, 2]) == ahead.index(row)


def test_the_extra_level_grows_with_its_largest_tuple() -> None:
    codes = torch.zeros(40, 3, dtype=torch.long)
    found, sizes = resolve_collisions("extra_digit", codes, (16, 16, 16), np.arange(40), lambda rows: rows)
    assert sizes[-1] == 40 and found[:, -1].tolist() == list(range(39, -1, -1))


def test_sinkhorn_separates_by_the_last_code_alone(made: tuple) -> None:  # type: ignore[type-arg]
    x, first, quantiser = made
    codes, sizes = apply("sinkhorn", made)
    assert sizes == (32, 32) and not colliding(codes).any()
    assert torch.equal(codes[:, :-1], first[:, :-1])
    alone = torch.from_numpy(~colliding(first))
    assert torch.equal(codes[alone], first[alone]), "items that share with nobody keep their codes"
    near = (x - quantiser.decode(codes)).pow(2).sum(1).mean()
    blind = first.clone()
    blind[:, -1] = (first[:, -1] + torch.arange(ROWS)) % 32
    assert float(near) < 0.7 * (x - quantiser.decode(blind)).pow(2).sum(1).mean()


def test_sinkhorn_separates_equal_vectors(made: tuple) -> None:  # type: ignore[type-arg]
    x, first, _ = made
    assert torch.equal(x[3], x[30]) and torch.equal(x[3], x[31])
    codes, _ = apply("sinkhorn", made)
    assert len({tuple(codes[row].tolist()) for row in (3, 30, 31)}) == 3


def test_sinkhorn_says_what_it_cannot_separate() -> None:
    codes = torch.zeros(5, 2, dtype=torch.long)
    with refused("too-many-collisions", 4, "collisions=extra_digit"):
        resolve_collisions("sinkhorn", codes, (4, 4), np.zeros(5, np.int64), lambda rows: torch.rand(len(rows), 4))


def test_transport_is_the_cheapest_under_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against every assignment of 4 rows to 4 codes: run to its end, the plan's largest entries are the best of all."""
    monkeypatch.setattr(collisions, "EPSILON", 0.02)
    monkeypatch.setattr(collisions, "ITERATIONS", 5000)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        cost = torch.rand(4, 4, generator=generator)
        best = min(itertools.permutations(range(4)), key=lambda p: sum(float(cost[i, c]) for i, c in enumerate(p)))
        plan = transport(cost).exp()
        assert plan.argmax(1).tolist() == list(best)
        assert plan.sum(0).max() < 1.01


def test_few_rows_go_where_they_are_cheapest() -> None:
    """Exact shares of 256 codes would spread two rows over all of them; a capacity leaves them at their best code."""
    cost = torch.rand(2, 256, generator=torch.Generator().manual_seed(1))
    assert transport(cost).argmax(1).tolist() == cost.argmin(1).tolist()


@pytest.mark.parametrize("policy", ["list", "extra_digit", "sinkhorn"])
def test_new_items_leave_old_codes(policy: str, made: tuple) -> None:  # type: ignore[type-arg]
    x, first, _ = made
    old, sizes = apply(policy, made, first[:150])
    codes, same = apply(policy, made, first, old, sizes if policy == "extra_digit" else (32, 32))
    assert torch.equal(codes[:150], old) and same == sizes
    if policy == "list":
        assert torch.equal(codes, first)
    else:
        assert not colliding(codes).any()
        kept = 1 if policy == "sinkhorn" else 2
        assert torch.equal(codes[:, :kept], first[:, :kept])


def test_a_full_extra_digit_is_refused() -> None:
    old = torch.cat([torch.zeros(4, 2, dtype=torch.long), torch.arange(4)[:, None]], 1)
    codes = torch.zeros(5, 2, dtype=torch.long)
    with refused("extra-digit-full", 5, 4):
        resolve_collisions("extra_digit", codes, (4, 4, 4), np.zeros(5, np.int64), lambda rows: rows, old)
