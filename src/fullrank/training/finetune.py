"""Fine-tune a run on another store in stages: the top block first, then one more each time, at last everything.

SRT (SIGIR 2024, Sec. 4.5; the steps as in the authors' code): with L blocks, stage i = 1 .. L
trains the top i of them and the map behind the tables of tokens, some epochs each; the tables of
tokens and of positions stay as they are. Then all is trained. Each stage begins at the last weights
of the one before, with a fresh optimizer and schedule.

Beside it the penalty `ewc` holds on to what mattered where training started: the diagonal of the
Fisher information, estimated on training batches (`fullrank fisher`),

    F_k = (1/N) sum over N batches of (d loss / d theta_k)^2

where the loss is a batch's mean, with dropout on and penalties left out (as in the authors' code:
N = 3,000 batches of the size of fine-tuning). The penalty reads the file.

Differs: the last stage keeps the best weights on validation (`training.keep=last` for the last
ones), and batches are not accumulated without scaling.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Unpack

import torch
from pydantic import Field
from torch import nn

from fullrank.core.checks import public, takes, with_defaults
from fullrank.core.constraints import MOST_EPOCHS, MOST_PARTS
from fullrank.core.device import resolve_device
from fullrank.core.errors import UserError, no_effect
from fullrank.core.log import Progress, logger
from fullrank.core.spec import Spec
from fullrank.core.tensor_files import write_tensors
from fullrank.data.events.store import Store, opened_store
from fullrank.models.sequential.model import Recommender, RecommenderModel
from fullrank.models.sequential.model.reading import blocks_of
from fullrank.models.sequential.regularizers.ewc import EWC, FISHER, START
from fullrank.run import Run, event_store_of, is_run, opened_run
from fullrank.training import FOLDER_DEFAULTS, FitKeywords, FolderKeywords
from fullrank.training.data_module import RetrievalData
from fullrank.training.fit import fit, without_gradients

log = logger(__name__)


@public
@takes(FolderKeywords, FOLDER_DEFAULTS, checked=True)
def finetune(
    run: Run | str | Path,
    data: Store | str | Path,
    out: str | Path,
    *,
    stages: Annotated[int, Field(ge=0, le=MOST_PARTS)] | None = None,
    stage_epochs: Annotated[int, Field(ge=1, le=MOST_EPOCHS)] | None = None,
    ewc: str | Path | None = None,
    ewc_weight: float | None = None,
    set: Sequence[str] = (),
    **options: Unpack[FolderKeywords],
) -> Run:
    """Fine-tune `run` on the store `data` and return the run folder `out`, opened.

    `stages` is how many blocks are freed one by one (from the top), each for `stage_epochs` (10)
    epochs, before all is trained; None is every block of the encoder, 0 trains all at once. Their
    runs stand beside `out`, in the folder OUT.stages. `ewc` is a file of `fisher_information`, with
    its weight (100). `set` changes settings of every stage, and the epochs of the last
    (`training.max_epochs`); what is not set is as in `run`. `resume` goes on where it was cut off.

    Raises `UserError` for a run that has no blocks to free, and for whatever `train` refuses.
    """
    how: FitKeywords = with_defaults(options, FOLDER_DEFAULTS)
    source, folder, store = opened_run(run), Path(out), opened_store(data)
    for name, option, without, why in (
        ("stage_epochs", stage_epochs, stages == 0, "stages=0 has no stages"),
        ("ewc_weight", ewc_weight, ewc is None, "ewc names no file"),
    ):
        if option is not None and without:
            raise no_effect(name, f"where {why}")
    epochs = 10 if stage_epochs is None else stage_epochs
    # a run may itself be a stage of fine-tuning, or zero-shot
    last = source.spec.override("training.top_blocks=null", "training.keep=best", *set)
    if last.training.max_epochs == 0:
        raise UserError(
            f"training.max_epochs=0, as in {source.path}, would train nothing: set it to the epochs of the last stage",
            code="no-epochs",
        )
    if ewc is not None:
        model: Spec = last.model
        if not isinstance(model, Recommender):
            raise UserError(
                f"ewc is of recommenders that are trained by gradient descent, and this is {model.kind_of()!r}: leave "
                "it out",
                code="not-a-recommender",
            )
        penalty = EWC.parse({"fisher": str(ewc), "weight": 100.0 if ewc_weight is None else ewc_weight})
        others = tuple(p for p in model.penalties if p.kind_of() != penalty.kind_of())  # it takes the place of one
        model = model.model_copy(update={"penalties": (*others, penalty)})
        last = last.model_copy(update={"model": model})
    blocks = _blocks(source) if stages is None else stages
    stage_settings = (f"training.max_epochs={epochs}", "training.keep=last", "training.patience=null")
    for stage in range(1, blocks + 2):
        path, spec, trained = folder, last, "everything"
        if stage <= blocks:
            path = folder.parent / f"{folder.name}.stages" / f"top-{stage}"
            spec = last.override(*stage_settings, f"training.top_blocks={stage}")
            trained = f"the top {stage} of {blocks} blocks"
        if blocks and how["progress"]:
            log.info(f"stage {stage} of {blocks + 1}: {trained}")
        begun = how["resume"] and is_run(path)  # one that has ended is compared with its settings, and taken
        stage_how: FitKeywords = {"resume": begun, "init_from": None if begun else source}
        source = fit(spec, store, path, **how | stage_how)
    return source


def _blocks(run: Run) -> int:
    """Number of blocks that a run's encoder has. Raises `UserError` where it has none."""
    model = run.model()
    count = len(blocks_of(model)) if isinstance(model, RecommenderModel) else 0
    if not count:
        raise UserError(
            f"{run.path} has no blocks to free one by one: set stages=0 (--stages 0), which trains all at once",
            code="encoder-without-blocks",
        )
    return count


MOST_BATCHES = 10**5
"""Most batches that the Fisher information is estimated on."""


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

    `data` is the store that the run was trained on, where it was moved; `batches` of it are read,
    in the order of training (epoch after epoch where there are fewer), of `batch_size` events or
    rows as in `training.batch_size`; None is the run's own. Returns `out`. Raises `UserError` for a
    run that has no gradient, and for another store.
    """
    opened = opened_run(run)
    path, where = Path(out), resolve_device(device)
    store = event_store_of(opened, data)
    spec = opened.spec if batch_size is None else opened.spec.override(f"training.batch_size={batch_size}")
    model = opened.model()
    if not isinstance(model, RecommenderModel):
        raise without_gradients(str(opened.path), "name a recommender that was trained")
    loader = RetrievalData(spec, store, opened.catalog).loader(model)
    model.to(where).train()
    parameters = dict(model.named_parameters())
    squares = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    model.penalties = nn.ModuleDict()  # the loss alone
    with torch.random.fork_rng(devices=[where] if where.type == "cuda" else []):
        for k in range(batches):
            torch.manual_seed(spec.seed + k)
            model.zero_grad(set_to_none=True)
            torch.stack(list(model(loader.batch(k).to(where)).values())).sum().backward()
            for name, parameter in parameters.items():
                if parameter.grad is not None:
                    squares[name].addcmul_(parameter.grad, parameter.grad, value=1 / batches)
            if progress is not None:
                progress(k + 1, batches)
    tensors = {FISHER + name: values for name, values in squares.items()}
    tensors |= {START + name: parameter.detach() for name, parameter in parameters.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, tensors)
    return path
