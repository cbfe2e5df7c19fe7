"""The command line: argument parsing only."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch

from rewa.explain import OPTIMIZERS, Run, explain, to_text
from rewa.files import replacing
from rewa.packed import VALUES, PackedFileError, load_packed, read_packed, read_tensors, save_packed
from rewa.presets import PRESETS
from rewa.schedules import SCHEDULES
from rewa.sparsity import count

__all__ = ["main"]

EXAMPLE = """examples:
  rewa explain --K 9 --M 2 --weight-decay 1e-4 --lr 0.256 --momentum 0.875 --epochs 100 --steps-per-epoch 196
  rewa explain --preset cifar10 --epochs 12 --plot cifar10.png
  rewa explain --figure geometry
"""
NAMED_FIGURES = ("geometry", "clipping", "regularizer")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="rewa", description="Sparse models by ReWA.")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_explain(commands)
    _add_files(commands)
    options = parser.parse_args(arguments)
    run = {"explain": _explain, "inspect": _inspect, "pack": _pack, "unpack": _unpack}[options.command]
    try:
        sys.stdout.write(run(options) + "\n")
    except (ValueError, OSError, TypeError, ModuleNotFoundError, RuntimeError, KeyError) as error:
        sys.stderr.write(f"rewa {options.command}: {error}\n")
        return 2
    return 0


def _add_explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "explain",
        help="what a setting does to the weights, before a day of training",
        description="What a setting does to the weights, in words and numbers, and the traps it walks into.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--preset", choices=PRESETS, help="start from a setting of the paper; other options change it")
    numbers = {
        "K": "order of the reparameterization, from 1",
        "M": "adaptivity exponent, from 0",
        "eps": "stabilizer, from 0",
        "weight-decay": "decay of y",
        "lr": "learning rate of y, at its peak",
        "momentum": "momentum",
    }
    counts = {"epochs": "epochs", "steps-per-epoch": "steps in each", "warmup-epochs": "epochs until the peak rate"}
    for group, kind, metavar in ((numbers, float, "X"), (counts, int, "N")):
        for name, meaning in group.items():
            default = getattr(Run(), name.replace("-", "_"))
            command.add_argument(f"--{name}", type=kind, help=f"{meaning} (default {default:g})", metavar=metavar)
    command.add_argument("--schedule", choices=SCHEDULES, help=f"(default {Run.schedule})")
    command.add_argument("--optimizer", choices=OPTIMIZERS, help=f"(default {Run.optimizer})")
    command.add_argument("--decoupled", action="store_true", default=None, help="decay bypasses the momentum")
    command.add_argument("--json", action="store_true", help="print JSON with the same content")
    command.add_argument("--plot", type=Path, metavar="FILE", help="draw the setting beside l1, l_1/2, SCAD and MCP")
    command.add_argument(
        "--figure", choices=NAMED_FIGURES, help="only draw a figure of the paper, to FIGURE.png or where --plot says"
    )


def _explain(options: argparse.Namespace) -> str:
    if options.figure:
        if options.json:
            raise ValueError("--figure only draws; leave --json out")
        from rewa import figures

        path: Path = options.plot or Path(f"{options.figure}.png")
        figures.save(figures.FIGURES[options.figure](), path)
        return f"wrote {path}"
    base = Run.of(PRESETS[options.preset]) if options.preset else Run()
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Run)}
    run = dataclasses.replace(base, **{name: value for name, value in given.items() if value is not None})
    result = explain(run)
    if options.plot:
        from rewa import figures

        figures.save(figures.draw_run(run), options.plot)
    return json.dumps(result, indent=2, allow_nan=False) if options.json else to_text(result)


def _add_files(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    def add(name: str, words: str, example: str, *files: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=words,
            description=f"{words[0].upper()}{words[1:]}.",
            epilog=f"example:\n  {example}\n",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for file in files:
            command.add_argument(file, type=Path)
        return command

    command = add(
        "inspect",
        "what a packed file, another safetensors file or a torch checkpoint holds, tensor by tensor; no code in it is run",
        "rewa inspect model.safetensors",
        "file",
    )
    command.add_argument("--threshold", type=float, default=0.0, metavar="X", help="largest modulus that counts as zero (0)")
    command.add_argument("--json", action="store_true", help="print JSON with the same content")
    command = add(
        "pack",
        "write the tensors of a safetensors file or a torch checkpoint in their smallest form, without loss",
        "rewa pack model.pt model.safetensors",
        "source",
        "target",
    )
    command.add_argument("--key", help="take only tensors whose name starts with this and a dot, such as model")
    command.add_argument("--values", choices=VALUES, default="exact", help="round weights to fewer bits (default exact)")
    add(
        "unpack",
        "write the tensors of a packed file as plain safetensors, or as a torch checkpoint if the name ends in .pt or .pth",
        "rewa unpack model.safetensors model.pt",
        "source",
        "target",
    )


def _inspect(options: argparse.Namespace) -> str:
    tensors = read_tensors(options.file)
    try:
        forms = {entry.name: entry.form for entry in read_packed(options.file).entries}
    except PackedFileError:
        forms = {}
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "numel": tensor.numel(),
            "nonzero": count([tensor if tensor.is_complex() else tensor.to(torch.float64)], options.threshold).nonzero,
            "form": forms.get(name, "dense"),
        }
        for name, tensor in tensors.items()
    ]
    size, dense = options.file.stat().st_size, sum(tensor.nbytes for tensor in tensors.values())
    if options.json:
        return json.dumps({"file_bytes": size, "dense_bytes": dense, "tensors": rows}, indent=2)
    width = max([len(row["name"]) for row in rows] + [4])
    lines = [f"{'name':<{width}}  {'shape':<18} {'dtype':<10} {'elements':>12} {'nonzero':>12} {'zero':>7}  form"]
    for row in rows:
        shape, share = "x".join(map(str, row["shape"])) or "scalar", 1 - row["nonzero"] / max(row["numel"], 1)
        numbers = f"{row['numel']:>12,} {row['nonzero']:>12,} {share:>7.2%}"
        lines.append(f"{row['name']:<{width}}  {shape:<18} {row['dtype']:<10} {numbers}  {row['form']}")
    return "\n".join([*lines, f"{size:,} bytes; all tensors dense: {dense:,} bytes, {dense / max(size, 1):.3g} times as many"])


def _pack(options: argparse.Namespace) -> str:
    tensors = read_tensors(options.source)
    if options.key:
        prefix = f"{options.key}."
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    if not tensors:
        raise ValueError(f"{options.source} holds no tensors" + (f" under {options.key!r}" if options.key else ""))
    packed = save_packed(tensors, options.target, values=options.values)
    before = options.source.stat().st_size
    return f"wrote {options.target}: {packed.size:,} bytes, {before / packed.size:.3g} times smaller than {options.source}"


def _unpack(options: argparse.Namespace) -> str:
    tensors: dict[str, torch.Tensor] = load_packed(options.source)  # type: ignore[assignment]
    with replacing(options.target) as scratch:
        if options.target.suffix in (".pt", ".pth"):
            torch.save(tensors, scratch)
        else:
            from safetensors.torch import save_file

            # Plain safetensors cannot share memory between names.
            save_file({name: tensor.clone() for name, tensor in tensors.items()}, scratch)
    return f"wrote {options.target}: {options.target.stat().st_size:,} bytes"


if __name__ == "__main__":
    sys.exit(main())
