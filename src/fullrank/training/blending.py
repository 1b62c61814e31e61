"""Blend runs: weights of their lists, learned on the validation split of a store, and one run folder of all of them.

The weights are those that make the targets likely among the candidates, a softmax over the joined
values,

    minimise  - mean over targets of log softmax_i(sum_m w_m(u) r_m(u, i))  + RIDGE |a|^2

by L-BFGS over b and a (`models/sequential/baselines/blend.py`). The join, the offset, and whether
there is a gate, are chosen by the selection metric of users whose fold was not learned from. No
figure in the manifest is of users that were learned from: the choice and the weights of each outer
fold come from the other folds alone (nested cross-validation), and members are left out in turn the
same way. U users, C candidates, M members.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64
from scipy.optimize import minimize
from scipy.special import log_softmax

from fullrank import __version__
from fullrank.core.errors import UserError
from fullrank.core.files import JsonObject, whole_folder
from fullrank.core.log import Progress, untold
from fullrank.data.events.feature_files import require_same_encoding
from fullrank.data.events.store import Store
from fullrank.data.histories import EvalSet
from fullrank.evaluation.reasoning_steps import part_of
from fullrank.evaluation.retrieval import users_and_protocol
from fullrank.evaluation.spec import Evaluation
from fullrank.inference.batches import Batching
from fullrank.inference.recommend import member_lists
from fullrank.inference.search import Decoding
from fullrank.metrics import MetricInputs, UserValues, match
from fullrank.metrics.names import ACCURACY, parse_metric
from fullrank.models import Budget
from fullrank.models.sequential.baselines.blend import (
    KNOWN,
    MOST_MEMBERS,
    Blend,
    BlendModel,
    MemberLists,
    joined_scores,
)
from fullrank.run import Run, copy_run, event_store_of, member_of, require_problem, write_run, write_weights
from fullrank.run.experiment import Experiment
from fullrank.run.manifest import MEMBERS, seal_run
from fullrank.training.data_module import data_manifest, data_module_of
from fullrank.training.log import MetricsLog
from fullrank.training.run_folder import check_place
from fullrank.training.settled import selection_settled

Users = Bool[np.ndarray, "U"]
"""Mask of the users of a table."""
FOLDS = 4
"""Parts of the users, each of which is scored by what the others chose."""
MOST_USERS = 1 << 15
"""Most users of validation that are looked at, drawn at random."""
LEARNED_FROM = 2048
"""Most users that weights are learned from: four numbers of each member settle long before."""
RIDGE = 0.01
"""Weight of the squared slopes a; biases have a hundredth of it."""
LEAST_GATED = 500
"""Users of validation below which no gate is tried."""
OFFSETS = (5.0, 60.0)
"""Offsets of reciprocal ranks that are tried: with the first the best places stand out."""


def blend(
    runs: Sequence[Run],
    data: Store | None,
    out: Path,
    settings: Sequence[str] = (),
    *,
    device: torch.device,
    overwrite: bool = False,
    progress: Progress = untold,
) -> Run:
    """A run in the folder `out` that joins the lists of `runs`, by weights that are learned on validation.

    Validation is that of the store `data`, or of the first run's store. `settings` are those of an
    experiment whose evaluation is that of the first run; what they say of `model.join`,
    `model.offset` and `model.gate` is not tried otherwise. Raises `UserError` for fewer than two
    runs, for a ranking model or a blend among them, for a training that has not ended, for other
    items than the store's, and for a store without validation targets.
    """
    check_place(out, overwrite=overwrite)
    if not 2 <= len(runs) <= MOST_MEMBERS:
        raise UserError(
            f"a blend joins 2 to {MOST_MEMBERS} runs; given: {len(runs)}. Name their folders", code="too-few-members"
        )
    store = event_store_of(runs[0]) if data is None else data
    begun, names = time.perf_counter(), _names(runs, store)
    settled = {"reasoning": Budget(), "decoding": Decoding()}  # each member has those of its run
    first = runs[0].spec.lists.model_copy(update=settled)
    template = Experiment(recipe="blend", model=Blend(), evaluation=first).override(*settings)
    wanted, fixed = template.model, {text.partition("=")[0].removeprefix("model.") for text in settings}
    if not isinstance(wanted, Blend) or wanted.members or "model" in fixed:
        raise UserError(
            "a blend's members are the runs that are given: leave out model and model.members", code="given-twice"
        )
    experiment = selection_settled(with_model(template, wanted, names), store)
    members = [member_of(run, name) for run, name in zip(runs, names, strict=True)]
    model = BlendModel(wanted, store.catalog, members).to(device)
    how = experiment.lists.for_selection()
    users, _ = users_and_protocol(model, store, "validation", how)
    if len(users) > MOST_USERS:
        users = users.take(np.sort(np.random.default_rng(0).permutation(len(users))[:MOST_USERS]))
    lists, length = list[MemberLists](), min(wanted.depth, store.catalog.size)
    for at, member in enumerate(members):
        batching = Batching(how.batch_size, how.block, part_of(progress, at, len(runs)))
        lists.append(
            member_lists(member, users.histories, length, how.seen, index=member.model.index_items(), how=batching)
        )
    table = Table(model, users, lists, how)
    kinds = tried(wanted, fixed, len(users))
    best, weights = chosen(table, kinds, table.everybody)
    experiment, model.spec = with_model(experiment, best, names), best
    for name, value in weights.items():
        getattr(model, name).copy_(torch.from_numpy(value))
    facts = _facts(table, best, weights, nested_metric(table, kinds), names)
    with whole_folder(out, "a blend") as folder:
        check_place(out, overwrite=overwrite)  # now that nobody else writes there
        for run, name in zip(runs, names, strict=True):
            copy_run(run, folder / MEMBERS / name)
        manifest = {
            "fullrank": __version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "parameters": sum(run.manifest["parameters"] for run in runs),
            "init_from": None,
            "data": data_manifest(data_module_of(experiment, store)),
            "blend": facts,
        }
        write_run(folder, experiment, store.catalog, manifest)
        write_weights(folder, model)
        row = {"seconds": round(time.perf_counter() - begun, 3), f"validation/{how.selection}": facts["blend"]}
        MetricsLog(folder).add("fit", 0, 0, row)
        seal_run(folder)
    return Run.open(out)


def with_model(experiment: Experiment, model: Blend, names: Sequence[str]) -> Experiment:
    """The experiment of a blend of these members."""
    return experiment.model_copy(update={"model": Blend.parse(model.dump() | {"members": list(names)})})


def _names(runs: Sequence[Run], store: Store) -> list[str]:
    """Names of members, by their folders, each once. Raises `UserError` for
    runs that cannot be blended."""
    names: list[str] = []
    for run in runs:
        require_problem(run, "retrieval", "leave it out")
        if isinstance(run.spec.model, Blend):
            raise UserError(f"{run.path} is a blend: name its members (RUN/members/NAME) instead", code="nested-blend")
        if not run.catalog.ids.equals(store.catalog.ids):
            raise UserError(
                f"{run.path} knows {run.catalog.size:,} items and the store {store.path} {store.catalog.size:,}, or "
                "others: blend runs of stores with the same items",
                code="other-items",
            )
        if getattr(run.spec.model, "features", None) is not None:
            require_same_encoding(str(store.path), store.features, run.catalog.features)
        name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in run.path.resolve().name)
        name = name.lstrip("._-")[:90] or "run"
        names.append(name if name not in names else f"{name}-{len(names) + 1}")
    return names


def tried(spec: Blend, fixed: Collection[str], users: int) -> list[Blend]:
    """The kinds of a blend among which validation chooses.

    What is `fixed` is as `spec` says; else both joins are tried, ranks at each of `OFFSETS`, and
    each with and without a gate where there are users enough to learn one from.
    """
    joins: list[JsonObject] = [{}]
    if not {"join", "offset"} & set(fixed):
        joins = [*({"join": "ranks", "offset": offset} for offset in OFFSETS), {"join": "scores", "offset": None}]
    gates = [spec.gate] if "gate" in fixed else [False, True] if users >= LEAST_GATED else [False]
    return [Blend.parse(spec.dump() | join | {"gate": gate}) for gate in gates for join in joins]


class Table:
    """The users of validation whose target a member has found, their candidates, and what each member says of them.

    For all others the metric is 0, whatever the weights.
    """

    def __init__(self, model: BlendModel, users: EvalSet, lists: Sequence[MemberLists], evaluation: Evaluation):
        self.all_users, self.evaluation = len(users), evaluation
        ids = np.concatenate([member.ids for member in lists], 1)
        rows = np.flatnonzero(match(ids, users.truth).any(1))
        users, ids = users.take(rows), ids[rows]
        self.lists = [MemberLists(member.ids[rows], member.scores[rows]) for member in lists]
        order = ids.argsort(1, kind="stable")
        ordered = np.take_along_axis(ids, order, 1)
        # in sorted ids an item that several members list is a run of equal ones, and
        # has the column of its run
        begins = np.ones(ordered.shape, bool)
        begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        column = begins.cumsum(1) - 1
        self.column = np.empty_like(column)
        """[U, M d] the column of `ids` of each entry of the lists, which stand behind each other."""
        np.put_along_axis(self.column, order, column, 1)
        self.ids = np.full((len(ordered), int(column.max(initial=0)) + 1), -1)
        """[U, C] candidates by ascending id, -1 in empty places."""
        np.put_along_axis(self.ids, column, ordered, 1)
        self.wanted, self.targets = match(self.ids, users.truth), users.truth.lengths
        known = model.known(users.histories.items)
        self.center, self.scale = known.mean(0), np.maximum(known.std(0), 1e-6)
        self.known = (known - self.center) / self.scale
        self.fold = np.random.default_rng(1).permutation(len(rows)) % FOLDS
        self.everybody = np.ones(len(rows), bool)

    @lru_cache(maxsize=2 * (len(OFFSETS) + 1))  # noqa: B019  of one blend, and gone with it
    def values(self, join: str, offset: float | None) -> Float32[np.ndarray, "U C M"]:
        """r_m(u, i)."""
        table = np.zeros((*self.ids.shape, len(self.lists)), np.float32)
        low = 0
        for at, said in enumerate(joined_scores(self.lists, join, offset)):
            columns = self.column[:, low : low + said.shape[1]]
            np.put_along_axis(table[..., at], columns, said.astype(np.float32), 1)
            low += said.shape[1]
        return table

    def learned(self, spec: Blend, users: Users, without: int | None = None) -> dict[str, np.ndarray]:
        """Bias and slopes learned from `users`, -inf for the member that is left
        out; and center and scale of x."""
        rows = np.flatnonzero(users)
        rows = np.sort(np.random.default_rng(0).permutation(rows)[:LEARNED_FROM])
        members = [at for at in range(len(self.lists)) if at != without]
        gates = self.known.shape[1] * spec.gate
        x, empty = self.known[rows][:, :gates], self.ids[rows] < 0
        values = self.values(spec.join, spec.offset)[rows][..., members]
        share = self.wanted[rows] / self.wanted[rows].sum(1, keepdims=True)
        start = np.zeros((len(members), 1 + gates))
        ridge = np.full(start.shape, RIDGE)
        ridge[:, 0] *= 0.01  # a member that says nothing has no best weight

        def loss(flat: Float64[np.ndarray, "p"]) -> tuple[float, Float64[np.ndarray, "p"]]:
            at = flat.reshape(start.shape)
            weights = np.exp(at[:, 0] + x @ at[:, 1:].T)
            logits = np.where(empty, -1e9, (values @ weights[..., None].astype(np.float32))[..., 0])
            logs = log_softmax(logits, 1)
            wrong = (np.exp(logs) - share).astype(np.float32)
            # by the exponents of the weights: the derivative by a weight, times the weight
            slope = weights * (wrong[:, None] @ values)[:, 0] / len(rows)
            step = np.concatenate([slope.sum(0)[:, None], slope.T @ x], 1) + 2 * ridge * at
            return float(-(share * logs).sum() / len(rows) + (ridge * at**2).sum()), step.ravel()

        if len(rows):
            bounds = [(-12.0, 6.0), *[(-1.0, 1.0)] * gates] * len(members)
            options = {"maxiter": 100, "ftol": 1e-7}
            fitted = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
            start = fitted.x.reshape(start.shape)
        bias, slopes = np.full(len(self.lists), -np.inf), np.zeros((len(self.lists), self.known.shape[1]))
        bias[members], slopes[members, :gates] = start[:, 0], start[:, 1:]
        return {"bias": bias, "slopes": slopes, "center": self.center, "scale": self.scale}

    def metric(self, spec: Blend, weights: dict[str, np.ndarray], users: Users) -> Float64[np.ndarray, "n"]:
        """The selection metric of the joined lists of `users`."""
        name, rows = parse_metric(self.evaluation.selection), np.flatnonzero(users)
        w = np.exp(weights["bias"] + self.known[rows] @ weights["slopes"].T).astype(np.float32)
        scores = (self.values(spec.join, spec.offset)[rows] @ w[..., None])[..., 0]
        best = (-scores).argsort(1, kind="stable")[:, : name.k]
        hits = np.take_along_axis(self.wanted[rows] & (scores > 0), best, 1)
        return ACCURACY[name.base](MetricInputs(hits, self.targets[rows]), name.k)

    def outside(self, spec: Blend, among: Users, without: int | None = None) -> UserValues:
        """The metric of each user `among` all by weights that were learned without
        their fold; 0 of the others."""
        metrics = np.zeros(len(among))
        for number in range(FOLDS):
            rows = among & (self.fold == number)
            metrics[rows] = self.metric(spec, self.learned(spec, among & (self.fold != number), without), rows)
        return metrics

    def mean(self, values: Float64[np.ndarray, "n"]) -> tuple[float, float]:
        """The mean over all users of validation, and its standard error."""
        every = np.zeros(self.all_users)
        every[: len(values)] = values
        return float(every.mean()), float(every.std() / max(len(every) - 1, 1) ** 0.5)


def chosen(table: Table, kinds: Sequence[Blend], among: Users) -> tuple[Blend, dict[str, np.ndarray]]:
    """The kind with the best metric outside of what was learned from, and its weights,
    from the users `among` alone."""
    values = [table.outside(kind, among).sum() for kind in kinds] if len(kinds) > 1 else [0.0]
    kind = kinds[int(np.argmax(values))]
    return kind, table.learned(kind, among)


def nested_metric(table: Table, kinds: Sequence[Blend]) -> UserValues:
    """The metric of each user by the kind and the weights that the other folds chose."""
    metrics = np.zeros(len(table.everybody))
    for number in range(FOLDS):
        others = table.fold != number
        metrics[~others] = table.metric(*chosen(table, kinds, others), ~others)
    return metrics


def _facts(
    table: Table, best: Blend, learned: dict[str, np.ndarray], nested: UserValues, names: Sequence[str]
) -> JsonObject:
    """Figures of the blend and of each member on validation, for the manifest."""
    weights = np.exp(learned["bias"])
    whole, nothing, members = table.outside(best, table.everybody), np.full(len(names), -np.inf), []
    for at, name in enumerate(names):
        alone = {
            "bias": np.where(np.arange(len(names)) == at, 0.0, nothing),
            "slopes": np.zeros((len(names), len(KNOWN))),
        }
        lost = whole - table.outside(best, table.everybody, at)
        brings, error = table.mean(lost)
        facts = {
            "name": name,
            "alone": table.mean(table.metric(best, alone, table.everybody))[0],
            "weight": float(weights[at] / weights.sum()),
            "brings": brings,
            "brings_se": error,
            "helped": float((lost > 0).sum() / table.all_users),
            "hurt": float((lost < 0).sum() / table.all_users),
        }
        members.append(facts)
    metric, error = table.mean(nested)
    return {
        "selection": table.evaluation.selection,
        "seen": table.evaluation.seen,
        "users": table.all_users,
        "blend": metric,
        "blend_se": error,
        "found": len(whole) / table.all_users,
        "members": members,
    }
