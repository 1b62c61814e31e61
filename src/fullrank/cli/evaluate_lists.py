"""`fullrank evaluate-lists`: recommendations made elsewhere, alone or beside a run, on the same users."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fullrank.cli.evaluate_runs import (
    Call,
    EveryMetric,
    Measuring,
    check_saved,
    compared,
    measured,
    names_metrics,
    with_metrics,
    with_paired,
)
from fullrank.cli.option_groups import ItemCol, UserCol, column_names
from fullrank.cli.options import argument, option
from fullrank.cli.print_evaluation import print_pair, print_single
from fullrank.cli.told_early import check_runs, check_store
from fullrank.core.files import jsonable

if TYPE_CHECKING:
    from fullrank.evaluation import Evaluation

SHARED = ("ks", "metrics", "seen", "popularity", "empty", "diversity_by", "slices", "bootstrap", "level", "seed")
"""Settings of a run's evaluation that lists are measured by too."""
OF_ANSWERS = ("reasoning", "decoding", "popularity_discount")
"""Settings of how a model makes its lists."""


@dataclass(frozen=True)
class MeasuringLists(Measuring):
    """Options of a verb that measures lists."""

    data: Annotated[
        Path | None,
        option("--data", "STORE", "The store of the users.  [default: that of RUN]", callback=check_store),
    ] = None


def evaluate_lists(
    lists: Annotated[Path, argument("FILE", "Recommendations: user, item and rank or score.")],
    how: MeasuringLists,
    run: Annotated[
        Path | None,
        argument("RUN", "A run: print the paired difference FILE - RUN.", callback=check_runs),
    ] = None,
    user_col: UserCol = None,
    item_col: ItemCol = None,
    rank_col: Annotated[str | None, option("--rank-col", "NAME", "Rank column of FILE.  [default: rank]")] = None,
    score_col: Annotated[str | None, option("--score-col", "NAME", "Score column, where FILE has no ranks.")] = None,
    every: EveryMetric = False,
) -> None:
    """Measure lists made elsewhere, also beside a run.

    They are measured on the users of a store (--data), or beside a RUN on those of its store, paired. --set changes how
    metrics are computed, as in `fullrank evaluate`.

    \b
    fullrank evaluate-lists recommendations.csv --data data/shop
    fullrank evaluate-lists recommendations.csv runs/sasrec --metric ndcg@10
    """
    from fullrank.core.checks import check_given

    remedy = "name the store on whose users lists are measured, or a RUN"
    check_given("--data", how.data if run is None else run, remedy, code="missing-store")
    from fullrank import api
    from fullrank.run import require_problem, store_path

    columns = column_names(user_col=user_col, item_col=item_col, rank_col=rank_col, score_col=score_col)
    call = replace(Call.of(how, {}, run), whole=every)
    runs = call.runs
    for opened in runs:
        require_problem(opened, "retrieval", "name such a run, or none", code="two-problems")
    check_saved(call, ("a", "b") if runs else ("",))
    both, paired = with_paired(call.metrics)
    changes = with_metrics(call, both)
    whole = names_metrics(changes)
    alike = _alike(runs[0].spec.lists, changes) if runs else changes
    theirs = api.evaluate_lists(lists, how.data or store_path(runs[0]), how.split, set=alike, **columns)
    if how.out is not None:
        theirs.save(how.out / "b" if runs else how.out, overwrite=how.overwrite)
    if not runs:
        print_single(call.output, {"lists": lists}, theirs, whole=whole or every)
        return
    ours = measured(call.into(how.out and how.out / "a"), changes)[0]
    rows = compared(ours, theirs, paired, all_of_them=whole)
    names = [str(runs[0].path), str(lists)]
    print_pair(call.output, names, [ours, theirs], rows, stand_in=bool(paired))


def _alike(spec: Evaluation, changes: list[str]) -> list[str]:
    """Settings by which lists are measured like a run: its own and those of the call, but for how a model answers."""
    own = [f"{name}={json.dumps(jsonable(getattr(spec, name)), ensure_ascii=False)}" for name in SHARED]
    return [*own, *(text for text in changes if text.partition("=")[0].strip().split(".")[0] not in OF_ANSWERS)]
