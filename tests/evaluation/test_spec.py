"""Evaluation settings: each has an effect or is refused, in one sentence that says what to do."""

from __future__ import annotations

import pytest

from fullrank.core.errors import UserError
from fullrank.evaluation import Evaluation


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["protocol=sampled", "popularity=all"], "popularity='all' has no effect when protocol is 'sampled'"),
        (["bootstrap=0", "level=0.9"], "level=0.9 has no effect when bootstrap is 0"),
        (["negatives=50"], "negatives has no effect when protocol is 'full'"),
        (["negatives_from=popularity"], "negatives_from has no effect when protocol is 'full'"),
    ],
)
def test_a_setting_without_effect_is_refused(settings: list[str], said: str) -> None:
    for order in (settings, settings[::-1]):
        with pytest.raises(UserError, match=said):
            Evaluation().override(*order)


@pytest.mark.parametrize(
    "settings",
    [
        ["popularity=all"],
        ["level=0.9"],
        ["protocol=sampled", "popularity=train", "negatives=50", "negatives_from=popularity", "level=0.9"],
        ["bootstrap=0", "level=0.95"],
    ],
)
def test_settings_with_an_effect_and_defaults_are_taken(settings: list[str]) -> None:
    assert Evaluation().override(*settings).override() == Evaluation().override(*settings)


def test_what_training_measures_with_keeps_every_protocol() -> None:
    spec = Evaluation().override("level=0.9", "popularity=all")
    assert spec.for_selection().popularity == "all" and spec.for_selection().bootstrap == 0
