"""How many epochs fit in --minutes: a trial of some steps, timed and then forgotten, tells."""

import contextlib
import dataclasses
import io
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch.distributed as dist

from support.common.streams import ignore_lost_stdout
from support.distributed.collectives import broadcast_object
from support.distributed.rendezvous import open_port
from support.distributed.signals import Signals

TRIAL_STEPS = 40  # or fewer, where these take longer than SHARE_OF_TRIAL
SHARE_OF_TRIAL = 0.2  # of the time
SHARE_OF_STEPS = 0.9  # of the time; the rest is for evaluations


@dataclass
class Trial:
    """When a trial ends, and what it has measured."""

    max_seconds: float  # after which it ends
    epoch_steps: int = 0
    epoch_seconds: float = 0.0  # of the steps of an epoch


def settle_length(train: Callable, rank: int, world_size: int, store: dist.Store, args) -> None:
    """Sets the number of epochs that fits in --minutes, or of steps if not even one epoch does.

    The trial is a run with --benchmark, which saves nothing: a run that is given the number of
    epochs is the same run. All processes take part. A signal in the trial ends them.
    """
    trial = Trial(60 * args.minutes * SHARE_OF_TRIAL)
    # With --log-every 1 each step is timed.
    trial_args = dataclasses.replace(
        args, benchmark=True, steps=TRIAL_STEPS, trial=trial, log_every=1, profile=False
    )
    # A port of its own: the keys of a group stay in its store, where the next would find them.
    server = open_port(dist.PrefixStore("trial", store), rank)
    with contextlib.redirect_stdout(io.StringIO()):
        train(rank, world_size, trial_args)
        measured = seconds_since_start(), trial.epoch_seconds
        elapsed, epoch_seconds = broadcast_object(measured)
        dist.destroy_process_group()
    del server
    if Signals.run_stopped:
        if rank == 0:
            with ignore_lost_stdout(OSError):
                print("stopped in the trial of --minutes; nothing was saved")
        sys.exit(Signals.status())
    remaining = max(0.0, 60 * args.minutes - elapsed) * SHARE_OF_STEPS
    epochs = remaining / epoch_seconds
    if epochs >= 1:
        args.epochs = int(epochs)
        args.steps = 0
    else:
        args.steps = max(1, int(epochs * trial.epoch_steps))


def seconds_since_start() -> float:
    """Returns the age of the parent process in seconds: train_cpu.py, or torchrun's agent."""
    return time.time() - psutil.Process(os.getppid()).create_time()
