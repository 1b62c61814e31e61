"""ListOptions: the options of a list, declared once for Python, a service and the command line.

A field that is added here is a keyword of `recommend`, `recommend_parts` and
`Cascade.recommend`, an option of `fullrank recommend` and `recommend-parts`
(`cli/list_options.py`) and, in `ListChoices`, a key of a service's request and an option of
`fullrank ask`. Functions take them as `**options: Unpack[ListKeywords]`, and hand on the one
object that `ListOptions.of` made of them, checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar, get_args

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError, field_validator

from fullrank.core.checks import MOST, check_choice, check_flag
from fullrank.core.constraints import MOST_VALUE
from fullrank.core.errors import UserError, brief
from fullrank.core.spec import Spec, error_sentence
from fullrank.data.column_names import COLUMN_DEFAULTS, ColumnKeywords
from fullrank.inference.features import FeatureInput
from fullrank.inference.filters import seen_policy
from fullrank.inference.search import Decoding
from fullrank.metrics import SeenPolicy
from fullrank.models import Budget

S = TypeVar("S", bound=Spec)
ItemLists = Sequence[Any] | pl.Series | Mapping[Any, Sequence[Any]] | Any | None
"""Item ids: one list for all histories, a list for each, or {user: items}."""
ColumnFilters = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
"""Filters on columns of items: one mapping for all histories, or one for each (None: no filter)."""
BudgetInput = Budget | Mapping[str, Any] | None
DecodingInput = Decoding | Mapping[str, Any] | str | None
EXAMPLES = {"budget": '{"steps": 1}', "decoding": '{"kind": "graph"}'}


class ListChoices(BaseModel):
    """Options of a list that a service's JSON has too."""

    model_config = ConfigDict(arbitrary_types_allowed=True, use_attribute_docstrings=True)

    k: int = Field(10, json_schema_extra={"minimum": 1, "maximum": MOST})  # `_whole` refuses others, by a code of lists
    """Length of each list."""
    seen: SeenPolicy = "exclude"
    """Whether the history's own items may be recommended."""
    exclude: SkipValidation[ItemLists] = None
    """Items that are not to be recommended."""
    allow: SkipValidation[ItemLists] = None
    """The only items that may be recommended."""
    filters: SkipValidation[ColumnFilters] = None
    """Columns of items and what they must hold: a value, one of several, or numbers from a least to
    a largest."""
    titles: bool = False
    """Whether items come with their titles."""
    min_score: float | None = Field(None, strict=True, ge=-MOST_VALUE, le=MOST_VALUE)
    """Score below which items are left out."""

    def shown(self, ids: Int[np.ndarray, "*n"], scores: Float[np.ndarray, "*n"]) -> Bool[np.ndarray, "*n"]:
        """Mask of the places of ranked lists that are shown: filled, with `min_score` at least."""
        return (ids >= 0) & (True if self.min_score is None else scores >= self.min_score)


class ListOptions(ListChoices, Spec):
    """All options of lists in Python; see `Predictor.recommend`."""

    item_table: SkipValidation[Any] = None
    """Item columns for `filters`, beside those that the run keeps."""
    budget: SkipValidation[BudgetInput] = None
    """How many steps a reasoner computes; null is as in the run's evaluation."""
    decoding: SkipValidation[DecodingInput] = None
    """How a run that generates semantic ids finds its items; null is as in its evaluation."""
    unknown: Literal["skip", "error"] = "skip"
    """Items that the model does not know."""
    empty: Literal["popular", "error"] = "popular"
    """Histories without a known item."""
    untimed: Literal["auto", "error", "even"] = "auto"
    """Histories without times, for a model that reads them: refused, or taken as of now, a day
    between events; auto takes lists so, with a note, and refuses a table."""

    @classmethod
    def of(cls, keywords: ListKeywords | ScoreKeywords) -> ListOptions:
        """The options among the keywords of a call. Raises `UserError` for a wrong one."""
        try:
            options: Any = {name: option for name, option in keywords.items() if name in cls.model_fields}
            return cls(**options)
        except ValidationError as error:
            inner = (mistake.get("ctx", {}).get("error") for mistake in error.errors())
            sentence = next((raised for raised in inner if isinstance(raised, UserError)), None)
            raise sentence or UserError(error_sentence(error), code="invalid-setting") from None

    @field_validator("k", mode="before")
    @classmethod
    def _whole(cls, k: Any) -> int:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= MOST:
            raise UserError(f"k must be at least 1, a whole number, not {brief(k)}", code="invalid-list-length")
        return int(k)

    @field_validator("seen", mode="before")
    @classmethod
    def _policy(cls, seen: Any) -> SeenPolicy:
        return seen_policy(seen)

    @field_validator("titles", mode="before")
    @classmethod
    def _flag(cls, titles: Any) -> bool:
        return check_flag("titles", titles)

    @field_validator("unknown", "empty", "untimed", mode="before")
    @classmethod
    def _allowed(cls, choice: Any, info: Any) -> Any:
        return check_choice(info.field_name, choice, get_args(cls.model_fields[info.field_name].annotation))

    def with_settings(self, budget: Budget, decoding: Decoding) -> ListOptions:
        """These options with budget and decoding settled: a predictor's own, changed by those set here."""
        return self.model_copy(update={"budget": self.budget_of(budget), "decoding": self.decoding_of(decoding)})

    def budget_of(self, default: Budget) -> Budget:
        """The budget: a predictor's own, changed by the settings here."""
        return changed("budget", default, self.budget)

    def decoding_of(self, default: Decoding) -> Decoding:
        """The decoding: a predictor's own, changed by the settings here."""
        kind = {"kind": self.decoding} if isinstance(self.decoding, str) else self.decoding
        return changed("decoding", default, kind)


class ListKeywords(TypedDict, total=False):
    """The fields of `ListOptions` as keywords, for type checkers."""

    k: int
    seen: str
    exclude: ItemLists
    allow: ItemLists
    filters: ColumnFilters
    titles: bool
    min_score: float | None
    item_table: Any
    budget: BudgetInput
    decoding: DecodingInput
    unknown: str
    empty: str
    untimed: str


class RecommendKeywords(ListKeywords, ColumnKeywords, total=False):
    """Keywords of lists: options, the columns of a table of histories, and features."""

    features: FeatureInput


class ScoreKeywords(ColumnKeywords, total=False):
    """Keywords of scores and vectors: how histories are read, the columns of a table of them, and features."""

    budget: BudgetInput
    unknown: str
    untimed: str
    features: FeatureInput


LIST_DEFAULTS: dict[str, Any] = {name: field.default for name, field in ListOptions.model_fields.items()}
"""Defaults of `ListKeywords`."""
FEATURES_DEFAULT: dict[str, Any] = {"features": None}
RECOMMEND_DEFAULTS = COLUMN_DEFAULTS | LIST_DEFAULTS | FEATURES_DEFAULT
SCORE_DEFAULTS = (
    COLUMN_DEFAULTS | {name: LIST_DEFAULTS[name] for name in ("budget", "unknown", "untimed")} | FEATURES_DEFAULT
)


def changed(name: str, spec: S, settings: S | Mapping[str, Any] | None) -> S:
    """The settings of a call: those given in place of the predictor's own, or some of them changed.

    Another `kind` starts from its defaults, since the settings of one kind have no effect on
    another.
    """
    if settings is None:
        return spec
    if isinstance(settings, type(spec)):
        return settings
    if not isinstance(settings, Mapping):
        raise UserError(
            f"{name}={brief(settings)}: give its settings as a mapping, such as {EXAMPLES[name]}",
            code="settings-not-a-mapping",
        )
    other = "kind" in settings and settings["kind"] != getattr(spec, "kind", None)
    return type(spec).parse({**({} if other else spec.dump()), **settings})
