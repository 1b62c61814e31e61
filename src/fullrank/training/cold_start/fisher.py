"""How much each weight of a run matters to it: the diagonal of the Fisher information, estimated on training batches.

F_k = (1/N) sum over N batches of (d loss / d theta_k)^2, the loss a batch's mean, dropout on, penalties left out (SRT,
SIGIR 2024, Sec. 4.5, as in the authors' code: N = 3,000 batches of the size of fine-tuning). The penalty `ewc` reads
the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from fullrank.core.checks import public
from fullrank.core.device import resolve_device
from fullrank.core.errors import UserError
from fullrank.core.log import Progress
from fullrank.core.tensor_files import write_tensors
from fullrank.data.events.store import Store
from fullrank.models.sequential.model import RecommenderModel
from fullrank.models.sequential.regularizers.ewc import FISHER, START
from fullrank.run import Run, event_store_of
from fullrank.training.retrieval_data import RetrievalData

MOST_BATCHES = 10**5


@public
def fisher_information(
    run: Run | str | Path,
    out: str | Path,
    *,
    data: Store | str | Path | None = None,
    batches: Annotated[int, Field(ge=1, le=MOST_BATCHES)] = 3000,
    batch_size: Annotated[int, Field(ge=1)] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Path:
    """Write the file that the penalty `ewc` reads: the weights of a run and how much each of them matters.

    `data` is the store that the run was trained on, where it was moved; `batches` of it are read, in the order of
    training (epoch after epoch where there are fewer), of `batch_size` events or rows as in `training.batch_size`; None
    is the run's own. Returns `out`. Raises `UserError` for a run that has no gradient, and for another store.
    """
    opened = run if isinstance(run, Run) else Run.open(run)
    place, where = Path(out), resolve_device(device)
    store = event_store_of(opened, data)
    spec = opened.spec if batch_size is None else opened.spec.override(f"training.batch_size={batch_size}")
    model = opened.model()
    if not isinstance(model, RecommenderModel):
        raise UserError(
            f"{opened.path} is a baseline, which is fitted without gradients; name a recommender that was trained",
            code="baseline-without-training",
        )
    loader = RetrievalData(spec, store, opened.catalog).loader(model)
    model.to(where).train()
    own = dict(model.named_parameters())
    squares = {name: torch.zeros_like(parameter) for name, parameter in own.items()}
    model.penalties = nn.ModuleDict()  # the loss alone
    with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
        for k in range(batches):
            torch.manual_seed(spec.seed + k)
            model.zero_grad(set_to_none=True)
            torch.stack(list(model(loader.batch(k).to(where)).values())).sum().backward()
            for name, parameter in own.items():
                if parameter.grad is not None:
                    squares[name].addcmul_(parameter.grad, parameter.grad, value=1 / batches)
            if progress is not None:
                progress(k + 1, batches)
    kept = {FISHER + name: values for name, values in squares.items()}
    kept |= {START + name: parameter.detach() for name, parameter in own.items()}
    place.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(place, kept)
    return place
