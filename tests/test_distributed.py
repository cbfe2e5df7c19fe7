"""Two processes that share the work train the weights that one process alone does: DDP, FSDP2, ZeRO and checkpoints.

The file is a script as well: ``Ranks`` starts it twice and has it run the functions below by name. The two processes stay
for all tests, since starting them takes longer than most tests do.
"""

from __future__ import annotations

import copy
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import rewa
from problems import IMPLEMENTATIONS

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available() or sys.platform == "win32", reason="needs gloo and POSIX"
)

TIMEOUT = 15  # seconds for one test; each takes a second, the first few more
STEPS = 5
PARTS = ("model_state_dict", "optim_state_dict")  # of a checkpoint


# Two processes, and how a test hands them work.


class Ranks:
    """Two processes in one process group; the first failure or a time-out ends both, and the next call starts new ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.starts = 0
        self.running: list[tuple[subprocess.Popen[bytes], Connection]] = []

    def __call__(self, function: Callable[..., None], *args: Any) -> None:
        """Run ``function(*args)`` on both ranks; fail with the traceback of each that raised."""
        if not self.running:
            self.start()
        pending = {connection: rank for rank, (_, connection) in enumerate(self.running)}
        for connection in pending:
            connection.send((function.__name__, args))
        failures = []
        deadline = time.monotonic() + TIMEOUT
        while pending:
            ready = wait(list(pending), max(0.0, deadline - time.monotonic()))
            if not ready:
                failures += [f"rank {rank} did not finish" for rank in pending.values()]
                break
            for connection in ready:
                rank = pending.pop(connection)
                try:
                    failure = connection.recv()
                except EOFError:
                    failure = "the process ended"
                if failure is not None:
                    failures.append(f"rank {rank}: {failure}")
                    deadline = time.monotonic() + 3  # the other rank now waits in vain, or fails for the same reason
        if failures:
            self.stop()
            pytest.fail("\n".join(failures), pytrace=False)

    def start(self) -> None:
        self.starts += 1
        # One thread each, as the two share the machine; loopback, as the host's name may resolve to anything.
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback}
        store = self.folder / f"store{self.starts}"
        for rank in range(2):
            ours, theirs = multiprocessing.Pipe()
            command = [sys.executable, __file__, str(rank), str(store), str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
            theirs.close()
            self.running.append((process, ours))

    def stop(self) -> None:
        for _, connection in self.running:
            connection.close()  # the process takes this as the end of its work
        for process, _ in self.running:
            for harder in (process.terminate, process.kill, None):
                try:
                    process.wait(5)
                    break
                except subprocess.TimeoutExpired:
                    if harder:
                        harder()
        self.running = []


def serve(rank: int, store: str, descriptor: int) -> None:
    """What each of the two processes does: run functions of this file until the pipe is closed."""
    faulthandler.register(signal.SIGTERM, chain=True)  # a rank that hangs shows where
    warnings.simplefilter("error")
    torch.set_default_dtype(torch.float64)
    limit = timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=limit)
    connection = Connection(descriptor)
    while True:
        try:
            name, args = connection.recv()
        except EOFError:
            break
        try:
            torch.manual_seed(0)
            globals()[name](*args)
        except BaseException:
            connection.send(traceback.format_exc())
        else:
            connection.send(None)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    pair = Ranks(tmp_path_factory.mktemp("ranks"))
    try:
        yield pair
    finally:
        pair.stop()


# The problem: 7, 5 and 1 rows do not split evenly, and of the last layer rank 1 holds nothing.


def make_model(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1)).to(dtype)
    with torch.no_grad():
        model[0].weight[:, 0] = 0  # a weight that has been cut, on both ranks
    return model


def sharded(model: nn.Sequential) -> nn.Sequential:
    for layer in model[::2]:
        fully_shard(layer)
    return fully_shard(model)


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Sparse weights of two settings, and plain biases."""
    settings = {"K": 3, "M": 1, "eps": 1e-2, "weight_decay": 1e-2}
    return rewa.param_groups(model, **settings, plain_weight_decay=1e-3, rules={r"0\.weight": {"K": 9, "M": 2, "eps": 0.0}})


def make_optimizer(name: str, implementation: str, model: nn.Module) -> Optimizer:
    flags = IMPLEMENTATIONS[implementation]
    if name == "sgd":
        return rewa.ReWASGD(groups(model), lr=0.05, momentum=0.9, **flags)
    if name == "stateless":
        return rewa.ReWASGD(groups(model), lr=0.05, **flags)
    return rewa.ReWAAdamW(groups(model), lr=0.01, amsgrad=name == "amsgrad", **flags)


def train(model: nn.Module, optimizer: Optimizer, rank: int | None = None, steps: int = STEPS, seed: int = 1) -> None:
    """Some steps, on the whole batch or on the half of it that belongs to ``rank``."""
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        inputs = torch.randn(8, 6, generator=generator).to(dtype)
        targets = inputs[:, :1] - inputs[:, 1:2]
        if rank is not None:
            inputs, targets = inputs.chunk(2)[rank], targets.chunk(2)[rank]
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name.removeprefix("module."): whole(param) for name, param in model.named_parameters()}


def trained_alone(name: str, implementation: str) -> dict[str, Tensor]:
    """The weights after one process saw the whole batches; they have moved, or the comparison would say nothing."""
    model = make_model()
    train(model, make_optimizer(name, implementation, model))
    for key, start in weights(make_model()).items():
        assert (weights(model)[key] - start).abs().max() > 1e-3, f"{key} did not move"
    return weights(model)


def assert_near(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-13)


def bits(tensor: Tensor) -> Tensor:
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return whole(tensor).view(kinds[tensor.element_size()]) if tensor.is_floating_point() else whole(tensor)


def assert_same_bits(got: Any, expected: Any, path: str = "") -> None:
    """Equal to the last bit, the sign of zero included, whatever is nested in the two."""
    assert type(got) is type(expected), f"{path}: {type(got)} instead of {type(expected)}"
    if isinstance(got, dict):
        assert got.keys() == expected.keys(), f"{path}: {set(got) ^ set(expected)}"
        for key in got:
            assert_same_bits(got[key], expected[key], f"{path}/{key}")
    elif isinstance(got, (list, tuple)):
        assert len(got) == len(expected), path
        for index, (a, b) in enumerate(zip(got, expected, strict=True)):
            assert_same_bits(a, b, f"{path}/{index}")
    elif isinstance(got, Tensor):
        assert got.dtype == expected.dtype, f"{path}: {got.dtype} instead of {expected.dtype}"
        assert getattr(got, "placements", None) == getattr(expected, "placements", None), path
        assert torch.equal(bits(got), bits(expected)), f"{path}: {whole(got)} instead of {whole(expected)}"
    else:
        assert got == expected, f"{path}: {got} instead of {expected}"


# What runs on each rank.


def data_parallel(name: str, implementation: str) -> None:
    model = make_model()
    train(DistributedDataParallel(model), make_optimizer(name, implementation, model), dist.get_rank())
    assert_near(weights(model), trained_alone(name, implementation))
    of_rank_0 = weights(model)
    for tensor in of_rank_0.values():
        dist.broadcast(tensor, 0)
    assert_same_bits(weights(model), of_rank_0)


def fully_sharded(name: str, implementation: str) -> None:
    model = sharded(make_model())
    assert model[4].weight.to_local().numel() == (5, 0)[dist.get_rank()]
    optimizer = make_optimizer(name, implementation, model)
    train(model, optimizer, dist.get_rank())
    assert_near(weights(model), trained_alone(name, implementation))
    for param, state in optimizer.state.items():
        for key, value in state.items():
            assert key == "step" or value.placements == param.placements, key


def fully_sharded_bfloat16(name: str, implementation: str) -> None:
    """Gradients are given here: a sum over ranks in bfloat16 would round differently from one over the whole batch."""
    alone = make_model(dtype=torch.bfloat16)
    model = sharded(copy.deepcopy(alone))
    reference, optimizer = (make_optimizer(name, implementation, m) for m in (alone, model))
    pairs = list(zip(alone.parameters(), model.parameters(), strict=True))
    for _ in range(STEPS):
        for single, param in pairs:
            single.grad = torch.randn(single.shape).to(torch.bfloat16)
            param.grad = distribute_tensor(single.grad, param.device_mesh, param.placements)
        reference.step()
        optimizer.step()
    for single, param in pairs:
        expected, state = reference.state[single], optimizer.state[param]
        assert state.keys() == expected.keys()
        assert ("y" in state) == (param.dim() == 2)
        if "y" in state:
            y = state["y"]
            assert isinstance(y, DTensor)
            assert (y.dtype, y.placements, y.device_mesh) == (torch.float32, param.placements, param.device_mesh)
            assert y.to_local().shape == param.to_local().shape
        # Where a shard ends, torch computes a root by another routine: y differs in its last bits, x by one bit at most.
        for key, value in state.items():
            torch.testing.assert_close(whole(value), expected[key], rtol=1e-5, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}")
        torch.testing.assert_close(whole(param), single.detach(), rtol=2**-7, atol=0)


def start(name: str, implementation: str, dtype: torch.dtype, seed: int = 0) -> tuple[nn.Module, Optimizer]:
    model = sharded(make_model(seed, dtype))
    return model, make_optimizer(name, implementation, model)


def assert_continue_alike(*runs: tuple[nn.Module, Optimizer]) -> None:
    """The two have the same weights and state, now and after some more steps."""
    for seed in (3, 4):
        (model, optimizer), (resumed, resumed_optimizer) = runs
        assert_same_bits(weights(resumed), weights(model))
        assert_same_bits(resumed_optimizer.state_dict(), optimizer.state_dict())
        for run in runs:
            train(*run, dist.get_rank(), seed=seed)


def resume(name: str, implementation: str, dtype: torch.dtype, folder: str) -> None:
    model, optimizer = start(name, implementation, dtype)
    train(model, optimizer, dist.get_rank())
    fresh, fresh_optimizer = start(name, implementation, dtype, seed=2)
    before = weights(fresh)
    for flat in (False, True):
        options = StateDictOptions(flatten_optimizer_state_dict=flat)
        dcp.save(
            dict(zip(PARTS, get_state_dict(model, optimizer, options=options), strict=True)), checkpoint_id=f"{folder}/{flat}"
        )
        # To have something to load into, this steps a fresh optimizer with lr = 0 and zero gradients.
        state = dict(zip(PARTS, get_state_dict(fresh, fresh_optimizer, options=options), strict=True))
        if not flat:
            assert_same_bits(weights(fresh), before)
        dcp.load(state, checkpoint_id=f"{folder}/{flat}")
        set_state_dict(fresh, fresh_optimizer, **state, options=options)
        assert_continue_alike((model, optimizer), (fresh, fresh_optimizer))
        fresh, fresh_optimizer = start(name, implementation, dtype, seed=2)


def resume_from_rank_0(name: str, implementation: str, dtype: torch.dtype) -> None:
    """Through a state dictionary of whole tensors that only rank 0 holds."""
    model, optimizer = start(name, implementation, dtype)
    train(model, optimizer, dist.get_rank())
    gather = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = dict(zip(PARTS, get_state_dict(model, optimizer, options=gather), strict=True))
    fresh, fresh_optimizer = start(name, implementation, dtype, seed=2)
    scatter = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_state_dict(fresh, fresh_optimizer, **state, options=scatter)
    assert_continue_alike((model, optimizer), (fresh, fresh_optimizer))


def save_for_one_process(name: str, implementation: str, folder: str) -> None:
    """A checkpoint half way, and at the end the weights that a single process has to arrive at."""
    model, optimizer = start(name, implementation, torch.float64)
    train(model, optimizer, dist.get_rank())
    dcp.save(dict(zip(PARTS, get_state_dict(model, optimizer), strict=True)), checkpoint_id=f"{folder}/half")
    train(model, optimizer, dist.get_rank(), seed=3)
    end = weights(model)
    if dist.get_rank() == 0:
        torch.save(end, Path(folder, "end.pt"))


def zero_redundancy(implementation: str) -> None:
    """ZeRO gives each rank the state of some of the parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the import runs torch's own deprecated compiler
        from torch.distributed.optim import ZeroRedundancyOptimizer
    alone, model = make_model(), make_model()
    settings = {"lr": 0.05, "momentum": 0.9, "K": 3, "M": 1, "weight_decay": 1e-2, **IMPLEMENTATIONS[implementation]}
    reference = rewa.ReWASGD(alone.parameters(), **settings)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=rewa.ReWASGD, **settings)
    train(alone, reference)
    train(DistributedDataParallel(model), optimizer, dist.get_rank())
    assert 0 < len(optimizer.optim.state) < len(reference.state)
    assert_near(weights(model), weights(alone))


def zero_weights() -> None:
    for layer in (0, 4):  # of layer 4 rank 1 holds nothing
        for zero_ranks in ((0, 1), (0,), (1,)):
            model = sharded(make_model())
            if dist.get_rank() in zero_ranks:
                nn.init.zeros_(model[layer].weight.to_local())
            if whole(model[layer].weight).any():
                rewa.ReWASGD(groups(model))
            else:
                with pytest.raises(ValueError, match=rf"'{layer}\.weight' .* is all zero"):
                    rewa.ReWASGD(groups(model))


# The tests.

both = pytest.mark.parametrize("name", ["sgd", "adamw"])
each = pytest.mark.parametrize("implementation", list(IMPLEMENTATIONS))


@both
@each
def test_ddp_is_one_process_on_the_whole_batch(ranks, name, implementation):
    ranks(data_parallel, name, implementation)


@both
@each
def test_fsdp_is_one_process_on_the_whole_batch(ranks, name, implementation):
    ranks(fully_sharded, name, implementation)


@both
@each
def test_fsdp_shards_the_float32_y_of_bfloat16_weights(ranks, name, implementation):
    ranks(fully_sharded_bfloat16, name, implementation)


@each
def test_zero_redundancy_is_one_process(ranks, implementation):
    ranks(zero_redundancy, implementation)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
@pytest.mark.parametrize("name", ["sgd", "stateless", "adamw"])
@each
def test_checkpoint_resumes_to_the_bit(ranks, tmp_path, name, implementation, dtype):
    ranks(resume, name, implementation, dtype, str(tmp_path))


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
def test_full_state_dict_resumes_to_the_bit(ranks, name, dtype):
    ranks(resume_from_rank_0, name, "fused", dtype)


@both
@each
def test_checkpoint_of_two_processes_resumes_in_one(ranks, tmp_path, name, implementation):
    ranks(save_for_one_process, name, implementation, str(tmp_path))
    model = make_model(seed=2)
    optimizer = make_optimizer(name, implementation, model)
    state = dict(zip(PARTS, get_state_dict(model, optimizer), strict=True))
    dcp.load(state, checkpoint_id=tmp_path / "half", no_dist=True)
    set_state_dict(model, optimizer, **state)
    train(model, optimizer, seed=3)
    assert_near(weights(model), torch.load(tmp_path / "end.pt"))


def test_all_zero_weight_raises_on_every_rank(ranks):
    ranks(zero_weights)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
