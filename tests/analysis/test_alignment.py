"""First singular vectors by iteration against numpy's, and their cosines against loops over users."""

import numpy as np
import pytest
import torch

from fullrank.analysis.activations import activations
from fullrank.analysis.diagnostics.alignment import Alignment, principal
from tests.analysis.conftest import EVERYONE, expect, model_of, observed, recommender, values


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9, 40])
def test_principal_vectors_are_those_of_numpy(size) -> None:
    scores = torch.randn(6, size, size, generator=torch.Generator().manual_seed(size))
    matrices = scores.masked_fill(~torch.ones(size, size, dtype=torch.bool).tril(), -torch.inf).softmax(-1)
    u, sigma, v = principal(matrices)
    for place, matrix in enumerate(matrices.double().numpy()):
        left, values_, right = np.linalg.svd(matrix)
        sign = 1 if right[0].sum() >= 0 else -1
        assert sigma[place] == pytest.approx(values_[0])
        assert np.allclose(u[place], sign * left[:, 0], atol=1e-5) and np.allclose(v[place], sign * right[0], atol=1e-5)


def test_the_twin_takes_single_users() -> None:
    model = model_of(recommender(None, "encoder.layers=3"), scale=1.0)
    (rows,) = observed(model, Alignment)
    (reading,) = activations(model, EVERYONE)
    uv = {}
    best = {}
    right = {}
    for attended in reading.attentions:
        with torch.no_grad():
            weights = attended.module.weights(attended.x, attended.batch).double().numpy()
        for b, n in enumerate(attended.batch.lengths.tolist()):
            if n < 2:
                continue
            for head in range(2):
                u, sigma, v = np.linalg.svd(weights[b, head, :n, :n])
                cosine = float(u[:, 0] @ v[0])
                uv.setdefault((attended.layer, head), []).append(cosine)
                best[attended.layer, head] = max(best.get((attended.layer, head), (0.0, 0.0)), (sigma[0], cosine))
            right.setdefault(attended.layer, {})[b] = np.linalg.svd(weights[b].mean(0)[:n, :n])[2][0]
    for (layer, head), cosines in uv.items():
        found = values(rows, "uv_cosine", layer=layer, head=head, label=None)[0]
        assert found == pytest.approx(np.mean(cosines), abs=1e-5)
        expect(rows, "sigma_1", best[layer, head][0], layer=layer, head=head, abs=1e-5)
        largest = values(rows, "uv_cosine", layer=layer, head=head, label="largest")[0]
        assert largest == pytest.approx(best[layer, head][1], abs=1e-4)
    for one, two in ((0, 1), (0, 2), (1, 2)):
        mean = np.mean([abs(v @ right[two][b]) for b, v in right[one].items()])
        expect(rows, "layer_cosine", mean, layer=one, index=two, abs=1e-5)
