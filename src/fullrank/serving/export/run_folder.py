"""The folder to ship: a run without its checkpoints and logs, from which every call and the service work anywhere."""

from __future__ import annotations

from pathlib import Path

from fullrank.core.errors import UserError
from fullrank.core.files import copy_file, whole_folder
from fullrank.data.manifest import require_outside_stores
from fullrank.run import Run, require_empty
from fullrank.run_manifest import METRICS, SEALED, WEIGHTS, write_manifest


def export_folder(run: Run, out: Path, *, logs: bool = False) -> Run:
    """A sealed copy of a run in the new folder `out`: spec, weights, items or encoder, and metrics.jsonl with `logs`.

    Every file is compared with its hash before it is copied. Raises `UserError` for a run whose training has not ended,
    for a ranking run of format 1, which cannot do without its store, and for a folder that is not empty.
    """
    if run.manifest.get("finished") is False:
        raise UserError(
            f"the training of {run.path} has not ended: finish it by resuming it, then export it",
            code="training-not-ended",
        )
    if run.needs_store:
        raise UserError(
            f"{run.path} is of run format 1, whose vocabularies lie in its store alone: train it again to ship it",
            code="run-needs-its-store",
        )
    require_outside_stores(out)
    require_empty(out)
    names = [name for name in SEALED if name != METRICS or logs]
    with whole_folder(out, "a copy of a run") as folder:
        require_empty(out)  # now that nobody else writes there
        for name in names:
            if (run.path / name).is_file() or name == WEIGHTS:
                copy_file(run.file(name), folder / name)
        write_manifest(folder, run.manifest, finished=True)
        made = Run.open(folder).manifest["files"]
        known = run.manifest.get("files", {})
        differs = next((name for name in made if name in known and made[name] != known[name]), None)
        if differs is not None:  # it changed between the look at its hash and the copy
            raise UserError(f"{run.path / differs} changed while it was copied; export it again", code="file-damaged")
    return Run.open(out)
