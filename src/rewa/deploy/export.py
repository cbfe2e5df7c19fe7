"""To ONNX, checked in ONNX Runtime. Needs ``pip install 'rewa[onnx]'``."""

from __future__ import annotations

import io
import logging
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rewa.example import Example, difference, named_tensors, tensors
from rewa.files import replacing
from rewa.modes import keeping_modes

__all__ = ["export_onnx"]

LARGE = 1_500_000_000  # bytes of weights; an ONNX file itself cannot hold more than 2 GB
CLOSE = 1e-4  # the largest difference of outputs, as a share of the largest output

_log = logging.getLogger(__name__)


def export_onnx(
    model: nn.Module, path: str | Path, example_input: Any, *, dynamic_batch: bool = True, check: bool = True
) -> Path:
    """Write a model as ONNX and make sure that ONNX Runtime computes the same with it.

    ONNX Runtime's CPU kernels are dense: zeros are stored in full and multiplied like every other number, so a sparse model is
    neither smaller nor faster there. A model that :func:`rewa.shrink` made smaller is both.

    The file's inputs are the example's tensors, under the names of the model's arguments. Other arguments (``None``, numbers,
    flags) are fixed in the file. Its outputs are the tensors that the model returns, named by their place in a dictionary or
    tuple; a single one is called ``output``.

    Args:
        model: The model; exported in eval mode, dense, and left as it is.
        path: The file, usually ``.onnx``; whole or absent. Weights beyond 1.5 GB go to ``<path>.data`` beside it, which is
            logged as a warning: both files belong together.
        example_input: What to call the model with: a tensor; a tuple of positional arguments; a dictionary (or
            ``BatchEncoding``) of keywords; or ``(tuple, dictionary)``.
        dynamic_batch: Let the first dimension of every input vary.
        check: Run the file in ONNX Runtime and compare the outputs, on the example and on another batch.

    Returns:
        The path.

    Raises:
        RuntimeError: If the model cannot be exported, or ONNX Runtime cannot run it, or its outputs differ by more than 1e-4 of
            the largest.
        ValueError: If no tensor goes in or comes out, or if an output is NaN, which nothing can be compared with.
    """
    try:
        import onnxruntime  # noqa: F401 - for the check
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"exporting needs {error.name}: pip install 'rewa[onnx]'") from error

    path = Path(path)
    # Each argument gets a tensor of its own: the exporter would make one input of two arguments that share theirs.
    example = Example.of(example_input).map(lambda tensor: tensor.detach().clone())
    target = path.resolve()  # the weights of a large model must lie beside the file itself, not beside a link to it
    with replacing(target) as scratch, tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        with keeping_modes(model), torch.no_grad():
            model.eval()
            inputs = _inputs(model, example)
            outputs = _outputs(model, example, inputs)
            if check:
                _refuse_nan(outputs)
            with _quiet():
                program = _program(model, example, inputs, list(outputs), dynamic_batch)
                written = Path(folder, target.name)
                program.save(written, external_data=_is_large(program))
                if check:
                    _compare(model, example, inputs, _session(written, model), dynamic_batch)
        _put_weights_beside(target, Path(folder, f"{target.name}.data"))
        written.replace(scratch)
    return path


def _put_weights_beside(target: Path, side: Path) -> None:
    """Move the weights of a large model to where its file will look for them."""
    if not side.exists():
        return
    target.unlink(missing_ok=True)  # an older file must not be read with the new weights
    with replacing(target.with_name(side.name)) as scratch:
        side.replace(scratch)
    _log.warning("the weights of %s are in %s beside it: keep the two together", target, side.name)


class _Flat(nn.Module):
    """The model with tensors only: the example's in their order as arguments, those of its output as a tuple."""

    def __init__(self, model: nn.Module, example: Example) -> None:
        super().__init__()
        self.model, self.example = model, example

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        left = iter(given)
        example = self.example.map(lambda _: next(left))
        return tuple(tensors(self.model(*example.args, **example.kwargs)))


def _inputs(model: nn.Module, example: Example) -> list[str]:
    """A name for each tensor of the example, in the order in which ``Example.map`` comes to them."""
    names = {id(tensor): name for name, tensor in named_tensors(example.bound(model)).items()}
    found: list[str] = []

    def note(tensor: Tensor) -> Tensor:
        name = names.get(id(tensor), "input")
        while name in found:  # one tensor for two arguments
            name += "_"
        found.append(name)
        return tensor

    example.map(note)
    if not found:
        raise ValueError("there is no tensor among the example's arguments, so the file would have no input")
    if len(found) < len(tensors((example.args, example.kwargs))):
        raise ValueError(
            "the example has tensors inside objects, which an ONNX file cannot take: give them in dictionaries or tuples"
        )
    return found


def _outputs(model: nn.Module, example: Example, inputs: list[str]) -> dict[str, Tensor]:
    """What the model returns, under names that no input has."""
    found = named_tensors(_call(model, example))
    if not found:
        raise ValueError(f"{type(model).__name__} returns no tensor for this example, so the file would have no output")
    return {(f"output.{name}" if name in inputs else name) if name else "output": tensor for name, tensor in found.items()}


def _call(model: nn.Module, example: Example) -> Any:
    return example.map(lambda tensor: tensor.detach().clone()).call(model)  # a model may write into its inputs


def _refuse_nan(outputs: dict[str, Tensor]) -> None:
    for name, tensor in outputs.items():
        if tensor.isnan().any():
            raise ValueError(
                f"the model's own output {name!r} is NaN for this example, so there is nothing to compare with: "
                "give another example, or check=False"
            )
        if tensor.isinf().any():
            warnings.warn(f"the output {name!r} holds infinite values; only their places are compared", stacklevel=3)


def _program(model: nn.Module, example: Example, inputs: list[str], outputs: list[str], dynamic_batch: bool) -> Any:
    """The model as torch's ONNX program, its weights under the names they have in ``state_dict``."""
    given = tensors((example.args, example.kwargs))
    varies = {0: torch.export.Dim.DYNAMIC}
    shapes = {"given": tuple(varies if tensor.dim() else None for tensor in given)} if dynamic_batch else None
    try:
        program: Any = torch.onnx.export(
            _Flat(model, example),
            tuple(given),
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=inputs,
            output_names=outputs,
            verbose=False,
        )
    except Exception as error:
        # Without the cause: torch's own text is long, coloured, and asks to report a bug in torch.
        raise RuntimeError(_explained(error, model, dynamic_batch)) from None
    for value in list(program.model.graph.initializers.values()):
        value.name = value.name.removeprefix("model.")
    return program


def _explained(error: BaseException, model: nn.Module, dynamic_batch: bool) -> str:
    """What went wrong in a few plain lines, and what may help."""
    while error.__cause__ is not None:
        error = error.__cause__
    reason = re.sub(r"\x1b\[[0-9;]*m", "", f"{type(error).__name__}: {error}").strip()
    config = getattr(model, "config", None)
    advice = [
        *(["dynamic_batch=False, which fixes the batch size"] if dynamic_batch else []),
        *(["model.config.use_cache = False"] if getattr(config, "use_cache", False) else []),
        *(['attn_implementation="eager" when the model is made'] if hasattr(config, "_attn_implementation") else []),
        "a wrapper whose forward takes and returns tensors and does not branch on their values",
    ]
    return f"{type(model).__name__} could not be exported. Try {'; '.join(advice)}. The reason given was: {reason[:1000]}"


def _is_large(program: Any) -> bool:
    """Whether the weights must go to a file of their own."""
    values = [value.const_value for value in program.model.graph.initializers.values()]
    return bool(sum(value.nbytes for value in values if value is not None) > LARGE)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns about what it lacks for other models, and prints and logs the graph of one that it fails on."""
    roots = ("torch", "onnxscript", "onnx_ir")
    # Torch gives many of its loggers a level of their own, which that of their root would not change.
    loggers = [logging.getLogger(name) for name in {*roots, *logging.root.manager.loggerDict} if name.split(".")[0] in roots]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _session(path: Path, model: nn.Module) -> Any:
    """ONNX Runtime with the file, which it may refuse: it lacks kernels for some dtypes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its errors are raised; in the log they would be there twice
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # it has a class of its own for each kind of failure
        dtypes = sorted({str(param.dtype).removeprefix("torch.") for param in model.parameters()} - {"float32"})
        advice = f"export model.float() instead of {' and '.join(dtypes)}, or use" if dtypes else "use"
        raise RuntimeError(
            f"ONNX Runtime cannot run {type(model).__name__} on a CPU: {advice} check=False for another runtime. "
            f"The reason given was: {str(error)[:1000]}"
        ) from error


def _compare(model: nn.Module, example: Example, inputs: list[str], session: Any, dynamic_batch: bool) -> None:
    """Compare the outputs, one by one, on the example and on other numbers, twice as many where the batch may vary."""
    other = example.map(lambda x: torch.cat([x, x]) if dynamic_batch and x.dim() else x)
    for turn in (example, other.shuffled(torch.Generator().manual_seed(0))):
        try:
            expected = tensors(_call(model, turn))
        except Exception:
            if turn is example:
                raise
            continue  # not an input that the model takes
        if turn is not example and not all(tensor.isfinite().all() for tensor in expected):
            continue
        where = "" if turn is example else f" for another input of shape {tuple(tensors((turn.args, turn.kwargs))[0].shape)}"
        if dynamic_batch and where:
            where += " (an example with a batch of two or more, or dynamic_batch=False, may help)"
        try:
            theirs = session.run(None, _feed(turn, inputs, session))
        except Exception as error:
            raise RuntimeError(f"ONNX Runtime computes something else{where}: it fails with {error}") from error
        pairs = zip(theirs, expected, strict=True)
        worst = max(difference(torch.from_numpy(array), tensor.cpu()) for array, tensor in pairs)
        if worst > CLOSE:
            raise RuntimeError(f"ONNX Runtime computes something else{where}: outputs differ by {worst:.3g} of the largest")


def _feed(example: Example, inputs: list[str], session: Any) -> dict[str, Any]:
    needed = {entry.name for entry in session.get_inputs()}
    given = zip(inputs, tensors((example.args, example.kwargs)), strict=True)
    return {name: tensor.detach().cpu().numpy() for name, tensor in given if name in needed}
