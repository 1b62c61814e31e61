"""The recipes that `make golden` compares: one of every family at least, at sizes that take about a second each."""

from dataclasses import dataclass

NARROW = ("model.dim=16", "model.max_length=12")
BLOCKS = (*NARROW, "model.encoder.layers=2", "model.encoder.attention.heads=2")
SEQUENCES = (
    "training.max_epochs=5", "training.batch_by=tokens", "training.batch_size=128", "training.patience=null",
    "training.evaluate_every=2", "evaluation.bootstrap=20",
)  # fmt: skip
SIZED = "model.embedding.dim=6"
DEEP = (SIZED, "model.ranker.deep.hidden=[12]")
CLICKS = ("training.max_epochs=5", "training.batch_size=140", "training.patience=null", "evaluation.bootstrap=20")
TOKENS = (SIZED, "model.ranker.tokens=4", "model.ranker.tokeniser.hidden_norm=null")
"""With head and feed-forward, what the baseline's recipes of the pair have; today's have others."""
CODED = (*BLOCKS, "model.items.codes=codes")
REASONING = (*BLOCKS, "training.batch_size=280")
"""Each prefix is a row of its own, of which there are more."""
PRINTED = "model.penalties=[{kind: sprint, outer: log, layer_reduction: sum, attention: 0.633, feed_forward: 0.161}]"
"""The recipe `sprint` of the baseline; today's has other weights and another form."""
EARLIER = (
    "model.scoring.similarity=dot", "model.scoring.temperature=0.2", "model.reasoner.trigger_std=0.02",
    "model.reasoner.residual=false",
)  # fmt: skip
"""The recipe `plr` of the baseline."""
TEXT = ("model.items.fields=[{column: title}]", "model.items.vocabulary=60")


@dataclass(frozen=True)
class Family:
    """One recipe at a small size, and which of the public calls are made on its run."""

    recipe: str
    settings: tuple[str, ...] = ()
    clicks: bool = False
    """Trained on impressions, which has probabilities where the others have lists."""
    evaluations: tuple[tuple[str, ...], ...] = ((),)
    """Settings of each evaluation on the test split, beside the recipe's own."""
    diagnose: bool = False


RETRIEVAL: dict[str, Family] = {
    "sasrec": Family("sasrec", BLOCKS, evaluations=((), ("seen=keep",), ("sampled=20",)), diagnose=True),
    "sasrec_2018": Family("sasrec_2018", (*NARROW, "model.encoder.inner=16")),
    "sasrec_plus": Family("sasrec_plus", BLOCKS),
    "sprint": Family("sprint", (*BLOCKS, PRINTED), diagnose=True),
    "sprint:dros": Family("fullrank.recipes.sprint:dros", BLOCKS),
    "sprint:logdet": Family("fullrank.recipes.sprint:logdet", BLOCKS),
    "sprint:resn": Family("fullrank.recipes.sprint:resn", BLOCKS),
    "sprint:r2rec": Family("fullrank.recipes.sprint:r2rec", BLOCKS),
    "sprint:d2lr": Family("fullrank.recipes.sprint:d2lr", BLOCKS),
    "gru4rec": Family("gru4rec", NARROW),
    "bert4rec": Family("bert4rec", BLOCKS),
    "hstu": Family("hstu", BLOCKS),
    "hstu_plus": Family("hstu_plus", BLOCKS),
    "srt": Family("srt", (*BLOCKS, *TEXT, "model.encoder.inner=16")),
    "srt:srt_10": Family("fullrank.recipes.srt:srt_10", (*BLOCKS, *TEXT)),
    "rpg": Family(
        "rpg", CODED, evaluations=((), ("decoding.kind=graph",), ("decoding.kind=pruned",), ("decoding.kind=beam",))
    ),
    "fair": Family("fair", (*CODED, "model.encoder.attention.norm=none"), diagnose=True),  # the norm of the baseline
    "plr": Family("plr", (*REASONING, *EARLIER), evaluations=((), ("reasoning.steps=1",)), diagnose=True),
    "plr:features": Family("fullrank.recipes.plr:features", (*REASONING, "model.items.categorical=[category]")),
    "plr:erl": Family("fullrank.recipes.plr:erl", REASONING),
    "plr:prl": Family(
        "fullrank.recipes.plr:prl",
        (*REASONING, "model.penalties=[{kind: progressive, after_steps: 20, temperature: 1}]"),
    ),
    "popularity": Family("popularity"),
    "recency": Family("recency"),
    "item_to_item": Family("item_to_item"),
}
RANKING: dict[str, Family] = {
    "lr": Family("lr", clicks=True),
    "fm": Family("fm", (SIZED,), clicks=True),
    "dnn": Family("dnn", DEEP, clicks=True),
    "dcnv2": Family("dcnv2", DEEP, clicks=True, diagnose=True),
    "dcnv2, sparse": Family("dcnv2", (*DEEP, "model.embedding.update=rowwise_adagrad"), clicks=True),
    "xdeepfm": Family("xdeepfm", (*DEEP, "model.ranker.cin=[4,5]"), clicks=True),
    "autoint": Family("autoint", (SIZED, "model.ranker.layers=2", "model.ranker.width=8"), clicks=True),
    "rankmixer": Family("rankmixer", (*TOKENS, "model.ranker.width=8", "model.ranker.head=mean"), clicks=True),
    "rankelastor": Family(
        "rankelastor",
        (*TOKENS, "model.ranker.width=6", "model.ranker.head=mlp", "model.ranker.feed_forward=glu"),
        clicks=True,
        diagnose=True,
    ),
}
FAMILIES = RETRIEVAL | RANKING
BASELINES = ("popularity", "recency", "item_to_item")
