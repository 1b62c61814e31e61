"""CL4SRec's views row by row, its contrast pair by pair, and what it refuses."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fullrank.core.random import uniform_draws
from fullrank.models.sequential.regularizers.cl4srec import APART, CL4SRec, augmented, contrast, known
from parts import GRU, Cloze, Softmax, Transformer, model_with
from refusals import refused
from tiny import close, drawn, histories, padded
from twins import same

LENGTHS = (1, 2, 3, 5, 9, 17, 10)
SPECS = (CL4SRec(), CL4SRec(crop=0), CL4SRec(mask=0), CL4SRec(crop=0.01, mask=1, reorder=1), CL4SRec(crop=0, mask=0))


def augmented_reference(batch, spec) -> list:
    """Items and times of every view, one row after the other."""
    width = batch.items.shape[1]
    operators = [name for name in ("crop", "mask", "reorder") if getattr(spec, name)]
    found = []
    for view in range(2):
        for row, length in enumerate(batch.lengths.tolist()):
            draws = uniform_draws(batch.seed + APART, batch.step, batch.rows[row : row + 1], 2 * (width + 2))[0]
            which, where, *each = draws[view::2].tolist()
            items, times = batch.items[row, :length].tolist(), batch.times[row, :length].tolist()
            name = operators[int(which * len(operators))]
            if name == "crop":
                count = max(1, int(spec.crop * length))
                first = int(where * (length - count + 1))
                items, times = items[first : first + count], times[first : first + count]
            elif name == "mask":
                for at in sorted(range(length), key=lambda t, each=each: each[t])[: int(spec.mask * length)]:
                    items[at] = -1
            else:
                count = int(spec.reorder * length)
                first = int(where * (length - count + 1))
                order = sorted(range(first, first + count), key=lambda t, each=each: each[t])
                items = [*items[:first], *(items[t] for t in order), *items[first + count :]]
            found.append((items, times))
    return found


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_views_equal_those_made_row_by_row(spec) -> None:
    seen = set()
    for step in range(20):
        batch = padded(histories(LENGTHS), step=step)
        views = augmented(batch, spec)
        assert views.times is not None and len(views.items) == 2 * len(LENGTHS)
        for row, (items, times) in enumerate(augmented_reference(batch, spec)):
            length = int(views.lengths[row])
            assert views.items[row, :length].tolist() == items and views.times[row, :length].tolist() == times
            seen.add((items == batch.items[row % len(LENGTHS), : len(items)].tolist(), -1 in items, len(items)))
    assert len(seen) >= 8, "one operator alone was drawn"


def test_a_view_is_a_function_of_its_row() -> None:
    """Neither company nor padding changes it."""
    batch = padded(histories(LENGTHS), step=3)
    whole = augmented(batch, CL4SRec())
    one = augmented(batch.select(torch.tensor([4])), CL4SRec())
    for view, row in ((0, 4), (1, 4 + len(LENGTHS))):
        length = int(one.lengths[view])
        assert length == whole.lengths[row] and torch.equal(one.items[view, :length], whole.items[row, :length])


def test_known_leaves_the_target_out() -> None:
    batch = padded(histories([1, 2, 5]))
    found = known(batch)
    assert found.lengths.tolist() == [1, 1, 4] and found.items.shape == (3, 4)
    assert known(padded([[3], [4]])).items.shape == (2, 1)


def contrast_reference(z, users, temperature) -> Tensor:
    rows = len(z) // 2
    found = []
    for i in range(2 * rows):
        partner = (i + rows) % (2 * rows)
        others = [j for j in range(2 * rows) if users[j % rows] != users[i % rows]]
        scores = torch.stack([z[i] @ z[j] / temperature for j in (partner, *others)])
        found.append(scores.logsumexp(0) - scores[0])
    return torch.stack(found).mean()


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
@pytest.mark.parametrize("shared", [False, True])
def test_contrast_equals_its_definition(rows, shared) -> None:
    """Of both views of a row, against both views of the rows of other users."""
    users = torch.arange(rows) // 2 if shared else None
    z = drawn(2 * rows, 5, seed=rows).requires_grad_()
    same(contrast(z, users, 0.7), contrast_reference(z, torch.arange(rows) if users is None else users, 0.7), z)
    assert rows > 1 or contrast(z, users, 0.7) == 0


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"encoder": GRU()},
        {"task": Cloze(), "encoder": Transformer(attention=Softmax(causal=False))},
        {"max_length": 4},
    ],
    ids=["next_item", "gru", "cloze", "short"],
)
def test_trains_beside_any_task(parts) -> None:
    """A history as long as the model reads, a short one, and the vector of a masked item learns."""
    model = model_with(CL4SRec(crop=0), **{"max_length": 9} | parts)
    width = min(model.max_length + ("task" not in parts), 10)
    terms = model(padded(histories([width, 2, width - 1, 3])))
    terms["cl4srec"].backward()
    masked = model.penalties["cl4srec"].masked
    assert terms["cl4srec"] > 0 and isinstance(masked, Tensor) and masked.grad is not None and masked.grad.any()


def test_the_target_is_not_seen() -> None:
    """The last event of each row is predicted, so another one changes nothing."""
    model = model_with(CL4SRec(), max_length=9).eval()
    batch = padded(histories([5, 7, 2]))
    end = torch.arange(batch.items.shape[1]) == batch.lengths[:, None] - 1
    other = replace(batch, items=torch.where(end, (batch.items + 1) % 20, batch.items))
    assert close(model(batch)["cl4srec"], model(other)["cl4srec"])
    earlier = replace(batch, items=torch.where(end.roll(-1, 1), (batch.items + 1) % 20, batch.items))
    assert not close(model(batch)["cl4srec"], model(earlier)["cl4srec"])


def test_refusals() -> None:
    with refused("share-out-of-range", "crop", "mask", "reorder"):
        CL4SRec.parse({"crop": 0, "mask": 0, "reorder": 0})
