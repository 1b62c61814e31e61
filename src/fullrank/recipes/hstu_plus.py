"""HSTU++: the generalised HSTU that SPRINT scales (SPRINT, Sec. 5.1 and B.2; the example configuration of its code).

SiLU attention without gate, norm and relative biases, RoPE after the SiLU, RMSNorm before each sublayer and at the end,
SwiGLU of inner width 4d, no learned positions, dropout on attention weights alone, binary cross-entropy with 16
negatives per history. It reads no times. Differs: attention divides by `max_length` where SPRINT's code takes the
padded length of the batch; full-catalogue ranking leaves the history out by default, the paper ranks it (``--set
evaluation.seen=keep``).

Command: ``fullrank train hstu_plus --data data/beauty --out runs/hstu_plus``. At most 100 epochs. No numbers yet.
"""

from __future__ import annotations

from typing import Literal

from fullrank.core.spec import Spec
from fullrank.experiment import Experiment
from fullrank.recipes.sasrec_plus import SASRecPlusRecipe


class HSTUPlusRecipe(Spec):
    """The HSTU of SPRINT's tables."""

    kind: Literal["hstu_plus"] = "hstu_plus"

    def build(self) -> Experiment:
        attention = "{kind: hstu, heads: 2, gate: false, rel_bias: none, rope: true, bias: false, weight_dropout: 0.2}"
        return SASRecPlusRecipe().build().override("recipe=hstu_plus", f"model.encoder.attention={attention}")
