"""rewa: sparse models by reparameterization, weight decay and adaptive learning rates (ReWA), for PyTorch."""

from rewa import lockstep, presets, reparam, sparsity, theory
from rewa.export import export_onnx
from rewa.forms import matched_groups, remove_reparametrization, reparametrize
from rewa.inference import accelerate
from rewa.optim.adamw import ReWAAdamW
from rewa.optim.annealing import Annealing
from rewa.optim.attach import attach, detach
from rewa.optim.groups import param_groups
from rewa.optim.sgd import ReWASGD
from rewa.packed import PackedFileError, load_packed, save_packed
from rewa.surgery import shrink
from rewa.zeros import finalize, freeze_zeros

__version__ = "0.1.0"

__all__ = [
    "Annealing",
    "PackedFileError",
    "ReWAAdamW",
    "ReWASGD",
    "accelerate",
    "attach",
    "detach",
    "export_onnx",
    "finalize",
    "freeze_zeros",
    "load_packed",
    "lockstep",
    "matched_groups",
    "param_groups",
    "presets",
    "remove_reparametrization",
    "reparam",
    "reparametrize",
    "save_packed",
    "shrink",
    "sparsity",
    "theory",
]
