"""Diagnostics of models with features read events, and no token of the user that stands before them."""

import pytest
import torch

from featured import FeaturedStore, some_tables
from fullrank.analysis.diagnose import diagnose_retrieval
from fullrank.models.sequential.encoders.transformer import Transformer
from fullrank.models.sequential.model import Recommender, RecommenderModel
from markets import planted_store

SPECS = {"attention": (), "reasoner": ("task=last_item", "reasoner=plr"), "filters": ("encoder=fmlp",)}


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> FeaturedStore:
    store = planted_store(tmp_path_factory.mktemp("market") / "store", "duplicates=first")
    return FeaturedStore.of(store, **some_tables(store.num_events, store.num_users))


def built(rich: FeaturedStore, user_at: str, *settings: str) -> RecommenderModel:
    encoder = Transformer(layers=2, feed_forward="mlp")
    spec = Recommender(dim=8, max_length=10, encoder=encoder).override(f"features={{user_at: {user_at}}}", *settings)
    torch.manual_seed(0)
    return spec.build(rich.catalog).eval()


@pytest.mark.parametrize("name", SPECS)
def test_events_are_counted_without_the_token(rich: FeaturedStore, name: str) -> None:
    """What is said of the events that are read is the same for either place of the user's features."""
    events = []
    for user_at in ("places", "prefix"):
        rows = diagnose_retrieval(built(rich, user_at, *SPECS[name]), rich).rows
        of_data = ("keys", "users", "asked", "even")
        events.append([row for row in rows if row["name"] in of_data and row["diagnostic"] in ("attention", "focus")])
        assert len(rows) > 50
    assert events[0] == events[1] and (name == "filters" or events[0])
