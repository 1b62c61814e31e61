"""Inference: ranked lists of items for histories, and click probabilities of impressions.

`Predictor` (`predictor.py`) is what callers use. Below it a recommendation passes, in this order,
through `requests.py` (external ids to arrays), `recommend.py` (histories to lists, and items for
users without a history too), `batches.py` (histories through the model, to one `Scorer` a batch)
and a search: `exact.top_k` streams over blocks of the catalogue, `search.py` names the others. A
model is a `models.Model`; its scorer gives the scores of one block of items at a time, so neither a
users x items table nor all scores of a user exist at any time.

Order: score descending, then item id ascending. Empty places hold id -1 and score -inf. B users of
a batch, U users in all, K list length, V items.
"""
