"""How processes meet, check that they train the same thing, and find out which of them has died."""

import hashlib
import json
import os
import signal
import socket
import sys
import time
import uuid
from argparse import Namespace
from contextlib import contextmanager
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

from support.common.errors import UserError, first_line
from support.common.hardware import find_device
from support.common.paths import ROOT
from support.distributed.collectives import all_gather_objects, is_communication_error
from support.distributed.signals import Signals
from support.training import flags


def store_on_loopback() -> dist.TCPStore:
    """Where processes of this machine meet: it listens for no other, at a port that is free.

    Gloo of this process, and of those that it starts, keeps to loopback as well.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def wait_for(store: dist.Store, key: str) -> None:
    """Waits for a key, however long it takes; unlike store.wait, a signal ends it."""
    while not store.check([key]):
        time.sleep(0.05)


@contextmanager
def publish(store: dist.Store, key: str):
    """Sets a key once the block has ended: to nothing, or to the UserError that it has raised."""
    try:
        yield
    except UserError as problem:
        store.set(key, str(problem))
        raise
    store.set(key, "")


def wait_for_result(store: dist.Store, key: str) -> None:
    """Waits for the end of a block in another process; raises the UserError that it has raised."""
    wait_for(store, key)
    if problem := store.get(key).decode():
        raise UserError(problem)


def share_arguments(
    parsed: Namespace, shared: dist.Store, store: dist.Store, rank: int, world_size: int
) -> Namespace:
    """The complete arguments, the same in all processes: rank 0 sends its own.

    Every process compares its command line, code and versions with rank 0's, so that none trains
    something else without a word. If one of them differs, or rank 0's are impossible, all raise
    UserError with the same message. shared: the store that outlives a restart of the processes; it
    names the run.
    """
    mine = {
        "command line": parsed.given,
        "torch": torch.__version__,
        "code": checksum_of_code(),
    }
    if rank == 0:
        restarted = shared.get("folder").decode() if shared.check(["folder"]) else ""
        with publish(store, "checked/0"):
            args = flags.complete(parsed, restarted)
            shared.set("folder", args.folder)
            store.set("arguments", json.dumps([mine, vars(args)]))
    else:
        wait_for_result(store, "checked/0")
        first, arguments = json.loads(store.get("arguments"))
        args = Namespace(**arguments)
        with publish(store, f"checked/{rank}"):
            if differs := [name for name in mine if mine[name] != first[name]]:
                raise UserError(
                    f"process {rank}, on {socket.gethostname()}, differs from process 0 "
                    f"in its {differs[0]}: {mine[differs[0]]} instead of "
                    f"{first[differs[0]]}"
                )
            find_device(args.device, parsed.devices)  # this node may have fewer GPUs
    for other in range(1, world_size):
        wait_for_result(store, f"checked/{other}")
    return args


def checksum_of_code() -> str:
    """Of all Python files that a run may use."""
    digest = hashlib.sha256()
    for path in sorted([*ROOT.glob("*.py"), *ROOT.glob("support/**/*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def agree(**facts) -> None:
    """Ends the run, naming who differs, unless all processes state the same facts. A collective."""
    stated = all_gather_objects((socket.gethostname(), facts))
    for other, (host, theirs) in enumerate(stated):
        for name in facts:
            if theirs[name] != stated[0][1][name]:
                raise UserError(
                    f"process {other}, on {host}, differs from process 0 in its {name}: "
                    f"{str(theirs[name])[:60]} instead of "
                    f"{str(stated[0][1][name])[:60]}"
                )


def restart_store(store: dist.Store, rank: int, world_size: int, timeout: int) -> dist.Store:
    """A part of torchrun's store for this start, without the keys of a start that failed.

    torchrun's own count of restarts differs from node to node. So rank 0 names the start, and tells
    the name to each process that asks, under a key that only this process knows. Raises UserError.
    """
    own = uuid.uuid4().hex
    store.set(f"asks/{rank}", own)
    if rank > 0:
        try:
            store.wait([f"told/{own}"], timedelta(seconds=timeout))
        except dist.DistStoreError:
            raise UserError(
                f"process 0 of {world_size} has not started within {timeout} seconds "
                f"(--timeout)"
            ) from None
        attempt = dist.PrefixStore(store.get(f"told/{own}").decode(), store)
        attempt.set(f"joined/{rank}", "")
        return attempt
    attempt, end = dist.PrefixStore(own, store), time.monotonic() + timeout
    while waiting := [r for r in range(1, world_size) if not attempt.check([f"joined/{r}"])]:
        if time.monotonic() > end:
            missing = ", ".join(map(str, waiting))
            raise UserError(
                f"process {missing} of {world_size} has not started within {timeout} "
                f"seconds (--timeout)"
            )
        for asking in [f"asks/{r}" for r in waiting]:
            if store.check([asking]):  # a dead process may have asked: then a new one follows
                store.set(f"told/{store.get(asking).decode()}", own)
        time.sleep(0.02)
    return attempt


@contextmanager
def name_lost_processes(store: dist.Store, rank: int, world_size: int):
    """If one of the processes dies, names it: the one that does not write to the store."""
    try:
        yield
    except RuntimeError as problem:
        if not is_communication_error(problem):
            raise
        # A parent that sees a process die ends the others by SIGTERM, and names it itself.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if Signals.received:
            sys.exit(128 + Signals.received)
        reason = first_line(problem, 200)
        try:
            store.set(f"noticed/{rank}", "")
            time.sleep(2)
            lost = [r for r in range(world_size) if not store.check([f"noticed/{r}"])]
        except dist.DistError:  # the store has gone, too
            lost = []
        if not lost:  # all have noticed: the network, or this process, had stood still
            raise UserError(
                f"the processes have lost touch with each other ({reason})"
            ) from problem
        raise UserError(
            f"process {', '.join(map(str, lost))} of {world_size} has died or does not "
            f"answer ({reason})"
        ) from problem


def interface_to(address: str) -> str | None:
    """Returns the network interface through which this machine reaches `address`, or None.

    Gloo would use the interface of this machine's hostname, which often is loopback.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 1))  # a datagram socket: nothing is sent
            own_address = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == own_address for each in addresses):
            return name
    return None
