"""Packed weights in a folder of Hugging Face's transformers, and a target of sparsity for its Trainer.

The packed weights are in ``model.rewa``, a name that transformers does not take for its own: its ``from_pretrained`` says that
the folder holds no weights, where from a packed ``model.safetensors`` it would return random ones.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rewa.deploy.blueprint import Blueprint
from rewa.deploy.filenames import TAKEN
from rewa.deploy.masks import apply_masks
from rewa.deploy.packed import PackedFile, load_packed, save_packed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rewa.integrations.trainer import SparsityCallback

__all__ = ["FILE", "SparsityCallback", "from_pretrained", "save_pretrained"]

FILE = "model.rewa"


if not TYPE_CHECKING:  # a type checker that saw it would accept any name

    def __getattr__(name: str) -> Any:
        """The callback, whose base class is of transformers, imported when it is first used."""
        if name != "SparsityCallback":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from rewa.integrations.trainer import SparsityCallback

        return SparsityCallback


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"this needs {error.name}: pip install 'rewa[integrations]'") from error
    return transformers


def save_pretrained(
    model: PreTrainedModel,
    folder: str | Path,
    *,
    values: str = "exact",
    report: Mapping[str, Any] | None = None,
) -> PackedFile:
    """Write a model of transformers with packed weights: its configuration and ``model.rewa``.

    Args:
        model: The model, perhaps from :func:`rewa.shrink`. Its tokenizer has a ``save_pretrained`` of its own, which may write
            to the same folder.
        folder: Made if it is not there. It must not hold weights that transformers would load instead.
        values: As for :func:`rewa.save_packed`.
        report: As for :func:`rewa.save_packed`.

    Returns:
        What the packed file holds.

    Raises:
        TypeError: If it is no model of transformers, or has adapters.
        FileExistsError: If the folder holds other weights.
        ValueError: If the configuration describes another model.
    """
    folder = Path(folder)
    if not isinstance(model, _transformers().PreTrainedModel) or getattr(model, "_hf_peft_config_loaded", False):
        raise TypeError(
            f"{type(model).__name__} is no plain model of transformers: merge adapters first (merge_and_unload), "
            "or save any other model with rewa.save_packed"
        )
    if others := sorted(path.name for path in folder.glob("*") if TAKEN.fullmatch(path.name)):
        raise FileExistsError(f"{folder} holds {others[0]}, which transformers would load instead: choose another folder")
    _check_shapes(model)
    folder.mkdir(parents=True, exist_ok=True)
    packed = save_packed(model, folder / FILE, values=values, report=report)
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    # Before 4.56 transformers called it torch_dtype.
    setattr(config, "dtype" if hasattr(config, "dtype") else "torch_dtype", str(model.dtype).removeprefix("torch."))
    config.save_pretrained(folder)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.save_pretrained(folder)
    return packed


def _check_shapes(model: PreTrainedModel) -> None:
    """The configuration is all that loading knows of the model, so it must build tensors of these names and shapes."""
    with torch.device("meta"):
        empty = type(model)._from_config(copy.deepcopy(model.config))  # type: ignore[no-untyped-call]
    own = apply_masks(model.state_dict(), model)[0]
    built = Blueprint.of(model, own).missing(empty).apply(empty).state_dict()  # loading will cut it in the same way
    for name in [*own, *built]:
        here, there = (tuple(state[name].shape) if name in state else "none" for state in (own, built))
        if here != there:
            raise ValueError(
                f"{name!r} has shape {here} in the model and {there} in one built from its configuration, so that it could not "
                "be loaded: save such a model whole with torch.save(model, path)"
            )


def from_pretrained(model_class: Any, folder: str | Path, *, max_bytes: int | None = None) -> PreTrainedModel:
    """Load what :func:`save_pretrained` wrote, in the dtype it was saved in and in evaluation mode.

    Args:
        model_class: A model class of transformers, or an auto class such as ``AutoModelForCausalLM``.
        folder: The folder on this machine.
        max_bytes: As for :func:`rewa.load_packed`.

    Returns:
        The model, with tied weights tied.

    Raises:
        FileNotFoundError: If the folder has no packed weights.
        PackedFileError: If these are damaged, or those of another model; no weight is ever drawn at random.

    Example:
        >>> import tempfile
        >>> from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
        >>> size = dict(n_layer=1, n_head=2, n_embd=8, vocab_size=20, bos_token_id=0, eos_token_id=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     packed = save_pretrained(GPT2LMHeadModel(GPT2Config(**size)), folder)
        ...     print(packed.path.name, type(from_pretrained(AutoModelForCausalLM, folder)).__name__)
        model.rewa GPT2LMHeadModel
    """
    transformers = _transformers()
    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise FileNotFoundError(
            f"there is no {FILE} in {str(folder)!r}: rewa.integrations.huggingface.save_pretrained makes it"
        )
    build = getattr(model_class, "from_config", None) or getattr(model_class, "_from_config", None)
    if build is None:
        raise TypeError(f"{model_class!r} is no model class of transformers: give one such as AutoModelForCausalLM")
    model = build(transformers.AutoConfig.from_pretrained(folder))
    load_packed(folder / FILE, model, max_bytes=max_bytes, assign=True)
    model.tie_weights()
    if model.can_generate() and (folder / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    model.eval()
    return model  # type: ignore[no-any-return]
