"""The command line: argument parsing only."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import math
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import rewa
from rewa.files import replacing
from rewa.names import nearest, plain

# Nothing heavy here: each command imports what it needs, since torch alone takes longer than most of them.

__all__ = ["main"]

EXAMPLE = """examples:
  rewa explain --K 9 --M 2 --weight-decay 1e-4 --lr 0.256 --momentum 0.875 --epochs 100 --steps-per-epoch 196
  rewa explain --preset cifar10 --epochs 12 --plot cifar10.png
  rewa explain --optimizer adamw --lr 1e-3 --weight-decay 0.1 --sparsity 0.95
  rewa explain --figure geometry
"""
NAMED_FIGURES = ("geometry", "clipping", "regularizer")
# What the system says when a disk is full.
FULL = [os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
EXPECTED = (ValueError, OSError, TypeError, ModuleNotFoundError, RuntimeError)  # their words say enough
EXTRAS = {"safetensors": "train", "sklearn": "train", "rich": "train", "PIL": "train", "tensorboard": "train"}
EXTRAS |= {"matplotlib": "plot", "ray": "ray", "onnx": "onnx"}


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 if a run failed, 2 for what cannot be done, 128 + n after signal n."""
    options = _parser().parse_args(arguments)
    run = {
        "train": _train,
        "sweep": _sweep,
        "report": _report,
        "reproduce": _reproduce,
        "list": _list,
        "explain": _explain,
        "inspect": _inspect,
        "pack": _pack,
        "unpack": _unpack,
    }[options.command]
    try:
        with _one_line_warnings(options.command):
            text = run(options)
        sys.stdout.write(text + "\n" if text else "")
        sys.stdout.flush()  # here, where a reader who is gone can be caught
    except _Exit as end:
        sys.stderr.write(f"rewa {options.command}: {end}\n")
        return end.code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read us has enough
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        sys.stderr.write(f"rewa {options.command}: stopped by SIGINT\n")
        return 128 + signal.SIGINT
    except Exception as error:
        if options.debug:
            raise
        sys.stderr.write(f"rewa {options.command}: {_words(error)}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="rewa", description="Sparse models by ReWA.")
    parser.add_argument("--version", action="version", version=f"rewa {rewa.__version__}")
    commands: _Commands = parser.add_subparsers(dest="command", required=True)
    _add_training(commands)
    _add_results(commands)
    _add_explain(commands)
    _add_files(commands)
    for command in commands.choices.values():
        command.add_argument("--debug", action="store_true", help="show where in the code an error comes from")
    return parser


class _Parser(argparse.ArgumentParser):
    """One line for a mistake, and options whose choices are imported when the command is used."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.later: list[Callable[[_Parser], None]] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As always, with every option in place."""
        while self.later:
            self.later.pop(0)(self)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """One line, as for every other mistake."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


class _Exit(Exception):
    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def _words(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        return f"{error}; install it with pip install 'rewa[{EXTRAS[error.name]}]'"
    words = plain(str(error))
    if any(sign in words for sign in FULL):
        return f"{words}; is the disk full? What was saved before is whole: make room, and the same command resumes"
    return words if isinstance(error, EXPECTED) else f"{type(error).__name__}: {words}"


@contextmanager
def _one_line_warnings(command: str) -> Iterator[None]:
    """Warnings without the line of code they come from."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        sys.stderr.write(f"rewa {command}: {message}\n")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


# ------------------------------------------------------------------------------------------------- training


def _command(commands: _Commands, name: str, words: str, *examples: str) -> _Parser:
    return commands.add_parser(
        name,
        help=words,
        description=f"{words[0].upper()}{words[1:]}.",
        epilog="\n  ".join(["example:" if len(examples) == 1 else "examples:", *examples]) + "\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_training(commands: _Commands) -> None:
    train = _command(
        commands,
        "train",
        "train one network; the same command again resumes where it stopped",
        "rewa train digits --sparsity 0.95",
        "rewa train digits --method rewa",
        "rewa train fashion-mnist --method l1 --strength 0.1 --set epochs=5",
        "torchrun --nproc-per-node 2 -m rewa train digits --method rewa",
    )
    train.add_argument("recipe", nargs="?", default="digits", help="what is trained on what: see rewa list (default digits)")
    train.add_argument("--method", help="how: see rewa list (default rewa, or sparsifier with --sparsity)")
    target = train.add_mutually_exclusive_group()
    target.add_argument(
        "--strength", type=_number, metavar="X", help="how hard towards zero (default: the method's own choice)"
    )
    target.add_argument("--sparsity", type=_share, metavar="X", help="exact share of zeros, such as 0.95, by the sparsifier")
    target.add_argument("--compression", type=_compression, metavar="X", help="the same as weights per nonzero one, such as 20")
    train.add_argument("--seed", type=int, default=0, metavar="N", help="(default 0)")
    train.add_argument("--name", default="", help="folder of the run inside --out (default: made from the rest)")
    sweep = _command(
        commands,
        "sweep",
        "train many: methods, each with its own strengths, and seeds; finished runs are not repeated",
        "rewa sweep digits --methods dense,l1,rewa --strengths auto --seeds 3",
        "rewa sweep cifar10-cpu --methods l1,rewa --seeds 1 --ray auto",
    )
    sweep.add_argument("recipe", help="what is trained on what: see rewa list")
    sweep.add_argument("--methods", required=True, metavar="A,B", help="names of methods, or all")
    sweep.add_argument(
        "--strengths", type=_numbers, default="auto", metavar="X,Y", help="for every method (default auto: each has its own)"
    )
    sweep.add_argument(
        "--rates", type=_numbers, default=(), metavar="X,Y", help="learning rates for every method (default: the recipe's one)"
    )
    sweep.add_argument("--seeds", type=int, default=3, metavar="N", help="how many (default 3)")
    sweep.add_argument("--workers", type=int, metavar="N", help="runs at a time (default: as many as the cores can take)")
    sweep.add_argument("--ray", metavar="ADDRESS", help="run on a Ray cluster: auto, HOST:PORT, or local to start one here")
    for command in (train, sweep):
        command.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting; may be repeated"
        )
        command.add_argument("--out", type=Path, default=Path("runs"), metavar="FOLDER", help="of runs (default runs)")
        _add_machine(command)


def _add_results(commands: _Commands) -> None:
    report = _command(
        commands,
        "report",
        "one page, figures and tables from runs; nothing is trained",
        "rewa report runs/ -o report.html",
        "rewa report runs/ --markdown",
    )
    report.add_argument("runs", type=Path, nargs="+", help="folders of runs, or runs")
    report.add_argument("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="(default report.html)")
    report.add_argument("--markdown", action="store_true", help="print the tables as Markdown instead")
    reproduce = _command(
        commands,
        "reproduce",
        "make a published table or figure again, from training to report",
        "rewa reproduce digits",
        "rewa reproduce synthetic --quick",
        "rewa reproduce cifar10-cpu --workers 2",
    )
    reproduce.add_argument("result", metavar="NAME", help="see rewa list")
    reproduce.add_argument(
        "--quick", action="store_true", help="a small version in seconds, to try the command; its numbers mean nothing"
    )
    reproduce.add_argument("--out", type=Path, metavar="FOLDER", help="(default results/NAME; with --quick, quick/NAME)")
    reproduce.add_argument(
        "--workers", type=int, metavar="N", help="runs or threads at a time (default: as many as the cores can take)"
    )
    reproduce.add_argument("--trained", action="store_true", help="train nothing more: write what is recorded of finished runs")
    _add_machine(reproduce)
    listing = _command(commands, "list", "recipes, methods and published results, one line each", "rewa list")
    listing.add_argument("--json", action="store_true", help="print JSON with the same content")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


def _share(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 1:
        remedy = f"; {text} % is {value / 100:g}" if 1 < value < 100 else ""
        raise argparse.ArgumentTypeError(f"{text} is not a share of zeros, at least 0 and below 1{remedy}")
    return value


def _compression(text: str) -> float:
    value = _number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a compression, at least 1: 20 is for 95 % zeros")
    return value


def _numbers(text: str) -> tuple[float, ...] | None:
    return None if text == "auto" else tuple(map(_number, text.split(",")))


def _add_machine(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data", type=Path, metavar="FOLDER", help="where data is (default: the variable REWA_DATA)")
    command.add_argument("--download", action="store_true", help="fetch missing data from its canonical source")
    command.add_argument("--device", help="cpu or cuda (default: a GPU where there is one)")
    command.add_argument("--quiet", action="store_true", help="print nothing but errors")
    command.add_argument("--json", action="store_true", help="print JSON, one object a line")


def _train(options: argparse.Namespace) -> str:
    _check_device(options.device)
    from rewa.terminal import watching
    from rewa.train.job import job_and_data
    from rewa.train.run import train
    from rewa.train.run_folder import TrainingError
    from rewa.train.signals import Stopped

    method, strength = _method_and_strength(options)
    chosen, data = job_and_data(
        options.recipe,
        method,
        strength=strength,
        seed=options.seed,
        name=options.name,
        changes=options.set,
        root=options.data,
        download=options.download,
    )
    how = {"root": options.data, "device": options.device, "download": options.download, "data": data}
    first = os.environ.get("RANK", "0") == "0"
    try:
        with watching(quiet=options.quiet or not first, as_json=options.json) as watch:
            train(chosen, options.out, watch=watch, **how)
    except Stopped as stopped:
        raise _Exit(f"{stopped}; saved, and the same command resumes", 128 + stopped.signal) from None
    except TrainingError as error:
        if options.debug:
            raise
        raise _Exit(str(error), 1) from None
    return ""


def _method_and_strength(options: argparse.Namespace) -> tuple[str, float | None]:
    """What trains, and how hard: a share of zeros is for the sparsifier."""
    from rewa.methods import make

    if options.sparsity is None and options.compression is None:
        return options.method or "rewa", options.strength
    other = make(options.method or "sparsifier")
    if other.label != "sparsifier":
        flag = "--sparsity" if options.compression is None else "--compression"
        raise ValueError(
            f"{flag} is for --method sparsifier, not {other.label}: leave it out, or give --strength, the {other.strength_is}"
        )
    return other.label, options.sparsity if options.compression is None else 1 - 1 / options.compression


def _check_device(device: str | None) -> None:
    if device is None:
        return
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:  # torch's words are a list of all backends there are
        raise ValueError(f"--device {device}: there is no such device; use cpu, cuda or cuda:N") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: torch finds no GPU here; leave it out, or say --device cpu")


def _sweep(options: argparse.Namespace) -> str:
    from rewa import report
    from rewa.methods import names
    from rewa.terminal import sweeping
    from rewa.train.recipes import recipe
    from rewa.train.sweep import Sweep, run_jobs

    if options.ray and options.workers is not None:
        raise ValueError("--workers is for this machine, and on a Ray cluster the cores decide: leave out --workers or --ray")
    methods = names() if options.methods == "all" else options.methods.split(",")
    sweep = Sweep(
        recipe=recipe(options.recipe),
        methods=tuple(methods),
        strengths=options.strengths,
        rates=options.rates or (),
        seeds=options.seeds,
        changes=tuple(options.set),
    )
    if not options.ray:
        _check_device(options.device)
    jobs = sweep.jobs(options.data, options.download)
    with _ends_of_sweeps():
        run_jobs(
            jobs,
            options.out,
            show=partial(sweeping, quiet=options.quiet, as_json=options.json),
            root=options.data,
            device=options.device,
            workers=options.workers,
            ray=options.ray,
        )
    if options.quiet or options.json:
        return ""
    tables = map(report.to_plain, report.compare(report.read([options.out / job.folder_name for job in jobs])))
    return "\n\n".join([*tables, f"next: rewa report {options.out} -o {options.out / 'report.html'}"])


@contextmanager
def _ends_of_sweeps() -> Iterator[None]:
    """The exit codes of a sweep that was stopped, or some of whose runs failed."""
    from rewa.train.signals import Stopped
    from rewa.train.sweep import RunsFailed

    try:
        yield
    except Stopped as stopped:
        raise _Exit(f"{stopped}; saved, and the same command resumes", 128 + stopped.signal) from None
    except RunsFailed as failed:
        raise _Exit(str(failed), 1) from None


def _report(options: argparse.Namespace) -> str:
    from rewa import report

    if options.markdown:
        return report.to_markdown(options.runs)
    return "\n".join(f"wrote {path}" for path in report.write(options.runs, options.output))


def _reproduce(options: argparse.Namespace) -> str:
    from rewa.experiments import RESULTS
    from rewa.experiments.result import How
    from rewa.terminal import studying

    if options.result not in RESULTS:
        raise ValueError(nearest("result", options.result, RESULTS))
    result = RESULTS[options.result]
    if options.quick and not result.quick:
        raise ValueError(f"{options.result} has no quick version: leave out --quick")
    given = [f"--{name}" for name in ("data", "download", "device") if getattr(options, name)]
    if options.trained and not result.redraws:
        given.append("--trained")
    if given and not result.trains_networks:
        raise ValueError(f"{options.result} trains no network and draws its own data on the CPU: leave out {', '.join(given)}")
    _check_device(options.device)
    out = options.out or Path("quick" if options.quick else "results") / options.result
    if out.is_file():
        raise ValueError(f"--out {out} is a file: give a folder")
    with _ends_of_sweeps(), studying(quiet=options.quiet, as_json=options.json) as progress:
        how = How(
            quick=options.quick,
            workers=options.workers,
            root=options.data,
            download=options.download,
            device=options.device,
            trained=options.trained,
            progress=progress,
        )
        out.mkdir(parents=True, exist_ok=True)
        paths = result.run(out, how)
    if options.quiet:
        return ""
    return "\n".join(json.dumps({"event": "wrote", "file": str(path)}) if options.json else f"wrote {path}" for path in paths)


def _list(options: argparse.Namespace) -> str:
    from rewa.experiments import RESULTS
    from rewa.methods import make, names
    from rewa.train.recipes import RECIPES

    made = {name: make(name) for name in names()}
    content = {
        "recipes": {name: recipe.line for name, recipe in RECIPES.items()},
        "methods": {name: f"{one.what} [{one.strength_is}; {one.source}]" for name, one in made.items()},
        "results": {name: result.line for name, result in RESULTS.items()},
    }
    if options.json:
        return json.dumps(content, indent=2)
    width = max(len(name) for part in content.values() for name in part)
    return "\n".join(
        line for part, rows in content.items() for line in (part, *(f"  {name:<{width}}  {row}" for name, row in rows.items()))
    )


# ---------------------------------------------------------------------------------------- one setting, one file


def _add_explain(commands: _Commands) -> None:
    command = commands.add_parser(
        "explain",
        help="what a setting does to the weights, before a day of training",
        description="What a setting does to the weights, in words and numbers, and the traps it walks into.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.later.append(_add_setting)


def _add_setting(command: argparse.ArgumentParser) -> None:
    from rewa.explain import DTYPES, OPTIMIZERS, Training
    from rewa.presets import PRESETS
    from rewa.schedules import SCHEDULES

    command.add_argument("--preset", choices=PRESETS, help="start from a setting of the paper; other options change it")
    numbers = {
        "K": "order of the reparameterization, from 1",
        "M": "adaptivity exponent, from 0",
        "eps": "stabilizer, from 0",
        "weight-decay": "decay of y",
        "lr": "learning rate of y, at its peak",
        "momentum": "momentum",
        "start": "usual size of a weight at the start",
    }
    counts = {"epochs": "epochs", "steps-per-epoch": "steps in each", "warmup-epochs": "epochs until the peak rate"}
    for group, kind, metavar in ((numbers, float, "X"), (counts, int, "N")):
        for name, meaning in group.items():
            default = getattr(Training(), name.replace("-", "_"))
            command.add_argument(f"--{name}", type=kind, help=f"{meaning} (default {default:g})", metavar=metavar)
    command.add_argument("--schedule", choices=SCHEDULES, help=f"(default {Training.schedule})")
    command.add_argument("--optimizer", choices=OPTIMIZERS, help=f"(default {Training.optimizer})")
    command.add_argument("--dtype", choices=DTYPES, help=f"of the weights (default {Training.dtype})")
    command.add_argument("--decoupled", action="store_true", default=None, help="decay bypasses the momentum")
    command.add_argument(
        "--sparsity", type=_number, metavar="X", help="also a decay for this share of zeros, such as 0.95, as a guide"
    )
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
    from rewa.explain import Training, explain, to_text
    from rewa.presets import PRESETS

    base = Training.of(PRESETS[options.preset]) if options.preset else Training()
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(Training)}
    run = dataclasses.replace(base, **{name: value for name, value in given.items() if value is not None})
    result = explain(run, sparsity=options.sparsity)
    if options.plot:
        from rewa import figures

        figures.save(figures.draw_run(run), options.plot)
    return json.dumps(result, indent=2, allow_nan=False) if options.json else to_text(result)


def _add_files(commands: _Commands) -> None:
    def add(name: str, words: str, example: str, *files: str) -> _Parser:
        command = _command(commands, name, words, example)
        for file in files:
            command.add_argument(file, type=Path)
        return command

    command = add(
        "inspect",
        "what a packed file, another safetensors file or a torch checkpoint holds, tensor by tensor; no code in it is run",
        "rewa inspect model.rewa",
        "file",
    )
    command.add_argument(
        "--threshold",
        type=float,
        default=0.0,
        metavar="X",
        help="largest magnitude that counts as zero in a weight (default 0)",
    )
    command.add_argument("--json", action="store_true", help="print JSON with the same content")
    command = add(
        "pack",
        "write the tensors of a safetensors file or a torch checkpoint in their smallest form, without loss",
        "rewa pack model.pt model.rewa",
        "source",
        "target",
    )
    command.add_argument("--key", help="take only tensors whose name starts with this and a dot, such as model")
    command.add_argument("--keep-negative-zeros", action="store_true", help="store -0.0 like a value, not as 0.0")
    command.later.append(_add_values)
    add(
        "unpack",
        "write the tensors of a packed file as plain safetensors, or as a torch checkpoint for names in .pt, .pth or .bin",
        "rewa unpack model.rewa model.safetensors",
        "source",
        "target",
    )


def _add_values(command: argparse.ArgumentParser) -> None:
    from rewa.deploy.packed import VALUES

    command.add_argument("--values", choices=VALUES, default="exact", help="round weights to fewer bits (default exact)")


def _inspect(options: argparse.Namespace) -> str:
    from rewa.deploy.contents import inspect, read_contents, shrunk_to_text, to_text, total

    contents = read_contents(options.file)
    rows = inspect(contents, options.threshold)
    size, dense = options.file.stat().st_size, sum(row.nbytes for row in rows)
    if not options.json:
        last = f"{size:,} bytes; all tensors dense: {dense:,} bytes, {dense / max(size, 1):.3g} times as many"
        return "\n".join(
            [to_text(rows), last, *([shrunk_to_text(contents.blueprint, rows)] if contents.blueprint.changes else [])]
        )
    tensors = [
        {
            "name": row.name,
            "shape": list(row.shape),
            "dtype": row.dtype,
            "numel": row.count.total,
            "nonzero": row.count.nonzero,
            "weight": row.weight,
            "form": row.form,
        }
        for row in rows
    ]
    sums = {"weights": total([row for row in rows if row.weight]), "total": total(rows)}
    counts = {name: {"numel": each.total, "nonzero": each.nonzero} for name, each in sums.items()}
    shrunk = {"shrunk": contents.blueprint.to_dict()} if contents.blueprint.changes else {}
    return json.dumps({"file_bytes": size, "dense_bytes": dense, **counts, "tensors": tensors, **shrunk}, indent=2)


def _pack(options: argparse.Namespace) -> str:
    from rewa.deploy.contents import read_contents
    from rewa.deploy.packed import save_packed

    contents = read_contents(options.source)
    prefix = f"{options.key}." if options.key else ""
    tensors = {name.removeprefix(prefix): each for name, each in contents.tensors.items() if name.startswith(prefix)}
    if not tensors:
        raise ValueError(f"{options.source} holds no tensors" + (f" under {options.key!r}" if options.key else ""))
    packed = save_packed(
        tensors,
        options.target,
        values=options.values,
        keep_negative_zeros=options.keep_negative_zeros,
        blueprint=None if prefix else contents.blueprint,  # its names are those without the prefix
    )
    before = options.source.stat().st_size
    lines = [f"wrote {options.target}: {packed.size:,} bytes, {packed.size / before:.1%} of the size of {options.source}"]
    if packed.negative_zeros:
        lines.append(f"stored {packed.negative_zeros:,} values of -0.0 as 0.0 (--keep-negative-zeros keeps them)")
    if packed.pruned:
        lines.append(f"applied the masks of {_some(packed.pruned)} (stored without _orig and _mask)")
    if dropped := [name for name in contents.dropped if name.startswith(prefix)]:
        lines.append(f"left out what is no tensor: {_some(dropped)}")
    return "\n".join(lines)


def _some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _unpack(options: argparse.Namespace) -> str:
    import torch

    from rewa.deploy.packed import load_packed

    suffix = options.target.suffix.lower()
    if suffix not in (".pt", ".pth", ".bin", ".safetensors", ""):
        raise ValueError(
            f"unpack writes .safetensors, .pt, .pth or .bin files, not {options.target.name!r}: choose one of these"
        )
    tensors: dict[str, torch.Tensor] = load_packed(options.source)  # type: ignore[assignment]
    with replacing(options.target) as scratch:
        if suffix in (".pt", ".pth", ".bin"):
            torch.save(tensors, scratch)
        else:
            from safetensors.torch import save_file

            # Plain safetensors cannot share memory between names. Older versions of transformers want the format.
            save_file({name: tensor.clone() for name, tensor in tensors.items()}, scratch, {"format": "pt"})
    return f"wrote {options.target}: {options.target.stat().st_size:,} bytes"


if __name__ == "__main__":
    sys.exit(main())
