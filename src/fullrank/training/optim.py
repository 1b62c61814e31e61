"""The optimizer, its learning rate as a function of the step, and averages of the weights that it leaves.

AdamW for most parameters, and for large tables an update of the rows that a batch
touched, and of no others:

    lazy_adam        Adam whose moments of a row move only in steps that touch it; bias correction by steps in all
    rowwise_adagrad  s_r += mean_d g_rd^2,  w_r -= lr g_r / (sqrt(s_r) + eps): one number of state per row (FBGEMM)

A step costs what the batch holds, not what the table holds. Decoupled weight decay
reaches the touched rows.

The learning rate warms up and is then constant, linear, cosine or one cycle: a pure function of
the step. With the schedule `plateau` it also depends on how many validations brought no
improvement (as in FuxiCTR).

Averaged weights (`training.ema`) are an exponential mean over optimizer steps, which a
run validates and keeps:

    a_t = b_t a_{t-1} + (1 - b_t) w_t,   b_t = min(ema, (1 + t) / (10 + t))

so that the first steps do not hold the random start. Training itself goes on from w. The mean of
the last 1 / (1 - ema) steps takes out the noise that a learning rate which does not fall leaves in
them (Polyak & Juditsky 1992).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fullrank.core.errors import brief
from fullrank.core.files import JsonObject
from fullrank.models.ranking.model import RankingModule
from fullrank.run.checkpoint import damaged_checkpoint
from fullrank.run.experiment import Training
from fullrank.training.distributed import sum_over_ranks

EPS = 1e-8
"""Added to the root of squares that a step is divided by."""
Group = JsonObject
"""Parameters with the settings of their update, as torch's optimizers have them."""


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """AdamW; vectors (norms, biases) are not decayed. Tables with sparse gradients are updated row by row."""
    update = model.embedding.spec.update if isinstance(model, RankingModule) else None
    rows = model.row_parameters() if isinstance(model, RankingModule) else []
    by_row = {id(p) for p in rows}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in by_row]
    matrices, vectors = [p for p in others if p.ndim >= 2], [p for p in others if p.ndim < 2]
    groups: list[Group] = [
        {"params": matrices, "weight_decay": training.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if rows:
        tables = {"params": rows, "weight_decay": training.weight_decay, "rows": update}
        return RowOptimizer([*groups, tables], lr=training.lr, betas=training.betas)
    # no kernel takes parameters of FSDP2 together with others
    fused = not any(isinstance(p, DTensor) for p in others)
    return torch.optim.AdamW(groups, lr=training.lr, betas=training.betas, fused=fused, foreach=False)


def dump_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's moments and counts, named by parameter number."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": value for number, entry in state.items() for name, value in entry.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], where: Path) -> None:
    """The inverse of `dump_optimizer`. Raises `UserError` where the tensors, of file
    `where`, are not its moments."""
    groups: list[Group] = optimizer.param_groups
    owners = [(parameter, group.get("rows")) for group in groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        digits, _, name = key.partition(".")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits) < len(owners)):
            raise damaged_checkpoint(where, f"{brief(key, 80)} belongs to none of the {len(owners)} parameters")
        state.setdefault(int(digits), {})[name] = value
    if not state:
        raise damaged_checkpoint(where, "it holds no moments")
    for number, entry in state.items():
        parameter, rows = owners[number]
        expected = {"step": torch.Size([]), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}
        if rows == "rowwise_adagrad":
            expected = {"sum": torch.Size([len(parameter)])}
        for name in sorted(expected.keys() ^ entry.keys()):
            problem = f"lacks {number}.{name}" if name in expected else f"holds {brief(f'{number}.{name}', 80)}"
            raise damaged_checkpoint(where, f"it {problem} (moments of this optimizer: {', '.join(expected)})")
        for name, shape in expected.items():
            moment = entry[name]
            if moment.dtype != torch.float32 or moment.shape != shape or not bool(moment.isfinite().all()):
                expected_type = f"expected finite torch.float32 {tuple(shape)}"
                reason = f"{number}.{name} is {moment.dtype} {tuple(moment.shape)}, {expected_type}"
                raise damaged_checkpoint(where, reason)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


class RowOptimizer(torch.optim.Optimizer):
    """Groups with `rows` (the name of the update) hold tables with sparse gradients, the others go to AdamW."""

    def __init__(self, groups: Iterable[Group], *, lr: float, betas: tuple[float, float]):
        groups = [{"rows": None, "weight_decay": 0.0, **group} for group in groups]
        super().__init__(groups, {"lr": lr, "betas": betas})
        dense = [group for group in self.param_groups if group["rows"] is None]
        settings = [{k: v for k, v in group.items() if k != "rows"} for group in dense]
        self.dense = torch.optim.AdamW(settings, lr=lr, betas=betas, fused=True) if settings else None
        self._link()
        self.register_load_state_dict_post_hook(lambda _: self._link())

    def _link(self) -> None:
        """AdamW shares our groups and state: a schedule sets the rate of
        both, a checkpoint holds both."""
        if self.dense is not None:
            mine = [group for group in self.param_groups if group["rows"] is None]
            for ours, theirs in zip(mine, self.dense.param_groups, strict=True):
                for key, value in theirs.items():
                    ours.setdefault(key, value)
            self.dense.param_groups, self.dense.state = mine, self.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.dense is not None:
            self.dense.step()
        for group in self.param_groups:
            for parameter in group["params"] if group["rows"] else ():
                if parameter.grad is not None:
                    self._touch(parameter, group)
        return loss

    @torch.no_grad()
    def _touch(self, table: nn.Parameter, group: Group) -> None:
        """Update the rows of a table that have a gradient."""
        assert table.grad is not None
        grad = table.grad.coalesce()
        rows, values = grad.indices()[0], grad.values()
        if group["weight_decay"]:
            table[rows] *= 1 - group["lr"] * group["weight_decay"]
        move = rowwise_adagrad if group["rows"] == "rowwise_adagrad" else lazy_adam
        table.index_add_(0, rows, move(self.state[table], table, rows, values, group), alpha=-group["lr"])


def lazy_adam(state: dict[str, Tensor], table: Tensor, rows: Tensor, values: Tensor, group: Group) -> Tensor:
    """Adam whose moments of other rows stay: the step [n, D] of the touched `rows` [n] at learning rate 1.

    `values` [n, D] are the gradients of these rows.
    """
    if not state:
        state |= {"exp_avg": torch.zeros_like(table), "exp_avg_sq": torch.zeros_like(table)}
        state["step"] = torch.zeros((), device="cpu")
    state["step"] += 1
    low, high = group["betas"]
    mean = state["exp_avg"][rows].mul_(low).add_(values, alpha=1 - low)
    square = state["exp_avg_sq"][rows].mul_(high).addcmul_(values, values, value=1 - high)
    state["exp_avg"][rows], state["exp_avg_sq"][rows] = mean, square
    steps = float(state["step"])
    return mean / (1 - low**steps) / ((square / (1 - high**steps)).sqrt() + EPS)


def rowwise_adagrad(state: dict[str, Tensor], table: Tensor, rows: Tensor, values: Tensor, group: Group) -> Tensor:
    """Adagrad with one sum of squares per row: the step [n, D] of the touched `rows` [n] at learning rate 1.

    `values` [n, D] are the gradients of these rows.
    """
    if not state:
        state["sum"] = table.new_zeros(len(table))
    state["sum"].index_add_(0, rows, values.square().mean(1))
    return values / (state["sum"][rows].sqrt() + EPS)[:, None]


def clip_gradients(parameters: Iterable[nn.Parameter], largest: float, sharded: Sequence[nn.Parameter] = ()) -> None:
    """Scale all gradients so that their common norm is at most `largest`; sparse ones are summed by row first.

    Of the parameters `sharded`, other processes hold other rows, which count as well.
    """
    trained = [p for p in parameters if p.grad is not None]
    if not sharded and not any(p.grad.is_sparse for p in trained if p.grad is not None):
        nn.utils.clip_grad_norm_(trained, largest)
        return
    apart, values = {id(p) for p in sharded}, list[Tensor]()
    here, shared = list[Tensor](), list[Tensor]()
    for p in trained:
        assert p.grad is not None
        p.grad = p.grad.coalesce() if p.grad.is_sparse else p.grad
        held = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
        values.append(held.values() if held.is_sparse else held)
        square = torch.linalg.vector_norm(values[-1]).square()
        (shared if id(p) in apart else here).append(square)
    if shared:
        here.append(shared[0].new_tensor(sum_over_ranks(torch.stack(shared).sum())))
    norm = torch.stack(here).sum().sqrt()
    scale = (largest / (norm + 1e-6)).clamp(max=1.0)
    for v in values:
        v.mul_(scale)


def lr_factor(training: Training, step: int, total: int) -> float:
    """Multiple of the peak learning rate at optimizer step `step` (from 0) of `total`."""
    rise = round(training.warmup * total)
    if training.schedule == "one_cycle":  # cosine from 1/25 up to 1, cosine down to 1/10 (SRT, released schedule)
        rise, total = max(1, rise), max(2, total)
        low, high, done = 1.0, 1 / 10, min(1.0, (step - rise) / max(1, total - rise))
        if step < rise:
            low, high, done = 1 / 25, 1.0, step / rise
        return low + (high - low) * 0.5 * (1 - math.cos(math.pi * done))
    if step < rise:
        return (step + 1) / (rise + 1)
    done = min(1.0, (step - rise) / max(1, total - rise))
    if training.schedule == "linear":
        return 1.0 - done
    if training.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1.0


CUT, FLOOR = 0.1, 1e-6
"""Factor of each cut of the schedule `plateau`, and the rate that cuts do not go below."""


def plateau_factor(training: Training, cuts: int) -> float:
    """Multiple of the learning rate that is left after `cuts`; 1 for the other schedules."""
    if training.schedule != "plateau":
        return 1.0
    return max(CUT**cuts, min(1.0, FLOOR / training.lr))


PREFIX = "average/"
"""Beginning of the names that averages have among the tensors of an optimizer's file."""


class AveragedWeights:
    """The averages of a model's parameters."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.parameters = {name: weights for name, weights in model.named_parameters() if weights.requires_grad}
        self.values = {name: weights.detach().clone() for name, weights in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights behind optimizer step `step`, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, parameter in self.parameters.items():  # a device that the model has moved to since
            self.values[name] = self.values[name].to(parameter.device)
        torch._foreach_lerp_(list(self.values.values()), list(self.parameters.values()), 1 - decay)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Give the model the averages for its weights, for a while."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        """Exchange the model's weights and the averages."""
        for name, parameter in self.parameters.items():
            parameter.data, self.values[name] = self.values[name], parameter.data

    def dump(self) -> dict[str, Tensor]:
        """The averages as tensors of an optimizer's file."""
        return {f"{PREFIX}{name}": value for name, value in self.values.items()}

    def load(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        """The inverse of `dump`. Raises `UserError` where the file `where` holds others."""
        for name, value in self.values.items():
            saved = tensors.get(PREFIX + name)
            if saved is None or saved.shape != value.shape or saved.dtype != value.dtype:
                raise damaged_checkpoint(where, f"it lacks the average of {name!r}, of shape {tuple(value.shape)}")
            value.copy_(saved)


def without_averages(tensors: Mapping[str, Any]) -> JsonObject:
    """The tensors of an optimizer's file that are no averages."""
    return {name: value for name, value in tensors.items() if not name.startswith(PREFIX)}
