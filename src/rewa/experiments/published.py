"""All published results by name; ``rewa list`` shows them."""

from __future__ import annotations

from rewa.experiments.ablations import FASHION_MNIST_ABLATIONS
from rewa.experiments.cifar10 import CIFAR10, CIFAR10_CPU, CIFAR10_PAPER, CIFAR10_SCHEDULES, CIFAR10_TUNING
from rewa.experiments.digits import DIGITS, DIGITS_METHODS
from rewa.experiments.fashion_mnist import FASHION_MNIST
from rewa.experiments.fig1 import FIG1
from rewa.experiments.fig2 import FIG2A, FIG2B, FIG2C, FIG2D
from rewa.experiments.maps import MAPS
from rewa.experiments.overhead import OVERHEAD
from rewa.experiments.regression.study import REGRESSION, REGRESSION_SEEDS
from rewa.experiments.result import Result
from rewa.experiments.rows import README_ROWS
from rewa.experiments.sgd_l1 import SGD_L1
from rewa.experiments.shakespeare import SHAKESPEARE
from rewa.experiments.sparsifier import SPARSIFIER
from rewa.experiments.success import LOGISTIC, SUCCESS
from rewa.experiments.synthetic import SYNTHETIC_STUDY

__all__ = ["RESULTS"]

RESULTS: dict[str, Result] = {
    "synthetic": SYNTHETIC_STUDY,
    "fig1": FIG1,
    "fig2a": FIG2A,
    "fig2b": FIG2B,
    "fig2c": FIG2C,
    "fig2d": FIG2D,
    "overhead": OVERHEAD,
    "sgd-l1": SGD_L1,
    "success": SUCCESS,
    "logistic": LOGISTIC,
    "maps": MAPS,
    "regression": REGRESSION,
    "regression-seeds": REGRESSION_SEEDS,
    "cifar10-paper": CIFAR10_PAPER,
    "cifar10": CIFAR10,
    "cifar10-schedules": CIFAR10_SCHEDULES,
    "cifar10-cpu": CIFAR10_CPU,
    "cifar10-tuning": CIFAR10_TUNING,
    "fashion-mnist": FASHION_MNIST,
    "fashion-mnist-ablations": FASHION_MNIST_ABLATIONS,
    "shakespeare": SHAKESPEARE,
    "digits": DIGITS,
    "digits-methods": DIGITS_METHODS,
    "readme-rows": README_ROWS,
    "sparsifier": SPARSIFIER,
}
