"""`fullrank diagnose`: a run's scores, layers and matrices from inside, in tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from fullrank.cli.option_groups import SampleOptions, Written
from fullrank.cli.options import RunFolder, check_out, option
from fullrank.cli.output import seconds
from fullrank.cli.verbs import verb
from fullrank.core.errors import command_line
from fullrank.core.registry import Problem

if TYPE_CHECKING:
    from fullrank.analysis.diagnosis import Diagnosis


Table = tuple[tuple[str, ...], list[list[Any]], str]
"""Headers, rows, and a text below them; without rows nothing is printed."""
CODES = 8
"""Most levels of a semantic id that are printed."""
TRAJECTORY = (
    "stable: stable rank, the mean over impressions, with its 5 % and 95 % quantiles; of: the largest it could be; "
    "rose: share of impressions in which it is higher than a line above; entropy: entropy rank."
)
FEED_FORWARD = (
    "A feed-forward's own doing, behind the mixing's norm: stable rank out over in (Theorem 2.2 says below 1), out "
    "less in (Theorem 3.2 says above 0 where it is gated), share of impressions in which it rose."
)
TRANSPOSE = (
    "Theorem 2.1: stable rank behind block transpose, its two bounds, and what they assume: overlap near 0 and "
    "coherence near 1; within: share of impressions between the bounds."
)
JACOBIAN = (
    "Jacobian of the last block's output by the tokens, at a few impressions: directions that pass (entropy rank), of "
    "how many, and singular values."
)


@verb()
def diagnose(
    run: RunFolder,
    sample: SampleOptions,
    output: Written,
    seed: Annotated[int, option("N", "Which sample is drawn.", min=0)] = 0,
    out: Annotated[Path | None, option("FILE", "Write the rows there.  [default: RUN/diagnosis.jsonl]")] = None,
) -> None:
    """Measure where popularity bias or collapse arises.

    How much of all scores lies in one direction and how close that is to popularity; what each layer
    does to it; who is attended to; the norms of all matrices; and what becomes of accuracy and
    fairness without each block, and without what each feature says. What a model does not have is
    left out. Of a run that reasons: whether its streams differ, what gate and steps are worth, where
    it looks. Of one that predicts semantic ids: at which code it goes wrong, and where its search
    loses items. Of a ranking model: how many directions an impression's tokens use behind each layer
    (effective rank). The rows go into the run folder, where `fullrank report` finds them.

    \b
    fullrank diagnose runs/sasrec
    fullrank diagnose runs/sasrec --users 20000 --split validation --json
    fullrank diagnose runs/rankelastor --impressions 20000
    """
    from fullrank import api
    from fullrank.analysis.diagnosis import NAME
    from fullrank.analysis.diagnostics.shortcut import verdict
    from fullrank.run import Run

    opened = Run.open(run)
    where = out or opened.path / NAME
    check_out(where, output.overwrite, suffixes=(".jsonl",))
    with output.progress(f"diagnose {run}") as tick:
        diagnosis = api.diagnose(opened, **vars(sample), seed=seed, progress=tick)
    diagnosis.save(where)
    about = diagnosis.about()
    what = "users" if opened.spec.problem == "retrieval" else "impressions"
    output.say(
        f"{run}: {opened.spec.recipe}, {about[what]:,} {what} of the {sample.split} split, in {seconds(output.spent)}"
    )
    output.say()
    for table in TABLES[opened.spec.problem]:
        headers, rows, text = table(diagnosis)
        if rows:
            output.table(headers, rows)
            if text:
                output.say(text)
            output.say()
    if shortcut := verdict(diagnosis):
        output.say(f"shortcut: {shortcut}")
        output.say()
    for diagnostic, why in diagnosis.left_out().items():
        output.say(f"left out: {diagnostic} ({why})")
    output.say(f"rows written to {where}", wrap=False)
    output.say(f"as a page: {command_line('report', run, '--out', 'report.html')}", wrap=False)
    output.finish(
        {
            "run": opened.path,
            "recipe": opened.spec.recipe,
            **about,
            "out": where,
            "rows": list(diagnosis.rows),
            "left_out": diagnosis.left_out(),
            "seconds": output.spent,
        }
    )


def _scores(diagnosis: Diagnosis) -> Table:
    """The figures of the score matrix, each with what it says."""
    width = diagnosis.value("spectrum", "width") or 0
    said = {
        "collapse_share": "share of all scores that lies in one direction; at 1 every user gets the same list",
        "popularity_spearman": "how alike that direction orders the items to their popularity; at 1 the same",
        "popularity_cosine": "the same as a cosine; below 0 where scores are negative",
        "entropy_rank": f"directions in use (entropy rank), of {width:.0f}; more is better",
        "stable_rank": "directions as strong as the first; 1 over the collapse share",
    }
    rows = [[name.replace("_", " "), diagnosis.value("spectrum", name), text] for name, text in said.items()]
    return ("scores", "value", "what it says"), rows if diagnosis.of("spectrum") else [], ""


def _reasoning(diagnosis: Diagnosis) -> Table:
    """The figures of a model that reasons; none for others."""
    said = (
        ("diversity", "gamma", "how fast streams come together; 0 or less: they do not"),
        ("streams", "mean_kl", "how different streams would recommend, in nats; at 0 the same"),
        ("streams", "gate_entropy", "at 1 the gate weighs streams alike, at 0 it picks one"),
        ("ensemble", "benefit", "loss that mixing the streams saves (Theorem 4.1)"),
        ("gate_gain", "gain", "accuracy of the gate over equal weights"),
        ("oracle_step", "gap", "accuracy left to an oracle that stops everybody at their best step"),
    )
    values = [(name, diagnosis.value(diagnostic, name), text) for diagnostic, name, text in said]
    rows = [[name.replace("_", " "), value, text] for name, value, text in values if value is not None]
    return ("reasoning", "value", "what it says"), rows, ""


def _codes(diagnosis: Diagnosis) -> Table:
    """A row per level of the semantic ids that a model predicts; none for other models."""
    title = (
        "Behind the history and the true codes before, right: users whose code is the most likely; open: most likely "
        "of those that some item has there; log p, and by counting codes alone; head: users whose most likely code is "
        "one of the most used 20 %, and of targets; kept: targets that the beam has not lost yet, and if it lost none "
        "before."
    )
    headers = ("code", "of", "right", "open", "log p", "counted", "head", "target", "kept", "of all")
    beams = diagnosis.value("beam_loss", "beams")
    cells = (
        ("code_levels", "codes"),
        ("code_levels", "top_1"),
        ("code_levels", "top_1_open"),
        ("code_levels", "log_p"),
        ("code_levels", "log_p_counts"),
        ("code_popularity", "head_predicted"),
        ("code_popularity", "head_targets"),
        ("beam_loss", "kept", f"{beams or 0:.0f} beams"),
        ("beam_loss", "kept", "exhaustive"),
    )
    rows = [[level, int(codes), *others] for level, codes, *others in _by(diagnosis, "index", cells)]
    if len(rows) > CODES:
        title += f" The first {CODES} of {len(rows)} codes; the page has all."
    return headers, rows[:CODES], title


def _layers(diagnosis: Diagnosis) -> Table:
    """A row per layer. Figures of a block stand with the layer behind it."""
    title = (
        "Layer 0 is the input. sigma: largest singular value of the outputs at the users' last positions; share, "
        "rank: as above; attn: attention to the top 20 % of items over their share of the events read (1 is even); "
        "u.v: cosine of attention's first singular vectors; norm, bound: log10 of the outputs' norm and of Theorem "
        "4.1's bound."
    )
    headers = ("layer", "sigma", "share", "rank", "attn", "u.v", "norm", "bound")
    cells = (
        ("layers", "sigma_1"),
        ("layers", "collapse_share"),
        ("layers", "entropy_rank"),
        ("bound", "log10_norm"),
        ("bound", "log10_bound"),
    )
    of_heads = (("attention_share", "ratio", "top 20 %"), ("alignment", "uv_cosine", None))
    heads = [diagnosis.values(kind, name, "layer", "head", label=label) for kind, name, label in of_heads]
    rows = []
    for layer, *figures in _by(diagnosis, "layer", cells):
        blocks = ([value for (block, _), value in values.items() if block == layer - 1] for values in heads)
        rows.append([layer, *figures[:3], *(fmean(block) if block else None for block in blocks), *figures[3:]])
    return headers, rows, title


def _by(diagnosis: Diagnosis, key: str, cells: Sequence[tuple[str, ...]]) -> list[list[Any]]:
    """A row for each index of the first figure: the index, and each figure there.

    A figure is named by its diagnostic and its name, and by a label where several have these.
    """
    columns = [diagnosis.values(kind, name, key, label=next(iter(label), None)) for kind, name, *label in cells]
    return [[index, *(column.get(index) for column in columns)] for index in columns[0]]


NORMS = (
    ("sigma", "value"),
    ("sigma", "output"),
    ("sigma", "up"),
    ("sigma", "down"),
    ("log_product", "attention"),
    ("log_product", "feed_forward"),
)
"""Figures of a block, and the label of each."""


def _norms(diagnosis: Diagnosis) -> Table:
    """A row per layer: the spectral norms of its matrices, and the logs of their products."""
    headers = ("layer", "value", "output", "up", "down", "attention", "feed-forward")
    title = "Largest singular value of each matrix (value: of the largest head); then the log of each block's product."
    largest: dict[tuple[Any, ...], float] = {}
    for (_, *block), value in diagnosis.values("norms", None, "head", "layer", "name", "label").items():
        largest[tuple(block)] = max(value, largest.get(tuple(block), value))
    rows: list[list[Any]] = []
    for kind in ("", "decoder_", "cross_"):
        for layer in sorted({layer for layer, _, label in largest if label in (f"{kind}value", f"{kind}up")}):
            cells = (largest.get((layer, name, kind + label)) for name, label in NORMS)
            rows.append([f"{kind.rstrip('_')} {layer + 1}".strip(), *cells])
    return headers, rows, title


def _ablation(diagnosis: Diagnosis) -> Table:
    """A row per part that was left out, and the figures without it."""
    title = "What the scores, accuracy and fairness become without a block, or where every "
    title += "event attends to itself alone (A = I); nothing is trained again."
    values = diagnosis.values("ablation", None, "label", "layer", "name")
    names = list(dict.fromkeys(name for *_, name in values))
    rows = []
    for label, layer in dict.fromkeys(position[:2] for position in values):
        kind = label.replace("_", "-")
        what = {"whole": "nothing", "mixing": "mixing (A = I)"}.get(label)
        what = what or (f"every {kind}" if layer is None else f"{kind} {layer + 1}")
        rows.append([what, *(values.get((label, layer, name)) for name in names)])
    return ("without", *(name.replace("_", " ") for name in names)), rows, title


def _features(diagnosis: Diagnosis) -> Table:
    title = "What the lists lose where a feature has the values of others, and the ends of its 95 % interval."
    names = ("ndcg@10_lost", "ndcg@10_low", "ndcg@10_high", "recall@10_lost")
    lost, *others = (diagnosis.values("feature_worth", name, "label") for name in names)
    rows = [[label, value, *(column.get(label) for column in others)] for label, value in lost.items()]
    return ("feature", "ndcg@10 lost", "from", "to", "recall@10 lost"), rows, title


def _trajectory(diagnosis: Diagnosis) -> Table:
    """A row per layer of a ranker: the ranks of its tokens."""
    values, rows = diagnosis.values("token_ranks", None, "label", "name", "index"), []
    for label in dict.fromkeys(label for label, *_ in values):
        at_layer = {tuple(figure): value for (behind, *figure), value in values.items() if behind == label}
        low, high = (at_layer["stable_rank_quantile", percent] for percent in (5, 95))
        most = min(at_layer["tokens", None], at_layer["width", None])
        ranks = (at_layer.get((name, None)) for name in ("stable_rank_rose", "entropy_rank"))
        rows.append([label, at_layer["stable_rank", None], low, high, most, *ranks])
    return ("behind", "stable", "5 %", "95 %", "of", "rose", "entropy"), rows, TRAJECTORY


def _jacobian(diagnosis: Diagnosis) -> Table:
    names = ("entropy_rank", "directions", "largest", "median")
    values = diagnosis.values("jacobian", None, "name")
    return ("pass", "of", "largest", "median"), [[values.get(name) for name in names]] if values else [], JACOBIAN


def _theorems(title: str, kind: str, names: tuple[str, ...], text: str, diagnosis: Diagnosis) -> Table:
    """The figures of a kind of layer that the paper's theorems are about, a row for each layer."""
    values = diagnosis.values("rank_theorems", None, "label", "name")
    labels = dict.fromkeys(label for label, name in values if name.startswith(f"{kind}_"))
    rows = [[label, *(values.get((label, f"{kind}_{name}")) for name in names)] for label in labels]
    return (title, *names), rows, text


TABLES: Mapping[Problem, tuple[Callable[[Diagnosis], Table], ...]] = {
    "retrieval": (_scores, _reasoning, _codes, _layers, _norms, _ablation, _features),
    "ranking": (
        _trajectory,
        partial(_theorems, "feed-forward", "feed_forward", ("ratio", "gain", "rose"), FEED_FORWARD),
        partial(
            _theorems, "mixing", "transpose", ("rank", "lower", "upper", "within", "overlap", "coherence"), TRANSPOSE
        ),
        _jacobian,
    ),
}
