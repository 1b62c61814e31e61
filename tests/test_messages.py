"""The sentences of errors are those of the snapshot, and every error has a code that programs can rely on."""

import json
import re

import pytest

from fullrank.core.errors import UserError, unknown
from messages import PASSED_ON, SNAPSHOT, sentences
from refusals import refused


def test_the_sentences_are_those_of_the_snapshot():
    now, then = sentences(), json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    assert set(then) <= set(now), f"codes that are gone: {sorted(set(then) - set(now))}"
    assert now == then, "meant? read them once more, then: python tests/messages.py"


def test_every_code_is_a_few_words():
    codes = set(sentences()) - {PASSED_ON}
    odd = [code for code in codes if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9{}.]+){1,5}", code)]
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
