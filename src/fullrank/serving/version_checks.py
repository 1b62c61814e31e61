"""Checks of versions: the runs below a watched folder, and the check of each before it answers anybody.

A version is a folder directly below the watched one, its name the folder's. Only names that a
listing gave are known, so nothing of a request becomes a path. Links out of the watched folder are
refused. A run that is still copied or trained is waited for: it is whole when its manifest is
sealed and every file that it lists has the size that it says.

A check looks at the files of a run, whether it opens and answers, and whether it is worse. Canaries
of a recommender are histories whose next event is known: users of the history store (their last
event is the target) or a table of events. The new version and the one that answers are asked for
all of them. The new one is refused where an answer is short, not finite or holds what was refused,
and where its hit rate or nDCG is worse: the 95 % interval of the paired difference lies below zero
and the loss is above the tolerance, or less than half is left.

Canaries of a ranking model are rows of a table of impressions (`--canary`); where it has labels,
the log loss of the new version is compared with that of the one that answers, paired by row.
Without a table a row of missing values is asked for.

Events on which the new version was trained flatter it. A worse model may pass on them; a
good one is not refused.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import polars as pl
from jaxtyping import Float
from pydantic import Field, TypeAdapter, ValidationError

from fullrank.core.constraints import MOST_COUNT, MOST_LIST, Share
from fullrank.core.errors import UserError
from fullrank.core.readers import read_bytes
from fullrank.core.registry import Problem
from fullrank.core.spec import Spec
from fullrank.data import manifest as manifests
from fullrank.data import values
from fullrank.data.frames import InputTable
from fullrank.data.impressions.encoding import known_labels, require_fields
from fullrank.evaluation.statistics import bounds, resample
from fullrank.inference.column_filters import kind_of
from fullrank.inference.list_options import ListOptions
from fullrank.metrics import ctr
from fullrank.run import Run
from fullrank.run.manifest import is_sealed
from fullrank.run.verification import verify
from fullrank.serving.prediction import ServedPredictor
from fullrank.serving.requests import Answer, Query
from fullrank.serving.stores import HistoryStore

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
"""Names of versions; others are passed over."""
MOST_NAMES = 10_000
"""Folders that are looked at in a watched folder."""
SETTLED = 60.0
"""Seconds without a change after which a run that is not whole is no copy on its way, but damaged."""


@dataclass(frozen=True)
class VersionFolder:
    """A folder that is a version, or may become one."""

    name: str
    path: Path
    state: Literal["whole", "waiting", "refused"]
    reason: str = ""
    """Why it is not whole."""
    manifest: str = ""
    """SHA-256 of its manifest: which run this is, whatever its folder is called."""
    identity: str = ""
    """The manifest and the sizes and times of the files: what was refused is looked at again when one changes."""
    time: float = 0.0
    """When its manifest came here: not when it was written, which a copy may tell too."""


def list_versions(folder: Path) -> dict[str, VersionFolder]:
    """Name -> version, of every folder below a watched one that may be a version. Empty where it is not there."""
    try:
        with os.scandir(folder) as entries:
            places = [entry for entry in entries if entry.is_dir(follow_symlinks=False) or entry.is_symlink()]
            names = sorted(entry.name for entry in places if NAME.fullmatch(entry.name))
    except OSError:
        return {}
    return {name: examine(folder / name, inside=folder) for name in names[:MOST_NAMES]}


def examine(path: Path, *, inside: Path | None = None) -> VersionFolder:
    """The state of one folder as a version. With `inside`, links that lead out of that folder are refused."""
    name = path.name
    try:
        if inside is not None and path.is_symlink():
            return VersionFolder(name, path, "refused", "it is a link; copy the run into the watched folder")
        if inside is not None and (link := _link_outside(path, inside)):
            return VersionFolder(name, path, "refused", f"its file {link} is a link out of the watched folder")
        file = path / "manifest.json"
        if not path.is_dir():
            return VersionFolder(name, path, "waiting", "there is no such folder")
        if not file.is_file():
            return VersionFolder(name, path, "waiting", "it is no run folder yet (it has no manifest.json)")
        arrived, data = file.stat().st_ctime, read_bytes(file)
        manifest = hashlib.sha256(data).hexdigest()
        entries = sorted((entry.name, entry.stat()) for entry in os.scandir(path))  # names differ, so they decide
        stamp = repr([(name, s.st_size, s.st_mtime_ns) for name, s in entries if stat.S_ISREG(s.st_mode)])
        identity = f"{manifest}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
        changed = max([path.stat().st_mtime, *(s.st_mtime for _, s in entries)])
        missing = _missing(path)
    except (OSError, UserError) as error:
        return VersionFolder(name, path, "waiting", f"it cannot be read yet ({error})")
    damaged = missing != _TRAINING and time.time() - changed > SETTLED  # the check will find the damage
    whole = damaged or not missing
    return VersionFolder(name, path, "whole" if whole else "waiting", missing, manifest, identity, arrived)


_TRAINING = "its training has not ended"


def _missing(path: Path) -> str:
    """The reason why a run is not whole; empty where it is."""
    try:
        tree = manifests.load_manifest(path, manifests.RUN_AGAIN)
        if tree.get("finished") is False:
            return _TRAINING
        files = tree.get("files")
        if isinstance(files, dict):  # older formats list none: opening them finds damage
            checked = {name for name in files if os.path.basename(name) == name or is_sealed(name)}
            manifests.check_files(path, files, checked, set(), manifests.RUN_AGAIN)
    except UserError as error:  # perhaps it is still being copied
        return str(error).removesuffix(f"; {manifests.RUN_AGAIN}").replace(f"{path}{os.sep}", "")
    return ""


def _link_outside(path: Path, inside: Path) -> str | None:
    """The first file of a run that is a link out of the watched folder."""
    root = os.path.realpath(inside)
    for folder, folders, files in os.walk(path):
        for entry in (Path(folder, name) for name in (*folders, *files)):
            if entry.is_symlink() and os.path.commonpath([root, os.path.realpath(entry)]) != root:
                return str(entry.relative_to(path))
    return None


AT_ONCE = 8
"""Canaries of one forward pass: requests of users wait no longer than that for it."""
FEWEST = 20
"""Canaries below which quality is not judged."""
FEWEST_HITS = 10
"""Hits of the version that answers below which half of them is no catastrophe, but chance."""
SAMPLES = 1000
Model = Any
"""A `ServedModel`."""


class CanarySettings(Spec):
    """How a new version is checked."""

    requests: int = Field(200, ge=1, le=MOST_COUNT)
    """Canaries that are asked."""
    k: int = Field(20, ge=1, le=MOST_LIST)
    """Length of their lists."""
    history: int = Field(200, ge=1, le=MOST_LIST)
    """Most events of a canary's history."""
    tolerance: Share = 0.05
    """Relative loss of hit rate and nDCG up to which a version is not refused."""
    remaining: Share = 0.5
    """Share of hit rate below which a version is refused whatever the interval says."""
    known: Share = 0.9
    """Least share of the answering version's items, and of the canaries' events, that a new version knows."""
    recall: Share = 0.98
    """Least recall of its index against exact lists, where it has an index."""


@dataclass(frozen=True)
class Canary:
    """One history, oldest first, and the item that its user chose next; external ids."""

    items: tuple[int | str, ...]
    times: tuple[float, ...]
    target: int | str
    events: tuple[Mapping[str, Any], ...] = ()
    """Features of the events; empty where none are known."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Features of the user and of the event that is the target: a version reads those of its request."""
    time: float | None = None
    """Time of the request that the target answered; None: now."""


@dataclass(frozen=True)
class Check:
    """One check of a version and its outcome."""

    name: str
    ok: bool
    figure: float | None = None
    bound: float | None = None
    detail: str = ""

    def __str__(self) -> str:
        numbers = "" if self.figure is None else f" {self.figure:.4g}"
        limit = "" if self.bound is None else f" (bound {self.bound:.4g})"
        return f"{self.name}{numbers}{limit}{': ' + self.detail if self.detail else ''}"


@dataclass(frozen=True)
class Verdict:
    """Whether a version may answer, and why."""

    version: str
    against: str | None
    """The version that answered then."""
    manifest: str
    identity: str
    checks: tuple[Check, ...]
    seconds: float
    at: float

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def reason(self) -> str:
        """The checks that failed; empty where none did."""
        return "; ".join(str(check) for check in self.checks if not check.ok)

    def dump(self) -> dict[str, Any]:
        """Plain data, for JSON; `read_body` reads it."""
        return {**asdict(self), "ok": self.ok}


def read_body(kind: type[T], body: Any) -> T | None:
    """A document of the store, read as a record of this kind; None where it does not hold one."""
    try:
        return TypeAdapter(kind).validate_python(body)
    except ValidationError:
        return None


RunOnModel = Callable[[Callable[[], Any]], Any]
"""Runs a step where models may be used (`ServedModel.answer` is of the model thread) and returns its value."""


async def sample_canaries(store: HistoryStore, settings: CanarySettings) -> list[Canary]:
    """Canaries of users of the history store; fewer where it has fewer. Raises `StoreUnavailable`."""
    canaries: list[Canary] = []
    for user in await store.sample_users(2 * settings.requests):
        events, known = await store.history(user, settings.history + 1), await store.user(user)
        rows = [event.features or {} for event in events]
        canaries += _canary([event.item for event in events], [event.time for event in events], rows, known or {})
        if len(canaries) == settings.requests:
            break
    return canaries


def read_canaries(path: str | Path, settings: CanarySettings) -> list[Canary]:
    """Canaries of a table with the columns user_id, item_id and timestamp.

    Other columns are features of the events and of their users. Raises `UserError` for another
    table.
    """
    source = InputTable(path, "the canaries")
    columns = ["user_id", "item_id", "timestamp"]
    for name in columns:
        source.require(name, "it needs user_id, item_id and timestamp")
    more = [name for name in source.columns if name not in columns]
    frame = source.read([*columns, *more])
    users, items = (source.ids(frame, name) for name in columns[:2])
    seconds, order = values.in_time(frame["timestamp"], source.name, typed=source.typed)
    table = pl.DataFrame({"user": users, "item": items, "time": seconds, "row": np.arange(len(frame))})
    table = table if order is None else table[order]
    by_user = table.group_by("user", maintain_order=True).agg(pl.all().tail(settings.history + 1))
    rows = by_user.filter(pl.col("item").list.len() > 1)
    if len(rows) > settings.requests:
        rows = rows.sample(settings.requests, seed=0)
    known = frame.select(more)
    canaries: list[Canary] = []
    for items, times, at in rows.select("item", "time", "row").iter_rows():
        canaries += _canary(items, times, known[at].to_dicts() if more else ())
    if not canaries:
        raise UserError(
            f"{source.name} has no user with two events of different items, so nothing can be asked of a new version",
            code="no-canaries",
        )
    return canaries


def check_run_files(path: Path, problem: Problem = "retrieval") -> list[Check]:
    """Whether the files of a run are as they were written, and the run one of the family that is served."""
    try:
        report = verify(path)
        report.require_ok()
        if report.kind != "run":
            return [Check("files", False, detail=f"this is a {report.kind}, and no run")]
        family = Run.open(path).spec.problem
    except UserError as error:
        return [Check("files", False, detail=str(error))]
    lack = "" if family == problem else f"it is of {family}, and what is served is of {problem}"
    return [Check("files", True, len(report.files), detail="; ".join(report.notes)), _without("problem", lack)]


def check_model(
    model: Model, active: Model | None, canaries: Sequence[Canary], settings: CanarySettings, run: RunOnModel
) -> list[Check]:
    """The checks of an opened version, beside the one that answers now (None: none does)."""
    checks = [*_check_catalogue(model, active, canaries, settings), *_check_columns(model, active)]
    if model.recall is not None:
        checks.append(_at_least("recall", float(model.recall), settings.recall))
    if not all(check.ok for check in checks):  # lists of items that are not known say nothing
        return checks
    questions = list(canaries) or _popular_canaries(model if active is None else active)
    answers = ask_all(model, questions, settings.k, run)
    checks.append(_check_answers(answers))
    if checks[-1].ok and canaries and active is not None:
        checks += _check_quality(canaries, answers, ask_all(active, canaries, settings.k, run), settings)
    return checks


@dataclass(frozen=True)
class CanaryAnswer:
    """The answer of a version to one canary."""

    items: tuple[int | str, ...]
    faults: tuple[str, ...]
    """Faults of the list, as words behind "answers are"."""


def ask_all(model: Model, canaries: Sequence[Canary], k: int, run: RunOnModel) -> list[CanaryAnswer]:
    """The answers of a version to all canaries, a few at a time."""
    answers: list[CanaryAnswer] = []
    for first in range(0, len(canaries), AT_ONCE):
        part = canaries[first : first + AT_ONCE]
        answers += run(partial(_ask, model, part, k))
    return answers


def _ask(model: Model, canaries: Sequence[Canary], k: int) -> list[CanaryAnswer]:
    """The answers of a version to a few canaries. Every other request excludes an
    item, to check filters too."""
    live, free, queries = model.items, np.flatnonzero(~np.asarray(model.items.barred)), []
    for number, canary in enumerate(canaries):
        numbers = np.array([live.numbers.get(item) for item in canary.items], np.int64)
        times = np.array(canary.times).astype(np.int64)[numbers >= 0] if model.reads_times else None
        excluded = free[number % len(free) :][:1] if number % 2 and len(free) else free[:0]
        if live.numbers.get(canary.target) in excluded:
            excluded = free[:0]
        query = Query(numbers[numbers >= 0], ListOptions(k=k), times, excluded, time=canary.time)
        query.budget, query.ranked = model.budget, model.ranked
        if model.features is not None:
            features = model.features.read(canary.events, {}, canary.request)
            query.features = features.at(np.flatnonzero(numbers >= 0)[model.features.last].tolist())
        queries.append(query)
    return [_inspect(model, query, answer) for query, answer in zip(queries, model.answer(queries), strict=True)]


def _inspect(model: Model, query: Query, answer: Answer) -> CanaryAnswer:
    """The answer to a canary by external ids, with what is wrong with its list."""
    catalog, out = model.items.catalog, np.array(model.items.barred)
    out[query.items] = out[query.excluded] = True
    ids = np.array(answer.ids, np.int64)
    inside = ids[(ids >= 0) & (ids < catalog.size)]
    sound = len(np.unique(inside)) == len(ids) and not out[inside].any()
    faults = {
        "not finite": len(answer.scores) != len(ids) or not np.isfinite(np.array(answer.scores, float)).all(),
        "short": len(ids) < min(query.k, int((~out).sum())),
        "with refused or repeated items": not sound,
    }
    return CanaryAnswer(tuple(catalog.external(inside).to_list()), tuple(what for what, bad in faults.items() if bad))


def _check_catalogue(
    model: Model, active: Model | None, canaries: Sequence[Canary], settings: CanarySettings
) -> Iterator[Check]:
    """Drift: the share of the items and events of now that the new version knows."""
    now = model.items.catalog
    if active is not None:
        before = active.items.catalog
        were, are = ("text" if catalog.ids.dtype == pl.String else "whole numbers" for catalog in (before, now))
        if were != are:
            yield _without("ids", f"item ids were {were} and are {are}")
            return
        open_ids = before.ids.filter(pl.Series(~np.asarray(active.items.barred)[: before.size]))
        share = float((now.lookup(open_ids) >= 0).mean()) if len(open_ids) else 1.0
        yield _at_least("catalogue", share, settings.known, "items known of those that are shown")
    if canaries:
        known = [model.items.numbers.get(item) >= 0 for canary in canaries for item in canary.items]
        yield _at_least("histories", float(np.mean(known)), settings.known, "events known of the canaries")


def _at_least(name: str, figure: float, bound: float, detail: str = "") -> Check:
    return Check(name, figure >= bound, figure, bound, detail)


def _without(name: str, lack: str) -> Check:
    """A check that is passed where nothing is lacking."""
    return Check(name, not lack, detail=lack)


def _check_columns(model: Model, active: Model | None) -> Iterator[Check]:
    """Schema: columns that filters may name, and the ranker's fields, are still there."""
    if active is None:
        return
    before, now = active.items.catalog.frame.schema, model.items.catalog.frame.schema
    lost = [
        name for name in active.items.catalog.columns if name not in now or kind_of(before[name]) != kind_of(now[name])
    ]
    yield _without("columns", f"lost, or of another type: {', '.join(lost)}" if lost else "")
    fields, theirs = set(active.ranker_fields), set(model.ranker_fields)
    if fields or theirs:
        gone = sorted(fields - theirs)
        yield _without("ranker fields", f"lost: {', '.join(gone)}" if gone else "")


def _check_answers(answers: Sequence[CanaryAnswer]) -> Check:
    count = len(answers)
    if not count:
        return Check("answers", False, 0, 1, "there is nothing to ask it")
    wrong = Counter(fault for answer in answers for fault in answer.faults)
    faults = [f"{bad} of {count} answers are {what}" for what, bad in wrong.items()]
    good = sum(not answer.faults for answer in answers)
    return Check("answers", not faults, good / count, 1.0, "; ".join(faults))


def _check_quality(
    canaries: Sequence[Canary], new: Sequence[CanaryAnswer], old: Sequence[CanaryAnswer], settings: CanarySettings
) -> Iterator[Check]:
    """Hit rate and nDCG of the next events, paired by canary."""
    if len(canaries) < FEWEST:
        yield Check("quality", True, detail=f"not judged: {len(canaries)} canaries, fewer than {FEWEST}")
        return
    after, before = (_gains(canaries, answers) for answers in (new, old))
    enough = before[:, 0].sum() >= FEWEST_HITS
    for name, now, was in zip(("hit", "ndcg"), after.T, before.T, strict=True):
        lost = bool(enough and now.mean() < settings.remaining * was.mean())
        yield _compare(f"loss of {name}@{settings.k}", now, was, settings, sign=1, lost=lost)


def _compare(
    name: str,
    new: Float[np.ndarray, "U"],
    old: Float[np.ndarray, "U"],
    settings: CanarySettings,
    *,
    sign: Literal[1, -1],
    lost: bool = False,
) -> Check:
    """Figures of two versions, paired; more is better, or with the sign -1 less.

    A version that is `lost` never passes.
    """
    was, now = float(old.mean()), float(new.mean())
    upper = bounds(resample(sign * (new - old)[:, None], samples=SAMPLES, seed=0)[:, 0], 0.95)[1]
    loss = sign * (was - now) / was if was > 0 else -sign * now
    worse = upper < 0 and loss > settings.tolerance
    detail = f"{now:.4f}, {was:.4f} of the version that answers; upper end of what is gained {upper:+.4f}"
    return Check(name, not worse and not lost, loss, settings.tolerance, detail)


def _gains(canaries: Sequence[Canary], answers: Sequence[CanaryAnswer]) -> Float[np.ndarray, "U 2"]:
    """Hit, and nDCG with one target, of each canary."""
    gains = np.zeros((len(canaries), 2))
    for gain, canary, answer in zip(gains, canaries, answers, strict=True):
        target, items = str(canary.target), list(map(str, answer.items))
        if target in items:
            gain[:] = 1, 1 / np.log2(items.index(target) + 2)
    return gains


def _canary(
    items: Sequence[int | str],
    times: Sequence[float],
    events: Sequence[Mapping[str, Any]],
    user: Mapping[str, Any] = MappingProxyType({}),
) -> list[Canary]:
    """The last event as the target of those before it; none where it stands among
    them, which no list would show."""
    if len(items) < 2 or items[-1] in items[:-1]:
        return []
    (*before, at), target = map(float, times), events[-1] if events else {}
    return [Canary(tuple(items[:-1]), tuple(before), items[-1], tuple(events[:-1]), {**user, **target}, at)]


def _popular_canaries(model: Model) -> list[Canary]:
    """Histories of popular items, for a store in which nobody has done anything
    yet: whether it answers at all."""
    catalog = model.items.catalog
    rng, now = np.random.default_rng(0), time.time()
    weights = catalog.popularity + 1.0
    length = max(min(5, catalog.size - 1), 1)
    rows = [rng.choice(catalog.size, length, replace=False, p=weights / weights.sum()) for _ in range(2 * AT_ONCE)]
    return [
        Canary(tuple(catalog.external(row).to_list()), tuple(now - 60.0 * n for n in range(length, 0, -1)), "")
        for row in rows
    ]


ROWS_EACH = 50
"""Rows asked for each history that a recommender would be asked for."""
ROWS_AT_ONCE = 1000
"""Rows of one forward pass: requests wait no longer than that for it."""


def read_rows(path: Path, settings: CanarySettings) -> pl.DataFrame:
    """Rows of a table of impressions, drawn at random. Raises `UserError` where it cannot be read."""
    source, most = InputTable(path, "the canaries"), settings.requests * ROWS_EACH
    frame = source.read(source.columns)
    return frame.sample(most, seed=0) if len(frame) > most else frame


async def no_rows(store: HistoryStore, settings: CanarySettings) -> pl.DataFrame:
    """No canaries: the store of a ranking model's service has no rows."""
    return pl.DataFrame()


def ask_rows(
    model: ServedPredictor, rows: pl.DataFrame | Sequence[object], k: int, run: RunOnModel
) -> Float[np.ndarray, "R"]:
    """The probabilities of canaries, a few at a time; of a row of missing values where there are none."""
    table = rows if isinstance(rows, pl.DataFrame) and len(rows) else model.blank
    require_fields(InputTable(table, "the canaries"), model.predictor.encoder.schema)
    return np.concatenate([run(partial(model.probabilities, part)) for part in table.iter_slices(ROWS_AT_ONCE)])


def check_predictor(
    model: ServedPredictor,
    active: ServedPredictor | None,
    rows: pl.DataFrame,
    settings: CanarySettings,
    run: RunOnModel,
) -> list[Check]:
    """The checks of an opened version, beside the one that answers now (None: none does)."""
    checks = [] if active is None else [_check_row_columns(model, active)]
    if checks and not checks[0].ok:
        return checks
    probabilities = ask_rows(model, rows, 1, run)
    bad = int((~np.isfinite(probabilities) | (probabilities < 0) | (probabilities > 1)).sum())
    detail = f"{bad:,} of {len(probabilities):,} answers are no probability" if bad else ""
    checks.append(Check("answers", not bad, 1 - bad / len(probabilities), 1.0, detail))
    if not bad and active is not None and len(rows):
        checks.append(_check_log_loss(active, rows, probabilities, ask_rows(active, rows, 1, run), settings))
    return checks


def _check_row_columns(model: ServedPredictor, active: ServedPredictor) -> Check:
    """The columns are the same: requests give every column of the version
    that answers, and no other."""
    before, now = active.rows.properties, model.rows.properties
    changed = {
        "no longer read": before.keys() - now.keys(),
        "new": now.keys() - before.keys(),
        "of another type": {name for name in before.keys() & now.keys() if before[name] != now[name]},
    }
    changes = [f"{what}: {', '.join(sorted(names))}" for what, names in changed.items() if names]
    return _without("columns", "; ".join(changes))


def _check_log_loss(
    active: ServedPredictor,
    rows: pl.DataFrame,
    new: Float[np.ndarray, "R"],
    old: Float[np.ndarray, "R"],
    settings: CanarySettings,
) -> Check:
    """Log loss, paired by row."""
    schema = active.predictor.encoder.schema
    labels = known_labels(schema, rows, "the canaries")
    if labels is None or len(rows) < FEWEST:
        lack = f"{len(rows)} rows, fewer than {FEWEST}" if labels is not None else f"no labels in {schema.label!r}"
        return Check("quality", True, detail=f"not judged: {lack}")
    before, after = (ctr.losses(predicted, labels.astype(np.float64)) for predicted in (old, new))
    return _compare("rise of log loss", after, before, settings, sign=-1)


@dataclass(frozen=True)
class Trial:
    """The canaries of one family of models, and the checks by them."""

    read: Callable[..., Any]
    """(path of a table, settings) -> canaries."""
    sample: Callable[..., Any]
    """(store, settings) -> canaries, awaited."""
    ask: Callable[..., Any]
    """(version, canaries, k, run): have it answer them."""
    check: Callable[..., Any]
    """(version, the one that answers or None, canaries, settings, run) -> checks."""


TRIALS: dict[Problem, Trial] = {
    "retrieval": Trial(read_canaries, sample_canaries, ask_all, check_model),
    "ranking": Trial(read_rows, no_rows, ask_rows, check_predictor),
}
