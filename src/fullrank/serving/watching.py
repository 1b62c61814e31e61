"""Watch a folder for new runs: the check of each, by one process, and what every process knows of it.

A run that came later than those that answer is checked as soon as it is whole: its files, that it opens and answers,
and that it is not worse (`canary.py`). One process claims it by a document of the store and leaves its verdict there,
by the hash of the run's manifest; what was refused is not looked at again until its files change. Runs that were there
before are left alone until somebody activates them by name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fullrank.core.checks import check_given
from fullrank.core.errors import UserError, unknown
from fullrank.core.locks import HOST
from fullrank.core.log import logger
from fullrank.problem import Problem
from fullrank.serving.canary import (
    CanarySettings,
    Check,
    RunOnModel,
    Verdict,
    asked_all,
    check_model,
    check_run_files,
    read_canaries,
    sample_canaries,
)
from fullrank.serving.row_canary import ask_rows, check_predictor, no_rows, read_rows
from fullrank.serving.split import Share
from fullrank.serving.stores import StoreUnavailable
from fullrank.serving.version_folders import VersionFolder, examine, list_versions

if TYPE_CHECKING:
    from fullrank.serving.versions import Versions

log = logger(__name__)

KIND, ACTIVE, VERDICT, CLAIM = "versions", "active", "verdict:", "claim:"
SETTLE = 0.5
"""Seconds between a claim and a look whether it is still the last one."""
CLAIMED = 120.0
"""Seconds after which a claim without a verdict is that of a process that has ended."""


@dataclass(frozen=True)
class Watched:
    """The runs that may answer, and how a new one is checked."""

    base: Path | None = None
    """The run that answers where nothing else is said."""
    folder: Path | None = None
    """The folder in which new runs appear."""
    settings: CanarySettings = CanarySettings()
    canaries: Path | None = None
    """A table of events to check on; else the store's users are taken."""
    auto_activate: bool = True
    problem: Problem = "retrieval"
    """The family of the runs."""


class Watcher:
    """The runs that there are, and what was found of each. Its methods are of the versions' thread."""

    def __init__(self, versions: Versions[Any], watched: Watched, run: RunOnModel):
        base, folder = watched.base, watched.folder
        check_given("a run to serve", base or folder, "name it, or a folder of runs", code="no-version")
        self.problem, self.trial = watched.problem, TRIALS[watched.problem]
        self.versions, self.folder, self.settings = versions, folder, watched.settings
        self.base = None if base is None else Path(os.path.abspath(base))
        if folder is not None and not folder.is_dir():
            raise UserError(
                f"{str(folder)!r}, which is to be watched, is no folder; make it, or name the folder in which new runs "
                "appear",
                code="not-a-folder",
            )
        if self.base is not None and folder is not None and (folder / self.base.name).is_dir():
            if not os.path.samefile(self.base, folder / self.base.name):
                raise UserError(
                    f"{str(self.base)!r} and {str(folder / self.base.name)!r} are two runs of one name; rename "
                    "one, since versions go by it",
                    code="version-name-taken",
                )
        self.auto_activate = watched.auto_activate
        self.listing: dict[str, VersionFolder] = {}
        self.checking: str | None = None
        """The version that is being checked."""
        self._run = run
        self._table = None if watched.canaries is None else self.trial.read(watched.canaries, self.settings)
        self._seen: dict[str, Verdict] = {}  # by identity
        self._me = f"{HOST}-{os.getpid()}-{id(self):x}"

    def look(self) -> dict[str, VersionFolder]:
        """List the watched folder, and the base beside it where that lies elsewhere."""
        listing = {} if self.folder is None else list_versions(self.folder)
        if self.base is not None and self.base.name not in listing:
            listing[self.base.name] = examine(self.base)
        self.listing = listing
        return listing

    def whole(self, name: str) -> VersionFolder:
        """The version of that name. Raises `UserError` for names that no listing gave, and where it is not whole."""
        found = self.look().get(name)
        if found is None:
            raise unknown("version", name, self.listing)
        if found.state != "whole":
            raise UserError(f"the version {name!r} cannot answer: {found.reason}", code="version-not-whole")
        return found

    def scan(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Check what is new, the newest first, and let it answer where it passes."""
        self.look()
        self._forget_gone()
        for folder in sorted(self.listing.values(), key=lambda one: one.time, reverse=True):
            if stopping() or folder.time <= self._newest_serving():
                return
            if folder.state == "whole" and self.verdict(folder) is None and self._claim(folder):
                self._judge(folder)

    def verdict(self, folder: VersionFolder) -> Verdict | None:
        """What was found of a run as it is on the disk now, by this process or another."""
        if not folder.identity:
            return None
        if folder.identity not in self._seen:
            body = self.versions.documents.get(VERDICT + folder.name)
            verdict = None if body is None else Verdict.read(body)
            if verdict is None or verdict.identity != folder.identity:
                return None
            self._seen[folder.identity] = verdict
        return self._seen[folder.identity]

    def check(self, folder: VersionFolder) -> Verdict:
        """All that is asked of a version before it may answer. It is open then, unless it is refused."""
        begun, against = time.perf_counter(), self.versions.state.first
        share = Share(folder.name, folder.manifest, 1.0)
        self.checking = folder.name
        try:
            checks = check_run_files(folder.path, self.problem)
            if all(check.ok for check in checks):
                checks += self._check_open(share)
            spent = round(time.perf_counter() - begun, 3)
            verdict = Verdict(folder.name, against, folder.manifest, folder.identity, tuple(checks), spent, time.time())
            if not verdict.ok:
                self.versions.drop(share.key)
        finally:
            self.checking = None
        self._seen[folder.identity] = verdict
        if verdict.ok:
            log.info(f"the version {folder.name!r} passed its check: {'; '.join(str(check) for check in checks)}")
        else:
            log.error(f"the version {folder.name!r} is refused: {verdict.reason}")
        return verdict

    def canaries(self, most: int | None = None) -> Any:
        """What versions are asked, as `trial` has it; nothing where the store has nobody yet, or is away."""
        if self._table is not None:
            return self._table[:most]
        settings = self.settings if most is None else self.settings.model_copy(update={"requests": most})
        try:
            return self.versions.on_loop(self.trial.sample(self.versions.store, settings))
        except StoreUnavailable as error:
            log.warning(f"no canaries: {error}")
            return []

    def _judge(self, folder: VersionFolder) -> None:
        verdict = self.check(folder)
        body = {VERDICT + folder.name: verdict.dump(), CLAIM + folder.name: None}
        share = Share(folder.name, folder.manifest, 1.0)
        if verdict.ok and self.auto_activate and len(self.versions.state.split) == 1:
            self.versions.on_loop(self.versions.change((share,), body))
            return
        if verdict.ok:
            log.info(f"the version {folder.name!r} may answer: activate it when it should")
        self.versions.on_loop(self.versions.store.put_documents(KIND, body))
        self.versions.drop(share.key)

    def _check_open(self, share: Share) -> list[Check]:
        try:
            model = self.versions.open_version(share)
        except UserError as error:
            return [Check("opens", False, detail=str(error))]
        active, opens = self.versions.active, Check("opens", True)
        try:
            beside = None if active is model else active
            return [opens, *self.trial.check(model, beside, self.canaries(), self.settings, self._run)]
        except Exception as error:  # a model may raise anything; whatever it is, it does not answer
            log.exception(f"the version {share.name!r} fails on canaries")
            return [opens, Check("answers", False, detail=f"it raised {type(error).__name__}: {str(error)[:200]}")]

    def _newest_serving(self) -> float:
        opened_at = self.versions.opened_at
        return max(opened_at.get(one.key, 0.0) for one in self.versions.state.split)

    def _claim(self, folder: VersionFolder) -> bool:
        """Whether this process is the one that checks a run. Two may, where both put their claim at one moment."""
        key, now, store = CLAIM + folder.name, time.time(), self.versions.store
        held = self.versions.documents.get(key, {})
        other = held.get("identity") == folder.identity and held.get("by") != self._me
        if other and held.get("until", 0) > now:
            return False
        body = {"identity": folder.identity, "by": self._me, "until": now + CLAIMED}
        sequence = self.versions.on_loop(store.put_documents(KIND, {key: body}))
        time.sleep(SETTLE)
        last = [
            one for one in self.versions.on_loop(store.documents(sequence - 1)) if (one.kind, one.key) == (KIND, key)
        ]
        if not last or last[-1].body is None:
            return False  # its checker is done
        self.versions.documents[key] = last[-1].body
        return bool(last[-1].body.get("by") == self._me)

    def _forget_gone(self) -> None:
        """Remove the verdicts on runs that are no longer there."""
        names = {*self.listing, *self.versions.state.shares}
        known = [key for key in list(self.versions.documents) if key.startswith(VERDICT)]
        gone = [key for key in known if key.removeprefix(VERDICT) not in names]
        if gone:
            for key in gone:
                self.versions.documents.pop(key, None)
            self.versions.on_loop(self.versions.store.put_documents(KIND, dict.fromkeys(gone)))


@dataclass(frozen=True)
class Trial:
    """Canaries of one family, and what is asked by them."""

    read: Callable[..., Any]
    """(path of a table, settings) -> canaries."""
    sample: Callable[..., Any]
    """(store, settings) -> canaries, awaited."""
    ask: Callable[..., Any]
    """(version, canaries, k, run): have it answer them."""
    check: Callable[..., Any]
    """(version, the one that answers or None, canaries, settings, run) -> checks."""


TRIALS: dict[Problem, Trial] = {
    "retrieval": Trial(read_canaries, sample_canaries, asked_all, check_model),
    "ranking": Trial(read_rows, no_rows, ask_rows, check_predictor),
}
