"""Every baseline passes the checks of `fullrank.testing.baselines`, which catch planted faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from discover import Pair
from fullrank.data.batch import Batch, DenseScorer
from fullrank.data.events.store import Store
from fullrank.models.sequential.baselines.popularity import PopularityModel
from fullrank.testing.baselines import check_rows, check_training_alone
from tests.components.cases import every_kind, run_checks


@every_kind("baselines")
def test_baselines(pair: Pair) -> None:
    run_checks(pair)


class Peeking(PopularityModel):
    """Planted: counts what was held out, too."""

    def fit(self, store: Store) -> None:
        self.counts = torch.bincount(torch.as_tensor(store.items).long(), minlength=self.num_items).float()


class Padded(PopularityModel):
    """Planted: favours what stands in the padding."""

    max_length = 50

    def answer(self, batch: Batch) -> DenseScorer:
        bonus = torch.nn.functional.one_hot(batch.items, self.num_items).sum(1).float()
        return DenseScorer(bonus, torch.eye(self.num_items))


@pytest.mark.parametrize(("fault", "check"), [(Peeking, check_training_alone), (Padded, check_rows)])
def test_planted_faults_are_caught(fault: type[PopularityModel], check: Callable[[Any], None]) -> None:
    def build(on: Store) -> Any:
        model = fault(on.num_items)
        model.fit(on)
        return model

    with pytest.raises(AssertionError):
        check(build)
