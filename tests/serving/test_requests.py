"""Ids as requests give them."""

import pytest

from fullrank.serving.requests import ItemNumbers

LEAST = -(2**63)


@pytest.mark.parametrize(
    "given, number",
    [
        (7, 0), ("7", 0), (" 7 ", 0), ("-7", 1), (str(LEAST), 2), (LEAST, 2),
        # texts that are no numbers, or too large ones, are unknown and no error
        ("--7", -1), ("-", -1), ("", -1), ("+7", -1), ("\u0667", -1), ("\u00b2", -1), ("7.0", -1), (str(2**63), -1),
    ],
)  # fmt: skip
def test_a_number_and_its_text_are_one_id(given: int | str, number: int) -> None:
    numbers = ItemNumbers([7, -7, LEAST])
    assert numbers.get(given) == number
    assert numbers.known([given], 3).tolist() == ([] if number < 0 else [number])
    typed = numbers.typed(given)
    assert isinstance(typed, str) or LEAST <= typed < 2**63, "answers hold 64 bits"


def test_texts_that_look_like_numbers_stay_texts() -> None:
    numbers = ItemNumbers(["7", "07"])
    assert [numbers.get(given) for given in (7, "7", "07", "007")] == [0, 0, 1, -1]
