"""rewa: sparse models by reparameterization, weight decay and adaptive learning rates (ReWA), for PyTorch."""

from rewa import presets, reparam, sparsity, theory
from rewa.forms import remove_reparametrization, reparametrize
from rewa.optim.adamw import ReWAAdamW
from rewa.optim.attach import attach, detach
from rewa.optim.groups import param_groups
from rewa.optim.sgd import ReWASGD

__version__ = "0.1.0"

__all__ = [
    "ReWAAdamW",
    "ReWASGD",
    "attach",
    "detach",
    "param_groups",
    "presets",
    "remove_reparametrization",
    "reparam",
    "reparametrize",
    "sparsity",
    "theory",
]
