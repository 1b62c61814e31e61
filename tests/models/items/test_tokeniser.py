"""Words, and SentencePiece tokens of them."""

import io
import random

import polars as pl
import sentencepiece

from fullrank.core.errors import UserError
from fullrank.models.sequential.items.tokeniser import TextTokeniser, train_tokeniser, words
from refusals import refused


def test_words() -> None:
    given = pl.Series(["Crème brûlée -- 30ml!", None, "  ", "snake_case A.B"])
    assert words(given).to_list() == ["crème brûlée 30ml", "", "", "snake_case a b"]


def test_tokens_are_cut_and_unknown_ones_are_left_out() -> None:
    model = TextTokeniser(train_tokeniser(["red nail", "red polish"] * 3, 20))
    assert model.size == 20 and len(model.pieces) == 20
    rows = model.tokens(pl.Series(["red nail", "", "日本"]), 40).to_list()
    assert "".join(model.pieces[t] for t in rows[0]) == "▁red▁nail" and rows[1] == []
    assert 0 not in rows[2] and len(model.tokens(pl.Series(["red nail polish"]), 2)[0]) == 2


def test_equal_text_gives_an_equal_tokeniser() -> None:
    assert train_tokeniser(["a red nail", "b blue nail"], 15) == train_tokeniser(["a red nail", "b blue nail"], 15)
    assert train_tokeniser(["a red nail", "b blue nail"], 15) != train_tokeniser(["a red nail", "b blue kite"], 15)


def test_whatever_bytes_there_are_they_give_a_tokeniser_or_one_sentence() -> None:
    whole, draw = train_tokeniser([f"red nail polish {i} blue" for i in range(200)], 120), random.Random(0)
    damaged = 0
    for number in range(300):
        bad = bytearray(whole)
        for _ in range(1 + number % 4):
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        try:
            found = TextTokeniser(bytes(bad[: len(bad) - number % 3]))
        except UserError as error:
            damaged += "damaged" in str(error) or "must be 0" in str(error)
            continue
        rows = found.tokens(pl.Series(["red nail 日本 polish", ""]), 5)
        assert len(found.pieces) == found.size and all(0 < t < found.size for row in rows for t in row)
    assert 100 < damaged < 300
    for bad in (b"", b"xyz", b"\x00" * 100, b"\x0a\xff\xff\xff\xff\x0f", whole[:-9], whole[: len(whole) // 2]):
        with refused("tokeniser-damaged"):
            TextTokeniser(bad)


def test_a_tokeniser_of_another_make_is_refused() -> None:
    """Token 0 must be what is unknown."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["red nail", "blue nail"]), model_writer=made, vocab_size=14, model_type="bpe",
        unk_id=1, bos_id=0, eos_id=-1, pad_id=-1, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    with refused("tokeniser-damaged", "token 1", "allowed: 0"):
        TextTokeniser(made.getvalue())
