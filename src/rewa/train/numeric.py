"""In which precision and memory layout a machine trains fastest."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Numeric", "choose"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Numeric:
    """How the forward and backward pass compute; weights and optimizers stay in float32."""

    device: torch.device
    precision: str
    channels_last: bool

    def autocast(self) -> AbstractContextManager[Any]:
        """For one forward pass: inside the block torch keeps copies of the weights, which must not change meanwhile."""
        return torch.autocast(self.device.type, DTYPES[self.precision], enabled=self.precision != "float32")

    def place(self, tensor: Tensor) -> Tensor:
        """A batch where, and in the layout in which, the model computes.

        Args:
            tensor: Inputs or targets.
        """
        tensor = tensor.to(self.device, non_blocking=True)
        return tensor.contiguous(memory_format=torch.channels_last) if self.channels_last and tensor.dim() == 4 else tensor

    def place_model(self, model: nn.Module) -> nn.Module:
        """The model in float32 on the device, its weights in the layout.

        Args:
            model: The model.
        """
        layout = torch.channels_last if self.channels_last else torch.preserve_format
        moved: nn.Module = model.to(self.device, torch.float32).to(memory_format=layout)  # type: ignore[call-overload]
        return moved


def choose(device: torch.device, precision: str = "auto", channels_last: bool | None = None) -> Numeric:
    """The fastest correct setting: bfloat16 where the hardware multiplies it, and channels last for convolutions with it.

    Args:
        device: Where the model computes.
        precision: ``"auto"``, or one of float32, bfloat16 and float16.
        channels_last: Whether images have their channels last in memory; None for the machine's choice.

    Raises:
        ValueError: For float16 on a CPU, where gradients underflow and nothing is gained.
    """
    if precision == "auto":
        precision = "bfloat16" if _multiplies_bfloat16(device) else "float16" if device.type == "cuda" else "float32"
    if precision == "float16" and device.type == "cpu":
        raise ValueError("precision=float16 is for GPUs; on a CPU use bfloat16 or float32")
    return Numeric(device, precision, precision != "float32" if channels_last is None else channels_last)


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # torch before 2.9 cannot say; it emulates bfloat16 on a CPU without the instructions, slower than float32.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
