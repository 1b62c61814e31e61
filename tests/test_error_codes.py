"""Every error has a code that programs can rely on: none of the snapshot goes away."""

import json
import re

import pytest

from error_codes import PASSED_ON, SNAPSHOT, error_codes
from fullrank.core.errors import UserError, unknown
from refusals import refused


def test_codes_are_those_of_the_snapshot():
    now, then = set(error_codes()), set(json.loads(SNAPSHOT.read_text(encoding="utf-8")))
    assert now == then, "meant? write the snapshot anew: python tests/error_codes.py"


def test_every_code_is_a_few_words():
    codes = set(error_codes()) - {PASSED_ON}
    odd = [code for code in codes if not re.fullmatch(r"[a-z0-9{}.]+(-[a-z0-9{}.]+){1,5}", code)]
    assert not odd


def test_a_refusal_is_told_by_its_code_and_what_it_names():
    with refused("unknown-colour", "'rad'", "red") as found:
        raise unknown("colour", "rad", ["red", "green"])
    assert "did you mean 'red'" in str(found)
    with pytest.raises(AssertionError, match="code 'user-error'"):
        with refused("unknown-colour"):
            raise UserError("no")
    with pytest.raises(AssertionError, match="is not named"):
        with refused("unknown-colour", "blue"):
            raise unknown("colour", "rad", ["red"])
