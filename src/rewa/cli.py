"""The command line: argument parsing only."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from rewa.explain import OPTIMIZERS, Run, explain, to_text
from rewa.presets import PRESETS
from rewa.schedules import SCHEDULES

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
    options = parser.parse_args(arguments)
    try:
        sys.stdout.write(_explain(options) + "\n")
    except (ValueError, OSError, ModuleNotFoundError) as error:
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


if __name__ == "__main__":
    sys.exit(main())
