"""The Amazon reviews: the files of three editions, and how broken lines and hostile literals are treated."""

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fullrank.data.sources._parse import number, parse_line, records
from fullrank.data.sources.amazon import CATEGORIES, Amazon
from refusals import refused

REVIEWS = [
    {
        "reviewerID": "A2SUAM1J3GNN3B",
        "asin": "0000013714",
        "helpful": [2, 3],
        "reviewText": "it's \u2019fine",
        "overall": 5.0,
        "unixReviewTime": 1252800000,
        "reviewTime": "09 13, 2009",
    },
    {"reviewerID": "A1", "asin": "B002", "overall": 2.0, "unixReviewTime": 1252886400},
]
EVENTS = [("A2SUAM1J3GNN3B", "0000013714", 1252800000, 5.0), ("A1", "B002", 1252886400, 2.0)]


def gz(folder: Path, name: str, lines: list) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return path


def test_addresses() -> None:
    def urls(spec: Amazon) -> list:
        return [file.url for file in spec.files()]

    assert urls(Amazon()) == [
        "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles/reviews_Beauty_5.json.gz",
        "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles/meta_Beauty.json.gz",
    ]
    assert urls(Amazon(subset="ratings", metadata=False)) == [
        "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles/ratings_Beauty.csv"
    ]
    base = "https://mcauleylab.ucsd.edu/public_datasets/data"
    assert urls(Amazon(year=2018, category="All_Beauty")) == [
        f"{base}/amazon_v2/categoryFilesSmall/All_Beauty_5.json.gz",
        f"{base}/amazon_v2/metaFiles2/meta_All_Beauty.json.gz",
    ]
    assert urls(Amazon(year=2023, category="Video_Games")) == [
        f"{base}/amazon_2023/benchmark/5core/rating_only/Video_Games.csv.gz",
        f"{base}/amazon_2023/raw/meta_categories/meta_Video_Games.jsonl.gz",
    ]
    assert "0core/rating_only" in urls(Amazon(year=2023, category="Video_Games", subset="ratings"))[0]
    assert [len(CATEGORIES[year]) for year in (2014, 2018, 2023)] == [24, 29, 34]
    assert all(len(set(names)) == len(names) for names in CATEGORIES.values())


def test_an_unknown_category_names_the_nearest() -> None:
    with refused("unknown-category", "VideoGames", "Video_Games", 2018):
        Amazon.parse({"year": 2018, "category": "VideoGames"})
    with refused("unknown-category", "Beauty", 2018):
        Amazon().override("year=2018")


def test_2014_five_core_with_literal_metadata(tmp_path: Path) -> None:
    gz(tmp_path, "reviews_Beauty_5.json.gz", [json.dumps(review) for review in REVIEWS])
    meta = [
        "{'asin': '0000013714', 'title': \"Hymns &amp; 'more'\", 'price': 7.98, 'brand': 'Acme', "
        "'categories': [['Beauty', 'Hair Care', 'Shampoos'], ['Other']], 'related': {'also_bought': ['B0']}}",
        "{'asin': 'B002', 'categories': [[]], 'title': ''}",
        "{'asin': 'B002', 'title': 'a second row of the same item'}",
        "{'asin': 'B999', 'title': 'without a review'}",
    ]
    gz(tmp_path, "meta_Beauty.json.gz", meta)
    tables = Amazon().read(tmp_path)
    assert tables.events.rows() == EVENTS
    assert tables.events.columns == ["user_id", "item_id", "timestamp", "rating"]
    assert tables.items.rows() == [
        ("0000013714", "Hymns &amp; 'more'", "Acme", "Shampoos", "Beauty|Hair Care|Shampoos", 7.98),
        ("B002", None, None, None, None, None),
    ]
    assert tables.users is None


@pytest.mark.parametrize(
    ("year", "name", "text"),
    [
        (2014, "ratings_Automotive.csv", "A1,B1,5.0,1369699200\nA2,B1,1.5,1355443200\n"),
        (2018, "Automotive.csv", "B1,A1,5.0,1369699200\nB1,A2,1.5,1355443200\n"),
    ],
)
def test_ratings_only_has_its_own_column_order(year: Any, name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    spec = Amazon(year=year, category="Automotive", subset="ratings", metadata=False)
    assert spec.read(tmp_path).events.rows() == [("A1", "B1", 1369699200, 5.0), ("A2", "B1", 1355443200, 1.5)]


def test_2018(tmp_path: Path) -> None:
    gz(tmp_path, "Software_5.json.gz", [json.dumps(review) for review in REVIEWS])
    meta = [
        {
            "asin": "0000013714",
            "title": "Paint\n  Pro",
            "brand": "Corel",
            "category": ["Software", "Graphics"],
            "price": "$1,012.99",
        },
        {"asin": "B002", "title": "T", "brand": "", "category": [], "price": ".a-section{color:red}"},
    ]
    gz(tmp_path, "meta_Software.json.gz", [json.dumps(item) for item in meta])
    tables = Amazon(year=2018, category="Software").read(tmp_path)
    assert tables.events.rows() == EVENTS
    assert tables.items.rows() == [
        ("0000013714", "Paint Pro", "Corel", "Graphics", "Software|Graphics", 1012.99),
        ("B002", "T", None, None, None, None),
    ]


def test_2023(tmp_path: Path) -> None:
    gz(
        tmp_path,
        "Video_Games.csv.gz",
        ["user_id,parent_asin,rating,timestamp", "AGK,B07,4.0,1588687728923", "AGL,B07,1.0,1588687728000"],
    )
    item = {"main_category": "Video Games", "title": "Dash 8", "price": 35.5, "store": "Aerosoft", "parent_asin": "B07",
            "categories": ["Video Games", "PC"], "details": {}}  # fmt: skip
    gz(tmp_path, "meta_Video_Games.jsonl.gz", [json.dumps(item), json.dumps(item | {"price": None})])
    tables = Amazon(year=2023, category="Video_Games").read(tmp_path)
    assert tables.events.rows() == [("AGK", "B07", 1588687728, 4.0), ("AGL", "B07", 1588687728, 1.0)]
    assert tables.items.rows() == [("B07", "Dash 8", "Aerosoft", "PC", "Video Games|PC", 35.5)]


def test_a_missing_file_names_the_command(tmp_path: Path) -> None:
    gz(tmp_path, "reviews_Baby_5.json.gz", [json.dumps(review) for review in REVIEWS])
    with refused("missing-file", "meta_Baby.json.gz", "--set category=Baby", "metadata=false"):
        Amazon(category="Baby").read(tmp_path)
    assert len(Amazon(category="Baby", metadata=False).read(tmp_path).events) == 2


def test_few_broken_lines_are_left_out_and_counted_many_are_refused(tmp_path: Path) -> None:
    good = [json.dumps(REVIEWS[0])] * 1_000
    path = gz(tmp_path, "reviews_Beauty_5.json.gz", [*good, '{"reviewerID": "cut'])
    tables = Amazon(metadata=False).read(tmp_path)
    assert len(tables.events) == 1_000
    assert any("1 unreadable" in note for note in tables.notes)
    gz(tmp_path, path.name, [*good[:900], "{}"])
    with refused("wrong-download", "1 of 901", "reviews_Beauty_5.json.gz"):
        Amazon(metadata=False).read(tmp_path)
    path.write_bytes(gzip.compress(b"\n".join(line.encode() for line in good))[:-30])
    with refused("wrong-download", "reviews_Beauty_5.json.gz"):
        Amazon(metadata=False).read(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "__import__('os').system('touch owned')",
        "{'asin': __import__('os').system('touch owned')}",
        "{u'asin': open('owned', 'w').write('x')}",
        "{'a': " + "(" * 5_000 + ")" * 5_000 + "}",
        "{'a': " + "[" * 100_000,
        "[1, 2]",
        "'text'",
        '{"a": 1} {"b": 2}',
        "{'a': 1}\x00",
    ],
)
def test_a_line_is_never_evaluated(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError):
        parse_line(line)
    assert list(tmp_path.iterdir()) == []


def test_lines_in_either_format() -> None:
    assert parse_line('{"a": "it\'s"}') == {"a": "it's"}
    assert parse_line("{'a': \"it's\", 'b': True, 'c': None}") == {"a": "it's", "b": True, "c": None}
    assert parse_line("{u'a': u'\\u00e9'}") == {"a": "\xe9"}
    # Valid Python that opens like JSON.
    assert parse_line("{\"a\": 'x', 'b': True}") == {"a": "x", "b": True}


def test_rows_come_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fullrank.data.sources._parse.BLOCK", 3)
    path = gz(tmp_path, "x.gz", [json.dumps({"a": i}) for i in range(8)])
    frame, notes = records(path, {"a": pl.Int64}, lambda record: (record["a"],) if record["a"] != 4 else None)
    assert frame["a"].to_list() == [0, 1, 2, 3, 5, 6, 7] and notes == ()


def test_numbers() -> None:
    given = [12, 1.5, "12.5", "$1,299.00", "Free to Play", "Free", "From $3", "", None, True, "$5 - $7", float("inf")]
    assert [number(value) for value in given] == [12.0, 1.5, 12.5, 1299.0, 0.0, 0.0, None, None, None, None, None, None]
