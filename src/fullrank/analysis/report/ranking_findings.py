"""What is known of each run of a click model: metrics, diagnosis, rows of its training; measured if missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from fullrank.analysis.diagnose import Diagnosis, diagnose_run
from fullrank.analysis.report.known import Known, has_evaluation, kept_diagnosis, key_of, names_of
from fullrank.core.errors import UserError
from fullrank.core.progress import Tell
from fullrank.data.impressions.store import ImpressionStore
from fullrank.evaluation import EvaluationResult
from fullrank.evaluation.ranking import evaluate_ranking
from fullrank.evaluation.spec import RankingEvaluation
from fullrank.models.ranking.model import RankingModule
from fullrank.run import Run, store_of, weights_hash


@dataclass(frozen=True)
class RankingFinding(Known):
    """Everything a page shows of a click model."""

    evaluated: EvaluationResult

    def taps(self, name: str, index: int | None = None) -> dict[str, float]:
        """Tap -> a figure of `token_ranks`, in order of depth."""
        rows = [row for row in self.diagnosis.of("token_ranks", name) if row["index"] == index]
        return {str(row["label"]): row["value"] for row in rows if row["value"] is not None}

    def last(self, name: str) -> float | None:
        """A figure behind the last layer."""
        return next(reversed(self.taps(name).values()), None)


def collect_clicks(
    runs: Sequence[Run],
    *,
    data: ImpressionStore | Path | None = None,
    split: str = "test",
    impressions: int | None = None,
    settings: Sequence[str] = (),
    evaluations: Mapping[str, Any] | None = None,
    tell: Tell | None = None,
    device: torch.device | str = "cpu",
) -> list[RankingFinding]:
    """A finding per run, in the order given. `evaluations` are by the runs' names.

    What stands in a run folder (evaluation.json, diagnosis.jsonl) is taken where it is of this split and of these
    weights; with `settings` everything is evaluated anew, alike.
    """
    names = names_of(runs, settings, evaluations)
    found = []
    for place, (name, run) in enumerate(zip(names, runs, strict=True)):
        store = cast(ImpressionStore, store_of(run, data, how="with --data"))  # the fingerprints agree
        given = (evaluations or {}).get(name)
        if given is not None and not _fits(given, store, split):
            raise UserError(
                f"the evaluation given for {name} is not of clicks on the split {split!r} of {store.path}; leave it "
                "out to evaluate anew"
            )
        evaluated = given or _evaluated(run, store, split, settings, tell, device)
        diagnosis = _diagnosed(run, store, split, impressions, tell, device)
        found.append(RankingFinding(key_of(place), name, run, evaluated, diagnosis, tuple(run.rows())))
    return found


def comparable_clicks(findings: Sequence[RankingFinding]) -> str | None:
    """Why the metrics of these runs cannot be compared; None where they can."""
    first = findings[0]
    for other in findings[1:]:
        for what in ("fingerprint", "rows"):
            if other.evaluated.protocol.get(what) != first.evaluated.protocol.get(what):
                return f"runs {first.key} and {other.key} were evaluated on different impressions"
    return None


def _evaluated(
    run: Run, store: ImpressionStore, split: str, settings: Sequence[str], tell: Tell | None, device: torch.device | str
) -> EvaluationResult:
    spec = run.spec.evaluation.override(*settings)
    assert isinstance(spec, RankingEvaluation)
    if not settings and has_evaluation(run):
        kept = EvaluationResult.load(run.path)
        if _fits(kept, store, split):
            return kept
    tick = None if tell is None else tell(f"evaluate {run.path}")
    return evaluate_ranking(
        cast(RankingModule, run.model().to(device)), store, split, spec, device=device, progress=tick
    )


def _fits(found: Any, store: ImpressionStore, split: str) -> bool:
    if not isinstance(found, EvaluationResult) or found.problem != "ranking":
        return False
    protocol = found.protocol
    return protocol.get("split") == split and protocol.get("fingerprint") == store.fingerprint


def _diagnosed(
    run: Run, store: ImpressionStore, split: str, impressions: int | None, tell: Tell | None, device: torch.device | str
) -> Diagnosis:
    asked: dict[str, Any] = {"weights": weights_hash(run.path), "split": split, "fingerprint": store.fingerprint}
    asked |= {} if impressions is None else {"impressions": min(impressions, len(store.split(split)))}
    kept = kept_diagnosis(run, asked)
    if kept is not None:
        return kept
    tick = None if tell is None else tell(f"diagnose {run.path}")
    return diagnose_run(run, store, split, impressions=impressions, device=device, progress=tick)
