"""What penalties need together, and the needs that one step cannot serve."""

from fullrank.models.sequential.regularizers import Needs
from refusals import refused


def test_needs_add_up() -> None:
    both = Needs(columns=True) | Needs(second_view=True, loss_of="first_view")
    assert both == Needs(columns=True, second_view=True, loss_of="first_view")
    assert Needs() | both == both == both | both


def test_captures_are_made_where_modules_have_to_keep_something() -> None:
    assert Needs(second_view=True).captures() is None
    before, after = Needs(columns=True).captures(), Needs(columns_after_dropout=True).captures()
    assert before is not None and before.columns == [] and not before.after_dropout and before.memory is None
    assert after is not None and after.columns == [] and after.after_dropout


def test_needs_that_contradict_each_other_are_refused() -> None:
    with refused("penalties-disagree", "loss_views=first"):
        Needs(loss_of="both_views") | Needs(loss_of="first_view")
    with refused("penalties-disagree", "dropout"):
        Needs(columns=True) | Needs(columns_after_dropout=True)
