"""Every base works, and leaves what is there as it is: without --overwrite a verb replaces nothing, and prepared data
stay whole in any case. What a verb writes to is found among its declared options.
"""

from __future__ import annotations

import pytest

from tests.attack.bases import BASES, WRITTEN, Parameter, changed, leaves, located
from tests.attack.frame import command, digest, own_place
from tests.attack.worlds import world

GOES_ON = {"sweep", "tune", "download"}
"""Verbs that are called again to go on with what is at --out: they keep what is finished."""
NEW_ONLY = {"calibrate", "demo", "grow"}
"""Verbs that go into a folder of their own or a new one alone."""
TAKEN = {"already-there", "folder-holds-a-run", "folder-not-empty", "folder-of-others"}
PREPARED = {*TAKEN, "inside-a-store", "same-folder", "not-a-folder"}


def output_of(verb: str, one: Parameter) -> str:
    """A name of the kind that the option takes."""
    base = BASES[verb].options.get(one.name) or ""
    return base if base.startswith("~") else "~made" + ".parquet" * (one.metavar == "FILE")


@pytest.mark.parametrize("verb", [pytest.param(verb, marks=pytest.mark.attack) for verb in leaves()])
def test_bases_work_and_replace_nothing(verb: str) -> None:
    home, out = world().home, next((one for one in leaves()[verb] if one.name == "--out"), None)
    if out is None or not BASES[verb].works:
        with own_place(verb) as place:
            ended = command(*located(changed(verb), home, place), keep=[home])
        assert ended.kind == ("ok" if BASES[verb].works else "refused"), ended
        return
    overwrite = [] if verb in GOES_ON | NEW_ONLY else ["--overwrite"]
    assert bool(overwrite) == ("--overwrite" in {one.name for one in leaves()[verb]})
    with own_place(verb) as place:
        name = output_of(verb, out)
        words = located(changed(verb, out, name), home, place)
        path = place / name[1:]
        if out.metavar == "FILE":
            path.write_text("precious")
            refused = command(*words, keep=[home, place])
            assert refused.code in TAKEN, refused
        ended = command(*words, *overwrite, keep=[home])
        assert ended.kind == "ok" and len(digest(path)), ended
        if verb not in GOES_ON:
            refused = command(*words, keep=[home, place])
            assert refused.code in TAKEN, refused


@pytest.mark.attack
def test_nothing_is_written_into_prepared_data() -> None:
    for verb, parameters in leaves().items():
        for one in (one for one in parameters if one.name[2:] in WRITTEN):
            for value in [f"@store/{output_of(verb, one)[1:]}", *["@store", "@codes"] * (one.metavar == "FOLDER")]:
                with own_place(verb) as place:
                    ended = command(*located(changed(verb, one, value), world().home, place), keep=[world().home])
                unread = one.name == "--cache" and ended.kind == "ok"  # of texts, which the base does not encode
                assert ended.code in PREPARED or unread, (verb, one.name, value, ended)
