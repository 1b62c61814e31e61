"""How a model is evaluated. Every setting that can change a number is named in the result's protocol."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fullrank.core.errors import UserError
from fullrank.core.spec import Spec
from fullrank.inference.decoding import Decoding
from fullrank.metrics import SeenPolicy
from fullrank.metrics.names import ACCURACY, DEFAULT, Name, expand_metrics, parse_metric
from fullrank.models.sequential.reasoning.budget import Budget


class Evaluation(Spec):
    """Which users are ranked against what, by which metrics, and how sure the means are. Refuses idle settings."""

    problem: ClassVar[Literal["retrieval"]] = "retrieval"

    ks: tuple[int, ...] = (1, 5, 10, 20)
    """List lengths at which each metric without its own `@k` is computed."""
    metrics: tuple[str, ...] | None = None
    """Names such as `ndcg`, `fair0.8` (at every k) or `recall@50`; None is every metric that the protocol allows."""
    selection: str = "ndcg@10"
    """The accuracy metric by which training chooses among checkpoints; larger is better."""
    seen: SeenPolicy = "exclude"
    """Whether items of the whole history are kept out of the ranking, or ranked like any other."""
    protocol: Literal["full", "sampled"] = "full"
    """Rank the whole catalogue, or each target among sampled negatives (not comparable with anything else)."""
    negatives: int | None = Field(default=None, ge=1)
    """Sampled protocol: negatives per user; None is 100."""
    negatives_from: Literal["uniform", "popularity"] | None = None
    """Sampled protocol: drawn evenly (None) or by training popularity."""
    sampled: int | None = Field(default=None, ge=1)
    """Full protocol: rank each target among so many shared uniform negatives too, and report the gap (SRT: 10,000)."""
    popularity: Literal["train", "all"] = "train"
    """Events that count as popularity: training, or all including the targets (SPRINT's code; a leak)."""
    empty: Literal["skip", "answer"] = "skip"
    """Users without a history: left out and counted, or given to the model, which must be able to answer them."""
    reasoning: Budget = Budget()
    """How much a reasoner thinks; anything set here is an error for a model without one."""
    decoding: Decoding = Decoding()
    """The search among semantic ids; anything but exact is an error for a model that does not generate them."""
    drop: float = Field(default=0.0, ge=0, lt=1)
    """Share of the events of each history that the model does not get to see (PLR, Sec. 6.5.1); 0 shows all."""
    slices: bool = True
    """Report per-user metrics by kind of user, history length and popularity of the target as well."""
    bootstrap: int = Field(default=200, ge=0)
    """Resamplings of the users behind each interval; 0 is none."""
    level: float = Field(default=0.95, gt=0, lt=1)
    """Coverage of the intervals."""
    batch_size: int | None = Field(default=None, ge=1)
    """Users per batch; None is what the memory budget allows. Does not change results."""
    block: int | None = Field(default=None, ge=1)
    """Items per block; None is the measured default. Does not change results."""
    seed: int = 0
    """Of resampling, of sampled negatives and of dropped events."""

    @field_validator("selection")
    @classmethod
    def _under_its_own_name(cls, text: str) -> str:
        """`ndcg@010` is `ndcg@10`, as in the results that training looks it up in."""
        try:
            return str(parse_metric(text))
        except UserError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> Evaluation:
        if self.protocol == "full":
            for setting in ("negatives", "negatives_from"):
                if getattr(self, setting) is not None:
                    raise ValueError(f"{setting} has no effect when protocol is 'full': leave it out or use 'sampled'")
        elif self.sampled is not None:
            raise ValueError("sampled has no effect when protocol is 'sampled', which has negatives of its own")
        elif self._changed("popularity"):
            raise ValueError(
                f"popularity={self.popularity!r} has no effect when protocol is 'sampled', whose metrics count no "
                "popularity: leave it out or use 'full' (negatives_from chooses how negatives are drawn)"
            )
        if self.reasoning.adaptive is not None and (self.drop or self.protocol == "sampled"):
            raise ValueError(
                "reasoning.adaptive stops by lists of the whole catalogue and of whole histories: leave it out, or use "
                "protocol 'full' and drop=0"
            )
        if self.sampled is not None and self.metrics is not None:
            if not any(n.base in ACCURACY for n in expand_metrics(self.metrics, self.ks)):
                raise ValueError(f"sampled needs an accuracy metric ({', '.join(ACCURACY)}) beside it")
        if self.decoding.kind != "exact" and self.protocol == "sampled":
            raise ValueError("decoding has no effect when protocol is 'sampled': candidates are scored one by one")
        if self.bootstrap == 0 and self._changed("level"):
            raise ValueError(f"level={self.level:g} has no effect when bootstrap is 0: leave it out or resample")
        if not self.ks or min(self.ks) < 1:
            raise ValueError(f"ks must be list lengths of at least 1, not {list(self.ks)}")
        try:
            self._check_names()
        except UserError as error:
            raise ValueError(str(error)) from None
        return self

    def _changed(self, setting: str) -> bool:
        return bool(getattr(self, setting) != type(self).model_fields[setting].default)

    def _check_names(self) -> None:
        if self.metrics is not None:
            if not self.metrics:
                raise UserError("metrics is an empty list: name at least one, or leave it out for all")
            lists = [n for n in expand_metrics(self.metrics, self.ks) if n.needs_lists]
            if self.protocol == "sampled" and lists:
                raise UserError(f"the metric {lists[0].base!r} needs full lists, and protocol 'sampled' makes none")
        if parse_metric(self.selection).base not in ACCURACY:
            raise UserError(f"selection must be an accuracy metric ({', '.join(ACCURACY)}), not {self.selection!r}")

    def names(self) -> list[Name]:
        """The metrics to compute, in order."""
        metrics = self.metrics
        if metrics is None:
            metrics = DEFAULT if self.protocol == "full" else tuple(ACCURACY)
        return expand_metrics(metrics, self.ks)

    def for_selection(self) -> Evaluation:
        """The same protocol with the selection metric alone: what training computes again and again."""
        return self.model_copy(update={"metrics": (self.selection,), "slices": False, "bootstrap": 0, "sampled": None})
