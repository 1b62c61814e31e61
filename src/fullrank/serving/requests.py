"""Ask: one request for a list, read into arrays. Answer: what the model thread gives for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from fullrank.core.errors import UserError
from fullrank.core.jagged import Jagged
from fullrank.inference.list_options import ListChoices
from fullrank.models.sequential.reasoning import AS_TRAINED, Budget
from fullrank.serving.explain import ListExplanation

NONE = np.zeros(0, np.int64)
_WHOLE = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, slots=True)
class Told:
    """The features of one request, as JSON gave them."""

    events: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """A value for each event: of those that a model reads, once they are an `Ask`'s."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Of the user and of the request."""
    lacking: Sequence[str] = ()
    """What the model reads and nobody gave."""

    def beside(self, places: Sequence[int]) -> Told:
        """The same with these events."""
        return replace(self, events={name: [one[place] for place in places] for name, one in self.events.items()})


NOT_TOLD = Told()


@dataclass(slots=True)
class Ask:
    """One request, its items by their numbers in the catalogue of the version that answers."""

    items: Int[np.ndarray, "n"]
    """The history, oldest first, without items that the catalogue does not have."""
    options: ListChoices
    times: Int[np.ndarray, "n"] | None = None
    """Seconds since 1970, for models that read them."""
    excluded: Int[np.ndarray, "_"] = field(default_factory=lambda: NONE)
    allowed: Int[np.ndarray, "_"] | None = None
    """The only items that may be shown; None allows all."""
    budget: Budget = AS_TRAINED
    explain: bool = False
    untimed: bool = False
    """Whether the model reads times and the request had none."""
    ranked: bool = False
    """Whether the ranker puts the candidates in order."""
    user: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """What the ranker reads of the user and of this request."""
    told: Told = NOT_TOLD
    time: float | None = None
    """When it is asked, seconds since 1970; None: now."""

    @property
    def k(self) -> int:
        return self.options.k


@dataclass(slots=True)
class Answer:
    """The list of one request, best first."""

    ids: list[int]
    scores: list[float]
    source: str = "model"
    """`model`, or `popular` where the history holds no item that the model knows."""
    steps: int | None = None
    """Steps that a reasoner took, where it stops by itself."""
    ranked: bool = False
    explanation: ListExplanation | None = None
    """Of a request that asks for one."""


def jagged(rows: Sequence[Int[np.ndarray, "_"]]) -> Jagged:
    """A row of each request."""
    return Jagged.from_lengths(np.concatenate(rows), np.array([len(row) for row in rows], np.int64))


class ItemNumbers:
    """External item ids as they come in JSON -> numbers in the catalogue.

    A number and its text are one id: clients in JavaScript send either. Snapshots of one version share the table of the
    run's items.
    """

    def __init__(self, ids: Sequence[Any]):
        self.ids, self.whole = ids, bool(ids) and isinstance(ids[0], int)
        self._own = {one: number for number, one in enumerate(ids)}
        self._added: dict[Any, int] = {}

    def with_added(self, ids: Sequence[Any]) -> ItemNumbers:
        """The same with other ids behind those of the run."""
        made = copy(self)
        made._added = {one: number for number, one in enumerate(ids, len(self._own))}
        return made

    def get(self, given: int | str) -> int:
        """The number of one id; -1 where it is not known."""
        one = self.typed(given)
        number = self._own.get(one)
        return self._added.get(one, -1) if number is None else number

    def typed(self, given: int | str) -> int | str:
        """An id in the catalogue's type; a text that is no number stays one, and is unknown to a catalogue of
        numbers."""
        if self.whole:
            return whole_number(given) if isinstance(given, str) else given
        return given if isinstance(given, str) else str(given)

    def known(self, given: Sequence[int | str]) -> Int[np.ndarray, "n"]:
        """The numbers of those that are known, in the order given."""
        kind, own, added = int if self.whole else str, self._own.get, self._added.get
        keys = [one if type(one) is kind else self.typed(one) for one in given]  # a request has up to thousands
        found = (number if (number := own(one)) is not None else added(one) for one in keys)
        return np.array([number for number in found if number is not None], np.int64)


def whole_number(text: str) -> int | str:
    """The number that a text is; the text itself where it is none of 64 bits, in ASCII."""
    number = text.strip()
    if len(number) > 20 or not _WHOLE.fullmatch(number):
        return text
    found = int(number)
    return found if -(2**63) <= found < 2**63 else text


def check_most(name: str, given: int, most: int) -> None:
    """Raise `UserError` where a request asks for more than the service gives."""
    if given > most:
        told = f"{name} is {given:,}" if name in ("k", "limit") else f"there are {given:,} {name}"
        raise UserError(f"{told}, and this service takes at most {most:,}", code="too-many", public=True)
