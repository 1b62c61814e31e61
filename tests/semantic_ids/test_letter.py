"""LETTER: alignment with collaborative vectors, diversity of codes, and what `encode` hands to it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import torch.nn.functional as F

from coded import catalog, drawn, matrix, settings, silent
from fullrank.semantic_ids.letter import CodeDiversity, CollaborativeAlignment, Letter, balanced_clusters, partners
from fullrank.semantic_ids.quantisers import Autoencoder
from fullrank.semantic_ids.rqvae import LearningStep
from fullrank.semantic_ids.vectors import Vectors
from refusals import refused

SMALL = {"levels": 2, "size": 16, "hidden": (64,), "width": 6, "epochs": 60, "batch": 60, "lr": 0.01}
GROUPS = torch.arange(120) % 6


def learned(collaborative: Vectors | None = None, **changes: Any) -> Autoencoder:
    return Letter(**SMALL | changes).fit(drawn(120, 8), 0, silent, collaborative)


def grouped(known: torch.Tensor | None = None) -> Vectors:
    """Items of a group have one collaborative vector; what is known of them says nothing of the group."""
    return Vectors(4 * torch.eye(6)[GROUPS], torch.ones(120, dtype=torch.bool) if known is None else known, {})


def step(rows: torch.Tensor, through: torch.Tensor, codes: torch.Tensor, books: torch.Tensor) -> LearningStep:
    words = torch.stack([books[k][codes[:, k]] for k in range(len(books))], 1)
    return LearningStep(rows, through, codes, words, books)


def test_alignment_by_hand() -> None:
    vectors, known = drawn(5, 3), torch.tensor([True, True, False, True, True])
    rows, through = torch.tensor([4, 2, 0]), drawn(3, 3, seed=1)
    books = drawn(1, 2, 3, seed=2)
    found = CollaborativeAlignment(0.1, vectors, known)(step(rows, through, torch.zeros(3, 1, dtype=torch.long), books))
    expected = 0.0
    for row, item in ((0, 4), (2, 0)):
        scores = torch.stack([through[row] @ vectors[other] for other in (4, 0)])
        expected -= float(scores.log_softmax(0)[0 if item == 4 else 1]) / 2
    assert float(found) == pytest.approx(0.1 * expected, rel=1e-5)
    none = CollaborativeAlignment(0.1, vectors, torch.zeros(5, dtype=torch.bool))
    assert float(none(step(rows, through, torch.zeros(3, 1, dtype=torch.long), books))) == 0


def test_diversity_by_hand() -> None:
    books = drawn(1, 5, 3)
    found = CodeDiversity(2.0, 2, 0.5, torch.Generator().manual_seed(0))
    found.cluster = [torch.tensor([0, 1, 0, 1, 2])]  # each but the last has one partner, so nothing is left to chance
    codes = torch.tensor([[0], [3], [4], [2]])
    value = found(step(torch.arange(4), drawn(4, 3), codes, books))
    partner, expected = {0: 2, 1: 3, 2: 0, 3: 1}, []
    for code in (0, 3, 2):
        others = [j for j in range(5) if j != code]
        scores = (books[0, others] @ books[0, code] / 0.5).log_softmax(0)
        expected.append(-float(scores[others.index(partner[code])]))
    assert float(value) == pytest.approx(2 * np.mean(expected), rel=1e-5)
    alone = CodeDiversity(2.0, 5, 0.5, torch.Generator())
    alone.cluster = [torch.arange(5)]
    assert float(alone(step(torch.arange(4), drawn(4, 3), codes, books))) == 0


@pytest.mark.parametrize(("codes", "clusters"), [(256, 10), (16, 10), (7, 3), (5, 5), (4, 1)])
def test_clusters_are_alike_in_size(codes: int, clusters: int) -> None:
    cluster = balanced_clusters(drawn(codes, 4), clusters, torch.Generator().manual_seed(0))
    size = torch.bincount(cluster, minlength=clusters)
    assert size.sum() == codes and size.max() <= -(-codes // clusters)


def test_clusters_hold_what_is_near() -> None:
    words = torch.cat([drawn(6, 3), drawn(6, 3, seed=1) + 40])
    cluster = balanced_clusters(words, 2, torch.Generator().manual_seed(0))
    assert len(cluster[:6].unique()) == len(cluster[6:].unique()) == 1 and cluster[0] != cluster[6]


def test_partners_are_others_of_the_cluster() -> None:
    cluster = torch.tensor([1, 0, 1, 2, 1, 0])
    generator, seen = torch.Generator().manual_seed(0), set()
    for _ in range(60):
        own = torch.arange(6)
        seen |= set(zip(own.tolist(), partners(own, cluster, generator).tolist(), strict=True))
    assert seen == {(0, 2), (0, 4), (2, 0), (2, 4), (4, 0), (4, 2), (1, 5), (5, 1), (3, -1)}


def test_items_without_a_collaborative_vector_do_not_align() -> None:
    few = torch.arange(120) < 60
    half = learned(grouped(few), epochs=5)
    garbage = grouped(few)
    garbage.matrix[60:] = 99.0
    assert torch.equal(half.codebooks, learned(garbage, epochs=5).codebooks)
    assert not torch.equal(half.codebooks, learned(grouped(), epochs=5).codebooks)


@pytest.mark.parametrize("change", [{"clusters": 2}, {"temperature": 0.2}, {"diversity": 0.5}, {"alignment": 1.0}])
def test_every_setting_does_something(change: dict) -> None:
    base = {"epochs": 4, "diversity": 0.1, "clusters": 4}
    one, other = learned(grouped(), **base), learned(grouped(), **base | change)
    assert not torch.equal(one.codebooks, other.codebooks)


def test_what_letter_cannot_do() -> None:
    with refused("missing-collaborative-vectors", "letter", "learner.alignment=0"):
        learned()
    with refused("other-vectors", 6, 7, "learner.width=7"):
        learned(Vectors(drawn(120, 7), torch.ones(120, dtype=torch.bool), {}))
    with refused("items-without-vectors", "letter"):
        learned(grouped(torch.zeros(120, dtype=torch.bool)))
    with refused("option-without-effect", "update=ema", "diversity=0"):
        Letter().override("update=ema")
    assert learned(grouped(), update="ema", diversity=0, epochs=2).facts["epochs"] == 2


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Collaborative vectors of items 0 .. 189 in an order of their own."""
    order = np.random.default_rng(5).permutation(190)
    table = pl.DataFrame({"item_id": order, "vector": matrix(190, seed=3)[order, :8]})
    table.write_parquet(tmp_path / "people.parquet")
    return tmp_path / "people.parquet"


def encoding(file: Path, learner: str, *more: str) -> list:
    source = [s for s in settings(file) if "rounds" not in s]
    return [f"learner={learner}", *source, "limits.neighbours=0", *more]


def beside(file: Path) -> str:
    return f"collaborative={{kind: file, path: {str(file)!r}}}"


QUICK = ("learner.hidden=[32]", "learner.width=8", "learner.epochs=20", "learner.lr=0.01")


def test_encode_hands_over_the_collaborative_vectors(
    vector_file: Path, people: Path, tmp_path: Path, encode: Callable, grow: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    own = Letter._alignment

    def spy(self: Letter, found: Vectors) -> CollaborativeAlignment:
        given.append(found)
        return own(self, found)

    monkeypatch.setattr(Letter, "_alignment", spy)
    made = encode(set=encoding(vector_file, "letter", beside(people), *QUICK))
    trained = catalog().popularity > 0  # items 49, 99, 149 and 199 have no events
    assert np.array_equal(given[0].matrix.numpy()[:180], matrix(190, seed=3)[trained[:190], :8][:180])
    assert given[0].known.tolist() == (np.flatnonzero(trained) < 190).tolist()
    assert made.manifest["collaborative"]["file"] == "people.parquet"
    assert made.report["collaborative"]["items"] == 190 and 0 < made.report["collaborative"]["recall"] < 1
    assert made.manifest["learning"]["last_epoch"]["alignment"] > 0
    less = encode(set=encoding(vector_file, "letter", "learner.alignment=0", *QUICK), name="less")
    assert less.fingerprint != made.fingerprint and "collaborative" not in less.report
    assert torch.equal(grow(made).of(catalog()), made.codes)
    with refused("missing-collaborative-vectors", "--collaborative"):
        encode(set=encoding(vector_file, "letter", *QUICK), name="three")
    assert not (tmp_path / "three").exists()


def test_any_learner_is_compared_with_collaborative_vectors(vector_file: Path, people: Path, encode: Callable) -> None:
    plain = encode(set=encoding(vector_file, "rq_kmeans"), name="a")
    compared = encode(set=encoding(vector_file, "rq_kmeans", beside(people)), name="b")
    assert torch.equal(plain.codes, compared.codes), "learners that do not ask do not see them"
    alone = encode(set=encoding(people, "rq_kmeans", beside(people)), name="c")
    assert alone.report["collaborative"]["recall"] > 1.5 * compared.report["collaborative"]["recall"]


def test_joined_vectors(vector_file: Path, people: Path, tmp_path: Path, encode: Callable, grow: Callable) -> None:
    files = [f"{{kind: file, path: {str(path)!r}}}" for path in (vector_file, people)]
    joined = [*encoding(vector_file, "rq_kmeans"), f"vectors={{kind: joined, parts: [{', '.join(files)}]}}"]
    made = encode(set=joined)
    found = made.spec.vectors.read(catalog(), tmp_path, lambda name: silent)
    first = F.normalize(torch.from_numpy(matrix(200)), dim=1)
    second = F.normalize(torch.from_numpy(matrix(190, seed=3)[:, :8].copy()), dim=1)
    assert torch.equal(found.matrix[:, :12], first) and torch.equal(found.matrix[:190, 12:], second)
    assert not found.matrix[190:, 12:].any() and found.known.all()
    assert found.facts["width"] == 20 and len(found.facts["parts"]) == 2
    heavier = encode(set=[*joined, "vectors.weights=[1, 3]"], name="heavy")
    assert heavier.fingerprint != made.fingerprint
    assert heavier.manifest["vectors"]["fingerprint"] != made.manifest["vectors"]["fingerprint"]
    with refused("weights-not-of-parts", 2, 3):
        encode(set=[*joined, "vectors.weights=[1, 3, 2]"], name="no")
    with refused("other-vectors", "joined"):
        grow(made, vectors=vector_file)
    assert torch.equal(grow(made).of(catalog()), made.codes)
