"""The two stages of a cascade, from run folders or from models in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fullrank.core.checks import check_given
from fullrank.core.errors import UserError
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.store import Store
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.impressions.store import AnyStore
from fullrank.evaluation.spec import Evaluation
from fullrank.models.ranking import ClickModel
from fullrank.run import Run, opened_run, require_problem, store_of


@dataclass(frozen=True)
class RetrievalStage:
    """A model that ranks a catalogue, and the store that it was trained on where that is needed."""

    model: Any
    catalog: Catalog
    store: Store | None = None
    """Needed for users by id, for their columns, and for evaluation."""
    evaluation: Evaluation = Evaluation()
    name: str = "the retriever"
    why_no_store: str = "there is none"
    """Why there is no store."""

    @classmethod
    def of(cls, stage: RetrievalStage | Run | str | Path, data: AnyStore | str | Path | None = None) -> RetrievalStage:
        """Open a run as a retriever.

        Raises `UserError` for a ranking model, and for a store given as `data` that is not the
        run's.
        """
        if isinstance(stage, RetrievalStage):
            return stage
        run = opened_run(stage)
        require_problem(run, "retrieval", "it may be the cascade's ranker (retrievers: `fullrank list recipes`)")
        store: Any = None
        why_no_store = ""
        try:
            store = store_of(run, data)
        except UserError as error:  # recommending from given histories needs none
            if data is not None:
                raise
            why_no_store = str(error)
        return cls(run.model(), run.catalog, store, run.spec.lists, str(run.path), why_no_store)

    def require_store(self) -> Store:
        """The store. Raises `UserError` where it is not there."""
        name = f"the store that {self.name} was trained on ({self.why_no_store})"
        return check_given(name, self.store, "name it by store=FOLDER", code="missing-store")


@dataclass(frozen=True)
class RankingStage:
    """A ranking model, and the encoder by which it reads impressions."""

    model: ClickModel
    encoder: FieldEncoder
    name: str = "the ranker"
    trained_until: int | None = None
    """The time of its last training impression (seconds); None where that is not known. Needed for evaluation."""

    @classmethod
    def of(cls, stage: RankingStage | Run | str | Path, data: AnyStore | str | Path | None = None) -> RankingStage:
        """Open a run as a ranker.

        Raises `UserError` for a run that is no ranking model, and for a store in `data` that is not
        its own. A run of format 1 needs its store, which is `data` where it was moved: `UserError`
        where it is not there.
        """
        if isinstance(stage, RankingStage):
            return stage
        run = opened_run(stage)
        require_problem(run, "ranking", "it may be the cascade's retriever (rankers: `fullrank list rankers`)")
        store = store_of(run, data) if run.needs_store else data
        encoder = run.encoder(store)
        model = run.model(encoder)
        assert isinstance(model, ClickModel)
        return cls(model, encoder, str(run.path), run.trained_until(store))
