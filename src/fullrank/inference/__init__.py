"""Histories in, ranked lists of items out.

`exact.top_k` turns one `Scorer` into the best items by streaming over blocks of the catalogue; `rank.rank` does so
for any number of histories. A model is whatever satisfies `data.batch.Model`; its answer is only ever asked for the
scores of one block of items, so neither a users x items table nor all scores of a user exist at any time.

Order: score descending, then item id ascending. Empty places hold id -1 and score -inf. B users of a batch, U users
in all, K list length, V items.
"""
