"""Kills a training run again and again, and shows that nothing is lost or done twice.

`kill -9` hits one process or all of them, at random moments: while they start, train, or write
a checkpoint. After each kill the run is resumed. tests/measure/soak.py does more, for longer.
"""

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import torch
from conftest import (
    SMALL,
    children_of,
    is_alive,
    mathematics,
    read_metrics,
    wait_for,
    workers_of,
)
from parity import command

FLAGS = [*SMALL, "--eval-every", "300", "--save-every", "5"]


def check(folder: Path, mode: str, kills: int, steps: int, seed: int, *flags: str) -> None:
    """Trains on two processes with so many kills, and compares with an undisturbed run.

    Metrics and weights must be equal to the last bit.
    """
    rng = random.Random(seed)

    def start(name: str) -> subprocess.Popen:
        how = ["--name", name, "--steps", str(steps), *FLAGS, *flags]  # it resumes a run, too
        return subprocess.Popen(
            command(mode, 2, *how),
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    calm, killed = (folder / "logs" / name for name in ("calm", "killed"))
    for _ in range(kills):
        run = start("killed")
        wait_for_a_moment(run, killed / "last.pt", rng)
        assert run.poll() is None, f"it ended by itself: {run.communicate()[1]}"
        kill_some(run, rng)
    for name in ("killed", "calm"):
        run = start(name)
        _, errors = run.communicate(timeout=1800)
        assert run.returncode == 0, errors
    assert mathematics(read_metrics(killed)) == mathematics(read_metrics(calm))
    a, b = (torch.load(run / "last.pt", weights_only=True) for run in (calm, killed))
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    assert not list(killed.glob("*.partial"))


def wait_for_a_moment(run: subprocess.Popen, checkpoint: Path, rng: random.Random) -> None:
    """Waits for a random moment: mostly soon after a checkpoint, sometimes during the start."""

    def saved_at() -> int:
        return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0

    before = saved_at()
    if rng.random() < 0.8:
        wait_for(lambda: run.poll() is not None or saved_at() != before)
        time.sleep(rng.uniform(0, 0.5))
    else:
        time.sleep(rng.uniform(0, 6))


def kill_some(run: subprocess.Popen, rng: random.Random) -> None:
    """Kills one worker or all processes, and waits until all have ended."""
    descendants = sorted(children_of(run.pid))
    workers = workers_of(run.pid)
    victims = [run.pid, *descendants]
    if rng.random() >= 0.5 and workers:
        victims = [rng.choice(workers)]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.communicate(timeout=90)
    wait_for(lambda: not any(map(is_alive, descendants)), 30)
