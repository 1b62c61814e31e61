"""The LightningModule: one forward of named terms, AdamW, and the place that randomness is a function of."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import Tensor, nn

from fullrank.experiment import Training
from fullrank.models.ranking.model import RankingModule
from fullrank.models.sequential.model import RecommenderModel
from fullrank.training.data_module import AnyBatch
from fullrank.training.optim import RowOptimizer, clip
from fullrank.training.schedule import after_cuts, factor

_STRIDE = 1_000_003


class FitModule(lightning.LightningModule):
    """Holds a model while it is trained. `first` is the optimizer step that this process starts at."""

    def __init__(
        self,
        model: RecommenderModel | RankingModule,
        training: Training,
        seed: int,
        *,
        first: int,
        total: int,
        cuts: int = 0,
    ):
        super().__init__()
        self.model, self.training_spec, self.seed = model, training, seed
        self.first, self.total, self.penalties = first, total, set(model.penalties)
        self.cuts = cuts
        """How often the learning rate was cut (schedule `plateau`)."""
        self.optimizer_state: dict[str, Tensor] | None = None
        self.terms: dict[str, Tensor] = {}
        self.micro = 0

    def training_step(self, batch: AnyBatch, index: int) -> Tensor:
        shards = self.training_spec.accumulate * self.trainer.world_size
        place = (batch.step * self.training_spec.accumulate + self.micro) * self.trainer.world_size
        torch.manual_seed((self.seed * _STRIDE + place + self.global_rank) % 2**63)
        total: Tensor | float = 0.0
        for name, value in self.model(batch).items():
            value = value * 0.0 if batch.empty_shard else value
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

    def transfer_batch_to_device(self, batch: AnyBatch, device: torch.device, dataloader_idx: int) -> AnyBatch:
        return batch.to(device)

    def configure_optimizers(self) -> Any:
        optimizer = make_optimizer(self.model, self.training_spec)
        if self.optimizer_state is not None:
            load_optimizer(optimizer, self.optimizer_state)
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self._factor(self.first + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """By norm. Lightning's own refuses fused optimizers under bf16, for the sake of a scaler that bf16 has not."""
        if gradient_clip_val is not None:
            clip(self.model.parameters(), float(gradient_clip_val))

    def cut(self, step: int) -> None:
        """Cut the learning rate, from optimizer step `step` on."""
        self.cuts += 1
        optimizer: Any = self.trainer.optimizers[0]
        for group in optimizer.param_groups:
            group["lr"] = self.training_spec.lr * self._factor(step)

    def _factor(self, step: int) -> float:
        return factor(self.training_spec, step, self.total) * after_cuts(self.training_spec, self.cuts)


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """AdamW; vectors (norms, biases) are not decayed. Tables with sparse gradients are updated row by row."""
    update = model.embedding.spec.update if isinstance(model, RankingModule) else None
    rows = model.row_parameters() if isinstance(model, RankingModule) else []
    own = {id(p) for p in rows}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in own]
    matrices, vectors = [p for p in others if p.ndim >= 2], [p for p in others if p.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": training.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if rows:
        tables = {"params": rows, "weight_decay": training.weight_decay, "rows": update}
        return RowOptimizer([*groups, tables], lr=training.lr, betas=training.betas)
    return torch.optim.AdamW(groups, lr=training.lr, betas=training.betas, fused=True)


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
