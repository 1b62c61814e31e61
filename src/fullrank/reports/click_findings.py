"""What is known of each run of a click model: metrics, diagnosis, rows of its training; measured if missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fullrank.click import ClickModel
from fullrank.data.impressions import ImpressionStore
from fullrank.data.stores import open_store
from fullrank.diagnostics.diagnose import NAME, Diagnosis
from fullrank.diagnostics.of_run import diagnose_run
from fullrank.errors import UserError, unknown
from fullrank.evaluation.clicks import evaluate_clicks
from fullrank.evaluation.clicks_result import Clicked
from fullrank.evaluation.clicks_spec import Clicks
from fullrank.reports.findings import Tell, key_of, named
from fullrank.run import Run, weights_hash


@dataclass(frozen=True)
class ClickFinding:
    """Everything a page shows of one run."""

    key: str
    """Its letter on the page."""
    name: str
    run: Run
    evaluated: Clicked
    diagnosis: Diagnosis
    journal: tuple[dict[str, Any], ...]
    """Rows of metrics.jsonl."""

    @property
    def selected(self) -> str:
        """The metric that the run was selected by."""
        return self.run.spec.evaluation.selection

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The rows that were written at an epoch's end."""
        return [row for row in self.journal if row.get("event") == "epoch"]

    def metric(self, name: str) -> float | None:
        """None where it does not exist (gauc without groups)."""
        value = self.evaluated.metrics.get(name)
        return None if value is None or value != value else value

    def interval(self, name: str) -> tuple[float, float] | None:
        """Lower and upper end, where intervals were computed."""
        pair = self.evaluated.interval.get(name)
        return pair if pair is not None and pair[0] == pair[0] else None

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
) -> list[ClickFinding]:
    """A finding per run, in the order given. `evaluations` are by the runs' names.

    What stands in a run folder (evaluation.json, diagnosis.jsonl) is taken where it is of this split and of these
    weights; with `settings` everything is evaluated anew, alike.
    """
    if settings and evaluations:
        raise UserError("settings change how runs are evaluated, so they have no effect on evaluations that are given")
    names = named([run.path for run in runs])
    for name in evaluations or ():
        if name not in names:
            raise unknown("run of this report", name, names)
    found = []
    for place, (name, run) in enumerate(zip(names, runs, strict=True)):
        store = _store(run, data)
        given = (evaluations or {}).get(name)
        if given is not None and not _fits(given, store, split):
            raise UserError(
                f"the evaluation given for {name} is not of clicks on the split {split!r} of {store.path}; leave it "
                "out to evaluate anew"
            )
        evaluated = given or _evaluated(run, store, split, settings, tell)
        diagnosis = _diagnosed(run, store, split, impressions, tell)
        found.append(ClickFinding(key_of(place), name, run, evaluated, diagnosis, tuple(run.rows())))
    return found


def comparable_clicks(findings: Sequence[ClickFinding]) -> str | None:
    """Why the metrics of these runs cannot be compared; None where they can."""
    first = findings[0]
    for other in findings[1:]:
        for what in ("fingerprint", "rows"):
            if other.evaluated.protocol.get(what) != first.evaluated.protocol.get(what):
                return f"runs {first.key} and {other.key} were evaluated on different impressions"
    return None


def _store(run: Run, data: ImpressionStore | Path | None) -> ImpressionStore:
    where: Any = run.manifest["data"]["path"] if data is None else data
    if isinstance(where, str | Path):
        if data is None and not Path(where).is_dir():
            raise UserError(f"the store {where} that {run.path} was trained on is not there; name it with --data")
        where = open_store(where)
    if where.fingerprint != run.manifest["data"]["split_fingerprint"]:
        raise UserError(f"{where.path} is not the split that {run.path} was trained on (the fingerprints differ)")
    return cast(ImpressionStore, where)


def _evaluated(run: Run, store: ImpressionStore, split: str, settings: Sequence[str], tell: Tell | None) -> Clicked:
    path, spec = run.path / "evaluation.json", run.spec.evaluation.override(*settings)
    assert isinstance(spec, Clicks)
    if not settings and path.is_file() and path.stat().st_mtime >= (run.path / "weights.safetensors").stat().st_mtime:
        kept = Clicked.load(run.path)
        if _fits(kept, store, split):
            return kept
    tick = None if tell is None else tell(f"evaluate {run.path}")
    return evaluate_clicks(cast(ClickModel, run.model()), store, split, spec, progress=tick)


def _fits(found: Any, store: ImpressionStore, split: str) -> bool:
    protocol = found.protocol if isinstance(found, Clicked) else {}
    return protocol.get("split") == split and protocol.get("fingerprint") == store.fingerprint


def _diagnosed(run: Run, store: ImpressionStore, split: str, impressions: int | None, tell: Tell | None) -> Diagnosis:
    if (run.path / NAME).is_file():
        kept = Diagnosis.load(run.path / NAME)
        asked: dict[str, Any] = {"weights": weights_hash(run.path), "split": split, "fingerprint": store.fingerprint}
        asked |= {} if impressions is None else {"impressions": min(impressions, len(store.split(split)))}
        if all(kept.about().get(key) == value for key, value in asked.items()):
            return kept
    tick = None if tell is None else tell(f"diagnose {run.path}")
    return diagnose_run(run, store, split, impressions=impressions, progress=tick)
