r"""The paper's iteration for linear models: Algorithm 1 on the pair :math:`x = u^K - v^K` with :math:`u, v \ge 0`.

With g the gradient of the loss in x and :math:`\alpha_j = \alpha f_j` the decay, one step is

.. math:: u \leftarrow u\,(1 - \eta h_u), \quad h_u = \alpha_j + u^{M-1} g, \qquad
          v \leftarrow v\,(1 - \eta h_v), \quad h_v = \alpha_j - v^{M-1} g,

and a plain gradient step for what is not penalized, the intercept among it. In :math:`s = u^K, t = v^K` this is descent on

.. math:: F(s, t) = \mathrm{loss}(s - t) + \sum_j \frac{\alpha_j}{p} (s_j^p + t_j^p), \qquad p = 1 + \frac{1 - M}{K},

because :math:`\partial F / \partial \log u = K s^p h_u`: to first order a step lowers F by
:math:`\eta \sum K (s^p h_u^2 + t^p h_v^2)`, and F is the objective once one part of each pair is gone.

**Learning rate.** x moves by :math:`-\eta K s^{2-p}` times its slope, so what is stable changes as s grows, by orders of
magnitude. With ``lr="auto"`` the full batch takes Barzilai and Borwein's rate in the logarithms of the parts (metric
:math:`K s^p`), never more than a quarter of any part at once, and shortens it until F falls below its largest value of the last
steps. Batches take half the inverse of :math:`\lambda_{\max}(D^{1/2} H D^{1/2}) + \mathrm{tr}(DH)/B` with
:math:`D = K (s^{2-p} + t^{2-p})` and H the curvature of the loss.

**Start.** One that makes a pair grow above the entry threshold of :mod:`rewa.estimators.penalty` and die below it, see
:mod:`rewa.estimators.iteration.start`.

**Zeros.** Decay alone takes a coefficient towards 0 exponentially and never there. A part with :math:`h > 0` shrinks, and for
``M > 1`` the gradient that it would need grows meanwhile. Once it is well below its start it is set to 0, and its column leaves
the computation. When the rest has converged, all columns are looked at: one whose gradient exceeds the entry threshold starts
again, and one that its own problem would rather have at zero is dropped. The end is a point that no single coefficient can
improve.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rewa.estimators.iteration.batches import run_pass, step
from rewa.estimators.iteration.full_batch import FullBatch
from rewa.estimators.iteration.loss import Loss, null_intercept
from rewa.estimators.iteration.result import BATCH_TOL, Result, finalize, fitted, settle
from rewa.estimators.iteration.state import Iteration, begin, receive

__all__ = ["Iteration", "Loss", "Result", "begin", "finalize", "fit", "step"]

Array = NDArray[np.float64]


def fit(
    X: Any,
    y: Any,
    loss: Loss,
    *,
    alpha: float,
    K: float = 4,
    M: float = 3,
    factors: Array | None = None,
    weights: Array | None = None,
    fit_intercept: bool = True,
    positive: bool = False,
    lr: float | Literal["auto"] = "auto",
    batch_size: int | None = None,
    start: float | Literal["auto"] = "auto",
    max_iter: int = 5000,
    tol: float = 1e-8,
    device: str | torch.device | None = None,
    random_state: int | np.random.RandomState | None = None,
    coef_init: Array | None = None,
    intercept_init: Any = None,
    outputs: int | None = None,
) -> Result:
    r"""Train a linear model by the paper's iteration.

    .. math:: \min_{b_0, b} \sum_i w_i\,\ell(y_i, b_0 + x_i^\top b) + \alpha \sum_j \frac{f_j}{p} |b_j|^p, \quad \sum_i w_i = 1

    Args:
        X: Rows, an array or a sparse matrix.
        y: Targets: numbers ``(n,)`` or ``(n, outputs)``, 0 and 1, or labels from 0.
        loss: See :func:`begin`, as for every argument that is not here.
        alpha: Weight of the penalty.
        K: Order of the reparameterization.
        M: Adaptivity exponent.
        factors: Factors of alpha.
        weights: Sample weights; only their ratios count.
        fit_intercept: Whether there is an intercept.
        positive: Whether coefficients must not be negative.
        lr: Learning rate.
        batch_size: Rows in a batch, ``None`` for all. Over batches the rate falls as a cosine to zero at ``max_iter``.
        start: Start of both parts.
        max_iter: Most steps of the full batch; passes over batches.
        tol: Largest residual, see :class:`Result`.
        device: Where torch computes.
        random_state: Seeds the order of the rows.
        coef_init: Coefficients to start from.
        intercept_init: Intercept to start from.
        outputs: Number of classes, where y may lack some.

    Raises:
        ValueError: If a setting is out of its range, or if a learning rate that was given diverges.

    Example:
        >>> X = np.random.RandomState(0).randn(100, 20)
        >>> result = fit(X, X[:, 0] - 2 * X[:, 1], "squared", alpha=0.05)
        >>> np.flatnonzero(result.coef), result.converged
        (array([0, 1]), True)
    """
    state = begin(
        X.shape[1], loss, alpha=alpha, K=K, M=M, factors=factors, fit_intercept=fit_intercept, positive=positive, lr=lr,
        batch_size=batch_size, start=start, device=device, random_state=random_state, outputs=outputs, coef_init=coef_init,
        intercept_init=intercept_init,
    )  # fmt: skip
    with torch.no_grad():
        design, target, w = receive(state, X, y, weights)
        share = w / w.sum()
        if state.scale == 0:
            parts = state.current()
            for each in (parts.u, parts.v, parts.plain):
                each.zero_()
            if fit_intercept:
                parts.intercept = null_intercept(loss, target, share)
            return fitted(state, 0, True, 0.0)
        if batch_size is None:
            return fitted(state, *FullBatch(state, design, target, share).run(max_iter, tol))
        for index in range(max_iter):
            run_pass(state, design, target, w, schedule=(index, max_iter))
        residual = settle(state, design, target, share)
        return fitted(state, max_iter, residual <= max(tol, BATCH_TOL), residual)
