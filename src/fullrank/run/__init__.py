"""A run is a folder: spec.json, manifest.json, metrics.jsonl, weights.safetensors, and the ids that
the model reads: items.parquet, with the features of events and users where there are any
(features.json, vocabulary.parquet), or of a ranking model its fitted encoder (encoder.json,
vocabulary.parquet), and calibration.json where its probabilities are corrected. A blend has the
folders of its runs in members/. Inference needs no store.

Nothing in it is pickle, and reading one runs no code: a damaged or hostile folder gives a
`UserError`. Files are read through `Run.file`, which compares their hashes with the
manifest's (`manifest.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from fullrank.core.checks import check_given
from fullrank.core.errors import UserError, brief, command_line, in_context
from fullrank.core.files import copy_file, foreign_files, whole_folder, write_json, write_text
from fullrank.core.readers import JsonObject, missing_file, read_json, read_jsonl
from fullrank.core.registry import Problem, kinds
from fullrank.core.spec import error_sentence
from fullrank.core.tensor_files import read_tensors, write_tensors
from fullrank.data import manifest as manifests
from fullrank.data.events.catalog import Catalog
from fullrank.data.events.feature_files import require_same_encoding
from fullrank.data.events.store import Store
from fullrank.data.impressions import encoder_files
from fullrank.data.impressions.encoding import FieldEncoder
from fullrank.data.impressions.schema import FieldInfo
from fullrank.data.impressions.store import AnyStore, ImpressionStore, check_store, open_store
from fullrank.data.manifest import damaged_file, is_store, sha256_file
from fullrank.models import Model
from fullrank.models.ranking.calibration import Calibration
from fullrank.models.ranking.lightgbm import BoostedTrees
from fullrank.models.sequential.baselines.blend import Blend, Member
from fullrank.ops.model_cost import build_to_train, build_within
from fullrank.ops.sharded_rows import RowShard
from fullrank.run.experiment import Experiment
from fullrank.run.manifest import (
    AGAIN,
    CALIBRATED,
    CALIBRATION,
    ENCODER,
    FEATURED,
    FEATURES,
    HASHED,
    ITEMS,
    MEMBERS,
    METRICS,
    SPEC,
    WEIGHTS,
    note_once,
    open_manifest,
    seal_run,
    sealed_files,
    write_manifest,
)

_MOST = 1e15
"""Steps, epochs and seconds of a row of metrics; far above any training."""
ANSWERS: Mapping[Problem, str] = {"retrieval": "recommends items", "ranking": "predicts clicks"}
"""The verb for a run of each problem."""
Tensors = dict[str, torch.Tensor]
StoreSource = AnyStore | str | Path
"""A store, or the path of its folder."""
CatalogOrEncoder = Catalog | FieldEncoder
"""The basis of a model: a recommender's items, or a ranking model's encoder."""


@dataclass(frozen=True)
class Run:
    """An opened run folder."""

    path: Path
    spec: Experiment
    manifest: JsonObject

    def __repr__(self) -> str:
        state = "not finished" if self.manifest.get("finished") is False else "finished"
        return (
            f"Run({str(self.path)!r}: {self.spec.recipe} on {Path(self.manifest['data']['path']).name}, "
            f"{self.manifest['parameters']:,} parameters, {state})"
        )

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open a run folder. Raises `UserError` where it is missing, damaged or of a newer format.

        The spec's hash is compared here, those of other files when they are read. Formats
        1 and 2 hold none, which is logged. Metrics are looked at by `rows` alone:
        inference does not need them.
        """
        folder, manifest = open_manifest(path)
        with in_context(f"{folder / SPEC}: "):
            run = cls(folder, Experiment.parse(read_json(folder / SPEC)), manifest)
        version, needed = manifest["format_version"], list(ENCODER)
        if run.spec.clicks is None:
            needed = [ITEMS, *FEATURES] if version == FEATURED else [ITEMS]
        elif version == CALIBRATED:
            needed = [*ENCODER, CALIBRATION]
        for name in needed if version >= HASHED else ():
            if name not in manifest["files"]:
                raise manifests.incomplete_manifest(folder, f"does not list {name}", AGAIN)
        return run

    def file(self, name: str) -> Path:
        """The path of one of the run's files; its hash is compared where the manifest holds one.

        A file is hashed once in a process while it stays as it is. Raises
        `UserError` where it differs.
        """
        entry = self.manifest["files"].get(name) if self.manifest.get("format_version", 0) >= HASHED else None
        if entry is not None:
            if not (self.path / name).is_file():
                raise missing_file(self.path / name, AGAIN)
            manifests.check_hash(self.path, name, entry, AGAIN)
        return self.path / name

    def tensors(self) -> Tensors:
        """The trained weights by name. Raises `UserError` for a missing or damaged file.

        Those of a run whose training has not ended have no hash yet, which is logged.
        """
        if self.manifest.get("finished") is False:
            go_on = f"go on with it by `{command_line('train', '--out', self.path, '--resume')}`"
            if not (self.path / WEIGHTS).is_file():
                raise UserError(
                    f"the training of {self.path} has not ended, and no epoch of it has: {go_on}",
                    code="run-not-finished",
                )
            note_once(
                f"the training of {self.path} has not ended: these are its best weights so far, and have no hash yet; "
                f"{go_on}"
            )
        return read_tensors(self.file(WEIGHTS))

    @property
    def catalog(self) -> Catalog:
        """The items that the model ranks, in the order of its table, with the features of events, requests and users.

        Raises `UserError` of a ranking model, which has none.
        """
        _ = self.spec.lists  # refuses a ranking model
        for name in FEATURES * (FEATURES[0] in self.manifest.get("files", ())):  # none where it has no features
            self.file(name)  # compares its hash
        return Catalog.open(self.file(ITEMS))

    @property
    def needs_store(self) -> bool:
        """Whether only the store has the encoder: of ranking runs of format 1."""
        return self.spec.clicks is not None and self.manifest["format_version"] == 1

    def encoder(self, data: StoreSource | None = None) -> FieldEncoder:
        """The fitted encoder of a ranking model: schema, vocabularies and statistics of its training rows.

        It lies in the run's folder; that of a run of format 1 is its store's. `data` is that store,
        where it was moved. Raises `UserError` for a recommender, for a store that is another one,
        for one that is needed and not there, and for a damaged folder.
        """
        require_problem(self, "ranking", "it has no encoder of impressions, but a catalog")
        if data is not None or self.needs_store:
            store = _impressions_of(self, data)
            if self.needs_store:
                return store.encoder
        path, _ = (self.file(name) for name in ENCODER)
        encoder = encoder_files.restore_encoder(path, read_json(path), AGAIN)
        if self.manifest["format_version"] >= HASHED:
            return encoder
        hashes, trained = {name: sha256_file(self.path / name) for name in ENCODER}, self.manifest.get("encoder")
        if trained != hashes:
            # two values that changed places have the right number of ids, and would predict in
            # silence
            known = trained if isinstance(trained, dict) else {}
            name = next((file for file in hashes if known.get(file) != hashes[file]), encoder_files.NAME)
            reason = f"its SHA-256 is {hashes[name]!r}, and the weights were trained with {brief(known.get(name), 80)}"
            raise damaged_file(self.path / name, reason, AGAIN)
        return encoder

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of a ranking model's probabilities; None where there is none."""
        if self.spec.clicks is None or self.manifest["format_version"] != CALIBRATED:
            return None
        path = self.file(CALIBRATION)
        try:
            return Calibration.parse(read_json(path))
        except UserError as error:
            raise damaged_file(path, str(error), AGAIN) from None

    @property
    def fields(self) -> tuple[FieldInfo, ...]:
        """The fields that a ranking model reads."""
        if not self.needs_store:
            return self.encoder().fields
        path = self.path / "fields.json"
        try:
            return tuple(TypeAdapter(list[FieldInfo]).validate_python(read_json(path).get("fields")))
        except ValidationError as error:
            raise damaged_file(path, error_sentence(error), AGAIN) from None

    def trained_until(self, data: StoreSource | None = None) -> int | None:
        """The time of a ranking model's last training impression (seconds); None without times.

        A run of format 1 asks its store, as `encoder` does. Raises `UserError` where that is not
        there.
        """
        if self.needs_store:
            return _impressions_of(self, data).trained_until
        moment = self.manifest["data"].get("trained_until")
        if moment is not None and type(moment) is not int:
            raise damaged_file(self.path / manifests.NAME, f"it says trained_until {moment!r}, which is no time", AGAIN)
        return moment

    def model(self, encoder: FieldEncoder | None = None) -> nn.Module:
        """The trained model in evaluation mode, on the CPU; `encoder` saves reading it again."""
        tensors = self.tensors()
        known: Catalog | Sequence[FieldInfo]
        if self.spec.clicks is None:
            known = self.catalog
        else:
            known = self.fields if encoder is None else encoder.fields
            if self.spec.model.kind_of() not in kinds("trees"):
                _check_rows(known, tensors, self.path)
        try:
            held = sum(tensor.nbytes for tensor in tensors.values())
            spec: Any = self.spec.model
            build = spec.build
            if isinstance(spec, Blend):
                build = partial(build, members=[member_of(member, name) for name, member in self.members().items()])
            model: nn.Module = build_within(lambda: build(known), 4 * held + 2**30, f"the spec of {self.path}")
        except (RuntimeError, MemoryError) as error:
            reason = str(error).splitlines()[0] if str(error) else "out of memory"
            raise UserError(
                f"{self.path}: its spec cannot be built ({reason}); was it edited?", code="spec-cannot-be-built"
            ) from None
        load_weights(model, tensors, self.path)
        if self.calibration is not None:
            model.calibration = self.calibration.build()
        return model.eval()

    def members(self) -> dict[str, Run]:
        """The runs of a blend by name; empty for others. Raises `UserError` for a damaged one."""
        if not isinstance(self.spec.model, Blend):
            return {}
        for file in sealed_files(self.path):
            if file.startswith(f"{MEMBERS}/"):
                self.file(file)
        return {name: Run.open(self.path / MEMBERS / name) for name in self.spec.model.members}

    def rows(self) -> list[JsonObject]:
        """The rows of metrics.jsonl up to the first that is none (a crash cuts the last line).

        Of a run whose training has ended, raises `UserError` where the file is not as training left
        it.
        """
        self.file(METRICS)
        return metrics_rows(self.path)


def member_of(run: Run, name: str) -> Member:
    """A run as a member of a blend, which asks for lists as the evaluation of the run itself does."""
    lists = run.spec.lists
    return Member(name, run.model(), {"budget": lists.reasoning, "search": lists.decoding})


def opened_run(run: Run | str | Path) -> Run:
    """A run, or that of a folder."""
    return run if isinstance(run, Run) else Run.open(run)


def build_model(
    experiment: Experiment, known: CatalogOrEncoder, device: torch.device | str = "cpu", shard: RowShard | None = None
) -> Any:
    """The untrained model of an experiment, on the items of a catalogue or the fields of an encoder.

    `shard`: which rows of the item table this process holds, where several hold it together. Raises
    `UserError` where training the model takes more memory than `device` has free.
    """
    spec: Any = experiment.model
    basis = known.fields if isinstance(known, FieldEncoder) else known
    shards = () if shard is None else (shard,)
    return build_to_train(lambda: spec.build(basis, *shards), device, lambda model: model.row_parameters())


def require_problem(run: Run, problem: Problem, remedy: str, *, code: str | None = None) -> None:
    """Raise `UserError` for a run of the other problem; `remedy` says what to do."""
    if run.spec.problem != problem:
        raise UserError(
            f"{run.path} {ANSWERS[run.spec.problem]}, and this is for a run that {ANSWERS[problem]}: {remedy}",
            code=code or ("not-a-ranking-model" if problem == "ranking" else "not-a-recommender"),
        )


def store_path(run: Run) -> Path:
    """The path of the store that a run was trained on. Raises `UserError` where it is gone."""
    path = Path(run.manifest["data"]["path"])
    name, remedy = f"the store {path} that {run.path} was trained on", "name it by data= (of a cascade: impressions=)"
    return check_given(name, path if path.is_dir() else None, remedy, code="missing-store")


def store_of(run: Run, data: StoreSource | None = None) -> AnyStore:
    """The store that a run was trained on, or the whole store that it was a part of; `data` is where it was moved to.

    Raises `UserError` for another store, and where a model reads features that this
    one encodes in another way.
    """
    source = store_path(run) if data is None else data
    store = open_store(source) if isinstance(source, str | Path) else check_store("data", source)
    trained = run.manifest["data"]
    fingerprints = (trained["split_fingerprint"], trained.get("part_of"))
    if store.problem != run.spec.problem or store.fingerprint not in fingerprints:
        raise UserError(
            f"{store.path} is not the split that {run.path} was trained on (the fingerprints differ)",
            code="store-differs",
        )
    if isinstance(store, Store):
        for member in (run, *run.members().values()):
            if getattr(member.spec.model, "features", None) is not None:
                require_same_encoding(str(store.path), store.features, member.catalog.features)
    return store


def event_store_of(run: Run, data: StoreSource | None = None) -> Store:
    """The event store of a recommender. Raises `UserError` for a ranking model, as `store_of`."""
    _ = run.spec.lists  # refuses a ranking model
    store = store_of(run, data)
    assert isinstance(store, Store)  # of the run's problem
    return store


def _impressions_of(run: Run, data: StoreSource | None) -> ImpressionStore:
    store = store_of(run, data)
    assert isinstance(store, ImpressionStore)  # of the run's problem
    return store


def metrics_rows(folder: Path) -> list[JsonObject]:
    """The rows of metrics.jsonl in a folder whose run may still be in training."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    return list(takewhile(_is_row, read_jsonl(path)))


def _is_row(row: JsonObject) -> bool:
    """Whether an object has a step, an epoch, and numbers where figures are due."""
    figures = [value for name, value in row.items() if name.startswith(("train/", "validation/"))]
    seconds = [row.get(name, 0) for name in ("epoch", "seconds", "validation_seconds")]
    return (
        type(row.get("step")) is int
        and ("epoch" in row or row.get("event") != "epoch")
        and all(
            type(number) in (int, float) and not abs(number) > sys.float_info.max for number in (*figures, *seconds)
        )
        and all(abs(number) <= _MOST for number in (row["step"], *seconds))  # neither NaN nor infinite
    )


def is_run(folder: Path) -> bool:
    """Whether a folder says that it is a run (of any version, damaged or not)."""
    return (folder / "manifest.json").is_file() and not is_store(folder)


def write_run(path: Path, experiment: Experiment, known: CatalogOrEncoder, manifest: JsonObject) -> None:
    """Write a run folder but for weights and metrics; the manifest last, since it makes it a run.

    The run counts as in training until `seal_run`. `manifest` says where it came from; that
    of a copied run will do.
    """
    path.mkdir(parents=True, exist_ok=True)
    if isinstance(known, Catalog):
        known.write(path / ITEMS)
    else:
        encoder_files.write_encoder(path, known)
    write_text(path / SPEC, experiment.to_json())
    write_manifest(path, manifest, finished=False)


def require_empty(folder: Path) -> None:
    """Raise `UserError` unless a folder for a new run is missing or empty, outside of stores."""
    manifests.require_outside_stores(folder)
    if folder.is_file() or foreign_files(folder):
        raise UserError(
            f"{folder} is a file, or not empty; choose a new folder for the new run", code="folder-not-empty"
        )


def write_copy(
    run: Run,
    out: Path,
    known: CatalogOrEncoder,
    tensors: Tensors,
    facts: JsonObject,
    calibration: Calibration | None = None,
) -> Run:
    """Write a sealed copy of a run with other items and weights, or a calibration; `facts` say why.

    Returns the folder `out`, opened. Raises `UserError` where it is not empty.
    """
    metrics = run.file(METRICS)
    with whole_folder(out, "a copy of a run") as folder:
        require_empty(out)  # now that nobody else writes there
        write_run(folder, run.spec, known, run.manifest | facts)
        write_tensors(folder / WEIGHTS, tensors)
        if calibration is not None:
            write_json(folder / CALIBRATION, calibration.dump())
        if metrics.exists():
            copy_file(metrics, folder / METRICS)
        seal_run(folder)
    return Run.open(out)


def copy_run(run: Run, folder: Path, *, logs: bool = True) -> None:
    """Copy a finished run into a new folder, each file by its hash; `logs`: metrics.jsonl too.

    Raises `UserError` for a run whose training has not ended, for a ranking run of format 1, which
    cannot do without its store, and where a file is damaged or changes meanwhile.
    """
    if run.manifest.get("finished") is False:
        raise UserError(
            f"the training of {run.path} has not ended: finish it by resuming it, then copy it",
            code="training-not-ended",
        )
    if run.needs_store:
        raise UserError(
            f"{run.path} is of run format 1, whose vocabularies lie in its store alone: train it again to ship it",
            code="run-needs-its-store",
        )
    for name in dict.fromkeys([WEIGHTS, *sealed_files(run.path)]):
        if name != METRICS or logs:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy_file(run.file(name), folder / name)
    write_manifest(folder, run.manifest, finished=True)
    copied, known = Run.open(folder).manifest["files"], run.manifest.get("files", {})
    differs = next((name for name in copied if name in known and copied[name] != known[name]), None)
    if differs is not None:  # it changed between the look at its hash and the copy
        raise damaged_file(run.path / differs, "it changed while it was copied", "begin again")


def write_weights(path: Path, model: nn.Module) -> None:
    """Write the weights of a model into a run folder, as weights.safetensors."""
    write_tensors(path / WEIGHTS, dict(model.state_dict()))


def weights_hash(path: Path) -> str:
    """SHA-256 of a run folder's weights: what was measured on them is kept under it."""
    return manifests.file_hash(path / WEIGHTS)


def _check_rows(fields: Sequence[FieldInfo], tensors: Tensors, where: Path) -> None:
    """Raise `UserError` for more ids than the weights have numbers, before memory is taken."""
    ids = sum(field.size for field in fields if field.shares is None)
    held = sum(tensor.numel() for tensor in tensors.values())
    if ids > held:
        raise damaged_file(where, f"its fields have {ids:,} ids, and its weights hold {held:,} numbers", AGAIN)


def load_weights(model: nn.Module, tensors: Tensors, where: Path) -> None:
    """Put tensors into a model. Raises `UserError` naming what does not fit."""
    if isinstance(model, Model | BoostedTrees):
        model.make_room(tensors)
    # dtypes are compared too: loading would round in silence
    expected, present = (
        {name: f"{tensor.dtype} of shape {tuple(tensor.shape)}" for name, tensor in state.items()}
        for state in (model.state_dict(), tensors)
    )
    for name in [*expected, *present]:
        if expected.get(name) != present.get(name):
            raise UserError(
                f"{where}: {name!r} is {present.get(name, 'missing')}, the spec asks for {expected.get(name, 'none')}; "
                "the folder is damaged or its spec was edited",
                code="weights-differ-from-spec",
            )
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise UserError(
                f"{where}: {name!r} holds values that are not finite; the run diverged or is damaged",
                code="weights-not-finite",
            )
    model.load_state_dict(tensors)
