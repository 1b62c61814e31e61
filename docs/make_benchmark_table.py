"""Writes the table of processors in guide/benchmarks.md from results/ (part of `make docs`)."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.records import newest, records, shown  # noqa: E402

PAGE = ROOT / "docs" / "guide" / "benchmarks.md"
PROCESSORS = {
    "AMD EPYC": "AMD EPYC, no AMX",
    "Intel(R) Xeon(R) Processor @ 2.50GHz": "Intel Xeon at 2.5 GHz, no AMX",
    "Intel(R) Xeon(R) Processor": "Intel Xeon with AMX",
}
"""What a record calls a processor -> what the table does."""
FIGURES = {
    "train_sequence": ("epoch_over_gemm_floor", "speedup_over_padded", "epoch_seconds", "lightning_over_epoch"),
    "train_ranker": (
        "epoch_over_gemm_floor", "epoch_seconds", "dcnv2_over_plain", "rankelastor_over_plain",
        "rankelastor_over_rankmixer_step", "prepare_1m_seconds", "lightning_over_epoch",
    ),
    "answer": ("p50_over_parts", "p50_ms", "p90_ms"),
    "reasoning": ("plr_over_base_latency", "plr_train_step_over_base"),
    "prepare": ("events_per_s", "memory_mb"),
    "retrieve": ("users_per_s",),
    "serve": ("rps_12k", "p90_ms_12k", "rps_1m", "p90_ms_1m", "ranker_p90_ms"),
    "peers": (
        "rectools_epoch_over_ours", "replay_epoch_over_ours", "fuxictr_epoch_over_ours_dcnv2_frappe",
        "fuxictr_epoch_over_ours_dcnv2_ml-1m", "fuxictr_epoch_over_ours_finalmlp_frappe",
        "fuxictr_epoch_over_ours_finalmlp_ml-1m",
    ),
}  # fmt: skip
"""Benchmark -> its headlines and the figures that have a goal."""
BEGIN, END = "<!-- processors: written by docs/make_benchmark_table.py -->", "<!-- end of processors -->"


def table(results: Path | None = None) -> str:
    """Each figure in the newest record of each kind of processor, with its day; empty where there is none."""
    rows = [["benchmark", "figure", *PROCESSORS.values()], ["---"] * (2 + len(PROCESSORS))]
    for name, figures in FIGURES.items():
        found = records(name, results)
        for figure in figures:
            of_each = [newest(found, cpu, figure) for cpu in PROCESSORS]
            cells = ["" if one is None else f"{shown(one.figures[figure])} ({one.taken[:10]})" for one in of_each]
            rows.append([f"`{name}`", f"`{figure}`", *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, ended, after = rest.partition(END)
    assert mark and ended, f"{PAGE} has lost {BEGIN} or {END}"
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
