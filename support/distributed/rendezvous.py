"""How processes connect, compare their settings, and find out which of them has died.

Processes send each other short texts through a key-value store (dist.Store) before there is a
process group, and after one of them was lost.
"""

import dataclasses
import hashlib
import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol

import psutil
import torch
import torch.distributed as dist

from support.common.errors import UserError, error_message, first_line
from support.common.hardware import check_compiler, find_device
from support.common.paths import ROOT
from support.distributed.collectives import all_gather_objects, is_communication_error
from support.distributed.signals import Signals

PERIOD = 1  # seconds between two looks at whether another process asks
PIECE = 1 << 20  # characters; a store takes at most 8 MiB under one key
HAS_LIBUV = sys.platform != "win32"  # PyTorch's build for Windows has a store without it


class CommandLine(Protocol):
    """What a launcher needs of the command line (support/training/command_line.py)."""

    settings_class: Any  # a dataclass
    given: dict[str, Any]  # the flags on the command line

    def timeout(self) -> int:
        """Returns --timeout. Raises UserError."""

    def complete(self, restarted: str = "") -> Any:
        """Returns the settings of a run."""


def new_store(host: str, port: int, **more) -> dist.TCPStore:
    """Returns a store that this process serves, also to its process group."""
    more |= {"is_master": True, "wait_for_workers": False, "multi_tenant": True}
    return dist.TCPStore(host, port, use_libuv=HAS_LIBUV, **more)


def store_on_loopback() -> dist.TCPStore:
    """Returns a store for processes of this machine, at a free port, on loopback only.

    Gloo of this process, and of those that it starts, uses loopback as well.
    """
    loopback = interface_to("127.0.0.1")
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    return new_store("127.0.0.1", port, master_listen_fd=listener.detach())


def connect(port: int, timeout: timedelta) -> dist.TCPStore:
    """Returns the store of `store_on_loopback`, which another process has made."""
    return dist.TCPStore(
        "127.0.0.1", port, is_master=False, timeout=timeout, use_libuv=HAS_LIBUV
    )


@contextmanager
def publish(store: dist.Store, key: str):
    """Sets a key when the block has ended: to "", or to the message of its error.

    After another exception than UserError and OSError the key is not set: the launcher ends the
    processes that wait for it.
    """
    try:
        yield
    except (UserError, OSError) as problem:
        store.set(key, error_message(problem))
        raise
    store.set(key, "")


def wait_for_result(store: dist.Store, key: str) -> None:
    """Waits for a `publish` block in another process; raises its error as UserError."""
    while not store.check([key]):  # without a time limit; unlike store.wait, a signal ends it
        time.sleep(0.05)
    message = store.get(key).decode()
    if message:
        raise UserError(message)


def send_text(store: dist.Store, key: str, text: str) -> None:
    """Makes ASCII text of any length available to all processes."""
    starts = range(0, len(text), PIECE)
    for number, start in enumerate(starts):
        store.set(f"{key}/{number}", text[start : start + PIECE])
    store.set(f"{key}/pieces", str(len(starts)))


def receive_text(store: dist.Store, key: str) -> str:
    """Returns the text of `send_text`, for which it waits."""
    pieces = int(store.get(f"{key}/pieces"))
    return "".join(store.get(f"{key}/{number}").decode() for number in range(pieces))


def share_settings(
    command_line: CommandLine,
    torchrun_store: dist.Store,
    store: dist.Store,
    rank: int,
    world_size: int,
) -> Any:
    """Returns the settings of the run, the same in all processes: rank 0 sends its own.

    Every process compares its command line, code and PyTorch with rank 0's, so that none
    trains something else unnoticed. If one differs, or rank 0's settings are impossible, all
    raise UserError with the same message. torchrun_store: outlives a restart, and has the run's
    folder.
    """
    own = {
        "command line": command_line.given,
        "torch": torch.__version__,
        "code": checksum_of_code(),
    }
    if rank == 0:
        restarted = ""
        if torchrun_store.check(["folder"]):
            restarted = torchrun_store.get("folder").decode()
        with publish(store, "checked/0"):
            args = command_line.complete(restarted)
            torchrun_store.set("folder", args.folder)
            if restarted and not args.is_resumed:  # perhaps another node has it
                print(
                    f"torchrun has started the run again: {restarted}/last.pt is not on this "
                    f"machine, so it begins at step 0"
                )
            # A tokenizer, which a resumed run has in them, may be larger than a store's value.
            send_text(store, "settings", json.dumps([own, dataclasses.asdict(args)]))
    else:
        wait_for_result(store, "checked/0")
        expected, settings = json.loads(receive_text(store, "settings"))
        args = command_line.settings_class(**settings)
        with publish(store, f"checked/{rank}"):
            check_equal(rank, socket.gethostname(), own, expected)
            # This node may have fewer GPUs, or no compiler.
            find_device(args.device, args.DEVICES)
            if args.compile:
                check_compiler(args.device)
    for other in range(1, world_size):
        wait_for_result(store, f"checked/{other}")
    return args


def checksum_of_code() -> str:
    """Returns a checksum of all Python files that a run may use."""
    digest = hashlib.sha256()
    for path in sorted([*ROOT.glob("*.py"), *ROOT.glob("support/**/*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def check_same_data(checksum: str) -> None:
    """Raises UserError that names a rank whose data differ from rank 0's. A collective."""
    checksums = all_gather_objects((socket.gethostname(), checksum))
    _, expected = checksums[0]
    for rank, (host, own) in enumerate(checksums):
        check_equal(rank, host, {"data": own}, {"data": expected})


def check_equal(rank: int, host: str, own: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raises UserError for the first thing in which a process differs from process 0."""
    for name in own:
        if own[name] != expected[name]:
            raise UserError(
                f"process {rank}, on {host}, differs from process 0 in its {name}: "
                f"{own[name]} instead of {expected[name]}"
            )


def store_of_this_start(
    torchrun_store: dist.Store, rank: int, world_size: int, timeout: int
) -> dist.Store:
    """Returns a part of torchrun's store for this start, without keys of a start that failed.

    torchrun counts restarts differently on each node. So rank 0 chooses an id for the start,
    and answers each process's request under an id that only this process knows. The request of
    a process that has died is replaced by that of its successor. Raises UserError.
    """
    request_id = uuid.uuid4().hex
    torchrun_store.set(f"request/{rank}", request_id)
    if rank == 0:
        start_id = request_id
        store = dist.PrefixStore(start_id, torchrun_store)
        answer_requests(torchrun_store, store, start_id, world_size, timeout)
        return store
    try:
        torchrun_store.wait([f"start_of/{request_id}"], timedelta(seconds=timeout))
    except dist.DistStoreError:
        raise UserError(
            f"process 0 of {world_size} has not started within {timeout} seconds (--timeout)"
        ) from None
    start_id = torchrun_store.get(f"start_of/{request_id}").decode()
    store = dist.PrefixStore(start_id, torchrun_store)
    store.set(f"joined/{rank}", "")
    return store


def answer_requests(
    torchrun_store: dist.Store, store: dist.Store, start_id: str, world_size: int, timeout: int
) -> None:
    """Tells each process the id of the start until all have joined. Raises UserError."""
    end = time.monotonic() + timeout
    missing = list(range(1, world_size))
    while missing:
        if time.monotonic() > end:
            raise UserError(
                f"process {', '.join(map(str, missing))} of {world_size} has not started "
                f"within {timeout} seconds (--timeout)"
            )
        for other in missing:
            if torchrun_store.check([f"request/{other}"]):
                request_id = torchrun_store.get(f"request/{other}").decode()
                torchrun_store.set(f"start_of/{request_id}", start_id)
        time.sleep(0.02)
        missing = [other for other in missing if not store.check([f"joined/{other}"])]


@contextmanager
def new_port(store: dist.Store, rank: int):
    """Makes `dist.init_process_group` in the block use a new port of rank 0's host.

    torchrun's own port serves all starts of a run; the process group of a start that failed has
    left its keys there.
    """
    server = None  # of rank 0; it ends with the last object that uses it
    if rank == 0:
        host = os.environ["MASTER_ADDR"]
        server = store_on_loopback() if host == "127.0.0.1" else new_store(host, 0)
        store.set("port", str(server.port))
    os.environ["MASTER_PORT"] = store.get("port").decode()
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    yield  # the server lives at least as long as the block


@contextmanager
def report_lost_processes(store: dist.Store, rank: int, world_size: int):
    """Raises UserError that names the lost processes if a collective in the block fails.

    It asks all processes whether they are there. In each a thread answers, since its main
    thread may still wait in a collective.
    """
    has_ended = threading.Event()
    threading.Thread(target=answer, args=(store, rank, has_ended), daemon=True).start()
    try:
        yield
    except RuntimeError as problem:
        if not is_communication_error(problem):
            raise
        # A parent that sees a process die ends the others by SIGTERM, and names it itself.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if Signals.received:
            sys.exit(128 + Signals.received)
        lost = []  # ranks that do not answer
        with suppress(dist.DistError):  # the store was lost as well
            store.set(f"answer/{rank}", "")
            store.set("question", "")
            time.sleep(4 * PERIOD)
            lost = [n for n in range(world_size) if not store.check([f"answer/{n}"])]
        cause = "the processes have lost contact"  # the network, or this process, stood still
        if lost:
            names = ", ".join(map(str, lost))
            cause = f"process {names} of {world_size} has died or does not answer"
        raise UserError(f"{cause} ({first_line(problem)})") from problem
    finally:
        has_ended.set()


def answer(store: dist.Store, rank: int, has_ended: threading.Event) -> None:
    """Answers once a process asks whether this one lives. A stopped process does not."""
    with suppress(dist.DistError):  # the store is gone
        while not has_ended.wait(PERIOD):
            if store.check(["question"]):
                store.set(f"answer/{rank}", "")
                return


def check_interface() -> None:
    """Raises UserError if the user has named a network interface that this machine lacks."""
    interfaces = [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(each.family in (socket.AF_INET, socket.AF_INET6) for each in addresses)
    ]
    for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(","):
        if name and name not in interfaces:
            raise UserError(
                f"GLOO_SOCKET_IFNAME={name}: {socket.gethostname()} has no such network "
                f"interface with an address, only {', '.join(interfaces)}"
            )


def own_address(address: str) -> str | None:
    """Returns the address of this machine from which it reaches `address`, or None."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 1))  # a datagram socket: nothing is sent
            own, *_ = probe.getsockname()
            return own
    return None


def interface_to(address: str) -> str | None:
    """Returns the network interface through which this machine reaches `address`, or None.

    Gloo would use the interface of this machine's hostname, which often is loopback. On the
    node that has `address` it may be loopback all the same, if this is the node's hostname: a
    user then sets GLOO_SOCKET_IFNAME.
    """
    own = own_address(address)
    for name, addresses in psutil.net_if_addrs().items():
        if own and any(each.address == own for each in addresses):
            return name
    return None
