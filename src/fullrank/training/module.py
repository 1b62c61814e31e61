"""The LightningModule: one forward of named terms, AdamW, and the place that randomness is a function of."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import Tensor, nn

from fullrank.batch import Batch
from fullrank.experiment import Training
from fullrank.recommender import RecommenderModel
from fullrank.training.schedule import factor

_STRIDE = 1_000_003


class FitModule(lightning.LightningModule):
    """Holds a model while it is trained. `first` is the optimizer step that this process starts at."""

    def __init__(
        self, model: RecommenderModel, training: Training, seed: int, *, first: int, total: int, penalties: set[str]
    ):
        super().__init__()
        self.model, self.training_spec, self.seed = model, training, seed
        self.first, self.total, self.penalties = first, total, penalties
        self.optimizer_state: dict[str, Tensor] | None = None
        self.terms: dict[str, Tensor] = {}
        self.micro = 0

    def training_step(self, batch: Batch, index: int) -> Tensor:
        shards = self.training_spec.accumulate * self.trainer.world_size
        place = (batch.step * self.training_spec.accumulate + self.micro) * self.trainer.world_size
        torch.manual_seed((self.seed * _STRIDE + place + self.global_rank) % 2**63)
        total: Tensor | float = 0.0
        for name, value in self.model(batch).items():
            value = value * 0.0 if batch.filler else value
            value = value / shards if name in self.penalties else value
            self.terms[name] = self.terms.get(name, torch.zeros((), device=value.device)) + value.detach()
            total = total + value
        self.micro = (self.micro + 1) % self.training_spec.accumulate
        # DDP averages over processes and Lightning over micro-batches; the terms are shares of one sum
        assert isinstance(total, Tensor)
        return total * shards

    def take_terms(self) -> dict[str, Tensor]:
        """The terms summed over micro-batches since they were last taken."""
        taken, self.terms = self.terms, {}
        return taken

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: Any = None,
    ) -> None:
        """By norm. Lightning's own refuses fused optimizers under bf16, for the sake of a scaler that bf16 has not."""
        if gradient_clip_val:
            torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        return batch.to(device)

    def configure_optimizers(self) -> Any:
        optimizer = make_optimizer(self.model, self.training_spec)
        if self.optimizer_state is not None:
            load_optimizer(optimizer, self.optimizer_state)
        rate = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: factor(self.training_spec, self.first + step, self.total)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """AdamW; vectors (norms, biases) are not decayed."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": training.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=training.lr, betas=training.betas, fused=True)


def dump_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Its moments and counts, by parameter number."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": value for number, entry in state.items() for name, value in entry.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The inverse of `dump_optimizer`."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
