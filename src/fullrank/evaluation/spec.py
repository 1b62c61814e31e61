"""Evaluation settings: of ranked lists (`Evaluation`) and of click probabilities (`RankingEvaluation`).

Every setting that can change a number is named in the result's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from fullrank.core.constraints import (
    MOST_BINS,
    MOST_ENTRIES,
    MOST_FACTOR,
    Count,
    DropoutRate,
    ListLength,
    SeedNumber,
    needs,
    only_with,
)
from fullrank.core.errors import UserError, no_effect, unknown
from fullrank.core.spec import Spec, later
from fullrank.evaluation.targets import Targets
from fullrank.inference.search import Decoding
from fullrank.metrics import SeenPolicy
from fullrank.metrics.names import (
    ACCURACY,
    DEFAULT,
    DEFAULT_SAMPLED,
    Name,
    accuracy_among,
    expand_metrics,
    parse_metric,
)
from fullrank.models import Budget

Selection = Literal["auc", "logloss", "auc-logloss", "gauc"]
"""Metrics of click probabilities that may choose among checkpoints."""
CLICK_METRICS = ("auc", "logloss", "auc-logloss", "ece", "pcoc", "gauc")
"""Metrics of click probabilities; gauc needs groups."""


HISTORY = {"exclude": "history excluded", "keep": "history ranked"}
"""The seen policy in the words of tables: whether a list may hold items of the user's own history."""


def history_words(protocol: Mapping[str, Any]) -> str:
    """`history excluded` or `history ranked`, by the protocol of an evaluation; empty for click probabilities."""
    return HISTORY.get(str(protocol.get("seen")), "")


class Evaluation(Spec):
    """Settings of ranked lists: users, candidates, metrics and intervals. Refuses idle settings."""

    problem: ClassVar[Literal["retrieval"]] = "retrieval"

    ks: tuple[ListLength, ...] = Field((1, 5, 10, 20), min_length=1, max_length=MOST_ENTRIES)
    """List lengths at which each metric without its own `@k` is computed."""
    metrics: tuple[str, ...] | None = Field(None, min_length=1, max_length=MOST_ENTRIES)
    """Names such as `ndcg`, `fair0.8` (at every k) or `recall@50`; None is every metric that the
    protocol allows."""
    selection: str = "ndcg@10"
    """The accuracy metric by which training chooses among checkpoints; larger is better."""
    seen: SeenPolicy = "exclude"
    """Whether items of the whole history are kept out of the ranking, or ranked like any other."""
    selection_seen: SeenPolicy | None = later(None)
    """`seen` where training and searches choose by `selection`; null is `seen` itself, but `keep`
    where more than 1 % of the validation targets stand in their own user's history, which `exclude`
    makes impossible to hit."""
    protocol: Annotated[
        Literal["full", "sampled"],
        needs("reasoning.adaptive", None, code="adaptive-needs-full-lists"),
        needs("decoding.kind", "exact", code="setting-without-effect"),
    ] = "full"
    """Rank the whole catalogue, or each target among sampled negatives (not comparable with
    anything else)."""
    negatives: Annotated[ListLength | None, only_with("protocol", "sampled")] = None
    """Sampled protocol: negatives per user; None is 100."""
    negatives_from: Annotated[Literal["uniform", "popularity"] | None, only_with("protocol", "sampled")] = None
    """Sampled protocol: drawn evenly (None) or by training popularity."""
    sampled: Annotated[ListLength | None, only_with("protocol", "full")] = None
    """Full protocol: rank each target among so many shared uniform negatives too, and report the
    gap (SRT: 10,000)."""
    popularity: Annotated[Literal["train", "all"], only_with("protocol", "full")] = "train"
    """Events that count as popularity: training, or all including the targets (SPRINT's code; a
    leak)."""
    empty: Literal["skip", "answer"] = "skip"
    """Users without a history: left out and counted, or given to the model, which must be able to
    answer them."""
    reasoning: Budget = Budget()
    """How many steps and streams a reasoner computes; anything set here is an error for a model
    without one."""
    decoding: Decoding = Decoding()
    """The search among semantic ids; anything but exact is an error for a model that does not
    generate them."""
    drop: Annotated[DropoutRate, needs("reasoning.adaptive", None, code="adaptive-needs-full-lists")] = 0.0
    """Share of the events of each history that the model does not get to see (PLR, Sec. 6.5.1); 0
    shows all."""
    popularity_discount: Annotated[
        float,
        needs("protocol", "full", code="discount-needs-all-scores"),
        needs("sampled", None, code="discount-needs-all-scores"),
        needs("decoding.kind", "exact", code="discount-needs-all-scores"),
        needs("reasoning.adaptive", None, code="discount-needs-all-scores"),
    ] = later(0.0, ge=0, le=MOST_FACTOR)
    """w of score - w log(1 + training events of the item): lists re-ranked against popularity; 0
    changes nothing."""
    diversity_by: Annotated[str | None, only_with("protocol", "full")] = later(None)
    """Column of items, a category or lists of them, by which `ild` says how different a list's
    items are."""
    targets: Targets | None = later(None)
    """Types of events that are asked for, in training too; null asks for every event."""
    slices: bool = True
    """Report per-user metrics by kind of user, history length and popularity of the target as
    well."""
    bootstrap: int = Field(default=200, ge=0, le=MOST_BINS)
    """Resamplings of the users behind each interval; 0 is none."""
    level: Annotated[float, only_with("bootstrap")] = Field(default=0.95, gt=0, lt=1)
    """Coverage of the intervals."""
    batch_size: Count | None = None
    """Users per batch; None is what the memory budget allows. Does not change results."""
    block: Count | None = None
    """Items per block; None is the measured default. Does not change results."""
    seed: SeedNumber = 0
    """Seed of resampling, of sampled negatives and of dropped events."""

    @field_validator("selection")
    @classmethod
    def _under_its_own_name(cls, text: str) -> str:
        """`ndcg@010` is `ndcg@10`, as in the results that training looks it up in."""
        return str(parse_metric(text))

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> Evaluation:
        if self.sampled is not None:
            accuracy_among(self.names(), f"sampled={self.sampled}", ", or leave sampled out")
        if self.metrics is not None:
            names = self.names()
            diverse = any(name.base == "ild" for name in names)
            if diverse and self.diversity_by is None:
                raise UserError(
                    "the metric 'ild' needs a column of items that says how different they are: add "
                    "diversity_by=COLUMN, such as category",
                    code="metric-without-column",
                )
            if self.diversity_by is not None and not diverse:
                raise no_effect("diversity_by", "without the metric 'ild'", "leave it out, or name ild too")
            lists = [name for name in names if name.needs_lists]
            if self.protocol == "sampled" and lists:
                raise UserError(
                    f"the metric {lists[0].base!r} needs full lists, and protocol 'sampled' makes none: leave it out, "
                    "or use 'full'",
                    code="metric-needs-lists",
                )
        if parse_metric(self.selection).base not in ACCURACY:
            raise UserError(
                f"selection must be an accuracy metric ({', '.join(ACCURACY)}), not {self.selection!r}",
                code="selection-not-accuracy",
            )
        return self

    def names(self) -> list[Name]:
        """The metrics to compute, in order."""
        metrics = self.metrics
        if metrics is None:
            metrics = DEFAULT if self.protocol == "full" else DEFAULT_SAMPLED
            metrics += ("ild",) if self.diversity_by is not None else ()
        return expand_metrics(metrics, self.ks)

    @property
    def hides_seen(self) -> bool:
        """Whether lists leave out the items of the history, also where they are what is to be found."""
        return self.seen == "exclude" and self.protocol == "full"

    def for_selection(self) -> Evaluation:
        """The selection metric alone, with `seen` as training and searches choose
        by: computed again and again."""
        return self.selection_alone().model_copy(update={"seen": self.selection_seen or self.seen})

    def selection_alone(self) -> Evaluation:
        """This protocol with the selection metric alone, for studies that compute it again and again."""
        alone = {"metrics": (self.selection,), "slices": False, "bootstrap": 0, "sampled": None, "diversity_by": None}
        return self.model_copy(update=alone)


class RankingEvaluation(Spec):
    """Click probabilities against what was clicked. Refuses idle settings."""

    problem: ClassVar[Literal["ranking"]] = "ranking"

    kind: Literal["clicks"] = "clicks"
    selection: Selection = "auc"
    """The metric by which training chooses among checkpoints; logloss is better smaller, the others
    larger."""
    bins: int = Field(20, ge=1, le=MOST_BINS)
    """Parts of the reliability curve, of equally many rows each."""
    bootstrap: int = Field(200, ge=0, le=MOST_BINS)
    """Resamplings behind each interval; 0 is none."""
    level: Annotated[float, only_with("bootstrap")] = Field(0.95, gt=0, lt=1)
    """Coverage of the intervals."""
    unit: Annotated[Literal["row", "group"], only_with("bootstrap")] = "row"
    """Unit of resampling: rows, or whole groups (rows of one user depend on each other); needs a
    group column."""
    batch_size: Count = 16_384
    """Rows per batch. Does not change results beyond rounding."""
    seed: SeedNumber = 0
    """Seed of resampling."""
    metrics: tuple[str, ...] | None = later(None, min_length=1, max_length=MOST_ENTRIES)
    """Names such as `auc` or `gauc`; None is every metric, gauc where there are groups."""
    slices: tuple[str, ...] = later((), max_length=MOST_ENTRIES)
    """Fields of the impressions (categorical, in buckets, bags): the metrics by each of their
    values too."""

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if name not in CLICK_METRICS:
                raise unknown("metric", name, CLICK_METRICS)
        return names

    def for_selection(self) -> RankingEvaluation:
        """These settings without intervals, which training computes again and again."""
        return RankingEvaluation(selection=self.selection, bins=self.bins, bootstrap=0, batch_size=self.batch_size)


def _parse_either(settings: Any) -> Any:
    if settings == "clicks":
        settings = {"kind": "clicks"}
    if isinstance(settings, dict):
        return (RankingEvaluation if settings.get("kind") == "clicks" else Evaluation).model_validate(settings)
    return settings


AnyEvaluation = Annotated[Evaluation | RankingEvaluation, BeforeValidator(_parse_either)]
"""The evaluation of an experiment: of ranked lists, or (`kind: clicks`) of click probabilities."""


def selection_sign(spec: Evaluation | RankingEvaluation) -> int:
    """1 where a larger value of the selection metric is better, -1 where a smaller one is."""
    return -1 if spec.selection == "logloss" else 1
