"""Every source: its contract, and the publisher's format parsed to the expected tables from tiny files."""

import gzip
import json
from pathlib import Path

import polars as pl
import pytest

from fullrank.core.registry import find
from fullrank.core.spec import Spec
from fullrank.data.sources import EventSource, ImpressionSource, Tables
from fullrank.data.sources.gowalla import Gowalla
from fullrank.data.sources.movielens import MovieLens
from fullrank.data.sources.retailrocket import RetailRocket
from fullrank.data.sources.steam import Steam
from fullrank.data.sources.yelp import Yelp
from refusals import refused
from tests.data.test_archives import packed

EVENTS = ["amazon", "gowalla", "movielens", "planted", "retailrocket", "steam", "yelp"]
CLICKS = [
    "amazonelectronics", "avazu", "criteo", "frappe", "kuaivideo", "movielens_ctr", "planted_clicks",
    "planted_sequences", "taobaoad",
]  # fmt: skip
KINDS = sorted(EVENTS + CLICKS)


def gz(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode("utf-8")))


def checked(source: EventSource, folder: Path, *rows: tuple) -> Tables:
    """What the source reads there, which are these events; with what holds for every source's answer."""
    tables = source.read(folder)
    events = tables.events
    assert events.rows() == list(rows)
    assert set(tables.columns.values()) <= set(events.columns)
    assert events["timestamp"].dtype == pl.Int64 and events["timestamp"].null_count() == 0
    assert 0 < events["timestamp"].min() < 2_000_000_000  # seconds, not milliseconds
    for frame, key in ((tables.items, "item_id"), (tables.users, "user_id")):
        if frame is not None:
            assert frame[key].n_unique() == len(frame)
            assert frame[key].dtype == events[key].dtype
            assert set(frame[key]) <= set(events[key])
    return tables


@pytest.mark.parametrize("kind", KINDS)
def test_contract(kind: str) -> None:
    spec = find(kind, "data.sources")()
    assert isinstance(spec, ImpressionSource if kind in CLICKS else EventSource)
    assert isinstance(spec, Spec)
    assert type(spec).parse(spec.dump()) == spec
    names = [file.name for file in spec.files()]
    assert len(set(names)) == len(names)
    assert all("/" not in name and name for name in names)
    for file in spec.files():
        assert file.url.startswith("https://")
        assert file.md5 is None or (len(file.md5) == 32 and file.md5 == file.md5.lower())
    if names:
        moved = spec.override("base_url=http://127.0.0.1:9/mirror/")
        assert isinstance(moved, EventSource | ImpressionSource)
        assert all(file.url.startswith("http://127.0.0.1:9/mirror/") and not file.manual for file in moved.files())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("planted")])
def test_an_empty_folder_is_a_clear_error(kind: str, tmp_path: Path) -> None:
    spec = find(kind, "data.sources")()
    with refused("missing-file", tmp_path):
        spec.impressions(tmp_path) if isinstance(spec, ImpressionSource) else spec.read(tmp_path)  # type: ignore[attr-defined]


def test_movielens_1m(tmp_path: Path) -> None:
    members = {
        "ml-1m/ratings.dat": b"1::1193::5::978300760\n1::661::3::978302109\n2::1193::4::978298413\n",
        "ml-1m/movies.dat": (
            b"1193::Am\xe9lie: Le Fabuleux (2001)::Comedy|Drama\n661::Plain::Animation\n9::No (1990)::X\n"
        ),
        "ml-1m/users.dat": b"1::F::1::10::48067\n2::M::56::16::70072-1234\n3::M::25::15::55117\n",
        "ml-1m/README": b"terms",
    }
    (tmp_path / "ml-1m.zip").write_bytes(packed("zip", members))
    tables = checked(
        MovieLens(), tmp_path, (1, 1193, 978300760, 5.0), (1, 661, 978302109, 3.0), (2, 1193, 978298413, 4.0)
    )
    assert tables.items.rows() == [
        (1193, "Am\xe9lie: Le Fabuleux (2001)", "Comedy|Drama", 2001),
        (661, "Plain", "Animation", None),
    ]
    assert tables.users.rows() == [(1, "F", 1, 10, "48067"), (2, "M", 56, 16, "70072-1234")]
    assert tables.columns["rating"] == "rating"


@pytest.mark.parametrize("variant", ["20m", "32m"])
def test_movielens_csv(variant: str, tmp_path: Path) -> None:
    members = {
        f"ml-{variant}/ratings.csv": b"userId,movieId,rating,timestamp\n1,2,3.5,1112486027\n1,29,0.5,1112484676\n",
        f"ml-{variant}/movies.csv": (
            'movieId,title,genres\n2,"American President, The (1995)",Comedy|Drama\n'
            "29,Ouvert \xe9t\xe9,(no genres listed)\n"
        ).encode(),
    }
    (tmp_path / f"ml-{variant}.zip").write_bytes(packed("zip", members))
    tables = checked(MovieLens(variant=variant), tmp_path, (1, 2, 1112486027, 3.5), (1, 29, 1112484676, 0.5))
    assert tables.items.rows() == [
        (2, "American President, The (1995)", "Comedy|Drama", 1995),
        (29, "Ouvert \xe9t\xe9", None, None),
    ]


def test_movielens_of_another_variant_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ml-1m.zip").write_bytes(packed("zip", {"ml-20m/ratings.csv": b"userId\n"}))
    with refused("missing-file", "ratings.dat, movies.dat, users.dat"):
        MovieLens().read(tmp_path)


def test_steam(tmp_path: Path) -> None:
    reviews = [
        "{u'username': u'Chaos Syren', u'hours': 0.1, u'products': 41, u'product_id': u'725280', "
        "u'date': u'2017-12-17', u'text': u'It\\'s \\u00e9pic \"fun\"', u'early_access': False}",
        "{u'username': u'o\\\\x', u'product_id': u'328100', u'date': u'2018-01-05', u'text': u''}",
    ]
    games = [
        "{u'publisher': u'Kotoshiro', u'genres': [u'Action', u'Indie'], u'app_name': u'Lost Summoner Kitty', "
        "u'title': u'Lost Summoner  Kitty', u'release_date': u'2018-01-04', u'tags': [u'Strategy'], u'price': 4.99, "
        "u'id': u'725280', u'developer': u'Kotoshiro'}",
        "{u'app_name': u'Free One', u'price': u'Free To Play', u'id': u'328100'}",
        "{u'app_name': u'No id at all', u'price': 1.99}",
        "{u'app_name': u'Never reviewed', u'id': u'1'}",
    ]
    gz(tmp_path / "steam_reviews.json.gz", "\n".join(reviews) + "\n")
    gz(tmp_path / "steam_games.json.gz", "\n".join(games) + "\n")
    tables = checked(
        Steam(),
        tmp_path,
        ("Chaos Syren", "725280", 1513468800, 0.1),
        ("o\\x", "328100", 1515110400, None),
    )
    assert tables.items.rows() == [
        ("725280", "Lost Summoner Kitty", "Action|Indie", "Strategy", "Kotoshiro", "Kotoshiro", 4.99, "2018-01-04"),
        ("328100", "Free One", None, None, None, None, 0.0, None),
    ]


def test_gowalla(tmp_path: Path) -> None:
    text = (
        "0\t2010-10-19T23:55:27Z\t30.2359091167\t-97.7951395833\t22847\n"
        "0\t2010-10-18T22:17:43Z\t30.2691029532\t-97.7493953705\t420315\n"
        "1\t2010-10-18T22:17:43Z\t30.2359091167\t-97.7951395833\t22847\n"
    )
    gz(tmp_path / "loc-gowalla_totalCheckins.txt.gz", text)
    tables = checked(Gowalla(), tmp_path, (1, 22847, 1287440263), (0, 420315, 1287440263), (0, 22847, 1287532527))
    assert tables.items.rows() == [(22847, 30.2359091167, -97.7951395833), (420315, 30.2691029532, -97.7493953705)]


YELP = {
    "review": {"review_id": "r", "user_id": "u1", "business_id": "b1", "stars": 4.0, "date": "2014-02-05 20:30:30"},
    "business": {"business_id": "b1", "name": "Caf\xe9 \xb7 One", "city": "Tampa", "state": "FL", "stars": 3.5},
    "user": {"user_id": "u1", "name": "X", "review_count": 7, "yelping_since": "2007-01-25 16:47:26"},
}


def yelp_members() -> dict:
    business = [YELP["business"] | {"categories": "Bars, Coffee & Tea"}, {"business_id": "b2", "categories": None}]
    objects = {"review": [YELP["review"]], "business": business, "user": [YELP["user"], {"user_id": "u2"}]}
    return {
        f"yelp_academic_dataset_{part}.json": "".join(json.dumps(o) + "\n" for o in found).encode()
        for part, found in objects.items()
    }


@pytest.mark.parametrize("form", ["files", "tar", "tgz", "zip"])
def test_yelp(form: str, tmp_path: Path) -> None:
    tar = packed("tar" if form == "tar" else "tar.gz", yelp_members())
    if form == "files":
        for name, data in yelp_members().items():
            (tmp_path / name).write_bytes(data)
    elif form == "zip":
        # As Yelp packs it: a gzipped tar that is called .tar, in a folder, inside a zip with Apple's shadow files.
        members = {"Yelp JSON/yelp_dataset.tar": tar, "__MACOSX/Yelp JSON/._yelp_dataset.tar": b"x"}
        (tmp_path / "Yelp-JSON.zip").write_bytes(packed("zip", members))
    else:
        (tmp_path / f"yelp_dataset.{form}").write_bytes(tar)
    tables = checked(Yelp(), tmp_path, ("u1", "b1", 1391632230, 4.0))
    assert tables.items.rows() == [("b1", "Caf\xe9 \xb7 One", "Bars", "Bars|Coffee & Tea", "Tampa", "FL", 3.5)]
    assert tables.users.rows() == [("u1", "2007-01-25 16:47:26", 7)]


RETAIL = {
    "events.csv": b"timestamp,visitorid,event,itemid,transactionid\n"
    b"1433221332117,257597,view,355908,\n1433224214164,992329,transaction,248676,4000\n",
    "item_properties_part1.csv": b"timestamp,itemid,property,value\n"
    b"1435460400000,355908,categoryid,1338\n1435460400000,355908,790,n276.000 15360\n",
    "item_properties_part2.csv": b"timestamp,itemid,property,value\n"
    b"1434250800000,355908,categoryid,9\n1434250800000,248676,categoryid,213\n1434250800000,1,categoryid,213\n",
    "category_tree.csv": b"categoryid,parentid\n1338,1278\n213,\n",
}


@pytest.mark.parametrize("form", ["files", "zip"])
def test_retailrocket(form: str, tmp_path: Path) -> None:
    if form == "zip":
        (tmp_path / "archive.zip").write_bytes(packed("zip", RETAIL))
    else:
        for name, data in RETAIL.items():
            (tmp_path / name).write_bytes(data)
    tables = checked(
        RetailRocket(), tmp_path, (257597, 355908, 1433221332, "view"), (992329, 248676, 1433224214, "transaction")
    )
    assert sorted(tables.items.rows()) == [(248676, "213", None), (355908, "1338", "1278")]
    assert tables.columns["type"] == "type"
    only = tmp_path / "only"
    only.mkdir()
    (only / "events.csv").write_bytes(RETAIL["events.csv"])
    assert RetailRocket(properties=False).read(only).items is None
    with refused("missing-file", "category_tree.csv"):
        RetailRocket().read(only)


def test_a_cut_or_foreign_table_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "loc-gowalla_totalCheckins.txt.gz"
    gz(path, "0\t2010-10-19T23:55:27Z\t30.2\t-97.7\t22847\n" * 5_000)
    path.write_bytes(path.read_bytes()[:-200])
    with refused("wrong-download", "loc-gowalla_totalCheckins.txt"):
        Gowalla().read(tmp_path)
    for text in ("<html>moved</html>\n", "0\tyesterday\t1.0\t2.0\t5\n", "a\tb\tc\td\te\n"):
        gz(path, text)
        with refused("wrong-download", "loc-gowalla_totalCheckins.txt"):
            Gowalla().read(tmp_path)
