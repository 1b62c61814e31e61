"""How a click model is judged, and which of the two kinds of evaluation an experiment has."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from fullrank.core.spec import Spec
from fullrank.evaluation.spec import Evaluation

Selection = Literal["auc", "logloss", "auc-logloss", "gauc"]


class RankingEvaluation(Spec):
    """Click probabilities against what was clicked. Refuses idle settings."""

    problem: ClassVar[Literal["ranking"]] = "ranking"

    kind: Literal["clicks"] = "clicks"
    selection: Selection = "auc"
    """The metric by which training chooses among checkpoints; logloss is better smaller, the others larger."""
    bins: int = Field(20, ge=1)
    """Parts of the reliability curve, of equally many rows each."""
    bootstrap: int = Field(200, ge=0)
    """Resamplings behind each interval; 0 is none."""
    level: float = Field(0.95, gt=0, lt=1)
    """Coverage of the intervals."""
    unit: Literal["row", "group"] = "row"
    """What is resampled: rows, or whole groups (rows of one user depend on each other); needs a group column."""
    batch_size: int = Field(16_384, ge=1)
    """Rows per batch. Does not change results beyond rounding."""
    seed: int = Field(0, ge=0)
    """Of resampling."""

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> RankingEvaluation:
        for name in ("level", "unit"):
            if self.bootstrap == 0 and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}={getattr(self, name)} has no effect when bootstrap is 0: leave it out")
        return self

    def for_selection(self) -> RankingEvaluation:
        """The same without intervals: what training computes again and again."""
        return RankingEvaluation(selection=self.selection, bins=self.bins, bootstrap=0, batch_size=self.batch_size)


def _parse_either(given: Any) -> Any:
    if given == "clicks":
        given = {"kind": "clicks"}
    if isinstance(given, dict):
        return (RankingEvaluation if given.get("kind") == "clicks" else Evaluation).model_validate(given)
    return given


AnyEvaluation = Annotated[Evaluation | RankingEvaluation, BeforeValidator(_parse_either)]
"""Of ranked lists, or (`kind: clicks`) of click probabilities."""


def selection_sign(spec: Evaluation | RankingEvaluation) -> int:
    """1 where a larger value of the selection metric is better, -1 where a smaller one is."""
    return -1 if spec.selection == "logloss" else 1
