"""The functions of `import fullrank as fr`: train, evaluate, recommend, by name or folder; the command line calls them.

One file although it is long: every call that takes a run stands in one place, and all of them read
alike.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack, overload

from pydantic import Field

from fullrank.core.checks import check_given, check_one_way, check_texts, check_type, public, takes, with_defaults
from fullrank.core.device import resolve_device
from fullrank.core.errors import UserError, brief, no_effect
from fullrank.core.files import without_dots
from fullrank.core.log import Progress, quiet, untold
from fullrank.data.column_names import COLUMN_DEFAULTS, USUAL, ColumnKeywords, EventColumns, check_column
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import AnyStore, ImpressionStore, open_store
from fullrank.data.manifest import NAME as MANIFEST
from fullrank.data.manifest import file_hash, is_store
from fullrank.evaluation import (
    EVALUATE,
    Evaluation,
    EvaluationResult,
    OracleCeiling,
    StepCurvePoint,
    accuracy_by_steps,
    oracle_ceilings,
)
from fullrank.evaluation.later_events import LaterEvents, evaluate_later, later_events
from fullrank.inference.features import missing_note
from fullrank.inference.list_options import (
    LIST_DEFAULTS,
    RECOMMEND_DEFAULTS,
    SCORE_DEFAULTS,
    ColumnFilters,
    ListKeywords,
    ListOptions,
    RecommendKeywords,
    ScoreKeywords,
)
from fullrank.inference.list_parts import ModelSource, forget_models
from fullrank.inference.predictor import Predictor
from fullrank.inference.requests import HistoryInput
from fullrank.inference.stored_users import Users
from fullrank.parallel import Runner
from fullrank.parallel.settings import ENGINE_DEFAULTS, EngineKeywords, EngineSettings, runner_of
from fullrank.run import Run, event_store_of, opened_run, require_problem, store_of, store_path
from fullrank.run.experiment import Experiment, find_experiment
from fullrank.run.manifest import ITEMS, MEMBERS, SPEC, WEIGHTS, sealed_files
from fullrank.training import TRAIN_DEFAULTS, WORKERS, TrainKeywords

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from jaxtyping import Float

    from fullrank.analysis.diagnosis import Diagnosis
    from fullrank.analysis.diagnostics.explain import Explanation
    from fullrank.analysis.report.page import Report
    from fullrank.core.log import Tell
    from fullrank.inference.list_parts import ListParts
    from fullrank.inference.predict import PredictionFile
    from fullrank.serving.export.folder import Exported
    from fullrank.sweeps.auto import AutoResult

Split = Literal["validation", "test"]
AnyRun = Run | str | Path
"""A run, or its folder."""
StoreOrPath = AnyStore | str | Path | None
"""A store of events or of impressions, or its folder; None where it is known from the run."""
EventStoreOrPath = Store | str | Path | None


class EvaluateKeywords(ColumnKeywords, EngineKeywords, total=False):
    """Columns of later events, and the engine that measures users in parts."""


class PartKeywords(ListKeywords, EvaluateKeywords, total=False):
    """Options of lists in parts: of the lists, the columns of their histories, and the engine that makes them."""


@public
def recipe(name: str | Path | Experiment, *settings: str) -> Experiment:
    """Build an experiment from a recipe's name, a file or an Experiment, with dotted settings (`"model.dim=128"`)."""
    check_texts("settings", settings, '"model.dim=128"')
    return (name if isinstance(name, Experiment) else find_experiment(name)).override(*settings)


@public
def load(run: AnyRun, *, data: StoreOrPath = None, device: str = "auto") -> Predictor:
    """A trained model, opened once for many calls.

    A recommender has `recommend`, `similar`, `score` and vectors as arrays, a
    ranking model `predict`.

    It needs the run folder alone (a ranking run of format 1 its store too, `data`), and threads may
    share it. What a call does not say (how many steps a reasoner computes, how semantic ids are
    searched) is as in the run's evaluation. `device` is `auto` (CUDA where there is a GPU), `cpu`,
    `cuda`, `cuda:1` or `mps`, here and in every call that runs a model.
    """
    opened = opened_run(run)
    named: Any = {"device": resolve_device(device), "name": str(opened.path)}
    if opened.spec.problem == "ranking":
        encoder = opened.encoder(data)
        return Predictor(opened.model(encoder), encoder, **named)
    if data is not None:
        require_problem(opened, "ranking", "leave data out, its folder is all it needs", code="data-not-needed")
    lists = opened.spec.lists
    return Predictor(opened.model(), opened.catalog, budget=lists.reasoning, decoding=lists.decoding, **named)


@public
@takes(TrainKeywords, TRAIN_DEFAULTS, checked=True)
def train(
    what: str | Path | Experiment | None = None,
    data: StoreOrPath = None,
    out: str | Path | None = None,
    *,
    set: Sequence[str] = (),
    **options: Unpack[TrainKeywords],
) -> Run:
    """Train a recipe (or an Experiment, or a YAML file) on a prepared store; returns the run folder, opened.

    Any Experiment setting can be changed by `set=["training.max_epochs=5", "seed=1"]`. `resume`
    goes on with a run that was cut off: `train(out="runs/mine", resume=True)` takes the experiment
    and the data from its folder, and what is given all the same must agree. `init_from` starts from
    another run's weights (its spec is taken where `what` is left out or "same"). `callbacks` add
    figures to each epoch's row, such as `fullrank.Watch()`. A recipe by its name trains in
    `training.precision=auto` (bf16 where the device multiplies it and the model was measured), an
    experiment that you wrote as it says.

    `checkpoints` is a URL (`s3://bucket/run`, or whatever fsspec writes to) that the run folder is
    copied to at each checkpoint; `resume` goes on from there where the folder is not. `ray` trains
    on a Ray cluster (`auto`, `local`, or HOST:PORT) in `workers` processes of `worker_cpus` CPUs
    each; one that is lost is replaced and training goes on from the last checkpoint, with at least
    `min_workers` where fewer are left.
    """
    from fullrank.training.fit import fit
    from fullrank.training.settled import usual_precision

    check_given("out=", out, "name the folder of the run", code="missing-argument")
    assert out is not None
    folder, how = Path(out), with_defaults(options, TRAIN_DEFAULTS)
    resume, checkpoints, init_from = how["resume"], how["checkpoints"], how["init_from"]
    how["init_from"] = source = None if init_from is None else opened_run(init_from)
    if resume and checkpoints is not None and not (folder / "manifest.json").exists():
        from fullrank.training.mirror import Mirror

        Mirror(checkpoints).restore(folder)  # where the experiment and the data are named
    unfinished = Run.open(folder) if resume and (what is None or data is None) else None
    if unfinished is not None and what is None:
        spec = unfinished.spec.override(*set)
    elif source is not None and (what is None or what == Path("same")):
        spec = source.spec.override(*set)
    else:
        remedy = "name a recipe, an Experiment or a YAML file, or go on with the run in out= by resume=True"
        check_given("what to train", what, remedy, code="missing-argument")
        assert what is not None
        resolve_device(how["device"])  # one that is not there is told first
        spec = recipe(what, *usual_precision(what, folder, resume=resume), *set)
    if data is None:
        remedy = "name the prepared store to train on"
        data = store_path(check_given("data=", unfinished, remedy, code="missing-argument"))
    ray = how.pop("ray")
    workers = {name: count for name in WORKERS if (count := how.pop(name)) is not None}
    if ray is not None:
        from fullrank.training.ray_train import RayWorkers, fit_on_ray

        return fit_on_ray(RayWorkers(ray, **workers), spec, _store(data), folder, **how)
    if workers:
        name, count = next(iter(workers.items()))
        raise no_effect(f"{name}={brief(count)}", "without a Ray cluster", "name it by ray=, or leave it out")
    return fit(spec, _store(data), folder, **how)


@public
def blend(
    runs: Sequence[AnyRun],
    data: EventStoreOrPath = None,
    out: str | Path | None = None,
    *,
    set: Sequence[str] = (),
    device: str = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Join the lists of several runs in one run, whose folder holds them all and which is used as any other.

    Weights are learned on the validation split of `data` (the store of the first run where none is
    named).

    `runs` may be of any recommender, baselines too, and of different stores of the same items.
    `set` changes how lists are joined (`"model.join=ranks"`, `"model.gate=true"`,
    `"model.depth=200"`; what is not said is chosen on validation) and how the blend is evaluated.
    What each member brings stands in the run's `manifest["blend"]`, by weights that were not
    learned from those who are measured. See `fullrank.models.sequential.baselines.blend`.
    """
    from fullrank.training.blending import blend as _blend

    check_type("runs", runs, (list, tuple), "runs, in a list")
    check_given("out=", out, "name the folder of the run", code="missing-argument")
    assert out is not None
    opened = [opened_run(run) for run in runs]
    return _blend(
        opened,
        data if data is None else _event_store(data),
        without_dots(out),
        set,
        device=resolve_device(device),
        overwrite=overwrite,
        progress=progress or untold,
    )


@public
@takes(ColumnKeywords, COLUMN_DEFAULTS)
def auto(
    data: Any,
    out: str | Path,
    *,
    minutes: Annotated[float, Field(gt=0, le=1e5)] = 30,
    items: Any = None,
    seed: Annotated[int, Field(ge=0)] = 0,
    device: str = "auto",
    overwrite: bool = False,
    engine: Runner | None = None,
    tell: Tell | None = None,
    **options: Unpack[ColumnKeywords],
) -> AutoResult:
    """Find the best list for some data within `minutes`: a run in the folder `out`, and the reasons for it.

    `data` is a prepared store, or a table of events (a file or a DataFrame), which is prepared with
    leave-one-out; `items` is then a table of items and `user_col`, `item_col`, `time_col` (None:
    rows are in order) and `time_unit` name its columns. Models that count come first, then recipes
    that read what the data has race on validation, then the best of both are blended. The folder
    `out`-auto keeps all runs; a call that was cut off goes on there. `engine` runs them as that of
    `sweep` does. `tell` is called with what begins and gives what is called with (done, in all).
    See `fullrank.sweeps.auto`.
    """
    from fullrank.data.events.prepare import prepare
    from fullrank.sweeps.auto import auto as _auto
    from fullrank.sweeps.auto import work_folder

    folder, columns = without_dots(out), EventColumns.of(options)
    if isinstance(data, Store | ImpressionStore) or (isinstance(data, str | Path) and is_store(Path(data))):
        if items is not None or columns != EventColumns():
            raise no_effect("items or columns", "on a store, which was prepared with them", "give a table of events")
        store = _event_store(data)
    else:
        names = (*columns.names, None)[:3]  # without times there are two
        keywords = zip(("user_col", "item_col", "time_col"), names, USUAL, strict=True)
        named: dict[str, Any] = {keyword: name for keyword, name, usual in keywords if name != usual}
        named |= {} if columns.unit == "s" else {"time_unit": columns.unit}
        store = prepare(data, work_folder(folder) / "store", items=items, overwrite=True, **named)
    return _auto(
        store, folder, minutes=minutes, seed=seed, device=device, overwrite=overwrite, engine=engine, tell=tell or quiet
    )


@public
@takes(EvaluateKeywords, COLUMN_DEFAULTS | ENGINE_DEFAULTS)
def evaluate(
    run: AnyRun,
    split: Split = "test",
    *,
    data: StoreOrPath = None,
    events: Any = None,
    before: Any = None,
    set: Sequence[str] = (),
    device: str = "auto",
    progress: Progress | None = None,
    **options: Unpack[EvaluateKeywords],
) -> EvaluationResult:
    """Metrics of a run on a split of the store that it was trained on, or on later `events` of the same catalogue.

    `data` names the store where it was moved; it must hold the same split.

    `events` is a file or a DataFrame of what users did afterwards, in the columns `user_col`,
    `item_col` and `time_col` (None: no times). All items that a user chose there are the targets;
    the history is what was known of the user before the first of the events: in the store, which is
    then `data` of any split, or in the table `before`, which needs no store. What was left out and
    what may have leaked is in `.notes` of the result.

    `set` changes the evaluation (`"seen=keep"`, `"ks=[10]"`, `"reasoning.steps=1"`, `"drop=0.2"`);
    what changed is named in the result's protocol. `progress` is called with (users done, users in
    all); of a ranking model, rows.

    With an `engine`, `workers` or `parts` the users of a recommender are measured in parts, as
    `recommend_parts` takes these; metrics are those of one process. Workers need the store on a
    disk that they share.
    """
    engine, columns = EngineSettings.of(options), EventColumns.of(options)
    in_parts, tick = engine != EngineSettings(), progress or untold
    opened = opened_run(run)
    spec = opened.spec.evaluation.override(*set)
    if in_parts and (events is not None or opened.spec.problem == "ranking"):
        what = "events=" if events is not None else "a ranking model"
        raise no_effect("engine, workers or parts", f"on {what}, which is measured in one process")
    if events is not None:
        later = _later_events(opened, split, data, events, before, columns)
        predictor = load(opened, device=device)
        return evaluate_later(predictor.model, later, opened.spec.lists.override(*set), progress=tick)
    if before is not None or columns != EventColumns():
        raise no_effect("before, columns or time_unit", "without events=", "give events, or leave it out")
    if in_parts:
        from fullrank.evaluation.parts import evaluate_parts

        assert isinstance(spec, Evaluation), "a ranking model was refused"
        events_of = event_store_of(opened, data)
        with _workers(opened, engine, device) as (runner, model, predictor):
            return evaluate_parts(
                model, predictor.model, events_of, split, spec, runner=runner, parts=engine.parts, progress=tick
            )
    store = store_of(opened, data)
    predictor = load(opened, data=store if opened.needs_store else None, device=device)
    return EVALUATE[predictor.problem](predictor.model, store, split, spec, progress=tick)


@public
def evaluate_lists(
    lists: Any,
    data: Store | str | Path,
    split: Split = "test",
    *,
    user_col: str | None = None,
    item_col: str | None = None,
    rank_col: str | None = None,
    score_col: str | None = None,
    set: Sequence[str] = (),
) -> EvaluationResult:
    """Metrics of recommendations made elsewhere, on a split of the store `data`, as a run would get them.

    `lists` is a file or a DataFrame with a row for each recommendation: user, item, and a rank (the
    smallest first) or a score (the largest first), in columns of the usual names or those that are
    named. Users without a list count as given an empty one. `set` changes the evaluation as in
    `evaluate`; `fr.compare` pairs the result with that of a run on the same store. See
    `fullrank.evaluation.lists`.
    """
    from fullrank.evaluation.lists import evaluate_lists as _evaluate_lists

    store = _event_store(data)
    names = {"user_col": user_col, "item_col": item_col, "rank_col": rank_col, "score_col": score_col}
    columns = {name: check_column(name, column) for name, column in names.items()}
    return _evaluate_lists(lists, store, split, Evaluation().override(*set), **columns)


@public
def oracle_step(
    run: AnyRun,
    split: Split = "test",
    *,
    data: EventStoreOrPath = None,
    set: Sequence[str] = (),
    device: str = "auto",
    progress: Progress | None = None,
) -> list[OracleCeiling]:
    """Metrics of a run that reasons if every user were stopped at their best step: a ceiling, it reads the truth.

    The arguments are those of `evaluate`; one `OracleCeiling` for each accuracy metric.
    """
    return oracle_ceilings(*_reasoner_of(run, split, data, set, device), progress=progress or untold)


@public
def step_curve(
    run: AnyRun,
    split: Split = "test",
    *,
    data: EventStoreOrPath = None,
    set: Sequence[str] = (),
    metrics: Sequence[str] | None = None,
    rounds: int = 3,
    device: str = "auto",
    progress: Progress | None = None,
) -> list[StepCurvePoint]:
    """Accuracy and seconds per 1,000 users of a run that reasons, by steps, and with adaptive stopping.

    `set=["reasoning.steps=5"]` goes beyond the steps trained; the other arguments
    are those of `evaluate`.
    """
    measured = _reasoner_of(run, split, data, set, device)
    return accuracy_by_steps(*measured, metrics=metrics, rounds=rounds, progress=progress or untold)


@public
def diagnose(
    run: AnyRun,
    split: Split = "test",
    *,
    data: StoreOrPath = None,
    users: Annotated[int, Field(ge=0)] | None = None,
    impressions: Annotated[int, Field(ge=0)] | None = None,
    seed: Annotated[int, Field(ge=0)] = 0,
    vectors: Float[np.ndarray, "V D"] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Diagnosis:
    """Diagnose a run's scores, layers and matrices from inside, on a sample of `users` users of a split.

    Of a ranking model: the effective rank behind each layer, on a sample of `impressions`. `.rows`
    are plain mappings (see `fullrank.analysis.diagnosis`), `.save(path)` writes them as JSONL.
    `vectors` of the items help to tell relevant events from noise. The data is as in `evaluate`;
    `progress` is called with (done, in all).
    """
    from fullrank.analysis.diagnose import diagnose_run

    opened = opened_run(run)
    return diagnose_run(
        opened,
        store_of(opened, data),
        split,
        users=users,
        impressions=impressions,
        seed=seed,
        device=resolve_device(device),
        vectors=vectors,
        progress=progress or untold,
    )


@public
def explain(
    run: AnyRun,
    user: Any = None,
    split: Split = "test",
    *,
    data: EventStoreOrPath = None,
    vectors: Float[np.ndarray, "V D"] | None = None,
    device: str = "auto",
) -> Explanation:
    """Attention of a run to the events of one user's history, and which of them are relevant to the next choice.

    `user` is an external id; without one the same telling user is taken for every run of a store.
    `vectors` of the items help to tell relevant events from noise. Raises `UserError` where the run
    has no attention to show.
    """
    from fullrank.analysis.diagnostics.explain import explain as _explain

    opened = opened_run(run)
    store = event_store_of(opened, data)
    return _explain(load(opened, device=device).model, store, user, split=split, vectors=vectors)


@public
def report(
    runs: Sequence[AnyRun] | AnyRun,
    out: str | Path,
    *,
    data: StoreOrPath = None,
    split: Split = "test",
    users: int | None = None,
    impressions: int | None = None,
    set: Sequence[str] = (),
    evaluations: Mapping[str, Any] | None = None,
    tell: Tell | None = None,
    device: str = "auto",
) -> Report:
    """One HTML page about some runs, all recommenders or all ranking models, written to `out`; no network, no script.

    Evaluations and diagnoses that a run folder holds are taken, the rest is measured (on `users`
    users, or `impressions`); `evaluations` (`EvaluationResult`) are given by the names of the run
    folders, `set` changes how all runs are evaluated. `tell` is called with what begins and gives
    what is called with (done, in all). Needs the extra `report`.
    """
    from fullrank.analysis.report.report import report as _report

    several = (
        [runs] if isinstance(runs, Run | str | Path) else check_type("runs", runs, (list, tuple), "runs, in a list")
    )
    page = _report(
        several,
        data=data,
        split=split,
        users=users,
        impressions=impressions,
        settings=set,
        evaluations=evaluations,
        tell=tell or quiet,
        device=resolve_device(device),
    )
    page.save(out)
    return page


@public
@takes(RecommendKeywords, RECOMMEND_DEFAULTS)
def recommend(
    run: AnyRun,
    histories: HistoryInput | None = None,
    *,
    users: Users | None = None,
    data: EventStoreOrPath = None,
    unknown_users: str = "error",
    device: str = "auto",
    **options: Unpack[RecommendKeywords],
) -> Any:
    """The k best items for each history, or for each of `users`: a long frame (user, item, score, rank, source).

    See `Predictor.recommend`.

    `users` are ids of users of the store `data`: that of the run's training where none is named.
    The run is opened for this one call; who asks again keeps `load(run)`.
    """
    opened = opened_run(run)
    return load(opened, device=device).recommend(
        histories, users=users, data=_store_of_users(opened, users, data), unknown_users=unknown_users, **options
    )


@public
@takes(PartKeywords, ENGINE_DEFAULTS | COLUMN_DEFAULTS | LIST_DEFAULTS)
def recommend_parts(
    run: AnyRun,
    out: str | Path,
    histories: Any = None,
    *,
    data: EventStoreOrPath = None,
    features: Any = None,
    device: str = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Unpack[PartKeywords],
) -> ListParts:
    """The k best items for every user of a store, or of a table of histories, written to the folder `out` in parts.

    Users are those of `data` (the store of the run's training where none is named), or of
    `histories`: Parquet files or a DataFrame, also of Spark, whose events of a user may lie
    anywhere. The other arguments of lists are those of `recommend`; `exclude`, `allow` and
    `filters` are for all users. A call that was cut off goes on with the parts that are missing;
    lists of another call at `out` are refused, or replaced with `overwrite`. Features that a model
    reads are those of the store, or columns of the table, and those of users and requests in
    `features`, Parquet files or a DataFrame with a row for each user. Requests are asked when the
    first call begins, unless it says `asked_at`.

    `engine` is this process (`embedded`, in `workers` processes), `spark` on the session that is
    there or on `master`, or `ray` on the cluster at the address `ray` (`auto`, `local`,
    `HOST:PORT`). Workers need `out` and the store on a disk that they share; the run is sent to
    each of them once. The lists of one number of `parts` are the same on all engines, to the bit.
    See `fullrank.inference.list_parts`. `progress` is called with (parts done, parts in all).
    """
    from fullrank.inference import history_parts, list_parts

    engine, columns, wanted = EngineSettings.of(options), EventColumns.of(options), ListOptions.of(options)
    opened, folder = opened_run(run), without_dots(out)
    check_one_way({"histories": histories, "data=, a store of all users,": data}, code="histories-or-users")
    with _workers(opened, engine, device, table=histories) as (runner, model, predictor):
        barred = list_parts.barred_items(wanted, columns.names[1], predictor.catalog)
        settings, reads = list_parts.options_for_parts(wanted, predictor), predictor.reads
        user_table = None if features is None else history_parts.UserTable.of(features, columns.names[0], reads)
        source: Any
        supplied = () if user_table is None else user_table.supplied
        if histories is None:
            store = event_store_of(opened) if data is None else _event_store(data)
            source = history_parts.StoreParts.of(store, engine.parts, columns, reads, supplied)
        else:
            source = history_parts.HistoryTable.of(histories, engine.parts, columns, reads, supplied)
        if source.lacking:
            warnings.warn(missing_note(source.lacking), stacklevel=2)
        return list_parts.write_list_parts(
            folder,
            source,
            model,
            settings,
            barred,
            catalog=predictor.catalog,
            runner=runner,
            overwrite=overwrite,
            asked_at=int(time.time()) if reads.when else None,
            user_table=user_table,
            progress=progress or untold,
        )


@public
def similar_items(
    run: AnyRun,
    items: Any,
    k: int = 10,
    *,
    exclude: Sequence[Any] | pl.Series | None = None,
    allow: Sequence[Any] | pl.Series | None = None,
    filters: ColumnFilters = None,
    item_table: Any = None,
    titles: bool = False,
    device: str = "auto",
) -> pl.DataFrame:
    """The k items most like each of `items` (an id, or several): item, similar, score, rank. See `Predictor.similar`.

    The score is the cosine of item vectors; of a baseline without vectors, what it counts.
    """
    return load(run, device=device).similar(
        items, k, exclude=exclude, allow=allow, filters=filters, item_table=item_table, titles=titles
    )


@public
def item_vectors(run: AnyRun, *, device: str = "auto") -> pl.DataFrame:
    """The vector of every item: item_id, vector (an array of D numbers); its inner product with a user's is the score.

    Raises `UserError` for a model that does not score by inner products.
    """
    return load(run, device=device).item_vector_table()


@public
@takes(ScoreKeywords, SCORE_DEFAULTS)
def user_vectors(
    run: AnyRun,
    histories: HistoryInput | None = None,
    *,
    users: Users | None = None,
    data: EventStoreOrPath = None,
    unknown_users: str = "error",
    device: str = "auto",
    **options: Unpack[ScoreKeywords],
) -> pl.DataFrame:
    """A vector for each history, or for each of `users`: user, vector; see `item_vectors`.

    Histories with their columns, users and their store are as in `recommend`.
    """
    opened = opened_run(run)
    return load(opened, device=device).user_vector_table(
        histories, users=users, data=_store_of_users(opened, users, data), unknown_users=unknown_users, **options
    )


@public
def predict(
    run: AnyRun,
    impressions: Any,
    *,
    users: Any = None,
    data: StoreOrPath = None,
    column: str = "probability",
    list_separator: str | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Any:
    """The click probability of each impression (a file or a DataFrame), as the new column `column` beside its own.

    Fields that the impressions lack are columns of the table `users`.

    See `Predictor.predict`. The store that the run was trained on is not needed, but by runs of
    format 1 (`data`, where it was moved); a `data` that is another store is a `UserError`.
    """
    return load(run, data=data, device=device).predict(
        impressions, users=users, column=column, list_separator=list_separator, progress=progress
    )


@public
def predict_file(
    run: AnyRun,
    impressions: Any,
    out: str | Path,
    *,
    users: Any = None,
    data: StoreOrPath = None,
    column: str = "probability",
    list_separator: str | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> PredictionFile:
    """Write the probabilities of `predict` to `out` (.parquet, .csv or .jsonl) in the memory of one chunk of rows.

    The file appears whole or not at all. The result says how many rows it has, and the mean
    probability.
    """
    return load(run, data=data, device=device).predict_file(
        impressions, out, users=users, column=column, list_separator=list_separator, progress=progress
    )


@public
def calibrate(
    run: AnyRun,
    out: str | Path,
    *,
    method: Literal["isotonic", "platt"] = "isotonic",
    data: StoreOrPath = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Run:
    """Correct the probabilities of a ranking model on the validation split of its store, in a copy of its run.

    The copy goes into the new folder `out`; `data` names the store where it was moved. The `method`
    is `platt` scaling or `isotonic` regression.

    Whatever predicts, evaluates, serves or exports the new run applies it; the order of impressions
    stays. The test split is never read. See `fullrank.training.calibrate`.
    """
    from fullrank.training.calibrate import calibrate as _calibrate

    return _calibrate(opened_run(run), Path(out), method=method, data=data, device=device, progress=progress)


@overload
def export(run: AnyRun, out: str | Path, *, to: Literal["folder"], logs: bool = False) -> Run: ...


@overload
def export(
    run: AnyRun,
    out: str | Path,
    *,
    to: Literal["onnx", "torch", "faiss"] = "onnx",
    k: int | None = None,
    seen: str | None = None,
    int8: bool = False,
    data: StoreOrPath = None,
) -> Exported: ...


@overload
def export(
    run: AnyRun,
    out: str | Path,
    *,
    to: str,
    k: int | None = None,
    seen: str | None = None,
    int8: bool = False,
    data: StoreOrPath = None,
    logs: bool = False,
) -> Exported | Run: ...


@public
def export(
    run: AnyRun,
    out: str | Path,
    *,
    to: str = "onnx",
    k: int | None = None,
    seen: str | None = None,
    int8: bool = False,
    data: StoreOrPath = None,
    logs: bool = False,
) -> Exported | Run:
    """Export a run: an ONNX graph, a torch program, an index of item vectors (`to="faiss"`), or a folder to ship.

    With `to="folder"` it is a run without checkpoints, for `load` and `fullrank serve` on any
    machine. An export for ONNX, torch or faiss can be used without this library. The graph of a
    recommender lists the `k` best items (100), and hides those of the history unless `seen="keep"`;
    it is kept only where it answers as the run does. `int8` stores the vectors of faiss in 8 bits
    and measures their recall on the store's users (`data`, where it was moved). `logs` keeps
    metrics.jsonl in a folder. Needs the extra `export`, but for a folder; faiss is in `codes`.
    """
    from fullrank.serving.export.make import export_run

    return export_run(opened_run(run), Path(out), to=to, k=k, seen=seen, int8=int8, data=data, logs=logs)


def _later_events(run: Run, split: str, data: Any, events: Any, before: Any, columns: EventColumns) -> LaterEvents:
    """The users of a period, with their histories before it.

    Raises `UserError` for a ranking model, for a split beside events, and where there is nothing to
    take histories from, or two things.
    """
    require_problem(run, "retrieval", "leave events out", code="option-of-other-problem")
    if split != "test":
        raise UserError("split has no effect on events, which are all measured: leave it out", code="given-twice")
    check_one_way({"data=": data, "before=": before}, code="given-twice")
    try:
        trained = event_store_of(run)
    except UserError:  # it was moved or deleted, which a store of histories or a table makes up for
        trained = None
    store = trained if data is None else _event_store(data)
    earlier = check_given(
        f"the store that {run.path} was trained on",
        store if before is None else before,
        "name it by data=, or give the events before the period by before=",
        code="missing-store",
    )
    if store is not None and store.fingerprint == run.manifest["data"]["split_fingerprint"]:
        trained = store
    return later_events(events, run.catalog, earlier, columns=columns, trained=trained)


def _reasoner_of(
    run: AnyRun, split: Split, data: EventStoreOrPath, settings: Sequence[str], device: str
) -> tuple[Any, Store, Split, Evaluation]:
    """The model of a run, a store and its split, and how it is evaluated, for the
    studies of reasoning steps."""
    opened = opened_run(run)
    spec, store = opened.spec.lists.override(*settings), event_store_of(opened, data)
    return load(opened, device=device).model, store, split, spec


def _store_of_users(run: Run, users: Any, data: EventStoreOrPath) -> EventStoreOrPath:
    """The store that users are looked up in: `data`, or the run's own where
    there are users and no `data`."""
    return event_store_of(run) if users is not None and data is None else data


@contextmanager
def _workers(
    run: Run, settings: EngineSettings, device: str, *, table: Any = None
) -> Iterator[tuple[Runner, ModelSource, Predictor]]:
    """The runner of a block, a recommender for its workers, and the same opened here.

    Workers know the model by the hash of its spec, items and weights. The device has to be here
    only if this process works itself.
    """
    _ = run.spec.lists  # refuses a ranking model
    with runner_of(settings, table=table, device=device) as runner:
        files = (SPEC, ITEMS, WEIGHTS, *(name for name in sealed_files(run.path) if name.startswith(f"{MEMBERS}/")))
        hashes = "".join(file_hash(run.path / name) for name in files)
        identity = hashlib.sha256(hashes.encode()).hexdigest()
        model = ModelSource(str(run.path.absolute()), identity, device, _loaded_on, files=partial(_run_files, run))
        try:
            yield runner, model, (replace(model, device="cpu") if runner.remote else model).open()
        finally:
            forget_models()


def _loaded_on(folder: Path, device: str) -> Predictor:
    return load(folder, device=device)


def _run_files(run: Run) -> dict[str, bytes]:
    """The files of a run folder that a model is opened from."""
    read = {name: run.file(name).read_bytes() for name in sealed_files(run.path)}
    return {MANIFEST: (run.path / MANIFEST).read_bytes(), **read}


def _event_store(data: AnyStore | str | Path) -> Store:
    """A store of events, opened. Raises `UserError` for one of impressions."""
    store = _store(data)
    if not isinstance(store, Store):
        raise UserError(
            f"{store.path} holds impressions: give a store of events, which `fullrank prepare` makes",
            code="store-of-other-problem",
        )
    return store


def _store(data: AnyStore | str | Path) -> AnyStore:
    return data if isinstance(data, Store | ImpressionStore) else open_store(data)
