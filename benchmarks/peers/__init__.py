"""The same split and one scorer for this library and its peers: ``python -m benchmarks.peers``.

Each peer lives in a virtual environment of its own (`environments`). As a recommender it trains SASRec for the same
wall time from the same Parquet files (`exchange`, `runners/`), and hands back lists of ten items, which our metrics
score; as a ranking model it trains DCNv2 and FinalMLP by the same rule (`ranking`) and hands back probabilities. Not
part of CI: the environments take gigabytes and the runs minutes.
"""
