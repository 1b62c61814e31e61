"""Versions: the models that a service may answer with, which users each of them answers, swap, rollback, and new runs.

The models that answer are one immutable object (`_Routing`), replaced in one assignment: a request
takes its model from it once and keeps it, so no swap loses a request. The version before stays
open, for requests in flight and to go back to it.

Which versions answer, with which shares, is a document of the store (kind `versions`, key
`active`). Every process follows it: it opens and warms what the document names in a thread of its
own, then swaps.

A run that comes later than those that answer is checked as soon as it is whole
(`version_checks.py`). One process claims it by a document of the store and leaves its verdict
there, by the hash of the run's manifest; a run that was refused is not looked at again until its
files change. Runs that were there before are left alone until somebody activates them by name.

Users are divided by weighted rendezvous hashing, a pure function of the user's id and the shares:
every version draws a number from (version, user), and the one with the largest share / -ln(number)
has the user. A version gets its share of users, and when shares change nobody moves who need not:
from 90 : 10 to 80 : 20 a ninth of the first version's users go to the second, and none back.

    versions = Versions(opener, Watched(base=Path("runs/may"), folder=Path("runs")), keep=2, ...)
    await versions.begin(await store.documents())  # opens what answered last, or the base
    await versions.start(store)
    model = versions.for_user("ada")        # a ServedModel; costs a microsecond
    versions.follow(document)               # each document of the store's, by whoever polls it
    await versions.activate("june"), await versions.rollback(), await versions.set_split({"may": .9, "june": .1})
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field

from fullrank.core.errors import UserError, unknown
from fullrank.core.locks import HOST
from fullrank.core.log import logger
from fullrank.core.registry import Problem
from fullrank.serving.batcher import stopping
from fullrank.serving.messages import JsonObject
from fullrank.serving.problems import without_paths
from fullrank.serving.stores import Document, HistoryStore, StoreUnavailable
from fullrank.serving.version_checks import (
    TRIALS,
    CanarySettings,
    Check,
    RunOnModel,
    Verdict,
    VersionFolder,
    check_run_files,
    examine,
    list_versions,
    read_body,
)

log = logger(__name__)

KIND, ACTIVE, VERDICT, CLAIM = "versions", "active", "verdict:", "claim:"
LOOK = 1.0
"""Seconds between two looks at the watched folder."""
SETTLE = 0.5
"""Seconds between a claim and a look whether it is still the last one."""
CLAIMED = 120.0
"""Seconds after which a claim without a verdict is that of a process that has ended."""
RETRY = 5.0
"""Seconds between two tries to open the versions that the store says should answer."""
WARM_UP = 4
"""Canaries that a version answers before its first user."""
M = TypeVar("M")
Documents = Mapping[str, JsonObject | None]
"""Key -> body of documents of this kind to put; None removes one."""


@dataclass(frozen=True)
class Share:
    """One version that answers: which run, and for which share of the users."""

    name: str
    manifest: str
    share: Annotated[float, Field(gt=0)] = 1.0

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.manifest


@dataclass(frozen=True)
class ActiveVersions:
    """Which versions answer, and which did before: the document."""

    split: Annotated[tuple[Share, ...], Field(min_length=1)]
    previous: tuple[Share, ...] = ()

    @property
    def shares(self) -> dict[str, float]:
        return {share.name: share.share for share in self.split}

    @property
    def first(self) -> str:
        """The version with the largest share."""
        return max(self.split, key=lambda share: share.share).name


class Split:
    """Versions and their shares, in one object that is replaced whole."""

    def __init__(self, shares: Mapping[str, float]):
        self.shares = dict(sorted(shares.items()))
        self.only = next(iter(self.shares)) if len(self.shares) == 1 else None

    def of(self, user: str | None) -> str:
        """The version of a user; without an id, one drawn by the shares."""
        if self.only is not None:
            return self.only
        if user is None:
            return random.choices(list(self.shares), list(self.shares.values()))[0]
        key = user.encode("utf-8", "surrogatepass")

        def score(name: str) -> float:
            hashed = hashlib.blake2b(f"\0{name}\0".encode() + key, digest_size=8)
            number = (int.from_bytes(hashed.digest(), "big") + 0.5) / 2**64
            return math.inf if number >= 1 else self.shares[name] / -math.log(number)

        return max(self.shares, key=score)


class _Routing(Generic[M]):
    """The snapshot that a request reads: the split, and the model of each name."""

    def __init__(self, state: ActiveVersions, models: Mapping[str, M]):
        self.state, self.models = state, dict(models)
        self.split = Split(state.shares)


class Versions(Generic[M]):
    """The versions of one process. `for_user`, `named`, `active` and `describe` are for any thread;
    what is awaited and `follow` are for the event loop that `begin` ran on; all else is for the
    versions' own thread.
    """

    def __init__(
        self,
        opener: Callable[[Path], M],
        watched: Watched,
        *,
        keep: int,
        run: RunOnModel,
        adopt: Callable[[M], None],
        changed: Callable[[], None],
    ):
        """`opener` opens a run, in the versions' thread. `keep`: versions kept open, those that answer included.
        `run` runs a step where models may be asked. `adopt` is called with each opened model on the
        event loop, before it answers anybody, `changed` after each swap.
        """
        self._opener, self._keep, self._run, self._adopt, self._changed = opener, keep, run, adopt, changed
        self.store: HistoryStore
        self.documents: dict[str, JsonObject] = {}
        """Key -> body of the documents of this kind, as this process knows them."""
        self.opened_at: dict[tuple[str, str], float] = {}
        """When the manifests of opened runs came to their place."""
        self.detail: str | None = None
        """A problem, for readyz; None where all is well."""
        self.watcher = Watcher(self, watched, run)
        self._routing: _Routing[M] | None = None
        self._opened: dict[tuple[str, str], M] = {}  # those that answered longest ago first
        self._sequence = 0  # of the last document `active` that was obeyed
        self._wanted: ActiveVersions | None = None  # the state in the store, until it is in force
        self._retry_at = 0.0
        self._thread = ThreadPoolExecutor(1, "versions")
        self._stop = threading.Event()
        self._watching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop

    async def begin(self, documents: Sequence[Document]) -> None:
        """Open the versions that answered last, as the store's `documents` say, or the base; nothing is written.

        Raises `UserError` where nothing can be opened.
        """
        self._loop = asyncio.get_running_loop()
        for document in documents:
            self._note(document)
        await asyncio.to_thread(self._begin)

    async def start(self, store: HistoryStore) -> None:
        """Watch, and from now on write to the store which versions answer."""
        self.store = store
        if self.watcher.folder is not None and ACTIVE not in self.documents:
            await self._publish(self.state, {})
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """End the thread; models stay as they are for requests in flight."""
        self._stop.set()
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.to_thread(self._thread.shutdown)

    # -- for requests

    @property
    def active(self) -> M:
        """The version with the largest share."""
        routing = self._current
        return routing.models[routing.state.first]

    def for_user(self, user: str | None) -> M:
        """The version that answers a user: the same one while the shares stay as they are. Without an id, any."""
        routing = self._current
        return routing.models[routing.split.of(user)]

    def named(self, name: str) -> M:
        """An open version by its name (a request that asks for one). Raises `UserError` where none has it."""
        routing = self._current
        if name in routing.models:
            return routing.models[name]
        checking = self.watcher.checking
        opened = {version: model for (version, _), model in list(self._opened.items()) if version != checking}
        if name not in opened:
            raise unknown("version", name, opened | routing.models, public=True)
        return opened[name]

    def models(self) -> list[M]:
        """All that are open: a change of items changes each."""
        return list(self._opened.values())

    @property
    def state(self) -> ActiveVersions:
        """Which versions answer."""
        return self._current.state

    def describe(self) -> JsonObject:
        """Plain data for GET /v1/versions."""
        state, watcher, detail = self.state, self.watcher, self.detail
        return {
            "active": state.first,
            "split": state.shares,
            "previous": {share.name: share.share for share in state.previous} or None,
            "watching": watcher.folder is not None,
            "auto_activate": watcher.auto_activate,
            "checking": watcher.checking,
            "detail": detail and without_paths(detail),
            "versions": [self._described(folder, state) for _, folder in sorted(dict(watcher.listing).items())],
        }

    def _described(self, folder: VersionFolder, state: ActiveVersions) -> JsonObject:
        """One version as plain data: its state, its verdict, and its share of users."""
        verdict = self.watcher.verdict(folder)
        record = None if verdict is None else verdict.dump()  # without folders of this machine
        for check in () if record is None else record["checks"]:
            check["detail"] = without_paths(check["detail"])
        if folder.name in state.shares:
            word = "serving"
        elif folder.name == self.watcher.checking:
            word = "checking"
        elif folder.state != "whole":
            word = folder.state
        else:
            word = "unchecked" if verdict is None else "ready" if verdict.ok else "refused"
        return {
            "name": folder.name,
            "state": word,
            "share": state.shares.get(folder.name, 0.0),
            "open": any(name == folder.name for name, _ in list(self._opened)),
            "reason": without_paths(folder.reason or ("" if verdict is None else verdict.reason)),
            "verdict": record,
        }

    # -- for administrators, on the event loop

    async def activate(self, name: str) -> None:
        """Let one version answer everybody, after its check where it is not open.

        Raises `UserError`: `unknown-version`, `version-not-whole`, `version-refused`.
        """
        await self.set_split({name: 1.0})

    async def rollback(self) -> None:
        """Let those answer that did before. They are open still, so this takes milliseconds.

        Raises `UserError` where nothing answered before.
        """
        previous = self.state.previous
        if not previous:
            raise UserError(
                f"no version answered before {self.state.first!r}: activate one by its name",
                code="no-former-version",
                public=True,
            )
        await self._change_and_wait(previous, {})

    async def set_split(self, shares: Mapping[str, float]) -> None:
        """Divide users between versions, by shares that are scaled to 1; those that are not open are checked first.

        Each share is above 0. Raises `UserError` for unknown or refused versions.
        """
        split, verdicts, total = [], {}, sum(shares.values())
        for name, share in shares.items():
            folder = await asyncio.to_thread(self.watcher.whole, name)
            split.append(Share(name, folder.manifest, share / total))
            if split[-1].key not in self._opened or name == self.watcher.checking:
                verdicts[VERDICT + name] = (await self._checked(folder)).dump()
        await self._change_and_wait(tuple(split), verdicts)

    async def check_now(self) -> JsonObject:
        """Look at the watched folder at once; then `describe`. Raises `UserError` where none is watched."""
        if self.watcher.folder is None:
            raise UserError(
                "a folder to watch is missing: start the service with --watch DIR", code="nothing-watched", public=True
            )
        await self._in_thread(self.watcher.scan)
        return self.describe()

    def follow(self, document: Document) -> None:
        """Obey a document of the store, whoever put it. Called on the event loop; never waits."""
        if (state := self._note(document)) is not None:
            self._swap_or_want(state)
            self._thread.submit(self._keep_up)

    async def _checked(self, folder: VersionFolder) -> Verdict:
        verdict: Verdict = await self._in_thread(partial(self.watcher.check, folder))
        if not verdict.ok:
            await self.store.put_documents(KIND, {VERDICT + folder.name: verdict.dump()})
            raise UserError(
                f"the version {folder.name!r} was refused: {verdict.reason}", code="version-refused", public=True
            )
        return verdict

    # -- state, on the event loop

    @property
    def _current(self) -> _Routing[M]:
        assert self._routing is not None, "begin first"
        return self._routing

    def _note(self, document: Document) -> ActiveVersions | None:
        """Remember a document; the state that it asks for, where it is new."""
        if document.kind != KIND:
            return None
        if document.body is None:
            self.documents.pop(document.key, None)
            return None
        self.documents[document.key] = document.body
        if document.key != ACTIVE or document.sequence <= self._sequence:
            return None
        self._sequence = document.sequence
        state = read_body(ActiveVersions, document.body)
        if state is None:
            log.error("the document of the active versions is none of this service's: it is passed over")
        return None if self._routing is not None and state == self._routing.state else state

    async def change(self, split: tuple[Share, ...], more: Documents) -> None:
        """Publish which versions answer from now on, then swap. One can go back to those that answer now.

        A version that is not open is opened by the thread, which may be the one that waits for
        this.
        """
        state = ActiveVersions(split, self.state.split)
        if split != state.previous and await self._publish(state, more):
            self._swap_or_want(state)

    async def _change_and_wait(self, split: tuple[Share, ...], more: Documents) -> None:
        await self.change(split, more)
        if self._wanted is not None:
            await self._in_thread(self._catch_up)
        if self._wanted is not None:
            raise UserError(
                f"the version cannot be opened: {self.detail}", code="version-cannot-be-opened", public=True
            )

    async def _publish(self, state: ActiveVersions, more: Documents) -> bool:
        """Write for all processes the state, and `more` documents that led to it.

        False where a later state of another process was followed before this
        returned: that one holds.
        """
        bodies = {**more, ACTIVE: asdict(state)}
        sequence = await self.store.put_documents(KIND, bodies)
        if holds := sequence >= self._sequence:
            self._sequence = sequence
        else:
            del bodies[ACTIVE]
        self.documents |= {key: body for key, body in bodies.items() if body is not None}
        return holds

    def _swap_or_want(self, state: ActiveVersions) -> None:
        if self._is_open(state):
            self._apply(state)
        else:
            self._wanted, self._retry_at = state, 0.0

    def _is_open(self, state: ActiveVersions) -> bool:
        return all(share.key in self._opened for share in state.split)

    def _apply(self, state: ActiveVersions) -> None:
        """The swap: one assignment. Called on the event loop, or before there are requests."""
        before = None if self._routing is None else self._routing.state
        models = {share.name: self._opened[share.key] for share in state.split}
        self._routing = _Routing(state, models)
        self._wanted, self.detail = None, None
        for share in (*state.previous, *state.split):  # the last to answer are the last to be closed
            if share.key in self._opened:
                self._opened[share.key] = self._opened.pop(share.key)
        self._evict()
        if before is None or before.split != state.split:
            parts = [f"{name} ({share:.0%})" if share < 1 else name for name, share in state.shares.items()]
            log.info(f"answers come from {', '.join(parts)}")
            self._changed()

    def _evict(self) -> None:
        """Let go of versions beyond `keep`, the one that answered longest ago first.
        Requests in flight hold theirs."""
        split = {share.key for share in self.state.split}
        for key in list(self._opened):
            if len(self._opened) <= max(self._keep, len(split)):
                return
            if key not in split:
                del self._opened[key]

    # -- the thread of its own

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            await self._loop.run_in_executor(self._thread, self._look)

    def _look(self) -> None:
        self._keep_up()
        if self.watcher.folder is not None and not self._stop.is_set():
            self._attempt(partial(self.watcher.scan, self._stop.is_set))

    def _keep_up(self) -> None:
        if self._wanted is not None and time.monotonic() >= self._retry_at and not self._stop.is_set():
            self._attempt(self._catch_up)

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except StoreUnavailable as error:
            log.warning(f"versions: {error}")
        except Exception:
            log.exception("versions: the watched folder could not be looked at; it is tried again")

    async def _in_thread(self, step: Callable[[], Any]) -> Any:
        """Run a step in the thread of the versions, one after the other."""

        def unless_stopping() -> Any:
            if self._stop.is_set():
                raise stopping()
            return step()

        return await self._loop.run_in_executor(self._thread, unless_stopping)

    def on_loop(self, step: Coroutine[Any, Any, Any], seconds: float | None = 60) -> Any:
        """Run a step on the event loop and wait for its value in this thread, at most so many `seconds`."""
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(seconds)

    def _begin(self) -> None:
        """Open the versions of the document, else those before them, else
        the base, else the newest run."""
        state, errors = read_body(ActiveVersions, self.documents.get(ACTIVE)), list[str]()
        listing = self.watcher.look()
        newest = sorted(listing.values(), key=lambda folder: (folder.name != self.watcher.base.name, -folder.time))
        splits = [] if state is None else [state.split, state.previous]
        splits += [(Share(folder.name, folder.manifest),) for folder in newest if folder.state == "whole"]
        openable = (tuple(share for share in split if self._opens(share, errors)) for split in splits)
        opened = next(filter(None, openable), None)
        if opened is None:
            errors += [f"{folder.name}: {folder.reason}" for folder in newest if folder.state != "whole"]
            raise UserError(
                f"no version can be opened: {'; '.join(errors) or 'there is no run to open'} (what is served is a "
                "run, a folder that `fullrank train` makes)",
                code="no-version",
            )
        total = sum(share.share for share in opened)
        left = ActiveVersions(tuple(replace(share, share=share.share / total) for share in opened))
        self._apply(state if state is not None and opened == state.split else left)
        for error in errors:
            log.error(f"a version that should answer cannot be opened: {error}")
        if errors and self.watcher.folder is not None:
            self.detail = f"{'; '.join(errors)}; answers come from {self.state.first!r}"
            self._wanted = state

    def _opens(self, share: Share, errors: list[str]) -> bool:
        try:
            self.open_version(share)
            return True
        except UserError as error:
            errors.append(f"{share.name}: {error}")
            return False

    def _catch_up(self) -> None:
        """Open the versions that should answer by the store, then swap on the event loop; where
        that fails, try again later."""
        state = self._wanted
        if state is None:
            return
        self._retry_at = time.monotonic() + RETRY
        try:
            for share in state.split:
                self.open_version(share)
        except UserError as error:
            detail = f"{error}; answers come from {self.state.first!r}"
            if detail != self.detail:
                log.error(f"a version that should answer cannot be opened: {detail}")
            self.detail = detail
            return
        self.on_loop(self._apply_if_wanted(state))

    async def _apply_if_wanted(self, state: ActiveVersions) -> None:
        if self._wanted is state and self._is_open(state):
            self._apply(state)

    def open_version(self, share: Share) -> M:
        """An open version; its run is opened and warmed where it is not yet. Raises `UserError`."""
        opened = self._opened.get(share.key)
        if opened is not None:
            return opened
        folder = self.watcher.whole(share.name)
        if folder.manifest != share.manifest:
            raise UserError(
                f"the folder of the version {share.name!r} holds another run now; copy runs into folders of new names",
                code="version-changed",
                public=True,
            )
        try:
            model = self._opener(folder.path)
            warm = self.watcher.canaries(WARM_UP) if self._routing is not None else []
            self.watcher.trial.ask(model, warm, self.watcher.settings.k, self._run)
        except UserError:
            raise
        except Exception as error:
            if self._routing is None and self.watcher.folder is None:
                raise  # nothing else can answer, so this is no matter of one version among several
            log.exception(f"the version {share.name!r} cannot be opened")
            raise UserError(
                f"the version {share.name!r} cannot be opened ({type(error).__name__})",
                code="version-cannot-be-opened",
                public=True,
            ) from error
        self.opened_at[share.key] = folder.time
        self.on_loop(self._adopted(share.key, model))
        return model

    async def _adopted(self, key: tuple[str, str], model: M) -> None:
        """Bring a version up to date and list it as open: on the event loop, so that no item changes between."""
        self._adopt(model)
        self._opened[key] = model

    def drop(self, key: tuple[str, str]) -> None:
        """Let go of a version that neither answers nor did before."""
        if key not in {share.key for share in (*self.state.split, *self.state.previous)}:
            self._opened.pop(key, None)


@dataclass(frozen=True)
class Watched:
    """The runs that may answer, and how a new one is checked."""

    base: Path
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
    """The runs that there are, and the verdict on each. Its methods are of the versions' thread."""

    def __init__(self, versions: Versions[Any], watched: Watched, run: RunOnModel):
        base, folder = watched.base, watched.folder
        self.problem, self.trial = watched.problem, TRIALS[watched.problem]
        self.versions, self.base, self.folder, self.settings = versions, base, folder, watched.settings
        if folder is not None and not folder.is_dir():
            raise UserError(
                f"{str(folder)!r}, which is to be watched, is no folder; make it, or name the folder in which new runs "
                "appear",
                code="not-a-folder",
            )
        if folder is not None and (folder / base.name).is_dir() and not os.path.samefile(base, folder / base.name):
            raise UserError(
                f"{str(base)!r} and {str(folder / base.name)!r} are two runs of one name; rename one, since versions "
                "go by it",
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
        if self.base.name not in listing:
            listing[self.base.name] = examine(self.base)
        self.listing = listing
        return listing

    def whole(self, name: str) -> VersionFolder:
        """The version of that name. Raises `UserError` for names that no listing
        gave, and where it is not whole."""
        version = self.look().get(name)
        if version is None:
            raise unknown("version", name, self.listing, public=True)
        if version.state != "whole":
            raise UserError(
                f"the version {name!r} cannot answer: {version.reason}", code="version-not-whole", public=True
            )
        return version

    def scan(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Check new runs, the newest first, and let one answer where it passes."""
        self.look()
        self._forget_gone()
        versions = self.versions
        for folder in sorted(self.listing.values(), key=lambda folder: folder.time, reverse=True):
            newest = max(versions.opened_at.get(share.key, 0.0) for share in versions.state.split)
            if stopping() or folder.time <= newest:
                return
            if folder.state == "whole" and self.verdict(folder) is None and self._claim(folder):
                self._judge(folder)

    def verdict(self, folder: VersionFolder) -> Verdict | None:
        """The verdict on a run as it is on the disk now, by this process or another; None without one."""
        if not folder.identity:
            return None
        if folder.identity not in self._seen:
            verdict = read_body(Verdict, self.versions.documents.get(VERDICT + folder.name))
            if verdict is None or verdict.identity != folder.identity:
                return None
            self._seen[folder.identity] = verdict
        return self._seen[folder.identity]

    def check(self, folder: VersionFolder) -> Verdict:
        """Check a version before it may answer. It is open then, unless it is refused."""
        begun, against = time.perf_counter(), self.versions.state.first
        share = Share(folder.name, folder.manifest)
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
        """Canaries as `trial` has them; none where the store has no users yet, or is away."""
        if self._table is not None:
            return self._table[:most]
        settings = self.settings if most is None else self.settings.model_copy(update={"requests": most})
        try:
            return self.versions.on_loop(self.trial.sample(self.versions.store, settings))
        except StoreUnavailable as error:
            log.warning(f"no canaries: {error}")
            return []

    def _judge(self, folder: VersionFolder) -> None:
        """Check a new run and publish the verdict; one that passes answers at once, if
        it may and no split is set."""
        verdict = self.check(folder)
        body = {VERDICT + folder.name: verdict.dump(), CLAIM + folder.name: None}
        share = Share(folder.name, folder.manifest)
        if verdict.ok and self.auto_activate and len(self.versions.state.split) == 1:
            self.versions.on_loop(self.versions.change((share,), body))
            return
        if verdict.ok:
            log.info(f"the version {folder.name!r} may answer: activate it when it should")
        self.versions.on_loop(self.versions.store.put_documents(KIND, body))
        self.versions.drop(share.key)

    def _check_open(self, share: Share) -> list[Check]:
        """The checks that need the version open: that it opens, and those of the canaries."""
        try:
            model = self.versions.open_version(share)
        except UserError as error:
            return [Check("opens", False, detail=str(error))]
        active, opens = self.versions.active, Check("opens", True)
        try:
            answering = None if active is model else active
            return [opens, *self.trial.check(model, answering, self.canaries(), self.settings, self._run)]
        except Exception as error:  # a model may raise anything; then it does not answer
            log.exception(f"the version {share.name!r} fails on canaries")
            return [opens, Check("answers", False, detail=f"it raised {type(error).__name__}: {str(error)[:200]}")]

    def _claim(self, folder: VersionFolder) -> bool:
        """Whether this process is the one that checks a run. Two may, where both
        put their claim at one moment."""
        key, now, store = CLAIM + folder.name, time.time(), self.versions.store
        claim = self.versions.documents.get(key, {})
        other = claim.get("identity") == folder.identity and claim.get("by") != self._me
        if other and claim.get("until", 0) > now:
            return False
        body = {"identity": folder.identity, "by": self._me, "until": now + CLAIMED}
        sequence = self.versions.on_loop(store.put_documents(KIND, {key: body}))
        time.sleep(SETTLE)
        for document in self.versions.on_loop(store.documents(sequence - 1)):
            if (document.kind, document.key) == (KIND, key) and document.body is not None:
                self.versions.documents[key] = document.body
                return bool(document.body.get("by") == self._me)
        return False  # its checker is done

    def _forget_gone(self) -> None:
        """Remove the verdicts on runs that are no longer there."""
        known = {VERDICT + name for name in (*self.listing, *self.versions.state.shares)}
        gone = [key for key in list(self.versions.documents) if key.startswith(VERDICT) and key not in known]
        for key in gone:
            self.versions.documents.pop(key, None)
        if gone:
            self.versions.on_loop(self.versions.store.put_documents(KIND, dict.fromkeys(gone)))
