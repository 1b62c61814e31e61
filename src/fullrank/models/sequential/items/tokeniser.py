"""Text to tokens as in SRT: lower case, word characters alone, SentencePiece's BPE (Kudo and Richardson 2018).

Token 0 is what the tokeniser does not know; models leave it out. Equal lines give an equal
tokeniser.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from fullrank.core.errors import UserError, package
from fullrank.core.readers import cannot_read
from fullrank.data.events.catalog import Catalog
from fullrank.data.manifest import RUN_AGAIN, checked_file

TOKENISER, TOKENISER_SIZE = "tokeniser", "tokeniser_size"
"""Columns of a run's item table: the model (in the first row alone), and its number of tokens."""
MARK = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece writes this in place of a space."""
MOST_TOKENS = 1 << 20
"""Most tokens of a tokeniser."""
_MOST_BYTES = 64 * 2**20
"""Most bytes of a tokeniser's file."""
_CHUNK = 100_000
"""Lines that are made tokens at once."""


def words(texts: pl.Series) -> pl.Series:
    """Texts in lower case, word characters alone, one space between words; empty where there are none."""
    return texts.fill_null("").str.to_lowercase().str.extract_all(r"\w+").list.join(" ")


def train_tokeniser(lines: Iterable[str], vocabulary: int) -> bytes:
    """A tokeniser of at most `vocabulary` tokens, fewer where the text has fewer pieces.

    Raises `UserError` where `vocabulary` is too small for the characters.
    """
    processors = _package()
    model = io.BytesIO()
    try:
        processors.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocabulary,
            model_type="bpe",
            normalization_rule_name="identity",
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            hard_vocab_limit=False,
            max_sentence_length=1 << 16,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(
            f"no tokeniser of {vocabulary:,} tokens can be made of the items' text ({_reason(error)}); "
            "set model.items.vocabulary to more",
            code="vocabulary-too-small",
        ) from None
    return model.getvalue()


class TextTokeniser:
    """An opened tokeniser. Raises `UserError` for bytes that are no tokeniser; nothing in them is run."""

    def __init__(self, model: bytes, where: str = "the items' tokeniser"):
        processors = _package()
        try:
            if not 0 < len(model) <= _MOST_BYTES:
                raise ValueError(f"it has {len(model):,} bytes")
            self._processor = processors.SentencePieceProcessor(model_proto=model)
            self.size, unknown = int(self._processor.get_piece_size()), int(self._processor.unk_id())
            if not 0 < self.size <= MOST_TOKENS or unknown != 0:
                raise ValueError(
                    f"it has {self.size:,} tokens (allowed: 1 to {MOST_TOKENS:,}), and unknown text is token {unknown} "
                    "(allowed: 0)"
                )
            self.pieces: list[str] = self._processor.id_to_piece(list(range(self.size)))
            """The text of each token."""
        except (RuntimeError, ValueError) as error:  # a UnicodeDecodeError too
            raise UserError(
                f"{where} is damaged, or no SentencePiece model of ours: {_reason(error)}", code="tokeniser-damaged"
            ) from None
        self.model = model

    @classmethod
    def of(cls, catalog: Catalog) -> TextTokeniser:
        """The tokeniser that a run's item table holds."""
        if TOKENISER not in catalog.frame.columns or catalog.frame[TOKENISER].dtype != pl.Binary:
            raise UserError(f"the item table has no tokeniser (a column {TOKENISER!r} of bytes)", code="no-tokeniser")
        tokeniser = cls(catalog.frame[TOKENISER][0] or b"")
        size = catalog.frame[TOKENISER_SIZE][0] if TOKENISER_SIZE in catalog.frame.columns else None
        if size != tokeniser.size:
            raise UserError(
                f"the items' tokeniser is damaged: it has {tokeniser.size:,} tokens, the item table says {size}",
                code="tokeniser-damaged",
            )
        return tokeniser

    @classmethod
    def open(cls, path: str | Path) -> TextTokeniser:
        """The tokeniser of a run's folder, or of a SentencePiece model file."""
        path = Path(path)
        if path.is_dir():
            return cls.of(Catalog.open(checked_file(path, "items.parquet", RUN_AGAIN)))
        name = f"the tokeniser {str(path)!r}"
        try:
            return cls(path.read_bytes(), name)
        except OSError as error:
            raise cannot_read(name, error) from None

    def tokens(self, lines: pl.Series, most: int) -> pl.Series:
        """The first `most` tokens of each line (of `words`), the unknown ones left out, as lists of numbers."""
        parts = []
        for low in range(0, max(len(lines), 1), _CHUNK):
            rows = self._processor.encode(lines[low : low + _CHUNK].to_list(), num_threads=1) if len(lines) else []
            tokens = [[token for token in row[:most] if token] for row in rows]
            parts.append(pl.Series(tokens, dtype=pl.List(pl.Int32)))
        return pl.concat(parts)

    def know_words(self, tokens: pl.Series) -> pl.Series:
        """Which lists of tokens hold more than the mark of a word's beginning, which unknown words have too."""
        marks = [token for token, piece in enumerate(self.pieces) if not piece.strip(MARK)]
        return tokens.list.eval(~pl.element().is_in(marks)).list.any()


def _package() -> Any:
    return package("sentencepiece", "text", "the tokeniser of items made of text")


def _reason(error: Exception) -> str:
    """The first line of an error, without what SentencePiece puts in brackets before it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].split("] ")[-1].rstrip(".")[:200]
