"""A blend is what its definition says, in one folder that needs nothing else, and tells no figure it learned from."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fullrank as fr
from fullrank.core.jagged import Jagged
from fullrank.data.events.catalog import Catalog
from fullrank.data.histories import EvalSet, Histories
from fullrank.evaluation.spec import Evaluation
from fullrank.models.sequential.baselines.blend import Blend, BlendModel, Member, MemberLists, best_sums
from fullrank.run.verification import verify
from fullrank.serving.messages import RecommendRequest
from fullrank.serving.model import ServedModel, request_history
from fullrank.serving.settings import ServeSettings
from fullrank.training.blending import Table, chosen, nested_metric, tried
from markets import planted_store
from refusals import refused

MEMBERS = ("transition_graph", "item_to_item", "sasrec")


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A store, three runs of it, and a blend of them."""
    home = tmp_path_factory.mktemp("blend")
    store = planted_store(home / "store", users=600, items=60, events_per_user=9)
    quick = ["model.dim=16", "model.max_length=8", "training.max_epochs=1"]
    for name in MEMBERS:
        settings = quick if name == "sasrec" else []
        fr.train(name, store, home / name, set=settings, device="cpu", progress=False)
    runs = [home / name for name in MEMBERS]
    made = fr.blend(runs, store, home / "blend", set=["model.depth=12"], device="cpu")
    ids = store.catalog.ids.to_list()
    histories = [[ids[at] for at in some] for some in ([3, 4], [11, 30, 2], [7], range(1, 30))]
    return SimpleNamespace(home=home, store=store, runs=runs, blend=made, ids=ids, histories=histories)


def by_definition(market: SimpleNamespace, run: fr.Run, histories: list, k: int, **options: object) -> list:
    """Item ids and scores of each history: loops over members, places and items."""
    spec, model = run.spec.model, fr.load(run, device="cpu").model
    lists = [fr.recommend(one, histories, k=spec.depth, device="cpu", **options) for one in market.runs]
    known = model.known(Jagged.from_lists([run.catalog.lookup(one).tolist() for one in histories]))
    found = []
    for user in range(len(histories)):
        sums: dict[int, float] = {}
        for member, frame in enumerate(lists):
            own = frame.filter(pl.col("user") == user)
            x = (known[user] - model.center.numpy()) / model.scale.numpy()
            weight = np.exp(float(model.bias[member]) + (model.slopes[member].numpy() @ x if spec.gate else 0.0))
            scores = own["score"].to_list()
            for place, (item, score) in enumerate(zip(own["item"], scores, strict=True), 1):
                if spec.join == "ranks":
                    offset = 60.0 if spec.offset is None else spec.offset
                    said = (offset + 1) / (offset + place)
                else:
                    said = (score - scores[-1]) / (scores[0] - scores[-1]) if scores[0] > scores[-1] else 1.0
                sums[item] = sums.get(item, 0.0) + weight * said
        best = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
        found.append(best)
    return found


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("model.join=ranks", "model.gate=false"),
        ("model.join=ranks", "model.offset=3", "model.gate=true"),
        ("model.join=scores", "model.gate=true"),
    ],
)
def test_lists_are_those_of_the_definition(market: SimpleNamespace, tmp_path: Path, settings: tuple[str, ...]) -> None:
    run = market.blend
    if settings:
        run = fr.blend(market.runs, market.store, tmp_path / "b", set=["model.depth=12", *settings], device="cpu")
    draw = np.random.default_rng(0)
    histories = [draw.choice(market.store.catalog.ids.to_numpy(), n, replace=False).tolist() for n in (1, 2, 7, 12, 3)]
    for options in ({}, {"seen": "keep"}, {"exclude": market.ids[5:9]}, {"allow": market.ids[:20]}):
        asked = by_definition(market, run, histories, 6, **options)
        frame = fr.recommend(run, histories, k=6, device="cpu", **options)
        for user, wanted in enumerate(asked):
            own = frame.filter(pl.col("user") == user)
            assert own["item"].to_list() == [item for item, _ in wanted]
            assert own["score"].to_list() == pytest.approx([score for _, score in wanted], rel=1e-5)
    assert [one["name"] for one in run.manifest["blend"]["members"]] == list(MEMBERS)


@given(st.data())
def test_sums_are_those_of_a_dictionary(data: st.DataObject) -> None:
    rows, width, k = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 12))
    ids = np.array([[data.draw(st.integers(-1, 4)) for _ in range(width)] for _ in range(rows)])
    values = np.array([[data.draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])) for _ in range(width)] for _ in range(rows)])
    scores, items = best_sums(ids, values, k)
    for row in range(rows):
        sums = {item: values[row][ids[row] == item].sum() for item in set(ids[row].tolist()) - {-1}}
        best = sorted(sums, key=lambda item: (-sums[item], item))[:k]
        assert items[row].tolist() == best + [-1] * (k - len(best))
        assert scores[row].tolist() == [sums[item] for item in best] + [-np.inf] * (k - len(best))


def test_the_folder_is_all_it_needs(market: SimpleNamespace, tmp_path: Path) -> None:
    histories = market.histories
    whole = fr.recommend(market.blend, histories, k=5, device="cpu")
    shipped = fr.export(market.blend, tmp_path / "shipped", to="folder")
    shutil.move(shipped.path, tmp_path / "elsewhere")
    assert fr.recommend(tmp_path / "elsewhere", histories, k=5, device="cpu").equals(whole)
    assert verify(tmp_path / "elsewhere").ok
    users = market.store.user_ids[:40]
    parts = fr.recommend_parts(market.blend, tmp_path / "lists", k=5, device="cpu", parts=2, data=market.store)
    found = pl.read_parquet(parts.files).filter(pl.col("user").is_in(users.implode())).sort("user", "rank")
    alone = fr.recommend(market.blend, users=users, data=market.store, k=5, device="cpu").sort("user", "rank")
    assert found["item"].to_list() == alone["item"].to_list()

    weights = tmp_path / "elsewhere" / "members" / "item_to_item" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert not verify(tmp_path / "elsewhere").ok
    with refused("file-damaged"):
        fr.load(tmp_path / "elsewhere")
    weights.unlink()
    with refused("missing-file"):
        fr.load(tmp_path / "elsewhere")


def test_it_is_served_as_it_recommends(market: SimpleNamespace) -> None:
    settings = ServeSettings.parse({"run": str(market.blend.path)})
    served = ServedModel.open(market.blend.path, settings, {})
    assert served.state.finder.described()["members"]["sasrec"]["quick"]
    hidden = [{"history": one, "k": 5, "exclude": market.ids[9:10]} for one in market.histories]
    asked = [RecommendRequest.model_validate(one) for one in hidden]
    answers = served.answer([served.read(one, request_history(one) or []) for one in asked])
    wanted = fr.recommend(market.blend, market.histories, k=5, exclude=market.ids[9:10], device="cpu")
    for user, answer in enumerate(answers):
        own = wanted.filter(pl.col("user") == user)
        assert market.blend.catalog.external(answer.ids).to_list() == own["item"].to_list()
        assert answer.scores == pytest.approx(own["score"].to_list(), rel=1e-4)
    with refused("blend-takes-no-items"):
        served.changed({"7": {"id": 7, "title": "new"}}, strict=["7"])
    retired = served.changed({str(one): {"id": one, "retired": True} for one in wanted["item"][:1].to_list()})
    served.put(retired)
    assert wanted["item"][0] not in retired.items.catalog.external(
        served.answer([served.read(asked[0], request_history(asked[0]) or [])])[0].ids
    )


def test_a_metric_of_its_lists(market: SimpleNamespace) -> None:
    """As of lists made elsewhere; and what validation says is about what evaluation says there."""
    told = market.blend.manifest["blend"]
    result = fr.evaluate(market.blend, "validation", set=[f"seen={told['seen']}"], device="cpu")
    assert told["blend"] == pytest.approx(result.metrics["ndcg@10"], abs=4 * told["blend_se"])
    rows = market.blend.rows()
    assert rows[0]["validation/ndcg@10"] == told["blend"]


def test_what_it_refuses(market: SimpleNamespace, tmp_path: Path) -> None:
    out, runs = tmp_path / "out", market.runs
    with refused("too-few-members"):
        fr.blend(runs[:1], market.store, out)
    with refused("nested-blend"):
        fr.blend([*runs, market.blend.path], market.store, out)
    with refused("given-twice"):
        fr.blend(runs, market.store, out, set=["model.members=[a, b]"])
    with refused("unknown-setting"):
        fr.blend(runs, market.store, out, set=["model.depht=3"])
    with refused("folder-holds-a-run"):
        fr.blend(runs, market.store, market.home / "blend")
    other = planted_store(tmp_path / "other", users=80, items=70)
    fr.train("popularity", other, tmp_path / "p", device="cpu", progress=False)
    with refused("other-items"):
        fr.blend([*runs, tmp_path / "p"], market.store, out)
    assert not out.exists()
    loaded = fr.load(market.blend, device="cpu")
    with refused("blend-without-scores"):
        loaded.score(market.histories, market.ids[:1])
    with refused("blend-without-scores"):
        fr.evaluate(market.blend, set=["protocol=sampled"], device="cpu")
    with refused("decoding-needs-codes"):
        fr.evaluate(market.blend, set=["decoding.kind=beam"], device="cpu")
    with refused("given-twice"):
        fr.blend(runs, market.store, out, set=["model={kind: blend, join: ranks}"])
    with refused("no-reasoner"):
        fr.recommend(market.blend, market.histories, budget={"steps": 1}, device="cpu")
    with refused("blend-without-members"):
        fr.train(market.blend.spec, market.store, out, progress=False)


def table_of(draw: np.random.Generator, users: int, right: np.ndarray, lengths: np.ndarray) -> Table:
    """Two members of which `right` says which one has the target first; the other has it nowhere."""
    items, targets = 50, draw.integers(0, 50, users)
    lists = []
    for member in range(2):
        ids = np.argsort(draw.random((users, items)), 1)[:, :5]
        ids = np.where(ids == targets[:, None], (targets[:, None] + 1) % items, ids)
        ids[:, 0] = np.where(right == member, targets, ids[:, 0])
        ids[:, 1:] = np.where(ids[:, 1:] == ids[:, :1], -1, ids[:, 1:])
        lists.append(MemberLists(ids, np.where(ids >= 0, -np.arange(5.0), -np.inf)))
    ids = pl.Series("item_id", np.arange(items))
    catalog = Catalog(pl.DataFrame({"item": np.arange(items), "item_id": ids, "train_count": np.ones(items, int)}))
    model = SimpleNamespace(num_items=items, max_length=9, allows_empty=True, reads_times=False, reads_users=False)
    model.reads_features = None
    blend = BlendModel(Blend(), catalog, [Member(name, model, {}) for name in "ab"])
    histories = Histories(Jagged.from_lists([[0] * n for n in lengths]), users=np.arange(users))
    truth = Jagged.from_lists(targets[:, None].tolist())
    return Table(blend, EvalSet(histories, truth), lists, Evaluation(selection="ndcg@1").for_selection())


def test_a_gate_is_learned_where_histories_differ() -> None:
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 40, 900)
    table, kinds = table_of(draw, 900, (lengths > 10).astype(int), lengths), tried(Blend(), (), 900)
    assert chosen(table, kinds, table.everybody)[0].gate
    assert table.mean(nested_metric(table, kinds))[0] > 0.9
    assert table.mean(nested_metric(table, [kind for kind in kinds if not kind.gate]))[0] < 0.8


def test_weights_follow_the_member_that_is_right() -> None:
    draw = np.random.default_rng(1)
    table = table_of(draw, 600, (draw.random(600) < 0.9).astype(int), np.ones(600, int))
    bias = table.learned(Blend(join="ranks"), table.everybody)["bias"]
    assert bias[1] > bias[0] + 0.5


def test_what_a_fold_is_measured_by_has_not_seen_its_targets() -> None:
    draw = np.random.default_rng(2)
    table, kinds = table_of(draw, 600, draw.integers(0, 2, 600), draw.integers(1, 9, 600)), tried(Blend(), (), 600)
    own = table.fold == 0
    kind, weights = chosen(table, kinds, ~own)
    everything = chosen(table, kinds, table.everybody)[1]
    table.wanted[own] = np.roll(table.wanted[own], 1, 1)
    again, same = chosen(table, kinds, ~own)
    assert again == kind
    assert all(np.array_equal(same[name], weights[name]) for name in weights)
    assert not np.array_equal(chosen(table, [again], table.everybody)[1]["bias"], everything["bias"])
    # where the lists say nothing of who is right, the figure is no better than chance
    noise = table_of(draw, 800, draw.integers(0, 2, 800), np.ones(800, int))
    value, error = noise.mean(nested_metric(noise, kinds))
    assert value < 0.5 + 3 * error
