"""The command line: argument parsing only."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from rewa.explain import SCHEDULES, Run, explain, to_text

__all__ = ["main"]

EXAMPLE = """example:
  rewa explain --K 9 --M 2 --weight-decay 1e-4 --lr 0.256 --momentum 0.875 --epochs 100 --steps-per-epoch 196
"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="rewa", description="Sparse models by ReWA.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "explain",
        help="what a setting does to the weights, before a day of training",
        description="What a setting does to the weights, in words and numbers, and the traps it walks into.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    numbers = {
        "K": "order of the reparameterization, from 1",
        "M": "adaptivity exponent, from 0",
        "eps": "stabilizer, from 0",
        "weight-decay": "decay of y",
        "lr": "learning rate of y, at its peak",
        "momentum": "momentum",
    }
    for name, meaning in numbers.items():
        default = getattr(Run(), name.replace("-", "_"))
        command.add_argument(f"--{name}", type=float, default=default, help=f"{meaning} (default {default:g})", metavar="X")
    for name in ("epochs", "steps-per-epoch"):
        default = getattr(Run(), name.replace("-", "_"))
        command.add_argument(f"--{name}", type=int, default=default, help=f"(default {default})", metavar="N")
    command.add_argument("--schedule", choices=SCHEDULES, default=Run.schedule, help=f"(default {Run.schedule})")
    command.add_argument("--optimizer", choices=("sgd", "adamw"), default=Run.optimizer, help=f"(default {Run.optimizer})")
    command.add_argument("--decoupled", action="store_true", help="decay bypasses the momentum")
    command.add_argument("--json", action="store_true", help="print JSON with the same content")
    options = parser.parse_args(arguments)
    run = Run(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Run)})
    try:
        result = explain(run)
    except ValueError as error:
        sys.stderr.write(f"rewa explain: {error}\n")
        return 2
    sys.stdout.write((json.dumps(result, indent=2) if options.json else to_text(result)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
