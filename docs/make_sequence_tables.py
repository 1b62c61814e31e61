"""Writes the tables of results/sequence.md, one per data set, from the rows in results/ (part of `make docs`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results" / "sequence.md"
K = 10
FIGURES = ("ndcg", "recall", "fair0.8", "coverage")
"""The columns that a row's metrics give, at K."""


@dataclass(frozen=True)
class Method:
    """A line of a table: the rows of a cell of a results file, which are its seeds."""

    name: str
    file: str
    cell: str

    @property
    def key(self) -> str:
        """What its searches and collapse shares are filed under, whatever its products are made in."""
        return self.cell.removesuffix("-fp32")

    @property
    def rows(self) -> list[dict[str, Any]]:
        found = [row for row in _read(self.file)["rows"] if row["cell"] == self.cell]
        assert found, f"{self.file} has no cell {self.cell}"
        return found

    def metrics(self, row: dict[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
        """Of the test split with the history excluded, and their standard errors."""
        key = self._key(row, "exclude")
        return row["metrics"][key], row["stderr"][key]

    def ranked(self, row: dict[str, Any]) -> dict[str, float] | None:
        """Metrics of the test split with the history ranked; None where they were not measured."""
        key = self._key(row, "keep")
        return None if key is None else row["metrics"][key]

    @staticmethod
    def _key(row: dict[str, Any], seen: str) -> Any:
        named = (name for name, of in row["protocol"].items() if of["split"] == "test" and of["seen"] == seen)
        return next(named, None)


def _methods(file: str, **names: str) -> list[Method]:
    return [Method(name, file, cell) for cell, name in names.items()]


BEAUTY, ML = "sequence/2026-11-21_2cpu_beauty.json", "sequence/2026-11-21_2cpu_ml-1m.json"
CODES, SRT = "fair/2026-11-23_2cpu_final.json", "scaling/2026-11-22_2cpu_srt.json"
FIELD = {
    "sasrec": "`sasrec` (exact softmax, cosine)", "gru4rec": "`gru4rec`", "bert4rec": "`bert4rec`",
    "sasrec_2018": "`sasrec_2018`", "sasrec_plus": "`sasrec_plus`",
}  # fmt: skip
UNTRAINED = {"popularity": "popularity (no training)", "item_to_item": "item to item (no training)"}
COUNTED = (*UNTRAINED, "transition_graph")
"""Cells that are counted and draw nothing at random."""
GRAPH = {"transition_graph": "`transition_graph` (no training)"}
PLR = {"base": "plr's base, without reasoning", "plr": "`plr`, cosine scores"}
SPRINT = {"sprint": "`sasrec` with SPRINT"}
TABLES = {
    "amazon-beauty": [
        *_methods("precision/2026-11-26_2cpu_sasrec.json", **{"sasrec-fp32": FIELD["sasrec"]}),
        *_methods(BEAUTY, **{cell: name for cell, name in FIELD.items() if cell != "sasrec"}, **UNTRAINED),
        *_methods("shortcut/2026-11-28_2cpu_beauty.json", **GRAPH),
        *_methods("sprint/2026-11-21_2cpu_on_sasrec.json", **SPRINT),
        *_methods("plr/2026-11-23_2cpu_final.json", **PLR),
        *_methods("sequence/2026-11-24_2cpu_temporal.json", mojito="`mojito`", tpab="`tpab`"),
        *_methods("sequence/2026-11-24_2cpu_unisrec.json", unisrec="`unisrec`"),
        *_methods("sequence/2026-11-24_2cpu_lares.json", lares="`lares`"),
        *_methods("sequence/2026-11-24_2cpu_filters.json", fmlp="`fmlp` (FMLP-Rec)"),
        *_methods("sequence/2026-11-25_2cpu_cl4srec.json", cl4srec="`cl4srec`"),
        *_methods("sequence/2026-11-25_2cpu_classics.json", hgn="`hgn`", caser="`caser`"),
        *_methods("sequence/2026-11-25_2cpu_reasoners.json", hstu="`hstu`", erl="`erl` (ReaRec)"),
        *_methods("sequence/2026-11-25_2cpu_prl.json", prl="`prl` (ReaRec), contrast at temperature 1"),
    ],
    "amazon-toys": [
        *_methods(
            "sequence/2026-11-24_2cpu_toys.json",
            **{
                "sasrec": FIELD["sasrec"],
                "sasrec_2018": "`sasrec_2018`",
                "sasrec_plus": "`sasrec_plus`",
                "base": PLR["base"],
                "gru4rec": FIELD["gru4rec"],
            },
            **SPRINT,
        ),
        *_methods(
            "sequence/2026-11-25_2cpu_toys.json",
            plr=PLR["plr"],
            mojito="`mojito`",
            tpab="`tpab`",
            unisrec="`unisrec`",
            bert4rec=FIELD["bert4rec"],
            fmlp="`fmlp` (FMLP-Rec)",
        ),
        *_methods("shortcut/2026-11-28_2cpu_toys.json", **GRAPH),
        *_methods("shortcut/2026-11-23_2cpu_toys.json", **UNTRAINED),
    ],
    "ml-1m-sequences": [
        *_methods(ML, **FIELD, **UNTRAINED),
        *_methods("shortcut/2026-11-28_2cpu_ml.json", **GRAPH),
        *_methods("plr/2026-11-23_2cpu_final_ml.json", **PLR),
    ],
    "s3rec-beauty": [
        *_methods("precision/2026-11-26_2cpu_srt.json", **{"full-fp32": "`srt`, exact softmax"}),
        *_methods(SRT, srt_1k="`srt`, 1,000 negatives", srt_100="`srt`, 100 negatives"),
        *_methods(CODES, fair="`fair`", **{"softmax-attention": "`fair` without focused attention"}),
        *_methods("fair/2026-11-22_2cpu_pair.json", rpg="`rpg`"),
        *_methods("sequence/2026-11-24_2cpu_features.json", fdsa="`fdsa`"),
        *_methods(
            "sequence/2026-11-25_2cpu_s3rec.json",
            s3rec="`s3rec`",
            scratch="`s3rec` without its first run",
        ),
        *_methods("fair/2026-11-22_2cpu_beauty.json", sasrec="`sasrec` (exact softmax, cosine)"),
    ],
}
_TUNED, _LOOKED = "sequence/2026-11-24_2cpu_tune_{}.json", "plr/2026-11-23_2cpu_{}.json"
_PLR = "plr/2026-11-21_2cpu_tuned_beauty.json"
SEARCHES: dict[str, list[tuple[str, str]]] = {
    "sasrec": [("sequence/2026-11-21_2cpu_beauty_choice.json", "")],
    "sprint": [("sprint/2026-11-21_2cpu_tuned_on_sasrec.json", "sprint")],
    "fmlp": [(_TUNED.format("filters"), "fmlp")],
    "cl4srec": [(_TUNED.format("filters"), "cl4srec")],
    "hgn": [("sequence/2026-11-25_2cpu_tune_classics.json", "hgn")],
    "caser": [("sequence/2026-11-25_2cpu_tune_classics.json", "caser")],
    "lares": [(_TUNED.format("lares"), "lares")],
    "unisrec": [(_TUNED.format("unisrec"), "unisrec")],
    "mojito": [(_TUNED.format("temporal"), "mojito")],
    "tpab": [(_TUNED.format("temporal"), "tpab")],
    "plr": [(_PLR, "plr"), (_LOOKED.format("look"), "")],
    "base": [(_PLR, "base"), (_LOOKED.format("base_look"), "")],
    "transition_graph": [
        ("shortcut/2026-11-23_2cpu_tuned_{}.json", "transition_graph"), ("shortcut/2026-11-28_2cpu_joint.json", "")
    ],
    "rpg": [("fair/2026-11-22_2cpu_tuned.json", "rpg"), ("fair/2026-11-22_2cpu_rpg_low_temperature.json", "")],
    "fair": [("fair/2026-11-22_2cpu_tuned.json", "fair")],
    **{name: [("scaling/2026-11-22_2cpu_srt_tuned.json", "srt_300")] for name in ("full", "srt_1k", "srt_100")},
}  # fmt: skip
"""Cell -> the files of the trials on validation that its settings were chosen from, and the cell there (empty: all).

A cell that is not here was not searched. Those of plr and its base ranked the history."""
OWN_SEARCH = {"amazon-beauty": "beauty", "amazon-toys": "toys", "ml-1m-sequences": "ml"}
"""The transition graph was searched on each set, then on the three together, all others on Beauty."""
RISING = 0.95
"""Share of its epochs from which on a best one is no peak: longer training might have gone on."""
COLLAPSE = "sequence/2026-11-24_2cpu_collapse.json"


@cache
def _read(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results" / file).read_text(encoding="utf-8"))
    return found


def in_order(store: str) -> list[Method]:
    """The methods of a data set, the best first."""
    return sorted(TABLES[store], key=lambda method: -_mean(method, "ndcg"))


def table(store: str) -> str:
    """The methods of a data set with their figures and their terms."""
    names = (
        "",
        "NDCG@10",
        "Recall@10",
        "NDCG@10, history ranked",
        "long-tail share@10",
        "coverage@10",
        "collapse share",
    )
    head = [*names, "trials", "seeds", "best / last epoch", "precision", "parameters", "seconds", "from"]
    lines = [head, ["---"] * len(head)]
    for method in in_order(store):
        rows = method.rows
        first, errors = method.metrics(rows[0])
        cells = [method.name]
        for name in FIGURES:
            values = [method.metrics(row)[0][f"{name}@{K}"] for row in rows]
            spread = f" ({stdev(values):.4f})" if len(rows) > 1 else ""
            if len(rows) == 1 and name in ("ndcg", "recall"):
                spread = f" ± {errors[f'{name}@{K}']:.4f}"
            cells.append(f"{fmean(values):.4f}{spread}" if name in ("ndcg", "recall") else f"{fmean(values):.3f}")
        cells.insert(3, _ranked(method, rows))
        share = _collapse_share(store, method.key)
        learns = method.cell not in COUNTED
        cells += ["" if share is None else f"{share:.3f}", _trials(store, method.key)]
        cells += [f"{len(rows)}" if learns else "", _epochs(rows), _precision(rows) if learns else ""]
        cells.append(f"{rows[0]['parameters']:,}")
        cells += [f"{fmean(map(_seconds, rows)):,.0f}", f"`{method.file}`"]
        lines.append(cells)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _ranked(method: Method, rows: list[dict[str, Any]]) -> str:
    """NDCG@10 under the protocol of papers on codes, where every seed has it."""
    ranked = [metrics[f"ndcg@{K}"] for row in rows if (metrics := method.ranked(row)) is not None]
    return f"{fmean(ranked):.4f}" if len(ranked) == len(rows) else ""


def _precision(rows: list[dict[str, Any]]) -> str:
    """Of the products; rows from before it was a setting with a choice were trained in fp32."""
    return ", ".join(
        sorted({row.get("precision") or row.get("set", {}).get("training.precision", "fp32") for row in rows})
    )


def _trials(store: str, cell: str) -> str:
    """How many trials on validation the settings were chosen from."""
    count = 0
    for file, name in SEARCHES.get(cell, []):
        tree = _read(file.format(OWN_SEARCH.get(store, "")))
        if "searches" in tree:  # those of other norms than the recipe's came before
            count += next(one["budget"]["trials_counted"] for one in tree["searches"] if name in one["best"])
        elif "budget" in tree:
            count += tree["budget"]["trials_counted"]
        else:
            count += len(tree["trials"]) if "trials" in tree else len({row["cell"] for row in tree["rows"]})
    return f"{count}" if count else "0" if cell not in UNTRAINED else ""


def _epochs(rows: list[dict[str, Any]]) -> str:
    """`27 / 30` of each seed; `29 / 30 †` where the best epoch is among the last ones."""
    both = [(row["validation_best"]["epoch"], row["epochs"]) for row in rows if row.get("validation_best")]
    return ", ".join(f"{best} / {last}{' †' if best >= RISING * last else ''}" for best, last in both)


def _collapse_share(store: str, cell: str) -> float | None:
    """What `fullrank report` measured on a run that was at hand."""
    found: float | None = _read(COLLAPSE)["shares"].get(store, {}).get(cell)
    return found


def _seconds(row: dict[str, Any]) -> float:
    """Of training, with the run that it started from."""
    spent: dict[str, float] = row["seconds"]
    return spent["train"] + spent.get("pretrain", 0.0)


def _mean(method: Method, name: str) -> float:
    return fmean(method.metrics(row)[0][f"{name}@{K}"] for row in method.rows)


def marks(store: str) -> tuple[str, str]:
    return f"<!-- {store}: written by docs/make_sequence_tables.py -->", f"<!-- end of {store} -->"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for store in TABLES:
        begin, end = marks(store)
        before, mark, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        assert mark and ended, f"{PAGE} has lost {begin} or {end}"
        text = f"{before}{begin}\n{table(store)}\n{end}{after}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
