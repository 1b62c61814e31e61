"""CL4SRec: SASRec with a contrast of cropped, masked and reordered histories (Xie et al., ICDE 2022, arXiv:2010.14395).

`cl4srec` is the recipe `sasrec` with the contrast, of cosines; `published`, as ``fullrank train
fullrank.recipes.cl4srec:published ...``, has the authors' sizes and inner products: width 64, two layers of two heads,
binary cross-entropy with one negative, batches of 256 rows.

Command: ``fullrank train cl4srec --data data/beauty --out runs/cl4srec``.

Differs: what `regularizers/cl4srec.py` says; AdamW for Adam.
"""

from __future__ import annotations

from fullrank.experiment import Experiment, Training
from fullrank.models.sequential.regularizers.cl4srec import CL4SRec
from fullrank.recipes import recipe
from fullrank.recipes.sasrec import sasrec, sasrec_2018


@recipe(needs="events")
def cl4srec() -> Experiment:
    """CL4SRec: SASRec with a contrast of augmented histories (Xie et al. 2022, arXiv:2010.14395)."""
    base = sasrec()
    model = base.model.model_copy(update={"penalties": (CL4SRec(normalise=True, temperature=0.1),)})
    return base.model_copy(update={"recipe": "cl4srec", "model": model})


def published() -> Experiment:
    """The authors' sizes on SASRec as published."""
    base = sasrec_2018().override("model.encoder.attention.heads=2")
    model = base.model.model_copy(update={"penalties": (CL4SRec(),)})
    training = Training(max_epochs=200, lr=1e-3, batch_by="rows", batch_size=256, evaluate_every=5, patience=5)
    return Experiment(recipe="cl4srec-published", model=model, training=training)
