"""How the processes of a run start, end, and report one that dies.

    spawn(train, command_line)               # train_cpu.py: starts processes on this machine
    run_under_torchrun(train, command_line)  # the others: in each process that torchrun starts

Both call train(rank, world_size, args) in every process. Under torchrun a process connects to
torchrun's store and agrees with the others on the settings; then it trains. With --minutes, a
trial comes first (`set_up_and_train`).
"""

import atexit
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from multiprocessing import resource_tracker

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from support.common.errors import UserError, exit_on_user_error, is_out_of_memory
from support.common.hardware import available_cores, configure_backends
from support.common.paths import quote, script_path
from support.common.run_folder import remove_if_empty
from support.common.streams import prepare_streams
from support.distributed import rendezvous
from support.distributed.collectives import long_barrier
from support.distributed.signals import Signals, block_signals, unblock_signals

Train = Callable[..., None]  # train(rank, world_size, args)

CONNECT_TIMEOUT = timedelta(minutes=1)  # enough: the store was there before the processes
MAX_PROCS_BY_DEFAULT = 8
MIN_TOKENS_PER_PROC = 512
MAX_PROCS_PER_CORE = 4
KILLED = -9  # the exit code of a process that SIGKILL has ended, which Windows does not have
KILL_AFTER = 2  # seconds: a signal that long after the first one kills the processes

# --- What every process does ------------------------------------------------------------------


class ThisProcess:
    """The rank and the store of this process, for `rank_0_first`, which gets no arguments."""

    rank = 0
    store: dist.Store  # of this start: see support/distributed/rendezvous.py


def set_up_and_train(train: Train, rank: int, world_size: int, store: dist.Store, args) -> None:
    """Sets up this process, calls `train`, and destroys its process group."""
    ThisProcess.rank = rank
    ThisProcess.store = store
    configure_backends(args.precision)
    torch.set_num_threads(args.threads)
    # Device meshes make groups of their own, which would otherwise wait for 30 minutes.
    dist.distributed_c10d.default_pg_timeout = timedelta(seconds=args.timeout)
    Signals.parent = os.getppid()
    Signals.handle(signal.SIG_DFL)
    unblock_signals()  # `spawn` has blocked them until here
    with (
        rendezvous.report_lost_processes(store, rank, world_size),
        report_out_of_memory(rank, args.device),
        ExitStack() as stack,
    ):
        if args.device == "cuda" and world_size > 1:
            from support.distributed.liveness import exit_if_another_dies

            stack.enter_context(exit_if_another_dies(store, rank, world_size))
        if args.delay_ms and not args.netem:
            from support.distributed.delay import delayed_collectives

            stack.enter_context(delayed_collectives(args.delay_ms / 1000))
        if args.minutes and not args.is_resumed:
            from support.distributed.trial import settle_length

            settle_length(train, rank, world_size, store, args)
        with rendezvous.new_port(store, rank):
            train(rank, world_size, args)
            # Here, and not in `train`: DDP, which uses the group, has to be gone before it.
            dist.destroy_process_group()


def node_and_local_rank(rank: int) -> tuple[str, int]:
    """Returns the node of a process and its number there; without torchrun all are on one."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # not another launcher's variables
        return os.environ["GROUP_RANK"], int(os.environ["LOCAL_RANK"])
    return "0", rank


@contextmanager
def report_out_of_memory(rank: int, device: str):
    """Raises UserError where the block runs out of memory, a GPU's or the CPU's."""
    try:
        yield
    except (RuntimeError, MemoryError) as problem:
        if not is_out_of_memory(problem):
            raise
        is_cpu = device == "cpu" or isinstance(problem, MemoryError)
        owner = "the CPU's" if is_cpu else "its GPU's"
        raise UserError(
            f"process {rank} is out of {owner} memory; choose a larger --accumulate or "
            f"--recompute, or begin another run with a smaller --batch-tokens or --batch-size"
        ) from None


@contextmanager
def end_at_once():
    """Makes this process end before Python deletes its modules, with the block's exit status.

    A thread of Gloo's may still hold a tensor. Where it drops the tensor while Python deletes
    its modules, it aborts the process (https://github.com/pytorch/pytorch/pull/179291).
    """
    status = 1  # of exceptions

    def end() -> None:
        with suppress(OSError):  # nobody reads them any more
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)

    # The thread that writes checkpoints has ended by then; W&B, registered later, comes before.
    atexit.register(end)
    try:
        yield
        status = 0
    except SystemExit as problem:
        if problem.code is None:
            status = 0
        elif isinstance(problem.code, int):
            status = problem.code
        raise


@contextmanager
def rank_0_first():
    """Runs the block in rank 0, then in the first process of each other node, then in the rest.

    The first ones download and encode the corpus; the others of a node find it on its disk. No
    process goes on before all nodes have it. A collective. After the trial of --minutes, which
    has prepared the corpus, no process waits for another to run the block.
    """
    rank = ThisProcess.rank
    store = ThisProcess.store
    node, local_rank = node_and_local_rank(rank)
    # Every rank waits for rank 0, even if it then waits for the first process of its node: an
    # error of rank 0 ends that process here, before it publishes anything.
    if rank > 0:
        rendezvous.wait_for_result(store, "prepared/0")
    if local_rank > 0:
        rendezvous.wait_for_result(store, f"prepared/{node}")
        yield
    else:
        Signals.handle(exit_on_signal)  # removes half-written files
        with rendezvous.publish(store, f"prepared/{node}"):
            yield
        Signals.handle(signal.SIG_DFL)
    long_barrier()


def exit_on_signal(number: int, _frame) -> None:
    """Raises SystemExit; a second signal is ignored while half-written files are removed."""
    Signals.handle(lambda *_: None)
    with suppress(OSError):  # standard error may be closed
        os.write(2, b"stopped before the training began\n")
    sys.exit(128 + number)


@contextmanager
def one_process_reports(rank: int):
    """Lets the first process of each node print an error that all processes raise.

    The others wait until torchrun, or `spawn`, ends them. Rank 0 waits a second, too: the
    others still read from the store, which ends with it.
    """
    try:
        yield
    except (UserError, OSError):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _, local_rank = node_and_local_rank(rank)
        if rank == 0:
            time.sleep(1)
        elif local_rank > 0:
            time.sleep(10)
        raise


# --- mp.spawn ---------------------------------------------------------------------------------


def spawn(train: Train, command_line: rendezvous.CommandLine) -> None:
    """Starts --procs processes on this machine's CPU, and waits until they have ended.

    Passes signals on to them. Exits with status 0, 1 if a process has died, 2 for a user's
    error, or 128 + signal if it has passed one on.
    """
    with exit_on_user_error():
        cores = available_cores()
        if "TORCHELASTIC_RUN_ID" in os.environ:
            raise UserError(
                f"this script starts its processes itself; run it without torchrun: "
                f"python {' '.join(map(quote, sys.argv))}"
            )
        args = command_line.complete()
        procs = number_of_processes(args, cores)
    args.threads = max(1, cores // procs)
    store = rendezvous.store_on_loopback()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(procs)}
    # Threads that wait for each other soon sleep. Spinning, they would keep cores from the
    # threads that they wait for: many times slower where other work shares the cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Signals are blocked until all processes have started; the new ones inherit the mask. The
    # mask holds for this thread only. A signal that reaches another thread is noted in `early`.
    early: list[int] = []
    Signals.handle(lambda number, _: early.append(number))
    if sys.platform != "win32":
        resource_tracker.ensure_running()  # now, because starting it unblocks signals
    block_signals()
    workers = mp.spawn(worker, (train, args, store.port, procs), nprocs=procs, join=False)
    wait_for_workers(workers, args.folder, early)


def number_of_processes(args, cores: int) -> int:
    """Returns how many processes train. Raises UserError.

    The default is one process, with one thread, for each core, so that no thread waits for
    another inside an operation. With more than 8 processes, or with few tokens for each,
    communication would cost more time than another process saves.
    """
    useful_procs = max(1, args.batch_tokens // MIN_TOKENS_PER_PROC)
    procs = args.procs or min(cores, MAX_PROCS_BY_DEFAULT, useful_procs)
    if procs > MAX_PROCS_PER_CORE * cores:
        remove_if_empty(args.folder)
        raise UserError(
            f"--procs {procs}: at most {MAX_PROCS_PER_CORE} for each of the {cores} cores here"
        )
    return procs


def worker(rank: int, train: Train, args, port: int, world_size: int) -> None:
    """Runs in each process of `spawn`."""
    os.environ["RANK"] = str(rank)
    prepare_streams()
    with end_at_once(), exit_on_user_error(), one_process_reports(rank):
        try:
            store = rendezvous.connect(port, CONNECT_TIMEOUT)
        except dist.DistError:  # the parent was killed meanwhile
            sys.exit(1)
        store.set_timeout(timedelta(seconds=args.timeout))
        set_up_and_train(train, rank, world_size, store, args)


def wait_for_workers(workers: mp.ProcessContext, folder: str, early: list[int]) -> None:
    """Waits until all workers have ended, and exits with their status.

    early: signals that came while the workers were started.
    """
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    received = forward_signals(workers, early)
    has_ended = False
    try:
        while not has_ended:
            with suppress(InterruptedError):  # on Windows a signal ends the wait
                has_ended = workers.join()
    except (mp.ProcessExitedException, mp.ProcessRaisedException) as problem:
        exit_codes = [process.exitcode for process in workers.processes]
        remove_if_empty(folder)
        if not received:
            report_failure(problem, exit_codes, folder)
    if received:
        sys.exit(128 + received[0])


def forward_signals(workers: mp.ProcessContext, early: list[int]) -> list[int]:
    """Passes signals on to the workers from now on; returns the list that notes them.

    On Windows, Ctrl-C reaches every process of the console, and there is no other signal.
    """
    received: list[int] = []
    times: list[float] = []

    def forward(number: int, _frame) -> None:
        received.append(number)
        times.append(time.monotonic())
        kills = times[-1] - times[0] > KILL_AFTER
        for process in workers.processes:
            if kills:
                process.kill()
            elif sys.platform != "win32" and process.is_alive():
                os.kill(process.pid, number)

    Signals.handle(forward)
    unblock_signals()
    for number in early:
        signal.raise_signal(number)
        if sys.platform == "win32":  # a worker that has started since does not know of it
            for process in workers.processes:
                process.kill()
    return received


def report_failure(problem: Exception, exit_codes: list[int | None], folder: str) -> None:
    """Exits with a line that says which process has died, and how to resume the run."""
    if 2 in exit_codes:  # that process has printed its error
        sys.exit(2)
    message = str(problem)
    if isinstance(problem, mp.ProcessExitedException) and KILLED in exit_codes:
        # The first that ended, unless another's death has ended it. (PyTorch kills the others,
        # too, if they do not end.)
        rank = problem.error_index
        if exit_codes[rank] in (-signal.SIGTERM, -signal.SIGABRT):
            rank = exit_codes.index(KILLED)
        if exit_codes[rank] == KILLED:
            message = f"process {rank} of {len(exit_codes)} was killed (SIGKILL)"
    hint = "there is no checkpoint to resume from"
    if os.path.exists(f"{folder}/last.pt"):
        hint = f"resume with: python {script_path()} --resume {quote(folder)}"
    sys.exit(f"error: {message}; {hint}")


# --- torchrun ---------------------------------------------------------------------------------


def run_under_torchrun(train: Train, command_line: rendezvous.CommandLine) -> None:
    """Calls `train` in this process, one of those that torchrun has started.

    Rank 0 completes the settings and sends them to all. When a process has died, torchrun
    --max-restarts starts all again, and they resume their run. Exits as `spawn` does.
    """
    with exit_on_user_error():
        check_environment()
    rank = int(os.environ["RANK"])
    with end_at_once(), exit_on_user_error(), one_process_reports(rank):
        interface = rendezvous.interface_to(os.environ["MASTER_ADDR"])
        if interface:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        rendezvous.check_interface()
        try:
            answers = dist.rendezvous("env://", timeout=CONNECT_TIMEOUT)
            torchrun_store, rank, world_size = next(answers)
        except dist.DistError:
            raise UserError("torchrun has ended meanwhile") from None
        try:
            timeout = command_line.timeout()
            torchrun_store.set_timeout(timedelta(seconds=timeout))
            store = rendezvous.store_of_this_start(torchrun_store, rank, world_size, timeout)
            args = rendezvous.share_settings(
                command_line, torchrun_store, store, rank, world_size
            )
            # --config may have another timeout.
            torchrun_store.set_timeout(timedelta(seconds=args.timeout))
            # torchrun sets OMP_NUM_THREADS=1 where it starts several processes on a node.
            args.threads = torch.get_num_threads()
            set_up_and_train(train, rank, world_size, store, args)
        except dist.DistNetworkError:  # the store is where process 0 is
            raise UserError("process 0 has ended: what its node prints says why") from None
        except (UserError, OSError, SystemExit):
            with suppress(dist.DistError):  # the store may be gone
                if rank == 0 and torchrun_store.check(["folder"]):
                    remove_if_empty(torchrun_store.get("folder").decode())
            raise
        if Signals.run_stopped:
            sys.exit(Signals.status())


def check_environment() -> None:
    """Raises UserError unless the environment has what torchrun sets for each process."""
    numbers = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")
    missing = [name for name in numbers if not os.environ.get(name, "").isdecimal()]
    if not os.environ.get("MASTER_ADDR"):
        missing.append("MASTER_ADDR")
    if missing:
        raise UserError(
            f"start this script with torchrun, which sets {', '.join(missing)}: "
            f"torchrun --standalone --nproc-per-node 2 {' '.join(map(quote, sys.argv))}"
        )
    rank, _, world_size, port = (int(os.environ[name]) for name in numbers)
    if not (rank < world_size and 0 < port < 2**16):
        raise UserError(
            f"RANK={rank} WORLD_SIZE={world_size} MASTER_PORT={port}: the ranks must be from 0 "
            f"to WORLD_SIZE - 1, and the port from 1 to 65535"
        )
