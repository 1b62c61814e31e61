"""Which parts features go with: every kind of every room is tried, and docs/guide/features.md says what came of it.

`python tests/models/test_feature_kinds.py` writes the table anew.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from discover import everything
from featured import featured, with_features
from fullrank.core.errors import UserError
from fullrank.models.sequential.model import Recommender
from fullrank.testing.tasks import GENERATE
from tiny import ITEMS, catalog, histories, padded, plain

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "features.md"
BEGIN, END = "<!-- kinds: written by tests/models/test_feature_kinds.py -->\n", "<!-- end of kinds -->"
ROOMS = {
    "objectives.tasks": "task", "encoders": "encoder", "attention": "encoder.attention", "items": "items",
    "objectives.losses": "loss", "objectives.weightings": "weighting", "reasoning": "reasoner",
    "regularizers": "penalties", "baselines": "model",
}  # fmt: skip
REASONS = ("task=last_item", "reasoner=rearec")
BESIDE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(GENERATE, ("items=semantic",)),
    "reasoning": ("task=last_item",),
    "dros": ("loss=bce",), "items.tpab": ("loss=bce",), "regularizers.tpab": ("items=tpab", "loss=bce"),
    "stream_loss": ("task=last_item", "reasoner={kind: plr, streams: 2}"), "kl_diversity": REASONS,
    "s3rec": ("task=cloze", "encoder.attention.causal=false"), "progressive": REASONS,
    "reasoning_alignment": REASONS, "reasoning_contrast": REASONS,
}  # fmt: skip
"""Settings that a kind asks for, with or without features."""
PAIRS = everything(*ROOMS)


def outcome(room: str, kind: str) -> str:
    """`works`: a step learns every feature and an answer reads them, with a user's in either place; or the reason."""
    if room == "baselines":
        with pytest.raises(UserError, match="no setting 'features'"):
            plain((room, kind)).override("features=auto")
        return "is fitted at once, so it has no `model.features`"
    known = with_features(catalog())
    assert known.features is not None
    batch = featured(padded(histories((3, 8, 6))), known.features)
    for user_at in ("places", "prefix"):
        base = Recommender(dim=8, max_length=9).override(
            *BESIDE.get(f"{room}.{kind}", BESIDE.get(kind, BESIDE.get(room, ())))
        )
        part: Any = plain((room, kind))
        name = ROOMS[room]
        if name == "encoder.attention":
            spec = base.model_copy(update={"encoder": base.encoder.model_copy(update={"attention": part})})
        else:
            spec = base.model_copy(update={name: (part,) if name == "penalties" else part})
        spec = spec.override(f"features={{user_at: {user_at}}}")
        torch.manual_seed(0)
        try:
            model = spec.build(known)
        except UserError as error:
            assert error.code == "features-not-read", error
            return str(error).split(", since ")[1].split(": leave one")[0]
        sum(model(batch).values()).backward()
        assert model.features is not None
        for label, parameter in model.features.named_parameters():
            assert parameter.grad is not None and parameter.grad.any(), f"{label} does not learn"
        model.eval()
        with torch.no_grad():
            other = model.answer(featured(batch, known.features, seed=1)).block(0, ITEMS)
            assert not torch.equal(model.answer(batch).block(0, ITEMS), other)
    return "works"


def table() -> str:
    rows = [f"| {ROOMS[room]} | `{kind}` | {outcome(room, kind)} |" for room, kind in PAIRS]
    return "\n".join(["| setting | kind | with features |", "|---|---|---|", *rows, ""])


@pytest.mark.parametrize("pair", PAIRS, ids=".".join)
def test_the_page_says_what_features_go_with(pair: tuple[str, str]) -> None:
    text = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    room, kind = pair
    assert f"| {ROOMS[room]} | `{kind}` | {outcome(room, kind)} |\n" in text
    assert text.count("\n") == len(PAIRS) + 2


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")
