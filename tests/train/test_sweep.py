from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader  # noqa: F401  (its import warns once, outside any test)

from rewa import cli, report
from rewa.methods import make, names
from rewa.train.attempts import Failure
from rewa.train.job import Job
from rewa.train.local_workers import run_local
from rewa.train.recipes import RECIPES
from rewa.train.run import train
from rewa.train.sweep import Contender, Progress, Sweep, workers_for

DIGITS = RECIPES["digits"]
TINY = replace(DIGITS, epochs=2, compressions=(1.0, 5.0), model="mlp", hidden=(20,))
LONG = replace(TINY, epochs=100)
SETTINGS = ("compressions=1,5", "model=mlp", "hidden=20")
COMMAND = ["sweep", "digits", "--methods", "l1", "--strengths", "0.01,0.02", "--seeds", "1", "--set", "epochs=100"]
COMMAND += [word for change in SETTINGS for word in ("--set", change)]
RUNS = "digits-l1-0.01-s0", "digits-l1-0.02-s0"

# Methods that other processes import: one that kills its process, one that starts a process of its own.
STRANGE = """
import multiprocessing
import os
import time
from dataclasses import dataclass
from rewa.methods.dense import Dense

@dataclass(frozen=True, kw_only=True)
class Deadly(Dense):
    name = "deadly"
    def bind(self, model, plan):
        os._exit(7)

@dataclass(frozen=True, kw_only=True)
class Parent(Dense):
    name = "parent"
    def bind(self, model, plan):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0,))
        child.start()
        child.join()
        return super().bind(model, plan)
"""


@pytest.fixture(autouse=True)
def float32():
    """A run decides on its precision itself."""
    torch.set_default_dtype(torch.float32)


def outcome(folder):
    """All that a run leaves, but for the command that started it."""
    record = json.loads((folder / "record.json").read_text())
    assert record.pop("command").startswith("python")
    return record, *((folder / name).read_bytes() for name in ("trained.safetensors", "model.rewa"))


def trainers(out):
    """Process ids by run: who holds the lock of a folder trains in it."""
    runs = {str(path.stat().st_ino): path.parent.name for path in out.glob("*/.lock")}
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    held = [(row[-3].rpartition(":")[2], int(row[-4])) for row in locks if "FLOCK" in row and "->" not in row]
    return {runs[inode]: pid for inode, pid in held if inode in runs}


def epochs_done(out, name):
    with contextlib.suppress(OSError, ValueError):
        return len(json.loads((out / name / "record.json").read_text())["epochs"])
    return 0


def until(condition, seconds=180):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


@contextlib.contextmanager
def started(arguments, out, **environment):
    """``rewa`` as a process of its own, gone in the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rewa", *arguments, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,  # a group of processes, as a terminal makes one
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def finish(process, seconds=60):
    output, errors = process.communicate(timeout=seconds)
    return process.returncode, output, errors


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The runs of COMMAND as one process does them, one after the other."""
    out = tmp_path_factory.mktemp("undisturbed")
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    for strength in (0.01, 0.02):
        train(Job(recipe=LONG, method=make("l1", strength=strength)), out)
    torch.set_default_dtype(previous)
    return {name: outcome(out / name) for name in RUNS}


# ------------------------------------------------------------------------------------------------------ jobs


def sweep(*methods, **settings):
    return Sweep(recipe=DIGITS, methods=methods, **settings)


def test_every_method_has_its_own_grid_and_all_share_the_seeds():
    jobs = sweep("dense", "rewa", seeds=2).jobs()
    plan = DIGITS.plan(16)
    grids = {name: [float(f"{x:.4g}") for x in make(name).grid(plan)] for name in ("dense", "rewa")}
    outwards = (1, 2, 0, 3)  # so that after each round every method has had as many of its strengths
    expected = [(seed, name, grids[name][place]) for seed in (0, 1) for place in outwards for name in ("dense", "rewa")]
    assert [(job.seed, job.method.label, job.method.strength) for job in jobs] == expected
    assert len({job.folder_name for job in jobs}) == 16


def test_all_methods_have_runs_with_names_of_their_own():
    jobs = sweep(*names(), seeds=1).jobs()
    assert len({job.folder_name for job in jobs}) == len(jobs) == 4 * len(names())
    assert all(math.isfinite(job.method.strength) for job in jobs)


def test_given_strengths_are_for_every_method():
    jobs = sweep("l1", "rewa", strengths=(0.1, 0.25), seeds=1).jobs()
    assert [job.folder_name for job in jobs] == [f"digits-{name}-{x}-s0" for x in (0.1, 0.25) for name in ("l1", "rewa")]


def test_a_setting_goes_to_the_methods_that_have_it():
    jobs = sweep("l1", "rewa", strengths=(0.1,), seeds=1, changes=("K=3", "epochs=5")).jobs()
    assert [job.recipe.epochs for job in jobs] == [5, 5]
    assert jobs[1].method.settings["K"] == 3
    assert "K" not in jobs[0].method.settings


def test_a_setting_goes_to_the_method_below_too():
    jobs = sweep("dense", "rewa", "rewa+gmp", strengths=(0.1,), seeds=1, changes=("K=3", "on_strength=0.5")).jobs()
    assert jobs[1].method.settings["K"] == jobs[2].method.settings["on"]["K"] == 3
    assert jobs[2].method.settings["on"]["strength"] == 0.5


def test_the_strength_of_the_method_below_is_on_record():
    jobs = sweep("rewa+gmp", seeds=1).jobs()
    assert {job.method.settings["on"]["strength"] for job in jobs} == {make("rewa").grid(DIGITS.plan(16))[1]}


def test_what_is_said_twice_is_run_once():
    jobs = sweep("l1", "rewa", "l1", strengths=(0.1, 0.25, 0.1, 0.100001), seeds=2).jobs()
    expected = [f"digits-{name}-{x}-s{seed}" for seed in (0, 1) for x in (0.1, 0.25) for name in ("l1", "rewa")]
    assert [job.folder_name for job in jobs] == expected


def test_contenders_of_one_method_differ_in_settings_strengths_and_names():
    first = Contender(method="rewa", changes=("K=3", "M=1"), strengths=(0.1, 0.2))
    jobs = sweep(first, Contender(method="rewa", strengths=(0.1,)), seeds=1, changes=("epochs=5",)).jobs()
    assert [job.folder_name for job in jobs] == [
        "digits-rewa-K=3,M=1-0.1-s0",
        "digits-rewa-0.1-s0",
        "digits-rewa-K=3,M=1-0.2-s0",
    ]
    assert [(job.method.settings["K"], job.recipe.epochs) for job in jobs] == [(3, 5), (9, 5), (3, 5)]


def test_a_contender_may_have_learning_rates_of_its_own():
    jobs = sweep("l1", Contender(method="gmp", strengths=(0.9,), rates=(0.1, 0.2)), strengths=(0.5,), seeds=1).jobs()
    assert {job.folder_name: job.recipe.lr for job in jobs} == {
        "digits-l1-0.5-s0": DIGITS.lr,
        "digits-gmp-0.5-s0": 0.1,
        "digits-gmp-lr=0.2-0.5-s0": 0.2,
    }


def test_a_sweep_may_have_learning_rates_for_all():
    jobs = sweep("l1", Contender(method="gmp", rates=(0.3,)), strengths=(0.5,), rates=(0.1, 0.2), seeds=1).jobs()
    assert [job.folder_name for job in jobs] == ["digits-l1-0.5-s0", "digits-l1-lr=0.2-0.5-s0", "digits-gmp-lr=0.3-0.5-s0"]


def test_a_contender_must_have_the_settings_it_names():
    with pytest.raises(ValueError, match="no setting 'K'"):
        sweep(Contender(method="l1", changes=("K=3",))).jobs()


def test_a_contender_cannot_have_a_recipe_of_its_own():
    with pytest.raises(ValueError, match="must share its recipe"):
        sweep("l1", Contender(method="rewa", changes=("epochs=40",))).jobs()


def test_the_order_of_settings_does_not_matter():
    (job,) = sweep("l1", strengths=(0.1,), seeds=1, changes=("finetune_epochs=25", "epochs=30")).jobs()
    assert (job.recipe.finetune_epochs, job.recipe.epochs) == (25, 30)


def test_grids_follow_the_length_of_the_runs():
    """Twice the epochs are half the strength, for a method that shrinks at a constant rate."""
    short, long = (sweep("dense", seeds=1, changes=(f"epochs={n}", "warmup=0")).jobs()[1].method.strength for n in (10, 20))
    assert short == pytest.approx(2 * long, rel=1e-2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"changes": ("epoch=5",)}, "no setting 'epoch'; did you mean 'epochs'"),
        ({"changes": ("kk=5",)}, "no setting 'kk'"),
        ({"changes": ("epochs=many",)}, "epochs=many: this setting is a whole number"),
        ({"changes": ("K=three",)}, "K=three: this setting is a number"),
        ({"changes": ("epochs",)}, "'epochs' is not key=value"),
        ({"changes": ("name=mine",)}, "no setting 'name'"),
        ({"changes": ("strength=7",)}, "strength=7: a sweep has several strengths, which --strengths sets"),
        ({"strengths": (0.1, -1.0)}, "Invalid strength: -1"),
        ({"seeds": 0}, "Invalid seeds: 0"),
        ({"seeds": -1}, "Invalid seeds: -1"),
        ({"methods": ()}, "at least one method"),
        ({"methods": ("l2",)}, "'l2'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(settings, message):
    with pytest.raises(ValueError, match=message):
        Sweep(**{"recipe": DIGITS, "methods": ("l1", "rewa"), **settings}).jobs()


def test_as_many_workers_as_cores_where_a_run_uses_one_thread():
    def workers(*changes):
        return workers_for(sweep("l1", seeds=1, changes=changes).jobs())

    assert workers() == (1 if torch.cuda.is_available() else os.cpu_count())
    assert workers("threads=none") == 1
    assert workers("threads=1000000") == 1


# ------------------------------------------------------------------------------------------- local processes


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """Two workers, five runs: one loses its process once, one each time, one its loss."""
    out = tmp_path_factory.mktemp("troubled")
    modules = tmp_path_factory.mktemp("modules")
    (modules / "strange.py").write_text(STRANGE)
    sys.path.insert(0, str(modules))  # which new processes are told, too
    spec = importlib.util.spec_from_file_location("strange", modules / "strange.py")
    strange = importlib.util.module_from_spec(spec)
    sys.modules["strange"] = strange
    spec.loader.exec_module(strange)
    jobs = [
        Job(recipe=LONG, method=make("l1", strength=0.01)),
        Job(recipe=TINY, method=strange.Deadly(strength=0.0)),
        Job(recipe=replace(TINY, lr=1e25), method=make("dense", strength=0.0), name="lost"),
        Job(recipe=TINY, method=strange.Parent(strength=0.0)),
        Job(recipe=LONG, method=make("l1", strength=0.02)),
    ]
    progress, killed, seen = Progress(out, jobs), [], []
    failed = []

    def tick():
        failed.append(len(progress.failures))
        if not killed:
            until(lambda: epochs_done(out, RUNS[0]) > 2)
            killed.append(trainers(out)[RUNS[0]])
            os.kill(killed[0], signal.SIGKILL)
        seen.append(progress.epochs()[0])

    try:
        failures = run_local(jobs, out, workers=2, tick=tick, failures=progress.failures)
        assert failures is progress.failures
        assert failed == sorted(failed)
        assert (failed[0], failed[-1]) == (0, 2)
    finally:
        sys.path.remove(str(modules))
        del sys.modules["strange"]
    return out, jobs, failures, seen


def test_a_killed_worker_is_replaced_and_its_run_is_what_it_would_have_been(troubled, undisturbed):
    out, _, failures, _ = troubled
    assert not {failure.name for failure in failures} & {*RUNS}
    assert {name: outcome(out / name) for name in RUNS} == undisturbed
    assert not trainers(out)


def test_a_run_that_always_dies_is_given_up_and_a_lost_one_says_why(troubled):
    _, _, failures, _ = troubled
    deadly, lost = sorted(failures, key=lambda failure: failure.name)
    assert deadly == Failure("digits-deadly-0-s0", "its process ended with code 7")
    assert lost.name == "lost"
    assert "the loss is" in lost.reason
    assert "lower lr=1e+25" in lost.reason


def test_a_run_may_start_processes(troubled):
    assert json.loads((troubled[0] / "digits-parent-0-s0" / "record.json").read_text())["status"] == "finished"


def test_progress_is_what_the_records_say(troubled):
    out, jobs, _, seen = troubled
    assert seen == sorted(seen)
    progress = Progress(out, jobs)
    assert progress.epochs() == (2 * LONG.epochs + 2, 2 * LONG.epochs + 3 * 2)
    assert progress.finished == {*RUNS, "digits-parent-0-s0"}


def test_a_folder_with_another_run_does_not_count(troubled):
    out, jobs, _, _ = troubled
    same, other = jobs[0], replace(jobs[0], recipe=replace(LONG, lr=0.2))
    for one in (same, replace(same, recipe=replace(LONG, threads=2))):  # the same run on another machine
        assert Progress(out, [one]).epochs() == (LONG.epochs, LONG.epochs)
    for one in (other, replace(same, seed=7, name=same.folder_name)):
        progress = Progress(out, [one])
        assert progress.epochs() == (0, LONG.epochs)
        assert progress.finished == set()


def test_records_name_the_command_of_the_sweep(troubled):
    record = json.loads((troubled[0] / RUNS[0] / "record.json").read_text())
    assert record["command"] == " ".join(["python", *sys.orig_argv[1:]])


def test_what_is_finished_is_not_repeated(troubled):
    out, jobs, _, _ = troubled
    files = [path for name in RUNS for path in (out / name).rglob("*") if path.is_file() and path.name != ".lock"]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert len(before) >= 8
    assert run_local([jobs[0], jobs[4]], out, workers=1) == []
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_a_sweep_that_is_killed_or_stopped_leaves_nothing_behind_and_goes_on(tmp_path, undisturbed, capsys):
    arguments = [*COMMAND, "--workers", "2"]
    with started(arguments, tmp_path) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: len(children.read_text().split()) > 2)  # two workers, and the tracker that comes with them
        os.killpg(process.pid, signal.SIGINT)  # Ctrl-C, while they start
        code, _, errors = finish(process)
    assert (code, errors) == (130, "rewa sweep: stopped by SIGINT; saved, and the same command resumes\n")
    with started(arguments, tmp_path) as process:
        until(lambda: all(epochs_done(tmp_path, name) for name in RUNS))
        process.kill()
        process.wait(10)
        until(lambda: not trainers(tmp_path), 10)
    with started(arguments, tmp_path) as process:
        until(lambda: len(trainers(tmp_path)) == 2)
        process.terminate()
        code, _, errors = finish(process)
    assert (code, errors) == (143, "rewa sweep: stopped by SIGTERM; saved, and the same command resumes\n")
    assert not trainers(tmp_path)
    for name in RUNS:
        assert list((tmp_path / name / "checkpoints").glob("step-*"))
        assert json.loads((tmp_path / name / "record.json").read_text())["status"] == "running"
    assert cli.main([*COMMAND, "--workers", "1", "--out", str(tmp_path)]) == 0
    streams = capsys.readouterr()
    assert streams.err == ""
    assert [line.split()[0] for line in streams.out.splitlines()[:2]] == ["1/2", "2/2"]
    assert {name: outcome(tmp_path / name) for name in RUNS} == undisturbed


# ------------------------------------------------------------------------------------------------- a cluster

HEAD = """
import sys
import ray

cluster = ray.init(
    address="local", num_cpus=2, num_gpus=0, include_dashboard=False, object_store_memory=80 * 2**20, _temp_dir=sys.argv[1]
)
print(cluster.address_info["address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of two cores on the loopback interface, with a token that only these tests know."""
    if importlib.util.find_spec("ray") is None:
        if "CI" in os.environ:
            pytest.fail("ray is not installed, and CI must test it: pip install 'rewa[ray]'")
        pytest.skip("ray is not installed")
    environment = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's switch for 127.0.0.1 instead of the address others see
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    # Not pytest's folder: the path of a socket may have 107 characters.
    folder = tempfile.mkdtemp(prefix="ray")
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )
    with process:
        try:
            address = process.stdout.readline().strip()
            assert address.startswith("127.0.0.1:"), "Ray did not start"
            yield address, environment
            process.stdin.close()
            assert process.wait(30) == 0
        finally:
            process.kill()
            shutil.rmtree(folder, ignore_errors=True)


def test_ray_stops_goes_on_and_replaces_a_killed_worker(tmp_path, cluster, undisturbed):
    address, environment = cluster
    arguments = [*COMMAND, "--ray", address]
    with started(arguments, tmp_path, **environment) as process:
        until(lambda: all(epochs_done(tmp_path, name) for name in RUNS))
        process.terminate()
        code, _, errors = finish(process)
    assert code == 143
    assert errors.endswith("rewa sweep: stopped by SIGTERM; saved, and the same command resumes\n")
    assert not trainers(tmp_path)
    assert all(list((tmp_path / name / "checkpoints").glob("step-*")) for name in RUNS)
    before = epochs_done(tmp_path, RUNS[0])
    with started(arguments, tmp_path, **environment) as process:
        until(lambda: epochs_done(tmp_path, RUNS[0]) > before)
        killed = trainers(tmp_path)[RUNS[0]]
        os.kill(killed, signal.SIGKILL)
        until(lambda: trainers(tmp_path).get(RUNS[0], killed) != killed)
        code, output, _ = finish(process)
    assert code == 0
    first, second, *table, last = output.splitlines()
    assert [line.split()[0] for line in (first, second, last)] == ["1/2", "2/2", "next:"]
    (comparison,) = report.compare(report.read([tmp_path / name for name in RUNS]))
    assert "\n".join(table).strip() == report.to_plain(comparison)  # and nothing from Ray
    assert {name: outcome(tmp_path / name) for name in RUNS} == undisturbed


def test_ray_refuses_what_would_wait_forever(tmp_path, cluster):
    address, environment = cluster
    with started([*COMMAND, "--ray", address, "--device", "cuda"], tmp_path, **environment) as process:
        code, _, errors = finish(process)
    assert code == 2
    assert "has no GPU: say --device cpu" in errors
