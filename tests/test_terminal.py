from __future__ import annotations

import fcntl
import io
import json
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader  # noqa: F401  (its import warns once, outside any test)

from rewa.methods import make
from rewa.record import BeganWith, Continuation, Epoch, Final, Histogram, Run
from rewa.sparsity import Count
from rewa.terminal import Bars, JsonLines, Lines, Stages, sentence, studying, sweeping, watching
from rewa.train.attempts import Failure
from rewa.train.job import Job
from rewa.train.recipes import RECIPES
from rewa.train.run import train
from rewa.train.sweep import Progress
from rewa.train.watch import Watch

TINY = replace(RECIPES["digits"], epochs=3, compressions=(1.0, 5.0), model="mlp", hidden=(20,))
JOB = Job(recipe=TINY, method=make("l1", strength=0.1), name="[bold]run")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ROW = Epoch(
    1, "train", 0.1, train_loss=1.25, train_accuracy=88.0, validation_loss=1.3, validation_accuracy=87.654, compression=3.14159
)
FINAL = Final(
    1e-3,
    Count(12345, 1234),
    Count(12400, 1289),
    validation_loss=0.5,
    validation_accuracy=91.0,
    test_loss=0.51239,
    test_accuracy=91.236,
    max_drop=1.0,
    file_bytes=5678,
    dense_bytes=56789,
)
RECORD = Run(
    name="run",
    status="finished",
    recipe={"name": "toy", "metric": "accuracy"},
    method="l1",
    strength=0.1,
    strength_is="penalty weight",
    settings={},
    seed=0,
    command="rewa train toy",
    commit="0123456789abcdef",
    versions={"rewa": "0.1.0", "torch": "2.13.0"},
    hardware={},
    numeric={},
    data={},
    prunable=12345,
    parameters=12400,
    epochs=(ROW,),
    final=FINAL,
    histogram=Histogram((1,), (0.0, 1.0), 0),
)
SENTENCE = "run: 91.24 % of test data right with 1,234 of 12,345 weights, 5,678 bytes instead of 56,789"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


@pytest.fixture(autouse=True)
def float32():
    """A run decides on its precision itself."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a finished run of JOB, and its record; only to be read."""
    out, previous = tmp_path_factory.mktemp("trained"), torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    record = train(JOB, out)
    torch.set_default_dtype(previous)
    return out, record


def test_a_sentence_says_what_was_paid_for_what():
    assert sentence(RECORD) == SENTENCE
    assert "test loss 0.5124 with" in sentence(replace(RECORD, recipe={"metric": "loss"}))


@pytest.mark.parametrize(("metric", "words"), [("accuracy", "91.24 % of"), ("loss", "run: test loss not finite with 1,234")])
def test_a_loss_that_is_not_finite_has_a_sentence_too(metric, words):
    assert words in sentence(replace(RECORD, recipe={"metric": metric}, final=replace(FINAL, test_loss=math.nan)))


def test_lines(tmp_path):
    stream = io.StringIO()
    with watching(stream=stream) as watch:
        assert isinstance(watch, Lines)
        record = train(JOB, tmp_path, watch=watch)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[bold]run: l1, penalty weight 0.1, 3 epochs".replace("penalty weight", JOB.method.strength_is)
    for line, row in zip(lines[1:4], record.epochs, strict=True):
        assert line.startswith(f"epoch {row.epoch}/3  loss {row.train_loss:.4f}  ")
        assert f"validation {row.validation_accuracy:.2f} %  compression {row.compression:.3g}x  " in line
        assert re.search(r"\d+ s left$", line)
    assert lines[3].endswith("  0 s left")
    assert lines[-2:] == [sentence(record), f"in {tmp_path / '[bold]run'}"]
    assert len(lines) == len(set(lines)), "every line says something new"


def test_the_end_of_a_run_tells_who_else_trained_it(terminal):
    other = Continuation("fedcba9876543210+changes", {"rewa": "0.1.0", "torch": "2.14.0"})
    record = replace(RECORD, began_with=BeganWith("run-0.5", 1200), continued_by=(other,))
    remarks = [
        "its first 1,200 steps were trained by run-0.5",
        "begun by commit 0123456789, resumed by commit fedcba9876+changes, torch 2.14.0",
    ]
    stream = io.StringIO()
    Lines(stream).end(record, "runs/run")
    Bars(terminal).end(record, "runs/run")
    for lines in (stream.getvalue().splitlines(), plain(terminal)):
        assert lines[-4:] == [SENTENCE, *remarks, "in runs/run"]


def test_a_sweep_tells_who_else_trained_a_run(tmp_path, trained):
    _, record = trained
    shared = replace(record, began_with=BeganWith("run-0.5", 16))
    (tmp_path / JOB.name).mkdir()
    (tmp_path / JOB.name / "record.json").write_text(json.dumps(shared.to_json()))
    stream = io.StringIO()
    with sweeping(Progress(tmp_path, [JOB]), stream=stream):
        pass
    assert stream.getvalue() == f"1/1 {sentence(record)} (its first 16 steps were trained by run-0.5)\n"


def test_lines_tell_a_fine_tune_an_empty_model_and_a_second_start():
    stream = io.StringIO()
    watch = Lines(stream)
    watch.begin(JOB, 48, 16)
    watch.epoch(replace(ROW, epoch=2, phase="finetune", compression=math.inf))
    for what in ("measuring: 1 of 2", "measuring: 2 of 2", "writing"):
        watch.doing(what)
    first, second, *rest = stream.getvalue().splitlines()
    assert first.endswith("3 epochs, resuming at step 16 of 48")
    assert second.startswith("epoch 2/3 (fine-tune)  loss 1.2500  validation 87.65 %  compression infx")
    assert rest == ["measuring", "writing"]


def test_the_time_left_counts_from_where_this_process_began(monkeypatch):
    stream, now = io.StringIO(), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    watch = Lines(stream)
    watch.begin(replace(JOB, recipe=replace(TINY, epochs=10)), 160, 64)
    now[0] += 7.0
    watch.epoch(replace(ROW, epoch=5))
    now[0] += 9.0
    watch.epoch(replace(ROW, epoch=6))
    # 7 s for the first of 5 left; then 16 s for 2, with 4 left.
    assert re.findall(r"(\d+) s left", stream.getvalue()) == ["35", "32"]


def test_json_lines(tmp_path):
    stream = io.StringIO()
    with watching(as_json=True, stream=stream) as watch:
        assert isinstance(watch, JsonLines)
        record = train(JOB, tmp_path, watch=watch)
    *epochs, end = map(json.loads, stream.getvalue().splitlines())
    assert epochs == [{"event": "epoch", **row.to_json()} for row in record.epochs]
    assert end == {"event": "end", "folder": str(tmp_path / JOB.name), "record": record.to_json()}


def test_quiet_is_quiet(tmp_path, capsys):
    for stream in (io.StringIO(), Terminal()):
        with watching(quiet=True, stream=stream) as watch:
            assert type(watch) is Watch
        with sweeping(Progress(tmp_path, [JOB]), quiet=True, stream=stream) as tick:
            tick()
        assert stream.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def plain(terminal):
    """What was drawn, one line for each time a line was drawn."""
    return ESCAPE.sub("", terminal.getvalue()).replace("\r", "\n").splitlines()


def test_a_bar_has_everything_in_80_columns(terminal):
    with watching(stream=terminal) as watch:
        assert isinstance(watch, Bars)
        job = replace(JOB, recipe=replace(TINY, epochs=100))
        watch.begin(job, 1600, 800)
        for done in range(801, 1001):
            watch.shown = 0.0
            watch.step(done, torch.tensor(0.12345))
            if done == 816:
                watch.epoch(replace(ROW, epoch=51))
        watch.progress.refresh()
        drawn = plain(terminal)
        watch.doing("measuring: 1 of 2")
        watch.end(RECORD, "runs/[red]run")
    assert any(line.startswith("[bold]run: l1, ") for line in drawn)
    bar = next(line for line in reversed(drawn) if "epoch" in line)
    assert re.fullmatch(r"[━╸╺ ]{8,} epoch 63/100  loss 0\.123  validation 87\.7 %  3\.14x left \d:\d\d:\d\d", bar)
    assert len(bar) <= 80
    text = "\n".join(plain(terminal))
    assert "measuring: 1 of 2" in text
    assert SENTENCE in text, "not broken into lines of 80"
    assert "in runs/[red]run" in text, "not taken for a colour"


def test_other_work_does_not_fill_the_bar(terminal):
    with Bars(terminal) as watch:
        watch.begin(JOB, 48, 0)
        watch.step(32, torch.tensor(1.0))
        watch.doing("cutting before the fine-tune")
        assert watch.progress.tasks[0].completed == 32


def test_a_bar_for_a_run_that_was_finished_before(terminal, trained):
    with watching(stream=terminal) as watch:
        record = train(JOB, trained[0], watch=watch)
    assert record == trained[1]
    assert sentence(record) in "\n".join(plain(terminal))
    with Bars(terminal) as watch:
        watch.doing("something before the run begins")


def test_a_sweep_tells_each_run_once(tmp_path):
    jobs = [replace(JOB, seed=seed, name=f"run{seed}") for seed in (0, 1)]
    text, as_json, terminal = io.StringIO(), io.StringIO(), Terminal()
    progress = Progress(tmp_path, jobs)
    with sweeping(progress, stream=text) as tick:
        tick()
        assert text.getvalue() == ""
        first = train(jobs[1], tmp_path)
        tick()
        tick()
        assert text.getvalue() == f"1/2 {sentence(first)}\n"
        second = train(jobs[0], tmp_path)
    assert text.getvalue().splitlines() == [f"1/2 {sentence(first)}", f"2/2 {sentence(second)}"]
    with sweeping(progress, as_json=True, stream=as_json):
        pass
    assert [json.loads(line) for line in as_json.getvalue().splitlines()] == [
        {"event": "finished", "run": name, "epochs": 6, "of": 6} for name in ("run0", "run1")
    ]
    with sweeping(progress, stream=terminal):
        pass
    assert "2/2 runs" in plain(terminal)[-1]
    assert "6/6 epochs" in plain(terminal)[-1]


def test_a_sweep_tells_at_once_what_failed(tmp_path, terminal):
    failures = [Failure("first", "holds another run [lr]"), Failure("second", "the loss is nan")]
    for stream, as_json in ((io.StringIO(), False), (io.StringIO(), True), (terminal, False)):
        progress = Progress(tmp_path, [JOB])
        with sweeping(progress, as_json=as_json, stream=stream) as tick:
            tick()
            for number, failure in enumerate(failures, 1):
                progress.failures.append(failure)
                tick()
                tick()
                shown = plain(stream) if stream is terminal else stream.getvalue().splitlines()
                lines = [line for line in shown if "failed" in line]
                assert len(lines) == number
                told = {"event": "failed", "run": failure.name, "reason": failure.reason}
                assert lines[-1].strip() == (json.dumps(told) if as_json else f"failed: {failure.name}: {failure.reason}")


def test_a_study_tells_each_stage_and_now_and_then_how_far_it_is(monkeypatch):
    text, now = io.StringIO(), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with studying(stream=text) as progress:
        progress.stage("training", 40)
        for _ in range(40):
            now[0] += 1.0
            progress.advance()
        progress.stage("drawing", 1)
        progress.advance()
    # 10 of 40 took 10 s, so 30 are left; then 20; the end of a stage shows in the next.
    lines = ["training", "training: 25%, 30 s left", "training: 50%, 20 s left", "training: 75%, 10 s left", "drawing"]
    assert text.getvalue().splitlines() == lines


def test_a_study_in_json(monkeypatch):
    text, now = io.StringIO(), [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with studying(as_json=True, stream=text) as progress:
        progress.stage("training", 3)
        for _ in range(3):
            progress.advance()
            now[0] += 6.0
        progress.stage("drawing", 1)
        for _ in range(10):
            progress.advance(0.1)  # in floating point their sum is less than 1
    told = [json.loads(line) for line in text.getvalue().splitlines()]
    assert [(line["stage"], line["done"], line["of"]) for line in told] == [
        ("training", 0.0, 3),
        ("training", 3.0, 3),
        ("drawing", 0.0, 1),
        ("drawing", 1.0, 1),
    ]
    assert {line["event"] for line in told} == {"stage"}


@pytest.mark.parametrize("parts", [[0.1] * 10, [0.7, 0.1, 0.1, 0.1], [0.4, 0.4, 0.3]])
def test_in_json_a_complete_stage_is_done_to_the_digit(parts):
    """In floating point the parts add up to a little less than 1, or more."""
    assert sum(parts) != 1
    text = io.StringIO()
    with studying(as_json=True, stream=text) as progress:
        progress.stage("training", 1)
        for part in parts:
            progress.advance(part)
    assert [json.loads(line)["done"] for line in text.getvalue().splitlines()] == [0, 1]


def test_a_quiet_study(tmp_path, capsys):
    for stream in (io.StringIO(), Terminal()):
        with studying(quiet=True, stream=stream) as progress:
            assert type(progress) is Stages
            progress.stage("training", 1)
            progress.advance()
            with progress.sweep(Progress(tmp_path, [JOB])) as tick:
                tick()
        assert stream.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def test_a_study_in_a_terminal_has_a_bar_for_each_stage(terminal, tmp_path):
    with studying(stream=terminal) as progress:
        progress.stage("training [bold]30 models", 4)
        progress.advance(3)
        progress.progress.refresh()
        assert re.match(r"training \[bold\]30 models [━╸╺ ]{30,} 0:00:0\d left ", plain(terminal)[-1])
        progress.advance()
        progress.stage("drawing", 1)
        progress.advance()
        with progress.sweep(Progress(tmp_path, [JOB])):
            pass
        progress.stage("writing", 1)
    drawn = plain(terminal)
    assert any(re.match(r"drawing +━{30,} 0:00:0\d left 0:00:00", line) for line in drawn)
    assert any("0/1 runs" in line for line in drawn)
    assert re.match(r"writing +━{30,} 0:00:0\d left -:--:--", drawn[-1])
    assert max(map(len, drawn)) <= 80


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_threads_lose_no_step(stream):
    with studying(stream=stream) as progress:
        progress.stage("training", 4000)
        threads = [threading.Thread(target=lambda: [progress.advance(0.5) for _ in range(1000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert progress.done == 2000.0


def test_a_study_shows_a_sweep_as_a_sweep(trained):
    out, _ = trained
    for as_json in (False, True):
        expected, text = io.StringIO(), io.StringIO()
        with sweeping(Progress(out, [JOB]), as_json=as_json, stream=expected):
            pass
        with studying(as_json=as_json, stream=text) as progress, progress.sweep(Progress(out, [JOB])):
            pass
        assert text.getvalue() == expected.getvalue() != ""


ARGUMENTS = ["train", "digits", "--method", "l1", "--set", "epochs=2", "--set", "model=mlp", "--set", "compressions=1,5"]


def test_a_pipe_gets_clean_lines(tmp_path):
    command = [sys.executable, "-m", "rewa", *ARGUMENTS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, env={**os.environ, "FORCE_COLOR": "1"})
    assert done.returncode == 0
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout
    assert b"\r" not in done.stdout
    assert re.search(rb"\nepoch 2/2  loss .* s left\n", done.stdout)


def test_a_terminal_gets_a_bar(tmp_path):
    """On a real pseudo-terminal, of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    arguments = [*ARGUMENTS, "--set", "epochs=20"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rewa", *arguments],
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""
    with process:
        try:
            while block := os.read(ours, 65536):
                shown += block
        except OSError:  # how Linux says that the other side is closed
            pass
        finally:
            os.close(ours)
            code = process.wait(60)
    assert code == 0
    lines = ESCAPE.sub("", shown.decode()).replace("\r", "\n").splitlines()
    bar = re.compile(r"epoch \d+/20  loss \d\.\d+  validation \d+\.\d %  [\d.]+x left \d:\d\d:\d\d$")
    bars = [line for line in lines if bar.search(line)]
    assert bars, lines
    assert max(map(len, bars)) <= 80
    assert any("% of test data right" in line for line in lines)


def draw_a_run(stream, tmp_path):
    with Bars(stream) as bars:
        bars.begin(JOB, 48, 0)
        bars.epoch(ROW)


def draw_a_sweep(stream, tmp_path):
    with sweeping(Progress(tmp_path, [replace(JOB, seed=seed) for seed in range(100)]), stream=stream) as tick:
        tick()


def draw_a_study(stream, tmp_path):
    with studying(stream=stream) as stages:
        stages.stage("a stage with so many words", 3)
        stages.advance()


@pytest.mark.parametrize("draw", [draw_a_run, draw_a_sweep, draw_a_study])
def test_a_bar_leaves_room_for_what_a_terminal_echoes(draw, terminal, tmp_path):
    """After Ctrl-C a terminal writes ^C behind the bar; in a full line it would break it, and the bar would stay twice."""
    draw(terminal, tmp_path)
    drawn = [part for part in re.split(r"[\r\n]", ESCAPE.sub("", terminal.getvalue())) if "━" in part]
    assert drawn
    assert max(map(len, drawn)) <= 80 - len("^C")
