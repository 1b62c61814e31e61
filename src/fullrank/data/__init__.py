"""From tables to stores: a store is a prepared dataset, what models are trained on and evaluated with.

`prepare` reads any table of events (who did what, in which order), filters it, splits it by time
and writes a store; `Store.open` maps one into memory. A store keeps flat item ids sorted by (user,
time, input order) with one offset per user, an item catalogue (`Catalog`), the users, and a
manifest with the spec, the counts at every filter and a hash of each file.

`prepare_impressions` does the same for rankers: a table of impressions (what was shown to whom, and
was it clicked) to an `ImpressionStore` of fields.

The letters of shapes are those of `data/batch.py`. Times are int64 seconds since 1970. Nothing here
but `batch` and `events.loader` loads torch when it is imported.
"""
