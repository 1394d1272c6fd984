"""The processes of a run: how they find each other, add up, are asked to stop, and are missed when they die.

When they do what, step by step, stands in the training scripts.
"""

import fcntl
import logging
import os
import signal
import socket
import struct
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from multiprocessing import resource_tracker

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from corpora import BadInput

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


def hold_signals() -> None:
    """Has the signals that ask to stop wait, here and in processes started from here, until somebody answers them."""
    resource_tracker.ensure_running()                      # now, as starting it lets signals through
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def look_after(workers: mp.ProcessContext, run: str) -> None:
    """The parent's part, until all of mp.spawn's `workers` have ended: passes signals on, exits with their status.

    run: the folder of the run, to say how to go on with it where a worker has died.
    """
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    received = []

    def forward(number: int, _frame) -> None:
        received.append((number, time.monotonic()))
        again = received[-1][1] - received[0][1] > 2       # asked once more: do not wait for the step's end
        for process in workers.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL if again else number)

    for number in STOPPING:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    try:
        while not workers.join():
            pass
    except (mp.ProcessExitedException, mp.ProcessRaisedException) as problem:
        codes = [process.exitcode for process in workers.processes]
        if not received and 2 in codes:                    # that worker said why
            sys.exit(2)
        if not received:
            killed = -signal.SIGKILL in codes and f"process {codes.index(-signal.SIGKILL)} of {len(codes)} was killed (SIGKILL)"
            then = f"go on with: python {os.path.basename(sys.argv[0])} --resume {run}" if os.path.exists(f"{run}/last.pt") else "nothing was saved"
            sys.exit(f"error: {killed or problem}; {then}")
    if received:
        sys.exit(128 + received[0][0])


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


def add_up(table: Tensor, rank: int, factor: float) -> None:
    """All-reduce: each process sums its share of the columns over all rows, and writes `factor` times that to all.

    Through memory this takes a quarter of the time of Gloo's all_reduce, which goes through a socket.
    """
    for block in table.tensor_split(len(table), dim=1)[rank].split(1 << 16, dim=1):      # it fits into the cache
        for row in block[1:]:
            block[0] += row
        block[0] *= factor
        block[1:] = block[0]
    dist.barrier()                                         # until all have done their share


def exchange(how: tuple[Tensor | None, float], bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """A communication hook of DistributedDataParallel, in place of its own all-reduce: averages a bucket of gradients.

    how: a table that all share, if the processes are on one node, and seconds to wait before, as a slow network would.
    The backward pass waits too: what a network costs without any overlap, for each of DDP's buckets.
    """
    table, seconds = how
    time.sleep(seconds)
    if table is None:
        return allreduce_hook(dist.group.WORLD, bucket)
    gradients, rank = bucket.buffer(), dist.get_rank()     # of the whole model: on one node there is one bucket
    table[rank] = gradients
    dist.barrier()                                         # until all have written their row
    add_up(table, rank, 1 / len(table))
    done = torch.futures.Future()
    done.set_result(gradients.copy_(table[rank]))
    return done


def leave(status: int) -> None:
    """Ends this process at once: at Python's own end a thread of Gloo's may still hold a tensor, and abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
