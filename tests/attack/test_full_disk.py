"""Every verb that writes finds the disk full, read-only or gone: one sentence, nothing lost or left."""

from __future__ import annotations

from functools import partial

import pytest

from tests.attack import disks
from tests.attack.frame import Case, attacks, check
from tests.attack.verbs import VERBS, Verb

PLACES = 3
MOUNTED = ("small-disk", "read-only")


def cases() -> list[Case]:
    return [Case("full disk", verb.name, name, run) for verb in VERBS for name, run in _of(verb).items()]


def _of(verb: Verb) -> dict[str, partial[disks.Outcome]]:
    return {
        **{f"full-from-{n}": partial(disks.full_from, verb, n, PLACES) for n in range(PLACES)},
        "files-of-half": partial(disks.files_limited, verb, 0.5),
        "folder-removed": partial(disks.folder_removed, verb, 1, 2),
        "few-handles": partial(disks.handles_limited, verb, 14),
        "small-disk": partial(disks.small_disk, verb, 3),
        "read-only": partial(disks.read_only_disk, verb),
    }


@attacks(cases(), one_in=60)
def test_a_disk_without_room_loses_nothing(case: Case) -> None:
    if case.name.startswith(MOUNTED) and (why := disks.mounting()) is not None:
        pytest.skip(f"no tmpfs can be mounted here: {why}")
    check(case)
