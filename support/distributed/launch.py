"""How the processes of a run start, end, and report one that dies.

    spawn(train, args)                                     # train_cpu.py: mp.spawn, on this machine
    torchrun(train, args)                          # train_ddp.py, train_fsdp.py: torchrun, anywhere

Both call train(rank, world_size, store, args) in every process. It returns whether it was stopped.
"""

import fcntl
import logging
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import resource_tracker
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from support.common.errors import UserError, exit_on_user_error
from support.common.hardware import available_cores
from support.common.kernels import configure_backends
from support.distributed.delay import delayed_exchanges
from support.distributed.rendezvous import (
    interface_to,
    name_lost_processes,
    publish,
    restart_store,
    share_arguments,
    store_on_loopback,
    wait_for_result,
)
from support.distributed.signals import STOPPING, Signals
from support.training import flags

MEET = timedelta(minutes=1)  # enough: the store was there before the processes

# --- What every process does ----------------------------------------------------------------------


def run(
    train: Callable, rank: int, world_size: int, store: dist.Store, args: Namespace
) -> bool:
    """Calls `train` in this process, with all around it that is not training."""
    configure_backends()
    torch.set_num_threads(args.threads)
    # Also for groups that others make, such as those of --replicas: else they wait for 30 minutes.
    dist.distributed_c10d.default_pg_timeout = timedelta(seconds=args.timeout)
    delay = 0 if args.netem else args.delay_ms / 1000
    Signals.parent = os.getppid()
    Signals.answer(signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # `spawn` has them wait until here
    with name_lost_processes(store, rank, world_size), delayed_exchanges(delay):
        stopped = train(rank, world_size, store, args)
        # Here, and not in `train`: DDP, which uses the group, has to be gone before it.
        dist.destroy_process_group()
        return stopped


def place(rank: int) -> tuple[int, str]:
    """A process's number on its node, and the node's, as torchrun counts; else all are on one."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # not another launcher's variables
        return int(os.environ["LOCAL_RANK"]), os.environ["GROUP_RANK"]
    return rank, "0"


@contextmanager
def one_speaks(rank: int):
    """An error that all processes meet is printed by the first of each node; the rest end with it.

    Rank 0 waits a second: where it is, there is the store, in which the others still read.
    """
    try:
        yield
    except (UserError, OSError):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(1 if rank == 0 else 4 if place(rank)[0] else 0)
        raise


def leave(number: int, _frame) -> None:
    """Ends the process by SystemExit; a second signal is ignored while half-written files go."""
    Signals.answer(lambda *_: None)
    sys.exit(128 + number)


@contextmanager
def rank_0_first(store: dist.Store, rank: int):
    """Rank 0 runs the block before the others: it downloads and encodes what they then find.

    After it comes the first process of each other node, which may have a disk of its own.
    """
    local_rank, node = place(rank)
    if rank > 0:
        wait_for_result(store, "prepared/0")
    if local_rank > 0:
        wait_for_result(store, f"prepared/{node}")
        yield
    else:
        Signals.answer(leave)  # removes what is half-written
        with publish(store, f"prepared/{node}"):
            yield
        Signals.answer(signal.SIG_DFL)


# --- mp.spawn -------------------------------------------------------------------------------------


def spawn(train: Callable, args: Namespace) -> None:
    """Starts --procs processes on this machine's CPU, and waits until they have ended.

    train: what each of them calls; args: from `parse_arguments`. Passes signals on to the
    processes, and ends with status 0, 1 where one died, 2 for bad input, 128 + signal where it was
    stopped.
    """
    with exit_on_user_error():
        if "TORCHELASTIC_RUN_ID" in os.environ:
            raise UserError(
                f"it starts its own processes, without torchrun: python {' '.join(sys.argv)}"
            )
        cores = available_cores()
        args = flags.complete(args)
        # A process per core, up to 8: its one thread waits for no other inside an operation. Past
        # 8, or with few tokens for each, exchanging costs more than it brings; so it does for texts
        # to be classified, whose presets have one process with all threads.
        procs = args.procs or max(1, min(cores, 8, args.batch_tokens // 512))
        args.threads = max(1, cores // procs)
        if procs > 4 * cores:
            forget_empty(args.folder)
            raise UserError(
                f"--procs {args.procs}: at most 4 for each of the {cores} cores here"
            )
    store = store_on_loopback()
    # Threads that wait for each other soon sleep. Spinning, they would keep cores from the threads
    # that they wait for: many times slower where other work shares the cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Until all have started, a signal waits: in the new processes, which inherit the mask; here it
    # is also noted, as the mask is one thread's alone, and libraries have started others.
    early = []
    Signals.answer(lambda number, _: early.append(number))
    resource_tracker.ensure_running()  # now, as starting it lets signals through
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    workers = mp.spawn(worker, (train, args, store.port, procs), nprocs=procs, join=False)
    watch(workers, args.folder, early)


def worker(rank: int, train: Callable, args: Namespace, port: int, world_size: int) -> None:
    """One process of `spawn`."""
    with exit_on_user_error(), one_speaks(rank):
        try:
            store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=MEET)
        except dist.DistError:  # the parent was killed meanwhile
            sys.exit(1)
        store.set_timeout(timedelta(seconds=args.timeout))
        run(train, rank, world_size, store, args)


def watch(workers: mp.ProcessContext, folder: str, early: list[int]) -> None:
    """The parent's part, until all `workers` have ended; then exits with their status.

    early: signals that came while the workers were started.
    """
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    received = []

    def forward(number: int, _frame) -> None:
        received.append((number, time.monotonic()))
        again = received[-1][1] - received[0][1] > 2  # asked twice: do not wait longer
        for process in workers.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL if again else number)

    Signals.answer(forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    for number in early:
        os.kill(os.getpid(), number)
    try:
        while not workers.join():
            pass
    except (mp.ProcessExitedException, mp.ProcessRaisedException) as failure:
        problem = str(failure)
        codes = [process.exitcode for process in workers.processes]
        forget_empty(folder)
        if not received and 2 in codes:  # that process said why
            sys.exit(2)
        if not received:
            if -signal.SIGKILL in codes:
                rank = codes.index(-signal.SIGKILL)
                problem = f"process {rank} of {len(codes)} was killed (SIGKILL)"
            script = os.path.basename(sys.argv[0])
            saved = os.path.exists(f"{folder}/last.pt")
            go_on = f"go on with: python {script} --resume {folder}"
            sys.exit(f"error: {problem}; {go_on if saved else 'nothing was saved'}")
    if received:
        sys.exit(128 + received[0][0])


def forget_empty(folder: str) -> None:
    """Removes a run's folder if nothing but a lock has been written to it."""
    with suppress(OSError), open(f"{folder}/.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else another run has it
        if os.listdir(folder) == [".lock"]:
            os.unlink(f"{folder}/.lock")
    for path in (Path(folder), Path(folder).parent) if folder else ():
        with suppress(OSError):
            path.rmdir()


# --- torchrun -------------------------------------------------------------------------------------


def torchrun(train: Callable, args: Namespace) -> None:
    """Calls `train` in this process, one of those that torchrun has started on one node or many.

    args: from `parse_arguments`; rank 0 completes them and sends them to all. When a process has
    died, torchrun --max-restarts starts all of them again: they go on with their run. Ends as
    `spawn` does.
    """
    rank = int(os.environ.get("RANK", 0))
    with exit_on_user_error(), one_speaks(rank):
        if "RANK" not in os.environ:
            raise UserError(
                f"start it with torchrun: torchrun --standalone --nproc-per-node 2 "
                f"{' '.join(sys.argv)}"
            )
        if name := interface_to(os.environ["MASTER_ADDR"]):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        try:
            shared, rank, world_size = next(dist.rendezvous("env://", timeout=MEET))
        except dist.DistError:
            raise UserError("torchrun has ended meanwhile") from None
        timeout = args.given.get("timeout", args.defaults["timeout"])
        flags.check_bounds(Namespace(timeout=timeout), {"timeout": flags.BOUNDS["timeout"]})
        shared.set_timeout(timedelta(seconds=timeout))
        try:
            store = restart_store(shared, rank, world_size, timeout)
            args = share_arguments(args, shared, store, rank, world_size)
            shared.set_timeout(timedelta(seconds=args.timeout))  # --config may have another
            args.threads = torch.get_num_threads()  # torchrun gives each of several one
            stopped = run(train, rank, world_size, store, args)
        except dist.DistNetworkError:  # the store is where process 0 is
            raise UserError("process 0 has ended: what its node prints says why") from None
        except (UserError, OSError, SystemExit):
            with suppress(dist.DistError):  # the store may be gone
                if rank == 0 and shared.check(["folder"]):
                    forget_empty(shared.get("folder").decode())
            raise
    # At Python's own end a thread of Gloo's may still hold a tensor, and abort: leave at once.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(128 + (Signals.received or signal.SIGTERM) if stopped else 0)
