"""Kills a training run again and again, and shows that nothing is lost or done twice.

    python tests/measure/kill.py         # each of the four scripts, 25 times
    python tests/measure/kill.py fsdp 5

`kill -9` hits one process or all of them, at random moments: while they start, train, or write
a checkpoint. After each kill the run is resumed. In the end, its metrics.csv and its weights
must be equal to those of an undisturbed run, to the last bit.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# The helpers of the tests; importing them adds the paths of the project.
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from conftest import SMALL, children_of, mathematics, read_metrics, workers_of
from parity import command, title

FLAGS = [*SMALL, "--eval-every", "300", "--save-every", "5"]
STEPS = {"cpu": 400, "ddp": 400, "fsdp": 400, "tp2": 20}  # for each kill; those of TP are slow


def train_and_kill(
    folder: Path, mode: str, procs: int, kills: int, steps: int, rng: random.Random, *flags: str
) -> list[str]:
    """Trains to `steps` in folder/logs/killed, with so many kills; returns a line for each.

    The command is the same each time: --name resumes a run that exists.
    """
    checkpoint = folder / "logs" / "killed" / "last.pt"
    arguments = command(mode, procs, "--name", "killed", "--steps", str(steps), *FLAGS, *flags)
    lines = []
    while True:
        run = subprocess.Popen(
            arguments,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if len(lines) < kills:
            began = time.monotonic()
            wait_for_a_moment(run, checkpoint, rng)
            if run.poll() is None:
                processes = kill_some(run, rng)
                lines.append(f"{processes}, {time.monotonic() - began:.1f} s after the start")
                continue
        errors = run.communicate(timeout=1800)[1]
        assert run.returncode == 0, errors
        assert len(lines) == kills, f"the run ended after {len(lines)} kills: use more steps"
        return lines


def wait_for_a_moment(run: subprocess.Popen, checkpoint: Path, rng: random.Random) -> None:
    """Waits for a random moment: mostly soon after a checkpoint, sometimes during the start."""

    def saved_at() -> int:
        return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0

    before = saved_at()
    if rng.random() < 0.8:
        while run.poll() is None and saved_at() == before:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.5))
    else:
        time.sleep(rng.uniform(0, 6))


def kill_some(run: subprocess.Popen, rng: random.Random) -> str:
    """Kills one worker or all processes, waits until they have ended; returns how many."""
    descendants = sorted(children_of(run.pid))
    workers = workers_of(run.pid)
    victims = [run.pid, *descendants]
    if rng.random() >= 0.5 and workers:
        victims = [rng.choice(workers)]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    count = f"{len(victims)} of {1 + len(descendants)} processes"
    run.communicate(timeout=90)
    end = time.monotonic() + 30
    while alive := [pid for pid in descendants if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < end, f"still running after kill -9 of {count}: {alive}"
        time.sleep(0.05)
    return count


def check(
    folder: Path, mode: str, procs: int, kills: int, steps: int, seed: int, *flags: str
) -> list[str]:
    """`train_and_kill`; asserts that the result is that of an undisturbed run."""
    done = subprocess.run(
        command(mode, procs, "--name", "calm", "--steps", str(steps), *FLAGS, *flags),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    lines = train_and_kill(folder, mode, procs, kills, steps, random.Random(seed), *flags)
    calm, killed = (folder / "logs" / name for name in ("calm", "killed"))
    assert mathematics(read_metrics(killed)) == mathematics(read_metrics(calm))
    a, b = (torch.load(run / "last.pt", weights_only=True) for run in (calm, killed))
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    assert not list(killed.glob("*.partial"))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", nargs="?", choices=STEPS, help="of the script [all]")
    parser.add_argument("kills", nargs="?", type=int, default=25, help="for each script [25]")
    args = parser.parse_args()
    kills = args.kills
    for mode in [args.mode] if args.mode else STEPS:
        with tempfile.TemporaryDirectory() as folder:
            lines = check(Path(folder), mode, 2, kills, STEPS[mode] * kills, 1)
        for number, line in enumerate(lines, 1):
            print(f"{title(mode)}, kill {number}: {line}")
        print(
            f"{title(mode)}: after {kills} kills, metrics.csv and the weights are those "
            "of an undisturbed run"
        )


if __name__ == "__main__":
    main()
