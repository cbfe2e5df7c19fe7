"""Two processes that share the work train the weights that one process alone does: DDP, FSDP2, ZeRO and checkpoints.

The file is a script as well: ``Ranks`` starts it twice and has it run the functions below by name. The two processes stay
for all tests, since starting them takes longer than the tests do.
"""

from __future__ import annotations

import copy
import faulthandler
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.state_dict as checkpoint
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import rewa
from problems import IMPLEMENTATIONS

pytestmark = pytest.mark.skipif(not dist.is_gloo_available() or sys.platform == "win32", reason="needs gloo and POSIX")

TIMEOUT = 120  # seconds for one test, which takes one; a busy machine may need most of a minute to start
STEPS = 5

assert_near = partial(torch.testing.assert_close, rtol=0, atol=1e-13)


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
        deadline = time.monotonic() + TIMEOUT
        for _, connection in self.running:
            connection.send((function.__name__, args))
        failures = []
        for rank, (_, connection) in enumerate(self.running):
            failure = f"did not finish in {TIMEOUT} s"
            if connection.poll(max(0.0, deadline - time.monotonic())):
                try:
                    failure = connection.recv()
                except EOFError:
                    failure = "the process ended"
            if failure is not None:
                failures.append(f"rank {rank}: {failure}")
        if failures:
            self.stop()
            pytest.fail("\n".join(failures), pytrace=False)

    def start(self) -> None:
        # One thread each, as the two share the machine; loopback, as the host's name may resolve to anything.
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback}
        self.starts += 1
        for rank in range(2):
            ours, theirs = multiprocessing.Pipe()
            command = [sys.executable, __file__, str(rank), str(self.folder / f"store{self.starts}"), str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
            theirs.close()
            self.running.append((process, ours))

    def stop(self) -> None:
        for _, connection in self.running:
            connection.close()  # the process takes this as the end of its work
        for process, _ in self.running:
            for end in (process.terminate, process.kill):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                    break
                end()
            process.wait()
        self.running = []


def serve(rank: int, store: str, descriptor: int) -> None:
    """What each of the two processes does: run functions of this file until the pipe is closed."""
    faulthandler.register(signal.SIGTERM, chain=True)  # a rank that hangs shows where
    warnings.simplefilter("error")
    torch.set_default_dtype(torch.float64)
    limit = timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=limit)
    connection = Connection(descriptor)
    failure = None
    with suppress(EOFError, BrokenPipeError):
        while failure is None:  # after a failure it ends, so that the other rank does not wait for it
            name, args = connection.recv()
            try:
                torch.manual_seed(0)
                globals()[name](*args)
            except BaseException:  # as pytest's own failures are no Exceptions
                failure = traceback.format_exc()
            connection.send(failure)
    os._exit(0)  # an orderly exit takes torch seconds


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    pair = Ranks(tmp_path_factory.mktemp("ranks"))
    yield pair
    pair.stop()


# The problem: 7, 5 and 1 rows do not split evenly, and of the last layer rank 1 holds nothing.


def make_model(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1)).to(dtype)
    nn.init.zeros_(model[0].weight[:, 0])  # weights that were cut, on both ranks
    return model


def make_optimizer(name: str, implementation: str, model: nn.Module) -> Optimizer:
    """Sparse weights of two settings, and plain biases."""
    rules = {r"0\.weight": {"K": 9, "M": 2, "eps": 0.0}}
    groups = rewa.param_groups(model, K=3, M=1, eps=1e-2, weight_decay=1e-2, plain_weight_decay=1e-3, rules=rules)
    flags = IMPLEMENTATIONS[implementation]
    if name == "adamw":
        return rewa.ReWAAdamW(groups, lr=0.01, **flags)
    return rewa.ReWASGD(groups, lr=0.05, momentum={"sgd": 0.9, "stateless": 0.0}[name], **flags)


def start(name, implementation, dtype=torch.float64, *, seed=0, shard=True) -> tuple[nn.Sequential, Optimizer]:
    model = make_model(seed, dtype)
    if shard:
        for module in (*model[::2], model):
            fully_shard(module)
    return model, make_optimizer(name, implementation, model)


def train(model: nn.Module, optimizer: Optimizer, rank: int | None = None, steps: int = STEPS, seed: int = 1) -> None:
    """Some steps, on the whole batch or on the half of it that belongs to ``rank``."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        inputs = torch.randn(8, 6, generator=generator).to(next(model.parameters()).dtype)
        inputs = inputs if rank is None else inputs.chunk(2)[rank]
        optimizer.zero_grad()
        (model(inputs) - inputs[:, :1] + inputs[:, 1:2]).square().mean().backward()
        optimizer.step()


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(param) for name, param in model.named_parameters()}


def assert_trained_as_by_one(model: nn.Module, name: str, implementation: str) -> None:
    alone, optimizer = start(name, implementation, shard=False)
    train(alone, optimizer)
    for key, before in weights(make_model()).items():
        assert (weights(alone)[key] - before).abs().max() > 1e-3, f"{key} did not move: the test shows nothing"
    assert_near(weights(model), weights(alone))


def assert_same_bits(got: Any, expected: Any, path: str = "") -> None:
    """Equal to the last bit, the sign of zero included, whatever is nested in the two."""
    if isinstance(got, (list, tuple)):
        got, expected = dict(enumerate(got)), dict(enumerate(expected))
    if isinstance(got, dict):
        assert got.keys() == expected.keys(), f"{path}: {set(got) ^ set(expected)}"
        for key in got:
            assert_same_bits(got[key], expected[key], f"{path}/{key}")
    elif isinstance(got, Tensor):
        kinds = [(t.dtype, t.shape, getattr(t, "placements", None)) for t in (got, expected)]
        assert kinds[0] == kinds[1], f"{path}: {kinds}"
        a, b = whole(got), whole(expected)
        assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)), f"{path}: {a} instead of {b}"
    else:
        assert got == expected, f"{path}: {got} instead of {expected}"


# What runs on each rank.


def data_parallel(name: str, implementation: str) -> None:
    model, optimizer = start(name, implementation, shard=False)
    train(DistributedDataParallel(model), optimizer, dist.get_rank())
    assert_trained_as_by_one(model, name, implementation)
    of_rank_0 = weights(model)
    for tensor in of_rank_0.values():
        dist.broadcast(tensor, 0)
    assert_same_bits(weights(model), of_rank_0)


def fully_sharded(name: str, implementation: str) -> None:
    model, optimizer = start(name, implementation)
    assert model[4].weight.to_local().numel() == (5, 0)[dist.get_rank()]
    train(model, optimizer, dist.get_rank())
    assert_trained_as_by_one(model, name, implementation)
    for param, state in optimizer.state.items():
        for key, value in state.items():
            assert key == "step" or value.placements == param.placements, key


def fully_sharded_bfloat16(name: str, implementation: str) -> None:
    """Gradients are given here: a sum over ranks in bfloat16 would round differently from one over the whole batch."""
    alone, reference = start(name, implementation, torch.bfloat16, shard=False)
    model, optimizer = start(name, implementation, torch.bfloat16)
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
        if (y := state.get("y")) is not None:
            assert (y.dtype, y.placements, y.to_local().shape) == (torch.float32, param.placements, param.to_local().shape)
        # torch takes the roots at a shard's end by another routine: y differs in its last bits, x by one bit at most.
        for key, value in state.items():
            torch.testing.assert_close(whole(value), expected[key], rtol=1e-5, atol=1e-6, msg=f"{key} differs")
        torch.testing.assert_close(whole(param), single.detach(), rtol=2**-7, atol=0)


def zero_redundancy(name: str, implementation: str) -> None:
    """ZeRO gives each rank the state of some of the parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the import runs torch's own deprecated compiler
        from torch.distributed.optim import ZeroRedundancyOptimizer
    kind, options = {"sgd": (rewa.ReWASGD, {"momentum": 0.9}), "adamw": (rewa.ReWAAdamW, {})}[name]
    settings = {"lr": 0.02, "K": 3, "M": 1, "weight_decay": 1e-2, **options, **IMPLEMENTATIONS[implementation]}
    alone, model = make_model(), make_model()
    reference = kind(alone.parameters(), **settings)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, **settings)
    train(alone, reference)
    train(DistributedDataParallel(model), optimizer, dist.get_rank())
    assert 0 < len(optimizer.optim.state) < len(reference.state)
    assert_near(weights(model), weights(alone))


def torch_optimizer(name: str, model: nn.Module) -> Optimizer:
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train_with_falling_rate(model: nn.Module, optimizer: Optimizer, rank: int | None, step: int) -> None:
    """One step at a rate that falls, as most do."""
    for group in optimizer.param_groups:
        group["lr"] = (0.01 if "betas" in group else 0.05) / (1 + step / 5)
    train(model, optimizer, rank, 1, seed=step)


TARGETS: dict[str, Any] = {"share": {"sparsity": 0.8}, "parts": {"sparsity": {r"0\..*": 0.5, ".*": 0.7}}}


def sparsified(name: str, sharding: str, target: str, steps: int = 20) -> None:
    """One threshold over all shards: after every step the same zeros as one process has."""
    alone, model = make_model(), make_model()
    if sharding == "fsdp":
        for module in (*model[::2], model):
            fully_shard(module)
    trained = DistributedDataParallel(model) if sharding == "ddp" else model
    runs = [(alone, torch_optimizer(name, alone), None), (trained, torch_optimizer(name, model), dist.get_rank())]
    sparsifiers = [rewa.Sparsifier(net, optimizer, **TARGETS[target], steps=steps) for net, optimizer, _ in runs]
    for step in range(steps):
        for net, optimizer, rank in runs:
            train_with_falling_rate(net, optimizer, rank, step)
        assert_near(weights(model), weights(alone))
        assert_same_bits(
            {key: value == 0 for key, value in weights(model).items()},
            {key: value == 0 for key, value in weights(alone).items()},
        )
    reports = [sparsifier.finish() for sparsifier in sparsifiers]
    assert reports[0].count == reports[1].count
    assert reports[1].sparsity > 0.5


def sparsified_resumes(name: str, folder: str) -> None:
    runs = []
    for seed in (0, 0, 2):
        model = make_model(seed)
        for module in (*model[::2], model):
            fully_shard(module)
        optimizer = torch_optimizer(name, model)
        rewa.Sparsifier(model, optimizer, sparsity=0.8, steps=20)
        runs.append((model, optimizer))
    whole_run, run, fresh = runs
    for step in range(20):
        train_with_falling_rate(*whole_run, dist.get_rank(), step)
    for step in range(12):
        train_with_falling_rate(*run, dist.get_rank(), step)
    dcp.save(state_dicts(*run), checkpoint_id=folder)
    state = state_dicts(*fresh)
    dcp.load(state, checkpoint_id=folder)
    checkpoint.set_state_dict(*fresh, **state)
    for step in range(12, 20):
        train_with_falling_rate(*fresh, dist.get_rank(), step)
    assert_same_bits(weights(fresh[0]), weights(whole_run[0]))


def sparsified_by_value(steps: int = 40) -> None:
    """The mean of the processes' values decides, so that all cut alike, although each sees other data."""
    model = make_model()
    trained, rank = DistributedDataParallel(model), dist.get_rank()
    optimizer = torch_optimizer("sgd", model)

    def value(net: nn.Module) -> float:
        return -2 * rank * max(0.0, rewa.sparsity.count(rewa.sparsity.prunable(net).values()).sparsity - 0.2)

    sparsifier = rewa.Sparsifier(trained, optimizer, max_drop=0.3, evaluate=value, steps=steps)
    for step in range(steps):
        train_with_falling_rate(trained, optimizer, rank, step)
    report = sparsifier.finish()
    assert 0.4 < report.sparsity <= 0.5  # the first process alone would go to the end, the second to 0.35
    every: list[Any] = [None, None]
    dist.all_gather_object(every, (report.count, [weight.sum().item() for weight in model.parameters()]))
    assert every[0] == every[1]


def sharded_optimizer_states() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch, at its own import
        from torch.distributed.optim import ZeroRedundancyOptimizer
    model = make_model()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match=r"ZeroRedundancyOptimizer trains a part of the weights.*shard the model by FSDP2"):
        rewa.Sparsifier(model, optimizer, sparsity=0.5, steps=10)


def zero_weights() -> None:
    for layer in (0, 4):  # of layer 4 rank 1 holds nothing
        for zero_ranks in ((0, 1), (0,), (1,)):
            model, _ = start("sgd", "loop")
            if dist.get_rank() in zero_ranks:
                nn.init.zeros_(model[layer].weight.to_local())
            if whole(model[layer].weight).any():
                make_optimizer("sgd", "loop", model)
            else:
                with pytest.raises(ValueError, match=rf"'{layer}\.weight' .* is all zero"):
                    make_optimizer("sgd", "loop", model)


def state_dicts(model: nn.Module, optimizer: Optimizer, **options: bool) -> dict[str, Any]:
    parts = checkpoint.get_state_dict(model, optimizer, options=StateDictOptions(**options))
    return dict(zip(("model_state_dict", "optim_state_dict"), parts, strict=True))


def assert_continue_alike(*runs: tuple[nn.Module, Optimizer]) -> None:
    """The two have the same weights and state, now and after some more steps."""
    for steps in (0, STEPS):
        for run in runs:
            train(*run, dist.get_rank(), steps, seed=3)
        expected, got = ({"weights": weights(model), **optimizer.state_dict()} for model, optimizer in runs)
        assert_same_bits(got, expected)


def resume(name: str, implementation: str, dtype: torch.dtype, folder: str, flat: bool) -> None:
    run, fresh = start(name, implementation, dtype), start(name, implementation, dtype, seed=2)
    train(*run, dist.get_rank())
    dcp.save(state_dicts(*run, flatten_optimizer_state_dict=flat), checkpoint_id=folder)
    before = weights(fresh[0])
    # To have something to load into, torch steps a fresh optimizer with lr = 0 and zero gradients.
    state = state_dicts(*fresh, flatten_optimizer_state_dict=flat)
    assert_same_bits(weights(fresh[0]), before)
    dcp.load(state, checkpoint_id=folder)
    checkpoint.set_state_dict(*fresh, **state, options=StateDictOptions(flatten_optimizer_state_dict=flat))
    assert_continue_alike(run, fresh)


def resume_from_rank_0(name: str, implementation: str, dtype: torch.dtype) -> None:
    """Through state dictionaries of whole tensors that only rank 0 holds."""
    run, fresh = start(name, implementation, dtype), start(name, implementation, dtype, seed=2)
    train(*run, dist.get_rank())
    # A copy, as a file would be: torch shares the step counts between the one who saves and the one who loads.
    state = copy.deepcopy(state_dicts(*run, full_state_dict=True, cpu_offload=True))
    # In two calls: set_state_dict takes the empty dictionary of rank 1 for "no model", and rank 0 waits for ever.
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    checkpoint.set_model_state_dict(fresh[0], state["model_state_dict"], options=options)
    checkpoint.set_optimizer_state_dict(*fresh, state["optim_state_dict"], options=options)
    assert_continue_alike(run, fresh)


def save_for_one_process(name: str, implementation: str, folder: str) -> None:
    """A checkpoint half way, and at the end the weights that a single process has to arrive at."""
    run = start(name, implementation)
    train(*run, dist.get_rank())
    dcp.save(state_dicts(*run), checkpoint_id=f"{folder}/half")
    train(*run, dist.get_rank(), seed=3)
    end = weights(run[0])
    if dist.get_rank() == 0:
        torch.save(end, f"{folder}/end.pt")


def sharded_in_groups(model: nn.Module) -> nn.Module:
    for module in (*model[::2], model):
        fully_shard(module)
    return model


def sharded_as_one(model: nn.Module) -> nn.Module:
    """After a forward pass without gradients the outermost group of FSDP2 still holds the gathered weights."""
    return fully_shard(model)


SHARDINGS = {"groups": sharded_in_groups, "one": sharded_as_one}
INPUTS = torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(8, 6)


def value(model: nn.Module) -> float:
    with torch.no_grad():
        return float(model(INPUTS).square().mean())


def counts(sharding: str) -> None:
    """What is counted and cut on shards is what one process counts and cuts on the whole."""
    alone, model = make_model(), SHARDINGS[sharding](make_model())
    for look in (rewa.sparsity.summary, rewa.sparsity.whole):
        assert look(model) == look(alone)
        assert look(model, 0.2) == look(alone, 0.2)
    assert rewa.sparsity.count(rewa.sparsity.prunable(model).values()) == rewa.sparsity.Count(82, 75)
    assert rewa.sparsity.summary(model, example_input=INPUTS) == rewa.sparsity.summary(alone, example_input=INPUTS)
    for ours, theirs in zip(rewa.sparsity.histogram(model), rewa.sparsity.histogram(alone), strict=True):
        assert_same_bits(torch.as_tensor(ours), torch.as_tensor(theirs))
    thresholds = [0.0, 0.1, 0.3]
    points, expected = rewa.sparsity.curve(model, value, thresholds), rewa.sparsity.curve(alone, value, thresholds)
    assert len({point.value for point in expected}) == 3
    assert [(point.threshold, point.prunable, point.model) for point in points] == [
        (point.threshold, point.prunable, point.model) for point in expected
    ]
    assert_near([point.value for point in points], [point.value for point in expected])
    assert value(model) == pytest.approx(value(alone), abs=1e-13)  # the weights are back, in the gathered copy too
    assert_same_bits(weights(model), weights(alone))


def finalized(sharding: str) -> None:
    targets: list[dict[str, Any]] = [{"sparsity": 0.9}, {"threshold": 0.2}, {"evaluate": value, "max_drop": 0.05}]
    for target in targets:
        alone, model = make_model(), SHARDINGS[sharding](make_model())
        value(model)  # leaves the gathered weights of the outermost group
        expected, report = rewa.finalize(alone, **target), rewa.finalize(model, **target)
        assert (report.summary, report.threshold, report.spared, report.ties) == (
            expected.summary, expected.threshold, expected.spared, expected.ties,
        )  # fmt: skip
        assert report.summary.prunable.nonzero < 70
        assert_same_bits(weights(model), weights(alone))
        assert value(model) == pytest.approx(value(alone), abs=1e-13)
    model = SHARDINGS[sharding](make_model())
    before = weights(model)
    with pytest.raises(ValueError, match="return one value on all of them"):
        rewa.finalize(model, evaluate=lambda model: value(model) + dist.get_rank(), max_drop=0.1)
    assert_same_bits(weights(model), before)


def frozen(sharding: str, when: str) -> None:
    model = make_model()
    rewa.finalize(model, sparsity=0.6)
    zeros = {name: param == 0 for name, param in weights(model).items() if param.dim() == 2}
    if when == "before":
        rewa.freeze_zeros(model)
    model = SHARDINGS[sharding](model)
    if when == "after":
        assert rewa.freeze_zeros(model).count == rewa.sparsity.Count(82, 82 - math.ceil(0.6 * 82))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    before = weights(model)
    for _ in range(3):
        train(model, optimizer, dist.get_rank(), 1)
        for name, mask in zeros.items():
            assert_same_bits(weights(model)[name] == 0, mask)
            assert (weights(model)[name] != before[name]).any()
    assert all(isinstance(param, DTensor) for param in model.state_dict().values())
    for name, mask in zeros.items():
        squares = whole(optimizer.state[model.get_parameter(name)]["exp_avg_sq"])
        assert (squares[mask] == 0).all()
    rewa.deploy.freezing.thaw(model)
    train(model, optimizer, dist.get_rank(), 1)
    assert any((weights(model)[name][mask] != 0).any() for name, mask in zeros.items())


# The tests.

both = pytest.mark.parametrize("name", ["sgd", "adamw"])
each = pytest.mark.parametrize("implementation", list(IMPLEMENTATIONS))
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])


@each
@both
@pytest.mark.parametrize("work", [data_parallel, fully_sharded, fully_sharded_bfloat16, zero_redundancy])
def test_two_processes_train_as_one(ranks, work, name, implementation):
    ranks(work, name, implementation)


@both
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
@pytest.mark.parametrize("target", list(TARGETS))
def test_a_sparsifier_cuts_all_shards_by_one_threshold(ranks, name, sharding, target):
    ranks(sparsified, name, sharding, target)


@both
def test_a_sparsifier_on_shards_resumes_to_the_bit(ranks, tmp_path, name):
    ranks(sparsified_resumes, name, str(tmp_path))


def test_a_sparsifier_is_judged_by_the_mean_of_the_processes(ranks):
    ranks(sparsified_by_value)


def test_a_sparsifier_says_that_sharded_states_are_not_for_it(ranks):
    ranks(sharded_optimizer_states)


def test_all_zero_weight_raises_on_every_rank(ranks):
    ranks(zero_weights)


@pytest.mark.parametrize("sharding", list(SHARDINGS))
@pytest.mark.parametrize("work", [counts, finalized])
def test_shards_are_counted_and_cut_as_one_model(ranks, work, sharding):
    ranks(work, sharding)


@pytest.mark.parametrize("sharding", list(SHARDINGS))
@pytest.mark.parametrize("when", ["before", "after"])
def test_zeros_stay_frozen_on_shards(ranks, sharding, when):
    ranks(frozen, sharding, when)


@dtypes
@each
@pytest.mark.parametrize("name", ["sgd", "stateless", "adamw"])
def test_checkpoint_resumes_to_the_bit(ranks, tmp_path, name, implementation, dtype):
    ranks(resume, name, implementation, dtype, str(tmp_path), False)


@dtypes
@both
def test_flat_and_full_state_dicts_resume_to_the_bit(ranks, tmp_path, name, dtype):
    ranks(resume, name, "fused", dtype, str(tmp_path), True)
    ranks(resume_from_rank_0, name, "fused", dtype)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # here on purpose
@each
@both
def test_checkpoint_of_two_processes_resumes_in_one(ranks, tmp_path, name, implementation):
    ranks(save_for_one_process, name, implementation, str(tmp_path))
    run = start(name, implementation, seed=2, shard=False)
    state = state_dicts(*run)
    dcp.load(state, checkpoint_id=tmp_path / "half")
    checkpoint.set_state_dict(*run, **state)
    train(*run, seed=3)
    assert_near(weights(run[0]), torch.load(tmp_path / "end.pt"))


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
