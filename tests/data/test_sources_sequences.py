"""Sources with behaviour sequences: reczoo's archives from tiny made files, and the generated set with its law."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fullrank as fr
from fullrank.core.random import uniform_of_rows
from fullrank.data.impressions.schema import SequenceOf
from fullrank.data.sources.planted_sequences import FIRST_ITEM, PlantedSequences
from fullrank.data.sources.reczoo import AmazonElectronics, KuaiVideo, TaobaoAd
from fullrank.metrics.ctr import auc
from refusals import refused
from tests.data.test_archives import packed
from tests.data.test_sources_clicks import prepared, sizes

SOURCES = (AmazonElectronics, KuaiVideo, TaobaoAd)
HISTORY = {AmazonElectronics: "item_history", KuaiVideo: "neg_items", TaobaoAd: "brand_his"}


def history(draw: np.random.Generator, longest: int = 4, values: int = 6) -> str:
    return "^".join(str(value) for value in draw.integers(1, values, draw.integers(0, longest + 1)))


def part(source: type, rows: int, seed: int) -> pl.DataFrame:
    """A file of the publisher's, as text: labels alternate, histories are empty now and then."""
    draw = np.random.default_rng(seed)
    table = []
    for row in range(rows):
        user, item = int(draw.integers(0, 5)), int(draw.integers(1, 5))
        if source is AmazonElectronics:
            seen = history(draw)
            kinds = "^".join(str(int(value) % 2) for value in seen.split("^") if value)
            one = {"label": row % 2, "user_id": user, "item_id": item, "cate_id": item % 2, "item_history": seen,
                   "cate_history": kinds}  # fmt: skip
        elif source is KuaiVideo:
            one = {"timestamp": row, "user_id": user, "item_id": item, "is_click": row % 2, "is_like": 0,
                   "is_follow": 0, "pos_items": history(draw), "neg_items": history(draw, 130)}  # fmt: skip
        else:
            one = {
                "clk": row % 2,
                "btag_his": history(draw),
                "cate_his": history(draw),
                "brand_his": history(draw, 4, 90),
            }
            one |= {name: int(draw.integers(0, 3)) for name in TaobaoAd.categories} | {"price": "12.5", "btag": 1}
        table.append(one)
    return pl.DataFrame(table).cast(pl.String)


def written(source: type, folder: Path, rows: tuple = (400, 30)) -> dict:
    parts = {
        name: part(source, count, seed) for seed, (name, count) in enumerate(zip(("train", "test"), rows, strict=True))
    }
    for name, frame in parts.items():
        frame.write_csv(folder / f"{name}.csv")
    return parts


def values_of(store: fr.ImpressionStore, field: str, rows: range) -> list:
    """The values of a sequence as text, None where unknown."""
    at = [one.name for one in store.fields if one.kind == "sequence"].index(field)
    owner = next(one.shares for one in store.fields if one.name == field)
    names, bag = store.vocabulary(owner), store.batch(rows).bags[at]
    lists = [ids[:length] for ids, length in zip(bag.ids.tolist(), bag.lengths.tolist(), strict=True)]
    return [[names[one - 2] if one > 1 else None for one in ids] for ids in lists]


@pytest.mark.parametrize("archived", [True, False])
@pytest.mark.parametrize("source", SOURCES)
def test_a_good_folder(source: type, archived: bool, tmp_path: Path) -> None:
    parts = written(source, tmp_path)
    if archived:
        archive = Path(source().files()[0].name)
        members = {f"{archive.stem}/{name}.csv": (tmp_path / f"{name}.csv").read_bytes() for name in parts}
        (tmp_path / archive).write_bytes(packed("zip", members | {"item_visual_emb_dim64.h5": b"vectors"}))
        for name in parts:
            (tmp_path / f"{name}.csv").unlink()
    found = source().impressions(tmp_path)
    assert isinstance(found.table, pl.LazyFrame), "25 million rows are not read at once"
    assert not (tmp_path / "item_visual_emb_dim64.h5").exists()
    store = prepared(found, tmp_path / "store")
    held_out = uniform_of_rows(0, np.arange(400)) < 0.1
    assert sizes(store) == [400 - held_out.sum(), held_out.sum(), 30]
    assert store.external(store.split("validation"))["input_row"].to_list() == np.flatnonzero(held_out).tolist()
    rows, label = range(400, 430), found.schema.label
    assert store.batch(rows).labels.tolist() == [float(one) for one in parts["test"][label]]  # type: ignore[union-attr]
    group = store.external(rows)["group"].cast(pl.String).to_list()
    assert group == parts["test"][found.schema.group or ""].to_list()
    for field in found.schema.several():
        texts = [(text or "").split("^")[-field.max_length :] if text else [] for text in parts["test"][field.name]]
        read = values_of(store, field.name, rows)
        assert [len(one) for one in read] == [len(one) for one in texts]
        known = set(store.vocabulary(field.shares or ""))
        assert read == [[value if value in known else None for value in one] for one in texts]
        assert max(map(len, texts)) > 0
    empty = sum((one[HISTORY[source]] == "").sum() for one in parts.values())
    assert store.manifest["counts"]["missing"][HISTORY[source]] == empty > 0


@pytest.mark.parametrize("source", SOURCES)
def test_the_rows_that_validate(source: type, tmp_path: Path) -> None:
    written(source, tmp_path)
    store = prepared(source(validation="test").impressions(tmp_path), tmp_path / "store")
    assert sizes(store) == [400, 30, 30]
    validation, test = (store.batch(store.split(name)) for name in ("validation", "test"))
    assert validation.categorical.equal(test.categorical)
    assert all(a.ids.equal(b.ids) for a, b in zip(validation.bags, test.bags, strict=True))


def test_values_of_histories_have_ids_and_rare_ones_none(tmp_path: Path) -> None:
    """BARS: a value has an id where it occurs 10 times among the ads, or 10 times in the histories."""
    parts = written(TaobaoAd, tmp_path)
    store = prepared(TaobaoAd(validation="test").impressions(tmp_path), tmp_path / "store")
    for name, owner in (("brand_his", "brand"), ("btag_his", "btag"), ("cate_his", "cate_id")):
        ads = parts["train"][owner].value_counts(name="n").filter(pl.col("n") >= 10)[owner]
        events = parts["train"][name].drop_nulls().str.split("^").explode()
        often = events.filter(events != "").value_counts(name="n").filter(pl.col("n") >= 10)[name]
        assert set(store.vocabulary(owner)) == set(ads) | set(often)
    assert {"2", "3", "4"} <= set(store.vocabulary("btag")), "an ad has the kind 1 alone"
    assert len(store.vocabulary("brand")) < 89, "some brands are rare"


def test_the_fields_are_those_of_the_public_configuration() -> None:
    """BARS's dataset_config.yaml: longest histories, rarest values, group."""
    longest = {AmazonElectronics: 100, KuaiVideo: 100, TaobaoAd: 50}
    rarest = {AmazonElectronics: 1, KuaiVideo: 10, TaobaoAd: 10}
    for source in SOURCES:
        for field in source.columns.fields:
            if isinstance(field, SequenceOf):
                assert (field.max_length, field.separator, field.extends) == (longest[source], "^", True)
            elif field.kind == "categorical":
                assert field.min_count == rarest[source]


@pytest.mark.parametrize("source", SOURCES)
def test_files_that_are_not_the_publishers(source: type, tmp_path: Path) -> None:
    parts = written(source, tmp_path)
    name = HISTORY[source]
    parts["test"].drop(name).write_csv(tmp_path / "test.csv")
    with refused("missing-column", name, "test.csv"):
        source().impressions(tmp_path)
    parts["test"].write_csv(tmp_path / "test.csv", separator="\t")
    for content in ((tmp_path / "test.csv").read_bytes(), b"\xff\xfe\x00binary\n\x80\x81"):
        (tmp_path / "test.csv").write_bytes(content)
        with refused("missing-column", "test.csv"):
            source().impressions(tmp_path)
    for other in ("|", " ", ","):
        parts["train"].with_columns(pl.col(name).str.replace_all("^", other, literal=True)).write_csv(
            tmp_path / "test.csv"
        )
        with refused("wrong-separator", name, repr(other), "'^'", "test.csv"):
            source().impressions(tmp_path)
    parts["test"].with_columns(pl.lit(None, pl.String).alias(name)).write_csv(tmp_path / "test.csv")
    store = prepared(source().impressions(tmp_path), tmp_path / "store")
    assert all(one == [] for one in values_of(store, name, range(400, 430))), "histories that are all empty"


SMALL = PlantedSequences(rows=3_000, users=60, items=50, categories=12, interests=4, length=9, disliked=0.4, seed=5)


def frame(spec: PlantedSequences) -> pl.DataFrame:
    table = spec.impressions().table
    return table


def law(spec: PlantedSequences, row: dict) -> float:
    """The probability of a click, one event after the other."""
    signs, evidence, found = spec.signs(), 0, 0
    for item, category in zip(reversed(row["history"]), reversed(row["history_categories"]), strict=True):
        if category == row["category"] and found < spec.counted:
            evidence, found = evidence + int(signs[item - FIRST_ITEM]), found + 1
    return float(1 / (1 + np.exp(-(spec.bias + spec.strength * evidence / spec.counted))))


@settings(max_examples=15, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "seed": st.integers(0, 9), "users": st.integers(1, 40), "items": st.integers(8, 60),
            "categories": st.integers(2, 8), "interests": st.integers(1, 5), "length": st.integers(1, 12),
            "counted": st.integers(1, 6), "disliked": st.sampled_from([0.0, 0.3, 1.0]),
            "interested": st.sampled_from([0.0, 0.6, 1.0]), "strength": st.sampled_from([-2.0, 0.0, 4.0]),
        }
    )
)  # fmt: skip
def test_clicks_follow_the_law(chosen: dict) -> None:
    spec = PlantedSequences(rows=100, **chosen)
    table, category = frame(spec), spec.item_categories() + 1
    for row in table.iter_rows(named=True):
        assert row["category"] == category[row["item"] - FIRST_ITEM]
        assert row["history_categories"] == [category[item - FIRST_ITEM] for item in row["history"]]
        assert len(row["history"]) <= spec.length
        assert row["probability"] == pytest.approx(law(spec, row))
    sizes = np.bincount(category - 1, minlength=spec.categories)
    assert sizes.max() - sizes.min() <= 1
    against = np.bincount(category - 1, spec.signs() < 0, minlength=spec.categories)
    assert against.tolist() == np.rint(spec.disliked * sizes).tolist()


def test_the_same_spec_gives_the_same_table() -> None:
    assert frame(SMALL).equals(frame(SMALL)) and not frame(SMALL).equals(frame(SMALL.override("seed=6")))


def test_blocks_hold_rows_of_the_same_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullrank.data.sources.planted_sequences.BLOCK", 9 * 700)
    table = frame(SMALL)
    assert len(table) == SMALL.rows
    assert all(row["probability"] == pytest.approx(law(SMALL, row)) for row in table[650:750].iter_rows(named=True))


def test_histories_of_a_user_grow_with_time() -> None:
    table = frame(SMALL).sort("timestamp")
    for _, rows in table.group_by("user"):
        longest = rows["history"][-1].to_list()
        assert all(one == longest[: len(one)] for one in rows["history"].to_list())
    lengths = np.bincount(table["history"].list.len(), minlength=10)
    assert len(lengths) == 10 and lengths.min() > 0.7 * 300, "the lengths 0 .. 9 are equally frequent"


def test_clicks_are_drawn_from_the_probabilities(tmp_path: Path) -> None:
    spec = PlantedSequences(rows=40_000, users=4_000)
    table = frame(spec)
    for low in np.arange(0, 1, 0.2):
        near = table.filter(pl.col("probability").is_between(low, low + 0.2))
        assert not len(near) or abs(near["click"].mean() - near["probability"].mean()) < 0.02, "calibrated"  # type: ignore[operator]
    store = prepared(spec.impressions(), tmp_path / "store")
    assert {one.name: one.shares for one in store.fields if one.kind == "sequence"} == {
        "history": "item", "history_categories": "category"
    }  # fmt: skip
    assert "probability" not in store.schema.columns
    test = store.external(store.split("test"))["input_row"].to_numpy()
    best = spec.best_auc(test)
    assert best == pytest.approx(auc(table["probability"].to_numpy()[test], store.labels("test").astype(np.float64)))
    assert 0.78 < best < 0.88 and abs(best - spec.best_auc()) < 0.02


def test_settings_that_are_refused() -> None:
    with refused("settings-contradict", "items=10", "categories=20"):
        PlantedSequences.parse({"items": 10, "categories": 20})
    for setting in ("rows=99", "disliked=1.1", "interested=-0.1", "length=0", "counted=0", "categories=1"):
        with refused("invalid-setting", setting.split("=")[0]):
            PlantedSequences().override(setting)
    assert json.loads(PlantedSequences().to_json())["split"]["kind"] == "random"
