"""Kills a training run again and again, as the world does, and shows that nothing is lost and nothing twice.

    python tests/measure/kill.py                                  # each of the three scripts, 25 times
    python tests/measure/kill.py fsdp 5

`kill -9` of one process or of all, at random moments: while they start, train, or write a checkpoint. After
each the run is resumed, in the end its metrics.csv must be that of a run that nobody disturbed, and its
weights the same to the last bit.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from conftest import SMALL, children_of, mathematics, read_metrics, workers_of
from parity import command

FLAGS = [*SMALL, "--eval-every", "300", "--save-every", "5"]


def train_and_kill(
    folder: Path, mode: str, procs: int, kills: int, steps: int, rng: random.Random, *flags: str
) -> list[str]:
    """Trains to `steps` in folder/logs/killed with so many kills on the way, and says what it killed.

    The command is the same each time: --name goes on with a run that is there.
    """
    last, said = folder / "logs" / "killed" / "last.pt", []
    how = ["--name", "killed", "--steps", str(steps), *FLAGS, *flags]
    while True:
        run = subprocess.Popen(
            command(mode, procs, *how),
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if len(said) < kills:
            before, began = last.stat().st_mtime_ns if last.exists() else 0, time.monotonic()
            training = rng.random() < 0.8  # else while it starts
            while (
                training
                and run.poll() is None
                and (last.stat().st_mtime_ns if last.exists() else 0) == before
            ):
                time.sleep(0.01)
            moment = rng.uniform(0, 0.5 if training else 6)
            time.sleep(moment)
            if run.poll() is None:
                everyone = sorted(children_of(run.pid))
                workers = workers_of(run.pid)
                victims = (
                    [run.pid, *everyone]
                    if rng.random() < 0.5 or not workers
                    else [rng.choice(workers)]
                )
                for pid in victims:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                said.append(
                    f"{len(victims)} of {1 + len(everyone)} processes, {time.monotonic() - began:.1f} s after the start"
                )
                run.communicate(timeout=90)
                end = time.monotonic() + 30
                while alive := [pid for pid in everyone if os.path.exists(f"/proc/{pid}")]:
                    assert time.monotonic() < end, f"still running after {said[-1]}: {alive}"
                    time.sleep(0.05)
                continue
        errors = run.communicate(timeout=600)[1]
        assert run.returncode == 0, errors
        assert len(said) == kills, (
            f"the run was over after {len(said)} kills: more steps are needed"
        )
        return said


def check(
    folder: Path, mode: str, procs: int, kills: int, steps: int, seed: int, *flags: str
) -> list[str]:
    """`train_and_kill`, beside a run that nobody disturbs."""
    done = subprocess.run(
        command(mode, procs, "--name", "calm", "--steps", str(steps), *FLAGS, *flags),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    said = train_and_kill(folder, mode, procs, kills, steps, random.Random(seed), *flags)
    calm, killed = (folder / "logs" / name for name in ("calm", "killed"))
    assert mathematics(read_metrics(killed)) == mathematics(read_metrics(calm))
    a, b = (torch.load(run / "last.pt", weights_only=True) for run in (calm, killed))
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    assert not list(killed.glob("*.partial"))
    return said


def main() -> None:
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 25
    for mode in sys.argv[1:2] or ("cpu", "ddp", "fsdp"):
        with tempfile.TemporaryDirectory() as folder:
            for number, what in enumerate(
                check(Path(folder), mode, 2, kills, 400 * kills, 1), 1
            ):
                print(f"train_{mode}.py, kill {number}: {what}")
        print(
            f"train_{mode}.py: after {kills} kills metrics.csv and the weights are those of an undisturbed run"
        )


if __name__ == "__main__":
    main()
