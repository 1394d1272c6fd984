"""Stopping a run on a signal: all processes finish the same step, and the run is saved."""

import os
import signal
import sys
from collections.abc import Callable

import psutil

# Ctrl-C, `kill`, the end of the terminal, and what Slurm sends near a time limit. Windows has
# only the first two.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
STOPPING = [signal.Signals[name] for name in NAMES if hasattr(signal, name)]


class Signals:
    """The signals that ask this process to stop. The class itself holds its state."""

    received = 0  # the last one, or 0
    parent = 0  # the process that has started this one
    run_stopped = False  # whether all processes have agreed to stop

    @classmethod
    def handle(cls, handler: Callable | signal.Handlers) -> None:
        """Sets the handler of all of them."""
        for number in STOPPING:
            # nohup ignores SIGHUP: train_cpu.py survives the end of its terminal.
            is_ignored = signal.getsignal(number) == signal.SIG_IGN
            if number.name != "SIGHUP" or not is_ignored:
                signal.signal(number, handler)

    @classmethod
    def status(cls) -> int:
        """Returns the exit status of a process whose run was stopped."""
        return 128 + (cls.received or signal.SIGTERM)

    @classmethod
    def note(cls, number: int, _frame) -> None:
        cls.received = number


def block_signals() -> None:
    """Holds signals back from this thread, and from processes that it starts, on POSIX."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def unblock_signals() -> None:
    """Delivers the signals that `block_signals` has held back, and later ones."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def parent_has_died() -> bool:
    """Returns whether the process that started this one is gone."""
    if sys.platform == "win32":  # there os.getppid() stays the same
        return not psutil.pid_exists(Signals.parent)
    return os.getppid() != Signals.parent


def stop_requested() -> bool:
    """Returns whether any process was asked to stop, by a signal or by its parent's death.

    A collective, so that all stop after the same step. It uses the CPU's process group: no GPU
    has to be waited for. Until the first call there is nothing to save, and a signal ends the
    process at once. From then on the loop that asks finishes its step, saves, and leaves.
    """
    import torch  # not at the top: batch/study.py imports this file, and does without
    import torch.distributed as dist

    Signals.handle(Signals.note)  # each time: with --minutes, training begins twice
    is_asked = Signals.received != 0 or parent_has_died()
    requests = torch.tensor(1 if is_asked else 0)
    dist.all_reduce(requests)
    Signals.run_stopped = bool(requests)
    return Signals.run_stopped
