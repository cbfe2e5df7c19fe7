from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rewa.experiments import designs
from rewa.experiments.designs import lasso, logistic, paper, sparse


def one_by_one(seed, n, d):
    """The paper's draw, a number at a time."""
    random = np.random.RandomState(seed)
    X = [[random.normal() for _ in range(d)] for _ in range(n)]
    y = [row[0] + random.normal() for row in X]
    return torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


@pytest.mark.parametrize(("n", "d", "n_test"), [(4, 6, 3), (3, 5, 7)])
def test_the_papers_draw(n, d, n_test):
    design = paper(n=n, d=d, n_test=n_test)
    for (X, y), (seed, rows) in zip(
        [(design.X, design.y), (design.X_test, design.y_test)], [(9913, n), (1113, n_test)], strict=True
    ):
        expected_X, expected_y = one_by_one(seed, rows, d)
        assert torch.equal(X, expected_X)
        assert torch.equal(y, expected_y)
    assert design.beta.tolist() == [1.0] + [0.0] * (d - 1)


def test_defaults_are_the_papers():
    assert paper.__kwdefaults__ == {"n": 2000, "d": 10_000, "n_test": 2000}


@pytest.mark.parametrize(
    "design",
    [
        paper(n=20, d=8, n_test=4000),
        sparse(seed=3, n=20, d=30, s=4, noise=0.5, rho=0.3, n_test=4000),
        logistic(seed=3, n=20, d=8, n_test=4000),
    ],
    ids=lambda design: design.name,
)
def test_a_design_is_float32_and_its_true_coefficients_are_near_the_bayes_loss(design):
    for tensor in (design.X, design.y, design.X_test, design.y_test, design.beta):
        assert tensor.dtype == torch.float32
    assert design.y.shape == design.X.shape[:1]
    assert design.realised == float(design.test_loss(design.beta))
    # The mean of 4000 squared normals has the deviation sqrt(2/4000) = 2.2 %.
    assert design.realised == pytest.approx(design.bayes, rel=0.08)
    better = design.test_loss(design.beta) < design.test_loss(torch.stack([torch.zeros_like(design.beta), 1.5 * design.beta]))
    assert better.all()


def test_bayes_losses():
    assert paper(n=2, d=2, n_test=2).bayes == 1.0
    assert sparse(seed=0, n=2, d=2, s=1, noise=0.5).bayes == 0.25
    design = logistic(seed=0, n=20, d=4, n_test=50)
    total = 0.0
    for row, label in zip(design.X_test.tolist(), design.y_test.tolist(), strict=True):
        right = 1 / (1 + math.exp(-row[0] - row[1] / 2))
        total -= math.log(right if label else 1 - right)
    assert design.bayes == design.realised == pytest.approx(total / 50, rel=1e-6)


def test_the_loss_of_many_models_is_that_of_each():
    for design in (paper(n=5, d=3, n_test=20), logistic(seed=1, n=5, d=3, n_test=20)):
        coef, intercept = torch.randn(2, 4, 3), torch.randn(2, 4)
        losses = design.test_loss(coef, intercept)
        assert losses.shape == (2, 4)
        assert losses.dtype == torch.float64
        each = [float(design.test_loss(coef[i, j], float(intercept[i, j]))) for i in range(2) for j in range(4)]
        assert losses.flatten().tolist() == pytest.approx(each, rel=1e-6)
    design = paper(n=5, d=3, n_test=2)
    errors = design.X_test @ torch.tensor([1.0, 2.0, 3.0]).float() + 4 - design.y_test
    assert float(design.test_loss(torch.tensor([1.0, 2.0, 3.0]), 4.0)) == pytest.approx(float((errors**2).sum()) / 2, rel=1e-5)


@pytest.mark.parametrize("design", [paper(n=30, d=5, n_test=2), logistic(seed=1, n=30, d=5, n_test=2)], ids=lambda d: d.name)
def test_the_gradient_at_zero_is_that_of_the_training_loss(design):
    X, y, coef = design.X.double(), design.y.double(), torch.zeros(5, requires_grad=True)
    output = X @ coef
    if design.loss == "squared":
        loss = (output - y).square().mean()
    else:
        loss = torch.nn.functional.binary_cross_entropy_with_logits(output, y)
    (expected,) = torch.autograd.grad(loss, coef)
    gradient = design.gradient_at_zero()
    assert gradient.shape == (5,)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-6)
    assert expected.abs().min() > 1e-3, "the test can fail"


def test_correlation_falls_with_distance():
    design = sparse(seed=0, n=40_000, d=5, s=1, rho=0.7, n_test=2)
    distance = torch.arange(5.0)[:, None] - torch.arange(5.0)
    assert (torch.corrcoef(design.X.double().T) - 0.7 ** distance.abs()).abs().max() < 0.02
    assert (design.X.var(0) - 1).abs().max() < 0.03


def test_coefficients_of_a_sparse_design():
    mixed = sparse(seed=0, n=2, d=12, s=3, n_test=2).beta
    assert mixed.tolist() == [1.0, 0, 0, 0, -1.0, 0, 0, 0, 1.0, 0, 0, 0]
    positive = sparse(seed=0, n=2, d=12, s=3, signs="positive", n_test=2).beta
    assert positive.tolist() == mixed.abs().tolist()
    assert int((sparse(seed=0, n=2, d=7, s=5, n_test=2).beta != 0).sum()) == 5
    assert sparse(seed=0, n=2, d=7, s=0, n_test=2).beta.tolist() == [0.0] * 7


def test_without_noise_the_targets_are_exact():
    design = sparse(seed=1, n=10, d=6, s=2, noise=0.0, rho=0.5, n_test=9)
    torch.testing.assert_close(design.y, design.X[:, 0] - design.X[:, 3])
    assert design.realised < 1e-12


def test_seeds_and_parts_differ_and_repeat():
    def make(seed):
        return sparse(seed=seed, n=5, d=4, s=1, n_test=5), logistic(seed=seed, n=5, d=4, n_test=5)

    for first, again, other in zip(make(0), make(0), make(1), strict=True):
        assert torch.equal(first.X, again.X)
        assert torch.equal(first.y, again.y)
        assert not torch.equal(first.X, other.X)
        assert not torch.equal(first.X, first.X_test)


def test_labels_follow_the_odds():
    design = logistic(seed=0, n=40_000, d=3, n_test=2)
    assert set(design.y.tolist()) == {0.0, 1.0}
    high = design.X @ design.beta > 2  # where the label is 1 with probability 0.88 or more
    assert 0.88 < float(design.y[high].mean()) < 0.95


@pytest.mark.parametrize(
    ("settings", "message"), [({"s": 9}, "s: 9"), ({"rho": 1.0}, "rho: 1.0"), ({"signs": "some"}, "signs: 'some'")]
)
def test_designs_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        sparse(**{"seed": 0, "n": 2, "d": 4, "s": 1, **settings})


def test_the_lasso_chooses_as_scikit_learn_does_on_its_whole_grid():
    from sklearn.linear_model import LassoCV
    from sklearn.model_selection import KFold

    design = paper(n=100, d=60, n_test=50)
    for seed in (0, 1):
        found = lasso(design, seed=seed)
        cv = KFold(5, shuffle=True, random_state=seed)
        # The number of penalties, which is the default, has another name in older releases.
        whole = LassoCV(cv=cv, alphas=designs.GRID) if "n_alphas" not in LassoCV().get_params() else LassoCV(cv=cv)
        whole.fit(design.X.numpy(), design.y.numpy())
        assert len(found.alphas) < designs.GRID == len(whole.alphas_)
        assert found.alpha == pytest.approx(whole.alpha_, rel=1e-5)
        assert found.cv == pytest.approx(whole.mse_path_.mean(1)[: len(found.cv)], rel=1e-4)
        np.testing.assert_allclose(found.coef.numpy(), whole.coef_, atol=1e-5)
        assert found.intercept == pytest.approx(whole.intercept_, abs=1e-5)
        assert found.cv[found.alphas.index(found.alpha)] == min(found.cv)


def test_the_lasso_goes_down_the_grid_as_far_as_the_error_falls():
    design = sparse(seed=0, n=60, d=20, s=2, noise=0.05, n_test=2)
    found = lasso(design)
    assert len(found.alphas) > designs.PARTS[0]
    assert found.cv.index(min(found.cv)) >= designs.PARTS[0] - 1 - designs.RISEN
    assert found.cv.index(min(found.cv)) < len(found.cv) - 1


def test_the_lasso_is_for_squared_loss():
    with pytest.raises(ValueError, match="logistic loss"):
        lasso(replace(paper(n=20, d=4, n_test=2), loss="logistic"))


def test_the_lasso_takes_the_last_penalty_where_the_error_never_rises(monkeypatch):
    monkeypatch.setattr(designs, "DEPTH", 0.5)  # penalties that are all far too large
    design = sparse(seed=0, n=60, d=20, s=2, noise=0.1, n_test=2)
    with pytest.warns(
        UserWarning, match=r"sparse n=60 .* no minimum .*: alpha = 0\.\d+, the smallest tried, is taken"
    ) as caught:
        found = lasso(design)
    assert found.alpha == min(found.alphas)
    assert len(found.alphas) == designs.GRID
    assert f"alpha = {found.alpha:.3g}," in str(caught[0].message)
    # The optimality condition: what is chosen has a gradient of size alpha.
    residual = design.y - design.X @ found.coef - found.intercept
    assert float((design.X.T @ residual).abs().max()) / 60 == pytest.approx(found.alpha, rel=1e-3)
