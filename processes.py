"""The processes of a run: how they find each other, are asked to stop, and are missed when they die.

What they do together, step by step, stands in the training scripts.
"""

import fcntl
import os
import signal
import socket
import struct
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from corpora import BadInput
from data import ALLOCATOR

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Stop:
    """True after Ctrl-C, SIGTERM, SIGUSR1 or the parent's death: the loop then saves and leaves."""

    received = 0                                           # the last signal, in this process

    def __init__(self):
        self.parent = os.getppid()
        for number in STOPPING:
            signal.signal(number, self.receive)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)     # the parent may have them wait until here

    def receive(self, number: int, _frame) -> None:
        Stop.received = number

    def __bool__(self) -> bool:
        return bool(self.received) or os.getppid() != self.parent


def join_torchrun() -> tuple[dist.Store | None, int, int]:
    """The store that torchrun's processes share, this one's rank, and how many they are. Raises BadInput.

    When one has died, torchrun (--max-restarts) starts all again with the same command: they then go on
    with the run that the store has the folder of.
    """
    if "RANK" not in os.environ:
        if {"-h", "--help"} & {*sys.argv}:
            return None, 0, 1
        raise BadInput(f"start it with torchrun: torchrun --standalone --nproc-per-node 2 {' '.join(sys.argv)}")
    signal.signal(signal.SIGINT, signal.SIG_DFL)           # until there is something to save
    if not torch.cuda.is_available() and not os.environ.keys() >= ALLOCATOR.keys():
        os.environ.update(ALLOCATOR)
        os.execv(sys.executable, sys.orig_argv)            # begins again, as these count from a process's start
    if name := interface_to(os.environ["MASTER_ADDR"]):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    store, rank, world_size = next(dist.rendezvous("env://"))
    if store.check(["run"]):
        run = store.get("run").decode()
        sys.argv += ["--resume", run] if os.path.isfile(f"{run}/last.pt") else ["--run", run.removeprefix("logs/")]
    return store, rank, world_size


def this_attempt(store: dist.Store, rank: int, world_size: int) -> dist.Store:
    """A part of torchrun's store for this start of the processes: keys of a start that failed are not in it.

    torchrun's own count of restarts differs from node to node. So rank 0 names the start, and tells the name
    to each process that asks, by a name that nobody but this process has.
    """
    own = uuid.uuid4().hex
    store.set(f"asks/{rank}", own)
    if rank > 0:
        attempt = dist.PrefixStore(store.get(f"told/{own}").decode(), store)
        attempt.set(f"joined/{rank}", "")
        return attempt
    attempt = dist.PrefixStore(own, store)
    while waiting := [r for r in range(1, world_size) if not attempt.check([f"joined/{r}"])]:
        for asking in [f"asks/{r}" for r in waiting]:
            if store.check([asking]):                      # perhaps a process that is dead: then a new one will follow
                store.set(f"told/{store.get(asking).decode()}", own)
        time.sleep(0.02)
    return attempt


def interface_to(address: str) -> str | None:
    """The network interface through which `address` is reached; None where Linux does not say.

    Gloo would take the one that this machine's name stands for, which often is a loopback address.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 1))                    # of a datagram socket: nothing is sent
            for _, name in socket.if_nameindex():
                try:
                    answer = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()))      # SIOCGIFADDR
                except OSError:                            # it has no address
                    continue
                if socket.inet_ntoa(answer[20:24]) == probe.getsockname()[0]:
                    return name
    except OSError:
        pass
    return None


@contextmanager
def name_lost_processes(store: dist.Store, rank: int, world_size: int):
    """If the processes lose one of them, says which: all that notice sign in the store, who is missing is lost."""
    try:
        yield
    except RuntimeError as problem:
        if "gloo" not in str(problem) and not isinstance(problem, dist.DistError):
            raise
        signal.signal(signal.SIGTERM, signal.SIG_DFL)      # who started a process that died ends the others so,
        if Stop.received:                                  # and says itself who it was
            sys.exit(128 + Stop.received)
        store.set(f"noticed/{rank}", "")
        time.sleep(2)
        lost = [r for r in range(world_size) if not store.check([f"noticed/{r}"])]
        if not lost:
            raise
        raise BadInput(f"process {', '.join(map(str, lost))} of {world_size} has died or does not answer "
                       f"({str(problem).splitlines()[0][:200]})")


def shared_table(store: dist.Store, rank: int, rows: int, columns: int) -> Tensor:
    """A tensor (rows, columns) of zeros in memory that all processes share: a file that rank 0 makes, mapped by all."""
    if rank == 0:
        linux = hasattr(os, "memfd_create")                # in memory: neither a disk nor the size of /dev/shm limits it
        file = open(os.memfd_create("gradients"), "wb") if linux else tempfile.NamedTemporaryFile()
        store.set("table", f"/proc/{os.getpid()}/fd/{file.fileno()}" if linux else file.name)
    table = torch.from_file(store.get("table").decode(), shared=True, size=rows * columns).view(rows, columns)
    dist.barrier()                                         # before rank 0 closes it: all have it open now
    return table


def leave(status: int) -> None:
    """Ends this process at once: at Python's own end a thread of Gloo's may still hold a tensor, and abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
