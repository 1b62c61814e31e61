"""`prepare` and `download`: tables of every shape, sources, and what goes wrong with them. Impressions, too."""

import functools
import gzip
import http.server
import re
import threading
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fullrank.cli.prepare import FLAGS
from fullrank.core.spec import Spec
from fullrank.data.events.features import Features
from fullrank.data.events.prepare import Columns, Prepare
from fullrank.data.events.store import Store
from fullrank.data.impressions.store import ImpressionStore
from fullrank.data.sources.amazon import Amazon
from tests.cli.conftest import Ask, Call, Refuses


@pytest.fixture
def events(tmp_path: Path) -> Path:
    rows = [
        (user, item, 100 + 10 * item + place, 1 + item % 5, "buy" if item % 3 else "view")
        for place, user in enumerate("abcdef")
        for item in range(9)
    ]
    frame = pl.DataFrame(rows, schema=["who", "what", "when", "stars", "did"], orient="row")
    frame.write_csv(tmp_path / "log.csv")
    frame.write_parquet(tmp_path / "log.parquet")
    frame.write_ndjson(tmp_path / "log.jsonl")
    for name in ("log.csv", "log.jsonl"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    return tmp_path


COLUMNS = "--user-col who --item-col what --time-col when"
LOG = f"log.csv {COLUMNS}"


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.parquet", "log.jsonl", "log.jsonl.gz"])
def test_own_columns_in_every_format(name: str, events: Path, ask: Ask) -> None:
    said = ask(f"prepare {name} {COLUMNS} --out data")
    assert said["counts"] == {"users": 6, "items": 9, "events": 54}
    assert Store.open(events / "data").fingerprint == said["fingerprint"]


def test_options_are_settings(events: Path, ask: Ask) -> None:
    options = "--k-core 2 --rating-col stars --min-rating 2 --type-col did --event-type buy --split global_time"
    first = ask(f"prepare log.parquet {COLUMNS} {options} --duplicates last --time-unit s --out a")
    settings = "columns.user=who columns.item=what columns.time=when columns.rating=stars min_rating=2 columns.type=did"
    settings += " event_types=[buy] k_core=2 split=global_time duplicates=last columns.time_unit=s"
    pairs = " ".join(f"--set {setting}" for setting in settings.split())
    second = ask(f"prepare log.parquet {pairs} --out b")
    assert first["spec"] == second["spec"] and first["fingerprint"] == second["fingerprint"]
    steps = [step["filter"] for step in first["filters"]]
    assert steps == "read event_types min_rating duplicates k_core".split()


def test_rows_in_order_need_no_time(events: Path, call: Call) -> None:
    assert call("prepare log.csv --user-col who --item-col what --time-col none --out data").code == 0
    assert Store.open(events / "data").times is None


def test_column_names_are_never_read_as_yaml(events: Path, call: Call) -> None:
    pl.read_csv(events / "log.csv").rename({"who": "no", "what": "12"}).write_csv(events / "odd.csv")
    assert call("prepare odd.csv --user-col no --item-col 12 --time-col when --out data").code == 0


@pytest.mark.parametrize(
    ("words", "code", "names"),
    [
        ("LOG --min-rating 3", "missing-setting", ["--min-rating", "--rating-col"]),
        ("LOG --rating-col stars", "setting-without-effect", ["stars", "--min-rating"]),
        ("planted --set columns.rating=rating", "setting-without-effect", ["rating", "--min-rating"]),
        ("log.csv --user-col who --item-col who", "repeated-column", ["'who'"]),
        ("LOG --duplicates frist", "invalid-setting", ["--duplicates: ", "'frist'", "'first'"]),
        ("log.csv --set columns.user_=who", "unknown-setting", ["columns.user_: ", "'user_'"]),
        ("log.csv --set columns.time_units=ms", "unknown-setting", ["columns.time_units: "]),
        ("LOG --k-core 3 --set k_core=2", "given-twice", ["--k-core", "--set"]),
        ("LOG --from .", "option-without-effect", ["--from", "'log.csv'"]),
        ("LOG --items nothing.csv", "missing-file", ["nothing.csv"]),
        ("planted --items log.csv", "option-without-effect", ["'planted'", "--items and --users"]),
        ("planted --from .", "option-without-effect", ["'planted'", "--from"]),
        ("planted --set source.userz=5", "unknown-setting", ["did you mean 'users'"]),
        ("movielens", "missing-file", ["fullrank download movielens"]),
    ],
)
def test_mistakes(words: str, code: str, names: list[str], events: Path, refuses: Refuses) -> None:
    refuses(code, f"prepare {words.replace('LOG', LOG)} --out data", *names)
    assert not (events / "data").exists()


def test_options_of_settings_say_what_the_spec_says(call: Call) -> None:
    """Help, default, bounds and allowed values are those of `Prepare`: nothing is typed a second time."""
    told = " ".join(call("prepare --help").out.split())
    for path, flag in FLAGS.items():
        owner, _, name = path.rpartition(".")
        spec: type[Spec] = {"columns": Columns, "features": Features, "": Prepare}[owner]
        first = str(spec.model_fields[name].description).split()[0]
        assert re.search(rf"{flag.split(' ')[0] or '--' + name.replace('_', '-')} \S+ {first} ", told), path
    for words in (
        "[default: user_id]",
        "--duplicates keep|first|last",
        "--time-unit s|ms|us|ns",
        "--time-col NAME|none",
    ):
        assert words in told
    assert "--levels N K, codes of an item" in " ".join(call("encode --help").out.split())


def test_features(events: Path, ask: Ask, refuses: Refuses) -> None:
    pl.DataFrame({"who": list("abcdef"), "age": range(6)}).write_csv(events / "users.csv")
    found = ask(f"prepare {LOG} --users users.csv --event-features stars,did --user-features age --out a")
    kinds = found["spec"]["features"]
    assert [one["name"] for one in kinds["event"]] == ["stars", "did"] and kinds["user"][0]["kind"] == "categorical"
    assert list(found["features"]) == ["schema", "fitted"]
    refuses("missing-users", f"prepare {LOG} --user-features age --out b", "--users")
    refuses("missing-column", f"prepare {LOG} --event-features star --out b", "did you mean 'stars'")


def test_a_source_with_settings(ask: Ask) -> None:
    found = ask("prepare planted --set source.users=40 --set k_core=2 --out a")
    assert found["spec"]["k_core"] == 2 and found["counts"]["users"] <= 40
    assert found["spec"]["columns"]["rating"] == "rating", "the source says which column holds the rating"


def test_download_of_what_needs_none(refuses: Refuses, call: Call) -> None:
    said = call("download planted --out . --json")
    assert said.json["files"] == [] and "no files to download" in said.err
    refuses("unknown-setting", "download movielens --set varient=1m", "did you mean 'variant'")


def test_download_from_a_server(tmp_path: Path, ask: Ask) -> None:
    (tmp_path / "site").mkdir()
    for file in Amazon().files():
        (tmp_path / "site" / file.name).write_bytes(b"x" * 1000)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = ask(f"download amazon --set base_url=http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert {Path(file).parent for file in said["files"]} == {Path("downloads/amazon")}
    assert all(Path(file).stat().st_size == 1000 for file in said["files"])


def test_a_file_with_a_schema(ask: Ask, tmp_path: Path) -> None:
    frame = pl.DataFrame({"click": [0, 1] * 50, "user": np.arange(100) % 7, "x": np.arange(100) / 3})
    frame.write_parquet(tmp_path / "t.parquet")
    (tmp_path / "s.yaml").write_text("label: click\nfields: [user]\nsplit: {kind: random, shares: [0.4, 0.3, 0.3]}\n")
    told = ask("prepare-impressions t.parquet --out store --schema s.yaml --set group=user")
    store = ImpressionStore.open(tmp_path / "store")
    assert told["fingerprint"] == store.fingerprint and told["counts"]["rows"] == 100 and store.num_groups == 7
    ask("prepare-impressions t.parquet --out store --overwrite --set split.shares=[0.4,0.3,0.3]")
    assert [field.name for field in ImpressionStore.open(tmp_path / "store").fields] == ["user", "x"]


def test_a_source(call: Call, tmp_path: Path) -> None:
    words = "prepare-impressions planted_clicks --set source.rows=500 --out store"
    assert "500 rows, 7 fields" in " ".join(call(words).out.split())
    assert call(f"{words} --set split.shares=[0.5,0.3,0.2] --overwrite").code == 0
    assert len(ImpressionStore.open(tmp_path / "store").split("train")) < 300


def test_a_share_and_hidden_items(tmp_path: Path, ask: Ask, call: Call) -> None:
    options = "--share 0.5 --hide-items 0.1 --seed 1 --out part"
    said = ask(f"subset @data {options}")
    part = Store.open(tmp_path / "part", verify=True)
    assert said["counts"]["users"] == part.num_users and said["hidden_items"] > 0
    told = call(f"subset @data {options} --overwrite").out
    for words in ("items hidden", "popularity gini", "events per user mean", "fullrank train sasrec --data"):
        assert words in told, words


def test_mistakes_of_a_subset(tmp_path: Path, refuses: Refuses) -> None:
    refuses("setting-out-of-range", "subset @data --share 2 --out part", "--share 2")
    assert not (tmp_path / "part").exists()
    refuses("wrong-folder", "subset @sasrec --share 0.5 --out part", "sasrec", "store")


def test_check_says_what_prepare_warned_of(events: Path, call: Call, ask: Ask, refuses: Refuses) -> None:
    pl.read_parquet("log.parquet").with_columns(when=1_700_000_000).write_parquet("tied.parquet")
    said = call(f"prepare tied.parquet {COLUMNS} --out tied")
    assert "warning: 88.9% of the events and 100.0% of the test targets share the second" in " ".join(said.out.split())
    assert "fullrank check tied" in said.out
    assert [one["name"] for one in ask(f"prepare tied.parquet {COLUMNS} --out again")["findings"]] == [
        "cold_targets",
        "ties",
    ]
    told = call("check tied")
    assert told.code == 0 and "warning: ties: 88.9%" in told.out and "in order: repeats," in told.out
    assert "ok: bots: 0 users have more than 60 in a minute" in " ".join(call("check tied --all").out.split())
    found = ask("check tied")
    assert found["ok"] is False and {one["grade"] for one in found["findings"]} == {"ok", "note", "warning"}
    strict = call("check tied --strict --json")
    assert strict.code == 2 and strict.json["code"] == "data-warned-of" and len(strict.json["findings"]) > 5
    refuses("data-warned-of", "check tied --strict", "(cold_targets, ties)")
    refuses("missing-folder", "check nowhere", "nowhere")


def test_check_of_impressions_and_of_clean_data(call: Call, ask: Ask) -> None:
    assert ask("prepare-impressions planted_clicks --set source.rows=3000 --out clicks")["findings"] == []
    found = ask("check clicks --strict")
    assert found["problem"] == "ranking" and found["ok"] is True
    assert "tells_label" in call("check clicks").out and "0 warnings" in call("check clicks").out
