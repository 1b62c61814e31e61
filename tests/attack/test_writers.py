"""Two writers of one folder never mix, and a reader beside a writer sees the old output or the new one."""

from __future__ import annotations

from functools import partial

from tests.attack import writers
from tests.attack.frame import Case, Outcome, attacks, check
from tests.attack.verbs import BY_NAME

PLACES = 2
READ = 8


def cases() -> list[Case]:
    found = []
    for one, other in writers.PAIRS:
        name = other.name if other is not one else "itself"
        found += [
            Case("writers", one.name, f"stopped-{n}-of-{PLACES}-beside-{name}",
                 partial(writers.both, one, other, n, PLACES))
            for n in range(PLACES)
        ]  # fmt: skip
        if one is other:
            found.append(Case("writers", one.name, "three-at-once", partial(writers.at_once, one, 3)))
    return found


def reader_cases() -> list[Case]:
    verb = BY_NAME["train-over"]

    def read(nth: int, home: writers.Path) -> Outcome:
        return writers.read_beside(writers.READER, verb, writers.answers_of_all_states(), nth, READ, home)

    return [Case("writers", "recommend", f"while-train-is-at-{n}-of-{READ}", partial(read, n)) for n in range(READ)]


@attacks(cases(), one_in=40)
def test_two_writers_do_not_mix(case: Case) -> None:
    check(case)


@attacks(reader_cases(), one_in=12)
def test_a_reader_gets_the_old_answer_or_the_new_one(case: Case) -> None:
    check(case)
