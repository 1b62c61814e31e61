"""Recommenders that are fitted at once, at their defaults: what every trained model has to beat.

Sources: item_to_item is that of Sarwar et al. 2001 in its session form (Ludewig & Jannach,
arXiv:1803.09587), transition_graph is after Han et al. 2026 (arXiv:2605.07125), ease is of
Steck 2019 (arXiv:1905.03375), ials of Hu et al. 2008 as of Rendle et al. 2021
(arXiv:2110.14037), bpr of Rendle et al. 2009 (arXiv:1205.2618), session_knn of Ludewig &
Jannach and of Kersbergen et al. 2022.

Command: ``fullrank train popularity --data data/beauty --out runs/popularity`` (or `recency`,
`item_to_item`, `transition_graph`, `ease`, `ials`, `bpr`, `session_knn`). Cost: seconds; `ease` a
minute for 12,000 items, `bpr` two seconds for each of its 120 epochs over 150,000 events. Numbers:
`results/sequence/`, `results/shortcut/`.
"""

from __future__ import annotations

from fullrank.models.sequential.baselines.bpr import BPR
from fullrank.models.sequential.baselines.ease import EASE
from fullrank.models.sequential.baselines.ials import IALS
from fullrank.models.sequential.baselines.item_to_item import ItemToItem
from fullrank.models.sequential.baselines.popularity import Popularity, Recency
from fullrank.models.sequential.baselines.session_knn import SessionKNN
from fullrank.models.sequential.baselines.transition_graph import TransitionGraph
from fullrank.recipes import recipe
from fullrank.run.experiment import Experiment


@recipe(needs="events")
def popularity() -> Experiment:
    """Popularity: the items with the most training events, for everybody; no training."""
    return Experiment(recipe="popularity", model=Popularity())


@recipe(needs="events, times")
def recency() -> Experiment:
    """Recent popularity: training events that lose half their weight every 30 days; no training, needs times."""
    return Experiment(recipe="recency", model=Recency())


@recipe(needs="events")
def item_to_item() -> Experiment:
    """Item-to-item: co-occurrence with the last events of a history (Sarwar et al. 2001); no training."""
    return Experiment(recipe="item_to_item", model=ItemToItem())


@recipe(needs="events")
def ease() -> Experiment:
    """EASE: each item by a linear regression on the others, in closed form (Steck 2019); no training."""
    return Experiment(recipe="ease", model=EASE())


@recipe(needs="events")
def ials() -> Experiment:
    """iALS: factors of users and items by alternating least squares (Hu et al. 2008; Rendle et al. 2021)."""
    return Experiment(recipe="ials", model=IALS())


@recipe(needs="events")
def bpr() -> Experiment:
    """BPR-MF: factors of users and items, trained on pairs of items by gradient descent (Rendle et al. 2009)."""
    return Experiment(recipe="bpr", model=BPR())


@recipe(needs="events")
def session_knn() -> Experiment:
    """Session kNN: items of the training sessions most like the last events (V-SKNN, VMIS-kNN); no training."""
    return Experiment(recipe="session_knn", model=SessionKNN())


@recipe(needs="events; better with titles or attributes")
def transition_graph() -> Experiment:
    """Transition graph: successors of the last five items, and items like them (after
    arXiv:2605.07125); no training."""
    model = TransitionGraph(history=5, window_decay=0.55, backward=0.1, similarity=1.4)
    return Experiment(recipe="transition_graph", model=model)
