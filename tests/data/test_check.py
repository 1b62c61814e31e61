"""Findings about stores: what is planted is found with its number, clean data is silent, parts give what one gives."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fullrank as fr
from fullrank.core.errors import UserError
from fullrank.core.random import uniform_of_rows
from fullrank.data.check import Check, check
from fullrank.data.events import order
from fullrank.data.events.check import _duplicates
from fullrank.data.findings import Finding
from fullrank.data.sources.planted import Planted
from fullrank.data.sources.planted_clicks import PlantedClicks

DAY, START = 86_400, 1_700_000_000
Rows = list[tuple[Any, int, int]]


@pytest.fixture(scope="module")
def market() -> pl.DataFrame:
    return Planted(users=600, items=200).read().events.select("user_id", "item_id", "timestamp")


def found(events: pl.DataFrame | Rows, place: Path, **how: Any) -> dict[str, Finding]:
    """The findings of a table, by name."""
    if isinstance(events, list):
        events = pl.DataFrame(events, ["user_id", "item_id", "timestamp"], orient="row")
    return by_name(check(fr.prepare(events, place / "store", overwrite=True, **how)))


def by_name(told: Check) -> dict[str, Finding]:
    return {one.name: one for one in told.findings}


def grades(told: dict[str, Finding]) -> dict[str, str]:
    return {name: one.grade for name, one in told.items() if one.grade != "ok"}


@pytest.mark.parametrize("split", ["leave_one_out", "global_time"])
def test_clean_events_are_silent(market: pl.DataFrame, split: str, tmp_path: Path) -> None:
    """Each user's are spread over the same year: in the market they live a few weeks, which global_time would find."""
    place = (pl.int_range(pl.len()).over("user_id") + 0.5 + pl.col("user_id") / 1e4) / pl.len().over("user_id")
    table = market.with_columns(timestamp=(START + 300 * DAY * place).cast(pl.Int64))
    told = check(fr.prepare(table, tmp_path / "store", set=[f"split={split}"]))
    assert told.ok and set(grades(by_name(told))) <= {"leak", "late_items", "repeats", "order"}
    told.require_ok()
    assert told.dump()["ok"] is True and told.problem == "retrieval"
    assert check(fr.prepare(market, tmp_path / "market")).ok


def test_copies_are_counted(market: pl.DataFrame, tmp_path: Path) -> None:
    table = pl.concat([market, market.sample(100, seed=1), market.head(7)])
    told = found(table, tmp_path)["duplicates"]
    expected = len(table) - table.n_unique()
    assert told.grade == "warning" and f"{expected:,} events" in told.said
    assert told.value == pytest.approx(expected / len(table), abs=1e-6)


@pytest.mark.parametrize("size", [1, 2, 40, 3000])
def test_copies_as_a_sort_counts_them(size: int) -> None:
    draw = np.random.default_rng(size)
    for items, tied in ((3, 0.9), (50, 0.5), (10_000, 1.0)):
        same = draw.random(size) < tied
        same[0] = False
        item = draw.integers(items, size=size).astype(np.int32)
        pairs = np.stack([np.cumsum(~same), item])
        assert _duplicates(same, item, items) == size - np.unique(pairs, axis=1).shape[1]


def test_repeats_in_a_row_are_counted_within_users(tmp_path: Path) -> None:
    rows = [("a", item, START + DAY * at) for at, item in enumerate([1, 1, 2, 1, 3])]
    rows += [("b", item, START + DAY * at) for at, item in enumerate([3, 3, 3, 4])]  # not behind the 3 of a
    told = found(rows, tmp_path)["in_a_row"]
    assert told.value == pytest.approx(3 / 9, abs=1e-6) and told.grade == "warning"


def test_bots_are_found_and_named(market: pl.DataFrame, tmp_path: Path) -> None:
    fast = pl.DataFrame(
        {"user_id": 70_001, "item_id": np.arange(61) % 200 + 1, "timestamp": START + np.arange(61) // 2}
    )
    daily = pl.DataFrame(
        {"user_id": 70_002, "item_id": np.arange(1001) % 200 + 1, "timestamp": START + np.arange(1001) * 80}
    )
    slow = pl.DataFrame({"user_id": 70_003, "item_id": np.arange(61) % 200 + 1, "timestamp": START + np.arange(61)})
    cast = {
        "item_id": market["item_id"].dtype,
        "user_id": market["user_id"].dtype,
        "timestamp": market["timestamp"].dtype,
    }
    told = found(pl.concat([market, *(one.cast(cast) for one in (fast, daily, slow))]), tmp_path)["bots"]
    assert told.grade == "warning" and told.said.startswith("2 users") and "70001, 70002" in told.said
    assert told.value == pytest.approx(1062 / (len(market) + 1123), abs=1e-6)
    assert found(pl.concat([market, slow.cast(cast)]), tmp_path)["bots"].grade == "ok"


def test_a_user_with_a_huge_share_is_found_without_times(market: pl.DataFrame, tmp_path: Path) -> None:
    bot = pl.DataFrame({"user_id": 70_001, "item_id": np.arange(1500) % 200 + 1}).cast(
        {"item_id": market["item_id"].dtype, "user_id": market["user_id"].dtype}
    )
    told = found(pl.concat([market.drop("timestamp"), bot]), tmp_path, time_col=None)
    assert told["bots"].grade == "warning" and told["bots"].said.startswith("1 users") and "70001" in told["bots"].said
    assert told["times"].grade == "note" and not {"leak", "ties", "duplicates", "late_items"} & set(told)


@pytest.mark.parametrize(("moment", "grade"), [(0, "warning"), (2_524_608_000, "warning"), (START, "ok")])
def test_times_that_are_none(moment: int, grade: str, market: pl.DataFrame, tmp_path: Path) -> None:
    wrong = pl.when(pl.col("item_id") == market["item_id"][0]).then(moment).otherwise("timestamp")
    table = market.with_columns(timestamp=wrong)
    told = found(table, tmp_path)["times"]
    count = (table["timestamp"] == moment).sum() if grade == "warning" else 0
    assert told.grade == grade and told.said.startswith(f"{count:,} events")


def test_ranks_are_told_and_not_read_as_times(market: pl.DataFrame, tmp_path: Path) -> None:
    ranks = market.with_columns(timestamp=pl.int_range(pl.len()).over("user_id"))
    told = found(ranks, tmp_path)
    assert grades(told).get("times") == "note" and "they are ranks" in told["times"].said
    assert not {"leak", "ties", "late_items"} & set(told) and told["order"].value is not None


def test_ties_and_the_unit_of_times(market: pl.DataFrame, tmp_path: Path) -> None:
    table = market.with_columns(timestamp=pl.col("timestamp") // DAY * DAY)
    told = found(table, tmp_path)["ties"]
    ordered = table.sort("user_id", "timestamp", maintain_order=True)
    before = pl.col("timestamp").shift().over("user_id")
    tied = ordered.with_columns(tied=(pl.col("timestamp") == before).fill_null(False))
    targets = tied.group_by("user_id").last()
    assert told.grade == "warning" and "share the day" in told.said
    assert (
        told.value == pytest.approx(targets["tied"].mean(), abs=1e-6) and f"{tied['tied'].mean():.1%} of" in told.said
    )


def test_leaks_late_items_and_cold_ones_of_a_small_table(tmp_path: Path) -> None:
    """User a ends with item 9, which only b's training has, later; b ends with item 7, which nobody trains on."""
    days = {"a": [(1, 0), (2, 1), (3, 2), (9, 3)], "b": [(1, 10), (9, 11), (3, 12), (7, 13)]}
    rows = [(user, item, START + DAY * day) for user, events in days.items() for item, day in events]
    told = found(rows, tmp_path)
    assert told["late_items"].value == 0.5 and told["late_items"].grade == "warning"
    assert (
        told["cold_targets"].value == pytest.approx(3 / 4) and told["cold_targets"].grade == "warning"
    )  # both 3, and 7
    assert told["leak"].value == pytest.approx(0.25, abs=1e-4) and told["leak"].grade == "note"
    later = found(rows, tmp_path, set=["split={kind: global_time, validation_from: 0.5, test_from: 0.7}"])
    assert later["leak"].grade == "ok" and later["cold_users"].grade == "note" and later["cold_users"].value == 0.5
    assert later["late_items"].value == 0


def test_the_leak_of_a_part_of_a_store_is_counted_anew(market: pl.DataFrame, tmp_path: Path) -> None:
    store = fr.prepare(market, tmp_path / "store")
    own = store.manifest["split"]["train_share_after_test"]
    part = fr.subset(store, tmp_path / "part", share=0.5)
    assert "train_share_after_test" not in part.manifest["split"]
    again = fr.prepare(market.filter(pl.col("user_id").is_in(part.user_ids.implode())), tmp_path / "again")
    told = by_name(check(part))["leak"].value
    assert told == pytest.approx(again.manifest["split"]["train_share_after_test"], abs=1e-4) and told != own


def test_repeated_targets_and_empty_parts_are_told(tmp_path: Path) -> None:
    rows = [(user, item % 3, START + DAY * item) for user in range(40) for item in range(8)]
    told = found(rows, tmp_path)["repeats"]
    assert told.grade == "note" and told.value == 1 and "evaluate with --set seen=keep" in told.said
    told = found([row for row in rows if row[2] < START + 2 * DAY], tmp_path)["split"]
    assert told.grade == "warning" and "leaves no" in told.said


def walks(users: int = 300, items: int = 40, length: int = 12, seed: int = 0) -> pl.DataFrame:
    """Each user walks over the items in steps of one."""
    start = np.random.default_rng(seed).integers(items, size=(users, 1))
    return pl.DataFrame({
        "user_id": np.repeat(np.arange(users), length),
        "item_id": ((start + np.arange(length)) % items).ravel(),
        "timestamp": np.tile(START + DAY * np.arange(length), users),
    })  # fmt: skip


def shuffled(table: pl.DataFrame, but: int = 0) -> pl.DataFrame:
    """The events of each user at their times in random order, but so many at the end."""
    last = pl.int_range(pl.len()).over("user_id") >= pl.len().over("user_id") - but
    order = pl.when(last).then(2.0).otherwise(pl.Series(np.random.default_rng(0).random(len(table))))
    mixed = table.with_columns(order=order).sort("user_id", "order", maintain_order=True)
    return table.with_columns(item_id=mixed["item_id"])


def test_order_is_found_where_it_is_and_not_where_events_are_shuffled(market: pl.DataFrame, tmp_path: Path) -> None:
    told = found(walks(), tmp_path)["order"]
    assert told.grade == "ok" and told.value is not None and told.value > 1.5
    mixed = found(shuffled(walks()), tmp_path)["order"]
    assert mixed.grade == "note" and "ease" in mixed.said and mixed.value == pytest.approx(1, abs=0.1)
    low, high = order.order_of(fr.Store.open(tmp_path / "store")).factor(
        order.order_of(fr.Store.open(tmp_path / "store")).real
    )[1:]
    assert low < 1 < high


def test_order_that_only_rows_of_one_day_have_is_told(tmp_path: Path) -> None:
    """Pairs of a day follow a rule, days none: once the rows of a day are shuffled little is left."""
    draw = np.random.default_rng(0)
    pairs = draw.integers(20, size=(3000, 4)) * 2
    items = np.stack([pairs, pairs + 1], 2).reshape(3000, -1)
    table = pl.DataFrame({
        "user_id": np.repeat(np.arange(3000), 8), "item_id": items.ravel(),
        "timestamp": np.tile(START // DAY * DAY + DAY * (np.arange(8) // 2), 3000),
    })  # fmt: skip
    told = found(table, tmp_path)["order"]
    bits = order.order_of(fr.Store.open(tmp_path / "store"))
    assert told.value == pytest.approx(bits.factor(bits.real)[0], abs=1e-5) and bits.factor(bits.real)[0] > 1.5
    assert bits.factor(bits.untied)[0] < 1.2 and told.grade == "note" and "order of rows within a day" in told.said


def slow_order(store: fr.Store) -> order.Order:
    """`order_of` user by user, with the pairs in dictionaries."""
    width, popularity = store.num_items, store.catalog.popularity
    share = (popularity + 1) / (popularity.sum() + width)
    most = max(order.FOLLOWED, store.num_events // order.FOLLOWED_SHARE)
    drawn = uniform_of_rows(0, np.arange(width)) * store.num_events < most
    counts: list[dict[tuple[int, int], int]] = [{}, {}, {}]
    sources: list[dict[int, int]] = [{}, {}, {}]
    asked: list[list[tuple[int, int]]] = [[], [], []]

    def uniform(seed: int, key: int) -> float:
        return float(uniform_of_rows(seed, np.array([key]))[0])

    for user in range(store.num_users):
        start, (end, until), key = int(store.offsets[user]), store.bounds[user].tolist(), int(store.user_keys[user])
        items, count = store.items[start:end].tolist(), end - start
        times = list(range(count)) if store.times is None else store.times[start:end].tolist()
        groups = [[at for at in range(count) if times[at] == moment] for moment in sorted(set(times))]
        for at in range(count):
            if not drawn[items[at]]:
                continue
            pairs: list[int | None] = [None, None, None]
            if at + 1 < count:
                pairs[0] = at + 1
            if at != int(uniform(3, key) * count):
                pairs[1] = (at + 1 + int(uniform(1, key + at) * (count - 1))) % count
            number = next(n for n, group in enumerate(groups) if at in group)
            group = groups[number]
            chance = uniform(2, key + at) * len(group)
            if chance >= 1:
                pairs[2] = group[(group.index(at) + int(chance)) % len(group)]
            elif number + 1 < len(groups):
                pairs[2] = groups[number + 1][int(chance * len(groups[number + 1]))]
            for which, behind in enumerate(pairs):
                if behind is not None:
                    pair = items[at], items[behind]
                    counts[which][pair] = counts[which].get(pair, 0) + 1
                    sources[which][items[at]] = sources[which].get(items[at], 0) + 1
        if count >= 2 and until > end:
            last = (
                items[-1],
                items[int(uniform(3, key) * count)],
                items[groups[-1][int(uniform(4, key) * len(groups[-1]))]],
            )
            for which, source in enumerate(last):
                if drawn[source]:
                    asked[which].append((source, int(store.items[end])))
    bits = []
    for which in range(3):
        values = [
            np.log2((counts[which].get((a, v), 0) / share[v] + order.PRIOR) / (sources[which].get(a, 0) + order.PRIOR))
            for a, v in asked[which]
        ]
        bits.append(np.array(values))
    return order.Order(*bits)


@pytest.mark.parametrize("followed", [1 << 16, 900])
@pytest.mark.parametrize("form", ["days", "seconds", "global", "no times"])
def test_order_as_a_loop_over_users_counts_it(
    form: str, followed: int, market: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "FOLLOWED", followed)  # some of the items, or all
    table = market.filter(pl.col("user_id").rank("dense") <= 80)
    if form == "days":
        table = table.with_columns(timestamp=pl.col("timestamp") // (9 * DAY) * DAY)
    how: dict[str, Any] = {"set": ["split=global_time"]} if form == "global" else {}
    store = fr.prepare(table, tmp_path / "store", **how | ({"time_col": None} if form == "no times" else {}))
    fast, slow = order.order_of(store), slow_order(store)
    for one, other in zip(fast, slow, strict=True):
        assert len(one) == len(other) > 0 and np.allclose(one, other)


def test_shuffling_for_real_gives_what_is_drawn(tmp_path: Path) -> None:
    """Behind an event stands any other one with equal chance: so it is in a table whose events are shuffled."""
    drawn = order.order_of(fr.prepare(walks(2000), tmp_path / "a")).shuffled
    real = order.order_of(fr.prepare(shuffled(walks(2000), but=2), tmp_path / "b")).real
    spread = np.sqrt(drawn.var() / len(drawn) + real.var() / len(real))
    assert abs(drawn.mean() - real.mean()) < 4 * spread


def test_parts_say_what_the_whole_says(market: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "BLOCK", 1000)
    table = pl.concat([market, market.head(40)]).with_columns(
        timestamp=pl.col("timestamp") // 3600 * 3600, user_id=pl.format("u{}", "user_id"),
    )  # fmt: skip
    table.write_parquet(tmp_path / "events.parquet")
    how: dict[str, Any] = {"request_features": [{"kind": "categorical", "name": "shelf"}]}
    table.with_columns(shelf=pl.col("item_id") % 7).write_parquet(tmp_path / "events.parquet")
    one = by_name(check(fr.prepare(tmp_path / "events.parquet", tmp_path / "one", **how)))
    for parts in (1, 5):
        place = tmp_path / f"in-{parts}"
        other = by_name(check(fr.prepare(tmp_path / "events.parquet", place, parts=parts, **how)))
        for name, told in one.items():
            # that of the leak is counted by stretches of time in a store of parts
            assert other[name] == told or (name == "leak" and other[name].value == pytest.approx(told.value, abs=2e-4))
    monkeypatch.setattr(order, "BLOCK", 1 << 15)
    assert by_name(check(tmp_path / "one")) == one


@pytest.mark.parametrize("rows", [[("a", 1, START)], [("a", item, START + item) for item in range(5)],
                                  [("a", 1, START), ("b", 1, START)], [("a", 1, START)] * 4])  # fmt: skip
@pytest.mark.parametrize("time_col", ["timestamp", None])
def test_small_stores_get_an_answer(rows: Rows, time_col: str | None, tmp_path: Path) -> None:
    told = found(rows, tmp_path, time_col=time_col)
    assert told["order"].grade == "note" and told["order"].value is None
    assert all(one.value is None or np.isfinite(one.value) for one in told.values())


def test_a_request_feature_that_is_known_only_with_the_item(market: pl.DataFrame, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    table = market.with_columns(
        price=pl.col("item_id") * 1.01, device=pl.Series(draw.choice(["phone", "tv"], len(market)))
    )
    fields: dict[str, Any] = {
        "device": {"kind": "categorical", "name": "device"},
        "price": {"kind": "numeric", "name": "price"},
    }
    fine = found(table, tmp_path, request_features=[fields["device"]])["request_features"]
    told = found(table, tmp_path, request_features=list(fields.values()))["request_features"]
    assert fine.grade == "ok" and told.grade == "warning" and "'price' alone tells" in told.said
    assert told.value is not None and told.value > 0.95


def clicks(**columns: Any) -> pl.DataFrame:
    return PlantedClicks(rows=6000).impressions().table.with_columns(**columns)


def told_of(table: pl.DataFrame, place: Path, **how: Any) -> dict[str, Finding]:
    how = {"label": "click", "user_col": "user", "time_col": "timestamp"} | how
    return by_name(check(fr.prepare_impressions(table, place / "clicks", overwrite=True, **how)))


def test_clean_impressions_are_silent(tmp_path: Path) -> None:
    source = PlantedClicks(rows=6000).impressions()
    told = check(fr.prepare_impressions(source.table, tmp_path / "clicks", schema=source.schema))
    assert told.ok and told.problem == "ranking" and set(grades(by_name(told))) <= {"split_times", "groups"}


def test_a_field_that_tells_the_label(tmp_path: Path) -> None:
    table = clicks()
    draw = np.random.default_rng(0)
    flipped = pl.Series(draw.random(len(table)) < 0.02)
    table = table.with_columns(
        after=pl.when(flipped).then(1 - pl.col("click")).otherwise(pl.col("click")).cast(pl.String),
        dwell=pl.col("click") * 10.0 + pl.Series(draw.random(len(table))), one=pl.lit("same"),
    )  # fmt: skip
    fields = [{"kind": "categorical", "name": name} for name in ("device", "after", "one")]
    told = told_of(table, tmp_path, schema={"fields": fields})
    assert told["tells_label"].grade == "warning" and "'after' alone" in told["tells_label"].said
    assert told["tells_label"].value == pytest.approx(0.98, abs=0.01)
    assert told["constant"].grade == "note" and "'one'" in told["constant"].said
    numbers = told_of(table, tmp_path, schema={"fields": [*fields[:1], {"kind": "numeric", "name": "dwell"}]})
    assert numbers["tells_label"].value == pytest.approx(1, abs=1e-3) and "'dwell'" in numbers["tells_label"].said


def test_copies_of_impressions_are_counted(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = 3000
    table = pl.DataFrame({
        "a": draw.integers(30, size=rows), "x": draw.integers(20, size=rows) / 4,
        "tags": [[1, 2], [2], []] * (rows // 3), "click": draw.integers(2, size=rows),
        "split": draw.choice(["train", "validation", "test"], rows, p=[0.6, 0.2, 0.2]),
    })  # fmt: skip
    schema = {
        "label": "click", "split": {"kind": "given", "column": "split"},
        "fields": [
            {"kind": kind, "name": name} for kind, name in (("categorical", "a"), ("numeric", "x"), ("bag", "tags"))
        ],
    }  # fmt: skip
    told = by_name(check(fr.prepare_impressions(table, tmp_path / "store", schema=schema)))
    keys = table.with_columns(key=pl.struct("a", "x", "tags").hash())
    groups = keys.group_by("key").agg(n=pl.len(), labels=pl.col("click").n_unique())
    assert told["copies"].value == pytest.approx((rows - len(groups)) / rows, abs=1e-6)
    torn = groups.filter(pl.col("labels") == 2)["n"].sum() / rows
    assert f"{torn:.1%} of one with the other label" in told["copies"].said
    later = keys.filter(pl.col("split") != "train")
    known = later["key"].is_in(keys.filter(pl.col("split") == "train")["key"].implode()).mean()
    assert told["copies_of_training"].value == pytest.approx(known, abs=1e-6)
    assert told["copies_of_training"].grade == "warning"


def test_many_rows_are_compared_by_a_sample_that_holds_the_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = clicks()
    table = pl.concat([table, table.sample(3000, seed=0)])
    whole = told_of(table, tmp_path)["copies"].value
    monkeypatch.setattr("fullrank.data.impressions.check.COMPARED", 2000)
    assert told_of(table, tmp_path)["copies"].value == pytest.approx(whole, abs=0.03) and whole


def test_unseen_values_groups_labels_and_times(tmp_path: Path) -> None:
    rows = 1000
    table = pl.DataFrame({
        "user": [f"u{at // 100}" for at in range(rows)], "item": [at % 20 for at in range(rows)],
        "click": [int(at % 2 and at < 950) for at in range(rows)], "time": START + np.arange(rows),
    })  # fmt: skip
    schema = {"fields": [{"kind": "categorical", "name": name} for name in ("user", "item")]}
    told = told_of(table, tmp_path, schema=schema, time_col="time", set=["split.kind=temporal"])
    assert (
        told["split_times"].grade == "ok" and told["unseen_test"].value == 1 and told["unseen_test"].grade == "warning"
    )
    assert "'user' is unknown in 100.0% of the test rows" in told["unseen_test"].said
    assert told["positives"].grade == "note" and told["positives"].said.startswith("positive are 50.0% of train")
    mixed = told_of(table, tmp_path, schema=schema, time_col="time", set=["split.kind=random"])
    assert mixed["split_times"].grade == "note" and mixed["unseen_test"].value == 0
    single = table.with_columns(click=pl.when(pl.int_range(rows) < 940).then("click").otherwise(pl.col("user") == "u9"))
    fields = {"fields": [{"kind": "categorical", "name": "item"}]}
    told = told_of(single, tmp_path, schema=fields, user_col="item", time_col="time", set=["split.kind=temporal"])
    assert told["groups"].value == 0.5 and told["groups"].grade == "note"


def test_impressions_in_parts_say_what_the_whole_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = PlantedClicks(rows=6000).impressions()
    monkeypatch.setattr("fullrank.data.impressions.check.BLOCK", 700)
    monkeypatch.setattr("fullrank.data.impressions.check.COMPARED", 2000)
    source.table.write_parquet(tmp_path / "rows.parquet")
    one, *others = (
        check(
            fr.prepare_impressions(tmp_path / "rows.parquet", tmp_path / str(parts), schema=source.schema, parts=parts)
        )
        for parts in (None, 1, 4)
    )
    assert all(other.findings == one.findings for other in others)


def test_strict_callers_get_one_sentence(market: pl.DataFrame, tmp_path: Path) -> None:
    fr.prepare(pl.concat([market, market]), tmp_path / "store")
    told = check(tmp_path / "store")
    assert not told.ok and {one.name for one in told.warnings} == {"in_a_row", "duplicates", "ties"}
    with pytest.raises(UserError, match=r"duplicates.*correct the table") as raised:
        told.require_ok()
    assert raised.value.code == "data-warned-of"
