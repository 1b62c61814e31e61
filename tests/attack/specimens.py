"""One small folder of every format, and a twin of most: what `tamper` damages.

`FORMATS` knows every file of every format by its kind; a folder with another file fails `test_tamper`.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.golden import tables
from tests.golden.make import FOLDERS as GOLDEN

STORE = {
    "manifest.json": "json", "items.npy": "npy", "offsets.npy": "npy", "bounds.npy": "npy", "times.npy": "npy",
    "weights.npy": "npy", "types.npy": "npy", "items.parquet": "parquet", "users.parquet": "parquet",
}  # fmt: skip
IMPRESSIONS = {
    "manifest.json": "json", "labels.npy": "npy", "inputs.npy": "npy", "categorical.npy": "npy", "numeric.npy": "npy",
    "groups.npy": "npy", "times.npy": "npy", "bag?_ids.npy": "npy", "bag?_offsets.npy": "npy",
    "vocabulary.parquet": "parquet", "groups.parquet": "parquet",
}  # fmt: skip
CHECKPOINTS = {
    "checkpoints/last.json": "json", "checkpoints/step-*/state.json": "json",
    "checkpoints/step-*/weights.safetensors": "safetensors", "checkpoints/step-*/optimizer.safetensors": "safetensors",
}  # fmt: skip
RUN = {
    "manifest.json": "json", "spec.json": "json", "metrics.jsonl": "jsonl", "weights.safetensors": "safetensors",
    "items.parquet": "parquet", "encoder.json": "json", "vocabulary.parquet": "parquet", "fields.json": "json",
    "diagnosis.jsonl": "jsonl", **CHECKPOINTS,
}  # fmt: skip
CODES = {"manifest.json": "json", "codes.parquet": "parquet", "codebooks.safetensors": "safetensors"}
EVALUATION = {"evaluation.json": "json", "per_user.parquet": "parquet", "per_row.parquet": "parquet"}
SWEEP = {
    "rows.jsonl": "jsonl", "plan.json": "json", "tuned.json": "json", "grid.yaml": "other",
    **{f"cells/*/{name}": kind for name, kind in RUN.items()},
}  # fmt: skip
VECTORS = {"*/options.json": "json", "*/*.safetensors": "safetensors"}
FORMATS: dict[str, dict[str, str]] = {
    "store": STORE, "impressions": IMPRESSIONS, "run": RUN, "codes": CODES, "evaluation": EVALUATION, "sweep": SWEEP,
    "vectors": VECTORS,
}  # fmt: skip
"""Format -> pattern of a file's path in a folder -> kind of file (`mutations.KINDS`)."""
LITTER = ("*.lock", ".*.lock", "cells/*/.lock")
"""Files that no verb reads."""


def _below_cells(patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"cells/*/{name}" for name in patterns)


@dataclass(frozen=True)
class Specimen:
    """A folder that is damaged."""

    name: str
    format: str
    twin: str = ""
    """Another folder of the format, whose files are put into this one; none where it is empty."""
    lacks: tuple[str, ...] = ()
    """Patterns of its format that it has no file of."""
    unfinished: bool = False
    """Whether it is a run whose training was cut off."""
    hashed: bool = True
    """Whether it is of a format with hashes: then every change of a file is found or does not matter."""
    resealed: str = ""
    """The specimen that this is a copy of, whose manifest is given the hashes of the damaged files: a stranger's folder
    may be whole and still be hostile. Its answers are its own, so nothing is compared.
    """

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(pattern for pattern in FORMATS[self.format] if pattern not in self.lacks)


CLICKS_ALONE = ("encoder.json", "vocabulary.parquet", "fields.json")
LISTS = (*CLICKS_ALONE, "diagnosis.jsonl")
UNTRAINED = (*LISTS, *CHECKPOINTS)
IMPRESSED = ("items.parquet", "fields.json", "diagnosis.jsonl")
SPECIMENS: tuple[Specimen, ...] = (
    Specimen("events", "store", "events_twin"),
    Specimen("impressions", "impressions", "impressions_twin"),
    Specimen("sasrec", "run", "sasrec_twin", CLICKS_ALONE),
    Specimen("item_to_item", "run", "sasrec", UNTRAINED),
    Specimen("plr", "run", "sasrec", LISTS),
    Specimen("rpg", "run", "sasrec", LISTS),
    Specimen("srt", "run", "sasrec", LISTS),
    Specimen("dcnv2", "run", "dcnv2_twin", IMPRESSED),
    Specimen("rankmixer", "run", "dcnv2", IMPRESSED),
    Specimen("cut_off", "run", "cut_off_twin", LISTS, unfinished=True),
    Specimen("grown", "run", "sasrec", UNTRAINED),
    Specimen("codes", "codes", "codes_twin"),
    Specimen("evaluation", "evaluation", "evaluation_twin", ("per_row.parquet",)),
    Specimen("evaluation_of_clicks", "evaluation", "", ("per_user.parquet",)),
    Specimen("sweep", "sweep", "", ("plan.json", "tuned.json", "grid.yaml", *_below_cells(UNTRAINED))),
    Specimen("tuned", "sweep", "", _below_cells(UNTRAINED)),
    Specimen("vectors", "vectors"),
    Specimen("golden_sasrec", "run", "sasrec", LISTS, hashed=False),
    Specimen(
        "golden_dcnv2",
        "run",
        "dcnv2",
        ("items.parquet", "encoder.json", "vocabulary.parquet", "diagnosis.jsonl"),
        hashed=False,
    ),
    Specimen("golden_cut_off", "run", "cut_off", LISTS, hashed=False),
    Specimen("golden_impressions", "impressions", "impressions", ("times.npy",), hashed=False),
    Specimen("golden_codes", "codes", "codes", hashed=False),
    Specimen("events_resealed", "store", "events_twin", hashed=False, resealed="events"),
    Specimen("impressions_resealed", "impressions", "impressions_twin", hashed=False, resealed="impressions"),
    Specimen("sasrec_resealed", "run", "sasrec_twin", CLICKS_ALONE, hashed=False, resealed="sasrec"),
    Specimen("rpg_resealed", "run", "sasrec", LISTS, hashed=False, resealed="rpg"),
    Specimen("dcnv2_resealed", "run", "dcnv2_twin", IMPRESSED, hashed=False, resealed="dcnv2"),
    Specimen("codes_resealed", "codes", "codes_twin", hashed=False, resealed="codes"),
    Specimen(
        "evaluation_resealed",
        "evaluation",
        "evaluation_twin",
        ("per_row.parquet",),
        hashed=False,
        resealed="evaluation",
    ),
    Specimen(
        "evaluation_of_clicks_resealed",
        "evaluation",
        "",
        ("per_user.parquet",),
        hashed=False,
        resealed="evaluation_of_clicks",
    ),
)

TINY = (
    "model.dim=8", "model.max_length=8", "model.encoder.layers=1", "training.max_epochs=1", "training.batch_by=tokens",
    "training.batch_size=256", "training.patience=null", "evaluation.bootstrap=10",
)  # fmt: skip
CLICKS = (
    "model.embedding.dim=4", "training.max_epochs=1", "training.batch_size=128", "training.patience=null",
    "evaluation.bootstrap=10",
)  # fmt: skip
GRID = "{name: small, cells: [popularity, item_to_item], seeds: [0], set: {evaluation.bootstrap: 10}}"
SPACE = (
    "{cells: [{recipe: item_to_item}], set: {evaluation.bootstrap: 10}, trials: 6, "
    "space: {model.decay: {uniform: [0.1, 0.9]}}}"
)
USERS, ITEMS, ROWS = 60, 40, 400


def make(home: Path) -> None:
    """Fill a folder with all specimens, their twins, and the tables that verbs are given."""
    import fullrank as fr

    before = Path.cwd()
    os.chdir(home)
    try:
        _stores(fr)
        _runs(fr)
        _others(fr)
        for specimen in SPECIMENS:
            if specimen.resealed:
                shutil.copytree(specimen.resealed, specimen.name)
        for name in ("sasrec", "dcnv2", "cut_off", "impressions", "codes", "events"):
            shutil.copytree(GOLDEN / name, f"golden_{name}")
        shutil.copy(GOLDEN / "new_impressions.parquet", "golden_new.parquet")
    finally:
        os.chdir(before)


def files(specimen: Specimen, home: Path) -> dict[str, str]:
    """Path in the folder -> kind, of every file; raises where one is not known."""
    folder, found = home / specimen.name, {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or any(fnmatch.fnmatch(name, pattern) for pattern in LITTER):
            continue
        kinds = [kind for pattern, kind in FORMATS[specimen.format].items() if fits(name, pattern)]
        assert kinds, f"{specimen.name} holds {name}: tell specimens.FORMATS what kind of file it is"
        found[name] = kinds[0]
    return found


def fits(name: str, pattern: str) -> bool:
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _stores(fr: Any) -> None:
    from fullrank.data.events.prepare import Prepare

    people = pl.DataFrame({"user_id": [f"u{n}" for n in range(USERS)], "age": [20 + n % 50 for n in range(USERS)]})
    for name, seed in (("events", 0), ("events_twin", 1)):
        rows = tables.events(USERS, ITEMS, seed=seed)
        draw = np.random.default_rng(seed)
        rows = rows.with_columns(
            weight=pl.Series(draw.uniform(0.5, 2, len(rows)).round(3)),
            what=pl.Series([("view", "buy")[n] for n in draw.integers(0, 2, len(rows))]),
        )
        spec = Prepare.parse({"columns": {"weight": "weight", "type": "what"}})
        fr.prepare(rows, name, items=tables.catalogue(ITEMS), users=people, spec=spec)
    more = tables.events(USERS, ITEMS + 3)
    fr.prepare(more, "more", items=tables.catalogue(ITEMS + 3))
    schema = tables.SCHEMA | {"time": "at"}
    for name, seed in (("impressions", 0), ("impressions_twin", 1)):
        rows = tables.impressions(ROWS, seed=seed)
        rows = rows.with_columns(at=1_700_000_000 + pl.int_range(pl.len()) * 60)
        fr.prepare_impressions(rows, name, schema=schema)
    tables.vectors(ITEMS).write_parquet("vectors.parquet")
    tables.vectors(ITEMS + 3).write_parquet("more_vectors.parquet")
    tables.events(12, ITEMS, seed=2).write_parquet("histories.parquet")
    tables.impressions(30, seed=2).drop("label").write_parquet("new_impressions.parquet")
    pl.DataFrame({"item_id": ["n1"], "title": ["red chair"], "category": ["red goods"]}).write_parquet(
        "new_items.parquet"
    )
    tables.goods(ITEMS).write_parquet("goods.parquet")
    tables.people().write_parquet("people.parquet")


def _runs(fr: Any) -> None:
    from tests.golden.record import Cut, CutOff

    how = ["vectors={kind: file, path: vectors.parquet}", "learner.levels=4", "learner.size=8", "limits.collisions=1"]
    for name, seed in (("codes", 0), ("codes_twin", 1)):
        fr.encode("events", name, set=[*how, f"seed={seed}"])
    text = ("model.items.fields=[{column: title}]", "model.items.vocabulary=60")
    trained: Mapping[str, tuple[str, tuple[str, ...]]] = {
        "sasrec": ("sasrec", TINY), "sasrec_twin": ("sasrec", (*TINY, "seed=1")),
        "item_to_item": ("item_to_item", ("evaluation.bootstrap=10",)), "plr": ("plr", TINY),
        "rpg": ("rpg", (*TINY, "model.items.codes=codes")), "srt": ("srt", (*TINY, *text)),
    }  # fmt: skip
    for name, (recipe, settings) in trained.items():
        fr.train(recipe, "events", name, set=settings, progress=False)
    deep = "model.ranker.deep.hidden=[8]"
    clicks = {
        "dcnv2": ("dcnv2", (*CLICKS, deep)), "dcnv2_twin": ("dcnv2", (*CLICKS, deep, "seed=1")),
        "rankmixer": ("rankmixer", (*CLICKS, "model.ranker.tokens=4", "model.ranker.width=8")),
    }  # fmt: skip
    for name, (recipe, settings) in clicks.items():
        fr.train(recipe, "impressions", name, set=settings, progress=False)
    for name, seed in (("cut_off", 0), ("cut_off_twin", 1)):
        settings = (*TINY, "training.max_epochs=2", "training.checkpoint_minutes=0", f"seed={seed}")
        try:
            fr.train("sasrec", "events", name, set=settings, callbacks=[Cut(3)], progress=False)
        except CutOff:
            pass
    fr.diagnose("sasrec", users=20).save(Path("sasrec/diagnosis.jsonl"))
    fr.grow_catalog(fr.Run.open("sasrec"), "new_items.parquet", "grown", start="mean")


def _others(fr: Any) -> None:
    from fullrank.cli import main

    fr.evaluate("sasrec").save("evaluation")
    fr.evaluate("sasrec_twin").save("evaluation_twin")
    fr.evaluate("dcnv2").save("evaluation_of_clicks")
    Path("grid.yaml").write_text(GRID)
    Path("space.yaml").write_text(SPACE)
    assert main(["sweep", "grid.yaml", "--data", "events", "--out", "sweep"]) == 0
    assert main(["tune", "space.yaml", "--data", "events", "--out", "tuned", "--sampler", "tpe"]) == 0
    encode_text(Path("events"), Path("vectors"), Path("text_codes"))


def encode_text(store: Path, cache: Path, out: Path) -> Any:
    """Codes of titles by a stand-in for a sentence model, whose vectors are kept in the folder `cache`."""
    import fullrank as fr
    from fullrank.semantic_ids.vectors import sentences
    from tests.coded import Sentences

    how = ["vectors={kind: text, model: letters}", "learner.levels=2", "learner.size=4", "limits.collisions=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "load_encoder", Sentences().load)
        patch.setattr(sentences, "model_identity", lambda name: name)
        return fr.encode(store, out, set=how, cache=cache)
