"""Kill a run at random moments, resume it, and compare with one that was left alone: weights and records, byte for byte.

python checks/kills.py --kills 20
python checks/kills.py --kills 3 --set epochs=2 --method l1
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILES = ("trained.safetensors", "model.rewa", "record.json")


def start(out: Path, recipe: str, rest: list[str]) -> subprocess.Popen[bytes]:
    """One ``rewa train``, in a process of its own."""
    command = [sys.executable, "-m", "rewa", "train", recipe, "--name", "run", "--out", str(out), "--quiet", *rest]
    return subprocess.Popen(command, cwd=out.parent)


def wait_for(out: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the run has begun: a process killed while it imports torch proves nothing."""
    while not (out / "run" / "record.json").exists() and process.poll() is None:
        time.sleep(0.01)


def sums(folder: Path) -> dict[str, str]:
    """The SHA-256 sums of what a run leaves; in the record, the command names the folder, which is another one here."""
    text = (folder / "record.json").read_text().replace(str(folder.parent), "OUT")
    contents = {name: (folder / name).read_bytes() for name in FILES[:2]} | {FILES[2]: text.encode()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def main(words: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--method", default="rewa")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for rewa train")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="(default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default 0)")
    options = parser.parse_args(words)
    rest = ["--method", options.method, *(word for change in options.set for word in ("--set", change))]
    draw = random.Random(options.seed)
    scratch = Path(tempfile.mkdtemp(prefix="rewa-kills-"))
    try:
        process = start(scratch / "whole", options.recipe, rest)
        wait_for(scratch / "whole", process)
        began = time.monotonic()
        if process.wait(3600):
            return 1
        duration = time.monotonic() - began
        expected = sums(scratch / "whole" / "run")
        same = kills = 0
        while kills < options.kills:
            out = scratch / "killed"
            moment = draw.uniform(0, duration)
            process = start(out, options.recipe, rest)
            wait_for(out, process)
            time.sleep(moment)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait(60)
                kills += 1
                left = sorted(path.name for path in (out / "run" / "checkpoints").glob("*"))
                if start(out, options.recipe, rest).wait(3600):
                    return 1
                equal = sums(out / "run") == expected
                same += equal
                words = f"left {', '.join(left) or 'no checkpoint'}: {'identical' if equal else 'DIFFERENT'}"
                print(f"{kills:3}: killed after {moment:5.2f} of {duration:.2f} s, {words}", flush=True)
            shutil.rmtree(out)  # of a run that was over before, too: another moment is drawn
        print(f"{same} of {options.kills} identical in weights and record")
        return 0 if same == options.kills else 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
