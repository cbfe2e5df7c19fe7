"""Names of files that other programs take for their own formats; a packed file must not have one of them."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["TAKEN", "check_filename"]

# Under these names from_pretrained of transformers and diffusers takes any safetensors file for its own: names of tensors
# that it does not know are left out, and what is missing is drawn at random. It does not look at the metadata.
SHARD = r"(-\d+-of-\d+)?"
TAKEN = re.compile(rf"(model|pytorch_model|adapter_model|diffusion_pytorch_model){SHARD}(\.[^.]+)?{SHARD}\.(safetensors|bin)")
# Suffixes of other formats, whose readers would fail on a packed file.
FOREIGN = {".bin", ".ckpt", ".gguf", ".h5", ".npy", ".npz", ".onnx", ".pickle", ".pkl", ".pt", ".pt2", ".pth", ".zip"}


def check_filename(path: Path) -> None:
    """Refuse a name that another program takes for its own format.

    Args:
        path: Where a packed file is to be written.

    Raises:
        ValueError: If it is one; it says what to use instead.
    """
    if TAKEN.fullmatch(path.name):
        raise ValueError(
            f"{path.name!r} is a name that Hugging Face's from_pretrained takes for plain weights; from a packed file it would "
            "return random ones. Use another name such as 'model.rewa', and rewa.integrations.huggingface.from_pretrained"
        )
    if path.suffix.lower() in FOREIGN:
        raise ValueError(
            f"a packed file is a safetensors file, and {path.name!r} looks like another format: "
            f"call it {path.with_suffix('.rewa').name!r}"
        )
