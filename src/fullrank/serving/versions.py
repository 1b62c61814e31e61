"""Versions: the models that a service may answer with, which users each of them answers, swap and rollback.

What answers is one immutable object (`_Routing`), replaced in one assignment: a request takes its model from it once
and keeps it, so no swap loses a request. The version before stays open, for requests in flight and to go back to it.

Which versions answer, with which shares, is a document of the store (kind `versions`, key `active`). Every process
follows it: it opens and warms what the document names in a thread of its own, then swaps. `watching.py` says how a new
run becomes such a document.

    versions = Versions(opener, Watched(base=Path("runs/may"), folder=Path("runs")))
    await versions.start(store)             # opens what answered last, or the base
    model = versions.for_user("ada")        # a ServedModel; costs a microsecond
    versions.follow(document)               # each document of the store's, by whoever polls it
    await versions.activate("june"), await versions.rollback(), await versions.set_split({"may": .9, "june": .1})
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from fullrank.core.checks import check_given
from fullrank.core.errors import UserError, unknown
from fullrank.core.log import logger
from fullrank.serving.canary import RunOnModel, Verdict, here
from fullrank.serving.messages import JsonObject
from fullrank.serving.problems import without_places
from fullrank.serving.split import ActiveVersions, Share, Split
from fullrank.serving.stores import Document, HistoryStore, StoreUnavailable
from fullrank.serving.version_folders import VersionFolder
from fullrank.serving.watching import ACTIVE, KIND, VERDICT, Watched, Watcher

log = logger(__name__)

RETRY = 5.0
"""Seconds between two tries to open what the store says should answer."""
WARM_UP = 4
"""Canaries that a version answers before its first user."""
M = TypeVar("M")


def _told(verdict: Verdict) -> JsonObject:
    """A verdict for whoever asks over HTTP: without folders of this machine."""
    told = verdict.dump()
    told["checks"] = [{**check, "detail": without_places(check["detail"])} for check in told["checks"]]
    return told


class _Routing(Generic[M]):
    """What a request reads: the split, and the model of each name."""

    def __init__(self, state: ActiveVersions, models: Mapping[str, M]):
        self.state, self.models = state, dict(models)
        self.split = Split(state.shares)


class Versions(Generic[M]):
    """The versions of one process. `for_user`, `named`, `active` and `describe` are for any thread; what is awaited and
    `follow` are for the event loop that `start` ran on; all else is for the versions' own thread.
    """

    def __init__(
        self,
        opener: Callable[[Path], M],
        watched: Watched,
        *,
        keep: int = 2,
        poll: float = 1.0,
        run: RunOnModel = here,
        adopt: Callable[[M], None] = lambda model: None,
        changed: Callable[[], None] = lambda: None,
    ):
        """`opener` opens a run, in the versions' thread. `keep`: versions kept open, those that answer included. `run`
        runs a step where models may be asked. `adopt` is called with each opened model on the event loop, before it
        answers anybody, `changed` after each swap.
        """
        self._opener, self._keep, self._poll = opener, keep, poll
        self._run, self._adopt, self._changed = run, adopt, changed
        self.store: HistoryStore
        self.documents: dict[str, dict[str, Any]] = {}
        """Key -> body of the documents of this kind, as this process knows them."""
        self.opened_at: dict[tuple[str, str], float] = {}
        """When the manifests of opened runs came to their place."""
        self.detail: str | None = None
        """What is not as it should be, for readyz; None where all is well."""
        self.watcher = Watcher(self, watched, run)
        self._routing: _Routing[M] | None = None
        self._opened: dict[tuple[str, str], M] = {}  # those that answered longest ago first
        self._sequence = 0  # of the last document `active` that was obeyed
        self._wanted: ActiveVersions | None = None  # what the store says, until it is so
        self._retry_at = 0.0
        self._commands: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop

    async def begin(self, documents: Sequence[Document]) -> None:
        """Open what answered last, as the store's `documents` say, or the base; nothing is written.

        Raises `UserError` where nothing can be opened.
        """
        self._loop = asyncio.get_running_loop()
        for document in documents:
            self._note(document)
        await asyncio.to_thread(self._begin)

    async def start(self, store: HistoryStore) -> None:
        """Begin by the store's documents, where nobody did, and watch."""
        self.store = store
        if self._routing is None:
            await self.begin(await store.documents())
        if self.watcher.folder is not None and ACTIVE not in self.documents:
            await self._publish(self.state)
        self._thread = threading.Thread(target=self._work, name="versions", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """End the thread; models stay as they are for requests in flight."""
        self._stop.set()
        self._commands.put(lambda: None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        while not self._commands.empty():  # who still waits is told so
            self._commands.get()()

    # -- what a request asks

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
        opened = {own: model for (own, _), model in list(self._opened.items()) if own != self.watcher.checking}
        if name not in opened:
            raise unknown("version", name, opened | routing.models)
        return opened[name]

    def models(self) -> list[M]:
        """All that are open: what changes items changes them in each."""
        return list(self._opened.values())

    @property
    def state(self) -> ActiveVersions:
        """Which versions answer."""
        return self._current.state

    def describe(self) -> JsonObject:
        """Plain data for GET /v1/versions."""
        state, watcher = self.state, self.watcher
        return {
            "active": state.first, "split": state.shares,
            "previous": {one.name: one.share for one in state.previous} or None,
            "watching": watcher.folder is not None, "auto_activate": watcher.auto_activate,
            "checking": watcher.checking, "detail": None if self.detail is None else without_places(self.detail),
            "versions": [self._described(folder, state) for _, folder in sorted(dict(watcher.listing).items())],
        }  # fmt: skip

    def _described(self, folder: VersionFolder, state: ActiveVersions) -> JsonObject:
        verdict = self.watcher.verdict(folder)
        if folder.name in state.shares:
            word = "serving"
        elif folder.name == self.watcher.checking:
            word = "checking"
        elif folder.state != "whole":
            word = folder.state
        else:
            word = "unchecked" if verdict is None else "ready" if verdict.ok else "refused"
        return {
            "name": folder.name, "state": word, "share": state.shares.get(folder.name, 0.0),
            "open": any(name == folder.name for name, _ in list(self._opened)),
            "reason": without_places(folder.reason or ("" if verdict is None else verdict.reason)),
            "verdict": None if verdict is None else _told(verdict),
        }  # fmt: skip

    # -- what an administrator asks, on the event loop

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
                f"no version answered before {self.state.first!r}: activate one by its name", code="no-former-version"
            )
        await self._change_and_wait(previous)

    async def set_split(self, shares: Mapping[str, float]) -> None:
        """Divide users between versions, by shares that are scaled to 1; those that are not open are checked first.

        Each share is above 0. Raises `UserError` for unknown or refused versions.
        """
        split, verdicts, total = [], {}, sum(shares.values())
        for name, share in shares.items():
            folder = await asyncio.to_thread(self.watcher.whole, name)
            split.append(Share(name, folder.manifest, share / total))
            if not self._may_answer(split[-1]):
                verdicts[VERDICT + name] = (await self._checked(folder)).dump()
        await self._change_and_wait(tuple(split), verdicts)

    async def check_now(self) -> JsonObject:
        """Look at the watched folder at once; what `describe` says then. Raises `UserError` where none is watched."""
        remedy = "start the service with --watch DIR"
        check_given("a folder to watch", self.watcher.folder, remedy, code="nothing-watched")
        await self._in_thread(self.watcher.scan)
        return self.describe()

    def follow(self, document: Document) -> None:
        """Obey a document of the store, whoever put it. Called on the event loop; never waits."""
        state = self._note(document)
        if state is None:
            return
        self._swap_or_want(state)
        self._commands.put(lambda: None)  # wakes the thread, which opens what is wanted

    async def _checked(self, folder: VersionFolder) -> Verdict:
        verdict: Verdict = await self._in_thread(partial(self.watcher.check, folder))
        if not verdict.ok:
            await self.store.put_documents(KIND, {VERDICT + folder.name: verdict.dump()})
            raise UserError(f"the version {folder.name!r} was refused: {verdict.reason}", code="version-refused")
        return verdict

    # -- state, on the event loop

    @property
    def _current(self) -> _Routing[M]:
        assert self._routing is not None, "start first"
        return self._routing

    def _may_answer(self, share: Share) -> bool:
        return share.key in self._opened and share.name != self.watcher.checking

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
        state = ActiveVersions.read(document.body)
        if state is None:
            log.error("the document of the active versions is none of this service's: it is passed over")
            return None
        return None if self._routing is not None and state == self._routing.state else state

    async def change(self, split: tuple[Share, ...], more: Mapping[str, Any] | None = None) -> None:
        """Publish what answers from now on, then swap. What answers now is what one can go back to.

        What is not open is opened by the thread, which may be the one that waits for this.
        """
        now = self.state
        if split == now.split:
            return
        state = ActiveVersions(split, now.split)
        if await self._publish(state, more):
            self._swap_or_want(state)

    async def _change_and_wait(self, split: tuple[Share, ...], more: Mapping[str, Any] | None = None) -> None:
        await self.change(split, more)
        if self._wanted is not None:
            await self._in_thread(self._catch_up)
        if self._wanted is not None:
            raise UserError(f"the version cannot be opened: {self.detail}", code="version-cannot-be-opened")

    async def _publish(self, state: ActiveVersions, more: Mapping[str, Any] | None = None) -> bool:
        """One write for all processes: the state, and what led to it. False where a later one of another process was
        followed before this returned: that one holds."""
        bodies = {**(more or {}), ACTIVE: asdict(state)}
        sequence = await self.store.put_documents(KIND, bodies)
        holds = sequence >= self._sequence
        later = {} if holds else {ACTIVE: self.documents[ACTIVE]}
        self.documents |= {key: body for key, body in bodies.items() if body is not None} | later
        self._sequence = max(self._sequence, sequence)
        return holds

    def _swap_or_want(self, state: ActiveVersions) -> None:
        if self._is_open(state):
            self._apply(state)
        else:
            self._wanted, self._retry_at = state, 0.0

    def _is_open(self, state: ActiveVersions) -> bool:
        return all(one.key in self._opened for one in state.split)

    def _apply(self, state: ActiveVersions) -> None:
        """The swap: one assignment. Called on the event loop, or before there are requests."""
        before = None if self._routing is None else self._routing.state
        models = {one.name: self._opened[one.key] for one in state.split}
        self._routing = _Routing(state, models)
        self._wanted, self.detail = None, None
        for one in (*state.previous, *state.split):  # the last to answer are the last to be closed
            if one.key in self._opened:
                self._opened[one.key] = self._opened.pop(one.key)
        self._evict()
        if before is None or before.split != state.split:
            told = [f"{name} ({share:.0%})" if share < 1 else name for name, share in state.shares.items()]
            log.info(f"answers come from {', '.join(told)}")
            self._changed()

    def _evict(self) -> None:
        """Let go of versions beyond `keep`, the one that answered longest ago first. Requests in flight hold theirs."""
        split = {one.key for one in self.state.split}
        for key in list(self._opened):
            if len(self._opened) <= max(self._keep, len(split)):
                return
            if key not in split:
                del self._opened[key]

    # -- the thread of its own

    def _work(self) -> None:
        looked = 0.0
        while not self._stop.is_set():
            try:
                self._commands.get(timeout=self._poll)()
            except queue.Empty:
                pass
            try:
                if self._wanted is not None and time.monotonic() >= self._retry_at:
                    self._catch_up()
                watching = self.watcher.folder is not None and not self._stop.is_set()
                if watching and time.monotonic() - looked >= self._poll:
                    self.watcher.scan(self._stop.is_set)
                    looked = time.monotonic()
            except StoreUnavailable as error:
                log.warning(f"versions: {error}")
            except Exception:
                log.exception("versions: the watched folder could not be looked at; it is tried again")

    async def _in_thread(self, step: Callable[[], Any]) -> Any:
        """Run a step in the thread of the versions, one after the other."""
        future: Future[Any] = Future()

        def command() -> None:
            try:
                if self._stop.is_set():
                    raise UserError("the service is being stopped; try again when it is back", code="service-stopping")
                future.set_result(step())
            except BaseException as error:  # whoever asked is told
                future.set_exception(error)

        self._commands.put(command)
        return await asyncio.wrap_future(future)

    def on_loop(self, step: Coroutine[Any, Any, Any]) -> Any:
        """Wait, in the thread, for something of the event loop."""
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(60)

    def _begin(self) -> None:
        """Open what the document says, else what answered before that, else the base, else the newest run."""
        state, errors = ActiveVersions.read(self.documents.get(ACTIVE)), list[str]()
        listing = self.watcher.look()
        for split in () if state is None else (state.split, state.previous):
            if opened := tuple(one for one in split if self._opens(one, errors)):
                total = sum(one.share for one in opened)
                left = tuple(Share(one.name, one.manifest, one.share / total) for one in opened)
                self._apply(state if state is not None and opened == state.split else ActiveVersions(left))
                break
        else:
            first = "" if self.watcher.base is None else self.watcher.base.name
            newest = sorted(listing.values(), key=lambda one: (one.name != first, -one.time))
            whole = (Share(one.name, one.manifest, 1.0) for one in newest if one.state == "whole")
            found = next((one for one in whole if self._opens(one, errors)), None)
            if found is None:
                errors += [f"{one.name}: {one.reason}" for one in newest if one.state != "whole"]
                raise UserError(
                    f"no version can be opened: {'; '.join(errors) or 'there is no run to open'} (what is served is a "
                    "run, a folder that `fullrank train` makes)",
                    code="no-version",
                )
            self._apply(ActiveVersions((found,)))
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
        """Open what the store says should answer, then swap on the event loop; tried again later where it fails."""
        state = self._wanted
        if state is None:
            return
        self._retry_at = time.monotonic() + RETRY
        try:
            for one in state.split:
                self.open_version(one)
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
        found = self._opened.get(share.key)
        if found is not None:
            return found
        folder = self.watcher.whole(share.name)
        if folder.manifest != share.manifest:
            raise UserError(
                f"the folder of the version {share.name!r} holds another run now; copy runs into folders of new names",
                code="version-changed",
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
            ) from error
        self.opened_at[share.key] = folder.time
        if self._routing is None:  # nobody changes items yet
            self._adopt(model)
            self._opened[share.key] = model
        else:
            self.on_loop(self._adopted(share.key, model))
        return model

    async def _adopted(self, key: tuple[str, str], model: M) -> None:
        """On the event loop, so that no item changes between the two."""
        self._adopt(model)
        self._opened[key] = model

    def drop(self, key: tuple[str, str]) -> None:
        """Let go of a version that neither answers nor did before."""
        if key not in {one.key for one in (*self.state.split, *self.state.previous)}:
            self._opened.pop(key, None)
