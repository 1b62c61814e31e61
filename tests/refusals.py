"""`refused("unknown-column", "user")`: what a test expects of a mistake: its code, and what the sentence has to name.

A sentence may be improved without a change in any test.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from fullrank.core.errors import UserError


@dataclass
class Refusal:
    """The error, once the block has ended."""

    error: UserError | None = None

    def __str__(self) -> str:
        return str(self.error)


@contextmanager
def refused(code: str, *names: object) -> Iterator[Refusal]:
    """The block raises `UserError` with this code, and its sentence names these values (given, allowed)."""
    found = Refusal()
    with pytest.raises(UserError) as caught:
        yield found
    found.error = caught.value
    assert caught.value.code == code, f"code {caught.value.code!r} of: {caught.value}"
    for name in names:
        assert str(name) in str(caught.value), f"{name!r} is not named in: {caught.value}"
