"""Ends a process that waits on its GPU for a collective with one that has died.

When a process dies, torchrun sends SIGTERM to the others. Python runs the handler of a signal
in the main thread, between two of its instructions. A main thread that waits inside CUDA for a
collective that will never end does not come to its next instruction: torchrun would wait for
its whole --shutdown-timeout before it kills the process.

The part of Python's handler that is written in C always runs. It writes a byte to a socket, on
which a thread of `exit_if_another_dies` waits.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch.distributed as dist

from support.distributed.rendezvous import own_address

GRACE = 5  # seconds in which the main thread can notice by itself, as it does with Gloo
PATIENCE = 5  # seconds in which a living node answers
PERIOD = 1  # seconds between two checks
BACKLOG = 4096  # connections: as many as Linux allows by default


@contextmanager
def exit_if_another_dies(store: dist.Store, rank: int, world_size: int) -> Iterator[None]:
    """Ends this process if, in the block, it gets a signal and another one has died.

    It begins to ask GRACE seconds after the signal.
    store: one that no process of the run keeps, and that all of them reach.
    """
    host = os.environ["MASTER_ADDR"]
    address = own_address(host)
    if address is None:
        yield
        return
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    name = address  # by which the others find this process
    if address.startswith("127.") and os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        # Rank 0's node takes its own name for loopback, as Debian does by default. The other
        # nodes reach it by that name.
        address, name = "", host
    # The operating system takes connections for a living process, even a stopped one, but only
    # BACKLOG of them; a thread accepts them, so that there is always room.
    with socket.create_server((address, 0), family=family, backlog=BACKLOG) as listener:
        store.set(f"listener/{rank}", f"{name} {listener.getsockname()[1]}")
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        watcher = threading.Thread(
            target=end_if_another_dies, args=(reader, store, rank, world_size), daemon=True
        )
        watcher.start()
        threading.Thread(target=take_connections, args=(listener,), daemon=True).start()
        try:
            yield
            with suppress(dist.DistError):  # torchrun has ended
                store.set(f"finished/{rank}", "")  # this process ends, but has not died
        finally:
            signal.set_wakeup_fd(-1)
            writer.close()  # ends the thread
            watcher.join(PATIENCE)
            listener.shutdown(socket.SHUT_RDWR)  # ends the other thread, and so the listening


def take_connections(listener: socket.socket) -> None:
    """Closes every connection at once: that it was possible is the answer."""
    with suppress(OSError):  # when `listener` is shut down
        while True:
            connection, _ = listener.accept()
            connection.close()


def end_if_another_dies(
    reader: socket.socket, store: dist.Store, rank: int, world_size: int
) -> None:
    """Waits for a signal; from then on, ends this process if another one has died."""
    with reader:
        if not reader.recv(1):  # the other end is closed
            return
        reader.settimeout(GRACE)
        while True:
            try:
                if not reader.recv(1):
                    return
            except TimeoutError:
                message = describe_dead_processes(store, rank, world_size)
                if message:
                    print(f"error: {message}", file=sys.stderr, flush=True)
                    os._exit(1)  # without the main thread, which hangs
                reader.settimeout(PERIOD)


def describe_dead_processes(store: dist.Store, rank: int, world_size: int) -> str:
    """Returns which other processes have died, in words, or ""."""
    others = [other for other in range(world_size) if other != rank]
    try:
        lost = [str(other) for other in others if has_died(store, other)]
    except dist.DistError:
        return "the store of the run does not answer: torchrun may have ended"
    return f"process {', '.join(lost)} of {world_size} has died" if lost else ""


def has_died(store: dist.Store, rank: int) -> bool:
    """Returns whether a process has ended without having finished the block."""
    if not store.check([f"listener/{rank}"]):
        return False
    address, port = store.get(f"listener/{rank}").decode().split()
    with suppress(OSError):  # it does not listen any more
        socket.create_connection((address, int(port)), timeout=PATIENCE).close()
        return False
    # Checked last: a process first sets this key, and then stops listening.
    return not store.check([f"finished/{rank}"])
