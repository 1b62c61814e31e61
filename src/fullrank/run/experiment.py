"""Experiment: the root spec of a run. What to build, how to train it, how to evaluate it, and the seed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fullrank.core.constraints import (
    MOST_COUNT,
    MOST_EPOCHS,
    MOST_FACTOR,
    MOST_PARTS,
    MOST_SEED,
    MOST_VALUE,
    not_with,
)
from fullrank.core.errors import UserError, in_context, no_such, unknown
from fullrank.core.readers import read_text
from fullrank.core.registry import Problem, Room, component, kinds
from fullrank.core.spec import Spec, later
from fullrank.evaluation.spec import AnyEvaluation, Evaluation, RankingEvaluation
from fullrank.models.sequential.model import Recommender

Beta = Annotated[float, Field(ge=0, lt=1)]


class Training(Spec):
    """How a model is fitted by gradient descent (AdamW)."""

    max_epochs: int = Field(30, ge=0, le=MOST_EPOCHS)
    """Passes over the training rows; 0 takes the weights that training starts from as they are (zero-shot)."""
    batch_by: Literal["tokens", "rows"] = "tokens"
    """A batch is a number of events (rows of like length together) or a number of rows (drawn at random); an impression
    is one of either."""
    batch_size: int = Field(4096, ge=1, le=MOST_COUNT)
    """Events or rows per optimizer step, over all processes and micro-batches."""
    accumulate: int = Field(1, ge=1, le=MOST_PARTS)
    """Micro-batches that an optimizer step is split into."""
    lr: float = Field(1e-3, gt=0, le=100)
    """Peak learning rate."""
    weight_decay: float = Field(0.0, ge=0, le=MOST_FACTOR)
    """Decoupled weight decay on matrices and tables."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of AdamW's moments."""
    schedule: Literal["constant", "linear", "cosine", "one_cycle", "plateau"] = "constant"
    """Shape of the learning rate after the warm-up: constant, falling to 0, cosine up and down again (one cycle), or a
    tenth at each validation without improvement, down to 1e-6 (plateau)."""
    warmup: float = Field(0.0, ge=0, lt=1)
    """Share of all steps in which the learning rate rises from 0 (one cycle: from peak/25)."""
    clip_norm: float | None = Field(None, gt=0, le=MOST_FACTOR)
    """Largest gradient norm; null does not clip."""
    max_loss: float | None = later(1e4, gt=0, le=MOST_VALUE)
    """Largest mean loss of an epoch: above it training ends as failed. Losses here are of the order of ln V, what
    guessing among V items costs (of clicks ln 2); null is for a loss that is large by nature."""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """Arithmetic of the forward and backward pass (weights stay fp32); `auto` is bf16 on devices that multiply it
    (tensor cores; AMX of a CPU for what was measured there), fp32 elsewhere, and a run says which it was."""
    evaluate_every: int = Field(1, ge=1, le=MOST_EPOCHS)
    """Epochs between evaluations on the validation split; the best weights by `evaluation.selection` are kept."""
    patience: int | None = Field(None, ge=1, le=MOST_EPOCHS)
    """Evaluations without improvement of `evaluation.selection` before training stops; null runs all epochs."""
    keep: Literal["best", "last"] = later("best")
    """The weights that the run ends with: those of the best evaluation, or those of the last step."""
    ema: Annotated[float | None, not_with("shard_items", True), not_with("shard_encoder", True)] = later(
        None, ge=0.5, lt=1
    )
    """Validate and keep an exponential mean of the weights over the steps, with this share of its last value (.999:
    about the last thousand steps); null keeps the weights themselves. Takes their memory once more."""
    top_blocks: int | None = later(None, ge=0, le=MOST_PARTS)
    """Blocks of the encoder that are trained, from the top, where training starts from a run; the lower ones and the
    tables of items and positions stay as they are. Null trains everything."""
    compile: bool = later(False)
    """Let torch.compile make kernels of the encoder (of a ranking model the ranker): minutes at the start, for steps
    that may be shorter. Needs a compiler on the machine."""
    shard_items: bool = later(False)
    """Whether processes share out the rows of the item table, each with the moments of its own; else each holds all of
    them."""
    shard_encoder: bool = later(False)
    """Whether processes share out the blocks of the encoder (FSDP2), each with the moments of its own part; else each
    holds all of them."""
    checkpoint_minutes: float = Field(5.0, ge=0, le=1e6)
    """Minutes between checkpoints inside an epoch (each epoch's end writes one too); 0 writes one every step."""


class Experiment(Spec):
    """Everything that decides a run's numbers, but the data."""

    recipe: str = "custom"
    """Name of the recipe it came from."""
    model: Annotated[Spec, Room("recommender", "baselines", "blends", "click", "trees")] = Recommender()
    """The model that is trained."""
    training: Training = Training()
    """How it is trained; without effect on a baseline."""
    evaluation: AnyEvaluation = Evaluation()
    """How it is evaluated: by ranked lists, or a ranking model by its probabilities (`kind: clicks`)."""
    seed: int = Field(0, ge=0, le=MOST_SEED)
    """Seed of weights, batches, dropout and negatives."""

    @model_validator(mode="before")
    @classmethod
    def _evaluation_of_the_model(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and "evaluation" not in fields and _of_clicks(fields.get("model")):
            return {**fields, "evaluation": RankingEvaluation()}
        return fields

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        if _of_clicks(self.model) != (self.problem == "ranking"):
            rule = (
                "ranking models are evaluated by clicks; set evaluation=clicks, or leave it out"
                if _of_clicks(self.model)
                else "models of lists are evaluated by lists; leave out kind: clicks, or choose model=click"
            )
            raise UserError(f"evaluation: {rule}", code="evaluation-of-other-problem")
        return self

    @property
    def problem(self) -> Problem:
        """The family of models: retrieval or ranking."""
        return self.evaluation.problem

    @property
    def clicks(self) -> RankingEvaluation | None:  # named before the problem was called `ranking`
        """How click probabilities are evaluated; None where the model ranks items."""
        return self.evaluation if isinstance(self.evaluation, RankingEvaluation) else None

    @property
    def lists(self) -> Evaluation:  # the evaluation of retrieval
        """How ranked lists are evaluated. Raises `UserError` where the model is a ranking model."""
        if self.evaluation.problem == "ranking":
            raise UserError(
                f"{self.recipe} gives the probability of a click and ranks no catalogue: use `fullrank predict` and "
                "`fullrank evaluate`, or a recommender",
                code="not-a-recommender",
            )
        return self.evaluation


def _of_clicks(model: Any) -> bool:
    """Whether a model (a spec, its kind, or a mapping with the kind) predicts clicks."""
    kind = model.kind_of() if isinstance(model, Spec) else model.get("kind") if isinstance(model, dict) else model
    return kind in (*kinds("click"), *kinds("trees"))


def find_experiment(name: str | Path) -> Experiment:
    """Find an experiment by a recipe's name, a function ``module:function``, or a YAML or JSON file."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json"):
        with in_context(f"the experiment {path}: "):
            return Experiment.from_text(read_text(path))
    if ":" in str(name):
        return _from_function(str(name))
    if str(name) not in kinds("recipes"):
        raise unknown("recipe", str(name), kinds("recipes"))
    recipe = component(str(name), "recipes")
    experiment: Experiment = recipe().build() if isinstance(recipe, type) else recipe()  # a class: another package's
    return experiment


def _from_function(name: str) -> Experiment:
    """The experiment that ``module:function`` returns. Importing runs code:
    the name is the user's own."""
    module_name, _, function = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:
        raise UserError(
            f"the recipe {name!r}: cannot import {module_name!r} ({error}); write it as module:function",
            code="recipe-not-importable",
        ) from None
    recipes = [n for n, f in vars(module).items() if callable(f) and getattr(f, "__module__", "") == module_name]
    recipes = [n for n in recipes if not n.startswith("_") and not isinstance(getattr(module, n), type)]
    if function not in recipes:
        raise no_such(f"{module_name} has no recipe", function, recipes, code="unknown-recipe")
    try:
        experiment = getattr(module, function)()
    except TypeError as error:
        raise UserError(
            f"the recipe {name!r} cannot be called without arguments: {error}", code="recipe-not-callable"
        ) from None
    if not isinstance(experiment, Experiment):
        raise UserError(
            f"the recipe {name!r} returned {type(experiment).__name__}; a recipe returns an Experiment",
            code="not-an-experiment",
        )
    return experiment
