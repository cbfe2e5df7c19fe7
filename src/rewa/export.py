"""To ONNX, checked in ONNX Runtime. Needs ``pip install 'rewa[onnx]'``."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rewa.files import replacing

__all__ = ["export_onnx"]


def export_onnx(
    model: nn.Module, path: str | Path, example_input: Any, *, dynamic_batch: bool = True, check: bool = True
) -> Path:
    """Write a model as ONNX and make sure that ONNX Runtime computes the same with it.

    ONNX Runtime's CPU kernels are dense: zeros are stored in full and multiplied like every other number, so a sparse model is
    neither smaller nor faster there. A model that :func:`rewa.shrink` made smaller is both.

    Args:
        model: The model; exported in eval mode, dense, and left as it is.
        path: The file, usually ``.onnx``; whole or absent.
        example_input: What to call the model with; a tuple for several arguments.
        dynamic_batch: Let the first dimension of every input vary.
        check: Run the file in ONNX Runtime and compare the outputs.

    Returns:
        The path.

    Raises:
        RuntimeError: If ONNX Runtime's outputs differ by more than 1e-4 of the largest; no file is left.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"exporting needs {error.name}: pip install 'rewa[onnx]'") from error

    arguments = example_input if isinstance(example_input, tuple) else (example_input,)
    path = Path(path)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in arguments) if dynamic_batch else None
        with torch.no_grad(), _quiet(), replacing(path) as scratch:
            program: Any = torch.onnx.export(model, arguments, dynamo=True, dynamic_shapes=shapes, verbose=False)
            program.save(scratch)
            if check:
                session = onnxruntime.InferenceSession(scratch, providers=["CPUExecutionProvider"])
                _compare(model, arguments, session)
    finally:
        for module, training in modes:
            module.training = training
    return path


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells of what it lacks for models that are not these."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _compare(model: nn.Module, arguments: tuple[Any, ...], session: Any) -> None:
    """The outputs of both, one by one."""
    expected = model(*arguments)
    outputs = [expected] if isinstance(expected, Tensor) else list(expected)
    feed = {entry.name: value.numpy() for entry, value in zip(session.get_inputs(), arguments, strict=True)}
    for mine, theirs in zip(outputs, session.run(None, feed), strict=True):
        reference = mine.numpy()
        difference = float(np.abs(reference - theirs).max(initial=0.0))
        if reference.shape != theirs.shape or difference > 1e-4 * max(1e-30, float(np.abs(reference).max(initial=0.0))):
            raise RuntimeError(f"ONNX Runtime computes something else: outputs differ by {difference:.3g}")
