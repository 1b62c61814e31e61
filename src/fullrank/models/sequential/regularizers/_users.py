"""One vector for each user of a step, for penalties on the users x items scores."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from fullrank.data.batch import Model, Step


def users(step: Step) -> Float[Tensor, "B D"]:
    """The vectors of each row's queries (first group), summed, over the longest history that the model reads.

    SPRINT's authors divide by the batch's padded length; with the model's, a batch's own padding has no say.
    """
    assert isinstance(step.model, Model)
    q = step.queries[0]
    vectors = q.vectors.float()  # a sum of many in bf16 would drop the small ones
    summed = vectors.new_zeros(len(step.batch.items), vectors.shape[1]).index_add(0, q.rows, vectors)
    return summed / step.model.max_length
