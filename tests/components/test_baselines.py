"""The checks of `fullrank.testing.baselines` catch planted faults."""

import pytest
import torch

from fullrank.models import DenseScorer
from fullrank.models.sequential.baselines.popularity import PopularityModel
from fullrank.testing.baselines import check_rows, check_training_alone


class Peeking(PopularityModel):
    """Planted: counts what was held out, too."""

    def fit(self, store):
        self.counts = torch.bincount(torch.as_tensor(store.items).long(), minlength=self.num_items).float()


class Padded(PopularityModel):
    """Planted: favours what stands in the padding."""

    max_length = 50

    def answer(self, batch):
        bonus = torch.nn.functional.one_hot(batch.items, self.num_items).sum(1).float()
        return DenseScorer(bonus, torch.eye(self.num_items))


@pytest.mark.parametrize(("fault", "check"), [(Peeking, check_training_alone), (Padded, check_rows)])
def test_planted_faults_are_caught(fault, check) -> None:
    def build(on):
        model = fault(on.num_items)
        model.fit(on)
        return model

    with pytest.raises(AssertionError):
        check(build)
