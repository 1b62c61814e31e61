"""A first day with a shop's own table: from a CSV to lists that can be shown, and to a folder that goes elsewhere.

    python -m examples.first_day runs/first_day

The table has columns of its own names, semicolons, string ids, dates as text and missing values; it is generated here,
with customers who each stay with a kind of thing, and of whom most are in the club of that kind. The page
docs/guide/first_day.md follows the steps. Takes a minute.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl

import fullrank as fr

COLUMNS = {"user_col": "customer", "item_col": "sku", "time_col": "bought_at"}
KINDS = ("garden", "kitchen", "sport", "toys")
ELSEWHERE = """
import fullrank as fr
known = {"new": {"club": "kitchen"}}
lists = fr.recommend("shipped", {"new": ["sku-001", "sku-005"]}, features=known, k=3, titles=True)
for row in lists.iter_rows(named=True):
    print(f"   {row['rank']}. {row['title']} ({row['item']})")
"""


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/first_day")
    out.mkdir(parents=True, exist_ok=True)
    write_tables(out)

    print("1. prepare: columns by name, rows without a customer or a thing left out, and what else is known")
    store = fr.prepare(
        out / "sales.csv", out / "store", items=out / "things.csv", users=out / "customers.csv", **COLUMNS,
        event_features=["quantity"], user_features=["club"], missing="drop", overwrite=True,
    )  # fmt: skip
    print(f"   {store}")

    print("2. train: a transformer that reads clubs and quantities, and a baseline that needs no training")
    small = ["model.dim=32", "model.encoder.layers=1", "training.max_epochs=40", "training.batch_size=2048"]
    run = fr.train("sasrec", store, out / "sasrec", set=[*small, "model.features=auto"], overwrite=True, progress=False)
    baseline = fr.train("item_to_item", store, out / "item_to_item", overwrite=True, progress=False)

    print("3. evaluate: each customer's last purchase, and whether the difference is more than chance")
    found = fr.evaluate(run)
    print(f"   {fr.compare(fr.evaluate(baseline), found, 'recall@10')}")

    print("4. recommend: to known customers, from what is in stock, and to somebody who is new")
    lists = fr.recommend(run, users=["c-0001", "c-0002"], k=3, filters={"in_stock": True}, titles=True)
    print(lists)
    visitor, club = {"a visitor": ["sku-003", "sku-011"]}, {"a visitor": {"club": "sport"}}
    print(fr.recommend(run, visitor, features=club, k=3, filters={"kind": ["sport", "toys"]}, titles=True))

    print("5. evaluate again on the sales of the next month, which the model has not seen")
    later = fr.evaluate(run, events=out / "next_month.csv", **COLUMNS)
    print(later)
    for note in later.notes:
        print(f"   note: {note}")

    print("6. report: one page that answers which is better, and for whom")
    fr.report([baseline, run], out / "report.html", users=200)
    print(f"   {out / 'report.html'}")

    print("7. ship: a folder without checkpoints, which answers in another directory without the store")
    shutil.rmtree(out / "elsewhere", ignore_errors=True)
    fr.export(run, out / "elsewhere" / "shipped", to="folder")
    print(subprocess.run([sys.executable, "-c", ELSEWHERE], cwd=out / "elsewhere", check=True, text=True,
                         capture_output=True).stdout)  # fmt: skip


def write_tables(out: Path) -> None:
    """`sales.csv`, `next_month.csv`, `things.csv` and `customers.csv`, as a shop's database would give them."""
    rng = np.random.default_rng(0)
    number = np.arange(120)
    kinds = number % len(KINDS)
    things = pl.DataFrame({
        "sku": [f"sku-{n:03}" for n in number],
        "title": [f"{KINDS[kind].title()} thing {n}" for n, kind in zip(number, kinds, strict=True)],
        "kind": [KINDS[kind] for kind in kinds],
        "in_stock": rng.random(len(number)) < 0.8,
    })  # fmt: skip
    things.write_csv(out / "things.csv")

    customers, most = 600, 12
    owner = np.repeat(np.arange(customers), most)
    loyal = rng.random(len(owner)) < 0.8
    kind = np.where(loyal, owner % len(KINDS), rng.integers(0, len(KINDS), len(owner)))
    thing = rng.zipf(1.4, len(owner)) % (len(number) // len(KINDS)) * len(KINDS) + kind
    day = np.sort(rng.integers(0, 120, (customers, most)), axis=1).ravel()
    sales = pl.DataFrame({
        "customer": [f"c-{n:04}" for n in owner],
        "sku": [f"sku-{n:03}" for n in thing],
        "bought_at": pl.Series(np.datetime64("2026-01-01") + day.astype("timedelta64[D]")).cast(pl.String),
        "quantity": rng.integers(1, 4, len(owner)),
    })  # fmt: skip
    lost = pl.Series(rng.random(len(owner)) < 0.01)
    sales = sales.with_columns(sku=pl.when(lost).then(None).otherwise(pl.col("sku")))
    until = pl.col("bought_at") < "2026-04-01"
    sales.filter(until).write_csv(out / "sales.csv", separator=";")
    sales.filter(~until & pl.col("sku").is_not_null()).write_csv(out / "next_month.csv", separator=";")
    member = rng.random(customers) < 0.8
    clubs = [KINDS[n % len(KINDS)] if joined else None for n, joined in enumerate(member)]
    people = pl.DataFrame({"customer": [f"c-{n:04}" for n in range(customers)], "club": clubs})
    people.write_csv(out / "customers.csv", separator=";")


if __name__ == "__main__":
    main()
