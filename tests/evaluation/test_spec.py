"""Evaluation settings: each has an effect or is refused, in one sentence that says what to do."""

import pytest

from fullrank.evaluation import Evaluation
from refusals import refused


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["protocol=sampled", "popularity=all"], ("setting-without-effect", "popularity=all", "sampled")),
        (["bootstrap=0", "level=0.9"], ("setting-without-effect", "level=0", "9")),
        (["negatives=50"], ("setting-without-effect", "negatives", "full")),
        (["negatives_from=popularity"], ("setting-without-effect", "negatives_from", "full")),
    ],
)
def test_a_setting_without_effect_is_refused(settings: list[str], said: tuple[str, ...]) -> None:
    for order in (settings, settings[::-1]):
        with refused(*said):
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


@pytest.mark.parametrize(
    ("ks", "said"), [("[0]", "ks.0: "), ("[5, 0]", "ks.1: "), ("[2.5]", "ks.0: "), ("[]", "name at least 1 value")]
)
def test_a_wrong_list_of_lengths_is_told_once(ks: str, said: str) -> None:
    with refused("invalid-setting", said, "given: ") as refusal:
        Evaluation().override(f"ks={ks}")
    assert "Tuple" not in str(refusal) and "; " not in str(refusal)


def test_what_training_measures_with_keeps_every_protocol() -> None:
    spec = Evaluation().override("level=0.9", "popularity=all")
    assert spec.for_selection().popularity == "all" and spec.for_selection().bootstrap == 0
