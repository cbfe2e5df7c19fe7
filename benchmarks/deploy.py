"""What zeros buy: bytes on disk and milliseconds at run time, for random zeros and for dead filters.

Bytes of a plain safetensors file, of the same gzipped, and packed by rewa, beside the bound: the entropy of which weights are
zero, plus the values of the others as they are. Latency of the dense model, accelerated, shrunk, shrunk and accelerated, and
of the dense model in ONNX Runtime: interleaved in one process, the second of two calls, medians, as multiples of the dense
model's speed (larger is faster).

    python benchmarks/deploy.py
    python benchmarks/deploy.py --rounds 5 --models mlp --sparsities 0.98 --json
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import rewa
from rewa.record import provenance
from rewa.sparsity import count, prunable
from rewa.train.models import BasicBlock, mlp, resnet18


class Block(nn.Module):
    """The transformer block of GPT-2 small: width 768, 12 heads; here with 64 tokens."""

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and feed-forward, each added to its input."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (partial(mlp, 784, 10, hidden=(1024, 1024)), (784,)),
    "transformer": (Block, (64, 768)),
    "resnet18": (partial(resnet18, 10, stem="small"), (3, 32, 32)),
}


def random_zeros(model: nn.Module, sparsity: float) -> None:
    """Zeros anywhere, the same share in every layer."""
    with torch.no_grad():
        for weight in prunable(model).values():
            weight.masked_fill_(torch.rand_like(weight) < sparsity, 0)


def dead_filters(model: nn.Module, share: float) -> None:
    """Of the first convolution of every block this share of filters is zero; everything else is dense."""
    with torch.no_grad():
        for block in model.modules():
            if isinstance(block, BasicBlock):
                block.conv1.weight[torch.rand(len(block.conv1.weight)) < share] = 0
                block.bn1.bias.uniform_(-0.5, 0.5)  # a dead filter still emits a constant


def sizes(model: nn.Module) -> dict[str, int]:
    """Bytes of the model's files, and the least that its zeros and values need."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "plain.safetensors")
        save_file(model.state_dict(), plain)
        packed = rewa.save_packed(model, Path(folder, "packed.safetensors")).size
        bound = 0.0
        for tensor in model.state_dict().values():
            left = count([tensor])
            q = left.nonzero / max(left.total, 1)
            entropy = 0.0 if q in (0, 1) else -q * math.log2(q) - (1 - q) * math.log2(1 - q)
            bound += min(tensor.nbytes, left.nonzero * tensor.element_size() + left.total * entropy / 8)
        content = plain.read_bytes()
        return {"dense": len(content), "gzip": len(gzip.compress(content)), "packed": packed, "bound": math.ceil(bound)}


def onnx_session(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    """The model in ONNX Runtime, with as many threads as torch has."""
    with tempfile.TemporaryDirectory() as folder:
        path = rewa.export_onnx(model, Path(folder, "model.onnx"), x, dynamic_batch=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # or its threads starve torch's
        session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, feed)


def latencies(model: nn.Module, shape: tuple[int, ...], batch: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of each way to run the model, in turns; all must compute the same."""
    x = torch.randn(batch, *shape)
    accelerated, small = copy.deepcopy(model), rewa.shrink(model, x, report=None)
    both = copy.deepcopy(small)
    for swapped in (accelerated, both):
        rewa.accelerate(swapped, x, rounds=rounds, verbose=False)
    runs: dict[str, Callable[[], Any]] = {
        "dense": lambda: model(x),
        "accelerated": lambda: accelerated(x),
        "shrunk": lambda: small(x),
        "shrunk and accelerated": lambda: both(x),
        "ONNX Runtime": onnx_session(model, x),
    }
    with torch.inference_mode():
        expected = model(x)
        for name in ("accelerated", "shrunk", "shrunk and accelerated"):
            difference = (runs[name]() - expected).abs().max() / expected.abs().max()
            assert difference < 1e-4, f"{name} computes something else: {difference}"
        times: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(rounds + 3):
            for name, run in runs.items():
                run()  # as in a loop over inputs: with its own weights in the cache, not its rival's
                start = time.perf_counter()
                run()
                if turn >= 3:
                    times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def measure(name: str, kind: str, sparsity: float, batches: list[int], rounds: int) -> dict[str, Any]:
    """One row of the table."""
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make().eval()
    dead_filters(model, sparsity) if kind == "dead filters" else random_zeros(model, sparsity)
    row: dict[str, Any] = {"model": name, "zeros": kind, "share": sparsity, "bytes": sizes(model)}
    row["sparsity"] = count(prunable(model).values()).sparsity
    row["ms"] = {str(batch): latencies(model, shape, batch, rounds) for batch in batches}
    return row


def to_text(row: dict[str, Any]) -> str:
    """A row for the terminal: bytes, then for each batch size how many times faster than dense."""
    size = row["bytes"]
    lines = [
        f"{row['model']:<12} {row['sparsity']:>6.1%} zero ({row['zeros']}): {size['dense']:>11,} bytes dense, {size['gzip']:,} "
        f"gzipped, {size['packed']:>10,} packed = {size['packed'] / size['bound']:.3f} x the bound"
    ]
    for batch, times in row["ms"].items():
        ratios = ", ".join(f"{name} {times['dense'] / ms:.2f}x" for name, ms in times.items() if name != "dense")
        lines.append(f"{'':<12} batch {batch:>3}: dense {times['dense']:.3f} ms; {ratios}")
    return "\n".join(lines)


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """The table of docs/deploy.md."""
    names = {
        "mlp": "MLP 784-1024-1024-10",
        "transformer": "GPT-2 small's block, 64 tokens",
        "resnet18": "ResNet-18, 32x32 images",
    }
    ways = ("accelerated", "shrunk", "shrunk and accelerated", "ONNX Runtime")
    lines = [f"| model, zeros | file, MB: dense / gzip / packed | {' | '.join(ways)} |", "|---" * (2 + len(ways)) + "|"]
    for row in rows:
        zeros = f"{row['share']:.0%}" if row["zeros"] == "random" else f"{row['share']:.0%} of inner filters dead"
        sizes = " / ".join(f"{row['bytes'][name] / 1e6:.2f}" for name in ("dense", "gzip", "packed"))
        cells = [" / ".join(f"{times['dense'] / times[way]:.1f}x" for times in row["ms"].values()) for way in ways]
        lines.append(f"| {names[row['model']]}, {zeros} | {sizes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="timings of each, of which the median counts (default 20)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sparsities", nargs="+", type=float, default=[0.9, 0.95, 0.98, 0.99], metavar="X")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32], metavar="N")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    wanted = [(name, "random", sparsity) for name in options.models for sparsity in options.sparsities]
    if "resnet18" in options.models:
        wanted.append(("resnet18", "dead filters", 0.7))
    rows = []
    for number, (name, kind, sparsity) in enumerate(wanted, start=1):
        rows.append(measure(name, kind, sparsity, options.batches, options.rounds))
        print(f"[{number}/{len(wanted)}] {to_text(rows[-1])}", file=sys.stderr)
    if options.markdown:
        print(to_markdown(rows))
    if options.json:
        print(json.dumps({**provenance(), "rounds": options.rounds, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
