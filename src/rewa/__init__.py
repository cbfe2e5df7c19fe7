"""rewa: sparse models by reparameterization, weight decay and adaptive learning rates (ReWA), for PyTorch."""

from rewa import presets, reparam, sparsity, theory
from rewa.forms import remove_reparametrization, reparametrize
from rewa.optim.adamw import ReWAAdamW
from rewa.optim.attach import attach, detach
from rewa.optim.groups import param_groups
from rewa.optim.sgd import ReWASGD
from rewa.packed import PackedFileError, load_packed, save_packed
from rewa.zeros import finalize, freeze_zeros

__version__ = "0.1.0"

__all__ = [
    "PackedFileError",
    "ReWAAdamW",
    "ReWASGD",
    "attach",
    "detach",
    "finalize",
    "freeze_zeros",
    "load_packed",
    "param_groups",
    "presets",
    "remove_reparametrization",
    "reparam",
    "reparametrize",
    "save_packed",
    "sparsity",
    "theory",
]
