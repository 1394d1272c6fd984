"""Stopping a run on a signal: every process finishes the same step, and the run is saved."""

import os
import signal

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class Signals:
    """The signals that ask this process to stop."""

    received = 0  # the last one
    noted = False  # whether they are only noted; before, they end the process at once
    parent = 0

    @classmethod
    def answer(cls, how) -> None:
        for number in STOPPING:
            # nohup has SIGHUP ignored: train_cpu.py survives the end of its terminal.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, how)

    @classmethod
    def note(cls, number: int, _frame) -> None:
        cls.received = number


def stop_requested() -> bool:
    """Whether this process was asked to stop, by a signal or by its parent's death.

    Until the first call there is nothing to save, and such a signal ends the process at once. From
    then on it only changes the answer: the loop that asks finishes its step, saves, and leaves.
    """
    if not Signals.noted:
        Signals.answer(Signals.note)
        Signals.noted = True
    return bool(Signals.received) or os.getppid() != Signals.parent
