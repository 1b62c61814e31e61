"""One optimizer step, and what happens between steps: log rows, validation, best weights, patience, checkpoints.

`FitModule` is the LightningModule: one forward pass of named terms, AdamW, and the place (seed,
step, micro-batch, process) that every random draw is a function of. `TrainingLoop` is the
Lightning callback around it. Epochs are ours, not Lightning's: the batches are one stream from
the first step to the last.
"""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from fullrank.core.device import seed_draws
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject
from fullrank.core.tensor_files import write_tensors
from fullrank.data.events.loader import Batches
from fullrank.data.manifest import sha256_file
from fullrank.evaluation.spec import selection_sign
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.model import RecommenderModel
from fullrank.run.checkpoint import Checkpoint, CheckpointState, write_checkpoint
from fullrank.run.experiment import Experiment, Training
from fullrank.run.manifest import WEIGHTS
from fullrank.training import Callback, TrainState
from fullrank.training.data_module import AnyBatch, DataModule
from fullrank.training.distributed import ProcessRank, is_distributed, mean_by_row, sum_over_ranks
from fullrank.training.log import MetricsLog, TrainingProgress
from fullrank.training.mirror import Mirror
from fullrank.training.optim import (
    AveragedWeights,
    clip_gradients,
    dump_optimizer,
    load_optimizer,
    lr_factor,
    make_optimizer,
    plateau_factor,
    without_averages,
)
from fullrank.training.run_folder import RunFolder
from fullrank.training.shards import (
    Tensors,
    exclude_from_ddp,
    own,
    send_pieces,
    sharded_moments,
    sharded_parameters,
    whole,
    whole_blocks,
)

_STRIDE = 1_000_003
"""From one seed to the next: in a run of fewer micro-batches no step of one seed draws what a step of another does."""


class FitModule(lightning.LightningModule):
    """Holds a model while it is trained for `total` optimizer steps; `resumed`: the checkpoint it goes on from."""

    def __init__(
        self,
        model: RecommenderModel | RankingModule,
        training: Training,
        seed: int,
        total: int,
        resumed: Checkpoint | None = None,
    ):
        super().__init__()
        self.model, self.training_spec, self.seed, self.total = model, training, seed, total
        self.resumed, self.penalties = resumed, set(model.penalties)
        self.first, self.cuts = (0, 0) if resumed is None else (resumed.state.step, resumed.state.cuts)
        """The step that this process starts at, and how often the learning rate was cut (schedule `plateau`)."""
        self.terms: dict[str, Tensor] = {}
        self.micro_batch = 0
        ema = training.ema
        self.average = None if ema is None else AveragedWeights(model, ema)
        if self.average is not None and resumed is not None:
            self.average.load(resumed.optimizer, resumed.folder / "optimizer.safetensors")
        self.shards = {f"model.{name}": shard for name, shard in sharded_parameters(model).items()}
        """The parameters of which this process holds a part."""
        self.by_row = list(model.row_parameters())
        """Tables with sparse gradients, which processes sum by row."""
        exclude_from_ddp(self, model, self.by_row)

    def training_step(self, batch: AnyBatch, index: int) -> Tensor:
        """The loss of a micro-batch, scaled so that the means of DDP and Lightning
        are sums; its terms are noted."""
        shards = self.training_spec.accumulate * self.trainer.world_size
        position = (batch.step * self.training_spec.accumulate + self.micro_batch) * self.trainer.world_size
        seed_draws((self.seed * _STRIDE + position + self.global_rank) % 2**63, self.device)
        total: Tensor | float = 0.0
        for name, value in self.model(batch).items():
            # times 0, not left out: the graph stays, and DDP waits for a gradient of every
            # parameter
            value = value * 0.0 if batch.empty_shard else value
            # a penalty is whole in every shard, so it keeps the mean
            value = value / shards if name in self.penalties else value
            self.terms[name] = self.terms.get(name, torch.zeros((), device=value.device)) + value.detach()
            total = total + value
        self.micro_batch = (self.micro_batch + 1) % self.training_spec.accumulate
        # DDP averages over processes and Lightning over micro-batches; losses are shares
        # of one sum, so undo it
        assert isinstance(total, Tensor)
        return total * shards

    def kept_weights(self) -> AbstractContextManager[None]:
        """The model has the weights that the run keeps: the averages, where there are some."""
        return nullcontext() if self.average is None else self.average.shown()

    def take_terms(self) -> dict[str, Tensor]:
        """The terms summed over micro-batches since they were last taken."""
        taken, self.terms = self.terms, {}
        return taken

    def transfer_batch_to_device(self, batch: AnyBatch, device: torch.device, dataloader_idx: int) -> AnyBatch:
        return batch.to(device)

    def configure_optimizers(self) -> Any:
        optimizer = make_optimizer(self.model, self.training_spec)
        if self.resumed is not None:
            moments = without_averages(self.resumed.optimizer)
            moments = own(moments, sharded_moments(optimizer, moments, self.model))
            load_optimizer(optimizer, moments, self.resumed.folder / "optimizer.safetensors")
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self._factor(self.first + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        for table in self.by_row if is_distributed() else ():
            if table.grad is not None:
                table.grad = mean_by_row(table.grad)
        for name in self.shards:
            table = self.get_parameter(name)
            if table.grad is not None and table.grad.is_sparse:  # of look-ups alone, without an exact softmax
                table.grad = table.grad.to_dense()

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by norm. Lightning's own refuses fused optimizers under bf16, for a
        scaler that bf16 does not have."""
        if gradient_clip_val is not None:
            sharded = [p for name, p in self.named_parameters() if name in self.shards]
            clip_gradients(self.model.parameters(), float(gradient_clip_val), sharded)

    def cut(self, step: int) -> None:
        """Cut the learning rate, from optimizer step `step` on."""
        self.cuts += 1
        optimizer: Any = self.trainer.optimizers[0]
        for group in optimizer.param_groups:
            group["lr"] = self.training_spec.lr * self._factor(step)

    def _factor(self, step: int) -> float:
        """The multiple of the peak learning rate at a step."""
        return lr_factor(self.training_spec, step, self.total) * plateau_factor(self.training_spec, self.cuts)


LOG_EVERY = 50
"""Optimizer steps between step rows, and the fewest whose mean loss ends a training in mid-epoch."""
REMEDY = "lower training.lr or set training.clip_norm=1"


@dataclass(eq=False)
class TrainingLoop(lightning.Callback):
    """Log rows, validation, weights and checkpoints of a run, between the steps that Lightning takes."""

    experiment: Experiment
    data: DataModule
    loader: Batches
    out: RunFolder
    metrics_log: MetricsLog
    callbacks: tuple[Callback, ...]
    mirror: Mirror | None

    def begin(self, state: CheckpointState, progress: TrainingProgress) -> None:
        """Go on from a state, which is that of the first step where nothing is done yet."""
        self.progress = progress
        self.best, self.best_epoch, self.validations_without_gain = state.best, state.best_epoch, state.stale
        self.run_weights = state.run_weights
        self.epoch_sums = dict(state.sums)
        self.tokens, self.positions, self.seconds = state.pace
        self.saved_at = self.resumed_at = time.perf_counter()
        self.saved = False

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.resumed_at = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, module: FitModule, outputs: Any, batch: AnyBatch, index: int) -> None:  # type: ignore[override]
        """Count the batch; after a step's last micro-batch log it, and close the
        epoch or save where that is due."""
        now = time.perf_counter()
        self.seconds, self.resumed_at = self.seconds + now - self.resumed_at, now
        tokens, positions = self.data.batch_sizes(batch)
        self.tokens += 0 if batch.empty_shard else tokens
        self.positions += positions
        if module.micro_batch:
            return
        step = module.first + trainer.global_step
        if module.average is not None:
            module.average.update(step)
        terms = {name: sum_over_ranks(value) for name, value in module.take_terms().items()}
        for name, value in terms.items():
            self.epoch_sums[name] = self.epoch_sums.get(name, 0.0) + value
        loss, penalty = _objective(terms, module.penalties)
        epoch, inside = divmod(step, self.loader.steps_per_epoch)
        self._require_sound(loss + penalty, step, inside or self.loader.steps_per_epoch, module.penalties)
        if trainer.is_global_zero:
            self.progress.advance(step, f"epoch {epoch + 1}  {_loss_text(loss, penalty, module.penalties)}")
            if step % LOG_EVERY == 0:
                rate = trainer.optimizers[0].param_groups[0]["lr"]
                figures = {"loss": loss, **terms, "lr": rate}
                self.metrics_log.add("step", step, step / self.loader.steps_per_epoch, figures)
            if inside:  # an epoch's end has a row of its own
                self._watch(module, step, epoch)
        if inside and not self._checkpoint_is_due(module):
            return
        self._require_finite_state(trainer, module, step)
        if inside == 0:
            self._close_epoch(trainer, module, step, epoch)
        else:
            self._save(trainer, module, step)
        self.resumed_at = time.perf_counter()  # validation and checkpoints are not training

    def _require_sound(self, objective: float, step: int, steps: int, penalties: set[str]) -> None:
        """Raise `UserError` where the loss is not finite, or its mean over the epoch's
        `steps` so far is too large."""
        if not math.isfinite(objective):
            raise UserError(f"the loss is {objective} at step {step}: {REMEDY}", code="loss-not-finite")
        largest = self.experiment.training.max_loss
        mean = _objective(self.epoch_sums, penalties)[0] / steps
        if largest is not None and mean > largest and (steps >= LOG_EVERY or steps == self.loader.steps_per_epoch):
            raise UserError(
                f"the loss is {mean:.4g} in the mean of an epoch's first {steps:,} steps (at step {step:,}), above "
                f"training.max_loss={largest:g}: {REMEDY}, and see model.scoring.temperature; for a loss that is large "
                "by nature, set training.max_loss=null",
                code="loss-too-large",
            )

    def _require_finite_state(self, trainer: Any, module: FitModule, step: int) -> None:
        """Raise `UserError` before weights or moments that are not finite are written anywhere."""
        state = [value for entry in trainer.optimizers[0].state.values() for value in entry.values()]
        values = [*module.model.state_dict().values(), *(tensor for tensor in state if isinstance(tensor, Tensor))]
        local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in values]
        broken = float(not all(bool(tensor.isfinite().all()) for tensor in local))
        if module.shards:  # others hold other rows
            broken = sum_over_ranks(torch.tensor(broken, device=module.device))
        if broken:
            raise UserError(
                f"weights, or moments of the optimizer, are not finite behind step {step}: {REMEDY}",
                code="weights-not-finite",
            )

    def _checkpoint_is_due(self, module: FitModule) -> bool:
        """Whether it is time for one, by the clock of this process, or of the first
        where all write one together."""
        due = time.perf_counter() - self.saved_at >= 60 * self.experiment.training.checkpoint_minutes
        if not module.shards:
            return due
        return sum_over_ranks(torch.tensor(float(due and module.global_rank == 0), device=module.device)) > 0

    def _close_epoch(self, trainer: Any, module: FitModule, step: int, epoch: int) -> None:
        """Validate where it is time, write the epoch's row, decide
        whether training ends, and save."""
        training = self.experiment.training
        steps = self.loader.steps_per_epoch
        means = {name: value / steps for name, value in self.epoch_sums.items()}
        loss, penalty = _objective(means, module.penalties)
        figures: JsonObject = {f"train/{name}": value for name, value in means.items()} | {"train/loss": loss}
        computed = torch.tensor([float(self.tokens), float(self.positions)], device=module.device)
        tokens, positions = (sum_over_ranks(number) for number in computed)
        pace = self.data.throughput(tokens, positions, self.seconds)
        figures |= {**pace, "seconds": round(self.seconds, 3)}
        self.epoch_sums, self.tokens, self.positions, self.seconds = {}, 0, 0, 0.0
        final = step >= module.total
        if self.data.validates and (epoch % training.evaluate_every == 0 or final):
            figures |= self._validate(module, step, epoch)
        trainer.should_stop = training.patience is not None and self.validations_without_gain >= training.patience
        if trainer.is_global_zero:
            state = self._state(module, step, epoch)
            for callback in self.callbacks:
                figures |= callback.on_epoch(state)
            self.metrics_log.add("epoch", step, epoch, figures)
            selection = self.experiment.evaluation.selection
            score = figures.get(f"validation/{selection}")
            shown = "" if score is None else f"  {selection} {score:.4f} (best {self.best:.4f})"
            rate = ", ".join(_paced(name, value) for name, value in pace.items())
            shown += "".join(_headline(callback, figures) for callback in self.callbacks)
            line = f"epoch {epoch}/{training.max_epochs}  {_loss_text(loss, penalty, module.penalties)}"
            self.progress.epoch(step, f"{line}{shown}  {rate}")
        if (final or trainer.should_stop) and (self.best is None or training.keep == "last"):
            self._write_weights(module)
        self._save(trainer, module, step, finished=final or trainer.should_stop)

    def _state(self, module: FitModule, step: int, epoch: int) -> TrainState:
        """The arguments of a callback."""
        return TrainState(module.model, self.data.store, self.out.path, step, epoch)

    def _watch(self, module: FitModule, step: int, epoch: int) -> None:
        """Log a row for each callback whose turn it is inside an epoch."""
        state = self._state(module, step, epoch)
        for callback in self.callbacks:
            every = getattr(callback, "every", None)
            if every is not None and step % every == 0:
                self.metrics_log.add("watch", step, step / self.loader.steps_per_epoch, callback.on_epoch(state))
                self.resumed_at = time.perf_counter()  # watching is not training

    def _validate(self, module: FitModule, step: int, epoch: int) -> dict[str, float]:
        """Validation metrics; the best weights so far are written as the run's
        weights, unless the last are kept."""
        spec, begun = self.experiment.evaluation, time.perf_counter()
        rank = ProcessRank(module.global_rank, module.trainer.world_size)
        with whole_blocks(module.model), module.kept_weights():
            score = self.data.score(module.model, module.device, rank)
        if self.best is None or selection_sign(spec) * score > selection_sign(spec) * self.best:
            self.best, self.best_epoch, self.validations_without_gain = score, epoch, 0
            if self.experiment.training.keep == "best":
                self._write_weights(module)
        else:
            self.validations_without_gain += 1
            if self.experiment.training.schedule == "plateau":
                module.cut(step)
        seconds = round(time.perf_counter() - begun, 3)
        return {f"validation/{spec.selection}": score, "validation_seconds": seconds}

    def _weights(self, module: FitModule) -> Tensors:
        return whole(module.model.state_dict(), sharded_parameters(module.model))

    def _write_weights(self, module: FitModule) -> None:
        """Write the run's weights, to which all processes send their
        parts; the first one writes."""
        with module.kept_weights():
            weights = self._weights(module)
            if module.global_rank:
                send_pieces(weights)
                return
            write_tensors(self.out.path / WEIGHTS, weights)
        self.run_weights = sha256_file(self.out.path / WEIGHTS)

    def _save(self, trainer: Any, module: FitModule, step: int, finished: bool = False) -> None:
        """Write a checkpoint, to which all processes send their parts; the first
        one puts the run in its place."""
        state = CheckpointState(
            step=step,
            best=self.best,
            best_epoch=self.best_epoch,
            stale=self.validations_without_gain,
            sums=self.epoch_sums,
            pace=(self.tokens, self.positions, self.seconds),
            finished=finished,
            cuts=module.cuts,
            run_weights=self.run_weights,
        )
        optimizer = trainer.optimizers[0]
        weights, own_moments = self._weights(module), dump_optimizer(optimizer)
        moments = whole(own_moments, sharded_moments(optimizer, own_moments, module.model))
        moments |= {} if module.average is None else module.average.dump()
        if trainer.is_global_zero:
            write_checkpoint(self.out.path, weights, moments, state)
            if self.out.publish():
                self.metrics_log.move(self.out.path)
            if self.mirror is not None:
                self.mirror.push(self.out.path)
        else:
            send_pieces(weights, moments)
        if not self.saved:
            trainer.strategy.barrier()  # no process ends, and opens the run, before it is in its place
            self.saved = True
        self.saved_at = time.perf_counter()


def _objective(terms: dict[str, float], penalties: set[str]) -> tuple[float, float]:
    """The loss and the penalties, apart: a logarithm may be far below zero and
    would hide what is learned."""
    return (
        sum(value for name, value in terms.items() if name not in penalties),
        sum(value for name, value in terms.items() if name in penalties),
    )


def _headline(callback: Callback, figures: JsonObject) -> str:
    """The part of the epoch's line that a callback adds."""
    names: str | tuple[str, ...] = getattr(callback, "headline", "")
    pairs = ((name, figures.get(name)) for name in ([names] if isinstance(names, str) else names))
    return "".join(
        f"  {name.rsplit('/')[-1].replace('_', ' ')} {value:.3f}" for name, value in pairs if value is not None
    )


def _paced(name: str, value: float) -> str:
    """`24,009 rows/s`, `padding 4%`."""
    if name.endswith("_share"):
        return f"{name.removesuffix('_share').replace('_', ' ')} {value:.0%}"
    return f"{value:,.0f} {name.removesuffix('_per_s')}/s" if name.endswith("_per_s") else f"{name} {value:g}"


def _loss_text(loss: float, penalty: float, penalties: set[str]) -> str:
    return f"loss {loss:.4f}" + (f"  penalty {penalty:.4f}" if penalties else "")
