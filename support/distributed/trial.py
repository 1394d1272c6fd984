"""Finds how many epochs fit in --minutes, by a short trial that is timed and discarded."""

import contextlib
import dataclasses
import io
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch.distributed as dist

from support.common.streams import ignore_lost_stdout
from support.distributed.collectives import broadcast_object
from support.distributed.rendezvous import new_port
from support.distributed.signals import Signals

TRIAL_STEPS = 40  # or fewer, where these take longer than SHARE_OF_TRIAL
SHARE_OF_TRIAL = 0.2  # of --minutes
# A later evaluation takes about half as long as that of the trial: a first call is slower, and
# a model that has hardly learnt translates every sentence to the greatest length.
LATER_EVALUATION = 0.5
FINAL_SCORING = 3  # evaluations that the scoring at the end takes as long as
LITTLE = 0.3  # share of --minutes: a run warns if less is left to train in
UNUSED = 0.05  # share of --minutes that is kept free, because speeds vary


@dataclass
class Trial:
    """When a trial ends, and what it has measured."""

    max_seconds: float  # after which it ends
    epoch_steps: int = 0
    eval_every: int = 0  # steps between evaluations
    epoch_seconds: float = 0.0  # of the steps of an epoch
    steps_ended: float = 0.0  # when the last step did, by time.perf_counter
    evaluation_seconds: float = 0.0  # to evaluate and save once, without what a thread writes
    elapsed: float = 0.0  # seconds since the command was started


def settle_length(train: Callable, rank: int, world_size: int, store: dist.Store, args) -> None:
    """Sets the number of epochs that fits in --minutes, or of steps if not even one epoch does.

    All processes take part. A signal in the trial ends them.
    """
    say(rank, f"--minutes {args.minutes:g}: first a trial of some steps and an evaluation")
    trial = run_trial(train, rank, world_size, store, args)
    if Signals.run_stopped:
        say(rank, "stopped in the trial of --minutes; nothing was saved")
        sys.exit(Signals.status())
    evaluation_seconds = LATER_EVALUATION * trial.evaluation_seconds
    remaining = 60 * args.minutes * (1 - UNUSED) - trial.elapsed
    remaining -= FINAL_SCORING * evaluation_seconds
    evaluations = trial.epoch_steps / trial.eval_every  # in an epoch
    epoch_seconds = trial.epoch_seconds + evaluations * evaluation_seconds
    if remaining < 60 * args.minutes * LITTLE:
        say(
            rank,
            f"warning: --minutes {args.minutes:g} is too short: preparing took "
            f"{trial.elapsed:.0f} seconds, and an evaluation takes {evaluation_seconds:.0f}; "
            f"{max(0.0, remaining):.0f} are left for training",
        )
    epochs = max(0.0, remaining) / epoch_seconds
    if epochs >= 1:
        args.epochs = int(epochs)
        args.steps = 0
    else:
        args.steps = max(1, int(epochs * trial.epoch_steps))


def run_trial(train: Callable, rank: int, world_size: int, store: dist.Store, args) -> Trial:
    """Trains for some steps, evaluates and saves once, and returns what rank 0 has measured.

    In a small corpus an evaluation takes longer than the steps of an epoch. The trial is a run
    with --benchmark whose files are removed, so that a run which is given the number of epochs
    is the same run.
    """
    trial = Trial(60 * args.minutes * SHARE_OF_TRIAL)
    folder = Path(args.folder) / ".trial"
    # With --log-every 1 each step is timed.
    trial_args = dataclasses.replace(
        args,
        folder=str(folder),
        benchmark=True,
        steps=TRIAL_STEPS,
        trial=trial,
        log_every=1,
        profile=False,
    )
    # A port of its own: the keys of a group stay in its store, where the next would find them.
    with new_port(dist.PrefixStore("trial", store), rank):
        try:
            # Rank 0 writes there; with --sharded, PyTorch makes the other nodes' folders.
            if rank == 0:
                folder.mkdir(parents=True, exist_ok=True)
            with contextlib.redirect_stdout(io.StringIO()):
                train(rank, world_size, trial_args)
        finally:  # each process removes it, whoever is first
            shutil.rmtree(folder, ignore_errors=True)
        trial.elapsed = seconds_since_start()
        trial = broadcast_object(trial)
        dist.destroy_process_group()
    return trial


def say(rank: int, text: str) -> None:
    """Prints a line from rank 0."""
    if rank == 0:
        with ignore_lost_stdout(OSError):
            print(text)


def seconds_since_start() -> float:
    """Returns the age of the parent process in seconds: train_cpu.py, or torchrun's agent."""
    return time.time() - psutil.Process(os.getppid()).create_time()
