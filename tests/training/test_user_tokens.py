"""A token for each user: training, evaluation and requests read the same one."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.data.events.store import Store
from fullrank.evaluation import Evaluation
from fullrank.evaluation.retrieval import evaluate
from fullrank.inference.search import Decoding
from fullrank.models.sequential.items.semantic import Semantic
from fullrank.models.sequential.objectives.tasks.generate import Generate
from tests.training.conftest import histories, share_of_hits, tiny

CODES = ["vectors.kind=file", "learner.levels=2", "learner.size=8", "learner.rounds=5", "limits.collisions=1"]


def test_users_keep_their_tokens(market: Store, tmp_path: Path) -> None:
    """recall@5 of recommended lists is what evaluate reports; under another name a user has another list."""
    vectors = np.random.default_rng(0).normal(size=(market.catalog.size, 8))
    table = pl.DataFrame({"item_id": market.catalog.ids, "vector": vectors.astype(np.float32)})
    table.write_parquet(tmp_path / "vectors.parquet")
    fr.encode(market, tmp_path / "codes", set=[*CODES, f"vectors.path={tmp_path / 'vectors.parquet'}"])
    stack = ("model.encoder.positions=none", "model.encoder.attention.rope=true")
    spec = tiny("training.max_epochs=3", "training.accumulate=2", *stack, dropout=0.0)
    model = spec.model.model_copy(
        update={"task": Generate(user_tokens=2000), "items": Semantic(codes=str(tmp_path / "codes"))}
    )
    lists = Evaluation(ks=(5,), metrics=("recall",), bootstrap=0, decoding=Decoding(kind="beam", beams=20))
    spec = spec.model_copy(update={"model": model, "lists": lists})
    run = fr.train(spec, market, tmp_path / "run", progress=False)
    ids = market.user_ids
    events = histories(market).with_columns(user_id=pl.col("user_id").replace_strict(range(len(ids)), ids))
    found = fr.recommend(run, events, k=5)
    hit = share_of_hits(market, found.with_columns(user=pl.col("user").replace_strict(ids, range(len(ids)))))
    measured = evaluate(run.model(), market, "test", lists)
    assert hit == pytest.approx(measured.metrics["recall@5"], abs=1e-9) and 0 < hit < 1
    renamed = fr.recommend(run, events.with_columns(pl.col("user_id").cast(pl.String) + "!"), k=5)
    assert renamed["item"].to_list() != found["item"].to_list()
