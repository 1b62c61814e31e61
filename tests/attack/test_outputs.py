"""Every base works, and leaves what is there as it is: without --overwrite a verb replaces nothing, and prepared data
stay whole in any case. What a verb writes to is found among its declared options.
"""

from pathlib import Path
from typing import Any

from tests.attack.bases import BASES, REFUSED, Parameter, changed, leaves, parameter_of
from tests.attack.frame import Outcome, digest, every, own_folder
from tests.attack.test_options import spoken

GOES_ON = {"sweep", "tune", "download"}
"""Verbs that are called again to go on with what is at --out: they keep what is finished."""
RESUMES = {"recommend-parts"}
"""Those that go on with what is missing, or begin anew with --overwrite."""
NEW_ONLY = {"calibrate", "demo", "grow"}
"""Verbs that go into a folder of their own or a new one alone."""
TAKEN = {"already-there", "folder-holds-a-run", "folder-not-empty", "folder-of-others"}
PREPARED = {*TAKEN, "inside-a-store", "same-folder", "not-a-folder"}


def output_of(verb: str, one: Parameter) -> str:
    """A name of the kind that the option takes."""
    words = BASES[verb].split()
    base = words[words.index(one.name) + 1] if one.name in words else ""
    return base if base.startswith("~") else "~made" + ".parquet" * (one.metavar == "FILE")


def ended(words: list[str], folder: Path, *more: Path) -> Outcome:
    """What came of a command line that may change nothing of the world, nor of `more`."""
    return spoken(words, folder, kept=more)


@every(leaves(), ("list", "show", "schema", "keys list", "predict"))
def test_bases_work_and_replace_nothing(verb: str) -> None:
    names = {one.name for one in leaves()[verb]}
    with own_folder() as folder:
        if "--out" not in names or verb in REFUSED:
            outcome = ended(changed(verb), folder)
            assert outcome.kind == ("refused" if verb in REFUSED else "ok"), outcome
            return
        out, overwrite = parameter_of(verb, "--out"), [] if verb in GOES_ON | NEW_ONLY else ["--overwrite"]
        assert bool(overwrite) == ("--overwrite" in names)
        words = changed(verb, out, output_of(verb, out))
        path = folder / output_of(verb, out)[1:]
        if out.metavar == "FILE":
            path.write_text("precious")
            outcome = ended(words, folder, folder)
            assert outcome.code in TAKEN, outcome
        outcome = ended([*words, *overwrite], folder)
        assert outcome.kind == "ok" and len(digest(path)), outcome
        if verb not in GOES_ON | RESUMES:
            outcome = ended(words, folder, folder)
            assert outcome.code in TAKEN, outcome


@every(leaves(), ("schema", "predict"))
def test_nothing_is_written_into_prepared_data(verb: str) -> None:
    for one in (one for one in leaves()[verb] if one.is_written):
        values: Any = [f"@store/{output_of(verb, one)[1:]}", *["@store", "@codes"] * (one.metavar == "FOLDER")]
        for value in values:
            with own_folder() as folder:
                outcome = ended(changed(verb, one, value), folder)
            unread = one.name == "--cache" and outcome.kind == "ok"  # of texts, which the base does not encode
            assert outcome.code in PREPARED or unread, (verb, one.name, value, outcome)
