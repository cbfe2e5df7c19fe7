"""The losses of linear predictions, and the rows that they are computed from: values, slopes and second derivatives."""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Loss = Literal["squared", "logistic", "multinomial"]

CURVATURE = {"squared": 1.0, "logistic": 0.25, "multinomial": 0.5}  # bounds of the second derivative in the prediction


def dtype_on(device: torch.device) -> torch.dtype:
    """The dtype to compute in."""
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64


def quotient(a: Tensor | float, b: Tensor) -> Tensor:
    """Elementwise a / b, and 0 where b is 0, as the curvature of a constant column is.

    Example:
        >>> quotient(1.0, torch.tensor([2.0, 0.0]))
        tensor([0.5000, 0.0000])
    """
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), 0.0)


class Design:
    """Rows on a device, with their columns centred; for sparse rows the mean is kept apart.

    Args:
        X: An array, a tensor or a sparse matrix.
        mean: Mean to subtract from the columns.
        device: Where torch computes.
    """

    def __init__(self, X: Any, mean: Tensor | None, device: torch.device) -> None:
        self.device = device
        self.sparse = scipy.sparse.issparse(X)
        if self.sparse:
            self.host, self.mean = X, mean
            self.rows, self.columns = _csr(X, device), _csr(X.T, device)
        else:
            rows = torch.as_tensor(X, dtype=dtype_on(device), device=device)
            self.rows = rows if mean is None else rows - mean

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        """Predictions without the intercept, a column for each row of x."""
        z: Tensor = self.rows @ x.T
        return z - self.mean @ x.T if self.sparse and self.mean is not None else z

    def backward(self, r: Tensor) -> Tensor:
        """The gradient in x for the slopes r of the loss in the predictions."""
        if not self.sparse:
            return r.T @ self.rows
        g: Tensor = (self.columns @ r).T
        return g if self.mean is None else g - r.sum(dim=0)[:, None] * self.mean

    def squares(self, c: Tensor) -> Tensor:
        """Sums of squared columns with the weights c, a row for each column of c."""
        if not self.sparse:
            block = max(1, 2**22 // max(len(self), 1))  # columns at a time: no second copy of all rows
            parts = [c.T @ self.rows[:, first : first + block].square() for first in range(0, self.rows.shape[1], block)]
            return torch.cat(parts, dim=1) if parts else c.new_zeros(c.shape[1], 0)
        squared = self.host.copy()
        squared.data = squared.data**2
        result: Tensor = (_csr(squared.T, self.device) @ c).T
        if self.mean is not None:
            sums = (self.columns @ c).T
            result = result - 2 * self.mean * sums + self.mean**2 * c.sum(dim=0)[:, None]
        return result.clamp_(min=0)

    def take_columns(self, index: Tensor) -> Design:
        """Some of the columns."""
        if not self.sparse:
            return Design(self.rows.index_select(1, index), None, self.device)
        mean = None if self.mean is None else self.mean[index]
        return Design(self.host[:, index.cpu().numpy()], mean, self.device)

    def take_rows(self, index: NDArray[np.intp]) -> Design:
        """Some of the rows."""
        if not self.sparse:
            return Design(self.rows[torch.as_tensor(index, device=self.device)], None, self.device)
        return Design(self.host[index], self.mean, self.device)


def _csr(X: Any, device: torch.device) -> Tensor:
    X = X.tocsr()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(X.indptr.astype(np.int64)),
            torch.from_numpy(X.indices.astype(np.int64)),
            torch.from_numpy(X.data.astype(np.float64)),
            X.shape,
            dtype=dtype_on(device),
            device=device,
            check_invariants=False,
        )


class Evaluation(NamedTuple):
    """A weighted loss at some predictions.

    Attributes:
        value: The loss.
        slopes: Its first derivatives in the predictions.
        curvature: Its second derivatives.
    """

    value: float
    slopes: Tensor
    curvature: Tensor


def evaluate(loss: Loss, z: Tensor, y: Tensor, weights: Tensor) -> Evaluation:
    """The loss at predictions z of the targets y, both with a column for each output.

    Example:
        >>> value, slopes, _ = evaluate("squared", torch.tensor([[3.0]]), torch.tensor([[1.0]]), torch.ones(1))
        >>> value, slopes
        (2.0, tensor([[2.]]))
    """
    w = weights[:, None]
    if loss == "squared":
        error = z - y
        return Evaluation(0.5 * float((w * error * error).sum()), w * error, w.expand_as(z))
    if loss == "logistic":
        chance = torch.sigmoid(z)
        value = float((w * (F.softplus(z) - y * z)).sum())
    else:
        log_chance = torch.log_softmax(z, dim=1)
        chance = log_chance.exp()
        value = -float((w * y * log_chance).sum())
    return Evaluation(value, w * (chance - y), w * chance * (1 - chance))


def encode(loss: Loss, y: Any, outputs: int | None, device: torch.device) -> Tensor:
    """Targets with a column for each output: numbers, 0 or 1, or one-hot rows.

    Args:
        loss: Name of the loss.
        y: Targets.
        outputs: Number of classes, where y may lack some.
        device: Where torch computes.

    Raises:
        ValueError: If a label is negative or beyond the number of classes.

    Example:
        >>> encode("multinomial", [0, 2], None, torch.device("cpu"))
        tensor([[1., 0., 0.],
                [0., 0., 1.]], dtype=torch.float64)
    """
    if loss == "multinomial":
        labels = np.asarray(y, dtype=np.int64)
        if labels.min() < 0 or (outputs is not None and labels.max() >= outputs):
            raise ValueError(
                f"Invalid labels: {labels.min()} to {labels.max()} (allowed: from 0, and below outputs={outputs}: give the "
                "number of classes as outputs if the first rows lack some)"
            )
        return F.one_hot(torch.as_tensor(labels, device=device), -1 if outputs is None else outputs).to(dtype_on(device))
    target = torch.as_tensor(np.asarray(y, dtype=np.float64), dtype=dtype_on(device), device=device)
    return target[:, None] if target.ndim == 1 else target


def null_intercept(loss: Loss, y: Tensor, weights: Tensor) -> Tensor:
    """The intercept of a model without coefficients."""
    mean = weights @ y / weights.sum()
    if loss == "squared":
        return mean
    safe = mean.clamp(1e-6, 1 - 1e-6)  # a batch may lack a class
    return torch.logit(safe) if loss == "logistic" else safe.log() - safe.log().mean()
