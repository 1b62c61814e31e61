"""`fullrank evaluate --lists`: recommendations made elsewhere, alone or beside a run, on the same users."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fullrank.cli.evaluate_runs import Call, check_saved, compared, measured, with_metrics, with_paired
from fullrank.cli.options import find_store
from fullrank.cli.print_evaluation import print_pair, print_single
from fullrank.core.errors import UserError
from fullrank.core.files import jsonable

if TYPE_CHECKING:
    from fullrank.evaluation import Evaluation

SHARED = ("ks", "metrics", "seen", "popularity", "empty", "diversity_by", "slices", "bootstrap", "level", "seed")
"""Settings of a run's evaluation that lists are measured by too."""
OF_ANSWERS = ("reasoning", "decoding", "popularity_discount")
"""Settings of how a model makes its lists."""


def evaluate_lists(call: Call, lists: Path, columns: Mapping[str, str | None]) -> None:
    """Measure, print, and save below `out`; with a run, the paired difference of the lists and the run."""
    from fullrank import api

    begun = time.perf_counter()
    if call.runs and call.runs[0].spec.problem == "ranking":
        raise UserError(
            f"{call.runs[0].path} predicts clicks, and lists are compared with a run that recommends items",
            code="two-problems",
        )
    if not call.runs and call.data is None:
        raise UserError(
            "--lists are measured on the users of a store: name it with --data STORE, or name a RUN",
            code="missing-store",
        )
    check_saved(call, ("a", "b") if call.runs else ("",))
    both, paired = with_paired(call.metrics)
    changes = with_metrics(call, both)
    whole = any(change.startswith(("metrics", "ks")) for change in changes)
    if not call.runs:
        assert call.data is not None
        found = api.evaluate_lists(lists, call.data, call.split, set=changes, **columns)
        if call.out is not None:
            found.save(call.out, overwrite=call.overwrite)
        print_single(call.output, {"lists": lists}, found, time.perf_counter() - begun, whole=whole or call.whole)
        return
    (run,) = call.runs
    ours = measured(replace(call, out=None if call.out is None else call.out / "a"), changes)[0]
    theirs = api.evaluate_lists(
        lists, find_store(run, call.data), call.split, set=_alike(run.spec.lists, changes), **columns
    )
    if call.out is not None:
        theirs.save(call.out / "b", overwrite=call.overwrite)
    rows = compared(ours, theirs, paired, all_of_them=whole)
    names = [str(run.path), str(lists)]
    print_pair(call.output, names, [ours, theirs], rows, time.perf_counter() - begun, stand_in=bool(paired))


def _alike(spec: Evaluation, changes: list[str]) -> list[str]:
    """Settings by which lists are measured like a run: its own and those of the call, but for how a model answers."""
    own = [f"{name}={json.dumps(jsonable(getattr(spec, name)), ensure_ascii=False)}" for name in SHARED]
    return [*own, *(text for text in changes if text.partition("=")[0].strip().split(".")[0] not in OF_ANSWERS)]
