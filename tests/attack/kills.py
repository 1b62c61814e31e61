"""Kill a verb at a place or at a time, look at what is left, start it again, and compare with what was never killed.

What must hold: at any time its output is the old one or the new one, whole; started again it ends with exactly what an
unkilled one ends with; and then nothing is left that an unkilled one would not have left.
"""

import json
import signal
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fullrank.core.errors import UserError
from fullrank.evaluation import EvaluationResult
from fullrank.run import Run, is_run
from fullrank.run.checkpoint import read_checkpoint
from tests.attack.forks import Child, run
from tests.attack.frame import Outcome, own_folder, shared
from tests.attack.verbs import BY_NAME, Verb, listing, snapshot


@dataclass(frozen=True)
class Unkilled:
    """What a verb does where nobody kills it: its time, its places, the `snapshot` behind it, every path."""

    seconds: float
    places: list[str]
    files: dict[str, str]
    listing: list[str]


@cache
def unkilled(name: str) -> Unkilled:
    """The reference of a verb, made once for all processes."""
    path = shared(f"unkilled-{name}.json", lambda path: path.write_text(json.dumps(_reference(BY_NAME[name]))))
    return Unkilled(**json.loads(path.read_text()))


def _reference(verb: Verb) -> dict[str, Any]:
    """Run twice: once as users do, once while its places are counted; both have to agree."""
    found = []
    for places in (False, True):
        with own_folder() as home:
            done = run(verb.words(), verb.begin(home), places=places)
            assert done.code == 0, f"{verb.name}: {done.code} {done.err[-600:]}"
            found.append((done, snapshot(home, verb.out), listing(home)))
    (first, files, names), (second, again, others) = found
    differing = [name for name in {**files, **again} if files.get(name) != again.get(name)]
    assert not differing, f"two calls of {verb.name} wrote different files: {differing}"
    assert names == others, set(names) ^ set(others)
    return {"seconds": first.seconds, "places": second.places, "files": files, "listing": names}


def killed(verb: Verb, when: float, home: Path, number: int = signal.SIGKILL) -> Outcome:
    """Killed before a place, of which the first is 1; or sent a signal when a share of its time has gone."""
    if when >= 1:
        done = run(verb.words(), verb.begin(home), at=when)
        what = f"killed before {done.places[-1:]}, its place {when}"
    else:
        child, what = Child(verb.words(), verb.begin(home)), f"signal {number} after {when:.0%} of its time"
        done = child.wait(when * unkilled(verb.name).seconds)
        if done.code is None:
            child.signal(number)
            done = child.end()
    if done.hung:
        return Outcome("hang", f"{what}: {done.err[-200:]}")
    if done.code not in (0, -signal.SIGKILL if number == signal.SIGKILL else 128 + number):
        return Outcome("native" if (done.code or 0) < 0 else "bug", f"{what}: exit {done.code}: {done.err[-300:]}")
    fault = fault_of(verb, home)
    return Outcome("loss", f"{what}: {fault}") if fault else started_again(verb, home, what)


def started_again(verb: Verb, home: Path, what: str) -> Outcome:
    """The same verb once more: it has to succeed, with what an unkilled one ends with, and nothing else left."""
    wanted = unkilled(verb.name)
    if verb.once and snapshot(home, verb.out) == wanted.files:
        return Outcome("ok", f"{what}: it had written all")
    done = run(verb.words(again=True), home)
    if done.code != 0:
        return Outcome("loss" if done.code == 2 else "bug", f"{what}; again: exit {done.code}: {done.err[-300:]}")
    files, litter = snapshot(home, verb.out), sorted(set(listing(home)) ^ set(wanted.listing))
    if files != wanted.files:
        names = sorted(n for n in {**files, **wanted.files} if files.get(n) != wanted.files.get(n))
        return Outcome("silent", f"{what}; again: other files than unkilled: {', '.join(names[:8])}")
    return Outcome("noise", f"{what}; again: litter {', '.join(litter[:6])}") if litter else Outcome("ok", what)


def fault_of(verb: Verb, home: Path) -> str | None:
    """What is wrong with what a killed verb left, or None."""
    now, new, before = snapshot(home, verb.out), unkilled(verb.name).files, _old(verb.name)
    if now in (before, new):
        return None
    if verb.kind == "train":
        return _run_left(verb, home)
    if verb.kind == "rows":
        return "a torn table" if "torn" in [v for k, v in now.items() if not k.endswith("metrics.jsonl")] else None
    if verb.kind == "part":
        whole = {name: value for name, value in now.items() if ".part" not in name}
        return None if all(new.get(name) == value for name, value in whole.items()) else f"a half file {whole}"
    if not verb.old and (not now or (verb.marker and f"{verb.out}/{verb.marker}" not in now)):
        return None
    if verb.pair and _refused_as_torn(home / verb.out):
        return None
    states = {name: (now.get(name), before.get(name), new.get(name)) for name in sorted({**before, **new, **now})}
    return f"neither the old output nor the new one (now, old, new: {states})"


def _refused_as_torn(folder: Path) -> bool:
    """Whether rows and figures of two evaluations are told apart."""
    try:
        EvaluationResult.load(folder)
    except UserError as error:
        return error.code == "not-an-evaluation"
    return False


@cache
def _old(name: str) -> dict[str, str]:
    with own_folder() as home:
        return snapshot(BY_NAME[name].begin(home), BY_NAME[name].out)


def _run_left(verb: Verb, home: Path) -> str | None:
    """A run that was there is whole until the new one has a checkpoint; a run cut off can be gone on with."""
    run = home / verb.out
    if not is_run(run):
        return "the run that was there is gone" if verb.old else None
    try:
        opened, checkpoint = Run.open(run), read_checkpoint(run)
        if (run / "weights.safetensors").exists():
            opened.model()
    except UserError as error:
        return f"the run does not open: {error}"
    return "neither the old run nor a new one with a checkpoint" if verb.old and checkpoint is None else None
